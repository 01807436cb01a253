// Row ops, mixtures and sampling on the GPU, bit for bit against the CPU's kernels or a plain host version of the
// contract in ops.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "cuda/on_device.h"
#include "kernels/cuda/capability.h"
#include "kernels/cuda/launchers.h"
#include "kernels/gpu/offer.h"
#include "kernels/kernels.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/kv_codec.h"

namespace millrace::kernels::cuda {
namespace {

using test::Array;
using test::Entry;
using test::normal_floats;
using test::ok;
using test::same;
using test::same_bits;

struct RopeCase {
  int rows, heads, kv_heads, head_dim, rotary;
  bool neox, norms;
  DType dtype;
  bool rotated = false;
};

class CudaOps : public test::OnDevice {
 protected:
  void check_rope_store(const RopeCase& c);

  std::mt19937 random_{20261121};
  const kernels::Table& cpu_ = kernels::table(device::Isa::plain);
};

/// int8 activations on the device, and what they must be.
struct Quantized {
  Quantized(std::int64_t rows, std::int64_t cols)
      : rows(rows),
        cols(cols),
        q(static_cast<std::size_t>(rows * cols)),
        scale(static_cast<std::size_t>(rows * cols / 32)) {}
  Q8 view() const { return {q.get(), scale.get()}; }

  ::testing::AssertionResult holds(const kernels::Table& cpu, const std::vector<float>& x) const {
    std::vector<std::byte> memory(static_cast<std::size_t>(kernels::q8_bytes(rows, cols)));
    const Q8Rows want = kernels::q8_rows_at(memory.data(), rows, cols);
    cpu.quantize_q8(x.data(), cols, rows, cols, want);
    const auto got_q = q.host();
    const auto got_scale = scale.host();
    for (std::size_t i = 0; i < got_q.size(); ++i) {
      if (got_q[i] != want.q[i]) return ::testing::AssertionFailure() << "int8 " << i << " differs";
    }
    for (std::size_t b = 0; b < got_scale.size(); ++b) {
      const Q8Scale& s = got_scale[b];
      const int low = want.sum16[2 * b], high = want.sum16[2 * b + 1];
      if (!same(s.d, want.d[b]) || s.s16[0] != low || s.s16[1] != high || s.s != low + high ||
          !same(s.ds, want.d[b] * static_cast<float>(low + high))) {
        return ::testing::AssertionFailure() << "scale " << b << " differs";
      }
    }
    return ::testing::AssertionSuccess();
  }

