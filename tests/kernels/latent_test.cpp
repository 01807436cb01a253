// Attention over latents: keys that are values, too, against plain mathematics and against attention with both apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#include "tensor/codec.h"
#include "tensor/half.h"

namespace millrace::kernels {
namespace {

constexpr float kNoSink = -std::numeric_limits<float>::infinity();

struct Shape {
  std::int64_t dim, v_dim, group;
  std::int32_t first, rows;  // positions [first, first + rows)
  DType dtype;
  std::int64_t keys() const { return first + rows; }
  std::int64_t queries() const { return rows * group; }
};

std::vector<float> random_floats(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<const Table*> tables() {
  std::vector<const Table*> all;
  for (const Isa isa : device::kIsas)
    if (device::has_isa(isa)) all.push_back(&table(isa));
  return all;
}

/// A sequence's latents in blocks, and as the floats that the format makes of them. Those that no token has are NaN.
struct Latents {
  explicit Latents(const Shape& shape) : plain(random_floats(shape.keys() * shape.dim, 1)) {
    const std::int64_t row = row_bytes(shape.dtype, shape.dim), block_bytes = row * kKvBlock;
    const std::int64_t count = (shape.keys() + kKvBlock - 1) / kKvBlock;
    memory.assign(static_cast<std::size_t>(count * block_bytes), std::byte{0xff});
    for (std::int64_t b = 0; b < count; ++b) blocks.push_back(memory.data() + b * block_bytes);
    std::vector<std::byte> encoded(static_cast<std::size_t>(row));
    for (std::int64_t i = 0; i < shape.keys(); ++i) {
      float* latent = plain.data() + i * shape.dim;
      encode_row(shape.dtype, latent, shape.dim, encoded.data());
      decode_row(shape.dtype, encoded.data(), shape.dim, latent);
      auto* block = const_cast<std::byte*>(blocks[static_cast<std::size_t>(i / kKvBlock)]);
      if (shape.dtype != DType::q8_0) {
        std::memcpy(block + i % kKvBlock * row, encoded.data(), encoded.size());
        continue;
      }
      constexpr std::int64_t kGroup = 32, kScale = 2;
      for (std::int64_t g = 0; g < shape.dim / kGroup; ++g) {
        const std::byte* const group = encoded.data() + g * (kScale + kGroup);
        std::memcpy(block + i % kKvBlock * shape.dim + g * kGroup, group + kScale, kGroup);
        const std::int64_t scale = i % kKvBlock * (shape.dim / kGroup) + g;
        std::memcpy(block + kKvBlock * shape.dim + scale * kScale, group, kScale);
      }
    }
  }
  std::vector<float> plain;  // [keys, dim]
  std::vector<std::byte> memory;
  std::vector<const std::byte*> blocks;
};

/// Rows [first, first + rows) of the shape's as one tile: [rows, group, v_dim]. k_blocks: empty for latents.
std::vector<float> attend(const Table& table, const Shape& shape, const std::vector<float>& q,
                          const std::vector<const std::byte*>& k_blocks, const std::vector<const std::byte*>& v_blocks,
                          std::int64_t first, std::int64_t rows) {
  std::vector<std::int32_t> positions;
  for (std::int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<std::int32_t>(shape.first + first + r));
  const std::int64_t chunks = positions.back() / kAttentionChunk + 1, queries = rows * shape.group;
  std::vector<float> acc(static_cast<std::size_t>(chunks * queries * shape.v_dim));
  std::vector<float> max(static_cast<std::size_t>(chunks * queries)), sum(max.size());
  std::vector<float> scratch(static_cast<std::size_t>(kKvBlock * shape.dim));
  AttentionArgs args;
  args.latents = scratch.data();
  args.q = q.data() + first * shape.group * shape.dim;
  args.q_row_stride = shape.group * shape.dim;
  args.q_head_stride = shape.dim;
  args.rows = rows;
  args.group = shape.group;
  args.head_dim = shape.dim;
  args.v_dim = shape.v_dim;
  args.positions = positions.data();
  args.scale = 0.07f;
  args.kv_dtype = shape.dtype;
  for (args.chunk = 0; args.chunk < chunks; ++args.chunk) {
    const std::int64_t block = args.chunk * (kAttentionChunk / kKvBlock);
    args.k_blocks = k_blocks.empty() ? nullptr : k_blocks.data() + block;
    args.v_blocks = v_blocks.data() + block;
    args.acc = acc.data() + args.chunk * queries * shape.v_dim;
    args.max = max.data() + args.chunk * queries;
    args.sum = sum.data() + args.chunk * queries;
    table.attention_chunk(args);
  }
  std::vector<float> out(static_cast<std::size_t>(queries * shape.v_dim));
  for (std::int64_t i = 0; i < queries; ++i)
    table.attention_merge(acc.data() + i * shape.v_dim, queries * shape.v_dim, max.data() + i, sum.data() + i, queries,
                          chunks, shape.v_dim, kNoSink, out.data() + i * shape.v_dim);
  return out;
}

std::vector<float> reference(const Shape& shape, const std::vector<float>& q, const Latents& latents) {
  std::vector<float> out, whole(static_cast<std::size_t>(shape.group * shape.dim));
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    ref::attention(q.data() + r * shape.group * shape.dim, latents.plain.data(), latents.plain.data(), shape.group,
                   shape.first + r + 1, shape.dim, 0.07f, nullptr, whole.data());
    for (std::int64_t g = 0; g < shape.group; ++g)
      out.insert(out.end(), whole.begin() + g * shape.dim, whole.begin() + g * shape.dim + shape.v_dim);
  }
  return out;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

bool same_latent_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class LatentTest : public ::testing::TestWithParam<Shape> {};

TEST_P(LatentTest, SameBitsOnEveryIsaAndAloneOrInATile) {
  const Shape& shape = GetParam();
  const Latents latents(shape);
  const std::vector<float> q = random_floats(shape.queries() * shape.dim, 2), want = reference(shape, q, latents);
  std::vector<float> first;
  for (const Table* const table : tables()) {
    const std::vector<float> whole = attend(*table, shape, q, {}, latents.blocks, 0, shape.rows);
    if (first.empty()) first = whole;
    EXPECT_TRUE(same_latent_bits(whole, first)) << device::isa_name(table->isa);
    EXPECT_LT(distance(whole, want), 3e-6);
    std::vector<float> rowwise;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const std::vector<float> one = attend(*table, shape, q, {}, latents.blocks, r, 1);
      rowwise.insert(rowwise.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(same_latent_bits(rowwise, first)) << device::isa_name(table->isa) << ", row by row";
  }
}

TEST_P(LatentTest, IsAttentionWithTheLatentsAsKeysAndAsValues) {
  Shape shape = GetParam();
  shape.v_dim = shape.dim;
  shape.dtype = DType::f32;
  const Latents latents(shape);
  const std::vector<float> q = random_floats(shape.queries() * shape.dim, 2);
  std::vector<float> keys(latents.blocks.size() * static_cast<std::size_t>(kKvBlock * shape.dim));
  std::vector<const std::byte*> k_blocks;
  for (std::size_t b = 0; b < latents.blocks.size(); ++b)
    k_blocks.push_back(reinterpret_cast<const std::byte*>(keys.data()) + b * sizeof(float) * kKvBlock * shape.dim);
  for (std::int64_t i = 0; i < shape.keys(); ++i)
    for (std::int64_t d = 0; d < shape.dim; ++d)
      keys[static_cast<std::size_t>((i / kKvBlock * shape.dim + d) * kKvBlock + i % kKvBlock)] =
          latents.plain[static_cast<std::size_t>(i * shape.dim + d)];
  for (const Table* const table : tables())
    EXPECT_TRUE(same_latent_bits(attend(*table, shape, q, {}, latents.blocks, 0, shape.rows),
                                 attend(*table, shape, q, k_blocks, latents.blocks, 0, shape.rows)))
        << device::isa_name(table->isa);
}

INSTANTIATE_TEST_SUITE_P(Shapes, LatentTest,
                         ::testing::Values(Shape{576, 512, 16, 70, 3, DType::f16},    // DeepSeek V2 Lite
                                           Shape{576, 512, 20, 1020, 9, DType::f16},  // GLM-4.7-Flash, two chunks
                                           Shape{576, 512, 128, 0, 2, DType::f32},    // DeepSeek V3
                                           Shape{576, 512, 5, 130, 4, DType::q8_0}, Shape{96, 64, 3, 0, 80, DType::f16},
                                           Shape{40, 13, 7, 63, 3, DType::f32}, Shape{1024, 1000, 1, 5, 2, DType::f16},
                                           Shape{64, 33, 11, 127, 30, DType::q8_0}));

}  // namespace
}  // namespace millrace::kernels
