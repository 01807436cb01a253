#include "engine/setup.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/os/heap.h"
#include "base/words.h"
#include "device/cpu.h"
#include "device/gpu.h"
#include "engine/adapter_mix.h"
#include "engine/cpu_plan.h"
#include "engine/device_choice.h"
#include "engine/machine_rates.h"
#include "engine/model_drafter.h"
#include "engine/pack_choice.h"
#include "engine/usage_keeper.h"
#include "engine/within.h"
#include "kv/model_identity.h"
#include "model/control_vector.h"
#include "model/tensor_rows.h"
#include "modelfile/overlay.h"

namespace millrace::engine {
namespace {

// Less than two of the largest tiles, which would otherwise arrive together, so that nothing is read while the first is
// computed. Far more than a disk's rate times its latency.
constexpr std::uint64_t kBytesInFlight = 12 * kMiB;

// Below this budget, the code that only the start needs (2 MB) is released for weights.
constexpr std::uint64_t kSmallBudget = 64 * kMiB;

// Memory that the process takes after it was measured: pages of code first used by a pass, thread stacks, requests.
constexpr std::uint64_t kProgramMargin = 1200 * kKiB;

}  // namespace

Parts::Parts() = default;
Parts::Parts(Parts&&) noexcept = default;
Parts& Parts::operator=(Parts&&) noexcept = default;
Parts::~Parts() = default;

void start_threads(const EngineOptions& options, int threads, std::chrono::microseconds spin, Parts& parts) {
  parts.isa = options.device.cpu_isa();
  parts.pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = threads, .spin = spin});
}

std::uint64_t ram_of(const EngineOptions& options) {
  const auto rest = [&](std::uint64_t bytes) { return bytes - std::min(bytes, options.memory.ram_taken_bytes); };
  if (options.memory.ram_bytes > 0) return rest(options.memory.ram_bytes);
  const device::MemoryLimits machine = device::memory_limits();
  const std::uint64_t spare = std::min(machine.available_bytes, machine.cgroup_bytes) / 10 * 8;
  log::info("budget: {} of RAM (80 % of what this machine can spare; --ram sets it)", format_bytes(spare));
  return rest(spare);
}

kv::Layout kv_layout(const model::Model& model, const EngineOptions& options) {
  return model.program().layout.with(options.kv.dtype, kv::kOnHost, options.kv.rotation);
}

std::string kv_name(DType dtype) {
  if (kv_has_few_bits(dtype)) return dtype == DType::q3_k ? "q3" : "q2";
  return lower(info(dtype).name);
}

Status check_kv(const kv::Layout& layout, DType dtype) {
  if (dtype == DType::f16 || dtype == DType::f32) return {};
  if (dtype != DType::q8_0 && dtype != DType::q4_0 && !kv_has_few_bits(dtype))
    return error(Code::unsupported, "KV is kept as f16, f32, q8_0, q4_0, q3 or q2, not as {}; use --kv f16",
                 kv_name(dtype));
  const std::int64_t block = kKvGroup;
  for (const kv::Group& group : layout.groups()) {
    if (group.is_state() || group.keeps == kv::Keeps::inputs || group.k_dim + group.v_dim == 0) continue;
    if (group.keeps == kv::Keeps::latent && dtype != DType::q8_0)
      return error(Code::unsupported, "--kv {} is not for latents, which this model keeps; use --kv q8_0",
                   kv_name(dtype));
    // If a latent is a multiple of whole blocks, so are its parts, which have 64 and 512 channels.
    if (group.keeps == kv::Keeps::latent && group.v_dim % block == 0) continue;
    if (group.keeps == kv::Keeps::attention && group.k_dim == group.v_dim && group.k_dim % block == 0 &&
        group.k_dim <= kernels::kMostQuantizedKvDim)
      continue;
    return error(
        Code::unsupported,
        "--kv {} takes keys and values of one multiple of {} channels, {} at most, not of {} and {}; use --kv f16",
        kv_name(dtype), block, kernels::kMostQuantizedKvDim, group.k_dim, group.v_dim);
  }
  return {};
}

residency::RoutingGuess routing_guess(const EngineOptions& options, const exec::Routing* routing) {
  return {.skew = routing == nullptr ? 0 : routing->skew(), .policy = options.experts.policy};
}

