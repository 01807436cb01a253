#include "engine/setup.h"

#include <malloc.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "device/cpu.h"
#include "device/gpu.h"
#include "engine/device_choice.h"
#include "kv/model_identity.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kAutomaticBatch = 512;
constexpr std::int64_t kAutomaticChunk = 128;
constexpr std::int64_t kLeastBatch = 8;
constexpr std::uint64_t kLeastTile = 64 * kKiB, kMostTile = 16 * kMiB;
// Less than two of the largest tiles: both would come in one moment, and while the first is computed with nothing would
// be read. Far more than a disk's rate times its latency.
constexpr std::uint64_t kBytesInFlight = 12 * kMiB;

// Below it, the code that only the start needs (2 MB) would be missed by weights.
constexpr std::uint64_t kSmallBudget = 64 * kMiB;

// What the process takes after it was measured: pages of code first used by a pass, thread stacks, requests.
constexpr std::uint64_t kProgramMargin = 1200 * kKiB;
// Between one run and the next the measured part differs by less than this: what of the program is mapped at once
// depends on where it lies, which is drawn anew (900 kB over 300 runs, evenly spread).
constexpr std::uint64_t kMeasurementSpread = 1 * kMiB;

std::uint64_t automatic_tile(std::uint64_t ram) {
  return std::clamp(round_down(ram / 32, device::kPageBytes), kLeastTile, kMostTile);
}

std::int64_t whole_blocks(std::int64_t tokens) {
  return static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(tokens), kv::kBlockTokens));
}

/// What KV takes of the budget: BlockPool reserves whole pages a block.
std::uint64_t kv_bytes(const kv::Layout& layout, const kv::Load& load) {
  std::uint64_t bytes = 0;
  for (const kv::Group& group : layout.groups())
    bytes += static_cast<std::uint64_t>(kv::most_blocks(group, load)) *
             round_up(static_cast<std::uint64_t>(group.block_bytes()), device::kPageBytes);
  return bytes;
}

/// The longest context, in whole blocks, of which `sequences` fit into so many bytes.
std::int64_t affordable_context(const kv::Layout& layout, std::uint64_t bytes, std::int64_t sequences,
                                std::int64_t pass_rows, std::int64_t most) {
  std::int64_t fits = 0, too_long = most / kv::kBlockTokens + 1;  // blocks
  while (too_long - fits > 1) {
    const std::int64_t middle = fits + (too_long - fits) / 2;
    const bool fit = kv_bytes(layout, {middle * kv::kBlockTokens * sequences, sequences, pass_rows}) <= bytes;
    (fit ? fits : too_long) = middle;
  }
  return fits * kv::kBlockTokens;
}

/// Cuts the units anew, at another size.
Status recut(const EngineOptions& options, std::uint64_t tile_bytes, Parts& parts) {
  modelfile::OpenOptions no_words;
  no_words.skip_vocabulary = true;
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(options.model_path, no_words));
  MR_ASSIGN_OR_RETURN(parts.model, model::load(file, {tile_bytes, options.context_tokens}));
  return {};
}

bool is_mapped(const Parts& parts) { return parts.backend->in_place(0, 0, 1) != nullptr; }

/// Chooses limits from the budget and plans; when the plan does not fit, makes the limits smaller until it does.
class Planner {
 public:
  Planner(const EngineOptions& options, std::uint64_t ram, std::uint64_t program_bytes, Parts& parts)
      : options_(options),
        ram_(ram),
        program_bytes_(program_bytes),
        parts_(parts),
        layout_(kv_layout(*parts.model, options.kv_dtype, kv::kOnHost)),
        shares_out_(shares_out(options)) {
    if (shares_out_) share_out();
  }

  /// A mapped model counts whole. False: with limits as wide as this budget allows there is no room for that.
  bool room_to_map() const {
    const Limits limits = roomy_limits();
    return fixed_bytes(limits, program_bytes_) + kv_bytes(limits) + parts_.model->units().total_bytes() <= ram_;
  }

  /// Candidates of every sequence's sampler, should it look at all tokens.
  std::uint64_t sampler_bytes() const {
    const std::int64_t sequences = std::max<std::int64_t>(1, options_.max_sequences);
    return static_cast<std::uint64_t>(sequences * parts_.model->hyperparameters().vocab) * Sampler::kBytesPerToken;
  }

