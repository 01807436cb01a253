// The rows of a pass of the GPU's executor: their windows, and what of them is uploaded.
#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "exec/gpu/executor_impl.h"
#include "exec/rope_angles.h"
#include "exec/routing.h"
#include "kernels/gpu/gates.h"

namespace millrace::exec {

namespace gpu = kernels::gpu;

static constexpr std::int64_t kPositionStep = 512;  // graphs are captured for a bound on positions that grows by this

Status GpuExecutor::begin_pass(const kv::Batch& batch) {
  pass_begin_ns_ = Trace::now_ns();
  batch_ = &batch;
  program_ = &programs_[batch.wants_hidden ? 1 : 0];
  rows_ = static_cast<std::int64_t>(batch.rows.size());
  logit_rows_ =
      std::count_if(batch.rows.begin(), batch.rows.end(), [](const kv::BatchRow& r) { return r.wants_logits; });
  brought_top_only_ = top_only_;
  MR_ASSIGN_OR_RETURN(mixed_, mixed_in(batch, options_.rows.adapters));
  sees_ahead_ = shape_.whole_rows || std::any_of(batch.pictures.begin(), batch.pictures.end(),
                                                 [](const kv::PictureRow& row) { return row.ahead > 0; });
  const auto sequences = static_cast<std::int64_t>(batch.sequences.size());
  for (const kv::BatchRow& row : batch.rows)
    if (row.position >= known_positions_)
      return error(Code::invalid_argument, "the model has embeddings of {} positions, none of {}", known_positions_,
                   row.position);
  if (rows_ > shape_.max_rows || logit_rows_ > shape_.max_logit_rows || sequences > shape_.max_sequences)
    return error(Code::internal, "a pass of {} rows of {} sequences was not prepared", rows_, sequences);
  if (top_only_ && !draws_.empty() && std::ssize(draws_) != logit_rows_)
    return error(Code::internal, "a pass of {} rows of logits has {} draws", logit_rows_, draws_.size());
  for (const kv::SequenceState* const sequence : batch.sequences) {
    if (std::ssize(sequence->layout().groups()) != shape_.kv_groups)
      return error(Code::internal, "a sequence of the pass keeps {} groups of blocks, and {} were prepared",
                   sequence->layout().groups().size(), shape_.kv_groups);
    for (const kv::Group& group : sequence->layout().groups())
      if (!options_.blocks.layout && group.device != options_.device)
        return error(Code::internal, "a sequence of the pass is not on device {}", options_.device);
      else if (!group.is_state() && !group.ends && group.dtype != options_.kv_dtype)
        return error(Code::internal, "a sequence of the pass has its KV in {}, not in {}", info(group.dtype).name,
                     info(options_.kv_dtype).name);
  }
  return {};
}

/// Angles of every row's position, in double so that far positions stay exact; the same bits as the CPU executor's.
void GpuExecutor::fill_rope(std::size_t index) {
  const Rope& rope = program_->ropes[index];
  std::vector<float>& angles = cos_sin_[index];
  const std::int64_t half = rope.rotary / 2;
  std::int64_t furthest = 0;
  for (const kv::BatchRow& row : batch_->rows) furthest = std::max<std::int64_t>(furthest, row.position);
  auto made = static_cast<std::int64_t>(angles.size()) / rope.rotary;
  if (furthest >= made) angles.resize(static_cast<std::size_t>((furthest + 1) * rope.rotary));
  for (; made <= furthest; ++made) {
    for (std::int64_t i = 0; i < half; ++i)
      put_angle(rope, i, static_cast<double>(made), angles.data() + made * rope.rotary + i * 2);
  }
  auto* out = reinterpret_cast<float*>(rows_host_.data() + pass_rows_.cos_sin[index]);
  // A picture shifts places to before their positions, so that their angles are made.
  if (!rope.axes.empty() && !batch_->pictures.empty()) return fill_shifted(rope, angles, out);
  for (std::int64_t r = 0; r < rows_; ++r)
    std::memcpy(out + r * rope.rotary, angles.data() + batch_->rows[static_cast<std::size_t>(r)].position * rope.rotary,
                static_cast<std::size_t>(rope.rotary) * sizeof(float));
}

void GpuExecutor::fill_shifted(const Rope& rope, const std::vector<float>& angles, float* out) const {
  for (std::size_t r = 0; r < batch_->rows.size(); ++r)
    for (std::size_t i = 0; i < rope.axes.size(); ++i) {
      const std::int64_t place = batch_->rows[r].position + batch_->pictures[r].shift[rope.axes[i]];
      const float* const pair = angles.data() + place * rope.rotary + static_cast<std::int64_t>(i) * 2;
      *out++ = pair[0];
      *out++ = pair[1];
    }
}

/// The runs of rows that are a picture's, in order.
void GpuExecutor::find_pictures() {
  pictures_.clear();
  for (std::size_t r = 0; r < batch_->pictures.size(); ++r) {
    const float* const own = batch_->pictures[r].embedding;
    if (own == nullptr) continue;
    const auto row = static_cast<std::int64_t>(r);
    if (!pictures_.empty()) {
      PictureRun& run = pictures_.back();
      const bool goes_on = run.first + run.rows == row && own == run.states + run.rows * picture_cols_;
      if (goes_on) {
        ++run.rows;
        continue;
      }
    }
    pictures_.push_back({row, 1, own});
  }
}

/// Whether a row goes through the products of prompts.
bool GpuExecutor::is_prompt(std::int64_t row) const {
  return prompt_products_ != gpu::PromptProducts::none && batch_->rows[static_cast<std::size_t>(row)].prompt;
}

/// Where a window ends that may go up to `end`: not within a chunk of a prompt, nor a picture whose rows see each
/// other.
std::int64_t GpuExecutor::end_of_window(std::int64_t first, std::int64_t end) const {
  const std::vector<kv::PictureRow>& pictures = batch_->pictures;
  if (sees_ahead_ && !shape_.whole_rows && end < rows_) {
    const std::int64_t wanted = end;
    while (end > first && pictures[static_cast<std::size_t>(end - 1)].ahead > 0) --end;
    return end > first ? end : std::min(rows_, wanted + pictures[static_cast<std::size_t>(wanted - 1)].ahead);
  }
  const std::int64_t chunk = prompt_chunk();
  if (chunk == 1 || end == rows_ || !is_prompt(first) || !is_prompt(end)) return end;
  const auto row = [&](std::int64_t r) -> const kv::BatchRow& { return batch_->rows[static_cast<std::size_t>(r)]; };
  std::int64_t cut = end;
  while (cut > first && row(cut).sequence == row(cut - 1).sequence && row(cut).position % chunk != 0) --cut;
  return cut > first ? cut : end;
}

/// Cuts the pass into windows, of rows of prompts or of others, of about the same size.
void GpuExecutor::make_windows() {
  const std::int64_t most = work_rows(shape_), step = window_step(shape_);
  windows_.clear();
  for (std::int64_t first = 0, end = 0; first < rows_; first = end) {
    const bool prompt = is_prompt(first);
    for (end = first + 1; end < rows_ && is_prompt(end) == prompt;) ++end;
    const std::int64_t rows = end - first, count = (rows + most - 1) / most, even = (rows + count - 1) / count;
    const std::int64_t each = count == 1 ? rows : std::min(most, (even + step - 1) / step * step);
    for (std::int64_t at = first; at < end; at += windows_.back().rows)
      windows_.push_back({at, end_of_window(at, std::min(at + each, end)) - at, 0, 0, prompt});
  }
  // Few rows of generated tokens: of more the processor would be the slower way, and products of prompts are the GPU's.
  // Whoever computes them, the bits are the same.
  const bool generated =
      std::none_of(windows_.begin(), windows_.end(), [](const Window& window) { return window.prompt; });
  split_ = share_ != nullptr && rows_ <= kSplitRows && !adapts_shared_gates() && generated;
  adapts_before_ = only_adapter().has_value() && rows_ <= gpu::kMatvecRows && !split_ && generated;
}

/// Cuts a window's rows into tiles of one sequence for attention, behind those of the windows before it; where there
/// are plain groups, of one block, so that all of a tile's rows see the same blocks there.
void GpuExecutor::make_tiles(Window& window) {
  auto* tiles = reinterpret_cast<gpu::RowTile*>(rows_host_.data() + pass_rows_.tiles) + window.first_tile;
  const auto group = static_cast<std::int32_t>(shape_.group);
  const std::int32_t most = gpu::attention_tile_rows(group);
  const bool by_blocks = kv_layout().has_plain_groups();
  std::int64_t& count = window.tiles;
  for (std::int64_t r = 0; r < window.rows; ++r) {
    const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(window.first + r)];
    const bool parts = by_blocks && row.position % kv::kBlockTokens == 0;
    if (count == 0 || parts || tiles[count - 1].sequence != row.sequence || tiles[count - 1].rows >= most)
      tiles[count++] = {static_cast<std::int32_t>(r), 0, row.sequence, 0};
    ++tiles[count - 1].rows;
    tiles[count - 1].last_position = std::max(tiles[count - 1].last_position, row.position);
  }
}

