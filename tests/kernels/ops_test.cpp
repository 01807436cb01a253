// Ops other than products: every instruction set gives the bits of the plain one, and the plain one agrees with ref/.
#include "kernels/cpu/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/fused.h"
#include "kernels/ref/ref.h"
#include "tensor/codec.h"
#include "tensor/kv_codec.h"

namespace millrace::kernels {
namespace {

std::vector<Table> op_tables() {
  std::vector<Table> all = {plain_ops()};
  if (device::best_isa() >= Isa::avx2) all.push_back(avx2_ops());
  if (device::best_isa() >= Isa::avx512) all.push_back(avx512_ops());
  return all;
}

std::vector<float> op_floats(std::size_t n, std::uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

double op_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / std::max(norm, 1e-300));
}

const std::int64_t kSizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100, 127, 500, 1000, 2048};

TEST(Exp, RoundsSubnormalResultsOnceOnEveryIsa) {
  std::vector<float> x = {0};  // the largest, so that softmax has the sum of all in each
  for (float y = -80; y > -105; y -= 0.01f) x.push_back(y);
  x.push_back(-std::numeric_limits<float>::infinity());
  std::vector<float> first;
  for (const Table& table : op_tables()) {
    auto y = x;
    table.softmax(y.data(), static_cast<std::int64_t>(y.size()));
    if (first.empty()) first = y;
    EXPECT_TRUE(same_bits(y, first)) << device::isa_name(table.isa);
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(y[i], std::exp(static_cast<double>(x[i])), 1.5e-45 + 3e-7 * y[i]);
  }
}

TEST(Exp, WithinTwoUlpOfTheLibrary) {
  double worst = 0;
  for (double x = -87; x <= 88.7; x += 0.00137) {
    const float argument = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(argument));
    const float rounded = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(rounded, std::numeric_limits<float>::infinity())) - rounded;
    worst = std::max(worst, std::abs(exp_f32(argument) - exact) / ulp);
  }
  EXPECT_LT(worst, 2);
}

TEST(Exp, MeetsItsEdges) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-infinity), 0.0f);
  EXPECT_EQ(exp_f32(-104.0f), 0.0f);
  EXPECT_EQ(exp_f32(-1e30f), 0.0f);
  EXPECT_EQ(exp_f32(infinity), infinity);
  EXPECT_EQ(exp_f32(89.0f), infinity);
  EXPECT_TRUE(std::isfinite(exp_f32(88.7f)));
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_NEAR(exp_f32(-100.0f) / std::exp(-100.0), 1, 0.03);  // subnormal: few bits are left
}

TEST(Ops, RmsNorm) {
  for (const std::int64_t cols : kSizes) {
    const std::int64_t rows = 3;
    const auto x = op_floats(static_cast<std::size_t>(rows * cols), 1, 3);
    const auto weight = op_floats(static_cast<std::size_t>(cols), 2);
    std::vector<float> want(x.size()), first;
    ref::rms_norm(x.data(), weight.data(), rows, cols, 1e-5f, want.data());
    for (const Table& table : op_tables()) {
      std::vector<float> out = x;  // in place
      table.rms_norm(out.data(), weight.data(), rows, cols, 1e-5f, out.data());
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(out, first)) << device::isa_name(table.isa) << " cols " << cols;
      EXPECT_LT(op_error(out, want), 1e-6);
    }
  }
}

TEST(Ops, Rope) {
  for (const bool neox : {false, true}) {
    for (const std::int64_t rotary : {2, 6, 32, 64, 80, 128}) {
      const std::int64_t head_dim = rotary + 10;
      const auto x = op_floats(static_cast<std::size_t>(head_dim), 3);
      std::vector<float> cos_sin;
      for (std::int64_t i = 0; i < rotary / 2; ++i) {
        cos_sin.push_back(std::cos(static_cast<float>(i) * 0.7f));
        cos_sin.push_back(std::sin(static_cast<float>(i) * 0.7f));
      }
      std::vector<float> want = x, first;
      ref::rope(want.data(), cos_sin.data(), rotary, neox);
      for (const Table& table : op_tables()) {
        std::vector<float> out = x;
        table.rope(out.data(), cos_sin.data(), rotary, neox);
        if (first.empty()) first = out;
        EXPECT_TRUE(same_bits(out, first)) << device::isa_name(table.isa) << " rotary " << rotary;
        EXPECT_LT(op_error(out, want), 1e-6);
        for (std::int64_t i = rotary; i < head_dim; ++i) EXPECT_EQ(out[i], x[i]);  // the rest is not rotated
      }
    }
  }
}