  std::int64_t rows, cols;
  Array<std::int8_t> q;
  Array<Q8Scale> scale;
};

// The sum of a warp's lanes as the kernels add them.
float tree(std::vector<float> lanes) {
  for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

TEST_F(CudaOps, EmbedDecodesEveryDtype) {
  for (const DTypeInfo& dtype : all_dtypes()) {
    if (!dtype.computable) continue;
    SCOPED_TRACE(std::string(dtype.name));
    const std::int64_t cols = dtype.block_elements == 1 ? 333 : 3 * dtype.block_elements, vocab = 37;
    const auto bytes = static_cast<std::size_t>(row_bytes(dtype.dtype, cols));
    std::vector<std::byte> table(bytes * static_cast<std::size_t>(vocab));
    for (auto& b : table) b = static_cast<std::byte>(random_());
    const std::vector<std::int32_t> tokens = {36, 0, 5, 5, 17};
    std::vector<float> want(tokens.size() * static_cast<std::size_t>(cols));
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      decode_row(dtype.dtype, table.data() + bytes * static_cast<std::size_t>(tokens[r]), cols,
                 want.data() + r * static_cast<std::size_t>(cols));
    }
    const Array<std::byte> on_device(table);
    const Entry entry(on_device.get());
    const Array<std::int32_t> ids(tokens);
    const Array<float> out(want.size());
    ok(embed({entry.get(), dtype.dtype, static_cast<std::int32_t>(vocab)}, ids.get(),
             static_cast<std::int32_t>(tokens.size()), static_cast<std::int32_t>(cols), out.get(), nullptr));
    EXPECT_TRUE(same_bits(out.host(), want));
  }
}

// What rms_norm's block of threads sums, in its order.
float sum_of_squares(const float* x, int cols) {
  const bool vectors = cols % 4 == 0 && cols <= 16384;
  const int threads = 512;
  std::vector<float> sums(static_cast<std::size_t>(threads)), warps;
  for (int i = 0; i < cols; ++i) {
    float& sum = sums[static_cast<std::size_t>((vectors ? i / 4 : i) % threads)];
    sum = test::fused(x[i], x[i], sum);
  }
  for (auto warp = sums.begin(); warp != sums.end(); warp += 32) warps.push_back(tree({warp, warp + 32}));
  float total = 0;
  for (std::size_t w = 0; w < warps.size(); w += 4) total += (warps[w] + warps[w + 1]) + (warps[w + 2] + warps[w + 3]);
  return total;
}

TEST_F(CudaOps, RmsNorm) {
  for (const int cols : {7, 32, 64, 100, 576, 2048, 2560, 4096, 5120, 8192, 16384, 18432}) {
    SCOPED_TRACE(cols);
    const std::size_t n = static_cast<std::size_t>(cols);
    const int rows = 5;
    const auto x = normal_floats(9 * n, random_, 3), weight = normal_floats(n, random_);
    const std::vector<std::int32_t> index = {8, 0, 3, 3, 7};
    std::vector<float> want(rows * n);
    for (int r = 0; r < rows; ++r) {
      const float* from = x.data() + static_cast<std::size_t>(index[static_cast<std::size_t>(r)]) * n;
      const float scale = 1.0f / std::sqrt(sum_of_squares(from, cols) / static_cast<float>(cols) + 1e-5f);
      double exact = 0;
      for (int i = 0; i < cols; ++i) exact += static_cast<double>(from[i]) * from[i];
      EXPECT_NEAR(scale, 1 / std::sqrt(exact / cols + 1e-5), 1e-6 * scale);
      for (std::size_t i = 0; i < n; ++i) want[static_cast<std::size_t>(r) * n + i] = from[i] * scale * weight[i];
    }
    const Array<float> x_at(x), w_at(weight), out(want.size());
    const Array<std::int32_t> index_at(index);
    const Entry entry(w_at.at_bytes());
    const bool quantized = cols % 32 == 0;
    const Quantized q8(rows, quantized ? cols : 32);
    ok(rms_norm(x_at.get(), index_at.get(), entry.get(), rows, cols, 1e-5f, out.get(), quantized ? q8.view() : Q8{},
                nullptr));
    EXPECT_TRUE(same_bits(out.host(), want));
    if (!quantized) continue;
    EXPECT_TRUE(q8.holds(cpu_, want));
    const Quantized alone(1, cols);  // only int8, one row, by its own number
    ok(rms_norm(x_at.get() + 3 * n, nullptr, entry.get(), 1, cols, 1e-5f, nullptr, alone.view(), nullptr));
    EXPECT_TRUE(alone.holds(
        cpu_, {want.begin() + static_cast<std::ptrdiff_t>(2 * n), want.begin() + static_cast<std::ptrdiff_t>(3 * n)}));
  }
}

TEST_F(CudaOps, QuantizeGivesTheBitsOfTheCpu) {
  for (const int cols : {32, 96, 4096}) {
    for (const int stride : {cols, cols + 4, cols + 5}) {
      SCOPED_TRACE(::testing::Message() << cols << " columns, stride " << stride);
      const int rows = 37;
      auto x = normal_floats(static_cast<std::size_t>(rows * stride), random_);
      std::uniform_int_distribution<int> exponent(-140, 100);
      for (int r = 0; r < rows; ++r) {  // rows of all magnitudes, halves that round to even, zeros, infinities, NaN
        const float scale = std::ldexp(1.0f, r < 8 ? exponent(random_) : 0);
        for (int c = 0; c < stride; ++c) {
          float& v = x[static_cast<std::size_t>(r * stride + c)];
          v = r == 9 ? 0.0f : r == 10 ? static_cast<float>(c % 255 - 127) / 2 : v * scale;
        }
      }
      x[static_cast<std::size_t>(11 * stride + 3)] = std::numeric_limits<float>::infinity();
      x[static_cast<std::size_t>(12 * stride + 31)] = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> dense;
      for (int r = 0; r < rows; ++r) dense.insert(dense.end(), x.begin() + r * stride, x.begin() + r * stride + cols);
      const Array<float> x_at(x);
      const Quantized q8(rows, cols);
      ok(quantize_q8(x_at.get(), stride, rows, cols, q8.view(), nullptr));
      EXPECT_TRUE(q8.holds(cpu_, dense));
    }
  }
}

TEST_F(CudaOps, Elementwise) {
  for (const std::size_t n : {1, 3, 4, 1000, 1023, 11008}) {
    SCOPED_TRACE(n);
    auto x = normal_floats(n, random_, 30);
    const auto y = normal_floats(n, random_);
    const Array<float> added(x), gated(x), y_at(y);
    ok(add(added.get(), y_at.get(), static_cast<std::int64_t>(n), nullptr));
    ok(gate_mul(Activation::silu, 0, gated.get(), y_at.get(), static_cast<std::int64_t>(n), nullptr));
    auto sum = x, gate = x;
    cpu_.add(sum.data(), y.data(), static_cast<std::int64_t>(n));
    cpu_.gate_mul(Activation::silu, 0, gate.data(), y.data(), static_cast<std::int64_t>(n));
    EXPECT_TRUE(same_bits(added.host(), sum));
    EXPECT_TRUE(same_bits(gated.host(), gate));
  }
}

TEST_F(CudaOps, SiluIsTheCpusOverTheWholeRange) {  // and so exp_f32 is
  std::vector<float> x;
  constexpr int kSteps = 1'400'000;
  for (int i = 0; i <= kSteps; ++i) x.push_back(static_cast<float>(-120 + 240.0 * i / kSteps));
  for (const float v : {0.0f, -0.0f, 1e-40f, -1e-40f, 1e30f, -1e30f}) x.push_back(v);
  const std::vector<float> ones(x.size(), 1.0f);
  const Array<float> gate(x), up(ones);
  ok(gate_mul(Activation::silu, 0, gate.get(), up.get(), static_cast<std::int64_t>(x.size()), nullptr));
  cpu_.gate_mul(Activation::silu, 0, x.data(), ones.data(), static_cast<std::int64_t>(x.size()));
  EXPECT_TRUE(same_bits(gate.host(), x));
}

TEST_F(CudaOps, GatherRows) {
  const int cols = 301;
  const auto x = normal_floats(10 * cols, random_);
  const std::vector<std::int32_t> index = {9, 9, 0, 4};
  std::vector<float> want;
  for (const int i : index) want.insert(want.end(), x.begin() + i * cols, x.begin() + (i + 1) * cols);
  const Array<float> x_at(x), out(want.size());
  const Array<std::int32_t> index_at(index);
  ok(gather_rows(x_at.get(), index_at.get(), 4, cols, out.get(), nullptr));
  EXPECT_TRUE(same_bits(out.host(), want));
}

/// A head of a token's key or value into its part of a block, as kv/sequence.h lays it.
void store_token(DType dtype, const float* x, int head_dim, int slot, bool is_key, std::byte* part) {
  BlockQ8_0 block = {};
  for (int d = 0; d < head_dim; ++d) {
    const int i = is_key ? d * 64 + slot : slot * head_dim + d;
    const std::uint16_t half = f32_to_f16(x[d]);
    if (dtype == DType::f32) {
      std::memcpy(part + 4 * i, x + d, 4);
    } else if (dtype == DType::f16) {
      std::memcpy(part + 2 * i, &half, 2);
    } else if (kv_has_few_bits(dtype)) {
      const auto group = static_cast<int>(kv_few_group(head_dim));
      const int g = d / group, c = d % group, groups = head_dim / group, shift = c / (group / 4) * 2;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(group));
      const std::uint16_t scale = encode_kv_few(dtype, x + g * group, group, codes.data());
      const auto code = static_cast<std::byte>(codes[static_cast<std::size_t>(c)]);
      const int row = g * (group / 4) + c % (group / 4), sign_row = g * (group / 8) + c % (group / 8);
      std::byte& field = part[is_key ? row * 64 + slot : slot * head_dim / 4 + row];
      field = (field & ~(std::byte{3} << shift)) | (code & std::byte{3}) << shift;
      std::byte* const signs = part + 16 * head_dim;
      if (dtype == DType::q3_k) {
        std::byte& sign = signs[is_key ? sign_row * 64 + slot : slot * head_dim / 8 + sign_row];
        sign = (sign & ~(std::byte{1} << c / (group / 8))) | code >> 2 << c / (group / 8);
      }
      std::byte* const scales = signs + (dtype == DType::q3_k ? 8 * head_dim : 0);
      std::memcpy(scales + 2 * (is_key ? g * 64 + slot : slot * groups + g), &scale, 2);
    } else if (dtype == DType::q4_0) {
      const int g = d / 32, scale = is_key ? g * 64 + slot : slot * (head_dim / 32) + g, c = d % 32;
      const int row = g * 16 + c % 16;
      const KvGroup group = encode_kv_q4(x + 32 * g);
      std::memcpy(part + 32 * head_dim + 2 * scale, &group.d, 2);
      std::byte& two = part[is_key ? row * 64 + slot : slot * head_dim / 2 + row];
      const auto nibble = static_cast<std::byte>(group.q[c] & 15);
      two = c < 16 ? (two & std::byte{0xf0}) | nibble : (two & std::byte{0x0f}) | nibble << 4;
    } else {
      const int g = d / 32, scale = is_key ? g * 64 + slot : slot * (head_dim / 32) + g;
      if (d % 32 == 0) {
        encode_row(DType::q8_0, x + d, 32, reinterpret_cast<std::byte*>(&block));
        std::memcpy(part + 64 * head_dim + 2 * scale, &block.d, 2);
      }
      std::memcpy(part + i, &block.qs[d % 32], 1);
    }
  }
}

/// What an encoder has to bear: zeros, magnitudes that scales cannot hold, ties, infinities and NaN. k, v: [.., 32].
void spoil(std::vector<float>& k, std::vector<float>& v) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::size_t b = 0; b < v.size() / 32; ++b) {
    float *key = k.data() + 32 * b, *value = v.data() + 32 * b;
    const int kind = static_cast<int>(b % 11);
    for (int i = 0; i < 32; ++i) {
      if (kind == 1) value[i] = key[i] = 0;
      if (kind == 2) value[i] = static_cast<float>(i * 8 - 127) / 2;
      if (kind == 3) value[i] *= 1e-6f, key[i] *= 1e-6f;  // a subnormal scale
      if (kind == 4) value[i] *= 1e-20f, key[i] *= 1e-20f;
      if (kind == 5) value[i] *= 1e7f;
    }
    if (kind == 6) value[5] = kInfinity;
    if (kind == 7) value[31] = -kInfinity;
    if (kind == 8) value[7] = std::numeric_limits<float>::quiet_NaN();
    if (kind == 9) value[0] = -0.0f, value[1] = 127, value[2] = 0.5f, value[3] = 1.5f, value[4] = -2.5f;
  }
}

