#include "exec/gpu/layout.h"

#include <algorithm>
#include <numeric>

#include "base/bytes.h"
#include "exec/gpu/state_runs.h"
#include "exec/router_ahead.h"
#include "kernels/draw.h"
#include "kernels/gpu/delta_chunks.h"
#include "kernels/gpu/indexer.h"
#include "kernels/gpu/latent.h"
#include "kernels/gpu/ops.h"
#include "kernels/gpu/prompt_int8.h"
#include "kernels/gpu/whole_rows.h"

namespace millrace::exec {
namespace {

namespace gpu = kernels::gpu;

std::int64_t padded_positions(const PassShape& shape) {
  return static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(shape.max_positions), 512));
}

}  // namespace

std::int64_t max_blocks(const PassShape& shape) { return padded_positions(shape) / kv::kBlockTokens; }

std::int64_t window_step(const PassShape& shape) {
  constexpr std::int64_t kProductTile = 128;  // rows
  return std::lcm(kProductTile, shape.merge);
}

std::int64_t work_rows(const PassShape& shape) {
  if (shape.work_rows <= 0) return shape.max_rows;
  const std::int64_t step = window_step(shape);
  const std::int64_t worked =
      shape.merge > 1 ? std::max<std::int64_t>(1, shape.work_rows / step) * step : std::max(shape.work_rows, kFewRows);
  return std::min(worked, shape.max_rows);
}

StateSizes most_states(const PassShape& shape, std::int64_t rows) {
  return {shape.state_groups * 2 * rows, shape.state_groups * 2 * rows};
}

PassRows make_pass_rows(const PassShape& shape, std::int64_t rows, std::int64_t logit_rows, std::int64_t sequences,
                        bool tiles, bool seen, const StateSizes& states) {
  PassRows layout;
  const auto take = [&](std::uint64_t& offset, std::int64_t count, std::size_t size) {
    offset = layout.bytes;
    layout.bytes = round_up(layout.bytes + static_cast<std::uint64_t>(count) * size, 16);
  };
  take(layout.token, rows, 4);
  take(layout.sequence, rows, 4);
  take(layout.position, rows, 4);
  take(layout.logit_row, logit_rows, 4);
  take(layout.draws, logit_rows, sizeof(kernels::DrawRule));
  take(layout.scales, shape.adapters * rows, sizeof(float));
  take(layout.logit_scales, shape.adapters * logit_rows, sizeof(float));
  if (shape.adapters > 0) take(layout.ready, shape.product_steps, sizeof(std::int32_t));
  take(layout.chosen, shape.routed_layers * rows * shape.top_k, 4);
  for (const std::int64_t rotary : shape.rotary) take(layout.cos_sin.emplace_back(), rows * rotary, 4);
  for (std::int64_t g = 0; g < shape.kv_groups; ++g)
    take(layout.blocks.emplace_back(), sequences * max_blocks(shape), 8);
  if (tiles) take(layout.tiles, rows, sizeof(gpu::RowTile));
  if (seen) take(layout.seen, shape.sights * rows, sizeof(gpu::SeenKeys));
  take(layout.state_runs, states.runs, sizeof(gpu::StateRun));
  take(layout.first_runs, states.first_runs, sizeof(std::int32_t));
  return layout;
}