TEST(Ops, StatisticalTopK) {
  for (const std::int64_t cols : {2, 31, 64, 200}) {
    constexpr std::int64_t kRows = 3;
    auto x = op_floats(static_cast<std::size_t>(kRows * cols), 8, 3);
    for (float& value : x) value += 1;  // a mean that is not none
    for (const float deviations : {-1.0f, 0.5f, 1.6448534f}) {
      std::vector<float> want = x, first;
      ref::statistical_top_k(want.data(), kRows, cols, deviations);
      for (const Table& table : op_tables()) {
        std::vector<float> out = x;
        table.statistical_top_k(out.data(), kRows, cols, deviations);
        if (first.empty()) first = out;
        EXPECT_TRUE(same_bits(out, first)) << device::isa_name(table.isa) << " cols " << cols;
        for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(out[i], want[i], 1e-5) << deviations;
      }
    }
  }
}

TEST(Ops, MatchRms) {
  for (const std::int64_t cols : {1, 31, 64, 200}) {
    constexpr std::int64_t kRows = 3;
    auto x = op_floats(static_cast<std::size_t>(kRows * cols), 9);
    const auto like = op_floats(static_cast<std::size_t>(kRows * cols), 10, 7);
    for (std::int64_t i = 0; i < cols; ++i) x[static_cast<std::size_t>(i)] *= 1e-4f;  // a row below the least
    constexpr float kLeast = 1e-5f;
    std::vector<float> want = x, first;
    ref::match_rms(want.data(), like.data(), kRows, cols, kLeast);
    for (const Table& table : op_tables()) {
      std::vector<float> out = x;
      table.match_rms(out.data(), like.data(), kRows, cols, kLeast);
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(out, first)) << device::isa_name(table.isa) << " cols " << cols;
      EXPECT_LT(op_error(out, want), 1e-6);
    }
  }
}

TEST(Ops, ElementwiseAndSoftmax) {
  for (const std::int64_t n : kSizes) {
    const auto x = op_floats(static_cast<std::size_t>(n), 4, 4), y = op_floats(static_cast<std::size_t>(n), 5);
    const auto wide = op_floats(static_cast<std::size_t>(n), 6, 20),
               wide_up = op_floats(static_cast<std::size_t>(n), 7, 20);  // beyond what is clamped
    std::vector<float> silu = x, gelu = x, squared = x, clamped = wide, soft = x, capped = wide;
    ref::gate_mul(Activation::silu, 0, silu.data(), y.data(), n);
    ref::gate_mul(Activation::gelu, 0, gelu.data(), y.data(), n);
    ref::gate_mul(Activation::relu_squared, 0, squared.data(), y.data(), n);
    ref::gate_mul(Activation::clamped, 0, clamped.data(), wide_up.data(), n);
    std::vector<float> limited = wide;
    ref::gate_mul(Activation::limited, 3, limited.data(), wide_up.data(), n);
    std::vector<float> bounded = wide;
    ref::gate_mul(Activation::bounded, 3, bounded.data(), wide_up.data(), n);
    std::vector<float> exact = x, bent = x;
    const Xielu shape{0.8f, 1.3f, 0.5f, -1e-6f};
    ref::gate_mul(Activation::gelu_erf, 0, exact.data(), y.data(), n);
    ref::xielu(shape, bent.data(), n);
    for (float& c : capped) c = static_cast<float>(5 * std::tanh(c / 5.0));
    ref::softmax(soft.data(), n);
    std::vector<std::vector<float>> first;
    for (const Table& table : op_tables()) {
      std::vector<std::vector<float>> out(12, x);
      out[6] = out[7] = out[8] = out[11] = wide;
      table.gate_mul(Activation::silu, 0, out[0].data(), y.data(), n);
      table.softmax(out[1].data(), n);
      table.add(out[2].data(), y.data(), n);
      table.add_scaled(out[3].data(), y.data(), 0.37f, n);
      table.gate_mul(Activation::gelu, 0, out[4].data(), y.data(), n);
      table.gate_mul(Activation::relu_squared, 0, out[5].data(), y.data(), n);
      table.gate_mul(Activation::clamped, 0, out[6].data(), wide_up.data(), n);
      table.softcap(out[7].data(), 5, n);
      table.gate_mul(Activation::limited, 3, out[8].data(), wide_up.data(), n);
      table.gate_mul(Activation::gelu_erf, 0, out[9].data(), y.data(), n);
      table.xielu(shape, out[10].data(), n);
      table.gate_mul(Activation::bounded, 3, out[11].data(), wide_up.data(), n);
      if (first.empty()) first = out;
      for (std::size_t op = 0; op < out.size(); ++op) {
        EXPECT_TRUE(same_bits(out[op], first[op])) << device::isa_name(table.isa) << " op " << op << " n " << n;
      }
      EXPECT_LT(op_error(out[0], silu), 1e-6);
      EXPECT_LT(op_error(out[4], gelu), 1e-6);
      EXPECT_LT(op_error(out[5], squared), 1e-6);
      EXPECT_LT(op_error(out[6], clamped), 1e-6);
      EXPECT_LT(op_error(out[7], capped), 1e-6);
      EXPECT_LT(op_error(out[8], limited), 1e-6);
      EXPECT_LT(op_error(out[11], bounded), 1e-6);
      for (std::size_t i = 0; i < exact.size(); ++i)  // erfc is good for so much
        EXPECT_NEAR(out[9][i], exact[i], 4e-7 * (1 + std::abs(x[i] * y[i]))) << x[i];
      EXPECT_LT(op_error(out[10], bent), 1e-6);
      EXPECT_LT(op_error(out[1], soft), 2e-6);
      EXPECT_EQ(out[2][0], x[0] + y[0]);
      EXPECT_EQ(out[3][0], fused(0.37f, y[0], x[0]));
    }
  }
}