/// Names the first byte that differs.
::testing::AssertionResult same_blocks(const std::vector<std::byte>& got, const std::vector<std::byte>& want,
                                       const RopeCase& c, std::int64_t k_offset, std::int64_t head_bytes,
                                       std::int64_t block_bytes) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << "sizes differ";
  std::size_t different = 0, first = 0;
  for (std::size_t i = got.size(); i-- > 0;) {
    if (got[i] != want[i]) ++different, first = i;
  }
  if (different == 0) return ::testing::AssertionSuccess();
  const auto within = static_cast<std::int64_t>(first) % block_bytes - k_offset;
  const std::int64_t head = within / head_bytes, elements = c.dtype == DType::q8_0   ? 64 * c.head_dim
                                                            : c.dtype == DType::q4_0 ? 32 * c.head_dim
                                                                                     : head_bytes;
  return ::testing::AssertionFailure() << different << " bytes of the cache differ, the first in "
                                       << (within < 0          ? "nobody's place"
                                           : head < c.kv_heads ? "K"
                                                               : "V")
                                       << " head " << head % c.kv_heads << ", byte " << within % head_bytes
                                       << (within % head_bytes >= elements ? " (a scale)" : "") << ": "
                                       << static_cast<int>(got[first]) << " where " << static_cast<int>(want[first])
                                       << " is wanted";
}