GpuLayout make_gpu_layout(const PassShape& shape) {
  GpuLayout layout;
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t offset = layout.bytes;
    layout.bytes = round_up(layout.bytes + bytes, 256);
    return offset;
  };
  const auto floats = [](std::int64_t count) { return static_cast<std::uint64_t>(count) * sizeof(float); };
  const std::int64_t worked = work_rows(shape);
  for (const Buffer& buffer : shape.buffers) {
    const std::int64_t rows = buffer.rows == Rows::logits   ? shape.max_logit_rows
                              : buffer.rows == Rows::whole  ? shape.max_rows
                              : buffer.rows == Rows::merged ? shape.max_rows / shape.merge
                                                            : worked;
    layout.buffers.push_back(take(floats(rows * buffer.cols)));
  }
  const std::int64_t widest = static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(shape.widest_input), 256));
  const std::int64_t input_rows = std::max(worked, shape.max_logit_rows);
  std::uint64_t input_bytes = std::max(gpu::q8_bytes(input_rows, widest), gpu::bf16_bytes(input_rows, widest));
  if (shape.whole_rows) input_bytes = std::max(input_bytes, gpu::half_rows_bytes(input_rows, widest));
  for (const int slot : {0, 1}) layout.inputs[slot] = take(input_bytes);
  if (shape.gathers) layout.inputs[kGatheredInput] = take(input_bytes);
  if (gpu::prompt_products() == gpu::PromptProducts::int8)
    layout.rounded = take(gpu::prompt_int8_bytes(worked, widest));
  for (std::uint64_t& padded : layout.padded) padded = take(floats(worked * shape.padded_heads));
  layout.up = take(floats(worked * shape.separate_gate));
  layout.low = take(floats(input_rows * gpu::kMostProducts * shape.adapter_rank));
  if (shape.adapters > 0)
    layout.addends = take(floats(gpu::kMatvecRows * std::max(gpu::kMostProducts * shape.widest_output, shape.vocab)));
  layout.logits = take(floats(shape.max_logit_rows * shape.vocab));
  const auto logit_rows = static_cast<std::int32_t>(shape.max_logit_rows);
  layout.candidates = take(static_cast<std::uint64_t>(logit_rows) * sizeof(gpu::Candidates));
  layout.drawn = take(static_cast<std::uint64_t>(logit_rows) * sizeof(std::int32_t));
  layout.sample_workspace = take(gpu::sample_workspace_bytes(logit_rows, static_cast<std::int32_t>(shape.vocab)));
  const auto few_rows = static_cast<std::int32_t>(std::min(shape.max_rows, kFewRows)),
             heads = static_cast<std::int32_t>(shape.heads), head_dim = static_cast<std::int32_t>(shape.head_dim),
             positions = static_cast<std::int32_t>(padded_positions(shape));
  layout.slopes = take(floats(shape.heads));
  layout.attention_workspace_bytes = shape.latent_dim > 0
                                         ? gpu::latent_workspace_bytes(few_rows, heads, head_dim, positions)
                                         : gpu::attention_workspace_bytes(few_rows, heads, head_dim, positions);
  if (shape.selected > 0)  // scores are read before attention begins
    layout.attention_workspace_bytes = std::max(
        layout.attention_workspace_bytes, gpu::choose_workspace_bytes(static_cast<std::int32_t>(worked), positions));
  layout.attention_workspace = take(layout.attention_workspace_bytes);
  if (shape.experts > 0) {
    const std::int64_t entries = worked * shape.top_k;
    layout.scores = take(floats(worked * shape.experts));
    layout.chosen = take(floats(entries));
    layout.weights = take(floats(entries));
    layout.sorted = take(floats(entries));
    layout.expert_first = take(floats(shape.experts + 1));
    const std::int64_t computed = entries + std::min(worked, kFewRows);
    layout.hidden = take(std::max(floats(computed * shape.expert_ff),
                                  static_cast<std::uint64_t>(gpu::q8_bytes(computed, shape.expert_ff))));
    if (shape.ungated_experts) layout.hidden_q8 = take(gpu::q8_bytes(entries, shape.expert_ff));
    layout.expert_out = take(floats(computed * shape.model_dim));
    layout.guess_rows = take(floats(kGuessedRows * shape.routed_dim));
    layout.guess_scores = take(floats(kGuessedRows * shape.experts));
    layout.guess_chosen = take(floats(kGuessedRows * shape.top_k));
    layout.guess_weights = take(floats(kGuessedRows * shape.top_k));
  }
  layout.borders = take(gpu::convolve_workspace_bytes(1, 2, shape.widest_taps) *
                        static_cast<std::uint64_t>(most_state_runs(worked, shape.max_sequences)));
  const DeltaRule& rule = shape.delta_rule;
  if (gpu::delta_chunks_fit(rule.key_dim, rule.value_dim))
    layout.chunks = take(gpu::delta_chunks_workspace_bytes(most_state_runs(worked, shape.max_sequences), rule.key_heads,
                                                           rule.value_heads, rule.key_dim));
  layout.rows = take(make_pass_rows(shape, shape.max_rows, shape.max_logit_rows, shape.max_sequences, true, true,
                                    most_states(shape, shape.max_rows))
                         .bytes);
  return layout;
}

bool has_chunks(const DeltaRule& rule, std::int64_t decays) {
  return gpu::delta_chunks_fit(rule.key_dim, rule.value_dim) && !rule.has_channel_decays(decays);
}

}  // namespace millrace::exec
