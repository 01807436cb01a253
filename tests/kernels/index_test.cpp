// What an indexer needs: scores of positions, the choice of the largest with its rule for ties, LayerNorm. Every
// instruction set gives the bits of the plain one, and these agree with plain mathematics.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/kernels.h"
#include "tensor/half.h"

namespace millrace::kernels {
namespace {

std::vector<float> index_floats(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<const Table*> index_tables() {
  std::vector<const Table*> all;
  for (const Isa isa : device::kIsas)
    if (device::has_isa(isa)) all.push_back(&table(isa));
  return all;
}

double error_of(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(got[i] - want[i], 2);
    norm += std::pow(want[i], 2);
  }
  return std::sqrt(error / norm);
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Index, ScoresOfPositions) {
  constexpr std::int64_t kBlocks = 3, kKeys = kBlocks * kKvBlock;
  for (const DType dtype : {DType::f16, DType::f32}) {
    for (const auto& [heads, dim] :
         {std::pair<std::int64_t, std::int64_t>{1, 8}, {3, 20}, {8, 64}, {13, 128}, {64, 128}}) {
      std::vector<float> keys = index_floats(kKeys * dim, 1);
      const std::vector<float> q = index_floats(heads * dim, 2), weights = index_floats(heads, 3);
      std::vector<std::byte> memory(static_cast<std::size_t>(row_bytes(dtype, kKeys * dim)));
      std::vector<const std::byte*> blocks;
      for (std::int64_t b = 0; b < kBlocks; ++b) blocks.push_back(memory.data() + b * row_bytes(dtype, kKvBlock * dim));
      for (std::int64_t s = 0; s < kKeys; ++s) {
        for (std::int64_t d = 0; d < dim; ++d) {
          float& key = keys[static_cast<std::size_t>(s * dim + d)];
          const std::int64_t at = (s / kKvBlock * dim + d) * kKvBlock + s % kKvBlock;
          if (dtype == DType::f32) {
            reinterpret_cast<float*>(memory.data())[at] = key;
          } else {
            reinterpret_cast<std::uint16_t*>(memory.data())[at] = float_to_half(key);
            key = half_to_float(float_to_half(key));
          }
        }
      }
      std::vector<double> want;
      for (std::int64_t s = 0; s < kKeys; ++s) {
        double score = 0;
        for (std::int64_t h = 0; h < heads; ++h) {
          double dot = 0;
          for (std::int64_t d = 0; d < dim; ++d)
            dot += double{q[static_cast<std::size_t>(h * dim + d)]} * keys[static_cast<std::size_t>(s * dim + d)];
          score += weights[static_cast<std::size_t>(h)] * std::max(0.0, dot);
        }
        want.push_back(score);
      }
      std::vector<float> first;
      for (const Table* const table : index_tables()) {
        std::vector<float> out(kKeys, std::numeric_limits<float>::quiet_NaN());
        IndexScoresArgs args{q.data(), weights.data(), heads, dim, dtype, blocks.data(), kBlocks, out.data()};
        table->index_scores(args);
        if (first.empty()) first = out;
        EXPECT_TRUE(equal_bits(out, first)) << device::isa_name(table->isa) << " " << heads << " x " << dim;
        EXPECT_LT(error_of(out, want), 1e-5);
        args.blocks = blocks.data() + 1;  // of a block alone: the same bits
        args.count = 1;
        std::vector<float> alone(kKvBlock);
        args.out = alone.data();
        table->index_scores(args);
        EXPECT_TRUE(equal_bits(alone, {first.begin() + kKvBlock, first.begin() + 2 * kKvBlock}));
      }
    }
  }
}

std::vector<std::int32_t> chosen(const std::vector<float>& x, std::int64_t k) {
  std::vector<float> scratch(x.size());
  std::vector<std::int32_t> indices(static_cast<std::size_t>(k), -1);
  largest(x.data(), std::ssize(x), k, scratch.data(), indices.data());
  return indices;
}

TEST(Index, OfEqualScoresTheEarlierPositionIsChosen) {
  using Indices = std::vector<std::int32_t>;
  EXPECT_EQ(chosen({1, 2, 2, 2, 0}, 2), (Indices{1, 2}));
  EXPECT_EQ(chosen({0, 0, 0, 0}, 3), (Indices{0, 1, 2}));
  EXPECT_EQ(chosen({0, -0.0f, 0, 5}, 3), (Indices{0, 1, 3}));
  EXPECT_EQ(chosen({3, 1, 2}, 3), (Indices{0, 1, 2}));
  EXPECT_EQ(chosen({-1, -2, -1, -3, -1}, 2), (Indices{0, 2}));
  const float nan = std::numeric_limits<float>::quiet_NaN(), least = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(chosen({nan, -7, nan, 3}, 2), (Indices{1, 3}));
  EXPECT_EQ(chosen({nan, least, nan, 3}, 2), (Indices{0, 3}));
  EXPECT_EQ(chosen({}, 0), Indices{});
}

TEST(Index, ChoosesWhatAStableSortDoes) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> x(1 + random() % 300);
    for (float& value : x) value = static_cast<float>(random() % 17);  // many are equal
    const auto k = static_cast<std::ptrdiff_t>(1 + random() % x.size());
    std::vector<std::int32_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)]; });
    order.resize(static_cast<std::size_t>(k));
    std::sort(order.begin(), order.end());
    EXPECT_EQ(chosen(x, k), order);
  }
}

TEST(Index, LayerNorm) {
  constexpr float kEps = 1e-6f;
  for (const std::int64_t cols : {1, 7, 32, 64, 100, 128}) {
    constexpr std::int64_t kRows = 3;
    std::vector<float> x = index_floats(kRows * cols, 1);
    for (float& value : x) value += 2;
    const std::vector<float> weight = index_floats(cols, 2), bias = index_floats(cols, 3);
    std::vector<double> want;
    for (std::int64_t r = 0; r < kRows; ++r) {
      const float* const row = x.data() + r * cols;
      double mean = 0, variance = 0;
      for (std::int64_t i = 0; i < cols; ++i) mean += row[i] / static_cast<double>(cols);
      for (std::int64_t i = 0; i < cols; ++i) variance += std::pow(row[i] - mean, 2) / static_cast<double>(cols);
      for (std::int64_t i = 0; i < cols; ++i)
        want.push_back((row[i] - mean) / std::sqrt(variance + double{kEps}) * weight[static_cast<std::size_t>(i)] +
                       bias[static_cast<std::size_t>(i)]);
    }
    std::vector<float> first;
    for (const Table* const table : index_tables()) {
      std::vector<float> out = x;
      table->layer_norm(out.data(), weight.data(), bias.data(), kRows, cols, kEps, out.data());
      if (first.empty()) first = out;
      EXPECT_TRUE(equal_bits(out, first)) << device::isa_name(table->isa) << " " << cols;
      EXPECT_LT(error_of(out, want), 1e-5) << cols;
    }
  }
}

}  // namespace
}  // namespace millrace::kernels