/// One store: its queries, and what it leaves in the cache, are the host's.
void CudaOps::check_rope_store(const RopeCase& c) {
  SCOPED_TRACE(::testing::Message() << c.rows << " rows, " << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim
                                    << " " << info(c.dtype).name);
  const int sequences = 3, max_blocks = 6;
  // The cache's blocks, and where it has few bits the plain ones beside.
  struct Blocks {
    DType dtype;
    std::int64_t k_offset, head_bytes, v_offset, block_bytes;
  };
  const auto blocks_of = [&](DType dtype, std::int64_t k_offset) -> Blocks {
    const std::int64_t head_bytes = 64 * kv_row_bytes(dtype, c.head_dim), v_offset = k_offset + head_bytes * c.kv_heads;
    return {dtype, k_offset, head_bytes, v_offset, v_offset + head_bytes * c.kv_heads};
  };
  const bool few = kv_has_few_bits(c.dtype);
  const Blocks shapes[] = {blocks_of(c.dtype, 512), blocks_of(few ? DType::q8_0 : c.dtype, 128)};
  // Two runs of consecutive positions that cross blocks, and single rows.
  std::vector<std::int32_t> sequence, position;
  for (int r = 0; r < c.rows; ++r) {
    const bool lone = c.rows < 4 || r % 50 == 17;
    sequence.push_back(lone ? 2 : r > c.rows / 2);
    position.push_back(lone ? 100 + r : 37 + r);
  }
  const auto q = normal_floats(static_cast<std::size_t>(c.rows * c.heads * c.head_dim), random_);
  auto k = normal_floats(static_cast<std::size_t>(c.rows * c.kv_heads * c.head_dim), random_);
  auto v = normal_floats(k.size(), random_);
  const bool quantized = c.dtype == DType::q8_0 || c.dtype == DType::q4_0;
  if ((few || quantized) && !c.rotated) spoil(k, v);
  const auto angles = normal_floats(static_cast<std::size_t>(c.rows * c.rotary / 2), random_, 3);
  std::vector<float> cos_sin;
  for (const float a : angles) cos_sin.insert(cos_sin.end(), {std::cos(a), std::sin(a)});
  const auto q_norm = normal_floats(static_cast<std::size_t>(c.head_dim), random_);
  const auto k_norm = normal_floats(static_cast<std::size_t>(c.head_dim), random_);

  const auto prepare = [&](std::vector<float>& x, int heads, const std::vector<float>& norm) {
    for (int i = 0; i < c.rows * heads; ++i) {
      float* head = x.data() + i * c.head_dim;
      if (c.norms) {
        std::vector<float> lanes(32);
        for (int d = 0; d < c.head_dim; ++d) {
          float& sum = lanes[static_cast<std::size_t>(d / 4 % 32)];
          sum = test::fused(head[d], head[d], sum);
        }
        const float scale = 1.0f / std::sqrt(tree(lanes) / static_cast<float>(c.head_dim) + 1e-6f);
        for (int d = 0; d < c.head_dim; ++d) head[d] = head[d] * scale * norm[static_cast<std::size_t>(d)];
      }
      cpu_.rope(head, cos_sin.data() + i / heads * c.rotary, c.rotary, c.neox);
    }
  };
  auto q_want = q, k_want = k;
  prepare(q_want, c.heads, q_norm);
  prepare(k_want, c.kv_heads, k_norm);
  auto v_want = v;
  if (c.rotated) {
    for (std::vector<float>* x : {&q_want, &k_want, &v_want})
      cpu_.rotate(x->data(), static_cast<std::int64_t>(x->size()), rotation_span(c.head_dim));
  }

  const int places = sequences * max_blocks;
  const auto place_of = [&](int entry, bool plain) { return entry * (plain ? 11 : 7) % places; };
  const auto bytes_of = [&](const Blocks& shape) { return static_cast<std::size_t>(shape.block_bytes * places); };
  const Array<std::byte> memory(bytes_of(shapes[0])), plain_memory(bytes_of(shapes[1]));
  std::vector<std::byte> want[2];
  std::vector<const std::byte*> blocks[2];
  for (const int plain : {0, 1}) {
    const Blocks& shape = shapes[plain];
    want[plain].assign(bytes_of(shape), std::byte{0xcb});
    const std::byte* const first = (plain != 0 ? plain_memory : memory).get();
    for (int i = 0; i < places; ++i) blocks[plain].push_back(first + place_of(i, plain != 0) * shape.block_bytes);
    for (int r = 0; r < c.rows && (few || plain == 0); ++r) {
      const int at = position[static_cast<std::size_t>(r)], slot = at % 64;
      const int place = place_of(sequence[static_cast<std::size_t>(r)] * max_blocks + at / 64, plain != 0);
      for (int head = 0; head < c.kv_heads; ++head) {
        const auto x = (r * c.kv_heads + head) * c.head_dim;
        std::byte* part = want[plain].data() + place * shape.block_bytes + head * shape.head_bytes;
        store_token(shape.dtype, k_want.data() + x, c.head_dim, slot, true, part + shape.k_offset);
        store_token(shape.dtype, v_want.data() + x, c.head_dim, slot, false, part + shape.v_offset);
      }
    }
  }

  const Array<float> q_at(q), k_at(k), v_at(v), cos_sin_at(cos_sin), q_norm_at(q_norm), k_norm_at(k_norm);
  const Array<std::int32_t> sequence_at(sequence), position_at(position);
  const Array<const std::byte*> blocks_at(blocks[0]), plain_at(blocks[1]);
  const Entry q_entry(q_norm_at.at_bytes()), k_entry(k_norm_at.at_bytes());
  RopeStoreCall call;
  call.rows = {c.rows, nullptr, sequence_at.get(), position_at.get()};
  call.kv.blocks = {blocks_at.get(), shapes[0].k_offset, shapes[0].v_offset, shapes[0].head_bytes};
  if (few) call.kv.plain = {plain_at.get(), shapes[1].k_offset, shapes[1].v_offset, shapes[1].head_bytes};
  call.kv.max_blocks = max_blocks;
  call.kv.dtype = c.dtype;
  call.kv.kv_heads = c.kv_heads;
  call.kv.head_dim = c.head_dim;
  if (c.rotated) call.kv.rotation = static_cast<std::int32_t>(rotation_span(c.head_dim));
  call.q = q_at.get();
  call.k = k_at.get();
  call.v = v_at.get();
  call.heads = c.heads;
  if (c.norms) call.q_norm = q_entry.get(), call.k_norm = k_entry.get();
  call.eps = 1e-6f;
  call.cos_sin = cos_sin_at.get();
  call.rotary = c.rotary;
  call.neox = c.neox;
  ok(rope_store(call, nullptr));
  EXPECT_TRUE(same_bits(q_at.host(), q_want));
  for (const int plain : {0, 1})
    EXPECT_TRUE(same_blocks((plain != 0 ? plain_memory : memory).host(), want[plain], c, shapes[plain].k_offset,
                            shapes[plain].head_bytes, shapes[plain].block_bytes))
        << (plain != 0 ? "plain blocks" : "the cache's blocks");
}