/// Tables of where each sequence's blocks lie, one for each group.
void GpuExecutor::fill_blocks() {
  const std::int64_t width = max_blocks(shape_);
  for (std::size_t g = 0; g < pass_rows_.blocks.size(); ++g) {
    auto* table = reinterpret_cast<const std::byte**>(rows_host_.data() + pass_rows_.blocks[g]);
    for (const kv::SequenceState* const state : batch_->sequences)
      for (std::int64_t i = 0; i < width; ++i) {
        const std::byte* block = i < state->blocks() ? state->block(g, i) : nullptr;
        if (block != nullptr && options_.blocks.own_block) block = options_.blocks.own_block(g, block);
        *table++ = block;
      }
  }
}

/// Which runs of rows go over which blocks of states.
Status GpuExecutor::make_states() {
  std::vector<RowSpan> spans;
  for (Window& window : windows_) {
    window.first_states = spans.size() * static_cast<std::size_t>(shape_.state_groups);
    spans.push_back({window.first, window.rows});
  }
  MR_RETURN_IF_ERROR(make_state_runs(*batch_, spans, states_));
  if (options_.blocks.own_block) find_own_states();
  return {};
}

void GpuExecutor::find_own_states() {
  std::vector<std::size_t> groups;
  for (std::size_t g = 0; g < kv_layout().groups().size(); ++g)
    if (kv_layout().groups()[g].is_state()) groups.push_back(g);
  const auto own = [&](std::size_t group, const std::byte* block) {
    return block == nullptr ? nullptr : options_.blocks.own_block(group, block);
  };
  for (std::size_t t = 0; t < states_.tables.size(); ++t)
    for (std::int32_t r = 0; r < states_.tables[t].runs; ++r) {
      gpu::StateRun& run = states_.runs[states_.tables[t].first_run + static_cast<std::size_t>(r)];
      run.before = own(groups[t % groups.size()], run.before);
      run.after = const_cast<std::byte*>(own(groups[t % groups.size()], run.after));
    }
}

