// Mixtures of experts on the CPU: route, sort rows by expert, compute each used expert once as soon as its bytes are in
// memory, and sum the stored results in the router's order.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "exec/cpu_executor.h"
#include "exec/expert_choice.h"
#include "exec/host_rows.h"
#include "exec/routing.h"

namespace millrace::exec {

struct CpuExecutor::MoeCall {
  Experts experts;
  Input input;  // of all rows
  std::int64_t model_dim = 0, ff = 0;
  bool quantize_hidden = false;

  // Of all experts, one after the other; null: none.
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  const float *inner_scale = nullptr, *up_scale = nullptr, *down_scale = nullptr;  // of each expert one

  /// The activation, scales and biases of an expert's gate and up.
  Gate gate_of(std::int32_t expert) const {
    const auto of = [&](const float* all) { return all == nullptr ? nullptr : all + expert * ff; };
    return {experts.activation,         of(gate_bias), of(up_bias), scale_of(inner_scale, expert),
            scale_of(up_scale, expert), experts.limit};
  }
  /// The scale and bias of an expert's down.
  Gate end_of(std::int32_t expert) const {
    const float* const bias = down_bias == nullptr ? nullptr : down_bias + expert * model_dim;
    return {experts.activation, bias, nullptr, scale_of(down_scale, expert)};
  }
  /// For an expert without a gate: the activation of its up.
  WeightRef gate(std::int32_t expert) const { return {experts.first_unit + expert, experts.first_part()}; }
  WeightRef up(std::int32_t expert) const { return {experts.first_unit + expert, experts.up_part}; }
  WeightRef down(std::int32_t expert) const { return {experts.first_unit + expert, experts.down_part}; }
};

void CpuExecutor::moe(Act out, Act x, Act routed, WeightRef router, std::int64_t layer, const Experts& experts) {
  if (!ready() || rows_ == 0) return;
  MoeCall call;
  call.experts = experts;
  call.model_dim = cols_of(x);
  call.ff = part(call.gate(0)).rows;
  call.quantize_hidden = kernels::uses_q8(part(call.down(0)).dtype);
  if (!experts.gate_bias.none()) {
    call.gate_bias = at<float>(layout_.gate_bias);
    call.up_bias = at<float>(layout_.up_bias);
    call.down_bias = at<float>(layout_.down_bias);
  }
  if (!experts.inner_scale.none()) call.inner_scale = at<float>(layout_.inner_scale);
  if (!experts.up_scale.none()) call.up_scale = at<float>(layout_.up_scale);
  if (!experts.down_scale.none()) call.down_scale = at<float>(layout_.down_scale);
  if (experts.count > shape_.experts || experts.top_k > shape_.top_k || call.ff > shape_.expert_ff ||
      call.model_dim > shape_.model_dim) {
    fail(error(Code::internal, "a mixture of {} experts of {} was not prepared", experts.count, call.ff));
    return;
  }
  score(routed, router, experts);
  if (!failed()) route(experts, rows_);
  if (failed()) return;
  reroute(layer, experts);
  sort_by_expert(experts, rows_);
  const std::size_t index = next_mixture_++;
  count_guesses(index, experts.count);
  bring_biases(experts);
  drop_leases();  // so that the disk can fill the trunk's slot while the experts compute
  if (failed()) return;
  call.input = prepare_input(x, kernels::uses_q8(part(call.gate(0)).dtype) || kernels::uses_q8(part(call.up(0)).dtype));
  run_experts(call, index);
  if (!failed()) combine(data(out), rows_, cols_of(out), experts.top_k);
}

// --- Routing ---

/// Computes the router's scores of each row.
void CpuExecutor::score(Act routed, WeightRef router, const Experts& experts) {
  auto* scores = at<float>(layout_.router);
  const Target target{router, scores, experts.count, {}};
  const Input input = prepare_input(routed, kernels::uses_q8(part(router).dtype));
  show(std::span(&router, 1), input);
  run_products(std::span(&target, 1), input, Effect::store);
  adapt(std::span(&target, 1), input, nullptr);
  if (failed() || experts.router_bias.none()) return;
  const float* bias = vector_of(experts.router_bias, experts.count, 0);
  for (std::int64_t r = 0; r < rows_ && bias != nullptr; ++r)
    table_.add(scores + r * experts.count, bias, experts.count);
}

/// Copies the biases of the chosen experts and the scales of all experts, because the trunk must not be leased while
/// experts are.
void CpuExecutor::bring_biases(const Experts& experts) {
  if (!experts.gate_bias.none()) {
    const std::int64_t ff = part({experts.first_unit, experts.up_part}).rows;
    const std::int64_t model_dim = part({experts.first_unit, experts.down_part}).rows;
    bring_biases_of(experts, experts.gate_bias, ff, layout_.gate_bias);
    bring_biases_of(experts, experts.up_bias, ff, layout_.up_bias);
    bring_biases_of(experts, experts.down_bias, model_dim, layout_.down_bias);
  }
  const std::pair<WeightRef, std::uint64_t> scales[] = {{experts.inner_scale, layout_.inner_scale},
                                                        {experts.up_scale, layout_.up_scale},
                                                        {experts.down_scale, layout_.down_scale}};
  for (const auto& [ref, to] : scales) {
    if (failed() || ref.none()) continue;
    const float* from = vector_of(ref, experts.count, 0);
    if (from != nullptr) std::copy_n(from, experts.count, at<float>(to));
  }
}

void CpuExecutor::bring_biases_of(const Experts& experts, WeightRef ref, std::int64_t cols, std::uint64_t to) {
  if (failed()) return;
  const std::byte* bytes = lease_now(pieces_.pieces(ref)[0]);
  if (bytes == nullptr) return;
  const auto* first = at<std::int32_t>(layout_.expert_first);
  const std::size_t row_bytes = static_cast<std::size_t>(cols) * sizeof(float);
  for (std::int32_t e = 0; e < experts.count; ++e) {
    const std::size_t skip = static_cast<std::size_t>(e) * row_bytes;
    if (first[e] != first[e + 1]) std::memcpy(at<std::byte>(to) + skip, bytes + skip, row_bytes);
  }
}

/// The experts that a table has of each row's token.
void CpuExecutor::bring_experts_of_tokens(const Experts& experts) {
  const residency::Part& table = part(experts.of_tokens);
  auto* const chosen = at<std::int32_t>(layout_.chosen);
  for (const kv::BatchRow& row : batch_->rows)
    if (row.token < 0 || row.token >= table.rows)
      return fail(
          error(Code::invalid_argument, "token {} has no row in {}, which has {}", row.token, table.name, table.rows));
  const std::int64_t bytes = row_bytes(table.dtype, table.cols);
  for (const Piece& piece : pieces_.pieces(experts.of_tokens)) {
    const auto inside = [&](const kv::BatchRow& row) {
      return row.token >= piece.row_begin && row.token < piece.row_end;
    };
    if (std::none_of(batch_->rows.begin(), batch_->rows.end(), inside)) continue;
    const std::byte* const base = lease_now(piece);
    if (base == nullptr) return;
    for (std::int64_t r = 0; r < rows_; ++r) {
      const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
      if (inside(row))
        std::memcpy(chosen + r * experts.top_k, base + (row.token - piece.row_begin) * bytes,
                    static_cast<std::size_t>(bytes));
    }
  }
  for (std::int64_t i = 0; i < rows_ * experts.top_k; ++i)
    if (chosen[i] < 0 || chosen[i] >= experts.count)
      return fail(error(Code::corrupt, "{} sends token {} to expert {} of {}; the file is damaged", table.name,
                        batch_->rows[static_cast<std::size_t>(i / experts.top_k)].token, chosen[i], experts.count));
}

/// The experts of each row, in the router's order, and their weights.
void CpuExecutor::route(const Experts& experts, std::int64_t rows) {
  const float* bias = nullptr;  // of the choice
  if (!experts.selection_bias.none()) {
    bias = vector_of(experts.selection_bias, experts.count, 0);
    if (bias == nullptr) return;
  }
  if (!experts.of_tokens.none()) {
    bring_experts_of_tokens(experts);
    if (failed()) return;
  }
  auto* scores = at<float>(layout_.router);
  auto* selection = at<float>(layout_.selection);
  auto* chosen = at<std::int32_t>(layout_.chosen);
  auto* weights = at<float>(layout_.chosen_weight);
  constexpr std::int64_t kCostOfScore = 8;  // exponential and selection, in floats moved
  for_rows(rows, experts.count * kCostOfScore, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      choose_experts(table_, experts, bias, scores + r * experts.count, selection + r * experts.count,
                     chosen + r * experts.top_k, weights + r * experts.top_k);
  });
  for (const WeightRef scale : {experts.output_scale, experts.hidden_scale}) {
    if (scale.none()) continue;
    const float* scales = vector_of(scale, experts.count, 0);
    for (std::int64_t i = 0; i < rows * experts.top_k && scales != nullptr; ++i) weights[i] *= scales[chosen[i]];
  }
}