TEST_F(CudaOps, RopeStore) {
  const RopeCase cases[] = {
      {1, 32, 32, 128, 128, false, false, DType::f16},
      {1, 32, 8, 128, 128, false, false, DType::f16},
      {3, 32, 4, 128, 128, true, true, DType::f16},
      {1, 7, 1, 64, 32, true, false, DType::f32},
      {70, 8, 2, 80, 20, true, false, DType::f16},
      {133, 5, 5, 96, 96, false, true, DType::f32},
      {200, 4, 2, 256, 256, true, true, DType::f16},
      {64, 6, 3, 64, 64, false, false, DType::f16},
      {1, 32, 8, 128, 128, false, false, DType::q8_0},
      {3, 32, 4, 128, 128, true, true, DType::q8_0},
      {1, 7, 1, 64, 32, true, false, DType::q8_0},
      {2, 6, 2, 96, 96, false, true, DType::q8_0},
      {133, 5, 5, 96, 96, false, true, DType::q8_0},
      {200, 4, 2, 256, 256, true, true, DType::q8_0},
      {64, 6, 3, 64, 64, false, false, DType::q8_0},
      {70, 8, 1, 128, 64, true, false, DType::q8_0},
      // Keys that are not turned, stored without queries.
      {1, 0, 8, 128, 0, false, false, DType::f16},
      {3, 0, 2, 64, 0, false, false, DType::q8_0},
      // Rotated, and not.
      {1, 32, 8, 128, 128, false, false, DType::q4_0, true},
      {3, 32, 4, 128, 128, true, true, DType::q4_0, true},
      {70, 8, 1, 128, 64, true, false, DType::q4_0, true},
      {133, 5, 5, 96, 96, false, true, DType::q4_0, true},
      {200, 4, 2, 256, 256, true, true, DType::q4_0, true},
      {64, 6, 3, 64, 64, false, false, DType::q4_0, true},
      {70, 6, 3, 512, 64, false, false, DType::q4_0, true},
      {70, 8, 1, 128, 64, true, false, DType::q4_0},
      {70, 8, 1, 128, 64, true, false, DType::q8_0, true},
      {3, 0, 2, 64, 0, false, false, DType::q4_0, true},
      {3, 4, 2, 64, 0, false, false, DType::q4_0, true},
      {70, 0, 2, 128, 0, false, false, DType::f16},
      {133, 0, 1, 96, 0, false, false, DType::f32},
  };
  for (const RopeCase& c : cases)
    if (gpu::offer().keeps(c.dtype)) check_rope_store(c);
}

