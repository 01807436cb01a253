// Products without vector instructions: the numerics contract (kernels/kernels.h) written down literally. The other
// instruction sets are tested for equality with this.
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "kernels/cpu/fused.h"
#include "kernels/cpu/matmul.h"
#include "tensor/blocks.h"
#include "tensor/grid_blocks.h"
#include "tensor/grids.h"
#include "tensor/half.h"

namespace millrace::kernels::plain {
namespace {

constexpr int kLanes = 32;
constexpr std::int64_t kSegment = 256;
constexpr std::int64_t kTile = 16;  // x rows worked on while a weight block lies decoded

/// 32 consecutive weights as the contract sees them. The term of a block is
///   s * dx * (sc[0] * I0 + sc[1] * I1)   and then, if has_min,   m * dx * (ms[0] * S16_0 + ms[1] * S16_1).
/// two_scales: sc and ms are of the halves. The sum of the two products is rounded once, where it has to be (NVFP4).
struct Block {
  std::int8_t q[32];
  float s = 0;
  float m = 0;
  float sc[2] = {1, 1};
  int ms[2] = {1, 1};
  bool has_min = false, two_scales = false;
};

void nibbles(const std::uint8_t* qs, int offset, std::int8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<std::int8_t>((qs[i] & 15) - offset);
    q[i + 16] = static_cast<std::int8_t>((qs[i] >> 4) - offset);
  }
}

void codebook(const std::uint8_t* qs, const std::int8_t* levels, std::int8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = levels[qs[i] & 15];
    q[i + 16] = levels[qs[i] >> 4];
  }
}

void add_fifth_bits(std::uint32_t qh, std::int8_t* q) {
  for (int i = 0; i < 32; ++i) q[i] = static_cast<std::int8_t>(q[i] + (((qh >> i) & 1) << 4));
}

// `part` is the index of the 32 elements inside the block.
void unpack(const BlockQ4_0& block, int, Block& out) {
  nibbles(block.qs, 8, out.q);
  out.s = half_to_float(block.d);
}

void unpack(const BlockQ4_1& block, int, Block& out) {
  nibbles(block.qs, 0, out.q);
  out.s = half_to_float(block.d);
  out.m = half_to_float(block.m);
  out.has_min = true;
}

void unpack(const BlockQ5_0& block, int, Block& out) {
  nibbles(block.qs, 16, out.q);
  add_fifth_bits(block.qh, out.q);
  out.s = half_to_float(block.d);
}

void unpack(const BlockQ5_1& block, int, Block& out) {
  nibbles(block.qs, 0, out.q);
  add_fifth_bits(block.qh, out.q);
  out.s = half_to_float(block.d);
  out.m = half_to_float(block.m);
  out.has_min = true;
}

void unpack(const BlockQ8_0& block, int, Block& out) {
  std::memcpy(out.q, block.qs, sizeof out.q);
  out.s = half_to_float(block.d);
}

void unpack(const BlockIQ4_NL& block, int, Block& out) {
  codebook(block.qs, kIq4Codebook, out.q);
  out.s = half_to_float(block.d);
}

void unpack(const BlockMXFP4& block, int, Block& out) {
  codebook(block.qs, kMxfp4Codebook, out.q);
  out.s = e8m0_half(block.e);
}

void unpack(const BlockNVFP4& block, int part, Block& out) {
  for (int h = 0; h < 2; ++h) {
    const int sub = 2 * part + h;
    for (int i = 0; i < 8; ++i) {
      out.q[16 * h + i] = kMxfp4Codebook[block.qs[8 * sub + i] & 15];
      out.q[16 * h + 8 + i] = kMxfp4Codebook[block.qs[8 * sub + i] >> 4];
    }
    out.sc[h] = ue4m3_half(block.d[sub]);
  }
  out.s = 1;
  out.two_scales = true;
}

