// Products with weights that every row meets, and of the heads of latents.
#include <fmt/format.h>

#include "cuda_kernels/shapes.h"
#include "kernels/cuda/launchers.h"
#include "tensor/codec.h"

namespace millrace::bench {
namespace {

using namespace kernels::cuda;

struct Shape {
  std::string_view model, name;
  std::vector<int> weights;  // rows of each matrix
  int cols;
  Effect effect;
  DType dtype;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const Dense& m : {kLlama8b, kLlama70b, kGemma}) {
    const int q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
    all.push_back({m.name, "qkv", {q, kv, kv}, m.dim, Effect::store, DType::q4_k});
    all.push_back({m.name, "o", {m.dim}, q, Effect::add, DType::q4_k});
    all.push_back({m.name, "gate_up", {m.hidden, m.hidden}, m.dim, Effect::gated, DType::q4_k});
    all.push_back({m.name, "down", {m.dim}, m.hidden, Effect::add, DType::q4_k});
    all.push_back({m.name, "head", {m.vocab}, m.dim, Effect::store, DType::q6_k});
  }
  all.push_back({"30B-A3B", "qkv", {4096, 512, 512}, 2048, Effect::store, DType::q4_k});
  all.push_back({"30B-A3B", "router", {128}, 2048, Effect::store, DType::f32});
  all.push_back({"gpt-oss", "qkv", {4096, 512, 512}, 2880, Effect::store, DType::q8_0});
  all.push_back({"35B-A3B", "qkv of a delta net", {8192, 4096}, 2048, Effect::store, DType::q4_k});
  all.push_back({"DeepSeek", "q_a, kv_a", {1536, 576}, 7168, Effect::store, DType::q4_k});
  all.push_back({"DeepSeek", "q_b", {24576}, 1536, Effect::store, DType::q4_k});
  all.push_back({"DeepSeek", "o", {7168}, 16384, Effect::add, DType::q4_k});
  return all;
}

/// The call, and what it moves and multiplies. prompt: for matmul_prompt.
MatmulCall make_call(Case& c, const Shape& shape, int rows, bool prompt) {
  const bool floats = info(shape.dtype).block_elements == 1;
  MatmulCall call;
  call.effect = shape.effect;
  call.cols = shape.cols;
  call.x_rows = rows;
  const bool by_int8 = prompt_products() == PromptProducts::int8;
  if (prompt && by_int8) {
    const auto bytes = static_cast<std::int64_t>(prompt_int8_bytes(rows, shape.cols));
    call.x_rounded = prompt_int8_at(c.reads<std::byte>(bytes), rows, shape.cols);
  } else if (prompt) {
    call.x_bf16 = c.reads<Bf16>(std::int64_t{rows} * shape.cols);
  } else if (floats) {
    call.x = c.reads<float>(std::int64_t{rows} * shape.cols);
    call.x_stride = shape.cols;
  } else {
    call.x_q8 = c.q8(rows, shape.cols);
  }
  const bool gated = shape.effect == Effect::gated;
  for (const int matrix_rows : shape.weights) {
    Product& product = call.products[call.count++];
    product.weight = c.matrix(shape.dtype, matrix_rows, shape.cols);
    product.y_stride = matrix_rows;
    const std::int64_t count = std::int64_t{rows} * matrix_rows;
    if (!gated) product.y = shape.effect == Effect::add ? c.changes<float>(count) : c.writes<float>(count);
    const double macs = static_cast<double>(count) * shape.cols;
    if (prompt && !by_int8)
      c.multiplies_bf16(macs);
    else if (!floats)
      c.multiplies_int8(macs);
  }
  if (gated && prompt)
    call.y_bf16 = c.writes<Bf16>(std::int64_t{rows} * shape.weights[0]);
  else if (gated)
    call.y_q8 = c.q8_room(rows, shape.weights[0]);
  return call;
}

void time_head_products(Suite& suite, const Latent& m, int rows) {
  const bool prompt = rows == kPromptRows;
  const auto time = [&](std::string_view what, int n, int k, int x_head) {
    suite.time("head_product", fmt::format("{}, {}, Q8_0", m.name, what), rows, [=](Case& c) {
      HeadProductCall call;
      call.weight = c.matrix(DType::q8_0, m.heads * n, k);
      call.x = c.reads<float>(std::int64_t{rows} * m.heads * x_head);
      call.out = c.writes<float>(std::int64_t{rows} * m.heads * (n + x_head - k));
      call.rows = rows;
      call.heads = m.heads;
      call.n = n;
      call.k = k;
      call.x_head = x_head;
      call.prompt = prompt;
      if (prompt) c.multiplies_bf16(static_cast<double>(rows) * m.heads * n * k);
      return [=](cudaStream_t stream) { return head_product(call, stream); };
    });
  };
  time("queries to latents", m.rank, m.nope, m.nope + m.rotary);
  time("latents to values", m.v_head, m.rank, m.rank);
}

}  // namespace

void time_products(Suite& suite) {
  for (const Shape& shape : shapes()) {
    const std::string name = fmt::format("{}, {}, {}", shape.model, shape.name, info(shape.dtype).name);
    for (const int rows : {1, 4})
      suite.time("matvec", name, rows, [=](Case& c) {
        const MatmulCall call = make_call(c, shape, rows, false);
        return [=](cudaStream_t stream) { return matvec(call, stream); };
      });
    for (const int rows : {8, 64, kPromptRows})
      suite.time("matmul", name, rows, [=](Case& c) {
        const MatmulCall call = make_call(c, shape, rows, false);
        return [=](cudaStream_t stream) { return matmul(call, stream); };
      });
    if (info(shape.dtype).block_elements == 1 || shape.name == "head") continue;
    if (!suite.lists() && !has_prompt_product(prompt_products(), shape.dtype)) continue;
    suite.time("matmul_prompt", name, kPromptRows, [=](Case& c) {
      const MatmulCall call = make_call(c, shape, kPromptRows, true);
      return [=](cudaStream_t stream) { return matmul_prompt(call, stream); };
    });
  }
  for (const Latent& latent : kLatents)
    for (const int rows : kAllRows) time_head_products(suite, latent, rows);
}

}  // namespace millrace::bench