  Status plan() {
    const model::Hyperparameters& hp = parts_.model->hyperparameters();
    if (options_.context_tokens > hp.context_length)
      log::warn("a context of {} tokens is more than the {} this model was trained for", options_.context_tokens,
                hp.context_length);
    const std::uint64_t tile_bytes = parts_.limits.tile_bytes;
    Status status = plan_shared();
    while (status.code() == Code::out_of_budget && shares_out_ && options_.max_sequences > 1) {
      options_.max_sequences /= 2;
      if (options_.kv_tokens > 0) options_.kv_tokens = std::max<std::int64_t>(1, options_.kv_tokens / 2);
      if (parts_.limits.tile_bytes != tile_bytes) MR_RETURN_IF_ERROR(recut(options_, tile_bytes, parts_));
      parts_.limits.tile_bytes = tile_bytes;
      status = plan_shared();
    }
    return status;
  }

 private:
  Status plan_shared() {
    parts_.limits = roomy_limits();
    Status status = try_limits(0);
    while (status.code() == Code::out_of_budget && shrink()) status = try_limits(0);
    if (status.code() == Code::out_of_budget && options_.tile_bytes == 0 && parts_.limits.tile_bytes > kLeastTile) {
      parts_.limits.tile_bytes = kLeastTile;
      MR_RETURN_IF_ERROR(recut(options_, kLeastTile, parts_));
      status = try_limits(0);
    }
    if (status.ok()) return plan_weights();
    // The size that the message names must also work on the next run, whose program part may be measured a bit larger.
    if (status.code() == Code::out_of_budget && !options_.exact_budget) return try_limits(kMeasurementSpread);
    return status;
  }

  void share_out() {
    const model::Hyperparameters& hp = parts_.model->hyperparameters();
    SharingInput input;
    input.cap_bytes = ram_;
    input.taken_bytes = parts_.model->units().total_bytes() + program_bytes_ + ram_ / 8;  // activations take no more
    input.weights_give_way = true;
    input.kv_bytes = [this](std::int64_t tokens, std::int64_t sequences) {
      return engine::kv_bytes(layout_, {tokens, sequences, batch_wanted()});
    };
    input.vocab = hp.vocab;
    input.context_tokens =
        options_.context_tokens > 0 ? options_.context_tokens : std::min(hp.context_length, kAutomaticContext);
    take_share(std::move(input), options_);
  }

  std::int64_t batch_wanted() const { return options_.batch_tokens > 0 ? options_.batch_tokens : kAutomaticBatch; }

  Limits roomy_limits() const {
    const model::Hyperparameters& hp = parts_.model->hyperparameters();
    Limits limits = parts_.limits;
    limits.sequences = std::max<std::int64_t>(1, options_.max_sequences);
    limits.context_tokens = options_.context_tokens;
    if (limits.context_tokens == 0) {
      limits.context_tokens = std::min(hp.context_length, kAutomaticContext);
      const std::int64_t sharers = options_.kv_tokens > 0 ? 1 : limits.sequences;
      const std::int64_t affordable =
          affordable_context(layout_, ram_ / 2, sharers, batch_wanted(), whole_blocks(limits.context_tokens));
      limits.context_tokens = std::max(least_context(), std::min(limits.context_tokens, affordable));
    }
    limits.batch_tokens = std::max(
        {std::min(batch_wanted(), limits.context_tokens * limits.sequences), limits.sequences, std::int64_t{1}});
    while (limits.batch_tokens > least_batch() && activation_bytes(limits, logit_rows(limits)) > ram_ / 8)
      limits.batch_tokens = std::max(least_batch(), limits.batch_tokens - kLeastBatch);
    limits.logit_rows = logit_rows(limits);
    set_shared_limits(options_, kAutomaticChunk, limits);
    return limits;
  }