/// If a routing replaces the routers, its experts get the weights of the experts that the routers chose.
void CpuExecutor::reroute(std::int64_t layer, const Experts& experts) {
  auto* chosen = at<std::int32_t>(layout_.chosen);
  for (std::int64_t r = 0; r < rows_ && options_.routing != nullptr; ++r) {
    const kv::BatchRow& row = batch_->rows[static_cast<std::size_t>(r)];
    std::ranges::copy(options_.routing->chosen(layer, row.position, row.sequence), chosen + r * experts.top_k);
  }
  if (options_.record != nullptr)
    options_.record->add(layer, {chosen, static_cast<std::size_t>(rows_ * experts.top_k)});
}

/// Counting sort of the (row, place) entries by expert; within an expert by row.
void CpuExecutor::sort_by_expert(const Experts& experts, std::int64_t rows) {
  const auto* chosen = at<std::int32_t>(layout_.chosen);
  auto* entry_row = at<std::int32_t>(layout_.entry_row);
  auto* entry_of = at<std::int32_t>(layout_.entry_of);
  auto* first = at<std::int32_t>(layout_.expert_first);
  const std::int64_t entries = rows * experts.top_k;
  std::fill(first, first + experts.count + 1, 0);
  for (std::int64_t i = 0; i < entries; ++i) ++first[chosen[i]];
  for (std::int32_t e = 1; e <= experts.count; ++e) first[e] += first[e - 1];  // ends, for now
  for (std::int64_t i = entries - 1; i >= 0; --i) {
    entry_of[i] = --first[chosen[i]];
    entry_row[entry_of[i]] = static_cast<std::int32_t>(i / experts.top_k);
  }
}

