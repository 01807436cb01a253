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

constexpr int kIndexDim = 128;

IndexView index_view(Case& c, const PassRows& pass) {
  IndexView view;
  view.dim = kIndexDim;
  view.max_blocks = (pass.longest + kBlockTokens - 1) / kBlockTokens;
  const auto row = static_cast<std::int64_t>(sizeof(std::uint16_t)) * kIndexDim;
  view.table = kv_blocks(c, pass.sequences, view.max_blocks, row * kBlockTokens).table;
  return view;
}

void time_index_store(Suite& suite, const IndexShape& m, int rows) {
  suite.time("store_index", m.name, rows, [=](Case& c) {
    const PassRows pass = pass_rows(c, rows, 2048, rows == kPromptRows);
    IndexStoreCall call;
    call.rows = pass.view;
    call.index = index_view(c, pass);
    call.heads = m.heads;
    call.rotary = kIndexDim / 2;
    call.q = c.room<float>(std::int64_t{rows} * m.heads * kIndexDim);
    c.moves(2.0 * sizeof(float) * rows * m.heads * call.rotary);
    call.key = c.reads<float>(std::int64_t{rows} * kIndexDim);
    call.cos_sin = c.reads<float>(std::int64_t{rows} * call.rotary);
    call.weight = c.vector(kIndexDim);
    call.bias = c.vector(kIndexDim);
    call.eps = 1e-6F;
    c.moves(static_cast<double>(sizeof(std::uint16_t)) * kIndexDim * rows);
    return [=](cudaStream_t stream) { return store_index(call, stream); };
  });
}

void time_choosing(Suite& suite, const IndexShape& m, int rows, int before) {
  const bool prompt = rows == kPromptRows;
  const std::string name = fmt::format("{}, {} {}", m.name, prompt ? "behind" : "over", context(before + !prompt));
  suite.time("choose_keys", name, rows, [=](Case& c) {
    const PassRows pass = pass_rows(c, rows, before, prompt);
    ChooseKeysCall call;
    call.rows = pass.view;
    call.index = index_view(c, pass);
    call.q = c.reads<float>(std::int64_t{rows} * m.heads * kIndexDim);
    call.weights = c.reads<float>(std::int64_t{rows} * m.heads);
    call.heads = m.heads;
    call.top_k = m.top_k;
    call.chosen = c.writes<std::int32_t>(std::int64_t{rows} * m.top_k);
    call.max_position = (pass.longest + 511) / 512 * 512;
    call.workspace_bytes = choose_workspace_bytes(rows, call.max_position);
    call.workspace = c.room<std::byte>(static_cast<std::int64_t>(call.workspace_bytes));
    c.moves(static_cast<double>(sizeof(std::uint16_t)) * kIndexDim * pass.longest * pass.sequences);
    return [=](cudaStream_t stream) { return choose_keys(call, stream); };
  });
}

void time_attending_to_chosen(Suite& suite, const Latent& m, DType dtype, int rows) {
  constexpr int kBefore = 32767, kTopK = 2048;
  const bool prompt = rows == kPromptRows;
  suite.time("latent_attention", fmt::format("{}, {}, 2048 chosen of 32K", m.name, info(dtype).name), rows,
             [=](Case& c) {
               const PassRows pass = pass_rows(c, rows, kBefore - (prompt ? rows : 0), prompt);
               std::vector<std::int32_t> chosen;
               std::mt19937 random(20261130);
               for (int r = 0; r < rows; ++r) {
                 std::vector<bool> is(static_cast<std::size_t>(kBefore - kPromptRows));
                 for (int left = kTopK; left > 0;) {
                   const std::size_t at = random() % is.size();
                   left -= is[at] ? 0 : 1;
                   is[at] = true;
                 }
                 for (std::size_t i = 0; i < is.size(); ++i)
                   if (is[i]) chosen.push_back(static_cast<std::int32_t>(i));
               }
               const int dim = m.rank + m.rotary;
               LatentAttentionCall call;
               call.rows = pass.view;
               call.kv = latent_view(c, pass, dtype, dim);
               call.q = c.reads<float>(std::int64_t{rows} * m.heads * dim);
               call.heads = m.heads;
               call.scale = 0.1F;
               call.v_dim = m.rank;
               call.out = c.writes<float>(std::int64_t{rows} * m.heads * m.rank);
               call.max_position = kBefore + 1;
               call.prompt = prompt;
               call.chosen = c.holds(chosen);
               call.top_k = kTopK;
               call.workspace_bytes = latent_workspace_bytes(rows, m.heads, m.rank, kTopK);
               call.workspace = c.room<std::byte>(static_cast<std::int64_t>(call.workspace_bytes));
               c.moves(static_cast<double>(kv_row_bytes(dtype, dim)) * (prompt ? kBefore : rows * kTopK));
               c.multiplies_bf16(static_cast<double>(rows) * kTopK * m.heads * (dim + m.rank));
               return [=](cudaStream_t stream) { return latent_attention(call, stream); };
             });
}

}  // namespace

void time_latents(Suite& suite) {
  for (const IndexShape& m : kIndexers) {
    for (const int rows : {1, 8})
      for (const int before : {4095, 32767}) time_choosing(suite, m, rows, before);
    time_choosing(suite, m, kPromptRows, 16000);
    for (const int rows : kAllRows) time_index_store(suite, m, rows);
  }
  for (const int rows : {1, 8, kPromptRows}) time_attending_to_chosen(suite, kLatents[0], DType::f16, rows);
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
