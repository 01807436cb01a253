// Ops of vision towers: rows that all see each other.
#include <fmt/format.h>

#include "cuda_kernels/suite.h"
#include "kernels/cuda/launchers.h"

namespace millrace::bench {
namespace {

using namespace kernels::cuda;

constexpr int kRows[] = {1024, 8160};  // patches of a picture of ordinary size, and of a large one

/// SigLIP's so400m, which many towers are, in 16 heads of 72.
constexpr int kDim = 1152, kHidden = 4304, kHeads = 16, kHeadDim = 72, kMerge = 4;
constexpr float kEps = 1e-6F;

void time_norms(Suite& suite, int rows) {
  const std::int64_t n = std::int64_t{rows} * kDim;
  suite.time("layer_norm", "so400m", rows, [=](Case& c) {
    const float* const x = c.reads<float>(n);
    float* const out = c.writes<float>(n);
    const auto *const weight = c.vector(kDim), *const bias = c.vector(kDim);
    return [=](cudaStream_t stream) { return layer_norm(x, weight, bias, rows, kDim, kEps, out, stream); };
  });
  suite.time("norm_heads", "16 heads of 72", rows, [=](Case& c) {
    float* const x = c.changes<float>(n);
    const auto* const weight = c.vector(kHeadDim);
    return [=](cudaStream_t stream) { return norm_heads(x, weight, rows * kHeads, kHeadDim, kEps, stream); };
  });
  suite.time("turn_heads", "16 heads of 72", rows, [=](Case& c) {
    TurnCall call;
    call.x = c.changes<float>(n);
    call.cos_sin = c.reads<float>(std::int64_t{rows} * kHeadDim);
    call.rows = rows;
    call.heads = kHeads;
    call.head_dim = call.rotary = kHeadDim;
    call.neox = true;
    return [=](cudaStream_t stream) { return turn_heads(call, stream); };
  });
}

void time_forms(Suite& suite, int rows) {
  const std::int64_t n = std::int64_t{rows} * kDim;
  suite.time("place_columns", "heads of 72 as 80", rows, [=](Case& c) {
    const std::int64_t heads = std::int64_t{rows} * kHeads;
    PlaceCall call{c.reads<float>(n), heads, kHeadDim};
    call.out = c.writes<float>(heads * 80);
    call.out_cols = 80;
    call.clear_behind = true;
    return [=](cudaStream_t stream) { return place_columns(call, stream); };
  });
  suite.time("clamp", "so400m", rows, [=](Case& c) {
    float* const x = c.changes<float>(n);
    return [=](cudaStream_t stream) { return clamp(x, -1, 1, n, stream); };
  });
  suite.time("standardize", "so400m", rows, [=](Case& c) {
    float* const x = c.changes<float>(n);
    const auto *const bias = c.vector(kDim), *const scale = c.vector(kDim);
    return [=](cudaStream_t stream) { return standardize(x, bias, scale, rows, kDim, stream); };
  });
  for (const bool by_channel : {false, true})
    suite.time("merge_rows", by_channel ? "4 rows, by channel" : "4 rows", rows, [=](Case& c) {
      const float* const x = c.reads<float>(n);
      float* const out = c.writes<float>(n);
      return [=](cudaStream_t stream) { return merge_rows(x, rows, kDim, kMerge, by_channel, out, stream); };
    });
  suite.time("mean_rows", "4 rows", rows, [=](Case& c) {
    const float* const x = c.reads<float>(n);
    float* const out = c.writes<float>(n / kMerge);
    return [=](cudaStream_t stream) { return mean_rows(x, rows, kDim, kMerge, out, stream); };
  });
  for (const int cols : {kDim, kHidden})
    suite.time("to_half_rows", fmt::format("{} columns", cols), rows, [=](Case& c) {
      const float* const x = c.reads<float>(std::int64_t{rows} * cols);
      auto* const memory = c.writes<std::byte>(static_cast<std::int64_t>(half_rows_bytes(rows, cols)));
      const HalfRows out = half_rows_at(memory, rows, cols);
      return [=](cudaStream_t stream) { return to_half_rows(x, rows, cols, out, stream); };
    });
}

struct Shape {
  std::string_view name;
  int out, in;
  Effect effect;
};
constexpr Shape kShapes[] = {{"attention", kDim, kDim, Effect::store},
                             {"up", kHidden, kDim, Effect::store},
                             {"down", kDim, kHidden, Effect::add},
                             {"gate and up", kHidden, kDim, Effect::gated}};

void time_products(Suite& suite, int rows, DType dtype) {
  for (const Shape& shape : kShapes)
    suite.time("matmul_half", fmt::format("so400m, {}, {}", shape.name, info(dtype).name), rows, [=](Case& c) {
      MatmulCall call;
      call.effect = shape.effect;
      call.cols = shape.in;
      call.x_rows = rows;
      call.count = shape.effect == Effect::gated ? 2 : 1;
      const std::int64_t n = std::int64_t{rows} * shape.out;
      for (int p = 0; p < call.count; ++p) {
        call.products[p].weight = c.matrix(dtype, shape.out, shape.in);
        call.products[p].y_stride = shape.out;
        c.multiplies_bf16(static_cast<double>(n) * shape.in);
      }
      call.products[0].y = shape.effect == Effect::add ? c.changes<float>(n) : c.writes<float>(n);
      auto* const memory = c.reads<std::byte>(static_cast<std::int64_t>(half_rows_bytes(rows, shape.in)));
      const HalfRows x = half_rows_at(memory, rows, shape.in);
      return [=](cudaStream_t stream) { return matmul_half(call, x, stream); };
    });
}

}  // namespace

void time_towers(Suite& suite) {
  for (const int rows : kRows) {
    time_norms(suite, rows);
    time_forms(suite, rows);
    for (const DType dtype : {DType::f16, DType::bf16}) time_products(suite, rows, dtype);
  }
}

}  // namespace millrace::bench