/// Sets the order in which the pool reclaims blocks: the prefix cache, then the prompt cache on the disk.
static void set_reclaimer(Parts& parts) {
  parts.kv_pool->set_reclaimer([tree = parts.prefixes.get(), disk = parts.prompts.get()](std::size_t group) {
    return (tree != nullptr && tree->let_go(group)) || (disk != nullptr && disk->let_go());
  });
}

/// Opens the prompt cache on the disk. A failure is only logged, because prompts can be computed without it.
static void open_prompt_cache(const EngineOptions& options, Parts& parts) {
  kv::PromptCache::Options cache;
  cache.store.folder = options.kv.prompt_cache;
  cache.store.most_bytes = options.kv.prompt_cache_bytes;
  cache.least_seconds = options.kv.prompt_cache_seconds;
  std::string identity = fmt::format("{} {}", parts.identity, parts.executor->numerics());
  // Other ranks may have as many layers of the same shapes, and use the same folder.
  if (!options.part.stage.whole())
    identity += fmt::format(" layers {} to {}", options.part.stage.first, options.part.stage.last - 1);
  auto opened = kv::PromptCache::open(cache, identity, parts.kv_pool, *parts.budget);
  if (!opened.ok()) return log::warn("prompt cache off: {}", opened.status().message());
  parts.prompts = std::move(*opened);
  set_reclaimer(parts);
  log::info("prompt cache: {}, {} at most, prompts of {} s and more", options.kv.prompt_cache,
            format_bytes(options.kv.prompt_cache_bytes), options.kv.prompt_cache_seconds);
}

void finish_kv(const EngineOptions& options, Parts& parts) {
  for (std::size_t group = 0; group < parts.kv_pool->groups(); ++group)
    parts.kv_pool->set_bound(group, kv::most_blocks(parts.kv_pool->layout().groups()[group], kv_load(parts.limits)));
  if (options.kv.share_prefixes) parts.prefixes = std::make_unique<kv::PrefixCache>(parts.kv_pool);
  if (!parts.identity.empty()) open_prompt_cache(options, parts);
}

void close_prompt_cache(Parts& parts) {
  parts.prompts.reset();
  set_reclaimer(parts);
}

static Status prepare_routing(const EngineOptions& options, Parts& parts) {
  if (options.experts.routing.empty() && options.experts.record_routing.empty()) return {};
  const auto shape = exec::routing_shape(parts.model->program());
  if (!shape.ok())
    return shape.status().with_context(options.experts.routing.empty() ? "--record-routing" : "--routing");
  if (!options.experts.routing.empty()) {
    MR_ASSIGN_OR_RETURN(parts.routing, exec::Routing::make(options.experts.routing, *shape));
    parts.limits.routed_layers = shape->layers;
  }
  if (!options.experts.record_routing.empty()) {
    MR_ASSIGN_OR_RETURN(parts.record, exec::RoutingRecord::create(options.experts.record_routing, *shape));
  }
  return {};
}

Expected<modelfile::Model> open_file(const EngineOptions& options, const modelfile::OpenOptions& how) {
  // A file's texts may have any size, and no budget has granted them yet: they may take at most as much as the whole
  // budget. A header of usual size is always read, because without it no message can name a sufficient budget.
  constexpr std::uint64_t kUsualBytes = 4 << 20;
  const std::uint64_t most = options.model.most_header_bytes > 0 ? options.model.most_header_bytes
                             : options.memory.ram_bytes > 0      ? std::max(options.memory.ram_bytes, kUsualBytes)
                                                                 : 0;
  GrantedBytes memory(most > 0 ? most : UINT64_MAX, nullptr);
  modelfile::OpenOptions bounded = how;
  if (bounded.memory == nullptr) bounded.memory = &memory;
  MR_ASSIGN_OR_RETURN(modelfile::Model model, modelfile::Model::open(options.model.path, bounded));
  for (const auto& [path, may_add] : {std::pair(options.model.overlay, modelfile::MayAdd()),
                                      std::pair(options.model.control, modelfile::MayAdd(model::is_control_tensor))}) {
    if (path.empty()) continue;
    MR_ASSIGN_OR_RETURN(const modelfile::Model over, modelfile::Model::open(path));
    MR_ASSIGN_OR_RETURN(model, modelfile::lay_over(std::move(model), over, may_add));
  }
  return model;
}