  /// Every live sequence may want a row; logits of a whole prompt (tests, perplexity) get some more where they are
  /// small.
  std::int64_t logit_rows(const Limits& limits) const {
    const auto row_bytes = parts_.model->hyperparameters().vocab * static_cast<std::int64_t>(sizeof(float));
    const auto affordable = static_cast<std::int64_t>(ram_ / 64) / row_bytes;
    return std::max(limits.sequences, std::min(limits.batch_tokens, affordable));
  }

  std::int64_t least_context() const { return std::min(parts_.model->hyperparameters().context_length, kLeastContext); }
  std::int64_t least_batch() const {
    return std::max(std::min(kLeastBatch, std::max<std::int64_t>(1, batch_wanted())),
                    std::max<std::int64_t>(1, options_.max_sequences));
  }

  /// The next smaller limits; false when they are as small as they get.
  bool shrink() {
    Limits& limits = parts_.limits;
    const Limits before = limits;
    limits.batch_tokens = std::max(least_batch(), limits.batch_tokens / 2);
    if (options_.context_tokens == 0) limits.context_tokens = std::max(least_context(), limits.context_tokens / 2);
    limits.logit_rows = std::min(limits.logit_rows, std::max(limits.sequences, limits.logit_rows / 2));
    set_shared_limits(options_, kAutomaticChunk, limits);
    return limits.batch_tokens != before.batch_tokens || limits.context_tokens != before.context_tokens ||
           limits.logit_rows != before.logit_rows;
  }

  std::uint64_t activation_bytes(const Limits& limits, std::int64_t logit_rows) const {
    exec::PassLimits pass = pass_limits(limits);
    pass.max_logit_rows = logit_rows;
    return exec::cpu_activation_bytes(exec::pass_shape(parts_.model->program(), parts_.model->units(), pass),
                                      parts_.pool->threads(), {parts_.isa, true});
  }

  std::uint64_t fixed_bytes(const Limits& limits, std::uint64_t program_bytes) const {
    return program_bytes + sampler_bytes() + activation_bytes(limits, limits.logit_rows);
  }

  /// Of every context when it is full.
  std::uint64_t kv_bytes(const Limits& limits) const { return engine::kv_bytes(layout_, kv_load(limits)); }

  /// Do the limits fit when every context is full?
  Status try_limits(std::uint64_t spread) {
    const Limits& limits = parts_.limits;
    const std::uint64_t mapped =
        fixed_bytes(limits, program_bytes_ + spread) + kv_bytes(limits) + parts_.model->units().total_bytes();
    if (is_mapped(parts_) && mapped > ram_)
      return error(Code::out_of_budget,
                   "storage mmap keeps the whole model in RAM, {} in all; give at least --ram {} or another --storage",
                   format_bytes(mapped), residency::ram_argument(mapped));
    return make_plan(limits.kv_tokens, program_bytes_ + spread);
  }

  /// The plan to start with. KV grows block by block and the weight store gives way to it, so at first the weights get
  /// all but a block a sequence; that the whole context fits has been seen to.
  Status plan_weights() {
    const Limits& limits = parts_.limits;
    const std::int64_t kv_tokens = std::min(limits.kv_tokens, kv::kBlockTokens * limits.sequences);
    if (options_.follow == nullptr) return make_plan(kv_tokens, program_bytes_);
    set_plan_options(kv_tokens, program_bytes_);
    MR_ASSIGN_OR_RETURN(
        residency::FollowedPlan followed,
        residency::follow_plan(parts_.model->units(), options_.follow->decisions, parts_.plan_options, options_.rates));
    if (followed.gave_way_bytes > 0)
      log::warn("the plan kept {} more in RAM than the budget has room for now; they stream",
                format_bytes(followed.gave_way_bytes));
    parts_.plan = std::move(followed.plan);
    return {};
  }

  Status make_plan(std::int64_t kv_tokens, std::uint64_t program_bytes) {
    set_plan_options(kv_tokens, program_bytes);
    MR_ASSIGN_OR_RETURN(parts_.plan, residency::make_plan(parts_.model->units(), parts_.plan_options, options_.rates));
    return {};
  }