/// out = the stored results of each row's experts, added in the router's order.
void CpuExecutor::combine(float* out, std::int64_t rows, std::int64_t cols, std::int64_t top_k) {
  const auto* entry_of = at<std::int32_t>(layout_.entry_of);
  const auto* weights = at<float>(layout_.chosen_weight);
  const auto* results = at<float>(layout_.expert_out);
  for_rows(rows, cols * top_k, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::fill(out + r * cols, out + (r + 1) * cols, 0.0f);
      for (std::int64_t i = r * top_k; i < (r + 1) * top_k; ++i) {
        table_.add_scaled(out + r * cols, results + entry_of[i] * cols, weights[i], cols);
      }
    }
  });
}

// --- The experts ---

bool CpuExecutor::single_tile(std::int32_t unit) const {
  const residency::UnitTable::Range range = store_.units().tiles_of(unit);
  return range.last - range.first == 1;
}

/// `index`: of the mixture in a pass.
void CpuExecutor::run_experts(const MoeCall& call, std::size_t index) {
  const auto* first = at<std::int32_t>(layout_.expert_first);
  // What adapters add has to be added before gate and up meet: then each expert goes by itself.
  const bool adapted = adapts_experts(call.experts);
  const auto goes_in_waves = [&](std::int32_t e) { return !adapted && single_tile(call.experts.first_unit + e); };
  waiting_.clear();
  leased_.clear();
  for (std::int32_t e = 0; e < call.experts.count; ++e) {
    if (first[e] != first[e + 1] && goes_in_waves(e)) waiting_.push_back(e);
  }
  bool guessed = false;
  while (!waiting_.empty() || !leased_.empty()) {
    if (ready()) lease_experts(call);
    if (!std::exchange(guessed, true) && !failed()) guess_next(index);  // after the reads that are needed now
    if (waiting_.empty()) read_ahead();
    const std::size_t members = failed() ? 0 : gather_wave(call);
    if (failed()) return leased_.clear();
    run_wave(call, members);
    leased_.erase(leased_.begin(), leased_.begin() + static_cast<std::ptrdiff_t>(members));
  }
  for (std::int32_t e = 0; e < call.experts.count && !failed(); ++e) {
    if (first[e] != first[e + 1] && !goes_in_waves(e)) run_large_expert(call, e);
  }
}