Status open_model(const EngineOptions& options, std::uint64_t tile_bytes, DraftUnits draft, Parts& parts,
                  std::vector<std::string>& paths) {
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, open_file(options));
  paths = file.paths();
  model::LoadOptions how{tile_bytes, options.demand.context_tokens, false, options.part.stage};
  if (draft != DraftUnits::none) {
    auto loaded = load_with_drafter(options, file, how, draft, paths);
    if (loaded.ok()) parts.model = std::move(*loaded);
    parts.draft.words = loaded.status().message();
  }
  if (parts.model == nullptr) {
    how.shard = options.part.shard;
    MR_ASSIGN_OR_RETURN(parts.model, model::load(file, how));
  }
  MR_RETURN_IF_ERROR(model::check_scales(file));
  MR_RETURN_IF_ERROR(read_adapters(options, file, parts));
  if (options.model.fetch) MR_RETURN_IF_ERROR(options.model.fetch(parts.model->units()));
  MR_ASSIGN_OR_RETURN(parts.tokenizer, text::Tokenizer::from_model(file));
  if (parts.tokenizer->vocab_size() > parts.model->hyperparameters().vocab)
    return error(Code::corrupt, "the tokenizer has {} tokens but the model only {}", parts.tokenizer->vocab_size(),
                 parts.model->hyperparameters().vocab);
  auto chat_template = text::ChatTemplate::from_model(file);
  parts.chat_template_status = chat_template.status();
  if (chat_template.ok()) parts.chat_template = std::move(*chat_template);
  parts.rank_head = model::read_rank_head(file, parts.model->hyperparameters());
  parts.model_paths = paths;
  parts.control_keeps = options.model.control_keeps;
  if (!options.kv.prompt_cache.empty()) {
    auto identity = kv::model_identity(file, options.model.control);
    if (!identity.ok()) log::warn("prompt cache off: {}", identity.status().message());
    if (identity.ok()) parts.identity = std::move(*identity);
    if (identity.ok() && parts.model->hyperparameters().beyond_original) parts.identity += " beyond its first context";
  }
  parts.rates = options.planning.rates;
  parts.kv_dtype = options.kv.dtype;
  parts.kv_rotation = options.kv.rotation;
  MR_RETURN_IF_ERROR(prepare_routing(options, parts));
  return options.planning.follow != nullptr ? residency::check_model(*options.planning.follow, parts.model->units())
                                            : Status();
}

/// Removes the front from a saved plan, which is followed without a drafter of the model's own layers: experts have
/// slots, and the units aside, which are the last ones, do not exist.
static void leave_out_front(const residency::UnitTable& units, residency::SavedPlan& saved) {
  std::vector<bool>& at_home = saved.decisions.resident_tiles;
  bool experts = false;
  for (std::size_t u = units.units().size(); u-- > 0;) {
    const residency::Unit& unit = units.units()[u];
    const residency::UnitTable::Range tiles = units.tiles_of(static_cast<std::int32_t>(u));
    if (unit.aside) {
      saved.units = static_cast<std::int64_t>(u);
      saved.tiles = tiles.first;
      saved.weight_bytes -= unit.bytes();
    } else if (unit.kind == residency::UnitKind::expert) {
      std::fill(at_home.begin() + tiles.first, at_home.begin() + tiles.last, false);
      experts = true;
    }
  }
  at_home.resize(static_cast<std::size_t>(saved.tiles));
  saved.homes.resize(static_cast<std::size_t>(saved.units));
  if (experts) saved.decisions.expert_slots = std::max(1, saved.decisions.expert_slots);
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
  saved.kv = kv_name(parts.kv_dtype);
  saved.rates = parts.rates;
  saved.decisions = {parts.plan.ring_slots, parts.plan.expert_slots, parts.plan.resident_tiles,
                     parts.plan.cpu_permille};
  saved.homes = parts.plan.homes;
  if (parts.plan.front_layers != 0 && !saved.gpu) leave_out_front(units, saved);
  saved.predicted_decode_tokens_per_second = parts.plan.predicted_decode_tokens_per_second;
  saved.bound = parts.plan.bound;
  return saved;
}

storage::OpenOptions storage_options(const EngineOptions& options, bool everything_fits) {
  storage::OpenOptions open;
  open.kind = options.storage.backend;
  open.bytes_in_flight = kBytesInFlight;
  open.directstorage_faster = options.planning.rates.directstorage > 0;
  // Mapped pages would bypass injected faults and the limit on experts in memory.
  open.everything_fits = everything_fits && options.storage.faults.empty() && options.experts.ram_slots == 0;
  return open;
}

