// A small random decoder in a real file: its units, its forward pass in named ops, and the same pass by kernels/ref.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "exec/ops.h"
#include "kernels/ref/ref.h"
#include "residency/plan.h"
#include "residency/unit.h"
#include "storage/storage.h"
#include "tensor/codec.h"

namespace millrace::exec::test {

using residency::UnitKind;

struct SmallShape {
  DType dtype = DType::f16;
  std::int64_t layers = 2, dim = 64, heads = 4, kv_heads = 2, head_dim = 16, ff = 96, vocab = 50;
  std::int64_t experts = 0, top_k = 2, expert_ff = 64;
  bool bias = false, head_norms = false, neox = false;
  std::int64_t window = 0;
  DType norm_dtype = DType::f32;
  std::uint64_t tile_bytes = 1u << 20;
  std::int64_t q_dim() const { return heads * head_dim; }
  std::int64_t kv_dim() const { return kv_heads * head_dim; }
};

class SmallModel {
 public:
  explicit SmallModel(const SmallShape& shape, std::uint32_t seed = 1) : shape_(shape), random_(seed) {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() / fmt::format("millrace-exec-{}-{}", getpid(), count++);
    bytes_.resize(4096);
    embedding_ = unit(UnitKind::embedding, -1, -1, {matrix("token_embd", shape.vocab, shape.dim)});
    for (int l = 0; l < shape.layers; ++l) add_layer(l);
    const std::int32_t head =
        unit(UnitKind::head, -1, -1, {vector("output_norm", shape.dim), matrix("output", shape.vocab, shape.dim)});
    output_norm_ = {head, 0};
    head_ = {head, 1};
    bytes_.resize(bytes_.size() + 4096);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
    units_.cut(shape.tile_bytes);
    for (std::int64_t i = 0; i < shape.head_dim / 2; ++i) {
      inv_freq_.push_back(static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / shape.head_dim)));
    }
  }
  ~SmallModel() { std::filesystem::remove(path_); }
  SmallModel(const SmallModel&) = delete;
  SmallModel& operator=(const SmallModel&) = delete;

  const SmallShape& shape() const { return shape_; }
  const residency::UnitTable& units() const { return units_; }
  std::string path() const { return path_.string(); }

  static PassLimits pass_limits(std::int64_t rows, std::int64_t positions) {
    PassLimits limits;
    limits.max_rows = limits.max_logit_rows = rows;
    limits.max_positions = positions;
    return limits;
  }

  kv::Layout layout() const {
    return kv::Layout(std::vector<kv::LayerKv>(
        static_cast<std::size_t>(shape_.layers),
        {kv::Keeps::attention, shape_.kv_heads, shape_.head_dim, shape_.head_dim, shape_.window}));
  }

  Program program() const {
    Ops ops;
    record(ops);
    const Expected<Program> program = ops.finish();
    EXPECT_TRUE(program.ok()) << program.status().message();
    return *program;
  }

  void record(Ops& ops) const {
    const SmallShape& s = shape_;
    const Act x = ops.buffer("x", s.dim, Rows::whole), h = ops.buffer("h", s.dim), q = ops.buffer("q", s.q_dim());
    const Act k = ops.buffer("k", s.kv_dim()), v = ops.buffer("v", s.kv_dim()), a = ops.buffer("a", s.q_dim());
    const Act ff = ops.buffer("ff", s.experts > 0 ? s.dim : s.ff), last = ops.buffer("last", s.dim, Rows::logits);
    const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
    ops.keep(layout());
    const int rope = ops.add_rope({inv_freq_, s.head_dim, s.neox, 1.0f});
    ops.embed(x, {embedding_, 0});
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& w = layers_[l];
      const auto layer = static_cast<std::int64_t>(l);
      const Product qkv[] = {{q, w.q, w.q_bias}, {k, w.k, {}}, {v, w.v, {}}};
      ops.begin_block();
      ops.rms_norm(h, x, w.attn_norm, kEps);
      ops.matmul(qkv, h);
      if (s.head_norms) ops.rms_norm_heads(q, w.q_norm, s.head_dim, kEps);
      ops.rope(q, s.heads, s.head_dim, rope);
      ops.rope(k, s.kv_heads, s.head_dim, rope);
      ops.store_kv(layer, k, v);
      ops.attention(a, q, layer, {s.heads, s.kv_heads, s.head_dim, scale, s.window, {}});
      ops.matmul(h, w.o, a);
      ops.add(x, h);
      ops.begin_block();
      ops.rms_norm(h, x, w.ffn_norm, kEps);
      if (s.experts > 0) {
        ops.moe(ff, h, h, w.router, layer, w.experts);
        ops.add(x, ff);
      } else {
        ops.matmul_gated(ff, w.gate, w.up, h, kernels::Activation::silu);
        ops.matmul(h, w.down, ff);
        ops.add(x, h);
      }
    }
    ops.begin_block();
    ops.begin_hidden();
    ops.rms_norm(h, x, output_norm_, kEps);
    ops.hidden(h);
    ops.end_hidden();
    ops.select_logit_rows(last, x);
    ops.rms_norm(last, last, output_norm_, kEps);
    ops.logits(head_, {}, last);
  }

  /// Logits [tokens, vocab] of one sequence from position 0; K and V stay float32.
  std::vector<float> reference(const std::vector<std::int32_t>& tokens) const {
    const SmallShape& s = shape_;
    const auto rows = static_cast<std::int64_t>(tokens.size());
    std::vector<float> x;
    for (const std::int32_t token : tokens) {
      std::vector<float> row(static_cast<std::size_t>(s.dim));
      const residency::Part& table = units_.part({embedding_, 0});
      decode_row(table.dtype, bytes_.data() + table.offset + token * row_bytes(table.dtype, s.dim), s.dim, row.data());
      x.insert(x.end(), row.begin(), row.end());
    }
    for (const Layer& w : layers_) {
      attend(w, rows, x);
      const auto h = norm(x, w.ffn_norm);
      const auto y = s.experts > 0 ? mixture(w, h) : feed_forward(w.gate, w.up, w.down, h);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    }
    return multiply(head_, norm(x, output_norm_));
  }

 private:
  static constexpr float kEps = 1e-5f;
  struct Layer {
    WeightRef attn_norm, q, q_bias, k, v, q_norm, o, ffn_norm, gate, up, down, router;
    Experts experts;
  };

  // --- Making it ---

  residency::Part matrix(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype) {
    bytes_.resize(round_up(bytes_.size(), 32));
    residency::Part part{name, dtype, rows, cols, 0, bytes_.size()};
    bytes_.resize(bytes_.size() + part.bytes());
    std::normal_distribution<float> normal(0, 1.5f / std::sqrt(static_cast<float>(cols)));
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (float& value : row) value = rows == 1 ? 1 + normal(random_) : normal(random_);
      encode_row(dtype, row.data(), cols, bytes_.data() + part.offset + r * row_bytes(dtype, cols));
    }
    return part;
  }
  residency::Part matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    return matrix(name, rows, cols, shape_.dtype);
  }
  residency::Part vector(const std::string& name, std::int64_t cols) {
    return matrix(name, 1, cols, shape_.norm_dtype);
  }
  std::int32_t unit(UnitKind kind, int layer, int expert, std::vector<residency::Part> parts) {
    residency::Unit unit;
    unit.kind = kind;
    unit.layer = layer;
    unit.expert = expert;
    unit.by_rows = kind == UnitKind::embedding;
    unit.parts = std::move(parts);
    return units_.add(std::move(unit));
  }

  void add_layer(int l) {
    const SmallShape& s = shape_;
    std::vector<residency::Part> parts;
    std::vector<WeightRef*> refs;
    Layer layer;
    const auto add = [&](WeightRef& ref, residency::Part part) {
      refs.push_back(&ref);
      ref.part = static_cast<std::int32_t>(parts.size());
      parts.push_back(std::move(part));
    };
    add(layer.attn_norm, vector("attn_norm", s.dim));
    add(layer.q, matrix("q", s.q_dim(), s.dim));
    if (s.bias) add(layer.q_bias, matrix("q_bias", 1, s.q_dim(), DType::f32));
    add(layer.k, matrix("k", s.kv_dim(), s.dim));
    add(layer.v, matrix("v", s.kv_dim(), s.dim));
    if (s.head_norms) add(layer.q_norm, vector("q_norm", s.head_dim));
    add(layer.o, matrix("o", s.dim, s.q_dim()));
    add(layer.ffn_norm, vector("ffn_norm", s.dim));
    if (s.experts > 0) {
      add(layer.router, matrix("router", s.experts, s.dim, DType::f32));
    } else {
      add(layer.gate, matrix("gate", s.ff, s.dim));
      add(layer.up, matrix("up", s.ff, s.dim));
      add(layer.down, matrix("down", s.dim, s.ff));
    }
    const std::int32_t trunk = unit(UnitKind::trunk, l, -1, std::move(parts));
    for (WeightRef* ref : refs) ref->unit = trunk;
    for (int e = 0; e < s.experts; ++e) {
      const std::int32_t expert = unit(UnitKind::expert, l, e,
                                       {matrix("gate_e", s.expert_ff, s.dim), matrix("up_e", s.expert_ff, s.dim),
                                        matrix("down_e", s.dim, s.expert_ff)});
      if (e == 0) layer.experts.first_unit = expert;
    }
    layer.experts.count = static_cast<std::int32_t>(s.experts);
    layer.experts.top_k = static_cast<std::int32_t>(s.top_k);
    layers_.push_back(layer);
  }

  // --- The same by kernels/ref ---

  std::vector<float> multiply(WeightRef ref, const std::vector<float>& x) const {
    const residency::Part& part = units_.part(ref);
    const auto rows = static_cast<std::int64_t>(x.size()) / part.cols;
    std::vector<float> y(static_cast<std::size_t>(rows * part.rows));
    kernels::ref::matmul(part.dtype, bytes_.data() + part.offset, part.rows, part.cols, x.data(), rows, y.data());
    return y;
  }
  std::vector<float> norm(std::vector<float> x, WeightRef ref) const {
    const residency::Part& part = units_.part(ref);
    std::vector<float> weight(static_cast<std::size_t>(part.cols));
    decode_row(part.dtype, bytes_.data() + part.offset, part.cols, weight.data());
    const auto rows = static_cast<std::int64_t>(x.size()) / part.cols;
    kernels::ref::rms_norm(x.data(), weight.data(), rows, part.cols, kEps, x.data());
    return x;
  }
  void rotate(std::vector<float>& x, std::int64_t heads, std::int64_t rows) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<float> table;
      for (const float f : inv_freq_) {
        table.push_back(static_cast<float>(std::cos(static_cast<double>(r) * f)));
        table.push_back(static_cast<float>(std::sin(static_cast<double>(r) * f)));
      }
      for (std::int64_t h = 0; h < heads; ++h) {
        kernels::ref::rope(x.data() + (r * heads + h) * shape_.head_dim, table.data(), shape_.head_dim, shape_.neox);
      }
    }
  }

  void attend(const Layer& w, std::int64_t rows, std::vector<float>& x) const {
    const SmallShape& s = shape_;
    const auto h = norm(x, w.attn_norm);
    auto q = multiply(w.q, h), k = multiply(w.k, h), v = multiply(w.v, h);
    if (s.bias) {
      const auto* bias = reinterpret_cast<const float*>(bytes_.data() + units_.part(w.q_bias).offset);
      for (std::size_t i = 0; i < q.size(); ++i) q[i] += bias[i % static_cast<std::size_t>(s.q_dim())];
    }
    if (s.head_norms) q = norm(q, w.q_norm);
    rotate(q, s.heads, rows);
    rotate(k, s.kv_heads, rows);
    std::vector<float> a(q.size());
    const std::int64_t group = s.heads / s.kv_heads;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t first = s.window > 0 ? std::max<std::int64_t>(0, r - s.window + 1) : 0;
      for (std::int64_t g = 0; g < s.kv_heads; ++g) {
        std::vector<float> keys, values;
        for (std::int64_t j = first; j <= r; ++j) {
          const std::int64_t at = (j * s.kv_heads + g) * s.head_dim;
          keys.insert(keys.end(), k.begin() + at, k.begin() + at + s.head_dim);
          values.insert(values.end(), v.begin() + at, v.begin() + at + s.head_dim);
        }
        const std::int64_t at = (r * s.heads + g * group) * s.head_dim;
        kernels::ref::attention(q.data() + at, keys.data(), values.data(), group, r + 1 - first, s.head_dim,
                                1 / std::sqrt(static_cast<float>(s.head_dim)), nullptr, a.data() + at);
      }
    }
    const auto o = multiply(w.o, a);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += o[i];
  }

  std::vector<float> feed_forward(WeightRef gate, WeightRef up, WeightRef down, const std::vector<float>& h) const {
    auto g = multiply(gate, h);
    const auto u = multiply(up, h);
    kernels::ref::gate_mul(kernels::Activation::silu, 0, g.data(), u.data(), static_cast<std::int64_t>(g.size()));
    return multiply(down, g);
  }

  std::vector<float> mixture(const Layer& w, const std::vector<float>& h) const {
    const SmallShape& s = shape_;
    auto scores = multiply(w.router, h);
    std::vector<float> y(h.size());
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(h.size()) / s.dim; ++r) {
      float* row = scores.data() + r * s.experts;
      kernels::ref::softmax(row, s.experts);
      std::vector<std::int32_t> best(static_cast<std::size_t>(s.top_k));
      kernels::top_k(row, s.experts, s.top_k, best.data());
      float total = 0;
      for (const std::int32_t e : best) total += row[e];
      const std::vector<float> one(h.begin() + r * s.dim, h.begin() + (r + 1) * s.dim);
      for (const std::int32_t e : best) {
        const std::int32_t unit = w.experts.first_unit + e;
        const auto out = feed_forward({unit, 0}, {unit, 1}, {unit, 2}, one);
        for (std::int64_t i = 0; i < s.dim; ++i) y[r * s.dim + i] += row[e] / total * out[i];
      }
    }
    return y;
  }

  const SmallShape shape_;
  std::mt19937 random_;
  std::filesystem::path path_;
  std::vector<std::byte> bytes_;  // the file
  residency::UnitTable units_;
  std::vector<Layer> layers_;
  std::int32_t embedding_ = 0;
  WeightRef output_norm_, head_;
  std::vector<float> inv_freq_;
};

}  // namespace millrace::exec::test
