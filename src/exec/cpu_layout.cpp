#include "exec/cpu_layout.h"

#include <algorithm>

#include "base/bytes.h"
#include "exec/router_ahead.h"

namespace millrace::exec {
namespace {

/// Hands out offsets one after another.
class Offsets {
 public:
  std::uint64_t take(std::int64_t count, std::size_t element_bytes) {
    const std::uint64_t at = next_;
    next_ += round_up(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0)) * element_bytes, 64);
    return at;
  }
  std::uint64_t end() const { return next_; }

 private:
  std::uint64_t next_ = 0;
};

constexpr std::int64_t kFewEntries = 64;  // decode's experts of a layer are computed together up to this many rows

void lay_out_moe(const PassShape& shape, Offsets& offsets, CpuLayout& layout) {
  const std::int64_t entries = shape.max_rows * shape.top_k;
  layout.router = offsets.take(shape.max_rows * shape.experts, sizeof(float));
  layout.selection = offsets.take(shape.max_rows * shape.experts, sizeof(float));
  layout.chosen = offsets.take(entries, sizeof(std::int32_t));
  layout.chosen_weight = offsets.take(entries, sizeof(float));
  layout.entry_row = offsets.take(entries, sizeof(std::int32_t));
  layout.entry_of = offsets.take(entries, sizeof(std::int32_t));
  layout.expert_first = offsets.take(shape.experts + 1, sizeof(std::int32_t));
  const std::int64_t guess_rows = std::min(shape.max_rows, kGuessedRows);
  layout.guess_rows = offsets.take(guess_rows * shape.routed_dim, sizeof(float));
  layout.guess_scores = offsets.take((guess_rows + 1) * shape.experts, sizeof(float));
  layout.expert_out = offsets.take(entries * shape.model_dim, sizeof(float));
  layout.inner_scale = offsets.take(shape.experts, sizeof(float));
  layout.up_scale = offsets.take(shape.experts, sizeof(float));
  if (shape.expert_biases) {
    layout.down_scale = offsets.take(shape.experts, sizeof(float));
    layout.gate_bias = offsets.take(shape.experts * shape.expert_ff, sizeof(float));
    layout.up_bias = offsets.take(shape.experts * shape.expert_ff, sizeof(float));
    layout.down_bias = offsets.take(shape.experts * shape.model_dim, sizeof(float));
  }
  layout.hidden_entries = std::max(shape.max_rows, std::min(entries, kFewEntries));
  layout.hidden = offsets.take(layout.hidden_entries * shape.expert_ff, sizeof(float));
  layout.hidden_q8 = offsets.take(kernels::q8_bytes(layout.hidden_entries, shape.expert_ff), 1);
}

void lay_out_adapters(const PassShape& shape, std::int64_t rows, Offsets& offsets, CpuLayout& layout) {
  layout.adapted_rows = offsets.take(rows, sizeof(std::int32_t));
  layout.adapted_inputs = offsets.take(rows, sizeof(std::int32_t));
  layout.adapted_scales = offsets.take(rows, sizeof(float));
  layout.adapted_low = offsets.take(3 * rows * shape.adapter_rank, sizeof(float));
  layout.adapted_up = offsets.take(rows * shape.widest_gate, sizeof(float));
  layout.logit_sources = offsets.take(shape.max_logit_rows, sizeof(std::int32_t));
}

void lay_out_selected(const PassShape& shape, int threads, Offsets& offsets, CpuLayout& layout) {
  layout.selected_bytes = round_up(static_cast<std::uint64_t>(shape.selected_bytes), 64);
  layout.selected = offsets.take(threads, layout.selected_bytes);
  layout.index_rows = std::min<std::int64_t>(shape.max_rows, threads);
  layout.index_positions = kv::blocks_for(shape.max_positions) * kv::kBlockTokens;
  layout.index_scores = offsets.take(layout.index_rows * layout.index_positions, sizeof(float));
  layout.index_scratch = offsets.take(threads * layout.index_positions, sizeof(float));
}

/// Room for the partial results of two (tile, KV head) pairs a thread over all chunks.
std::int64_t partial_floats(const PassShape& shape, int threads) {
  if (shape.kv_heads == 0) return 0;
  // Layers' groups may differ: no tile has more queries.
  const std::int64_t group = std::max<std::int64_t>(1, shape.group);
  const std::int64_t queries =
      std::min(std::max(shape.causal ? CpuLayout::kTileQueries : CpuLayout::kMostTileQueries, group),
               group * std::max<std::int64_t>(1, shape.max_rows));
  const std::int64_t chunks = (shape.max_positions + kernels::kAttentionChunk - 1) / kernels::kAttentionChunk;
  return 2 * threads * std::max<std::int64_t>(1, chunks) * queries * (shape.head_dim + 2);
}

}  // namespace