Status start_storage(const EngineOptions& options, const std::vector<std::string>& paths, bool everything_fits,
                     Parts& parts) {
  MR_ASSIGN_OR_RETURN(parts.backend, storage::open_backend(paths, storage_options(options, everything_fits)));
  if (!options.storage.faults.empty())
    parts.backend = storage::inject_faults(std::move(parts.backend), options.storage.faults);
  return {};
}

std::uint64_t measured_program_bytes(const EngineOptions& options, std::uint64_t ram, const Parts& parts) {
  if (options.memory.exact_budget) return 0;
  os::return_free_memory();  // freed after parsing the file's metadata
  if (ram < kSmallBudget) device::release_code_pages();
  const std::uint64_t others =  // read before the measurement: bytes added meanwhile count as the program's
      options.memory.bare_resident_bytes + (parts.head_start != nullptr ? parts.head_start->taken_bytes() : 0);
  const std::uint64_t now = device::resident_bytes();
  return (now > others ? now - others : 0) + kProgramMargin;
}

Expected<std::unique_ptr<exec::Executor>> GpuParts::executor_aside(const Parts& /*target*/) {
  return error(Code::unsupported, "no executor can run beside these weights");
}

#ifndef MILLRACE_HAS_GPU
Expected<Parts> assemble_gpu(const EngineOptions& /*options*/, const DraftModelPlan* /*draft*/, bool /*load*/,
                             const std::function<Status(const Parts&)>& /*accept*/) {
  return device::gpus().status().with_context(fmt::format("--device {}", device::gpu_kind()));
}
Expected<Parts> assemble_gpu_draft(const DraftModelPlan& /*draft*/, Parts& /*target*/) {
  return device::gpus().status();
}
Expected<Parts> assemble_gpu_on_paper(const EngineOptions& /*options*/, int /*processors*/, int /*gpus*/) {
  return device::gpus().status();
}
#endif

