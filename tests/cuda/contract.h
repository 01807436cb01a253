// The contract of the GPU's products (NUMERICS in kernels/gpu/ops.h) written down plainly for the host: what
// the kernels of tests/cuda and the CPU's matmul_segments are both compared with. Knows no CUDA.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/fused.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/grid_blocks.h"
#include "tensor/grids.h"

namespace millrace::test {

inline constexpr std::int64_t kContractSegment = 256;

inline bool float_dtype(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

/// A row of quantized weights: int8 and, for each scale group, a scale and a min.
struct Quantized {
  int group = 32;
  bool has_min = false;
  std::vector<int> q;
  std::vector<float> scale, min;
};

template <typename Block>
Block block_at(const std::byte* row, std::int64_t i) {
  Block block;
  std::memcpy(&block, row + i * static_cast<std::int64_t>(sizeof(Block)), sizeof(Block));
  return block;
}

inline int two_bits(const std::uint8_t* qs, int j) { return qs[32 * (j / 128) + j % 32] >> (2 * (j / 32 % 4)) & 3; }

/// Calls each(block) for every block of the row.
template <typename Block, typename Each>
void for_blocks(const std::byte* row, std::int64_t cols, int elements, Each each) {
  for (std::int64_t i = 0; i < cols / elements; ++i) each(block_at<Block>(row, i));
}

template <typename Block, typename Value>
void nibble_blocks(const std::byte* row, std::int64_t cols, Quantized& out, Value value) {
  for_blocks<Block>(row, cols, 32, [&](const Block& b) {
    for (int j = 0; j < 32; ++j) out.q.push_back(value(b, j < 16 ? b.qs[j] & 15 : b.qs[j - 16] >> 4, j));
  });
}

template <typename Block>
void grid_blocks(const std::byte* row, std::int64_t cols, Quantized& out) {
  using G = Grid<Block>;
  out.group = G::kHalves ? 16 : 32;
  for_blocks<Block>(row, cols, 256, [&](const Block& b) {
    for (int p = 0; p < 8; ++p) {
      std::uint8_t bytes[32];
      G::bytes(b, p, bytes);
      for (const std::uint8_t byte : bytes) out.q.push_back(byte - G::kOffset);
    }
    const float step = f16_to_f32(G::d(b)) * G::kStep;
    for (int s = 0; s < 16; s += out.group / 16) out.scale.push_back(step * static_cast<float>(G::scale(b, s)));
  });
}

inline Quantized quantized_row(DType dtype, const std::byte* row, std::int64_t cols) {
  Quantized out;
  const auto scales = [&]<typename Block>(const Block&) {
    for_blocks<Block>(row, cols, 32, [&](const Block& b) { out.scale.push_back(f16_to_f32(b.d)); });
  };
  const auto mins = [&]<typename Block>(const Block&) {
    out.has_min = true;
    for_blocks<Block>(row, cols, 32, [&](const Block& b) { out.min.push_back(-f16_to_f32(b.m)); });
  };
  switch (dtype) {
    case DType::q4_0:
      scales(BlockQ4_0{});
      nibble_blocks<BlockQ4_0>(row, cols, out, [](const auto&, int q, int) { return q - 8; });
      break;
    case DType::q4_1:
      scales(BlockQ4_1{});
      mins(BlockQ4_1{});
      nibble_blocks<BlockQ4_1>(row, cols, out, [](const auto&, int q, int) { return q; });
      break;
    case DType::q5_0:
      scales(BlockQ5_0{});
      nibble_blocks<BlockQ5_0>(
          row, cols, out, [](const auto& b, int q, int j) { return (q | static_cast<int>(b.qh >> j & 1) << 4) - 16; });
      break;
    case DType::q5_1:
      scales(BlockQ5_1{});
      mins(BlockQ5_1{});
      nibble_blocks<BlockQ5_1>(row, cols, out,
                               [](const auto& b, int q, int j) { return q | static_cast<int>(b.qh >> j & 1) << 4; });
      break;
    case DType::iq4_nl:
      scales(BlockIQ4_NL{});
      nibble_blocks<BlockIQ4_NL>(row, cols, out, [](const auto&, int q, int) { return int{kIq4Codebook[q]}; });
      break;
    case DType::mxfp4:
      for_blocks<BlockMXFP4>(row, cols, 32, [&](const BlockMXFP4& b) { out.scale.push_back(e8m0_half(b.e)); });
      nibble_blocks<BlockMXFP4>(row, cols, out, [](const auto&, int q, int) { return int{kMxfp4Codebook[q]}; });
      break;
    case DType::nvfp4:
      out.group = 16;
      for_blocks<BlockNVFP4>(row, cols, 64, [&](const BlockNVFP4& b) {
        for (const std::uint8_t d : b.d) out.scale.push_back(ue4m3_half(d));
        for (int j = 0; j < 64; ++j) {
          const int byte = b.qs[8 * (j / 16) + j % 8];
          out.q.push_back(kMxfp4Codebook[j % 16 < 8 ? byte & 15 : byte >> 4]);
        }
      });
      break;
    case DType::q1_0:
      for_blocks<BlockQ1_0>(row, cols, 128, [&](const BlockQ1_0& b) {
        out.scale.insert(out.scale.end(), 4, f16_to_f32(b.d));
        for (int j = 0; j < 128; ++j) out.q.push_back((b.qs[j / 8] >> j % 8 & 1) != 0 ? 1 : -1);
      });
      break;
    case DType::q2_0:
      for_blocks<BlockQ2_0>(row, cols, 64, [&](const BlockQ2_0& b) {
        out.scale.insert(out.scale.end(), 2, f16_to_f32(b.d));
        for (int j = 0; j < 64; ++j) out.q.push_back((b.qs[j / 4] >> 2 * (j % 4) & 3) - 1);
      });
      break;
    case DType::q8_0:
      scales(BlockQ8_0{});
      for_blocks<BlockQ8_0>(row, cols, 32, [&](const BlockQ8_0& b) { out.q.insert(out.q.end(), b.qs, b.qs + 32); });
      break;
    case DType::q2_k:
      out.group = 16, out.has_min = true;
      for_blocks<BlockQ2_K>(row, cols, 256, [&](const BlockQ2_K& b) {
        for (int s = 0; s < 16; ++s) {
          out.scale.push_back(f16_to_f32(b.d) * static_cast<float>(b.scales[s] & 15));
          out.min.push_back(f16_to_f32(b.dmin) * static_cast<float>(b.scales[s] >> 4));
        }
        for (int j = 0; j < 256; ++j) out.q.push_back(two_bits(b.qs, j));
      });
      break;
    case DType::q3_k:
      out.group = 16;
      for_blocks<BlockQ3_K>(row, cols, 256, [&](const BlockQ3_K& b) {
        std::int8_t sc[16];
        unpack_scales_q3_k(b.scales, sc);
        for (int s = 0; s < 16; ++s) out.scale.push_back(f16_to_f32(b.d) * static_cast<float>(sc[s]));
        for (int j = 0; j < 256; ++j) {
          out.q.push_back((two_bits(b.qs, j) | (b.hmask[j % 32] >> (j / 32) & 1) << 2) - 4);
        }
      });
      break;
    case DType::q4_k:
    case DType::q5_k: {
      out.has_min = true;
      const auto k4 = [&](std::uint16_t d, std::uint16_t dmin, const std::uint8_t* packed) {
        std::uint8_t sc[8], m[8];
        unpack_scales_k4(packed, sc, m);
        for (int s = 0; s < 8; ++s) {
          out.scale.push_back(f16_to_f32(d) * static_cast<float>(sc[s]));
          out.min.push_back(f16_to_f32(dmin) * static_cast<float>(m[s]));
        }
      };
      if (dtype == DType::q4_k) {
        for_blocks<BlockQ4_K>(row, cols, 256, [&](const BlockQ4_K& b) {
          k4(b.d, b.dmin, b.scales);
          for (int j = 0; j < 256; ++j) out.q.push_back(b.qs[32 * (j / 64) + j % 32] >> (4 * (j / 32 % 2)) & 15);
        });
      } else {
        for_blocks<BlockQ5_K>(row, cols, 256, [&](const BlockQ5_K& b) {
          k4(b.d, b.dmin, b.scales);
          for (int j = 0; j < 256; ++j) {
            const int low = b.qs[32 * (j / 64) + j % 32] >> (4 * (j / 32 % 2)) & 15;
            out.q.push_back(low | (b.qh[j % 32] >> (j / 32) & 1) << 4);
          }
        });
      }
      break;
    }
    case DType::q6_k:
      out.group = 16;
      for_blocks<BlockQ6_K>(row, cols, 256, [&](const BlockQ6_K& b) {
        for (int s = 0; s < 16; ++s) out.scale.push_back(f16_to_f32(b.d) * static_cast<float>(b.scales[s]));
        for (int j = 0; j < 256; ++j) {
          const int half = j / 128, part = j / 32 % 4, i = j % 32;
          const int low = b.ql[64 * half + 32 * (part % 2) + i] >> (4 * (part / 2)) & 15;
          out.q.push_back((low | (b.qh[32 * half + i] >> (2 * part) & 3) << 4) - 32);
        }
      });
      break;
    case DType::iq4_xs:
      for_blocks<BlockIQ4_XS>(row, cols, 256, [&](const BlockIQ4_XS& b) {
        for (int s = 0; s < 8; ++s) out.scale.push_back(f16_to_f32(b.d) * static_cast<float>(iq4_xs_scale(b, s)));
        for (int j = 0; j < 256; ++j) {
          const std::uint8_t byte = b.qs[16 * (j / 32) + j % 16];
          out.q.push_back(kIq4Codebook[j % 32 < 16 ? byte & 15 : byte >> 4]);
        }
      });
      break;
    default:
      if (!with_grid_block(dtype, [&]<typename Block>() { grid_blocks<Block>(row, cols, out); }))
        ADD_FAILURE() << "not a quantized dtype";
  }
  return out;
}

/// Dot product of a row of weights with activations: x for float weights; for the others their int8 `q` and the scale d
/// of each 32.
inline float contract_dot(DType dtype, const std::byte* weights, std::int64_t cols, const float* x,
                          const std::int8_t* q, const float* d) {
  Quantized w;
  std::vector<float> f;
  if (float_dtype(dtype)) {
    f.resize(static_cast<std::size_t>(cols));
    decode_row(dtype, weights, cols, f.data());
  } else {
    w = quantized_row(dtype, weights, cols);
  }
  float total = 0;
  for (std::int64_t start = 0; start < cols; start += kContractSegment) {
    const std::int64_t end = std::min<std::int64_t>(cols, start + kContractSegment);
    float acc = 0;
    if (float_dtype(dtype)) {
      for (std::int64_t k = start; k < end; ++k) acc = kernels::fused(f[static_cast<std::size_t>(k)], x[k], acc);
    } else {
      for (std::int64_t k = start; k < end; k += w.group) {
        int dot = 0, sum = 0;
        for (std::int64_t i = k; i < k + w.group; ++i) {
          dot += w.q[static_cast<std::size_t>(i)] * q[i];
          sum += q[i];
        }
        const std::size_t g = static_cast<std::size_t>(k / w.group);
        const float dx = d[k / 32];
        const float scale = w.scale[g] * dx;
        acc = kernels::fused(scale, static_cast<float>(dot), acc);
        if (w.has_min) {
          const float dsum = dx * static_cast<float>(sum);
          acc = kernels::fused(-w.min[g], dsum, acc);
        }
      }
    }
    total += acc;
  }
  return total;
}

}  // namespace millrace::test