/// In few bits, and in q8_0 in plain blocks beside.
TEST_F(CudaOps, RopeStoreOfFewBits) {
  for (const DType dtype : {DType::q3_k, DType::q2_0}) {
    for (const RopeCase& c : {RopeCase{1, 32, 8, 128, 128, false, false, dtype, true},
                              {3, 32, 4, 128, 128, true, true, dtype, true},
                              {70, 8, 1, 128, 64, true, false, dtype, true},
                              {1, 7, 1, 64, 32, true, false, dtype, true},
                              {64, 6, 3, 64, 64, false, false, dtype, true},
                              {2, 6, 2, 96, 96, false, true, dtype, true},
                              {133, 5, 5, 96, 96, false, true, dtype, true},
                              {3, 4, 2, 256, 256, true, true, dtype, true},
                              {200, 4, 2, 256, 256, true, true, dtype, true},
                              {70, 6, 3, 512, 64, false, false, dtype, true},
                              {3, 0, 2, 64, 0, false, false, dtype, true},
                              {3, 4, 2, 64, 0, false, false, dtype, true},
                              {3, 8, 2, 128, 64, true, false, dtype, false},
                              {70, 8, 1, 128, 64, true, false, dtype, false},
                              {70, 8, 2, 256, 64, true, false, dtype, false},
                              {133, 5, 5, 96, 96, false, false, dtype, false}})
      check_rope_store(c);
  }
}