namespace {

/// The CPU's parts up to the plan, without a draft model.
Expected<Parts> assemble_cpu_alone(const EngineOptions& options) {
  if (options.storage.backend == storage::BackendKind::mmap && options.experts.ram_slots > 0)
    return error(Code::invalid_argument, "storage mmap has no expert slots; leave one of the two out");
  if (options.storage.cufile)
    return error(Code::unsupported, "storage cufile reads to a GPU's memory, and none computes; leave it out");
  Parts parts;
  const std::uint64_t ram = ram_of(options);
  if (ram < kSmallBudget) device::release_code_pages();  // of the start, before the file is opened
  parts.limits.tile_bytes = options.memory.tile_bytes > 0 ? options.memory.tile_bytes : automatic_tile(ram);
  std::vector<std::string> paths;
  const DraftUnits draft = wants_draft_block(options) ? DraftUnits::aside : DraftUnits::none;
  MR_RETURN_IF_ERROR(open_model(options, parts.limits.tile_bytes, draft, parts, paths));
  MR_RETURN_IF_ERROR(check_kv(parts.model->program().layout, options.kv.dtype));
  if (kv_has_few_bits(options.kv.dtype) && !parts.model->program().is_causal())
    return error(Code::unsupported, "--kv {} is for causal attention, and this model's is not; use --kv f16",
                 kv_name(options.kv.dtype));
  if (kv_has_few_bits(options.kv.dtype) && parts.model->program().gathers_keys())
    return error(Code::unsupported,
                 "--kv {} is not for attention over chosen tokens with keys and values of their own, which this model "
                 "has; use --kv q4_0",
                 kv_name(options.kv.dtype));
  start_threads(options, options.device.threads, ThreadPool::Options().spin, parts);
  const bool fits = all_fit(parts.model->units(), ram);
  MR_RETURN_IF_ERROR(choose_pack(options, fits && options.experts.ram_slots == 0, parts, paths));
  MR_RETURN_IF_ERROR(start_storage(options, paths, fits, parts));
  const std::uint64_t program_bytes = measured_program_bytes(options, ram, parts);
  CpuPlanner planner(options, ram, program_bytes, parts);
  if (options.storage.backend == storage::BackendKind::automatic && is_mapped(parts) && !planner.room_to_map())
    MR_RETURN_IF_ERROR(start_storage(options, paths, false, parts));
  MR_RETURN_IF_ERROR(planner.plan());
  // The choice of what every pass reads depends on the rates; if it reads nothing, there is no choice.
  if (residency::reads_disk(parts.model->units(), parts.plan) && options.planning.follow == nullptr &&
      measure_rates(options, {.host_bytes = ram - std::min(ram, program_bytes)}, parts))
    MR_RETURN_IF_ERROR(planner.plan());
  if (drafts_within(options)) parts.draft = seat_within(options, parts);
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

/// The CPU's parts up to the plan. A draft model also runs on the CPU, and its RAM is taken first.
Expected<Parts> assemble_cpu_plan(const EngineOptions& options, const DraftModelPlan* draft) {
  if (draft == nullptr || !draft->on_cpu.ok()) {
    MR_ASSIGN_OR_RETURN(Parts parts, assemble_cpu_alone(options));
    if (draft != nullptr) parts.draft.words = draft->on_cpu.message();
    return parts;
  }
  EngineOptions rest = options;
  rest.memory.ram_taken_bytes += draft->bytes;
  MR_ASSIGN_OR_RETURN(Parts parts, assemble_cpu_alone(rest));
  DraftWays ways;
  DraftWay& way = ways[static_cast<std::size_t>(DraftPlace::cpu)];
  const DraftHabits habits = draft_habits(options.speculate);
  way.forecast = forecast_drafts(parts.plan, parts.rates, guess_seconds(draft->cpu_plan, parts.rates), habits);
  // With its memory taken: a plan without the draft model is not considered here.
  ways[static_cast<std::size_t>(DraftPlace::none)].forecast = {parts.plan.predicted_decode_tokens_per_second, 0};
  parts.draft = {.place = DraftPlace::cpu, .ram_bytes = draft->bytes};
  parts.draft.words = describe_seat(parts.draft, ways, habits);
  return parts;
}

/// The CPU's parts, if the model would stream to the GPU and the CPU is predicted to decode faster; otherwise nothing.
std::optional<Parts> better_on_cpu(const EngineOptions& asked, const DraftModelPlan* draft, const Parts& gpu) {
  const double on_gpu = gpu.plan.predicted_decode_tokens_per_second;
  EngineOptions options = asked;
  options.planning.rates = gpu.rates;  // may have been measured just now
  if (on_gpu <= 0 || options.planning.rates.cpu_decode <= 0 || !streams_to_gpu(gpu.model->units(), gpu.plan))
    return std::nullopt;
  Expected<Parts> cpu = assemble_cpu_plan(options, draft);
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

/// Whether the options place layers or experts on a GPU, which implies that the user wants one.
bool speaks_of_layers(const EngineOptions& options) {
  return !options.memory.pins.empty() || options.memory.cpu_share_percent >= 0 || options.experts.vram_slots >= 0;
}

/// Logs why the CPU computes although the options do not request it: as a warning if they have options for a GPU.
void say_cpu(const EngineOptions& options, std::string_view why) {
  if (options.memory.vram_bytes > 0 || speaks_of_layers(options))
    log::warn("computing on the CPU, where --vram, --pin, --vram-experts and --cpu-share change nothing: {}", why);
  else
    log::info("computing on the CPU: {}", why);
}

/// Chooses a GPU if the options request one, or if they leave the choice open and a GPU can run the model and is not
/// predicted to be slower than the CPU; otherwise the CPU, with the reason in the log. The parts of a GPU are ready for
/// a pass if `load` is set; the CPU's are there up to the plan.
Expected<Parts> choose_device(const EngineOptions& options, const DraftModelPlan* draft, bool load) {
  const auto on_cpu = [&] { return assemble_cpu_plan(options, draft); };
  if (!options.model.adapters.empty()) MR_RETURN_IF_ERROR(check_adapter_device(options));
  if (options.watch.inputs != nullptr && options.device.choice == DeviceChoice::cuda)
    return error(Code::unsupported, "what products read is seen on the CPU alone; leave --device cuda out");
  if (options.device.choice == DeviceChoice::cpu || options.watch.inputs != nullptr) return on_cpu();
  const bool open = options.device.choice == DeviceChoice::automatic;
  // Options of the CPU executor, the first two only without --vram: a user who sets one wants the CPU.
  const bool for_cpu = (options.memory.vram_bytes == 0 && (options.memory.ram_bytes > 0 || !options.device.best_isa)) ||
                       !options.storage.faults.empty() ||
                       (options.experts.ram_slots > 0 && options.experts.vram_slots < 0);
  if (open && for_cpu) {
    say_cpu(options, "other options are the CPU's; --device cuda insists on the GPU");
    return on_cpu();
  }
  if (open && !device::gpus_are_for_auto()) {
    say_cpu(options,
            fmt::format("{} devices compute where --device {}:N names one", device::gpu_kind(), device::gpu_kind()));
    return on_cpu();
  }
  if (open) {
    if (const auto found = device::gpus(); !found.ok()) {
      say_cpu(options, found.status().message());
      return on_cpu();
    }
  }
  // Options of the GPU.
  const bool for_gpu = speaks_of_layers(options) || options.planning.follow != nullptr;
  std::optional<Parts> better;
  Expected<Parts> parts = assemble_gpu(options, draft, load, [&](const Parts& gpu) -> Status {
    if (open && !for_gpu) better = better_on_cpu(options, draft, gpu);
    return better ? error(Code::cancelled, "the CPU is faster") : Status();
  });
  if (better) return std::move(*better);
  const Code code = parts.status().code();
  if (!open || (code != Code::out_of_budget && code != Code::unsupported)) return parts;
  log::warn("computing on the CPU, not on the GPU: {}", parts.status().message());
  return on_cpu();
}

/// Refuses numbers that are too large for any model and would overflow later computations.
Status check_sizes(const EngineOptions& options) {
  const auto check = [](std::string_view what, std::int64_t given, std::int64_t most) {
    if (given >= 0 && given <= most) return Status();
    return error(Code::invalid_argument, "{} of {}: give a number from 0 to {}", what, given, most);
  };
  MR_RETURN_IF_ERROR(check("a context (--ctx, num_ctx)", options.demand.context_tokens, std::int64_t{1} << 31));
  MR_RETURN_IF_ERROR(check("--kv-tokens", options.demand.kv_tokens, std::int64_t{1} << 40));
  MR_RETURN_IF_ERROR(check("--batch", options.demand.batch_tokens, 1 << 20));
  return check("--expert-slots", options.experts.ram_slots, std::int64_t{1} << 40);
}

}  // namespace

Expected<Parts> assemble_plan(const EngineOptions& options, const DraftModelPlan* draft) {
  MR_RETURN_IF_ERROR(check_sizes(options));
  return choose_device(options, draft, false);
}

/// Refuses a file whose download was interrupted, or which has only a rank's share: it has holes instead of weights.
static Status check_whole(const EngineOptions& options) {
  std::error_code failure;
  if (options.model.fetch || !std::filesystem::exists(options.model.path + ".journal", failure)) return {};
  return error(Code::invalid_argument,
               "{}: only part of this file is there: a download that stopped, or what one process needed of the model "
               "(--fetch-share); pull it, or give --fetch-share again",
               options.model.path);
}

Expected<Parts> assemble(const EngineOptions& options, const DraftModelPlan* draft) {
  MR_RETURN_IF_ERROR(check_sizes(options));
  MR_RETURN_IF_ERROR(check_whole(options));
  MR_ASSIGN_OR_RETURN(Parts parts, choose_device(options, draft, true));
  parts.trace = options.watch.trace;
  if (parts.vram != nullptr) return parts;  // a GPU computes
  MR_RETURN_IF_ERROR(load_adapters(options, parts));
  residency::StoreOptions store_options;
  store_options.policy = options.experts.policy;
  store_options.check = pack_check(parts);
  if (parts.plan.expert_slots > 0 && parts.plan.predicted_hit_rate < 1)
    parts.usage = UsageKeeper::open(options, parts.model->units());
  if (parts.usage != nullptr) store_options.expected = parts.usage->expected();
  MR_ASSIGN_OR_RETURN(parts.store, residency::WeightStore::create(parts.model->units(), parts.plan, *parts.backend,
                                                                  *parts.budget, store_options));
  const std::int32_t embedding = parts.model->units().find(residency::UnitKind::embedding);
  const bool embedding_streams =
      embedding >= 0 && parts.plan.homes[static_cast<std::size_t>(embedding)] == residency::Tier::disk;
  parts.executor = exec::make_cpu_executor(
      *parts.store, *parts.pool, *parts.budget,
      {parts.isa, parts.plan.embedding_rows_from_disk || embedding_streams, parts.routing.get(), parts.record.get(),
       options.watch.trace, options.experts.prefetch, false, options.watch.inputs, parts.adapters.get()});
  MR_RETURN_IF_ERROR(parts.executor->prepare(parts.model->program(), pass_limits(parts.limits)));
  parts.kv_pool = std::make_shared<kv::BlockPool>(kv_layout(*parts.model, options), *parts.budget);
  finish_kv(options, parts);
  log::info("executor: {}; storage: {}", parts.executor->describe(), parts.backend->traits().name);
  return parts;
}

}  // namespace millrace::engine