  void set_plan_options(std::int64_t kv_tokens, std::uint64_t program_bytes) {
    const model::Hyperparameters& hp = parts_.model->hyperparameters();
    const Limits& limits = parts_.limits;
    residency::PlanOptions& plan_options = parts_.plan_options;
    plan_options.ram_bytes = ram_;
    plan_options.fixed_bytes = fixed_bytes(limits, program_bytes);
    kv::Load load = kv_load(limits);
    load.tokens = whole_blocks(kv_tokens);
    plan_options.kv_bytes = engine::kv_bytes(layout_, load);
    plan_options.context_tokens = load.tokens;
    plan_options.most_kv_bytes = kv_bytes(limits);
    plan_options.top_k = static_cast<int>(hp.top_k);
    plan_options.pass_tokens = limits.batch_tokens;
    plan_options.attention = attention_costs(parts_.model->program(), layout_);
    plan_options.most_expert_slots = options_.expert_slots;
  }

  EngineOptions options_;  // ours: sharing fills in what the user left open
  const std::uint64_t ram_, program_bytes_;
  Parts& parts_;
  const kv::Layout layout_;
  const bool shares_out_;
};

}  // namespace

exec::PassLimits pass_limits(const Limits& limits) {
  exec::PassLimits pass;
  pass.max_rows = limits.batch_tokens;
  pass.work_rows = limits.work_tokens;
  pass.max_sequences = limits.sequences;
  pass.max_logit_rows = limits.logit_rows;
  pass.max_positions = limits.context_tokens;
  pass.routed_layers = limits.routed_layers;
  return pass;
}

void start_threads(const EngineOptions& options, int threads, std::chrono::microseconds spin, Parts& parts) {
  parts.isa = options.best_isa ? device::best_isa() : options.isa;
  parts.pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = threads, .spin = spin});
}

std::uint64_t ram_of(const EngineOptions& options) {
  if (options.ram_bytes > 0) return options.ram_bytes;
  const device::MemoryLimits machine = device::memory_limits();
  const std::uint64_t spare = std::min(machine.available_bytes, machine.cgroup_bytes) / 10 * 8;
  log::info("budget: {} of RAM (80 % of what this machine can spare; --ram sets it)", format_bytes(spare));
  return spare;
}

kv::Layout kv_layout(const model::Model& model, DType dtype, int device) {
  return model.program().layout.with(dtype, device);
}

Status check_kv(const kv::Layout& layout, DType dtype) {
  MR_RETURN_IF_ERROR(layout.check());
  if (dtype == DType::f16 || dtype == DType::f32) return {};
  const std::int64_t block = info(dtype).block_elements;
  if (dtype != DType::q8_0)
    return error(Code::unsupported, "KV is kept as f16, f32 or q8_0, not as {}; use --kv f16", info(dtype).name);
  for (const kv::Group& group : layout.groups()) {
    if (group.is_state()) continue;
    // All of a latent's parts are whole blocks where the whole is: they are of 64 and 512 channels.
    if (group.keeps == kv::Keeps::latent && group.v_dim % block == 0) continue;
    if (group.keeps == kv::Keeps::attention && group.k_dim % block == 0 && group.k_dim <= kernels::kMostQuantizedKvDim)
      continue;
    return error(Code::unsupported,
                 "--kv q8_0 takes heads of a multiple of {} channels and {} at most, and this model's have {}; use "
                 "--kv f16",
                 block, kernels::kMostQuantizedKvDim, group.v_dim);
  }
  return {};
}

std::vector<residency::AttentionCost> attention_costs(const exec::Program& program, const kv::Layout& layout) {
  std::vector<residency::AttentionCost> costs;
  for (const exec::Step& step : program.steps) {
    if (step.kind != exec::Step::Kind::attention) continue;
    const kv::Group& group = layout.group_of(step.layer);
    auto cost = std::find_if(costs.begin(), costs.end(), [&](const auto& one) { return one.window == group.window; });
    if (cost == costs.end()) cost = costs.insert(costs.end(), {.window = group.window});
    cost->macs += static_cast<double>(step.attention.heads * (step.attention.head_dim + step.attention.v_dim()));
    cost->kv_bytes += static_cast<double>(group.layer_bytes()) / kv::kBlockTokens;
  }
  return costs;
}

bool shares_out(const EngineOptions& options) { return options.max_sequences == 0 || options.fewer_sequences; }

