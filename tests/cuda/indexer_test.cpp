// An indexer's kernels against the processor's, bit for bit, and attention over the keys that are chosen: with the bits
// of attention over a sequence that consists of these keys alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "cuda/latent_cache.h"
#include "cuda/on_device.h"
#include "device/cpu.h"
#include "kernels/cuda/launchers.h"
#include "kernels/kernels.h"
#include "tensor/codec.h"

namespace millrace::kernels::cuda {
namespace {

using test::Array;
using test::Cache;
using test::Entry;
using test::kBlockTokens;
using test::normal_floats;
using test::ok;
using test::PassRows;
using test::same_bits;

const kernels::Table& cpu() {
  static const kernels::Table& table = kernels::table(device::best_isa());
  return table;
}

/// Index keys of one layer in device memory, behind other bytes of each block; blocks lie in reverse order.
class IndexCache {
 public:
  IndexCache(DType dtype, int dim, int sequences, int tokens)
      : dtype_(dtype),
        dim_(dim),
        blocks_((tokens + kBlockTokens - 1) / kBlockTokens),
        all_(sequences * blocks_),
        memory_(static_cast<std::size_t>(all_) * block_bytes()) {
    std::vector<const std::byte*> table;
    for (int b = 0; b < all_; ++b) table.push_back(memory_.at_bytes() + start_of(b));
    table_.emplace(table);
  }
  IndexView view() const { return {table_->get(), kBefore, blocks_, dim_, dtype_}; }
  /// Keys [tokens, dim] of a sequence, in the cache's format.
  void put(int sequence, const std::vector<float>& keys) {
    std::vector<std::byte> all = memory_.host();
    for (int t = 0; t < static_cast<int>(keys.size()) / dim_; ++t) {
      std::byte* const block = all.data() + start_of(sequence * blocks_ + t / kBlockTokens) + kBefore;
      for (int c = 0; c < dim_; ++c) {
        const float key = keys[static_cast<std::size_t>(t * dim_ + c)];
        const int place = c * kBlockTokens + t % kBlockTokens;
        if (dtype_ == DType::f16)
          reinterpret_cast<std::uint16_t*>(block)[place] = f32_to_f16(key);
        else
          reinterpret_cast<float*>(block)[place] = key;
      }
    }
    memory_.put(all);
  }
  std::vector<std::byte> host() const { return memory_.host(); }
  /// Block `block` of a sequence in what host() gave.
  const std::byte* block(const std::vector<std::byte>& host, int sequence, int block) const {
    return host.data() + start_of(sequence * blocks_ + block) + kBefore;
  }

 private:
  static constexpr std::int64_t kBefore = 48;
  std::size_t block_bytes() const {
    return static_cast<std::size_t>(kBefore + row_bytes(dtype_, dim_) * kBlockTokens + 16);
  }
  std::size_t start_of(int block) const { return static_cast<std::size_t>(all_ - 1 - block) * block_bytes(); }