TEST(Ops, HalfRowsRoundLikeTheCodec) {
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {  // every sign and exponent, mantissas around the ties
    for (const std::uint32_t low : {0u, 0x0fffu, 0x1000u, 0x1001u, 0x8000u}) {
      const float value = std::bit_cast<float>(high << 16 | low);
      if (!std::isnan(value)) x.push_back(value);
    }
  }
  x.resize(x.size() / 16 * 16 + 5);
  for (const Table& table : op_tables()) {
    std::vector<std::uint16_t> out(x.size());
    table.f32_to_f16_row(x.data(), static_cast<std::int64_t>(x.size()), out.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) wrong += out[i] != f32_to_f16(x[i]);
    EXPECT_EQ(wrong, 0u) << device::isa_name(table.isa);
  }
}

TEST(Ops, TopKOrdersAndBreaksTiesByIndex) {
  const float x[] = {1, 5, 3, 5, -2, 3};
  std::int32_t indices[6];
  top_k(x, 6, 4, indices);
  EXPECT_EQ(std::vector<std::int32_t>(indices, indices + 4), (std::vector<std::int32_t>{1, 3, 2, 5}));
  top_k(x, 6, 6, indices);
  EXPECT_EQ(std::vector<std::int32_t>(indices, indices + 6), (std::vector<std::int32_t>{1, 3, 2, 5, 0, 4}));
  const auto many = op_floats(128, 6);
  std::vector<std::int32_t> order(128), best(8);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return many[a] > many[b]; });
  top_k(many.data(), 128, 8, best.data());
  EXPECT_EQ(best, std::vector<std::int32_t>(order.begin(), order.begin() + 8));
}