std::int64_t attention_tile_rows(std::int64_t group) {
  return std::max<std::int64_t>(1, CpuLayout::kTileQueries / group);
}

std::int64_t whole_tile_rows(std::int64_t group, std::int64_t kv_heads, std::int64_t rows, std::int64_t threads) {
  constexpr std::int64_t kTilesOfThread = 8;
  const std::int64_t shared = rows * group * kv_heads / (threads * kTilesOfThread);
  return std::max<std::int64_t>(1, std::clamp(shared, CpuLayout::kTileQueries, CpuLayout::kMostTileQueries) / group);
}

CpuLayout make_cpu_layout(const PassShape& shape, int threads, kernels::Isa isa) {
  CpuLayout layout;
  Offsets offsets;
  std::int64_t widest = shape.widest_input;
  for (const Buffer& buffer : shape.buffers) {
    const std::int64_t rows = buffer.rows == Rows::logits   ? shape.max_logit_rows
                              : buffer.rows == Rows::merged ? shape.max_rows / shape.merge
                                                            : shape.max_rows;
    layout.buffers.push_back(offsets.take(rows * buffer.cols, sizeof(float)));
    widest = std::max(widest, buffer.cols);
  }
  layout.logits = offsets.take(shape.max_logit_rows * shape.vocab, sizeof(float));
  const std::int64_t input_rows = std::max(shape.max_rows, shape.max_logit_rows);
  layout.input_q8_bytes = static_cast<std::uint64_t>(kernels::q8_bytes(input_rows, shape.widest_input));
  // At least one row of the embedding fits in, whatever its dtype.
  layout.input_q8_bytes = std::max<std::uint64_t>(layout.input_q8_bytes, static_cast<std::uint64_t>(widest) * 4);
  layout.input_q8 = offsets.take(static_cast<std::int64_t>(layout.input_q8_bytes), 1);
  layout.head_rows = offsets.take(shape.product_heads * shape.max_rows, sizeof(std::int32_t));
  const std::int64_t widest_vector = std::max(widest, shape.widest_taps);
  for (std::uint64_t& vector : layout.vectors) vector = offsets.take(widest_vector, sizeof(float));
  layout.positions = offsets.take(shape.max_rows, sizeof(std::int32_t));
  layout.newest = offsets.take(shape.max_rows, sizeof(std::int32_t));
  layout.row_ids = offsets.take(shape.max_rows, sizeof(std::int64_t));
  layout.ngram_ids = offsets.take(shape.max_rows * shape.ngram_rows, sizeof(std::int64_t));
  layout.ngram_distinct = offsets.take(shape.max_rows * shape.ngram_rows, sizeof(std::int64_t));
  layout.ngram_bytes = offsets.take(shape.max_rows * shape.ngram_rows * shape.ngram_row_bytes, 1);
  for (const std::int64_t rotary : shape.rotary)
    layout.ropes.push_back(offsets.take(shape.max_rows * rotary, sizeof(float)));
  layout.attention_tiles = offsets.take(shape.max_rows, sizeof(AttentionTile));
  layout.partial_floats = partial_floats(shape, threads);
  layout.partials = offsets.take(layout.partial_floats, sizeof(float));
  if (shape.experts > 0) lay_out_moe(shape, offsets, layout);
  if (shape.selected > 0) lay_out_selected(shape, threads, offsets, layout);

  const std::int64_t most_rows = std::max(input_rows, layout.hidden_entries);
  if (shape.adapter_rank > 0) lay_out_adapters(shape, most_rows, offsets, layout);
  layout.thread_up = round_up(static_cast<std::uint64_t>(kernels::table(isa).matmul_workspace_bytes(
                                  std::max(shape.widest_input, shape.adapter_rank))),
                              64);
  layout.thread_latents =
      round_up(layout.thread_up + static_cast<std::uint64_t>(most_rows * CpuLayout::kTaskRows) * sizeof(float), 64);
  layout.thread_bytes = round_up(
      layout.thread_latents + static_cast<std::uint64_t>(kernels::kKvBlock * shape.latent_dim) * sizeof(float), 64);
  layout.threads = offsets.take(static_cast<std::int64_t>(layout.thread_bytes) * threads, 1);
  layout.bytes = offsets.end();
  return layout;
}

std::uint64_t cpu_activation_bytes(const PassShape& shape, int threads, const CpuOptions& options) {
  return round_up(make_cpu_layout(shape, threads, options.isa).bytes, device::kPageBytes);
}

}  // namespace millrace::exec