TEST_F(CudaOps, Route) {
  struct Case {
    int rows, experts, top_k;
    bool normalize;
    float scale;
  };
  for (const Case& c : {Case{1, 128, 8, true, 1}, Case{33, 8, 2, true, 1}, Case{7, 60, 4, false, 2.5f},
                        Case{5, 256, 8, true, 2.5f}, Case{3, 1024, 32, false, 1}, Case{2, 5, 5, true, 1}}) {
    SCOPED_TRACE(::testing::Message() << c.experts << " experts, top " << c.top_k);
    auto scores = normal_floats(static_cast<std::size_t>(c.rows * c.experts), random_, 2);
    for (int i = 0; i < c.experts; i += 3) scores[static_cast<std::size_t>(i)] = 1.5f;  // ties
    const std::size_t n = static_cast<std::size_t>(c.rows * c.top_k);
    std::vector<std::int32_t> chosen(n);
    std::vector<float> weights(n);
    for (int r = 0; r < c.rows; ++r) {
      const float* row = scores.data() + r * c.experts;
      const float most = *std::max_element(row, row + c.experts);
      std::vector<float> e(static_cast<std::size_t>(c.experts)), lanes(32);
      for (std::size_t i = 0; i < e.size(); ++i) lanes[i % 32] += e[i] = exp_f32(row[i] - most);
      const float total = tree(lanes);
      for (float& p : e) p /= total;
      std::vector<std::int32_t> order(e.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return e[static_cast<std::size_t>(a)] > e[static_cast<std::size_t>(b)]; });
      float sum = 0;
      for (int k = 0; k < c.top_k; ++k) sum += e[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])];
      for (int k = 0; k < c.top_k; ++k) {
        const std::size_t at = static_cast<std::size_t>(r * c.top_k + k);
        chosen[at] = order[static_cast<std::size_t>(k)];
        const float p = e[static_cast<std::size_t>(chosen[at])];
        weights[at] = (c.normalize ? p / sum : p) * c.scale;
      }
    }
    const Array<float> scores_at(scores), weights_at(n);
    const Array<std::int32_t> chosen_at(n);
    ok(route(scores_at.get(), c.rows, c.experts, c.top_k, c.normalize, c.scale, chosen_at.get(), weights_at.get(),
             nullptr));
    EXPECT_EQ(chosen_at.host(), chosen);
    EXPECT_TRUE(same_bits(weights_at.host(), weights));
  }
}

TEST_F(CudaOps, SortEntries) {
  for (const int experts : {1, 5, 128, 1000}) {
    for (const int entries : {1, 8, 33, 255, 257, 4096, 65536}) {
      SCOPED_TRACE(::testing::Message() << entries << " entries of " << experts << " experts");
      std::vector<std::int32_t> chosen(static_cast<std::size_t>(entries)), sorted(chosen.size());
      for (auto& e : chosen) e = static_cast<std::int32_t>(random_() % static_cast<unsigned>(experts));
      std::iota(sorted.begin(), sorted.end(), 0);
      const auto expert_of = [&](std::int32_t entry) { return chosen[static_cast<std::size_t>(entry)]; };
      std::stable_sort(sorted.begin(), sorted.end(), [&](auto a, auto b) { return expert_of(a) < expert_of(b); });
      std::vector<std::int32_t> first(static_cast<std::size_t>(experts) + 1);
      for (const auto e : chosen) ++first[static_cast<std::size_t>(e) + 1];
      std::partial_sum(first.begin(), first.end(), first.begin());
      const Array<std::int32_t> chosen_at(chosen), sorted_at(sorted.size()), first_at(first.size());
      ok(sort_entries(chosen_at.get(), entries, experts, sorted_at.get(), first_at.get(), nullptr));
      EXPECT_EQ(sorted_at.host(), sorted);
      EXPECT_EQ(first_at.host(), first);
    }
  }
}

TEST_F(CudaOps, CombineExperts) {
  for (const int cols : {1, 30, 2048}) {
    for (const bool residual : {false, true}) {
      const int rows = 9, top_k = 3;
      const auto expert_out = normal_floats(static_cast<std::size_t>(rows * top_k * cols), random_);
      const auto weights = normal_floats(static_cast<std::size_t>(rows * top_k), random_);
      const auto y = normal_floats(static_cast<std::size_t>(rows * cols), random_);
      auto want = y;
      for (int i = 0; i < rows * cols; ++i) {
        float acc = 0;
        for (int k = 0; k < top_k; ++k) {
          const int entry = i / cols * top_k + k;
          acc = test::fused(weights[static_cast<std::size_t>(entry)],
                            expert_out[static_cast<std::size_t>(entry * cols + i % cols)], acc);
        }
        float& to = want[static_cast<std::size_t>(i)];
        to = residual ? to + acc : acc;
      }
      const Array<float> expert_out_at(expert_out), weights_at(weights), y_at(y);
      ok(combine_experts(expert_out_at.get(), weights_at.get(), rows, top_k, cols, residual, y_at.get(), nullptr));
      EXPECT_TRUE(same_bits(y_at.host(), want)) << cols << " columns";
    }
  }
}