// One KV head of a sequence: K and V in blocks as kv/sequence.h lays them out, and plainly for the reference.
struct KvHead {
  /// Of few bits the first block and the last lie in f16.
  KvHead(std::int64_t keys, std::int64_t dim, DType type, std::uint32_t seed, bool rotated = false)
      : head_dim(dim), dtype(type), rotation(rotated ? rotation_span(dim) : 0), last_block((keys - 1) / kKvBlock) {
    k = op_floats(static_cast<std::size_t>(keys * dim), seed);
    v = op_floats(static_cast<std::size_t>(keys * dim), seed + 1);
    const bool few = kv_has_few_bits(type);
    const auto block_bytes = static_cast<std::size_t>(kKvBlock * row_bytes(few ? DType::f16 : type, dim));
    const std::int64_t blocks = (keys + kKvBlock - 1) / kKvBlock;
    // Keys that do not exist are NaN: nothing may touch them.
    memory.assign(static_cast<std::size_t>(2 * blocks) * block_bytes, std::byte{0xff});
    for (std::int64_t b = 0; b < blocks; ++b) {
      k_blocks.push_back(memory.data() + static_cast<std::size_t>(2 * b) * block_bytes);
      v_blocks.push_back(memory.data() + static_cast<std::size_t>(2 * b + 1) * block_bytes);
    }
    for (std::int64_t i = 0; i < keys; ++i) {
      if (few || type == DType::q8_0 || type == DType::q4_0) {
        put_quantized(i);
        continue;
      }
      for (std::int64_t d = 0; d < dim; ++d) {
        put(k_blocks[i / kKvBlock], d * kKvBlock + i % kKvBlock, k[i * dim + d]);
        put(v_blocks[i / kKvBlock], i % kKvBlock * dim + d, v[i * dim + d]);
      }
    }
  }
  /// Key and value of a token in groups of 32 channels; the reference gets what they become.
  void put_q8(std::int64_t token) {
    constexpr std::int64_t kGroup = 32;
    const std::int64_t lane = token % kKvBlock, groups = head_dim / kGroup, scales = kKvBlock * head_dim;
    auto* keys = const_cast<std::byte*>(k_blocks[token / kKvBlock]);
    auto* values = const_cast<std::byte*>(v_blocks[token / kKvBlock]);
    std::byte block[2 + kGroup];
    for (std::int64_t g = 0; g < groups; ++g) {
      float* part = k.data() + token * head_dim + g * kGroup;
      encode_row(DType::q8_0, part, kGroup, block);
      decode_row(DType::q8_0, block, kGroup, part);
      for (std::int64_t d = 0; d < kGroup; ++d) keys[(g * kGroup + d) * kKvBlock + lane] = block[2 + d];
      std::memcpy(keys + scales + 2 * (g * kKvBlock + lane), block, 2);
      part = v.data() + token * head_dim + g * kGroup;
      encode_row(DType::q8_0, part, kGroup, block);
      decode_row(DType::q8_0, block, kGroup, part);
      std::memcpy(values + lane * head_dim + g * kGroup, block + 2, kGroup);
      std::memcpy(values + scales + 2 * (lane * groups + g), block, 2);
    }
  }
  void put_q4(std::int64_t token) {
    constexpr std::int64_t kBytes = kKvGroup / 2;
    const std::int64_t lane = token % kKvBlock, groups = head_dim / kKvGroup, scales = kKvBlock * head_dim / 2;
    auto* keys = const_cast<std::byte*>(k_blocks[token / kKvBlock]);
    auto* values = const_cast<std::byte*>(v_blocks[token / kKvBlock]);
    for (std::int64_t g = 0; g < groups; ++g) {
      for (const bool key : {true, false}) {
        float* part = (key ? k : v).data() + token * head_dim + g * kKvGroup;
        const KvGroup group = encode_kv_q4(part);
        for (std::int64_t c = 0; c < kKvGroup; ++c) {
          part[c] = f16_to_f32(group.d) * static_cast<float>(group.q[c]);
          std::byte& two = key ? keys[(g * kBytes + c % kBytes) * kKvBlock + lane]
                               : values[(lane * groups + g) * kBytes + c % kBytes];
          const auto nibble = static_cast<std::byte>(group.q[c] & 15);
          two = c < kBytes ? (two & std::byte{0xf0}) | nibble : (two & std::byte{0x0f}) | nibble << 4;
        }
        std::memcpy((key ? keys + scales + 2 * (g * kKvBlock + lane) : values + scales + 2 * (lane * groups + g)),
                    &group.d, 2);
      }
    }
  }
  bool is_plain(std::int64_t block) const { return kv_has_few_bits(dtype) && (block == 0 || block == last_block); }
  void put_few(std::int64_t token) {
    const std::int64_t lane = token % kKvBlock, group = kv_few_group(head_dim), groups = head_dim / group;
    const bool signs = dtype == DType::q3_k;
    for (const bool key : {true, false}) {
      auto* const block = const_cast<std::byte*>((key ? k_blocks : v_blocks)[token / kKvBlock]);
      float* const all = (key ? k : v).data() + token * head_dim;
      const auto at = [&](std::int64_t i, std::int64_t n) { return key ? i * kKvBlock + lane : lane * n + i; };
      std::byte* const sign_bits = block + head_dim / 4 * kKvBlock;
      std::byte* const scales = sign_bits + (signs ? head_dim / 8 * kKvBlock : 0);
      for (std::int64_t g = 0; g < groups; ++g) {
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(group));
        const std::uint16_t d = encode_kv_few(dtype, all + g * group, group, codes.data());
        std::memcpy(scales + 2 * at(g, groups), &d, 2);
        for (std::int64_t c = 0; c < group; ++c) {
          const int code = codes[static_cast<std::size_t>(c)];
          const auto bits = [](std::byte& byte, std::int64_t shift, int mask, int value) {
            byte = (byte & ~static_cast<std::byte>(mask << shift)) | static_cast<std::byte>(value << shift);
          };
          bits(block[at(g * group / 4 + c % (group / 4), head_dim / 4)], c / (group / 4) * 2, 3, code & 3);
          if (signs) bits(sign_bits[at(g * group / 8 + c % (group / 8), head_dim / 8)], c / (group / 8), 1, code >> 2);
          const int two[] = {-10, -3, 3, 10}, three[] = {10, 31, 55, 88};
          const int level = !signs ? two[code] : code >= 4 ? -three[code - 4] : three[code];
          all[g * group + c] = f16_to_f32(d) * static_cast<float>(level);
        }
      }
    }
  }
  void put_halves(std::int64_t token) {
    for (std::int64_t c = 0; c < head_dim; ++c) {
      put_half(k_blocks[token / kKvBlock], c * kKvBlock + token % kKvBlock, k[token * head_dim + c]);
      put_half(v_blocks[token / kKvBlock], token % kKvBlock * head_dim + c, v[token * head_dim + c]);
    }
  }
  void put_quantized(std::int64_t token) {
    const auto turn = [&] {
      if (rotation == 0) return;
      ref::rotate(k.data() + token * head_dim, head_dim, rotation);
      ref::rotate(v.data() + token * head_dim, head_dim, rotation);
    };
    turn();
    if (is_plain(token / kKvBlock)) {
      put_halves(token);
    } else if (kv_has_few_bits(dtype)) {
      put_few(token);
    } else {
      dtype == DType::q8_0 ? put_q8(token) : put_q4(token);
    }
    turn();
  }
  void put(const std::byte* block, std::int64_t index, float& value) {
    if (dtype == DType::f16) return put_half(block, index, value);
    std::memcpy(const_cast<std::byte*>(block) + 4 * index, &value, 4);
  }
  static void put_half(const std::byte* block, std::int64_t index, float& value) {
    const std::uint16_t half = f32_to_f16(value);
    std::memcpy(const_cast<std::byte*>(block) + 2 * index, &half, 2);
    value = f16_to_f32(half);
  }
  std::int64_t head_dim;
  DType dtype;
  std::int64_t rotation;
  std::int64_t last_block;
  std::vector<float> k, v;
  std::vector<std::byte> memory;
  std::vector<const std::byte*> k_blocks, v_blocks;
};

