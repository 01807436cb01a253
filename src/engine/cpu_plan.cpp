#include "engine/cpu_plan.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/step_cost.h"
#include "engine/within.h"
#include "exec/stage_message.h"
#include "residency/budget.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kAutomaticBatch = 512;
constexpr std::int64_t kAutomaticChunk = 128;
constexpr std::int64_t kLeastBatch = 8;
constexpr std::int64_t kLeastRowsAtHome = 32;  // rows of a pass are reduced to this to keep weights in memory
constexpr std::uint64_t kLeastTile = 64 * kKiB, kMostTile = 16 * kMiB;
// The measured part differs by less than this from run to run: how much of the program is mapped depends on its random
// load address (900 kB over 300 runs, evenly distributed).
constexpr std::uint64_t kMeasurementSpread = 1 * kMiB;

}  // namespace

std::uint64_t automatic_tile(std::uint64_t ram_bytes) {
  return std::clamp(round_down(ram_bytes / 32, device::kPageBytes), kLeastTile, kMostTile);
}

bool is_mapped(const Parts& parts) { return parts.backend->in_place(0, 0, 1) != nullptr; }

CpuPlanner::CpuPlanner(const EngineOptions& options, std::uint64_t ram_bytes, std::uint64_t program_bytes, Parts& parts)
    : options_(options),
      demand_(options),
      ram_(ram_bytes),
      program_bytes_(program_bytes),
      parts_(parts),
      layout_(kv_layout(*parts.model, options)),
      shares_out_(shares_out(options.demand)),
      tile_bytes_(parts.limits.tile_bytes) {
  const model::Hyperparameters& hp = parts.model->hyperparameters();
  const SharedMemory memory{
      .cap_bytes = ram_,
      // Activations take no more than an eighth.
      .taken_bytes = parts.model->units().total_bytes() + program_bytes_ + parts.adapter_bytes + ram_ / 8,
      .weights_give_way = true,
      .kv_bytes = [this](std::int64_t tokens, std::int64_t sequences) {
        return kv_bytes({tokens, sequences, wanted_rows() * options_.part.ranks});
      }};
  share_out(hp, memory, demand_);
}

bool CpuPlanner::room_to_map() const {
  const Limits limits = roomy_limits();
  return fixed_bytes(limits, program_bytes_) + kv_bytes(kv_load(limits)) + parts_.model->units().total_bytes() <= ram_;
}

std::uint64_t CpuPlanner::sampler_bytes() const {
  const std::int64_t sequences = std::max<std::int64_t>(1, demand_.max_sequences);
  return static_cast<std::uint64_t>(sequences * parts_.model->hyperparameters().vocab) * Sampler::kBytesPerToken;
}

Status CpuPlanner::plan() {
  const model::Hyperparameters& hp = parts_.model->hyperparameters();
  if (hp.most_positions > 0 && demand_.context_tokens > hp.most_positions)
    log::warn("a context of {} tokens was asked for; this model has {} positions, and no longer one",
              demand_.context_tokens, hp.most_positions);
  else if (demand_.context_tokens > hp.context_length)
    log::warn("a context of {} tokens is more than the {} this model was trained for", demand_.context_tokens,
              hp.context_length);
  return fit_sequences(shares_out_, demand_, [this] { return plan_once(); });
}

Status CpuPlanner::plan_once() {
  if (parts_.limits.tile_bytes != tile_bytes_) MR_RETURN_IF_ERROR(recut(tile_bytes_));
  front_layers_ = front_of(options_, parts_);
  // Layers that were requested take precedence over large passes.
  if (front_layers_ > 0 && fit_front().ok()) return plan_weights();
  if (front_layers_ > 0) front_layers_ = 0;
  parts_.limits = roomy_limits();
  Status status = fit_limits(demand_, rules(), parts_.limits, [this] { return try_limits(0); });
  if (status.code() == Code::out_of_budget && options_.memory.tile_bytes == 0 &&
      parts_.limits.tile_bytes > kLeastTile) {
    MR_RETURN_IF_ERROR(recut(kLeastTile));
    status = try_limits(0);
  }
  if (status.ok()) return plan_at_home();
  // The size in the message must also work in the next run, whose program may be measured slightly larger.
  if (status.code() == Code::out_of_budget && !options_.memory.exact_budget) return try_limits(kMeasurementSpread);
  return status;
}