TEST_F(CudaOps, CandidatesAreTheLargestLogits) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const int vocab : {1, 63, 64, 65, 1000, 32000, 128256, 151936, 262144, 262208, 768000}) {
    for (const int rows : {1, 5, 32}) {
      if ((rows == 32 && vocab > 130000) || vocab > gpu::most_vocab(block_shared_bytes())) continue;
      SCOPED_TRACE(::testing::Message() << rows << " rows of " << vocab);
      const std::size_t n = static_cast<std::size_t>(vocab);
      auto logits = normal_floats(n * static_cast<std::size_t>(rows), random_, 5);
      for (std::size_t i = 0; i < n; ++i) {  // row 0: few values, so many ties, and both zeros
        logits[i] = static_cast<float>(static_cast<int>(random_() % 7)) - 6;
        if (logits[i] == 0 && i % 2 == 0) logits[i] = -0.0f;
      }
      std::vector<std::int32_t> finite(static_cast<std::size_t>(rows), 1);
      if (rows > 1) logits[n + random_() % n] = kNan, finite[1] = 0;
      if (rows > 2) logits[2 * n + random_() % n] = -kInfinity, finite[2] = 0;
      if (rows > 3) std::fill_n(logits.begin() + static_cast<std::ptrdiff_t>(3 * n), n / 2 + 1, kNan), finite[3] = 0;
      if (rows > 4) {  // descending, so that every batch has the largest, in their order
        for (std::size_t i = 0; i < n; ++i) logits[4 * n + i] = static_cast<float>(n - i) / 3;
      }
      const Array<float> logits_at(logits);
      const Array<Candidates> out(static_cast<std::size_t>(rows));
      const Array<std::byte> workspace(sample_workspace_bytes(rows, vocab));
      ok(candidates(logits_at.get(), rows, vocab, out.get(), workspace.get(), nullptr));
      const auto got = out.host();
      for (int r = 0; r < rows; ++r) {
        const float* row = logits.data() + static_cast<std::size_t>(r) * n;
        std::vector<std::int32_t> order(n);
        std::iota(order.begin(), order.end(), 0);
        const int count = std::min(vocab, kCandidates);
        std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
          const float x = row[a], y = row[b];
          if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? a < b : std::isnan(y);
          return x != y ? x > y : a < b;
        });
        const Candidates& c = got[static_cast<std::size_t>(r)];
        EXPECT_EQ(c.count, count);
        EXPECT_EQ(c.finite, finite[static_cast<std::size_t>(r)]) << "row " << r;
        int wrong = 0;
        for (int i = 0; i < count; ++i) {
          const std::int32_t id = order[static_cast<std::size_t>(i)];
          wrong += c.id[i] != id || !same(c.logit[i], row[id]);
        }
        EXPECT_EQ(wrong, 0) << "row " << r;
      }
    }
  }
}

TEST_F(CudaOps, DrawsAreTheProcessors) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const int vocab : {1, 31, 256, 257, 1000, 32000, 128256, 768000}) {
    if (vocab > gpu::most_vocab(block_shared_bytes())) continue;
    const int rows = vocab > 200000 ? 4 : 24;
    SCOPED_TRACE(::testing::Message() << rows << " rows of " << vocab);
    const auto n = static_cast<std::size_t>(vocab);
    std::vector<float> logits;
    std::vector<DrawRule> rules;
    for (int r = 0; r < rows; ++r) {
      const float width[] = {0.01f, 1, 6, 40};  // flat to peaked
      const std::vector<float> row = normal_floats(n, random_, width[r % 4]);
      logits.insert(logits.end(), row.begin(), row.end());
      const float top_p[] = {1, 0.95f, 0.5f, 0}, min_p[] = {0, 0.05f, 0};
      rules.push_back({0.2f + 0.3f * static_cast<float>(r % 5), top_p[r / 2 % 4], min_p[r % 3], random_() >> 11});
      float* const mine = logits.data() + static_cast<std::size_t>(r) * n;
      if (r % 8 == 3)  // few values, so many ties, and both zeros
        for (std::size_t i = 0; i < n; ++i) mine[i] = static_cast<float>(static_cast<int>(random_() % 7)) - 6;
      if (r % 8 == 3)
        std::replace_if(
            mine, mine + n, [&](float x) { return x == 0 && random_() % 2 == 0; }, -0.0f);
      if (r % 8 == 5) std::fill_n(mine, n / 2, kNan);
      if (r % 8 == 6) std::fill_n(mine + n / 3, n / 2, -kInfinity);
      if (r == 7) rules.back().temperature = 0;
      if (r == 8) rules.back().point = 0;
      if (r == 9) rules.back().point = (std::uint64_t{1} << 53) - 1;
    }
    const Array<float> logits_at(logits);
    const Array<DrawRule> rules_at(rules);
    const Array<Candidates> found(static_cast<std::size_t>(rows));
    const Array<std::int32_t> drawn(static_cast<std::size_t>(rows));
    const Array<std::byte> workspace(sample_workspace_bytes(rows, vocab));
    ok(candidates(logits_at.get(), rows, vocab, found.get(), workspace.get(), nullptr));
    ok(cuda::draw(logits_at.get(), rows, vocab, rules_at.get(), found.get(), drawn.get(), nullptr));
    const auto got = drawn.host();
    std::vector<std::uint64_t> scratch;
    for (int r = 0; r < rows; ++r) {
      const auto row = static_cast<std::size_t>(r);
      const std::int32_t expected =
          rules[row].temperature > 0 ? kernels::draw(std::span(logits).subspan(row * n, n), rules[row], scratch) : -1;
      EXPECT_EQ(got[row], expected) << "row " << r;
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