struct Queries {
  std::int64_t group = 1, window = 0;
  std::vector<std::int32_t> positions;
  std::vector<float> q;                   // [rows, group, head_dim]
  std::vector<float> sinks;               // [group], or none
  float cap = 0;                          // of scores
  std::vector<float> slopes;              // [group], or none
  std::vector<std::int32_t> newest = {};  // [rows]: the last key that each sees, or none: its own

  std::int64_t last_seen(std::int64_t row) const {
    return newest.empty() ? positions[static_cast<std::size_t>(row)] : newest[static_cast<std::size_t>(row)];
  }
};

/// Rows [first, first + rows) as one tile, all chunks, merged: [rows, group, head_dim].
std::vector<float> attend_with(const Table& table, const KvHead& kv, const Queries& queries, std::int64_t first,
                               std::int64_t rows) {
  const std::int64_t dim = kv.head_dim, group = queries.group, heads = rows * group;
  std::int64_t last = 0;
  for (std::int64_t r = first; r < first + rows; ++r) last = std::max(last, queries.last_seen(r));
  const std::int64_t chunks = last / kAttentionChunk + 1;
  std::vector<float> acc(chunks * heads * dim), max(chunks * heads), sum(chunks * heads), out(heads * dim);
  AttentionArgs args;
  args.q = queries.q.data() + first * group * dim;
  args.q_row_stride = group * dim;
  args.q_head_stride = dim;
  args.rows = rows;
  args.group = group;
  args.head_dim = args.v_dim = dim;
  args.positions = queries.positions.data() + first;
  args.newest = queries.newest.empty() ? nullptr : queries.newest.data() + first;
  args.window = queries.window;
  args.scale = 1 / std::sqrt(static_cast<float>(dim));
  args.cap = queries.cap;
  args.slopes = queries.slopes.empty() ? nullptr : queries.slopes.data();
  args.kv_dtype = kv.dtype;
  args.rotation = kv.rotation;
  for (args.chunk = 0; args.chunk < chunks; ++args.chunk) {
    args.plain_blocks = 0;
    for (std::int64_t i = 0; i < kAttentionChunk / kKvBlock; ++i)
      args.plain_blocks |= kv.is_plain(args.chunk * (kAttentionChunk / kKvBlock) + i) ? 1U << i : 0;
    args.k_blocks = kv.k_blocks.data() + args.chunk * (kAttentionChunk / kKvBlock);
    args.v_blocks = kv.v_blocks.data() + args.chunk * (kAttentionChunk / kKvBlock);
    args.acc = acc.data() + args.chunk * heads * dim;
    args.max = max.data() + args.chunk * heads;
    args.sum = sum.data() + args.chunk * heads;
    table.attention_chunk(args);
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    table.attention_merge(acc.data() + h * dim, heads * dim, max.data() + h, sum.data() + h, heads, chunks, dim,
                          queries.sinks.empty() ? -std::numeric_limits<float>::infinity() : queries.sinks[h % group],
                          out.data() + h * dim);
    if (kv.rotation > 0) table.rotate(out.data() + h * dim, dim, kv.rotation);
  }
  return out;
}