void take_share(SharingInput input, EngineOptions& options) {
  input.most_sequences = options.max_sequences;
  if (options.fewer_sequences) input.most_kv_tokens = options.kv_tokens;
  const Sharing sharing = choose_sharing(input);
  options.max_sequences = sharing.sequences;
  if (options.kv_tokens == 0 || options.fewer_sequences) options.kv_tokens = sharing.kv_tokens;
}

void set_shared_limits(const EngineOptions& options, std::int64_t chunk_tokens, Limits& limits) {
  const std::int64_t all = whole_blocks(limits.context_tokens) * limits.sequences;
  // Less than a context for all of them would leave one alone without room.
  limits.kv_tokens = options.kv_tokens == 0
                         ? all
                         : std::clamp(whole_blocks(options.kv_tokens), whole_blocks(limits.context_tokens), all);
  limits.chunk_tokens = std::min(options.chunk_tokens > 0 ? options.chunk_tokens : chunk_tokens, limits.batch_tokens);
  limits.queue = options.max_queue;
}

/// The disk's tier of KV, and whom the pool asks for room. Without it prompts are computed: no reason to fail.
static void open_prompt_cache(const EngineOptions& options, Parts& parts) {
  kv::PromptCache::Options cache;
  cache.store.folder = options.prompt_cache;
  cache.store.most_bytes = options.prompt_cache_bytes;
  cache.least_seconds = options.prompt_cache_seconds;
  auto opened = kv::PromptCache::open(cache, fmt::format("{} {}", parts.identity, parts.executor->numerics()),
                                      parts.kv_pool, *parts.budget);
  if (!opened.ok()) return log::warn("prompt cache off: {}", opened.status().message());
  parts.prompts = std::move(*opened);
  parts.kv_pool->set_reclaimer([tree = parts.prefixes.get(), disk = parts.prompts.get()](std::size_t group) {
    return (tree != nullptr && tree->let_go(group)) || disk->let_go();
  });
  log::info("prompt cache: {}, {} at most, prompts of {} s and more", options.prompt_cache,
            format_bytes(options.prompt_cache_bytes), options.prompt_cache_seconds);
}

kv::Load kv_load(const Limits& limits) { return {limits.kv_tokens, limits.sequences, limits.batch_tokens}; }

void finish_kv(const EngineOptions& options, Parts& parts) {
  for (std::size_t group = 0; group < parts.kv_pool->groups(); ++group)
    parts.kv_pool->set_bound(group, kv::most_blocks(parts.kv_pool->layout().groups()[group], kv_load(parts.limits)));
  if (options.share_prefixes) parts.prefixes = std::make_unique<kv::PrefixCache>(parts.kv_pool);
  if (!parts.identity.empty()) open_prompt_cache(options, parts);
}

static Status prepare_routing(const EngineOptions& options, Parts& parts) {
  if (options.routing.empty() && options.record_routing.empty()) return {};
  const auto shape = exec::routing_shape(parts.model->program());
  if (!shape.ok()) return shape.status().with_context(options.routing.empty() ? "--record-routing" : "--routing");
  if (!options.routing.empty()) {
    MR_ASSIGN_OR_RETURN(parts.routing, exec::Routing::make(options.routing, *shape));
    parts.limits.routed_layers = shape->layers;
  }
  if (!options.record_routing.empty()) {
    MR_ASSIGN_OR_RETURN(parts.record, exec::RoutingRecord::create(options.record_routing, *shape));
  }
  return {};
}

Status open_model(const EngineOptions& options, std::uint64_t tile_bytes, Parts& parts,
                  std::vector<std::string>& paths) {
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(options.model_path));
  MR_ASSIGN_OR_RETURN(parts.model, model::load(file, {tile_bytes, options.context_tokens}));
  MR_ASSIGN_OR_RETURN(parts.tokenizer, text::Tokenizer::from_model(file));
  if (parts.tokenizer->vocab_size() > parts.model->hyperparameters().vocab)
    return error(Code::corrupt, "the tokenizer has {} tokens but the model only {}", parts.tokenizer->vocab_size(),
                 parts.model->hyperparameters().vocab);
  auto chat_template = text::ChatTemplate::from_model(file);
  parts.chat_template_status = chat_template.status();
  if (chat_template.ok()) parts.chat_template = std::move(*chat_template);
  paths = file.paths();
  if (!options.prompt_cache.empty()) {
    auto identity = kv::model_identity(file);
    if (!identity.ok()) log::warn("prompt cache off: {}", identity.status().message());
    if (identity.ok()) parts.identity = std::move(*identity);
    if (identity.ok() && parts.model->hyperparameters().beyond_original) parts.identity += " beyond its first context";
  }
  parts.rates = options.rates;
  parts.kv_dtype = options.kv_dtype;
  MR_RETURN_IF_ERROR(prepare_routing(options, parts));
  return options.follow != nullptr ? residency::check_model(*options.follow, parts.model->units()) : Status();
}