/// Leases waiting experts as far as slots allow: first those in memory, so that the reads of the others cannot evict
/// them. At least one expert is leased in the end.
void CpuExecutor::lease_experts(const MoeCall& call) {
  const auto tile_of = [&](std::int32_t expert) {
    return store_.units().tiles_of(call.experts.first_unit + expert).first;
  };
  for (const bool present_only : {true, false}) {
    bool full = false;
    std::erase_if(waiting_, [&](std::int32_t expert) {
      if (full || (present_only && !store_.present(tile_of(expert)))) return false;
      std::optional<residency::Lease> lease = try_lease(tile_of(expert));
      full = !lease;
      if (lease) leased_.push_back({expert, std::move(*lease), 0});
      return !full;
    });
  }
  if (!leased_.empty()) return;
  Expected<residency::Lease> lease = take_lease(tile_of(waiting_.front()));
  if (!lease.ok()) return fail(lease.status());
  leased_.push_back({waiting_.front(), std::move(lease).value(), 0});
  waiting_.erase(waiting_.begin());
}

/// Moves the experts of the next wave to the front of leased_ and returns their number: those in memory, as far as the
/// hidden rows have room, and at least one, for which it waits if necessary.
std::size_t CpuExecutor::gather_wave(const MoeCall& call) {
  const auto* first = at<std::int32_t>(layout_.expert_first);
  std::size_t members = 0;
  std::int64_t entries = 0;
  for (const bool may_wait : {false, true}) {
    for (std::size_t i = members; i < leased_.size() && members < jobs_.capacity(); ++i) {
      const std::int64_t rows = first[leased_[i].expert + 1] - first[leased_[i].expert];
      const bool fits = entries + rows <= layout_.hidden_entries && rows * call.ff > 0;
      if (!fits || !(may_wait || leased_[i].lease.ready())) continue;
      if (!wait_for(leased_[i].lease)) return 0;
      leased_[i].hidden_first = entries;
      entries += rows;
      if (i != members) std::swap(leased_[i], leased_[members]);
      ++members;
      if (may_wait) break;
    }
    if (members > 0) break;
  }
  return members;
}

/// Passes the input of an expert's gate and up to the observer.
void CpuExecutor::show_inner(const MoeCall& call, std::int32_t expert, const Input& input) const {
  const std::array weights{call.gate(expert), call.up(expert)};
  show(std::span(weights).first(call.experts.gated() ? 2 : 1), input);
}