void unpack(const BlockQ1_0& block, int part, Block& out) {
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<std::int8_t>(2 * (block.qs[4 * part + i / 8] >> i % 8 & 1) - 1);
  out.s = half_to_float(block.d);
}

void unpack(const BlockQ2_0& block, int part, Block& out) {
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<std::int8_t>((block.qs[8 * part + i / 4] >> 2 * (i % 4) & 3) - 1);
  out.s = half_to_float(block.d);
}

void unpack(const BlockIQ4_XS& block, int part, Block& out) {
  codebook(block.qs + 16 * part, kIq4Codebook, out.q);
  out.s = half_to_float(block.d) * static_cast<float>(iq4_xs_scale(block, part));
}

// The low two bits of element i of part `part` (Q2_K, Q3_K).
int two_bits(const std::uint8_t* qs, int part, int i) { return (qs[32 * (part / 4) + i] >> (2 * (part % 4))) & 3; }

void unpack(const BlockQ2_K& block, int part, Block& out) {
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<std::int8_t>(two_bits(block.qs, part, i));
  for (int h = 0; h < 2; ++h) {
    out.sc[h] = static_cast<float>(block.scales[2 * part + h] & 15);
    out.ms[h] = block.scales[2 * part + h] >> 4;
  }
  out.s = half_to_float(block.d);
  out.m = -half_to_float(block.dmin);
  out.has_min = true;
  out.two_scales = true;
}

void unpack(const BlockQ3_K& block, int part, Block& out) {
  for (int i = 0; i < 32; ++i) {
    const int third = (block.hmask[i] >> part) & 1;
    out.q[i] = static_cast<std::int8_t>((two_bits(block.qs, part, i) | third << 2) - 4);
  }
  std::int8_t scales[16];
  unpack_scales_q3_k(block.scales, scales);
  for (int h = 0; h < 2; ++h) out.sc[h] = scales[2 * part + h];
  out.s = half_to_float(block.d);
  out.two_scales = true;
}

template <typename KBlock>
void unpack_k4(const KBlock& block, int part, Block& out) {
  for (int i = 0; i < 32; ++i) {
    out.q[i] = static_cast<std::int8_t>((block.qs[32 * (part / 2) + i] >> (4 * (part % 2))) & 15);
  }
  std::uint8_t scales[8], mins[8];
  unpack_scales_k4(block.scales, scales, mins);
  out.s = half_to_float(block.d) * static_cast<float>(scales[part]);
  out.m = -(half_to_float(block.dmin) * static_cast<float>(mins[part]));
  out.has_min = true;
}

void unpack(const BlockQ4_K& block, int part, Block& out) { unpack_k4(block, part, out); }

void unpack(const BlockQ5_K& block, int part, Block& out) {
  unpack_k4(block, part, out);
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<std::int8_t>(out.q[i] | ((block.qh[i] >> part) & 1) << 4);
}

void unpack(const BlockQ6_K& block, int part, Block& out) {
  const int half = part / 4, quarter = part % 4;
  for (int i = 0; i < 32; ++i) {
    const int low = (block.ql[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter / 2))) & 15;
    const int high = (block.qh[32 * half + i] >> (2 * quarter)) & 3;
    out.q[i] = static_cast<std::int8_t>((low | high << 4) - 32);
  }
  for (int h = 0; h < 2; ++h) out.sc[h] = block.scales[2 * part + h];
  out.s = half_to_float(block.d);
  out.two_scales = true;
}

template <typename GridBlock>
requires requires { Grid<GridBlock>::kOffset; }
void unpack(const GridBlock& block, int part, Block& out) {
  using G = Grid<GridBlock>;
  std::uint8_t bytes[32];
  G::bytes(block, part, bytes);
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<std::int8_t>(bytes[i] - G::kOffset);
  out.s = half_to_float(G::d(block)) * G::kStep;
  out.two_scales = G::kHalves;
  for (int h = 0; h < 2; ++h) out.sc[h] = G::kHalves ? static_cast<float>(G::scale(block, 2 * part + h)) : 1;
  if (!G::kHalves) out.s *= static_cast<float>(G::scale(block, 2 * part));
}