residency::SavedPlan saved_plan(const Parts& parts) {
  const model::Hyperparameters& hp = parts.model->hyperparameters();
  const residency::UnitTable& units = parts.model->units();
  residency::SavedPlan saved;
  saved.architecture = hp.architecture;
  saved.name = hp.name;
  saved.units = static_cast<std::int64_t>(units.units().size());
  saved.tiles = static_cast<std::int64_t>(units.tiles().size());
  saved.weight_bytes = units.total_bytes();
  saved.gpu = parts.plan_options.vram_bytes > 0;
  saved.ram_bytes = parts.budget->cap_bytes();
  saved.vram_bytes = parts.plan_options.vram_bytes;
  saved.tile_bytes = parts.limits.tile_bytes;
  saved.context_tokens = parts.limits.context_tokens;
  saved.batch_tokens = parts.limits.batch_tokens;
  saved.sequences = parts.limits.sequences;
  saved.kv = parts.kv_dtype == DType::f32 ? "f32" : parts.kv_dtype == DType::q8_0 ? "q8_0" : "f16";
  saved.rates = parts.rates;
  saved.decisions = {parts.plan.ring_slots, parts.plan.expert_slots, parts.plan.resident_tiles, parts.plan.cpu};
  for (const residency::Plan::Home& home : parts.plan.homes) saved.homes.push_back(home.tier);
  saved.predicted_decode_tokens_per_second = parts.plan.predicted_decode_tokens_per_second;
  saved.bound = parts.plan.bound;
  return saved;
}

Status start_storage(const EngineOptions& options, const std::vector<std::string>& paths, bool everything_fits,
                     Parts& parts) {
  storage::OpenOptions open;
  open.kind = options.storage;
  open.bytes_in_flight = kBytesInFlight;
  // Mapped pages would slip past an injected fault, and past a limit on experts in memory.
  open.everything_fits = everything_fits && options.faults.empty() && options.expert_slots == 0;
  MR_ASSIGN_OR_RETURN(parts.backend, storage::open_backend(paths, open));
  if (!options.faults.empty()) parts.backend = storage::inject_faults(std::move(parts.backend), options.faults);
  return {};
}

std::uint64_t measured_program_bytes(const EngineOptions& options) {
  if (options.exact_budget) return 0;
  malloc_trim(0);  // what parsing the file's metadata left behind
  if (ram_of(options) < kSmallBudget) device::release_code_pages();
  const std::uint64_t now = device::resident_bytes();
  return (now > options.bare_resident_bytes ? now - options.bare_resident_bytes : 0) + kProgramMargin;
}

#ifndef MILLRACE_HAS_CUDA
Expected<Parts> assemble_cuda(const EngineOptions& /*options*/, bool /*load*/,
                              const std::function<Status(const Parts&)>& /*accept*/) {
  return device::gpus().status().with_context("--device cuda");
}
#endif