/// Makes the plan, and reduces the rows of a pass if that is enough to keep weights in memory that every pass or token
/// would read: a prompt in pieces costs little as long as no piece reads the weights again.
Status CpuPlanner::plan_at_home() {
  MR_RETURN_IF_ERROR(plan_weights());
  if (demand_.batch_tokens > 0 || options_.planning.follow != nullptr || front_layers_ != 0 || is_mapped(parts_))
    return {};
  const residency::UnitTable& units = parts_.model->units();
  const std::int32_t embedding = units.find(residency::UnitKind::embedding);
  enum Reads : std::uint8_t { nothing, rows, weights };
  const auto reads = [&] {
    if (residency::reads_disk(units, parts_.plan)) return weights;
    const bool table =
        embedding >= 0 && parts_.plan.homes[static_cast<std::size_t>(embedding)] == residency::Tier::disk;
    return table ? rows : nothing;
  };
  Reads best = reads();
  Limits limits = parts_.limits;
  const Limits roomy = limits;
  const std::int64_t least = std::max(kLeastRowsAtHome, limits.sequences);
  for (std::int64_t fewer = roomy.batch_tokens / 2; best != nothing && fewer >= least; fewer /= 2) {
    parts_.limits = roomy;
    set_rows(demand_, rules(), fewer, parts_.limits);
    parts_.limits.logit_rows = std::min(roomy.logit_rows, std::max(roomy.sequences, parts_.limits.batch_tokens));
    MR_RETURN_IF_ERROR(plan_weights());
    if (reads() >= best) continue;
    best = reads();
    limits = parts_.limits;
  }
  if (limits.batch_tokens < roomy.batch_tokens)
    log::info("{} rows a pass, not {}: then {} in memory", limits.batch_tokens, roomy.batch_tokens,
              best == rows ? "all weights but a table stay" : "all weights stay");
  if (parts_.limits.batch_tokens == limits.batch_tokens) return {};
  parts_.limits = limits;
  return plan_weights();
}

/// Chooses limits that leave room for the front. Errors: out_of_budget.
Status CpuPlanner::fit_front() {
  parts_.limits = roomy_limits();
  return fit_limits(demand_, rules(), parts_.limits, [this]() -> Status {
    MR_RETURN_IF_ERROR(try_limits(0));
    return parts_.plan.front_layers > 0 ? Status() : error(Code::out_of_budget, "no room for the first layers");
  });
}

/// Cuts the units again, with another tile size.
Status CpuPlanner::recut(std::uint64_t tile_bytes) {
  modelfile::OpenOptions no_words;
  no_words.skip_vocabulary = true;
  parts_.limits.tile_bytes = tile_bytes;
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, open_file(options_, no_words));
  const model::LoadOptions how{tile_bytes, demand_.context_tokens, false, options_.part.stage};
  std::vector<std::string> paths = file.paths();
  auto loaded = parts_.model->draft_passes() != nullptr
                    ? load_with_drafter(options_, file, how, DraftUnits::aside, paths)
                    : model::load(file, how);
  if (!loaded.ok()) return loaded.status();
  parts_.model = std::move(*loaded);
  return {};
}

std::int64_t CpuPlanner::wanted_rows() const {
  return demand_.batch_tokens > 0 ? demand_.batch_tokens : kAutomaticBatch;
}

LimitRules CpuPlanner::rules() const {
  return {.least_batch = std::min(kLeastBatch, std::max<std::int64_t>(1, wanted_rows())),
          .chunk_tokens = kAutomaticChunk,
          .whole_prompts = !parts_.model->program().is_causal(),
          .fewer_logits = true};
}

Limits CpuPlanner::roomy_limits() const {
  const model::Hyperparameters& hp = parts_.model->hyperparameters();
  Limits limits = parts_.limits;
  limits.sequences = std::max<std::int64_t>(1, demand_.max_sequences);
  limits.context_tokens = wanted_context(demand_, hp);
  if (demand_.context_tokens == 0) {
    const std::int64_t sharers = demand_.kv_tokens > 0 ? 1 : limits.sequences;
    const std::int64_t affordable = affordable_context(ram_ / 2, sharers, whole_blocks(limits.context_tokens));
    limits.context_tokens =
        std::max(std::min(hp.context_length, kLeastContext), std::min(limits.context_tokens, affordable));
  }
  set_rows(demand_, rules(), wanted_rows(), limits);
  const std::int64_t least = std::max(rules().least_batch, limits.sequences);
  while (limits.batch_tokens > least && activation_bytes(limits, logit_rows(limits)) > ram_ / 8)
    limits.batch_tokens = std::max(least, limits.batch_tokens - kLeastBatch);
  limits.logit_rows = logit_rows(limits);
  set_rows(demand_, rules(), limits.batch_tokens, limits);
  return limits;
}

/// The longest context, in whole blocks, with which `sequences` fit into this many bytes.
std::int64_t CpuPlanner::affordable_context(std::uint64_t bytes, std::int64_t sequences, std::int64_t most) const {
  std::int64_t fits = 0, too_long = most / kv::kBlockTokens + 1;  // blocks
  while (too_long - fits > 1) {
    const std::int64_t middle = fits + (too_long - fits) / 2;
    const bool fit =
        kv_bytes({middle * kv::kBlockTokens * sequences, sequences, wanted_rows() * options_.part.ranks}) <= bytes;
    (fit ? fits : too_long) = middle;
  }
  return fits * kv::kBlockTokens;
}