void GpuExecutor::fill_states() {
  std::byte* const host = rows_host_.data();
  std::ranges::copy(states_.runs, reinterpret_cast<gpu::StateRun*>(host + pass_rows_.state_runs));
  std::ranges::copy(states_.first_runs, reinterpret_cast<std::int32_t*>(host + pass_rows_.first_runs));
}

/// Which keys each row sees, for each of the program's sights.
Status GpuExecutor::fill_seen() {
  if (!sees_ahead_) return {};
  auto* out = reinterpret_cast<gpu::SeenKeys*>(rows_host_.data() + pass_rows_.seen);
  for (const Attention& attention : sights_) {
    MR_RETURN_IF_ERROR(fill_sight(attention, out));
    out += rows_;
  }
  return {};
}

Status GpuExecutor::fill_sight(const Attention& attention, gpu::SeenKeys* out) const {
  std::int64_t end = 0, segment = 0;  // of the text, and the segment's first row
  for (std::int64_t r = 0; r < rows_; ++r) {
    const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
    const std::int64_t ahead = batch_->pictures.empty() ? 0 : batch_->pictures[static_cast<std::size_t>(r)].ahead;
    const auto sequence_of = [&](std::int64_t at) { return batch_->rows[static_cast<std::size_t>(at)].sequence; };
    if ((attention.causal || attention.segments) && (r + ahead >= rows_ || sequence_of(r + ahead) != row.sequence))
      return error(Code::internal, "row {} of the pass sees {} rows behind it, which are not there", r, ahead);
    const auto window = static_cast<std::int32_t>(attention.window);
    gpu::SeenKeys& seen = out[r];
    seen = {window > 0 ? std::max(row.position - window + 1, 0) : 0, row.position + static_cast<std::int32_t>(ahead)};
    if (attention.segments) {
      seen.first = batch_->rows[static_cast<std::size_t>(segment)].position;
      if (ahead == 0) segment = r + 1;
    } else if (!attention.causal) {
      for (end = std::max(end, r + 1); end < rows_ && sequence_of(end) == row.sequence;) ++end;
      seen.last = batch_->rows[static_cast<std::size_t>(end - 1)].position;
      if (window > 0) seen.last = std::min(seen.last, row.position + window - 1);
    }
  }
  return {};
}