  DType dtype_;
  int dim_, blocks_, all_;
  Array<std::byte> memory_;
  std::optional<Array<const std::byte*>> table_;
};

class CudaIndexer : public test::OnDevice {
 protected:
  std::mt19937 random_{20261130};
};

TEST_F(CudaIndexer, TurnsQueriesAndStoresKeys) {
  struct Shape {
    DType dtype;
    int dim, heads, rotary, first;
    bool neox, bias;
  };
  for (const Shape& s :
       {Shape{DType::f16, 128, 64, 64, 0, true, true}, Shape{DType::f16, 128, 32, 64, 0, false, true},
        Shape{DType::f32, 64, 3, 32, 0, true, true}, Shape{DType::f16, 32, 1, 6, 0, false, false},
        Shape{DType::f32, 256, 5, 64, 192, false, true}, Shape{DType::f16, 96, 7, 96, 0, true, false}}) {
    SCOPED_TRACE(testing::Message() << info(s.dtype).name << " " << s.dim << " " << s.heads);
    constexpr int kRows = 5, kTokens = 200;
    IndexCache cache(s.dtype, s.dim, 2, kTokens);
    const std::vector<std::int32_t> sequences = {0, 0, 1, 1, 0}, positions = {62, 65, 199, 0, 127};
    const PassRows rows(sequences, positions);
    const auto floats = [&](int n) { return normal_floats(static_cast<std::size_t>(n), random_); };
    std::vector<float> q = floats(kRows * s.heads * s.dim);
    const std::vector<float> key = floats(kRows * s.dim), angles = floats(kRows * s.rotary), weight = floats(s.dim),
                             bias = floats(s.dim);
    const Array<float> q_at(q), key_at(key), angles_at(angles), weight_at(weight), bias_at(bias);
    const Entry weight_entry(weight_at.at_bytes()), bias_entry(bias_at.at_bytes());
    IndexStoreCall call;
    call.rows = rows.view();
    call.index = cache.view();
    call.q = q_at.get();
    call.key = key_at.get();
    call.heads = s.heads;
    call.weight = weight_entry.get();
    call.bias = s.bias ? bias_entry.get() : nullptr;
    call.eps = 1e-6f;
    call.cos_sin = angles_at.get();
    call.rotary = s.rotary;
    call.first = s.first;
    call.neox = s.neox;
    ok(store_index(call, nullptr));
    const std::vector<std::byte> stored = cache.host();
    for (int r = 0; r < kRows; ++r) {
      const float* const turns = angles.data() + r * s.rotary;
      for (int h = 0; h < s.heads; ++h)
        cpu().rope(q.data() + (r * s.heads + h) * s.dim + s.first, turns, s.rotary, s.neox);
      std::vector<float> want(static_cast<std::size_t>(s.dim)), got;
      cpu().layer_norm(key.data() + r * s.dim, weight.data(), s.bias ? bias.data() : nullptr, 1, s.dim, 1e-6f,
                       want.data());
      cpu().rope(want.data() + s.first, turns, s.rotary, s.neox);
      const int position = positions[static_cast<std::size_t>(r)];
      const std::byte* const block =
          cache.block(stored, sequences[static_cast<std::size_t>(r)], position / kBlockTokens);
      for (int c = 0; c < s.dim; ++c) {
        const int place = c * kBlockTokens + position % kBlockTokens;
        if (s.dtype == DType::f32) {
          got.push_back(reinterpret_cast<const float*>(block)[place]);
          continue;
        }
        got.push_back(f16_to_f32(reinterpret_cast<const std::uint16_t*>(block)[place]));
        want[static_cast<std::size_t>(c)] = f16_to_f32(f32_to_f16(want[static_cast<std::size_t>(c)]));
      }
      EXPECT_TRUE(same_bits(got, want)) << r;
    }
    EXPECT_TRUE(same_bits(q_at.host(), q));
    EXPECT_TRUE(same_bits(key_at.host(), key));
  }
}

/// Keys whose scores are far apart, or of few values, or all the same, or not finite.
enum class Keys { random, few, equal, broken };

struct ChoiceShape {
  DType dtype;
  int dim, heads, top_k;
  Keys keys;
  std::vector<std::int32_t> positions;
};

std::vector<std::int32_t> all_up_to(std::int32_t count) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

TEST_F(CudaIndexer, ScoresAndChoosesAsTheProcessorDoes) {
  for (const ChoiceShape& s :
       {ChoiceShape{DType::f16, 128, 64, 2048, Keys::random, {9000, 2048, 2047, 5, 3001}},
        ChoiceShape{DType::f16, 128, 64, 2048, Keys::few, {9000, 4097}},
        ChoiceShape{DType::f16, 128, 32, 2048, Keys::equal, {2048, 8191}},
        ChoiceShape{DType::f16, 128, 32, 512, Keys::random, {33'000}},
        ChoiceShape{DType::f32, 64, 3, 1, Keys::random, {0, 1, 2, 63, 64, 700}},
        ChoiceShape{DType::f32, 96, 33, 24, Keys::few, {23, 24, 25, 511, 512, 1500}},
        ChoiceShape{DType::f16, 32, 130, 65, Keys::random, {64, 65, 66, 127, 128, 129, 191, 800}},
        ChoiceShape{DType::f16, 256, 8, 100, Keys::broken, {99, 100, 101, 900}},
        ChoiceShape{DType::f16, 64, 8, 24, Keys::few, all_up_to(90)}}) {
    SCOPED_TRACE(testing::Message() << info(s.dtype).name << " " << s.dim << " " << s.heads << " " << s.top_k << " "
                                    << static_cast<int>(s.keys));
    const int tokens = *std::max_element(s.positions.begin(), s.positions.end()) + 1;
    const auto rows = static_cast<int>(s.positions.size());
    const auto numbers = [&](int n) {
      std::vector<float> x = normal_floats(static_cast<std::size_t>(n), random_);
      if (s.keys == Keys::few)
        for (float& one : x) one = one > 0.4f ? 1.0f : one < -0.4f ? -1.0f : 0.0f;
      return x;
    };
    IndexCache cache(s.dtype, s.dim, 2, tokens);
    std::vector<float> q = numbers(rows * s.heads * s.dim), weights = numbers(rows * s.heads);
    for (int sequence = 0; sequence < 2; ++sequence) {
      std::vector<float> keys = numbers(tokens * s.dim);
      if (s.keys == Keys::equal)
        for (std::size_t i = static_cast<std::size_t>(s.dim); i < keys.size(); ++i)
          keys[i] = keys[i - static_cast<std::size_t>(s.dim)];
      if (s.keys == Keys::broken)
        for (std::size_t i = 0; i < keys.size(); i += 997) keys[i] = std::numeric_limits<float>::infinity();
      cache.put(sequence, keys);
    }
    if (s.keys == Keys::broken) weights.back() = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::int32_t> sequences;
    for (int r = 0; r < rows; ++r) sequences.push_back(r % 2);

    const std::vector<std::byte> host = cache.host();
    const int chosen_cols = s.top_k, stride = (tokens + 127) / 128 * 128;
    std::vector<std::vector<std::int32_t>> want;
    std::vector<std::vector<float>> want_scores;
    for (int r = 0; r < rows; ++r) {
      const int keys = s.positions[static_cast<std::size_t>(r)] + 1;
      std::vector<const std::byte*> blocks;
      for (int b = 0; b * kBlockTokens < keys; ++b) blocks.push_back(cache.block(host, sequences[r], b));
      std::vector<float> scaled(weights.begin() + r * s.heads, weights.begin() + (r + 1) * s.heads);
      for (float& weight : scaled) weight *= 0.011f;
      std::vector<float> scores(blocks.size() * kBlockTokens), scratch(scores.size());
      IndexScoresArgs args;
      args.q = q.data() + r * s.heads * s.dim;
      args.weights = scaled.data();
      args.heads = s.heads;
      args.dim = s.dim;
      args.dtype = s.dtype;
      args.blocks = blocks.data();
      args.count = static_cast<std::int64_t>(blocks.size());
      args.out = scores.data();
      cpu().index_scores(args);
      want.emplace_back(static_cast<std::size_t>(std::min(keys, s.top_k)));
      kernels::largest(scores.data(), keys, std::min(keys, s.top_k), scratch.data(), want.back().data());
      scores.resize(static_cast<std::size_t>(keys));
      want_scores.push_back(scores);
    }

    const PassRows pass(sequences, s.positions);
    const Array<float> q_at(q), weights_at(weights);
    for (const bool at_once : {true, false}) {
      const Array<std::int32_t> chosen(static_cast<std::size_t>(rows * chosen_cols));
      ChooseKeysCall call;
      call.rows = pass.view();
      call.index = cache.view();
      call.q = q_at.get();
      call.weights = weights_at.get();
      call.factor = 0.011f;
      call.heads = s.heads;
      call.top_k = s.top_k;
      call.chosen = chosen.get();
      call.max_position = tokens;
      call.workspace_bytes = choose_workspace_bytes(at_once ? rows : 1, call.max_position);
      const Array<std::byte> workspace(call.workspace_bytes);
      call.workspace = workspace.get();
      ok(choose_keys(call, nullptr));
      const std::vector<std::int32_t> got = chosen.host();
      const std::vector<std::byte> scores = workspace.host();
      for (int r = 0; r < rows; ++r) {
        const auto first = got.begin() + r * chosen_cols;
        const auto count = static_cast<std::ptrdiff_t>(want[static_cast<std::size_t>(r)].size());
        EXPECT_EQ(std::vector<std::int32_t>(first, first + count), want[static_cast<std::size_t>(r)])
            << "row " << r << " of " << rows << ", at once: " << at_once;
        const std::vector<float>& of_row = want_scores[static_cast<std::size_t>(r)];
        if (!at_once || static_cast<int>(of_row.size()) <= s.top_k) continue;
        const auto* const from = reinterpret_cast<const float*>(scores.data()) + r * stride;
        EXPECT_TRUE(same_bits({from, from + of_row.size()}, of_row)) << "scores of row " << r;
      }
    }
  }
}

/// Prompts' scores are near the exact ones, what is chosen is what they say, and a row's bits are its own.
TEST_F(CudaIndexer, ChoosesForPromptsOnTensorCores) {
  struct Shape {
    int dim, heads, top_k, first, rows;
  };
  for (const Shape& s : {Shape{128, 64, 2048, 2000, 150}, Shape{128, 32, 512, 3000, 33}, Shape{64, 3, 24, 0, 200},
                         Shape{32, 17, 100, 95, 70}}) {
    SCOPED_TRACE(testing::Message() << s.dim << " " << s.heads << " " << s.top_k);
    const int tokens = s.first + s.rows, stride = (tokens + 127) / 128 * 128;
    IndexCache cache(DType::f16, s.dim, 2, tokens);
    std::vector<std::vector<float>> keys;
    for (int sequence = 0; sequence < 2; ++sequence) {
      keys.push_back(normal_floats(static_cast<std::size_t>(tokens * s.dim), random_));
      for (float& key : keys.back()) key = f16_to_f32(f32_to_f16(key));
      cache.put(sequence, keys.back());
    }
    std::vector<std::int32_t> sequences, positions;  // two prompts, one behind the other
    for (int r = 0; r < s.rows; ++r) {
      sequences.push_back(r < s.rows / 3 ? 1 : 0);
      positions.push_back(s.first + (r < s.rows / 3 ? r : r - s.rows / 3));
    }
    const std::vector<float> q = normal_floats(static_cast<std::size_t>(s.rows * s.heads * s.dim), random_, 30),
                             weights = normal_floats(static_cast<std::size_t>(s.rows * s.heads), random_);
    const Array<float> q_at(q), weights_at(weights);
    std::vector<float> scores;
    const auto run = [&](int first, int rows, int at_once) {
      const PassRows pass({sequences.begin() + first, sequences.begin() + first + rows},
                          {positions.begin() + first, positions.begin() + first + rows});
      const Array<std::int32_t> chosen(static_cast<std::size_t>(rows * s.top_k));
      ChooseKeysCall call;
      call.rows = pass.view();
      call.index = cache.view();
      call.q = q_at.get() + std::ptrdiff_t{first} * s.heads * s.dim;
      call.weights = weights_at.get() + std::ptrdiff_t{first} * s.heads;
      call.factor = 0.011f;
      call.heads = s.heads;
      call.top_k = s.top_k;
      call.chosen = chosen.get();
      call.max_position = tokens;
      call.prompt = true;
      call.workspace_bytes = choose_workspace_bytes(at_once, call.max_position);
      const Array<std::byte> workspace(call.workspace_bytes);
      call.workspace = workspace.get();
      ok(choose_keys(call, nullptr));
      const std::vector<std::byte> left = workspace.host();
      const auto* const from = reinterpret_cast<const float*>(left.data());
      scores.assign(from, from + std::min(at_once, rows) * stride);
      return chosen.host();
    };
    const std::vector<std::int32_t> all = run(0, s.rows, s.rows);
    const std::vector<float> all_scores = scores;
    double off = 0, size = 0;
    for (int r = 0; r < s.rows; ++r) {
      const int count = positions[static_cast<std::size_t>(r)] + 1;
      const std::vector<std::int32_t> got(all.begin() + r * s.top_k,
                                          all.begin() + r * s.top_k + std::min(count, s.top_k));
      std::vector<std::int32_t> want = all_up_to(std::min(count, s.top_k));
      if (count > s.top_k) {
        const float* const of_row = all_scores.data() + r * stride;
        std::vector<float> scratch(static_cast<std::size_t>(count));
        kernels::largest(of_row, count, s.top_k, scratch.data(), want.data());
        for (int key = r % 13; key < count; key += 13) {
          double exact = 0;
          for (int h = 0; h < s.heads; ++h) {
            double dot = 0;
            for (int c = 0; c < s.dim; ++c)
              dot += double{q[static_cast<std::size_t>((r * s.heads + h) * s.dim + c)]} *
                     keys[static_cast<std::size_t>(sequences[static_cast<std::size_t>(r)])]
                         [static_cast<std::size_t>(key * s.dim + c)];
            exact += double{weights[static_cast<std::size_t>(r * s.heads + h)]} * 0.011 * std::max(dot, 0.0);
          }
          off += (of_row[key] - exact) * (of_row[key] - exact);
          size += exact * exact;
        }
      }
      EXPECT_EQ(got, want) << "row " << r;
    }
    EXPECT_GT(size, 0);
    EXPECT_LT(std::sqrt(off / size), 1e-5);
    EXPECT_EQ(run(0, s.rows, 7), all) << "seven rows at once";
    const int last = s.rows - 1;
    EXPECT_EQ(run(last, 1, 1), std::vector<std::int32_t>(all.end() - s.top_k, all.end())) << "alone";
    EXPECT_TRUE(same_bits(scores, {all_scores.end() - stride, all_scores.end()}));
  }
}

TEST_F(CudaIndexer, AttentionSeesChosenKeysAlone) {
  struct Shape {
    DType dtype;
    int dim, v_dim, heads, top_k;
    std::vector<std::int32_t> positions;
  };
  for (const Shape& s :
       {Shape{DType::f16, 576, 512, 128, 2048, {2047, 5000, 2048}},
        Shape{DType::q8_0, 576, 512, 64, 700, {3000, 12, 699}}, Shape{DType::f16, 96, 64, 3, 33, {0, 31, 32, 33, 500}},
        Shape{DType::q8_0, 96, 16, 70, 128, {127, 128, 129, 400}}, Shape{DType::f32, 96, 64, 3, 150, {149, 150, 1000}},
        Shape{DType::f16, 40, 12, 20, 260, {700, 3}}}) {
    const int tokens = *std::max_element(s.positions.begin(), s.positions.end()) + 1;
    const auto rows = static_cast<int>(s.positions.size());
    Cache cache(s.dtype, s.dim, 2, tokens), apart(s.dtype, s.dim, rows, s.top_k);
    std::vector<std::vector<float>> latents;
    for (int sequence = 0; sequence < 2; ++sequence) {
      latents.push_back(normal_floats(static_cast<std::size_t>(tokens * s.dim), random_));
      std::vector<float> rounded = latents.back();
      cache.put(sequence, rounded);
    }
    std::vector<std::int32_t> sequences, lists, counts, own_sequences;
    for (int r = 0; r < rows; ++r) {
      sequences.push_back(r % 2);
      own_sequences.push_back(r);
      const int all = s.positions[static_cast<std::size_t>(r)] + 1;
      std::vector<std::int32_t> list = all_up_to(all);
      if (all > s.top_k) {
        std::shuffle(list.begin(), list.end(), random_);
        list.resize(static_cast<std::size_t>(s.top_k));
        std::sort(list.begin(), list.end());
      }
      counts.push_back(static_cast<std::int32_t>(list.size()) - 1);
      std::vector<float> seen;
      for (const std::int32_t position : list) {
        const auto from = latents[static_cast<std::size_t>(r % 2)].begin() + std::ptrdiff_t{position} * s.dim;
        seen.insert(seen.end(), from, from + s.dim);
      }
      apart.put(r, seen);
      list.resize(static_cast<std::size_t>(s.top_k), -1);
      lists.insert(lists.end(), list.begin(), list.end());
    }
    const PassRows pass(sequences, s.positions), own(own_sequences, counts);
    const Array<float> q(normal_floats(static_cast<std::size_t>(rows * s.heads * s.dim), random_));
    const Array<std::int32_t> lists_at(lists);
    const auto run = [&](bool listed, bool prompt, int at_once) {
      const Array<float> out(static_cast<std::size_t>(rows * s.heads * s.v_dim));
      LatentAttentionCall call;
      call.rows = listed ? pass.view() : own.view();
      call.kv = listed ? cache.view() : apart.view();
      call.q = q.get();
      call.heads = s.heads;
      call.scale = 0.06f;
      call.v_dim = s.v_dim;
      call.out = out.get();
      call.max_position = listed ? 8192 : s.top_k;
      call.prompt = prompt;
      if (listed) {
        call.chosen = lists_at.get();
        call.top_k = s.top_k;
      }
      call.workspace_bytes = latent_workspace_bytes(at_once, s.heads, s.v_dim, s.top_k);
      const Array<std::byte> workspace(call.workspace_bytes);
      call.workspace = workspace.get();
      ok(latent_attention(call, nullptr));
      return out.host();
    };
    for (const bool prompt : {false, true}) {
      SCOPED_TRACE(testing::Message() << info(s.dtype).name << " " << s.dim << " " << s.heads << " " << prompt);
      const std::vector<float> want = run(false, prompt, rows);
      EXPECT_TRUE(same_bits(run(true, prompt, rows), want));
      EXPECT_TRUE(same_bits(run(true, prompt, 1), want)) << "one row at a time";
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