namespace {

/// The CPU's parts up to the plan.
Expected<Parts> assemble_cpu_plan(const EngineOptions& options) {
  if (options.storage == storage::BackendKind::mmap && options.expert_slots > 0)
    return error(Code::invalid_argument, "storage mmap has no expert slots; leave one of the two out");
  if (options.cufile)
    return error(Code::unsupported, "storage cufile reads to a GPU's memory, and none computes; leave it out");
  Parts parts;
  const std::uint64_t ram = ram_of(options);
  parts.limits.tile_bytes = options.tile_bytes > 0 ? options.tile_bytes : automatic_tile(ram);
  std::vector<std::string> paths;
  MR_RETURN_IF_ERROR(open_model(options, parts.limits.tile_bytes, parts, paths));
  MR_RETURN_IF_ERROR(check_kv(parts.model->program().layout, options.kv_dtype));
  start_threads(options, options.threads, ThreadPool::Options().spin, parts);
  MR_RETURN_IF_ERROR(start_storage(options, paths, parts.model->units().total_bytes() / 10 * 12 <= ram, parts));
  const std::uint64_t program_bytes = measured_program_bytes(options);
  Planner planner(options, ram, program_bytes, parts);
  if (options.storage == storage::BackendKind::automatic && is_mapped(parts) && !planner.room_to_map())
    MR_RETURN_IF_ERROR(start_storage(options, paths, false, parts));
  MR_RETURN_IF_ERROR(planner.plan());
  parts.budget = std::make_unique<residency::Budget>(ram);
  MR_ASSIGN_OR_RETURN(parts.program, parts.budget->reserve("program", program_bytes + planner.sampler_bytes()));
  if (is_mapped(parts)) {
    MR_ASSIGN_OR_RETURN(parts.mapped, parts.budget->reserve("mapped weights", parts.model->units().total_bytes()));
  }
  log::info("context {} tokens x {}, {} rows a pass, tiles of {}; the program itself takes {}",
            parts.limits.context_tokens, parts.limits.sequences, parts.limits.batch_tokens,
            format_bytes(parts.limits.tile_bytes), format_bytes(program_bytes));
  return parts;
}

/// The parts of whoever computes: a GPU's, ready where `load` says so, or the CPU's up to the plan.
struct Taken {
  Parts parts;
  bool gpu = false;
};

/// The CPU's parts, where it is predicted to decode a model faster that would stream to the GPU; else nothing.
std::optional<Parts> better_on_cpu(const EngineOptions& options, const Parts& gpu) {
  const double on_gpu = gpu.plan.predicted_decode_tokens_per_second;
  if (on_gpu <= 0 || options.rates.cpu_decode <= 0 || !streams_to_gpu(gpu.model->units(), gpu.plan))
    return std::nullopt;
  Expected<Parts> cpu = assemble_cpu_plan(options);
  if (!cpu.ok()) {
    log::debug("no plan for the CPU to hold the GPU's against: {}", cpu.status().message());
    return std::nullopt;
  }
  const double on_cpu = cpu->plan.predicted_decode_tokens_per_second;
  if (on_cpu <= 0) return std::nullopt;
  const bool faster = cpu_decodes_faster(gpu.plan, cpu->plan);
  log::info(
      "computing on the {}: the model does not fit into {} of VRAM, and decode is predicted at {:.3g} tok/s on the "
      "GPU (bound by {}), {:.3g} on the CPU alone (bound by {}); --device decides otherwise",
      faster ? "CPU" : "GPU", format_bytes(gpu.plan_options.vram_bytes), on_gpu, gpu.plan.bound, on_cpu,
      cpu->plan.bound);
  if (!faster) return std::nullopt;
  return std::move(*cpu);
}

/// How a GPU's layers and experts are placed and computed: who says so wants one.
bool speaks_of_layers(const EngineOptions& options) {
  return !options.pins.empty() || options.cpu_share_percent >= 0 || options.cpu_feed_forwards >= 0 ||
         options.vram_experts >= 0;
}

/// Why the CPU computes where the options leave it open: aloud where they speak of a GPU all the same.
void say_cpu(const EngineOptions& options, std::string_view why) {
  if (options.vram_bytes > 0 || speaks_of_layers(options))
    log::warn("computing on the CPU, where --vram, --pin, --vram-experts, --cpu-share and --cpu-ffn change nothing: {}",
              why);
  else
    log::info("computing on the CPU: {}", why);
}

/// A GPU where the options ask for one, or leave it open, and one can take the model and is not predicted to be slower
/// than the CPU; else the CPU, with the reason in the log.
Expected<Taken> choose_device(const EngineOptions& options, bool load) {
  const auto on_cpu = [&]() -> Expected<Taken> {
    MR_ASSIGN_OR_RETURN(Parts parts, assemble_cpu_plan(options));
    return Taken{std::move(parts)};
  };
  if (options.device == DeviceChoice::cpu) return on_cpu();
  const bool open = options.device == DeviceChoice::automatic;
  // These belong to the CPU executor: who sets them wants it.
  const bool for_cpu = (options.ram_bytes > 0 && options.vram_bytes == 0) || !options.best_isa ||
                       !options.faults.empty() || (options.expert_slots > 0 && options.vram_experts < 0);
  if (open && for_cpu) {
    say_cpu(options, "other options are the CPU's; --device cuda insists on the GPU");
    return on_cpu();
  }
  if (open) {
    if (const auto found = device::gpus(); !found.ok()) {
      say_cpu(options, found.status().message());
      return on_cpu();
    }
  }
  // And these to the GPU.
  const bool for_gpu = speaks_of_layers(options) || options.follow != nullptr;
  std::optional<Parts> better;
  Expected<Parts> parts = assemble_cuda(options, load, [&](const Parts& gpu) -> Status {
    if (open && !for_gpu) better = better_on_cpu(options, gpu);
    return better ? error(Code::cancelled, "the CPU is faster") : Status();
  });
  if (better) return Taken{std::move(*better)};
  if (parts.ok()) return Taken{std::move(*parts), true};
  const Code code = parts.status().code();
  if (!open || (code != Code::out_of_budget && code != Code::unsupported)) return parts.status();
  log::warn("computing on the CPU, not on the GPU: {}", parts.status().message());
  return on_cpu();
}

/// Numbers that no model has any use for would overflow what is computed from them.
Status check_sizes(const EngineOptions& options) {
  const auto check = [](std::string_view what, std::int64_t given, std::int64_t most) {
    if (given >= 0 && given <= most) return Status();
    return error(Code::invalid_argument, "{} of {}: give a number from 0 to {}", what, given, most);
  };
  MR_RETURN_IF_ERROR(check("a context (--ctx, num_ctx)", options.context_tokens, std::int64_t{1} << 31));
  MR_RETURN_IF_ERROR(check("--kv-tokens", options.kv_tokens, std::int64_t{1} << 40));
  MR_RETURN_IF_ERROR(check("--batch", options.batch_tokens, 1 << 20));
  return check("--expert-slots", options.expert_slots, std::int64_t{1} << 40);
}

}  // namespace