/// One row of logits for each live sequence; more for the logits of whole prompts (tests, perplexity) if rows are
/// small, and still more if the options ask for them.
std::int64_t CpuPlanner::logit_rows(const Limits& limits) const {
  const bool asked = demand_.logit_rows > 0;
  const auto row_bytes = parts_.model->hyperparameters().vocab * static_cast<std::int64_t>(sizeof(float));
  const auto affordable = static_cast<std::int64_t>(ram_ / (asked ? 16 : 64)) / row_bytes;
  const std::int64_t wanted = asked ? std::min(demand_.logit_rows, limits.batch_tokens) : limits.batch_tokens;
  return std::max(limits.sequences, std::min(wanted, affordable));
}

std::uint64_t CpuPlanner::activation_bytes(const Limits& limits, std::int64_t logit_rows) const {
  exec::PassLimits pass = pass_limits(limits);
  pass.max_logit_rows = logit_rows;
  return exec::cpu_activation_bytes(exec::pass_shape(parts_.model->program(), parts_.model->units(), pass),
                                    parts_.pool->threads(), {parts_.isa, true});
}

std::uint64_t CpuPlanner::fixed_bytes(const Limits& limits, std::uint64_t program_bytes) const {
  return program_bytes + sampler_bytes() + parts_.adapter_bytes + activation_bytes(limits, limits.logit_rows) +
         (front_layers_ != 0 ? within_bytes(options_, parts_) : 0) + message_bytes(limits);
}

/// The memory for messages of a stage.
std::uint64_t CpuPlanner::message_bytes(const Limits& limits) const {
  if (parts_.model->stage().whole()) return 0;
  const model::Hyperparameters& hp = parts_.model->hyperparameters();
  return exec::stage_message_bytes({hp.model_dim, hp.vocab}, pass_limits(limits), options_.part.ranks);
}

/// Whether the limits fit when every context is full.
Status CpuPlanner::try_limits(std::uint64_t spread) {
  const Limits& limits = parts_.limits;
  const std::uint64_t mapped =
      fixed_bytes(limits, program_bytes_ + spread) + kv_bytes(kv_load(limits)) + parts_.model->units().total_bytes();
  if (is_mapped(parts_) && mapped > ram_)
    return error(Code::out_of_budget,
                 "storage mmap keeps the whole model in RAM, {} in all; give at least --ram {} or another --storage",
                 format_bytes(mapped), residency::ram_argument(mapped));
  return make_plan(limits.kv_tokens, program_bytes_ + spread);
}

/// The initial plan. KV grows block by block and the weight store shrinks for it, so at first the weights get
/// everything except one block per sequence; the caller has checked that full contexts fit.
Status CpuPlanner::plan_weights() {
  const Limits& limits = parts_.limits;
  const std::int64_t kv_tokens = std::min(limits.kv_tokens, kv::kBlockTokens * limits.sequences);
  // Weights that never shrink must have room even when every context is full.
  front_layers_ = parts_.plan.front_layers;
  if (options_.planning.follow == nullptr) return make_plan(kv_tokens, program_bytes_);
  set_plan_options(kv_tokens, program_bytes_);
  MR_ASSIGN_OR_RETURN(residency::FollowedPlan followed,
                      residency::follow_plan(parts_.model->units(), options_.planning.follow->decisions,
                                             parts_.plan_options, parts_.rates));
  if (followed.gave_way_bytes > 0)
    log::warn("the plan kept {} more in RAM than the budget has room for now; they stream",
              format_bytes(followed.gave_way_bytes));
  parts_.plan = std::move(followed.plan);
  return {};
}

Status CpuPlanner::make_plan(std::int64_t kv_tokens, std::uint64_t program_bytes) {
  set_plan_options(kv_tokens, program_bytes);
  MR_ASSIGN_OR_RETURN(parts_.plan, residency::make_plan(parts_.model->units(), parts_.plan_options, parts_.rates));
  return {};
}

void CpuPlanner::set_plan_options(std::int64_t kv_tokens, std::uint64_t program_bytes) {
  const Limits& limits = parts_.limits;
  residency::PlanOptions& plan_options = parts_.plan_options;
  plan_options.ram_bytes = ram_;
  plan_options.fixed_bytes = fixed_bytes(limits, program_bytes);
  kv::Load load = kv_load(limits);
  load.tokens = whole_blocks(kv_tokens);
  plan_options.kv_bytes = kv_bytes(load);
  plan_options.context_tokens = load.tokens;
  plan_options.most_kv_bytes = kv_bytes(kv_load(limits));
  plan_options.passes = pass_demand(*parts_.model, layout_);
  plan_options.passes.tokens = limits.batch_tokens;
  plan_options.experts.routing = routing_guess(options_, parts_.routing.get());
  plan_options.experts.most_slots = options_.experts.ram_slots;
  plan_options.front_layers = front_layers_;
}

}  // namespace millrace::engine
