// Ops on rows between the products, and sampling.
#include <fmt/format.h>

#include "cuda_kernels/shapes.h"
#include "kernels/cuda/launchers.h"
#include "tensor/codec.h"

namespace millrace::bench {
namespace {

using namespace kernels::cuda;
using kernels::Activation;

constexpr float kEps = 1e-6F;

void time_embedding(Suite& suite, int rows) {
  for (const Dense& m : {kLlama8b, kLlama70b, kGemma})
    suite.time("embed", fmt::format("{}, Q4_K", m.name), rows, [=](Case& c) {
      const PassRows pass = pass_rows(c, rows, 0, true);
      const Matrix table{c.matrices(DType::q4_k, m.vocab, m.dim, 1), DType::q4_k, m.vocab};
      c.moves(static_cast<double>(row_bytes(DType::q4_k, m.dim)) * rows);
      float* const out = c.writes<float>(std::int64_t{rows} * m.dim);
      return [=](cudaStream_t stream) { return embed(table, pass.view.token, rows, m.dim, out, stream); };
    });
}

void time_norms(Suite& suite, int rows) {
  for (const Dense& m : {kLlama8b, kLlama70b, kQwen3Moe, kGptOss, kGemma}) {
    const std::int64_t n = std::int64_t{rows} * m.dim;
    suite.time("rms_norm", fmt::format("{}, to int8", m.name), rows, [=](Case& c) {
      const float* const x = c.reads<float>(n);
      const auto* const weight = c.vector(m.dim);
      const Q8 out = c.q8_room(rows, m.dim);
      return [=](cudaStream_t stream) { return rms_norm(x, nullptr, weight, rows, m.dim, kEps, nullptr, out, stream); };
    });
    suite.time("rms_norm", fmt::format("{}, to bfloat16", m.name), rows, [=](Case& c) {
      NormCall call;
      call.x = c.reads<float>(n);
      call.weight = c.vector(m.dim);
      call.rows = rows;
      call.cols = m.dim;
      call.eps = kEps;
      call.out_bf16 = c.writes<Bf16>(n);
      return [=](cudaStream_t stream) { return rms_norm(call, stream); };
    });
  }
  suite.time("rms_norm_groups", "Nemotron 30B-A3B, 8 groups of 512", rows, [=](Case& c) {
    float* const x = c.changes<float>(std::int64_t{rows} * 4096);
    const auto* const weight = c.vector(4096);
    return [=](cudaStream_t stream) { return rms_norm_groups(x, weight, rows, 8, 512, kEps, stream); };
  });
  suite.time("gated_norm", "35B-A3B, 32 heads of 128, to int8", rows, [=](Case& c) {
    GatedNormCall call;
    call.x = c.reads<float>(std::int64_t{rows} * 4096);
    call.gate = c.reads<float>(std::int64_t{rows} * 4096);
    call.weight = c.vector(128);
    call.rows = rows;
    call.heads = 32;
    call.head_dim = 128;
    call.eps = kEps;
    call.out_q8 = c.q8_room(rows, 4096);
    return [=](cudaStream_t stream) { return gated_norm(call, stream); };
  });
  suite.time("l2_norm_heads", "35B-A3B, 32 of 64 heads of 128", rows, [=](Case& c) {
    float* const x = c.room<float>(std::int64_t{rows} * 8192);
    c.moves(2.0 * sizeof(float) * rows * 4096);
    return [=](cudaStream_t stream) { return l2_norm_heads(x, 8192, rows, 32, 128, kEps, stream); };
  });
}

/// Activations in other forms, and rows elsewhere.
void time_forms(Suite& suite, int rows) {
  for (const int cols : {4096, 14336, 28672}) {
    const std::int64_t n = std::int64_t{rows} * cols;
    suite.time("quantize_q8", fmt::format("{} columns", cols), rows, [=](Case& c) {
      const float* const x = c.reads<float>(n);
      const Q8 out = c.q8_room(rows, cols);
      return [=](cudaStream_t stream) { return quantize_q8(x, cols, rows, cols, out, stream); };
    });
    suite.time("to_bf16", fmt::format("{} columns", cols), rows, [=](Case& c) {
      const float* const x = c.reads<float>(n);
      Bf16* const out = c.writes<Bf16>(n);
      return [=](cudaStream_t stream) { return to_bf16(x, n, out, stream); };
    });
    suite.time("round_prompt", fmt::format("{} columns", cols), rows, [=](Case& c) {
      const Bf16* const x = c.reads<Bf16>(n);
      const auto bytes = static_cast<std::int64_t>(prompt_int8_bytes(rows, cols));
      const PromptInt8 out = prompt_int8_at(c.writes<std::byte>(bytes), rows, cols);
      return [=](cudaStream_t stream) { return round_prompt(x, rows, cols, out, stream); };
    });
  }
  suite.time("gather_rows", "8B", rows, [=](Case& c) {
    std::vector<std::int32_t> order;
    for (int r = 0; r < rows; ++r) order.push_back(rows - 1 - r);
    const float* const x = c.reads<float>(std::int64_t{rows} * 4096);
    const auto* const index = c.holds(order);
    float* const out = c.writes<float>(std::int64_t{rows} * 4096);
    return [=](cudaStream_t stream) { return gather_rows(x, index, rows, 4096, out, stream); };
  });
  suite.time("pick_heads", "35B-A3B, queries and gates of 16 heads of 256", rows, [=](Case& c) {
    PickCall call;
    call.x = c.reads<float>(std::int64_t{rows} * 8192);
    call.cols = 8192;
    call.rows = rows;
    call.heads = 16;
    call.head_dim = 256;
    call.count = 2;
    call.first[1] = 256;
    for (float*& out : call.out) out = c.writes<float>(std::int64_t{rows} * 4096);
    return [=](cudaStream_t stream) { return pick_heads(call, stream); };
  });
}

/// One array changed by its like, or by numbers.
void time_elements(Suite& suite, int rows) {
  const auto pairs = [&](std::string_view launcher, std::string_view shape, int cols, auto launch) {
    const std::int64_t n = std::int64_t{rows} * cols;
    suite.time(launcher, shape, rows, [=](Case& c) {
      float* const x = c.changes<float>(n);
      const float* const y = c.reads<float>(n);
      return [=](cudaStream_t stream) { return launch(x, y, n, stream); };
    });
  };
  pairs("add", "8B", 4096, [](auto... all) { return add(all...); });
  pairs("add_scaled", "8B", 4096,
        [](float* x, const float* y, std::int64_t n, cudaStream_t s) { return add_scaled(x, y, 0.5F, n, s); });
  pairs("multiply", "35B-A3B", 4096, [](auto... all) { return multiply(all...); });
  pairs("gate_mul", "8B, silu", 14336, [](float* x, const float* y, std::int64_t n, cudaStream_t s) {
    return gate_mul(Activation::silu, 0, x, y, n, s);
  });
  pairs("gate_mul", "Gemma 27B, gelu", 21504, [](float* x, const float* y, std::int64_t n, cudaStream_t s) {
    return gate_mul(Activation::gelu, 0, x, y, n, s);
  });
  pairs("gate_rows", "8B, silu", 14336, [rows](float* x, const float* y, std::int64_t, cudaStream_t s) {
    return gate_rows(Activation::silu, 0, x, y, 14336, rows, 14336, s);
  });
  pairs("sigmoid_gate", "35B-A3B", 4096,
        [](float* x, const float* y, std::int64_t n, cudaStream_t s) { return sigmoid_gate(x, y, n, s); });

  const auto alone = [&](std::string_view launcher, std::string_view shape, int cols, auto launch) {
    const std::int64_t n = std::int64_t{rows} * cols;
    suite.time(launcher, shape, rows, [=](Case& c) {
      float* const x = c.changes<float>(n);
      return [=](cudaStream_t stream) { return launch(x, n, stream); };
    });
  };
  alone("scale", "Gemma 27B", 5376, [](float* x, std::int64_t n, cudaStream_t s) { return scale(x, 1.0F, n, s); });
  alone("softcap", "logits of 262144", 262144,
        [](float* x, std::int64_t n, cudaStream_t s) { return softcap(x, 30, n, s); });
  alone("activate", "Nemotron 30B-A3B, relu squared", 1856 * 6,
        [](float* x, std::int64_t n, cudaStream_t s) { return activate(Activation::relu_squared, x, n, s); });

  suite.time("sigmoid_gate", "35B-A3B, to int8", rows, [=](Case& c) {
    SigmoidGateCall call;
    call.blocks = std::int64_t{rows} * 4096 / 32;
    call.x = c.reads<float>(call.blocks * 32);
    call.gate = c.reads<float>(call.blocks * 32);
    call.out_q8 = c.q8_room(rows, 4096);
    return [=](cudaStream_t stream) { return sigmoid_gate(call, stream); };
  });
  suite.time("sigmoid_gate_rows", "35B-A3B", rows, [=](Case& c) {
    float* const x = c.changes<float>(std::int64_t{rows} * 2048);
    const float* const gate = c.reads<float>(rows);
    return [=](cudaStream_t stream) { return sigmoid_gate_rows(x, gate, rows, 2048, stream); };
  });
  suite.time("scale_by", "Gemma 4, with a bias", rows, [=](Case& c) {
    float* const x = c.changes<float>(std::int64_t{rows} * 5376);
    const auto* const scalar = c.vector(1);
    const auto* const bias = c.vector(5376);
    return [=](cudaStream_t stream) { return scale_by(x, scalar, bias, rows, 5376, stream); };
  });
  const auto adapter = [&](std::string_view shape, std::int32_t cols, std::vector<std::int32_t> outs, bool apart) {
    suite.time("add_low_rank", shape, rows, [=](Case& c) {
      constexpr std::int32_t kRank = 16;
      LowRankCall call;
      for (const std::int32_t out : outs)
        call.parts[call.count++] = {c.reads<std::byte>(std::int64_t{kRank} * cols * 2),
                                    DType::f16,
                                    c.reads<float>(std::int64_t{kRank} * out),
                                    out,
                                    kRank,
                                    out,
                                    1.0F,
                                    c.changes<float>(std::int64_t{rows} * out),
                                    out};
      call.apart = apart;
      call.x = c.reads<float>(std::int64_t{rows} * cols);
      call.x_rows = rows;
      call.cols = cols;
      call.scales = c.reads<float>(rows);
      call.low = c.room<float>(std::int64_t{rows} * kRank * call.count);
      return [=](cudaStream_t stream) { return add_low_rank(call, stream); };
    });
  };
  adapter("8B, queries, keys and values, rank 16", 4096, {4096, 1024, 1024}, false);
  adapter("8B, down, rank 16", 14336, {4096}, false);
  adapter("8B, queries, keys and values, rank 16, apart", 4096, {4096, 1024, 1024}, true);
  adapter("8B, gate and up, rank 16, apart", 4096, {14336, 14336}, true);
  adapter("8B, down, rank 16, apart", 14336, {4096}, true);
  suite.time("temper", "queries of 8B", rows, [=](Case& c) {
    float* const x = c.changes<float>(std::int64_t{rows} * 4096);
    const PassRows pass = pass_rows(c, rows, 16000, rows == kPromptRows);
    return [=](cudaStream_t stream) { return temper(x, pass.view.position, 0.1F, 8192, 0, rows, 4096, stream); };
  });
  suite.time("xielu", "hidden layer of 8B", rows, [=](Case& c) {
    float* const x = c.changes<float>(std::int64_t{rows} * 21504);
    return [=](cudaStream_t stream) {
      return xielu({0.8F, 1.1F, 0.5F, -1e-6F}, x, std::int64_t{rows} * 21504, stream);
    };
  });
  suite.time("largest", "16 scores", rows, [=](Case& c) {
    const float* const x = c.reads<float>(std::int64_t{rows} * 16);
    float* const out = c.writes<float>(rows);
    return [=](cudaStream_t stream) { return largest(x, rows, 16, out, stream); };
  });
}

void time_sampling(Suite& suite, int rows) {
  for (const Dense& m : {kLlama8b, kHybrid, kGemma})
    suite.time("candidates", fmt::format("{}, {} logits", m.name, m.vocab), rows, [=](Case& c) {
      const float* const logits = c.reads<float>(std::int64_t{rows} * m.vocab);
      auto* const out = c.writes<Candidates>(rows);
      auto* const workspace = c.room<std::byte>(static_cast<std::int64_t>(sample_workspace_bytes(rows, m.vocab)));
      return [=](cudaStream_t stream) { return candidates(logits, rows, m.vocab, out, workspace, stream); };
    });
  for (const float top_p : {1.0f, 0.95f})
    suite.time(
        "draw", fmt::format("{}, {} logits, top-p {}", kLlama8b.name, kLlama8b.vocab, top_p), rows, [=](Case& c) {
          const float* const logits = c.reads<float>(std::int64_t{rows} * kLlama8b.vocab);
          Candidates largest = {};
          largest.logit[0] = 4;  // of random numbers
          const auto* const found = c.holds(std::vector<Candidates>(static_cast<std::size_t>(rows), largest));
          const kernels::DrawRule rule{0.8f, top_p, 0, std::uint64_t{1} << 52};
          const auto* const rules = c.holds(std::vector<kernels::DrawRule>(static_cast<std::size_t>(rows), rule));
          auto* const drawn = c.writes<std::int32_t>(rows);
          return [=](cudaStream_t stream) {
            return kernels::cuda::draw(logits, rows, kLlama8b.vocab, rules, found, drawn, stream);
          };
        });
}

}  // namespace

void time_rows(Suite& suite) {
  for (const int rows : kAllRows) {
    time_embedding(suite, rows);
    time_norms(suite, rows);
    time_forms(suite, rows);
    time_elements(suite, rows);
  }
  for (const int rows : kFewRows) time_sampling(suite, rows);
}

}  // namespace millrace::bench