Expected<Parts> assemble_plan(const EngineOptions& options) {
  MR_RETURN_IF_ERROR(check_sizes(options));
  MR_ASSIGN_OR_RETURN(Taken taken, choose_device(options, false));
  return std::move(taken.parts);
}

Expected<Parts> assemble(const EngineOptions& options) {
  MR_RETURN_IF_ERROR(check_sizes(options));
  MR_ASSIGN_OR_RETURN(Taken taken, choose_device(options, true));
  Parts& parts = taken.parts;
  parts.trace = options.trace;
  if (taken.gpu) return std::move(parts);
  residency::StoreOptions store_options;
  store_options.policy = options.policy;
  MR_ASSIGN_OR_RETURN(parts.store, residency::WeightStore::create(parts.model->units(), parts.plan, *parts.backend,
                                                                  *parts.budget, store_options));
  const std::int32_t embedding = parts.model->units().find(residency::UnitKind::embedding);
  const bool embedding_streams =
      embedding >= 0 && parts.plan.homes[static_cast<std::size_t>(embedding)].tier == residency::Tier::disk;
  parts.executor = exec::make_cpu_executor(
      *parts.store, *parts.pool, *parts.budget,
      {parts.isa, parts.plan.embedding_rows_from_disk || embedding_streams, parts.routing.get(), parts.record.get()});
  MR_RETURN_IF_ERROR(parts.executor->prepare(parts.model->program(), pass_limits(parts.limits)));
  parts.kv_pool =
      std::make_shared<kv::BlockPool>(kv_layout(*parts.model, options.kv_dtype, kv::kOnHost), *parts.budget);
  finish_kv(options, parts);
  log::info("executor: {}; storage: {}", parts.executor->describe(), parts.backend->traits().name);
  return std::move(parts);
}

}  // namespace millrace::engine
