// Latent attention's kernels against plain host versions of their contracts in latent.h, bit for bit on odd shapes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/latent_cache.h"
#include "cuda/on_device.h"
#include "cuda/weights.h"
#include "kernels/cuda/launchers.h"
#include "kernels/kernels.h"
#include "tensor/codec.h"

namespace millrace::kernels::cuda {
namespace {

using test::Array;
using test::Cache;
using test::Entry;
using test::normal_floats;
using test::ok;
using test::PassRows;
using test::same_bits;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float tree_of(float (&lanes)[32]) {
  for (int step = 16; step > 0; step /= 2)
    for (int l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  return lanes[0];
}

class CudaLatent : public test::OnDevice {
 protected:
  std::mt19937 random_{20261123};
};

TEST_F(CudaLatent, HeadProducts) {
  struct Shape {
    DType dtype;
    int heads, n, k, x_head, rows;
  };
  for (const Shape& s : {Shape{DType::f16, 3, 64, 32, 64, 1}, Shape{DType::f32, 5, 33, 7, 7, 9},
                         Shape{DType::q8_0, 16, 512, 128, 192, 4}, Shape{DType::q4_k, 2, 128, 512, 512, 17},
                         Shape{DType::q6_k, 4, 40, 256, 300, 8}, Shape{DType::bf16, 1, 96, 100, 130, 64}}) {
    test::Random random(7);
    const std::vector<float> x = normal_floats(static_cast<std::size_t>(s.rows * s.heads * s.x_head), random_);
    std::vector<std::byte> weights(static_cast<std::size_t>(row_bytes(s.dtype, s.k) * s.heads * s.n));
    if (s.dtype == DType::f16 || s.dtype == DType::f32 || s.dtype == DType::bf16) {
      const std::vector<float> values = normal_floats(static_cast<std::size_t>(s.heads * s.n * s.k), random_);
      for (int r = 0; r < s.heads * s.n; ++r)
        encode_row(s.dtype, values.data() + r * s.k, s.k, weights.data() + r * row_bytes(s.dtype, s.k));
    } else {
      weights = test::random_weights(s.dtype, s.heads * s.n, s.k, random);
    }
    const int left = s.x_head - s.k, out_head = s.n + left;
    std::vector<float> want(static_cast<std::size_t>(s.rows * s.heads * out_head)), decoded(s.k);
    for (int h = 0; h < s.heads; ++h)
      for (int n = 0; n < s.n; ++n) {
        decode_row(s.dtype, weights.data() + (h * s.n + n) * row_bytes(s.dtype, s.k), s.k, decoded.data());
        for (int r = 0; r < s.rows; ++r) {
          const float* from = x.data() + (r * s.heads + h) * s.x_head;
          float lanes[32] = {};
          for (int e = 0; e < s.k; ++e) lanes[e % 32] = test::fused(decoded[e], from[e], lanes[e % 32]);
          want[(r * s.heads + h) * out_head + n] = tree_of(lanes);
        }
      }
    for (int i = 0; i < s.rows * s.heads; ++i)
      std::copy_n(x.begin() + i * s.x_head + s.k, left, want.begin() + i * out_head + s.n);
    const Array<float> x_at(x), out(want.size());
    const Array<std::byte> weights_at(weights);
    const Entry entry(weights_at.get());
    const HeadProductCall call{
        {entry.get(), s.dtype, s.heads * s.n}, x_at.get(), out.get(), s.rows, s.heads, s.n, s.k, s.x_head};
    ok(head_product(call, nullptr));
    EXPECT_TRUE(same_bits(out.host(), want)) << info(s.dtype).name;
  }
}

/// Heads' matrices as parts of a tensor with others between them, as files of 2024 have them.
TEST_F(CudaLatent, ProductsOfHeadsWhoseMatricesLieApart) {
  struct Shape {
    DType dtype;
    int heads, n, k, x_head, rows;
    bool transposed;
  };
  for (const Shape& s :
       {Shape{DType::f32, 5, 33, 7, 40, 9, true}, Shape{DType::f16, 3, 64, 96, 100, 1, true},
        Shape{DType::q8_0, 16, 128, 512, 192, 4, true}, Shape{DType::q4_k, 2, 20, 256, 20, 17, true},
        Shape{DType::bf16, 1, 100, 130, 101, 64, true}, Shape{DType::q4_k, 2, 128, 512, 512, 17, false},
        Shape{DType::q6_k, 4, 40, 256, 300, 8, false}, Shape{DType::f32, 5, 33, 7, 7, 1, false}}) {
    SCOPED_TRACE(testing::Message() << info(s.dtype).name << (s.transposed ? ", transposed" : ""));
    const int between = 3, each = s.n + between;  // rows
    const auto row_size = static_cast<std::size_t>(row_bytes(s.dtype, s.k));
    test::Random random(7);
    std::vector<std::byte> weights(row_size * static_cast<std::size_t>(s.heads * each));
    if (s.dtype == DType::f16 || s.dtype == DType::f32 || s.dtype == DType::bf16) {
      const std::vector<float> values = normal_floats(static_cast<std::size_t>(s.heads * each * s.k), random_);
      for (int r = 0; r < s.heads * each; ++r)
        encode_row(s.dtype, values.data() + r * s.k, s.k, weights.data() + static_cast<std::size_t>(r) * row_size);
    } else {
      weights = test::random_weights(s.dtype, s.heads * each, s.k, random);
    }
    const std::vector<float> x = normal_floats(static_cast<std::size_t>(s.rows * s.heads * s.x_head), random_);
    const int taken = s.transposed ? s.n : s.k, made = s.transposed ? s.k : s.n;
    const int left = s.x_head - taken, out_head = made + left;
    std::vector<float> want(static_cast<std::size_t>(s.rows * s.heads * out_head), 0.0f),
        decoded(static_cast<std::size_t>(s.k));
    for (int h = 0; h < s.heads; ++h)
      for (int n = 0; n < s.n; ++n) {
        decode_row(s.dtype, weights.data() + static_cast<std::size_t>(h * each + n) * row_size, s.k, decoded.data());
        for (int r = 0; r < s.rows; ++r) {
          const float* from = x.data() + (r * s.heads + h) * s.x_head;
          float* to = want.data() + (r * s.heads + h) * out_head;
          float lanes[32] = {};
          for (int e = 0; e < s.k; ++e) {
            const float w = decoded[static_cast<std::size_t>(e)];
            if (s.transposed)
              to[e] = test::fused(w, from[n], to[e]);
            else
              lanes[e % 32] = test::fused(w, from[e], lanes[e % 32]);
          }
          if (!s.transposed) to[n] = tree_of(lanes);
        }
      }
    for (int i = 0; i < s.rows * s.heads; ++i)
      std::copy_n(x.begin() + i * s.x_head + taken, left, want.begin() + i * out_head + made);
    const Array<float> x_at(x), out(want.size());
    const Array<std::byte> weights_at(weights);
    std::vector<const std::byte*> addresses;
    for (int h = 0; h < s.heads; ++h)
      addresses.push_back(weights_at.get() + static_cast<std::size_t>(h * each) * row_size);
    const Array<const std::byte*> table(addresses);
    HeadProductCall call{{table.get(), s.dtype, s.n}, x_at.get(), out.get(), s.rows, s.heads, s.n, s.k, s.x_head};
    call.parts = true;
    call.transposed = s.transposed;
    ok(head_product(call, nullptr));
    EXPECT_TRUE(same_bits(out.host(), want));
  }
}

TEST_F(CudaLatent, TurnsAndStores) {
  struct Given {
    DType dtype;
    bool norms, neox;
  };
  for (const auto& [dtype, norms, neox] : {Given{DType::f16, false, false},
                                           {DType::f32, false, true},
                                           {DType::q8_0, false, false},
                                           {DType::f16, true, true},
                                           {DType::f32, true, false},
                                           {DType::q8_0, true, true}}) {
    constexpr int kRotary = 32, kRank = 96, kDim = kRank + kRotary, kHeads = 5, kQHead = 80;
    Cache cache(dtype, kDim, 2, 200);
    const PassRows rows({0, 0, 1}, {62, 65, 199});
    const std::vector<float> q = normal_floats(3 * kHeads * kQHead, random_), c = normal_floats(3 * kRank, random_),
                             key = normal_floats(3 * kRotary, random_), angles = normal_floats(3 * kRotary, random_);
    std::vector<float> q_want = q;
    const auto turn = [&, neox = neox](float* x, int row) {
      for (int i = 0; i < kRotary / 2; ++i) {
        const float cos = angles[row * kRotary + 2 * i], sin = angles[row * kRotary + 2 * i + 1];
        float &near = x[neox ? i : 2 * i], &far = x[neox ? i + kRotary / 2 : 2 * i + 1];
        const float a = near, b = far;
        near = test::fused(a, cos, -(b * sin));
        far = test::fused(a, sin, b * cos);
      }
    };
    const Array<float> q_at(q), c_at(c), key_at(key), angles_at(angles);
    LatentStoreCall call;
    call.rows = rows.view();
    call.kv = cache.view();
    call.q = q_at.get();
    call.heads = kHeads;
    call.q_head = kQHead;
    call.c = c_at.get();
    call.key = key_at.get();
    call.cos_sin = angles_at.get();
    call.rotary = kRotary;
    call.neox = neox;
    // With a norm: what the cache gets is what rms_norm() makes of c.
    const std::vector<float> weight = normal_floats(kRank, random_);
    const Array<float> weight_at(weight), normal_at(c.size());
    const Array<const std::byte*> entry(
        std::vector<const std::byte*>{reinterpret_cast<const std::byte*>(weight_at.get())});
    std::vector<float> stored = c;
    if (norms) {
      call.norm = entry.get();
      call.eps = 1e-5f;
      ok(rms_norm(c_at.get(), nullptr, entry.get(), 3, kRank, call.eps, normal_at.get(), {}, nullptr));
      stored = normal_at.host();
    }
    ok(store_latent(call, nullptr));
    EXPECT_TRUE(same_bits(c_at.host(), c));
    const std::pair<int, int> places[] = {{0, 62}, {0, 65}, {1, 199}};
    for (int r = 0; r < 3; ++r) {
      for (int h = 0; h < kHeads; ++h) turn(q_want.data() + (r * kHeads + h + 1) * kQHead - kRotary, r);
      std::vector<float> latent(stored.begin() + r * kRank, stored.begin() + (r + 1) * kRank);
      latent.insert(latent.end(), key.begin() + r * kRotary, key.begin() + (r + 1) * kRotary);
      turn(latent.data() + kRank, r);
      EXPECT_EQ(cache.get(places[r].first, places[r].second), cache.encoded(latent.data())) << info(dtype).name;
    }
    EXPECT_TRUE(same_bits(q_at.host(), q_want));
  }
}

/// M, L and A of latent.h.
struct Sums {
  float most = kMinusInfinity, total = 0;
  std::vector<float> values;
  void merge(float m, float l, const std::vector<float>& acc) {
    const float now = std::max(most, m), before = exp_f32(most - now), joins = exp_f32(m - now);
    total = test::fused(total, before, l * joins);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = test::fused(values[i], before, acc[i] * joins);
    most = now;
  }
};

std::vector<float> attended(const float* q, const std::vector<float>& latents, int position, int dim, int v_dim,
                            float scale) {
  Sums whole{.values = std::vector<float>(static_cast<std::size_t>(v_dim))};
  for (int span = 0; span <= position; span += kLatentSpan) {
    Sums of_span{.values = std::vector<float>(static_cast<std::size_t>(v_dim))};
    const int end = std::min(span + kLatentSpan, position + 1);
    for (int first = span; first < end; first += kAttentionChunk) {
      const int count = std::min(kAttentionChunk, end - first);
      std::vector<float> scores(static_cast<std::size_t>(count)), acc(static_cast<std::size_t>(v_dim));
      float most = kMinusInfinity, lanes[32] = {};
      for (int j = 0; j < count; ++j) {
        float s = 0;
        for (int d = 0; d < dim; ++d) s = test::fused(q[d], latents[(first + j) * dim + d], s);
        scores[j] = s * scale;
        most = std::max(most, scores[j]);
      }
      for (int j = 0; j < count; ++j) {
        const float e = exp_f32(scores[j] - most);
        lanes[j % 32] += e;
        for (int d = 0; d < v_dim; ++d) acc[d] = test::fused(e, latents[(first + j) * dim + d], acc[d]);
      }
      of_span.merge(most, tree_of(lanes), acc);
    }
    whole.merge(of_span.most, of_span.total, of_span.values);
  }
  for (float& value : whole.values) value /= whole.total;
  return whole.values;
}

TEST_F(CudaLatent, AttentionOverFloatsInSpansAtOnceAndOneAfterAnother) {
  struct Shape {
    DType dtype;
    int dim, v_dim, heads;
    std::vector<std::int32_t> positions;
  };
  for (const Shape& s : {Shape{DType::f32, 576, 512, 16, {0, 127, 128, 700}}, Shape{DType::f32, 96, 64, 3, {2100}},
                         Shape{DType::q8_0, 704, 512, 20, {63, 256}}, Shape{DType::f16, 40, 12, 128, {1023, 1}}}) {
    const int tokens = *std::max_element(s.positions.begin(), s.positions.end()) + 1;
    const auto rows = static_cast<int>(s.positions.size());
    Cache cache(s.dtype, s.dim, 2, tokens);
    std::vector<std::vector<float>> latents;
    for (int sequence = 0; sequence < 2; ++sequence) {
      latents.push_back(normal_floats(static_cast<std::size_t>(tokens * s.dim), random_));
      cache.put(sequence, latents.back());
    }
    std::vector<std::int32_t> sequences;
    for (int r = 0; r < rows; ++r) sequences.push_back(r % 2);
    const PassRows pass(sequences, s.positions);
    const std::vector<float> q = normal_floats(static_cast<std::size_t>(rows * s.heads * s.dim), random_);
    std::vector<float> want;
    for (int r = 0; r < rows; ++r)
      for (int h = 0; h < s.heads; ++h) {
        const std::vector<float> one = attended(q.data() + (r * s.heads + h) * s.dim, latents[sequences[r]],
                                                s.positions[r], s.dim, s.v_dim, 0.06f);
        want.insert(want.end(), one.begin(), one.end());
      }
    const Array<float> q_at(q);
    for (const bool at_once : {false, true}) {
      const Array<float> out(want.size());
      LatentAttentionCall call;
      call.rows = pass.view();
      call.kv = cache.view();
      call.q = q_at.get();
      call.heads = s.heads;
      call.scale = 0.06f;
      call.v_dim = s.v_dim;
      call.out = out.get();
      call.max_position = 4096;  // more than there is, as a captured graph has it
      const int workers = at_once ? rows : 1;
      const std::size_t bytes = latent_workspace_bytes(workers, s.heads, s.v_dim, call.max_position);
      const Array<std::byte> workspace(bytes);
      call.workspace = workspace.get();
      call.workspace_bytes = bytes;
      ok(latent_attention(call, nullptr));
      EXPECT_TRUE(same_bits(out.host(), want)) << info(s.dtype).name << ", spans at once: " << at_once;
    }
  }
}

/// In double.
std::vector<double> attended_exactly(const float* q, const std::vector<float>& latents, int position, int dim,
                                     int v_dim, double scale) {
  std::vector<double> scores(static_cast<std::size_t>(position + 1)), out(static_cast<std::size_t>(v_dim));
  double most = -std::numeric_limits<double>::infinity(), total = 0;
  for (int j = 0; j <= position; ++j) {
    double s = 0;
    for (int d = 0; d < dim; ++d) s += static_cast<double>(q[d]) * latents[static_cast<std::size_t>(j * dim + d)];
    most = std::max(most, scores[static_cast<std::size_t>(j)] = s * scale);
  }
  for (int j = 0; j <= position; ++j) {
    const double e = std::exp(scores[static_cast<std::size_t>(j)] - most);
    total += e;
    for (int d = 0; d < v_dim; ++d)
      out[static_cast<std::size_t>(d)] += e * latents[static_cast<std::size_t>(j * dim + d)];
  }
  for (double& value : out) value /= total;
  return out;
}

/// Attention over tiles: near the exact one; a row's bits depend on nothing but the row and what it sees.
TEST_F(CudaLatent, AttentionOnTensorCores) {
  struct Shape {
    DType dtype;
    int dim, v_dim, heads, tokens;
  };
  for (const Shape& s :
       {Shape{DType::f16, 576, 512, 16, 700}, Shape{DType::f16, 48, 32, 3, 300}, Shape{DType::q8_0, 576, 512, 20, 290},
        Shape{DType::f16, 576, 512, 128, 70}, Shape{DType::q8_0, 96, 16, 5, 600}, Shape{DType::f16, 640, 496, 7, 33}}) {
    SCOPED_TRACE(testing::Message() << info(s.dtype).name << " " << s.dim << " " << s.heads);
    Cache cache(s.dtype, s.dim, 2, s.tokens);
    std::vector<std::vector<float>> latents;
    for (int sequence = 0; sequence < 2; ++sequence) {
      latents.push_back(normal_floats(static_cast<std::size_t>(s.tokens * s.dim), random_));
      cache.put(sequence, latents.back());
    }
    // Rows of two sequences by turns, some side by side; the last sees all.
    std::vector<std::int32_t> sequences, positions;
    for (const int position : {0, 1, 2, 30, 31, 32, 33, 255, 256, 257, 511, 512, s.tokens - 2, s.tokens - 1}) {
      if (position >= s.tokens) continue;
      positions.push_back(position);
      sequences.push_back(positions.size() % 5 == 0 ? 1 : 0);
    }
    const auto rows = static_cast<int>(positions.size());
    const std::vector<float> q = normal_floats(static_cast<std::size_t>(rows * s.heads * s.dim), random_);
    const Array<float> q_at(q);
    const auto run = [&](int first, int count, bool prompt, int workers) {
      const PassRows pass({sequences.begin() + first, sequences.begin() + first + count},
                          {positions.begin() + first, positions.begin() + first + count});
      const Array<float> out(static_cast<std::size_t>(count * s.heads * s.v_dim));
      LatentAttentionCall call;
      call.rows = pass.view();
      call.kv = cache.view();
      call.q = q_at.get() + static_cast<std::ptrdiff_t>(first) * s.heads * s.dim;
      call.heads = s.heads;
      call.scale = 0.06f;
      call.v_dim = s.v_dim;
      call.out = out.get();
      call.max_position = 1024;  // more than there is, as a captured graph has it
      call.prompt = prompt;
      const std::size_t bytes = latent_workspace_bytes(workers, s.heads, s.v_dim, call.max_position);
      const Array<std::byte> workspace(bytes);
      call.workspace = workspace.get();
      call.workspace_bytes = bytes;
      ok(latent_attention(call, nullptr));
      return out.host();
    };
    for (const bool prompt : {false, true}) {
      const std::vector<float> all = run(0, rows, prompt, rows);
      EXPECT_TRUE(same_bits(run(0, rows, prompt, 1), all)) << "one row at once";
      const auto each = static_cast<std::ptrdiff_t>(s.heads) * s.v_dim;
      double off = 0, size = 0;
      for (int r = 0; r < rows; ++r) {
        const std::vector<float> alone = run(r, 1, prompt, 1);
        EXPECT_TRUE(same_bits(alone, {all.begin() + r * each, all.begin() + (r + 1) * each}))
            << "row " << r << ", prompt: " << prompt;
        for (int h = 0; h < s.heads; ++h) {
          const std::vector<double> want =
              attended_exactly(q.data() + (r * s.heads + h) * s.dim, latents[static_cast<std::size_t>(sequences[r])],
                               positions[r], s.dim, s.v_dim, 0.06);
          for (int d = 0; d < s.v_dim; ++d) {
            const double got = alone[static_cast<std::size_t>(h * s.v_dim + d)];
            off += (got - want[d]) * (got - want[d]);
            size += want[d] * want[d];
          }
        }
      }
      EXPECT_LT(std::sqrt(off / size), 1e-3) << "prompt: " << prompt;
    }
  }
}

/// Products of prompts' rows: near the exact ones, the same alone as among others.
TEST_F(CudaLatent, HeadProductsOfPrompts) {
  struct Shape {
    DType dtype;
    int heads, n, k, x_head, rows;
    bool transposed;
  };
  for (const Shape& s :
       {Shape{DType::q8_0, 5, 512, 192, 256, 200, false}, Shape{DType::q4_k, 3, 256, 512, 512, 130, false},
        Shape{DType::f16, 2, 33, 40, 47, 9, false}, Shape{DType::bf16, 4, 128, 512, 192, 300, true},
        Shape{DType::q4_0, 2, 100, 160, 101, 17, true}}) {
    SCOPED_TRACE(testing::Message() << info(s.dtype).name << (s.transposed ? ", transposed" : ""));
    test::Random random(7);
    const auto row_size = static_cast<std::size_t>(row_bytes(s.dtype, s.k));
    std::vector<std::byte> weights(row_size * static_cast<std::size_t>(s.heads * s.n));
    if (s.dtype == DType::f16 || s.dtype == DType::bf16) {
      const std::vector<float> values = normal_floats(static_cast<std::size_t>(s.heads * s.n * s.k), random_);
      for (int r = 0; r < s.heads * s.n; ++r)
        encode_row(s.dtype, values.data() + r * s.k, s.k, weights.data() + static_cast<std::size_t>(r) * row_size);
    } else {
      weights = test::random_weights(s.dtype, s.heads * s.n, s.k, random);
    }
    const std::vector<float> x = normal_floats(static_cast<std::size_t>(s.rows * s.heads * s.x_head), random_);
    const int taken = s.transposed ? s.n : s.k, made = s.transposed ? s.k : s.n;
    const int left = s.x_head - taken, out_head = made + left;
    std::vector<double> want(static_cast<std::size_t>(s.rows * s.heads * out_head));
    std::vector<float> decoded(static_cast<std::size_t>(s.k));
    for (int h = 0; h < s.heads; ++h)
      for (int n = 0; n < s.n; ++n) {
        decode_row(s.dtype, weights.data() + static_cast<std::size_t>(h * s.n + n) * row_size, s.k, decoded.data());
        for (int r = 0; r < s.rows; ++r) {
          const float* from = x.data() + (r * s.heads + h) * s.x_head;
          double* to = want.data() + (r * s.heads + h) * out_head;
          for (int e = 0; e < s.k; ++e) {
            const double w = decoded[static_cast<std::size_t>(e)];
            if (s.transposed)
              to[e] += w * from[n];
            else
              to[n] += w * from[e];
          }
        }
      }
    for (int i = 0; i < s.rows * s.heads; ++i)
      std::copy_n(x.begin() + i * s.x_head + taken, left, want.begin() + i * out_head + made);
    const Array<float> x_at(x);
    const Array<std::byte> weights_at(weights);
    const Entry entry(weights_at.get());
    const auto run = [&](int first, int count) {
      const Array<float> out(static_cast<std::size_t>(count * s.heads * out_head));
      HeadProductCall call{{entry.get(), s.dtype, s.heads * s.n},
                           x_at.get() + static_cast<std::ptrdiff_t>(first) * s.heads * s.x_head,
                           out.get(),
                           count,
                           s.heads,
                           s.n,
                           s.k,
                           s.x_head};
      call.transposed = s.transposed;
      call.prompt = true;
      ok(head_product(call, nullptr));
      return out.host();
    };
    const std::vector<float> all = run(0, s.rows);
    double off = 0, size = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      off += (all[i] - want[i]) * (all[i] - want[i]);
      size += want[i] * want[i];
    }
    const bool floats = s.dtype == DType::f16 || s.dtype == DType::bf16;
    EXPECT_LT(std::sqrt(off / size), floats ? 3e-5 : 4e-3);
    const int last = s.rows - 1;
    EXPECT_TRUE(same_bits(run(last, 1), {all.end() - s.heads * out_head, all.end()})) << "alone";
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