/// What a routing chooses in the routers' place.
void GpuExecutor::fill_chosen() {
  auto* chosen = reinterpret_cast<std::int32_t*>(rows_host_.data() + pass_rows_.chosen);
  for (std::int64_t layer = 0; layer < shape_.routed_layers; ++layer)
    for (const kv::BatchRow& row : batch_->rows)
      chosen = std::ranges::copy(options_.rows.routing->chosen(layer, row.position, row.sequence), chosen).out;
}

Status GpuExecutor::upload_rows() {
  const auto sequences = static_cast<std::int64_t>(batch_->sequences.size());
  make_windows();
  find_pictures();
  MR_RETURN_IF_ERROR(make_states());
  const StateSizes states{std::ssize(states_.runs), std::ssize(states_.first_runs)};
  for (const Window& part : windows_)
    if (part.rows > work_rows(shape_))
      return error(Code::unsupported,
                   "a picture's {} rows, which see each other, do not go through the GPU at once: {} rows do; give "
                   "--batch more, or use --device cpu",
                   part.rows, work_rows(shape_));
  pass_rows_ = make_pass_rows(shape_, rows_, logit_rows_, sequences, !few_rows(), sees_ahead_, states);
  std::byte* const host = rows_host_.data();
  auto* token = reinterpret_cast<std::int32_t*>(host + pass_rows_.token);
  auto* sequence = reinterpret_cast<std::int32_t*>(host + pass_rows_.sequence);
  auto* position = reinterpret_cast<std::int32_t*>(host + pass_rows_.position);
  auto* logit_row = reinterpret_cast<std::int32_t*>(host + pass_rows_.logit_row);
  std::int64_t furthest = 0;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
    token[r] = std::max(row.token, 0);  // a picture's: its own embedding takes the place of this one
    sequence[r] = row.sequence;
    position[r] = row.position;
    if (row.wants_logits) *logit_row++ = static_cast<std::int32_t>(r);
    if (!batch_->sequences[static_cast<std::size_t>(row.sequence)]->holds(row.position))
      return error(Code::internal, "row {} of the pass has no room at position {}", r, row.position);
    furthest = std::max<std::int64_t>(furthest, row.position);
  }
  if (top_only_) std::ranges::copy(draws_, reinterpret_cast<kernels::DrawRule*>(host + pass_rows_.draws));
  position_bound_ = static_cast<std::int64_t>(
      round_up(static_cast<std::uint64_t>(furthest + 1), static_cast<std::uint64_t>(kPositionStep)));
  if (given_cols_ > 0 && batch_->given == nullptr) return error(Code::internal, "the pass is handed no states");
  if (given_cols_ > 0)
    std::memcpy(given_host_.data(), batch_->given, static_cast<std::size_t>(rows_ * given_cols_) * sizeof(float));
  fill_blocks();
  MR_RETURN_IF_ERROR(fill_seen());
  fill_chosen();
  fill_scales();
  fill_states();
  for (std::size_t index = 0; index < program_->ropes.size(); ++index) fill_rope(index);
  for (std::size_t w = 0; w < windows_.size() && !few_rows() && shape_.group > 0; ++w) {
    if (w > 0) windows_[w].first_tile = windows_[w - 1].first_tile + windows_[w - 1].tiles;
    make_tiles(windows_[w]);
  }
  if (rows_ % shape_.merge != 0)
    return error(Code::internal, "{} rows of a pass, of which {} become one", rows_, shape_.merge);
  return {};
}

}  // namespace millrace::exec
