// Where the GPU's executor's activations and scratch lie in its one device buffer, and the rows of a pass in the buffer
// that is uploaded. Sizes follow from the pass's shape alone, so that a plan can count them before anything is
// allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/executor.h"

namespace millrace::exec {

/// Passes of at most so many rows attend row by row and may be replayed as graphs; larger ones attend in tiles.
constexpr std::int64_t kFewRows = 64;

constexpr int kInputs = 3, kGatheredInput = 2;  // of GpuLayout::inputs

/// Offsets into the buffer, each a multiple of 256; `bytes` in all.
struct GpuLayout {
  std::vector<std::uint64_t> buffers;  // float [rows, cols] each, by Act::buffer
  // Q8 or bfloat16 [work_rows, widest_input]: of norms, and of attention and hidden layers; and of what is gathered,
  // where other devices write before this one's earlier launches have ended.
  std::uint64_t inputs[kInputs] = {};
  std::uint64_t rounded = 0;     // PromptInt8 [work_rows, widest_input], where products of prompts are of int8
  std::uint64_t padded[3] = {};  // float [work_rows, padded_heads]: queries or results, keys, values
  std::uint64_t up = 0;          // float [work_rows, separate_gate]: of a gate and up that are launches of their own
  std::uint64_t low = 0;         // LowRankCall::low, of the widest call of adapters
  std::uint64_t addends = 0;     // Product::addend of the products of a launch, of kMatvecRows rows
  std::uint64_t logits = 0;      // float [max_logit_rows, vocab]
  std::uint64_t candidates = 0, drawn = 0, sample_workspace = 0;
  std::uint64_t slopes = 0;  // float [heads], of all layers whose scores fall with distance
  std::uint64_t attention_workspace = 0, attention_workspace_bytes = 0;  // an indexer's, too

  // Mixtures: entries are (row, place) pairs, work_rows * top_k of them. What is computed of them has room for one more
  // of each of few rows, an expert that all rows share.
  std::uint64_t scores = 0;        // float [work_rows, experts]
  std::uint64_t chosen = 0;        // int32 [entries]
  std::uint64_t weights = 0;       // float [entries]
  std::uint64_t sorted = 0;        // int32 [entries]
  std::uint64_t expert_first = 0;  // int32 [experts + 1]
  std::uint64_t hidden = 0;        // float or Q8 [entries and more, expert_ff]
  std::uint64_t hidden_q8 = 0;     // Q8, likewise: of experts without a gate, whose products are floats first
  std::uint64_t expert_out = 0;    // float [entries and more, model_dim]
  // What a router is asked about before its turn, and what it says: of kGuessedRows rows.
  std::uint64_t guess_rows = 0;     // float [rows, routed_dim]
  std::uint64_t guess_scores = 0;   // float [rows, experts]
  std::uint64_t guess_chosen = 0;   // int32 [rows, top_k]
  std::uint64_t guess_weights = 0;  // float [rows, top_k]

  std::uint64_t borders = 0;  // of convolutions: float [state_runs of a window, taps - 1, channels]
  std::uint64_t chunks = 0;   // of delta rules by chunks (kernels/gpu/delta_chunks.h)

  std::uint64_t rows = 0;  // what is uploaded a pass, PassRows::bytes at most
  std::uint64_t bytes = 0;
};

/// The uploaded rows of a pass: offsets from its start, each a multiple of 16.
struct PassRows {
  std::uint64_t token = 0, sequence = 0, position = 0;  // int32 [rows]
  std::uint64_t logit_row = 0;                          // int32 [logit rows]: which rows want logits
  std::uint64_t draws = 0;                              // DrawRule [logit rows]
  std::uint64_t scales = 0;                             // of adapters: float [adapters, rows]
  std::uint64_t logit_scales = 0;                       // likewise [adapters, logit rows]
  std::uint64_t ready = 0;                              // MatmulCall::ready of each product: int32, zeros
  std::uint64_t chosen = 0;                             // int32 [routed layers, rows, top_k]
  std::vector<std::uint64_t> cos_sin;                   // float [rows, rotary / 2, 2] of each rope
  std::vector<std::uint64_t> blocks;                    // of each group: addresses [sequences, max_blocks]
  std::uint64_t tiles = 0;                              // RowTile [rows] at most
  std::uint64_t seen = 0;                               // SeenKeys [Program::sights(), rows]
  std::uint64_t state_runs = 0, first_runs = 0;         // StateRun and int32, as StateSizes says
  std::uint64_t bytes = 0;
};

/// Runs of rows over states (kernels/gpu/recurrent.h), and where each sequence's begin: of all windows of a pass and
/// all groups with states.
struct StateSizes {
  std::int64_t runs = 0, first_runs = 0;
};
/// Of passes of so many rows, whatever windows and sequences they have.
StateSizes most_states(const PassShape& shape, std::int64_t rows);

std::int64_t max_blocks(const PassShape& shape);
/// Rows of a window are a multiple of it: of a product's tile, and of what becomes one row.
std::int64_t window_step(const PassShape& shape);
/// Rows that are worked at once, at most.
std::int64_t work_rows(const PassShape& shape);
/// tiles: attention is by tiles; seen: rows see keys behind their own.
PassRows make_pass_rows(const PassShape& shape, std::int64_t rows, std::int64_t logit_rows, std::int64_t sequences,
                        bool tiles, bool seen, const StateSizes& states);
GpuLayout make_gpu_layout(const PassShape& shape);

/// Whether rows of prompts go through the rule in chunks, where a device has those (kernels/gpu/delta_chunks.h).
/// decays: of a row.
bool has_chunks(const DeltaRule& rule, std::int64_t decays);

}  // namespace millrace::exec