std::vector<float> attention_reference(const KvHead& kv, const Queries& queries) {
  const std::int64_t dim = kv.head_dim, rows = static_cast<std::int64_t>(queries.positions.size());
  std::vector<float> out(queries.q.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t position = queries.positions[r];
    const std::int64_t oldest = queries.window > 0 ? std::max<std::int64_t>(0, position - queries.window + 1) : 0;
    ref::attention(queries.q.data() + r * queries.group * dim, kv.k.data() + oldest * dim, kv.v.data() + oldest * dim,
                   queries.group, queries.last_seen(r) + 1 - oldest, dim, 1 / std::sqrt(static_cast<float>(dim)),
                   queries.sinks.empty() ? nullptr : queries.sinks.data(), out.data() + r * queries.group * dim,
                   queries.cap, queries.slopes.empty() ? nullptr : queries.slopes.data());
  }
  return out;
}

Queries make_queries(std::vector<std::int32_t> positions, std::int64_t group, std::int64_t dim, std::int64_t window) {
  Queries queries{group, window, std::move(positions), {}, {}, 0, {}};
  queries.q = op_floats(queries.positions.size() * static_cast<std::size_t>(group * dim), 9, 2);
  return queries;
}

struct AttentionCase {
  std::int64_t head_dim, group, window;
  DType dtype;
  std::vector<std::int32_t> positions;
  bool rotated = false;
  float cap = 0;
  bool leans = false;       // scores fall with distance
  std::int32_t behind = 0;  // keys behind its own that a row sees, of those that there are
};

class AttentionTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionTest, SameBitsOnEveryIsaAndAloneOrInATile) {
  const AttentionCase& c = GetParam();
  const KvHead kv(*std::max_element(c.positions.begin(), c.positions.end()) + 1, c.head_dim, c.dtype, 7, c.rotated);
  Queries queries = make_queries(c.positions, c.group, c.head_dim, c.window);
  queries.cap = c.cap;
  for (std::int64_t g = 0; c.leans && g < c.group; ++g) queries.slopes.push_back(0.2f / static_cast<float>(g + 1));
  if (c.behind > 0)
    for (const std::int32_t position : c.positions)
      queries.newest.push_back(std::min(position + c.behind, c.positions.back()));
  const auto rows = static_cast<std::int64_t>(c.positions.size());
  const auto want = attention_reference(kv, queries);
  std::vector<float> first;
  for (const Table& table : op_tables()) {
    const auto whole = attend_with(table, kv, queries, 0, rows);
    if (first.empty()) first = whole;
    EXPECT_TRUE(same_bits(whole, first)) << device::isa_name(table.isa);
    EXPECT_LT(op_error(whole, want), 3e-6);
    std::vector<float> rowwise;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto one = attend_with(table, kv, queries, r, 1);
      rowwise.insert(rowwise.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(same_bits(rowwise, first)) << device::isa_name(table.isa) << ", row by row";
  }
}

TEST_P(AttentionTest, ASinkIsAKeyWithoutAValue) {
  const AttentionCase& c = GetParam();
  const KvHead kv(*std::max_element(c.positions.begin(), c.positions.end()) + 1, c.head_dim, c.dtype, 7, c.rotated);
  Queries queries = make_queries(c.positions, c.group, c.head_dim, c.window);
  const auto rows = static_cast<std::int64_t>(c.positions.size());
  const auto without = attend_with(plain_ops(), kv, queries, 0, rows);
  queries.sinks = op_floats(static_cast<std::size_t>(c.group), 17, 3);
  for (float& sink : queries.sinks) sink += 5;  // about the largest score
  const auto want = attention_reference(kv, queries), first = attend_with(plain_ops(), kv, queries, 0, rows);
  EXPECT_LT(op_error(first, want), 3e-6);
  EXPECT_GT(op_error(without, want), 1e-4);
  for (const Table& table : op_tables()) EXPECT_TRUE(same_bits(attend_with(table, kv, queries, 0, rows), first));
}

std::vector<std::int32_t> range(std::int32_t first, std::int32_t count) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionTest,
    ::testing::Values(
        AttentionCase{64, 8, 0, DType::f16, range(0, 9)},        // the first tokens
        AttentionCase{128, 4, 0, DType::f16, range(60, 11)},     // over a block's border
        AttentionCase{80, 1, 0, DType::f32, range(100, 33)},     // many heads of their own, odd vectors
        AttentionCase{96, 3, 0, DType::f16, range(1020, 7)},     // over a chunk's border
        AttentionCase{256, 16, 0, DType::f16, range(70, 2)},     //
        AttentionCase{8, 2, 0, DType::f32, range(0, 70)},        // narrower than a vector
        AttentionCase{72, 5, 0, DType::f16, range(130, 5)},      // a masked last vector
        AttentionCase{576, 2, 0, DType::f16, range(5, 3)},       // wider than the packed queries
        AttentionCase{64, 2, 50, DType::f16, range(40, 60)},     // a window inside a block
        AttentionCase{64, 7, 100, DType::f32, range(1000, 40)},  // a window over the chunk's border
        AttentionCase{64, 1, 0, DType::f16, range(0, 150), false, 0, false, 1000},  // the whole text, not causal
        AttentionCase{32, 1, 9, DType::f16, range(0, 150), false, 0, false, 8},     // a window on both sides
        AttentionCase{32, 2, 90, DType::f32, range(1000, 40), false, 0, false, 89},
        AttentionCase{72, 1, 0, DType::f32, range(0, 203), false, 0, false, 1000},  // more than go together
        AttentionCase{104, 3, 0, DType::f16, range(40, 41)},                        // blocks that are widened for many
        AttentionCase{64, 3, 0, DType::q8_0, range(40, 41), true},                  // or decoded
        AttentionCase{64, 5, 70, DType::q4_0, range(990, 41), true},
        AttentionCase{576, 3, 0, DType::f16, range(5, 30)},           // too wide to be widened
        AttentionCase{128, 8, 0, DType::f16, {2500}},                 // decode
        AttentionCase{64, 4, 64, DType::f16, {3, 2000, 2300}},        // rows far apart
        AttentionCase{128, 4, 0, DType::q8_0, range(60, 11)},         //
        AttentionCase{96, 3, 0, DType::q8_0, range(1020, 7)},         //
        AttentionCase{64, 2, 50, DType::q8_0, range(40, 60)},         //
        AttentionCase{512, 1, 0, DType::q8_0, range(5, 3)},           // as wide as it goes
        AttentionCase{32, 8, 0, DType::q8_0, {2500}},                 //
        AttentionCase{128, 4, 0, DType::q8_0, range(60, 11), true},   //
        AttentionCase{128, 4, 0, DType::q4_0, range(60, 11), true},   //
        AttentionCase{96, 3, 0, DType::q4_0, range(1020, 7), true},   // pieces of 32
        AttentionCase{64, 2, 50, DType::q4_0, range(40, 60), true},   //
        AttentionCase{64, 2, 0, DType::q4_0, range(200, 9)},          // not rotated
        AttentionCase{512, 1, 0, DType::q4_0, range(5, 3), true},     // as wide as it goes
        AttentionCase{32, 8, 0, DType::q4_0, {2500}, true},           //
        AttentionCase{128, 4, 0, DType::q3_k, range(192, 11), true},  // first and last block in f16
        AttentionCase{96, 3, 0, DType::q3_k, range(1020, 4), true},   // pieces of 32
        AttentionCase{64, 2, 150, DType::q3_k, range(300, 20), true},
        AttentionCase{128, 4, 0, DType::q2_0, range(192, 11), true},  //
        AttentionCase{512, 1, 0, DType::q2_0, range(130, 3), true},   // as wide as it goes
        AttentionCase{32, 8, 0, DType::q2_0, {2500}, true},
        AttentionCase{64, 2, 150, DType::f16, range(300, 20), false, 2},  // scores of up to 8
        AttentionCase{128, 3, 0, DType::q8_0, range(130, 9), false, 1.5f},
        AttentionCase{32, 3, 0, DType::f16, range(1020, 9), false, 0, true},
        AttentionCase{64, 2, 150, DType::f16, range(300, 20), false, 2, true}));