std::int64_t x_row(const MatmulArgs& args, std::int64_t r) { return args.x_index ? args.x_index[r] : r; }

/// Of the two halves of a block.
struct Integers {
  int dot[2] = {0, 0};
  Integers(const Block& w, const std::int8_t* q) {
    for (int i = 0; i < 32; ++i) dot[i / 16] += w.q[i] * q[i];
  }
};

/// A sum as matmul has it. add(): the term of a row's element k, or of its block b, which is number x_b of all in x.
struct LaneSum {
  float lanes[kLanes] = {};

  void add(float w, float x, std::int64_t k) { lanes[k % kLanes] = fused(w, x, lanes[k % kLanes]); }
  void add(const Block& w, const Q8Rows& x, std::int64_t x_b, std::int64_t b) {
    const Integers integers(w, x.q + 32 * x_b);
    const int* dot = integers.dot;
    float& lane = lanes[b % kLanes];
    const float dx = x.d[x_b];
    const float first = w.sc[0] * static_cast<float>(dot[0]);  // exact
    lane = fused(w.s * dx, fused(w.sc[1], static_cast<float>(dot[1]), first), lane);
    if (!w.has_min) return;
    const int min = w.ms[0] * x.sum16[2 * x_b] + w.ms[1] * x.sum16[2 * x_b + 1];
    lane = fused(w.m * dx, static_cast<float>(min), lane);
  }
  float total() {
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    }
    return lanes[0];
  }
};

/// As matmul_segments has it.
struct SegmentSum {
  float acc = 0, sum = 0;

  void add(float w, float x, std::int64_t k) {
    if (k % kSegment == 0) end_segment();
    acc = fused(w, x, acc);
  }
  void add(const Block& w, const Q8Rows& x, std::int64_t x_b, std::int64_t b) {
    if (b * 32 % kSegment == 0) end_segment();
    const Integers integers(w, x.q + 32 * x_b);
    const int* dot = integers.dot;
    const std::int32_t* sum16 = x.sum16 + 2 * x_b;
    const float dx = x.d[x_b];
    if (!w.two_scales) {
      add_term(w.s * dx, dot[0] + dot[1]);
      if (w.has_min) add_term(w.m, dx * static_cast<float>(sum16[0] + sum16[1]));
      return;
    }
    for (int h = 0; h < 2; ++h) {
      add_term(w.s * w.sc[h] * dx, dot[h]);
      if (w.has_min) add_term(w.m * static_cast<float>(w.ms[h]), dx * static_cast<float>(sum16[h]));
    }
  }
  float total() const { return sum + acc; }

 private:
  void end_segment() {
    sum += acc;
    acc = 0;
  }
  void add_term(float factor, int integer) { add_term(factor, static_cast<float>(integer)); }
  void add_term(float a, float b) { acc = fused(a, b, acc); }
};

template <typename Sum, typename GgufBlock, int kElements>
void quantized(const MatmulArgs& args) {
  static_assert(alignof(GgufBlock) == 1, "weights have any alignment");
  constexpr int kParts = kElements / 32;
  const std::int64_t blocks = args.cols / 32, stride = row_bytes(args.dtype, args.cols);
  for (std::int64_t n = 0; n < args.weight_rows; ++n) {
    const GgufBlock* row = reinterpret_cast<const GgufBlock*>(args.weight + n * stride);
    for (std::int64_t r0 = 0; r0 < args.x_rows; r0 += kTile) {
      const std::int64_t rows = args.x_rows - r0 < kTile ? args.x_rows - r0 : kTile;
      Sum sums[kTile];
      for (std::int64_t b = 0; b < blocks; ++b) {
        Block w;
        unpack(row[b / kParts], static_cast<int>(b % kParts), w);
        for (std::int64_t r = 0; r < rows; ++r) sums[r].add(w, args.x_q8, x_row(args, r0 + r) * blocks + b, b);
      }
      for (std::int64_t r = 0; r < rows; ++r) args.y[(r0 + r) * args.y_stride + n] = sums[r].total();
    }
  }
}

