// Attention over latents, and what stores them; products.cpp has the products by heads.
#include <fmt/format.h>

#include "cuda_kernels/shapes.h"
#include "kernels/cuda/launchers.h"

namespace millrace::bench {
namespace {

using namespace kernels::cuda;

void time_store(Suite& suite, const Latent& m, DType dtype, int rows) {
  suite.time("store_latent", fmt::format("{}, {}", m.name, info(dtype).name), rows, [=](Case& c) {
    const PassRows pass = pass_rows(c, rows, 2048, rows == kPromptRows);
    LatentStoreCall call;
    call.rows = pass.view;
    call.kv = latent_view(c, pass, dtype, m.rank + m.rotary);
    call.heads = m.heads;
    call.q_head = m.nope + m.rotary;
    call.q = c.room<float>(std::int64_t{rows} * m.heads * call.q_head);
    c.moves(2.0 * sizeof(float) * rows * m.heads * m.rotary);
    call.c = c.reads<float>(std::int64_t{rows} * m.rank);
    call.key = c.reads<float>(std::int64_t{rows} * m.rotary);
    call.cos_sin = c.reads<float>(std::int64_t{rows} * m.rotary);
    call.rotary = m.rotary;
    call.norm = c.vector(m.rank);
    call.eps = 1e-6F;
    c.moves(static_cast<double>(kv_row_bytes(dtype, m.rank + m.rotary)) * rows);
    return [=](cudaStream_t stream) { return store_latent(call, stream); };
  });
}

void time_attending(Suite& suite, const Latent& m, DType dtype, int rows, int before) {
  const bool prompt = rows == kPromptRows;
  const std::string name = fmt::format("{}, {}, {} {}", m.name, info(dtype).name, prompt ? "behind" : "over",
                                       context(prompt ? before : before + 1));
  suite.time("latent_attention", name, rows, [=](Case& c) {
    const PassRows pass = pass_rows(c, rows, before, prompt);
    const int dim = m.rank + m.rotary;
    LatentAttentionCall call;
    call.rows = pass.view;
    call.kv = latent_view(c, pass, dtype, dim);
    call.q = c.reads<float>(std::int64_t{rows} * m.heads * dim);
    call.heads = m.heads;
    call.scale = 0.1F;
    call.v_dim = m.rank;
    call.out = c.writes<float>(std::int64_t{rows} * m.heads * m.rank);
    call.max_position = (pass.longest + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk;
    call.prompt = prompt;
    call.workspace_bytes = latent_workspace_bytes(rows, m.heads, m.rank, call.max_position);
    call.workspace = c.room<std::byte>(static_cast<std::int64_t>(call.workspace_bytes));
    c.moves(static_cast<double>(kv_row_bytes(dtype, dim)) * pass.longest * pass.sequences);
    c.multiplies_bf16(pass.visible * m.heads * (dim + m.rank));
    return [=](cudaStream_t stream) { return latent_attention(call, stream); };
  });
}

}  // namespace

void time_latents(Suite& suite) {
  for (const Latent& m : kLatents)
    for (const DType dtype : {DType::f16, DType::q8_0}) {
      for (const int rows : kAllRows) time_store(suite, m, dtype, rows);
      for (const int rows : kFewRows) {
        time_attending(suite, m, dtype, rows, 2047);
        if (rows < 64) time_attending(suite, m, dtype, rows, 15999);
      }
      time_attending(suite, m, dtype, kPromptRows, 0);
      time_attending(suite, m, dtype, kPromptRows, 16000);
    }
}

}  // namespace millrace::bench