/// Computes the first `members` of leased_: hidden = activation(x gate^T) * (x up^T), or activation(x up^T), then the
/// results, which go to their entries.
void CpuExecutor::run_wave(const MoeCall& call, std::size_t members) {
  const auto* first = at<std::int32_t>(layout_.expert_first);
  auto* hidden = at<float>(layout_.hidden);
  const auto bytes_of = [&](const LeasedExpert& member, WeightRef ref) {
    return member.lease.segment(static_cast<std::size_t>(pieces_.pieces(ref)[0].segment));
  };
  std::int64_t entries = 0;
  std::optional<TraceZone> zone(std::in_place, options_.trace, "experts: gate, up");
  jobs_.clear();
  for (std::size_t i = 0; i < members; ++i) {
    const LeasedExpert& member = leased_[i];
    Input input = call.input;
    input.rows = first[member.expert + 1] - first[member.expert];
    input.index = at<std::int32_t>(layout_.entry_row) + first[member.expert];
    const WeightRef gate = call.gate(member.expert), up = call.up(member.expert);
    show_inner(call, member.expert, input);
    Job job = make_job(gate, bytes_of(member, gate), 0, call.ff,
                       {gate, hidden + member.hidden_first * call.ff, call.ff, call.gate_of(member.expert)}, input,
                       call.experts.gated() ? Effect::gated : Effect::activate);
    job.up = bytes_of(member, up);
    job.up_dtype = part(up).dtype;
    jobs_.push_back(job);
    entries += input.rows;
  }
  run_jobs();

  zone.emplace(options_.trace, "experts: down");
  Input down_input;
  down_input.cols = call.ff;
  const kernels::Q8Rows q8 = kernels::q8_rows_at(at<std::byte>(layout_.hidden_q8), entries, call.ff);
  if (call.quantize_hidden) quantize_rows(table_, pool_, hidden, entries, call.ff, q8);
  jobs_.clear();
  for (std::size_t i = 0; i < members; ++i) {
    const LeasedExpert& member = leased_[i];
    const std::int64_t at_row = member.hidden_first;
    down_input.x = hidden + at_row * call.ff;
    if (call.quantize_hidden) {
      down_input.q8 = {q8.q + at_row * call.ff, q8.d + at_row * (call.ff / 32), q8.sum16 + at_row * (call.ff / 16)};
    }
    down_input.rows = first[member.expert + 1] - first[member.expert];
    const WeightRef down = call.down(member.expert);
    show(std::span(&down, 1), down_input);
    const Target target{down, at<float>(layout_.expert_out) + first[member.expert] * call.model_dim, call.model_dim,
                        call.end_of(member.expert)};
    jobs_.push_back(make_job(down, bytes_of(member, down), 0, call.model_dim, target, down_input, Effect::store));
  }
  run_jobs();
}

/// An expert cut into several tiles, or one that adapters add to: like a dense feed-forward over its rows, tile by
/// tile.
void CpuExecutor::run_large_expert(const MoeCall& call, std::int32_t expert) {
  const auto* first = at<std::int32_t>(layout_.expert_first);
  auto* hidden = at<float>(layout_.hidden);
  Input input = call.input;
  input.rows = first[expert + 1] - first[expert];
  input.index = at<std::int32_t>(layout_.entry_row) + first[expert];
  show_inner(call, expert, input);
  const Target target_of_gate{call.gate(expert), hidden, call.ff, call.gate_of(expert)};
  const WeightRef up = call.experts.gated() ? call.up(expert) : WeightRef();
  if (adapts(call.gate(expert)) || adapts(up))
    adapt_gated(target_of_gate, up, input, input.index);
  else if (call.experts.gated())
    gated(target_of_gate, call.up(expert), input);
  else
    run_products(std::span(&target_of_gate, 1), input, Effect::activate);
  if (failed()) return;
  Input down_input;
  down_input.x = hidden;
  down_input.cols = call.ff;
  down_input.rows = input.rows;
  if (call.quantize_hidden) {
    down_input.q8 = kernels::q8_rows_at(at<std::byte>(layout_.hidden_q8), input.rows, call.ff);
    quantize_rows(table_, pool_, hidden, input.rows, call.ff, down_input.q8);
  }
  const Target target{call.down(expert), at<float>(layout_.expert_out) + first[expert] * call.model_dim, call.model_dim,
                      call.end_of(expert)};
  show(std::span(&target.weight, 1), down_input);
  run_products(std::span(&target, 1), down_input, Effect::store);
  adapt(std::span(&target, 1), down_input, input.index);
}

}  // namespace millrace::exec