float load(DType dtype, const std::byte* row, std::int64_t k) {
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, row + 4 * k, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, row + 2 * k, sizeof bits);
  return dtype == DType::f16 ? half_to_float(bits) : bfloat_to_float(bits);
}

template <typename Sum>
void floats(const MatmulArgs& args) {
  const std::int64_t stride = row_bytes(args.dtype, args.cols);
  for (std::int64_t n = 0; n < args.weight_rows; ++n) {
    const std::byte* row = args.weight + n * stride;
    for (std::int64_t r0 = 0; r0 < args.x_rows; r0 += kTile) {
      const std::int64_t rows = args.x_rows - r0 < kTile ? args.x_rows - r0 : kTile;
      Sum sums[kTile];
      for (std::int64_t k = 0; k < args.cols; ++k) {
        const float w = load(args.dtype, row, k);
        for (std::int64_t r = 0; r < rows; ++r) sums[r].add(w, args.x[x_row(args, r0 + r) * args.x_stride + k], k);
      }
      for (std::int64_t r = 0; r < rows; ++r) args.y[(r0 + r) * args.y_stride + n] = sums[r].total();
    }
  }
}

template <typename Sum>
void multiply(const MatmulArgs& args) {
  switch (args.dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return floats<Sum>(args);
    case DType::q4_0:
      return quantized<Sum, BlockQ4_0, kBlock>(args);
    case DType::q4_1:
      return quantized<Sum, BlockQ4_1, kBlock>(args);
    case DType::q5_0:
      return quantized<Sum, BlockQ5_0, kBlock>(args);
    case DType::q5_1:
      return quantized<Sum, BlockQ5_1, kBlock>(args);
    case DType::q8_0:
      return quantized<Sum, BlockQ8_0, kBlock>(args);
    case DType::q2_k:
      return quantized<Sum, BlockQ2_K, kSuperBlock>(args);
    case DType::q3_k:
      return quantized<Sum, BlockQ3_K, kSuperBlock>(args);
    case DType::q4_k:
      return quantized<Sum, BlockQ4_K, kSuperBlock>(args);
    case DType::q5_k:
      return quantized<Sum, BlockQ5_K, kSuperBlock>(args);
    case DType::q6_k:
      return quantized<Sum, BlockQ6_K, kSuperBlock>(args);
    case DType::iq4_nl:
      return quantized<Sum, BlockIQ4_NL, kBlock>(args);
    case DType::iq4_xs:
      return quantized<Sum, BlockIQ4_XS, kSuperBlock>(args);
    case DType::mxfp4:
      return quantized<Sum, BlockMXFP4, kBlock>(args);
    case DType::nvfp4:
      return quantized<Sum, BlockNVFP4, kNvfp4Block>(args);
    case DType::q1_0:
      return quantized<Sum, BlockQ1_0, kBlockQ1_0>(args);
    case DType::q2_0:
      return quantized<Sum, BlockQ2_0, kBlockQ2_0>(args);
    default:
      MR_ASSERT(with_grid_block(args.dtype, [&]<typename Block>() { quantized<Sum, Block, kSuperBlock>(args); }));
  }
}

}  // namespace

void matmul(const MatmulArgs& args) { multiply<LaneSum>(args); }

std::int64_t matmul_workspace_bytes(std::int64_t) { return 64; }

void matmul_segments(const MatmulArgs& args) { multiply<SegmentSum>(args); }

std::int64_t matmul_segments_workspace_bytes(std::int64_t) { return 64; }

}  // namespace millrace::kernels::plain