TEST(Ops, RotationIsItsOwnInverseAndKeepsProducts) {
  for (const std::int64_t dim : {32, 64, 96, 128, 256, 480, 512}) {
    const std::int64_t span = rotation_span(dim);
    const auto x = op_floats(static_cast<std::size_t>(dim), 3), y = op_floats(static_cast<std::size_t>(dim), 4);
    auto want = x;
    ref::rotate(want.data(), dim, span);
    std::vector<float> first;
    for (const Table& table : op_tables()) {
      auto turned = x, other = y;
      table.rotate(turned.data(), dim, span);
      table.rotate(other.data(), dim, span);
      if (first.empty()) first = turned;
      EXPECT_TRUE(same_bits(turned, first)) << device::isa_name(table.isa);
      EXPECT_LT(op_error(turned, want), 1e-6);
      const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
        return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
      };
      EXPECT_NEAR(dot(turned, other), dot(x, y), 1e-4);
      table.rotate(turned.data(), dim, span);
      EXPECT_LT(op_error(turned, x), 1e-6);
    }
  }
}

TEST(Attention, SameBitsForRandomShapes) {
  std::mt19937 random(51);
  const auto one_of = [&](std::int32_t first, std::int32_t last) {
    return std::uniform_int_distribution<std::int32_t>(first, last)(random);
  };
  for (int trial = 0; trial < 40; ++trial) {
    const std::int64_t dim = one_of(1, 150), group = one_of(1, 5);
    const std::int32_t rows = one_of(1, 70), before = one_of(0, 3) > 0 ? one_of(0, 200) : one_of(900, 1100);
    const std::int32_t behind = one_of(0, 1) * one_of(1, 100);
    const DType dtype = one_of(0, 1) > 0 ? DType::f32 : DType::f16;
    SCOPED_TRACE(std::to_string(trial) + ": " + std::to_string(rows) + " rows of " + std::to_string(group) + " x " +
                 std::to_string(dim) + " behind " + std::to_string(before));
    const KvHead kv(before + rows, dim, dtype, 7);
    Queries queries = make_queries(range(before, rows), group, dim, one_of(0, 2) * one_of(1, 100));
    for (const std::int32_t position : queries.positions)
      if (behind > 0) queries.newest.push_back(std::min(position + behind, before + rows - 1));
    const auto want = attention_reference(kv, queries);
    std::vector<float> first;
    for (const Table& table : op_tables()) {
      const auto whole = attend_with(table, kv, queries, 0, rows);
      if (first.empty()) first = whole;
      EXPECT_TRUE(same_bits(whole, first)) << device::isa_name(table.isa);
      EXPECT_LT(op_error(whole, want), 3e-6);
      const std::int64_t cut = one_of(0, rows - 1);  // rows before and from it on, as two tiles
      auto parts = cut > 0 ? attend_with(table, kv, queries, 0, cut) : std::vector<float>();
      const auto rest = attend_with(table, kv, queries, cut, rows - cut);
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_TRUE(same_bits(parts, first)) << device::isa_name(table.isa) << ", cut before row " << cut;
    }
  }
}

TEST(Attention, KeysBeyondTheRowAreNeverTouched) {
  KvHead kv(128, 64, DType::f32, 11);
  const Queries queries = make_queries(range(90, 6), 2, 64, 0);
  const auto clean = attend_with(plain_ops(), kv, queries, 0, 6);
  for (std::int64_t i = 96; i < 128; ++i) {  // poison what lies behind the last row
    for (std::int64_t d = 0; d < 64; ++d) {
      float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
      kv.put(kv.k_blocks[i / kKvBlock], d * kKvBlock + i % kKvBlock, nan);
      kv.put(kv.v_blocks[i / kKvBlock], i % kKvBlock * 64 + d, infinity);
    }
  }
  for (const Table& table : op_tables()) EXPECT_TRUE(same_bits(attend_with(table, kv, queries, 0, 6), clean));
}

TEST(Attention, AChunkWithoutVisibleKeysCountsForNothing) {
  const KvHead kv(1100, 64, DType::f16, 12);
  const Queries queries = make_queries({1090}, 2, 64, 30);  // sees keys 1061..1090: chunk 0 holds none
  const auto want = attention_reference(kv, queries);
  for (const Table& table : op_tables()) EXPECT_LT(op_error(attend_with(table, kv, queries, 0, 1), want), 3e-6);
}

}  // namespace
}  // namespace millrace::kernels
