// The layout of the CPU executor's buffer, which holds all activations and scratch. The sizes depend only on the shape
// of the pass, so that a plan can count them before anything is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/executor.h"

namespace millrace::exec {

/// Offsets into the buffer, each a multiple of 64; `bytes` in all.
struct CpuLayout {
  static constexpr std::int64_t kTaskRows = 64;     // weight rows a thread takes at once, at most
  static constexpr std::int64_t kTileQueries = 64;  // queries (rows x group) of an attention task, if rows allow
  // The same for attention that is not causal: the keys of a long pass exceed the caches, and each task reads all of
  // them.
  static constexpr std::int64_t kMostTileQueries = 192;

  std::vector<std::uint64_t> buffers;  // float [rows, cols] each, by Act::buffer
  std::uint64_t logits = 0;            // float [max_logit_rows, vocab]
  std::uint64_t input_q8 = 0;          // Q8Rows [max_rows, widest_input]; also raw rows of the embedding
  std::uint64_t input_q8_bytes = 0;
  std::uint64_t head_rows = 0;    // int32 [product_heads, max_rows]: the rows of heads that a product by heads reads
  std::uint64_t vectors[2] = {};  // float [widest vector]: norm weights, biases and taps that are not float32
  std::uint64_t positions = 0;    // int32 [max_rows]
  std::uint64_t newest = 0;       // int32 [max_rows]: the last key that a row sees, of attention that is not causal
  std::uint64_t row_ids = 0;      // int64 [max_rows]
  // N-grams: int64 [max_rows, ngram_rows] which rows of the table tokens read, the same without repetitions, and those
  // rows as they lie in the file.
  std::uint64_t ngram_ids = 0, ngram_distinct = 0, ngram_bytes = 0;
  std::vector<std::uint64_t> ropes;  // float [max_rows, rotary / 2, 2] (cos, sin) of each

  // By thread, `thread_bytes` apart: the product's workspace, then float [most entries, kTaskRows] of up products, then
  // a block of latents as floats.
  std::uint64_t threads = 0, thread_bytes = 0, thread_up = 0, thread_latents = 0;

  // Attention: tiles of query rows, and partial results of two (tile, KV head) pairs a thread. A pair's are acc
  // [chunks, queries, head_dim], max [chunks, queries], sum [chunks, queries].
  std::uint64_t attention_tiles = 0;  // AttentionTile [max_rows]
  std::uint64_t partials = 0;
  std::int64_t partial_floats = 0;

  // Attention over selected keys: by thread a chunk of them, gathered. Choosing: scores of a tile of rows, [index_rows,
  // index_positions], and by thread one more row.
  std::uint64_t selected = 0;  // [threads][selected_bytes]
  std::uint64_t selected_bytes = 0;
  std::uint64_t index_scores = 0, index_scratch = 0;
  std::int64_t index_rows = 0, index_positions = 0;

  // Mixture: entries are (row, chosen expert) pairs, max_rows * top_k of them.
  std::uint64_t router = 0;         // float [max_rows, experts]
  std::uint64_t selection = 0;      // float [max_rows, experts]: what the choice goes by
  std::uint64_t chosen = 0;         // int32 [entries] experts in the router's order
  std::uint64_t chosen_weight = 0;  // float [entries]
  std::uint64_t entry_row = 0;      // int32 [entries], sorted by expert: the row each reads
  std::uint64_t entry_of = 0;       // int32 [entries], by (row, place): where the entry was sorted to
  std::uint64_t expert_first = 0;   // int32 [experts + 1] first entry of each expert
  std::uint64_t guess_rows = 0;     // float [kGuessedRows, routed_dim]: what a router is asked about before its turn
  std::uint64_t guess_scores = 0;   // float [kGuessedRows + 1, experts], the last row being scratch
  std::uint64_t expert_out = 0;     // float [entries, model_dim]
  // float [experts]: what each one's products are multiplied by before a bias, of its gate, up and down.
  std::uint64_t inner_scale = 0, up_scale = 0, down_scale = 0;
  // Biases of the experts of the pass, by expert: float [experts, expert_ff] of gate and up, [experts, model_dim].
  std::uint64_t gate_bias = 0, up_bias = 0, down_bias = 0;
  // Adapters: of the rows of a product that one takes part in, which they are, which row of the input each reads and
  // its scale; A x of up to three products; and the ups of a gate, which are added to before they meet.
  std::uint64_t adapted_rows = 0, adapted_inputs = 0;  // int32 [most rows of a product]
  std::uint64_t adapted_scales = 0;                    // float, likewise
  std::uint64_t adapted_low = 0;                       // float [3, most rows, adapter_rank]
  std::uint64_t adapted_up = 0;                        // float [most rows, widest_gate]
  std::uint64_t logit_sources = 0;                     // int32 [max_logit_rows]: the rows that want logits

  std::uint64_t hidden = 0;     // float [hidden_entries, expert_ff]
  std::uint64_t hidden_q8 = 0;  // Q8Rows [hidden_entries, expert_ff]
  std::int64_t hidden_entries = 0;

  std::uint64_t bytes = 0;
};

/// A run of rows of one sequence that an attention task processes together.
struct AttentionTile {
  std::int32_t first_row = 0, rows = 0, sequence = 0;
  std::int32_t segment = 0;  // rows of the segment that they are of; 0: there are none
};

/// The largest number of rows of such a tile, with `group` query heads per KV head.
std::int64_t attention_tile_rows(std::int64_t group);

/// The same for a pass of `rows` whose attention is not causal: as many as leave several tiles for each thread.
std::int64_t whole_tile_rows(std::int64_t group, std::int64_t kv_heads, std::int64_t rows, std::int64_t threads);

CpuLayout make_cpu_layout(const PassShape& shape, int threads, kernels::Isa isa);

}  // namespace millrace::exec
