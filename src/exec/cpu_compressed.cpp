// Compressed attention on the CPU: what tokens give to the rows that they complete, those rows, and attention over them
// and a window. A row depends on its tokens' inputs alone, which are read back from the cache, so that no bit depends
// on how a prompt was cut. Source: DeepSeek-V4 (2026), section 2.3.
#include <algorithm>
#include <limits>

#include "exec/cpu_attention.h"
#include "exec/rope_angles.h"

namespace millrace::exec {

void CpuExecutor::compress(const Step& step) {
  if (!ready() || rows_ == 0) return;
  const Compressor& by = step.compressor;
  const std::int64_t given = by.given();
  const float* const norm = kept_vector_of(step.weight, by.dim, 0);
  if (norm == nullptr) return;
  const float* const biases = by.mean ? nullptr : vector_of(step.weight2, by.ratio * given, 1);
  if (failed()) return;
  const float *const inputs = data(step.a), *const gates = by.mean ? nullptr : data(step.b);
  for_rows(rows_, 2 * given, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
      const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(row.sequence)];
      auto* const to = reinterpret_cast<float*>(sequence.v(row.position / kv::kBlockTokens, by.inputs, 0)) +
                       row.position % kv::kBlockTokens * by.kept();
      std::copy_n(inputs + r * given, given, to);
      if (by.mean) {
        for (std::uint8_t axis = 0; axis < kRopeAxes; ++axis) to[given + axis] = static_cast<float>(shift_of(r, axis));
        continue;
      }
      const float* const bias = biases + row.position % by.ratio * given;
      for (std::int64_t c = 0; c < given; ++c) to[given + c] = gates[r * given + c] + bias[c];
    }
  });
  std::vector<std::int64_t> ends;
  for (std::int64_t r = 0; r < rows_; ++r)
    if ((batch_->rows[static_cast<std::size_t>(r)].position + 1) % by.ratio == 0) ends.push_back(r);
  pool_.parallel_for(std::ssize(ends), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i)
      make_row(step, batch_->rows[static_cast<std::size_t>(ends[static_cast<std::size_t>(i)])], norm);
  });
}

/// The row that this token completes: of each channel first the largest gate, then the sums, both over the tokens in
/// ascending order.
void CpuExecutor::make_row(const Step& step, const kv::BatchRow& row, const float* norm) const {
  const Compressor& by = step.compressor;
  const kv::SequenceState& sequence = *batch_->sequences[static_cast<std::size_t>(row.sequence)];
  const kv::Group& kv = sequence.layout().group_of(step.layer);
  const std::int64_t dim = by.dim, given = by.given(), own = row.position - by.ratio + 1;
  const std::int64_t first = std::max<std::int64_t>(by.overlaps ? own - by.ratio : own, 0);
  alignas(64) float most[kernels::kMostLatentDim], total[kernels::kMostLatentDim], sum[kernels::kMostLatentDim];
  const auto of = [&](std::int64_t token) {
    const auto* const block = reinterpret_cast<const float*>(sequence.v(token / kv::kBlockTokens, by.inputs, 0));
    return block + token % kv::kBlockTokens * by.kept() + (by.overlaps && token >= own ? dim : 0);
  };
  std::fill_n(most, dim, -std::numeric_limits<float>::infinity());
  std::fill_n(total, dim, 0.0f);
  std::fill_n(sum, dim, 0.0f);
  for (std::int64_t token = first; token <= row.position && !by.mean; ++token) {
    const float* const gates = of(token) + given;
    for (std::int64_t c = 0; c < dim; ++c) most[c] = std::max(most[c], gates[c]);
  }
  for (std::int64_t token = first; token <= row.position; ++token) {
    const float* const from = of(token);
    for (std::int64_t c = 0; c < dim; ++c) {
      const float weight = by.mean ? 1 : kernels::exp_f32(from[given + c] - most[c]);
      total[c] += weight;
      sum[c] += weight * from[c];
    }
  }
  for (std::int64_t c = 0; c < dim; ++c) sum[c] /= total[c];
  table_.rms_norm(sum, norm, 1, dim, by.eps, sum);

  const Rope& rope = program_.ropes[static_cast<std::size_t>(by.rope)];
  float* const angles = total;  // cos and sin
  for (std::int64_t i = 0; i < rope.rotary / 2; ++i) {
    const float shift = by.mean && !rope.axes.empty() ? of(own)[given + rope.axes[static_cast<std::size_t>(i)]] : 0;
    put_angle(rope, i, static_cast<double>(own) + static_cast<double>(shift), angles + 2 * i);
  }
  table_.rope(sum + (rope.last ? dim - rope.rotary : 0), angles, rope.rotary, rope.neox);
  const kv::RowPlace place = kv::row_place(row.position / by.ratio, by.ratio);
  if (by.index)
    store_index_key(table_, kv, sum, place.row, sequence.index(place.block, step.layer));
  else
    store_latent_channels(table_, kv, sum, {0, dim}, place.row, sequence.v(place.block, step.layer, 0));
}

/// What a row sees: compressed rows, then its window. chosen: of all rows of the pass; null: none are chosen.
SeenKeys CpuExecutor::keys_of(const AttentionCall& call, std::int64_t row, const std::int32_t* chosen) const {
  const kv::BatchRow& of = batch_->rows[static_cast<std::size_t>(row)];
  const std::int64_t ratio = program_.layout.group_of(call.attention.rows).ratio, most = call.attention.selected;
  const std::int64_t complete = (of.position + 1) / ratio,
                     near = std::min<std::int64_t>(of.position + 1, call.attention.window);
  SeenKeys keys;
  keys.listed = most > 0 ? std::min(complete, most) : complete;
  if (most > 0 && complete > most) keys.chosen = chosen + row * most;
  keys.layer = call.attention.rows;
  keys.first_position = of.position + 1 - near;
  keys.count = keys.listed + near;
  return keys;
}

void CpuExecutor::attend_to_rows(AttentionCall& call, Act selected) {
  const kv::Group& kv =
      batch_->sequences[static_cast<std::size_t>(batch_->rows[0].sequence)]->layout().group_of(call.layer);
  call.slot_floats = layout_.partial_floats / (2 * pool_.threads());
  const auto* const chosen = selected.buffer < 0 ? nullptr : reinterpret_cast<const std::int32_t*>(data(selected));
  std::int64_t most = 0;
  for (std::int64_t r = 0; r < rows_; ++r)
    most = std::max(most, gathered_pair(call, keys_of(call, r, chosen), r, 0).chunks);
  if (static_cast<std::uint64_t>(kChunkBlocks * kv.v_head_bytes()) > layout_.selected_bytes ||
      most * call.group * (call.attention.v_dim() + 2) > call.slot_floats)
    return fail(error(Code::internal, "attention over {} chunks of compressed rows was not prepared", most));
  run_pairs(
      call, rows_,
      [&](std::int64_t i, std::int64_t slot) { return gathered_pair(call, keys_of(call, i, chosen), i, slot); },
      [&](const AttentionPair& pair, std::int64_t chunk, int thread) {
        attend_gathered_chunk(call, pair, keys_of(call, pair.tile.first_row, chosen), chunk, thread);
      });
}

}  // namespace millrace::exec
