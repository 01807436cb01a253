// The parts of a run on the GPUs of one host, made to one plan (plan.h). On one GPU a model that fits has its home in
// VRAM as a whole; of a larger dense one as many layers as fit, and the others stream from RAM and, where that is too
// small, from the disk. Several GPUs have their rows of every matrix each (exec/gpu/shards.h); the plan is one GPU's,
// made for its rows in its part of RAM, and because each has as many rows and as much memory, it holds for all of them.
#include "engine/setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "engine/adapter_mix.h"
#include "engine/gpu/draft.h"
#include "engine/gpu/kv_layout.h"
#include "engine/gpu/plan.h"
#include "engine/gpu/tower.h"
#include "engine/machine_rates.h"
#include "engine/pack_choice.h"
#include "engine/usage_keeper.h"
#include "engine/within.h"
#include "exec/gpu/blocks.h"
#include "exec/gpu/executor.h"
#include "exec/gpu/shards.h"
#include "residency/calibrate.h"
#include "residency/gpu/experts.h"
#include "residency/gpu/weights.h"
#include "storage/cufile.h"

namespace millrace::engine {
namespace {

// About what a fast disk reads while a driver starts.
constexpr std::uint64_t kHeadStartBytes = 1536 * kMiB;

/// What lies on the GPUs. The model and the budget of the first GPU are the engine's.
struct LoadedWeights final : GpuParts {
  std::unique_ptr<model::Model> whole;                             // all rows; null: one GPU has them
  std::vector<std::unique_ptr<model::Model>> models;               // of the GPUs beside the first
  std::vector<std::unique_ptr<residency::Budget>> budgets;         // of the GPUs beside the first
  std::vector<residency::Reservation> contexts;                    // of the GPUs beside the first
  std::vector<std::unique_ptr<ThreadPool>> pools;                  // of several GPUs' shares of the processor
  exec::GpuOptions aside;                                          // of an executor beside the only GPU's
  residency::Reservation graphs;                                   // of that executor
  std::vector<std::unique_ptr<residency::DeviceWeights>> weights;  // by GPU
  std::unique_ptr<residency::DeviceExperts> experts;               // null: all are in VRAM
  std::vector<exec::DeviceBlocks*> blocks;                         // by group; the pool's

  void add_to(residency::StoreCounters& counters) const override {
    for (const auto& one : weights) one->add_to(counters);
    if (experts != nullptr) experts->add_to(counters);
  }
  residency::ExpertUsage expert_usage() const override {
    return experts != nullptr ? experts->usage() : residency::ExpertUsage();
  }
  Expected<std::unique_ptr<exec::Executor>> executor_aside(const Parts& target) override {
    MR_ASSIGN_OR_RETURN(graphs, target.vram->reserve("graphs for guesses", kGraphBytes));
    return exec::make_gpu_executor(target.model->units(), *weights.front(), *target.vram, aside);
  }
};

/// Makes it that of each of several GPUs, with the memory that they exchange rows through.
void add_gathers(std::size_t gpus, Vram& vram) {
  const exec::GatherMemory words = exec::gather_memory(gpus);
  vram.context_bytes += words.vram_bytes;  // the plan counts it with that
  vram.words_bytes = words.ram_bytes;
  vram.gpus = gpus;
}

Status check_options(const EngineOptions& options, bool drafts) {
  const auto off = [](std::string_view what) {
    return error(Code::unsupported, "{} does not work over several GPUs; leave it out, or name one GPU", what);
  };
  if (!options.device.gpus_beside.empty()) {
    if (options.part.cluster != nullptr) return off("a job of several processes");
    if (drafts || drafts_within(options)) return off("--draft");
    if (!options.memory.pins.empty()) return off("--pin");
    if (options.storage.cufile) return off("--storage cufile");
    if (options.planning.follow != nullptr) return off("--plan");
    if (!options.experts.record_routing.empty()) return off("--record-routing");
  }
  if (!options.experts.record_routing.empty())
    return error(Code::unsupported, "--record-routing: the CPU writes down what routers choose; add --device cpu");
  return {};
}

class Assembly {
 public:
  Assembly(const EngineOptions& options, const DraftModelPlan* draft)
      : options_(options), draft_(draft), ram_(std::max<std::uint64_t>(1, ram_of(options))), gpus_{options.device.gpu} {
    gpus_.insert(gpus_.end(), options.device.gpus_beside.begin(), options.device.gpus_beside.end());
    options_.memory.ram_bytes = ram_;  // what there is before the driver has its part
    options_.memory.ram_taken_bytes = 0;
    if (several()) options_.part.shard = {0, std::ssize(gpus_)};
  }

  Expected<Parts> run(bool load, const std::function<Status(const Parts&)>& accept) {
    MR_RETURN_IF_ERROR(open(load));
    MR_RETURN_IF_ERROR(measure());
    MR_RETURN_IF_ERROR(plan());
    MR_RETURN_IF_ERROR(share_out_experts());
    planner_->say_homes();
    MR_RETURN_IF_ERROR(accept(parts_));
    if (!several()) MR_RETURN_IF_ERROR(choose_files());
    MR_RETURN_IF_ERROR(take_memory());
    say_shares();
    if (load) MR_RETURN_IF_ERROR(this->load());
    return std::move(parts_);
  }

 private:
  Status open(bool load);
  void begin_reading();
  Status measure();
  Status plan();
  Status share_out_experts();
  Status choose_files();
  int threads_of(int pools) const;
  void start_processors();
  Status take_memory();
  void say_shares() const;
  Status load();
  std::uint64_t cap_of(std::size_t gpu) const;
  void say_caps() const;
  Expected<std::unique_ptr<residency::DeviceWeights>> load_weights(std::size_t gpu);
  Status open_experts();
  exec::GpuOptions plain_options(std::size_t gpu) const;
  exec::GpuOptions options_of(std::size_t gpu);
  Status make_executor();
  Status make_blocks();
  bool several() const { return gpus_.size() > 1; }
  bool shares_rows() const { return parts_.plan.cpu_permille > 0; }
  const model::Model& model(std::size_t gpu) const { return gpu == 0 ? *parts_.model : *loaded_->models[gpu - 1]; }
  const model::Model& whole() const { return loaded_->whole != nullptr ? *loaded_->whole : *parts_.model; }
  residency::Budget& vram(std::size_t gpu) const { return gpu == 0 ? *parts_.vram : *loaded_->budgets[gpu - 1]; }

  EngineOptions options_;
  const DraftModelPlan* const draft_;
  const std::uint64_t ram_;
  std::vector<int> gpus_;
  device::Gpu first_;                                      // GPU
  Vram vram_;                                              // the least of any, and the largest context
  std::vector<std::uint64_t> context_bytes_, most_bytes_;  // of each: of its context; the largest cap
  Parts parts_;
  std::unique_ptr<LoadedWeights> loaded_ = std::make_unique<LoadedWeights>();
  std::vector<std::string> paths_;
  std::optional<GpuPlanner> planner_;
  residency::ExpertTiers experts_;  // of all GPUs: each has its rows of those in slots
};

/// A model for each GPU, and storage, so that what they take is measured as the program's.
Status Assembly::open(bool load) {
  const DraftUnits draft = wants_draft_block(options_) ? DraftUnits::apart : DraftUnits::none;
  MR_RETURN_IF_ERROR(open_model(options_, kGpuTileBytes, draft, parts_, paths_));
  MR_RETURN_IF_ERROR(start_storage(options_, paths_, false, parts_));
  if (!several()) {
    if (load) begin_reading();
    return {};
  }
  if (!parts_.identity.empty()) parts_.identity += fmt::format(" over {} GPUs", gpus_.size());
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, open_file(options_));
  model::LoadOptions how{kGpuTileBytes, options_.demand.context_tokens};
  MR_ASSIGN_OR_RETURN(loaded_->whole, model::load(file, how));
  how.shard = options_.part.shard;
  while (++how.shard.index < how.shard.count) {
    MR_ASSIGN_OR_RETURN(loaded_->models.emplace_back(), model::load(file, how));
  }
  return {};
}

/// Reads the first weights while the driver starts, where RAM has room for all of the model beside them: whatever the
/// plan will be, it fits then.
void Assembly::begin_reading() {
  const residency::UnitTable& units = parts_.model->units();
  if (options_.storage.cufile || !options_.storage.faults.empty() || units.total_bytes() + kHeadStartBytes > ram_)
    return;
  auto begun = residency::HeadStart::begin(units, *parts_.backend, kHeadStartBytes);
  if (begun.ok()) parts_.head_start = std::move(*begun);
  if (!begun.ok()) log::info("weights are read once the GPU's driver has started: {}", begun.status().message());
}

/// Can each GPU compute its rows, and how much memory has each?
Status Assembly::measure() {
  if (several()) device::load_all_kernels_first();
  std::vector<device::Gpu> found;
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    MR_ASSIGN_OR_RETURN(found.emplace_back(), find_gpu(gpus_[g]));
    MR_RETURN_IF_ERROR(
        exec::check_gpu(model(g).program(), model(g).units(), {options_.kv.dtype, found[g].block_shared_bytes}));
  }
  first_ = found.front();
  if (!options_.model.adapters.empty())
    MR_RETURN_IF_ERROR(exec::check_gpu_adapters(parts_.model->program(), parts_.model->units(), parts_.adapted_weights,
                                                parts_.adapts_embedding));
  MR_RETURN_IF_ERROR(check_kv(whole().program().layout, options_.kv.dtype));
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    MR_ASSIGN_OR_RETURN(const Vram vram, open_gpu(gpus_[g]));
    MR_RETURN_IF_ERROR(try_kernels(model(g), options_, found[g]));
    context_bytes_.push_back(vram.context_bytes);
    most_bytes_.push_back(most_cap(vram));
    if (g == 0) vram_ = vram;
    vram_.free_bytes = std::min(vram_.free_bytes, vram.free_bytes);
    vram_.context_bytes = std::max(vram_.context_bytes, vram.context_bytes);
    vram_.multiprocessors = std::min(vram_.multiprocessors, vram.multiprocessors);
  }
  if (several()) add_gathers(gpus_.size(), vram_);
  parts_.rates = rates_beside(first_.name, std::move(parts_.rates));
  return device::use_gpu(gpus_.front());
}

/// The plan, beside one GPU's rows with what else wants memory: a vision tower, a draft model, guesses by first layers.
Status Assembly::plan() {
  planner_.emplace(options_, vram_, parts_);
  if (several()) return planner_->plan();
  seat_tower(options_, first_, *planner_, parts_);
  MR_RETURN_IF_ERROR(draft_ != nullptr ? seat_draft(options_, *draft_, first_, *planner_, parts_) : planner_->plan());
  if (!drafts_within(options_)) return {};
  if (parts_.model->draft_passes() != nullptr) return seat_host_draft(options_, *planner_, parts_);
  if (parts_.plan.front_layers != 0 && shares_rows()) {
    const auto plan_for = [&](std::int64_t guesses) { return planner_->plan({.guesses = guesses}); };
    const PlannedGuesses planned =
        plan_guesses(forecast_within(options_, parts_), draft_habits(options_.speculate), [&](std::int64_t guesses) {
          return plan_for(guesses).ok() ? forecast_within(options_, parts_) : DraftForecast();
        });
    MR_RETURN_IF_ERROR(plan_for(planned.guesses));
  }
  parts_.draft = seat_within(options_, parts_);
  return {};
}

/// Of several GPUs the plan is of one's rows in its part of RAM: so many experts with slots there have all their rows
/// in all of it. But each GPU leases for its waves.
Status Assembly::share_out_experts() {
  experts_ = planner_->homes().experts;
  if (!experts_.any() || !several()) return {};
  experts_.spare_slots = 0;
  const auto gpus = static_cast<int>(gpus_.size());
  if (experts_.ram_slots < parts_.model->units().experts())
    experts_.wave_experts = std::min(experts_.wave_experts, experts_.ram_slots / residency::least_ram_experts(gpus));
  if (experts_.wave_experts > 0) return {};
  return error(Code::out_of_budget, "RAM for {} experts is too little for {} GPUs; give more --ram", experts_.ram_slots,
               gpus);
}

/// Where weights are read from: the model's files or a pack, and by cuFile or not.
Status Assembly::choose_files() {
  MR_RETURN_IF_ERROR(choose_pack(options_, !planner_->experts_leave_ram(), parts_, paths_));
  if (parts_.pack != nullptr) {  // an expert takes a little less memory there
    MR_RETURN_IF_ERROR(planner_->plan({parts_.draft.vram_bytes, parts_.draft.ram_bytes}));
    MR_RETURN_IF_ERROR(share_out_experts());
    parts_.head_start = nullptr;
    MR_RETURN_IF_ERROR(start_storage(options_, paths_, false, parts_));
  }
  if (options_.storage.cufile) {
    MR_ASSIGN_OR_RETURN(parts_.straight, storage::open_cufile(paths_, {.device = gpus_.front()}));
  }
  return {};
}

/// Threads of each of so many pools beside several GPUs; one processor is left to each GPU's launches.
int Assembly::threads_of(int pools) const {
  const auto gpus = static_cast<int>(gpus_.size());
  const int all = options_.device.threads > 0 ? options_.device.threads : ThreadPool::usable_processors();
  return std::max(1, options_.device.threads > 0 ? all / pools : (all - gpus) / pools);
}

/// Threads for rows of layers in RAM, a pool beside each GPU, or for experts, one for all.
void Assembly::start_processors() {
  constexpr std::chrono::milliseconds kSpin{1};  // longer than a GPU takes for its own layers
  if (!several()) return start_threads(options_, residency::threads_beside_gpu(options_.device.threads), kSpin, parts_);
  const int pools = experts_.any() ? 1 : static_cast<int>(gpus_.size());
  for (int p = 0; p < pools; ++p)
    loaded_->pools.push_back(std::make_unique<ThreadPool>(
        ThreadPool::Options{.threads = threads_of(pools),
                            .spin = kSpin,
                            .first = p * (threads_of(pools) + (options_.device.threads > 0 ? 0 : 1))}));
  parts_.isa = options_.device.cpu_isa();
}

/// The plan is for the least of any, each GPU having the same rows. One with more keeps units there that else cross.
std::uint64_t Assembly::cap_of(std::size_t gpu) const {
  const bool by_gpu = gpu > 0 && !options_.memory.vram_beside.empty();
  const std::uint64_t asked = by_gpu ? options_.memory.vram_beside[gpu - 1] : options_.memory.vram_bytes;
  return std::max(planner_->cap_bytes(), asked > 0 ? std::min(asked, most_bytes_[gpu]) : most_bytes_[gpu]);
}

void Assembly::say_caps() const {
  log::info("GPU{} {}: context {} tokens x {}, {} rows a pass, {} of VRAM at most{}", several() ? "s" : "",
            fmt::join(gpus_, " and "), parts_.limits.context_tokens, parts_.limits.sequences,
            parts_.limits.batch_tokens, format_bytes(planner_->cap_bytes()), several() ? " on each" : "");
  if (options_.memory.vram_beside.empty()) return;
  std::string caps;
  for (std::size_t g = 0; g < gpus_.size(); ++g) caps += (g > 0 ? ", " : "") + format_bytes(cap_of(g));
  log::info("VRAM by GPU: {}; the plan is for the least, because each has the same rows{}", caps,
            planner_->homes().placement.use_spare ? ", and what others have beyond it holds layers that else cross"
                                                  : "; nothing uses what others have beyond it");
}

void Assembly::say_shares() const {
  if (shares_rows())
    log::info("the CPU computes {:.1f} % of the rows of {} layers streamed from RAM, {}",
              parts_.plan.cpu_permille / 10.0, parts_.plan.cost.shared_layers,
              several() ? fmt::format("{} threads beside each GPU", threads_of(static_cast<int>(gpus_.size())))
                        : "the GPU the others");
  else if (!parts_.plan_options.cpu_permille && !planner_->knows_rates() && planner_->streams_from_ram())
    log::info("the GPU computes layers streamed from RAM alone, for no rates are known: run `millrace calibrate`");
}

Status Assembly::take_memory() {
  say_caps();
  const std::uint64_t program = planner_->program_bytes();
  parts_.budget =
      std::make_unique<residency::Budget>(std::max(ram_, program + residency::kLoadingBytes * gpus_.size()));
  if (program > ram_)
    log::warn("--ram {}: the program and CUDA's driver alone take {} of RAM", format_bytes(ram_),
              format_bytes(program));
  MR_ASSIGN_OR_RETURN(parts_.program, parts_.budget->reserve("program", program));
  if (parts_.draft.place == DraftPlace::cpu) {
    MR_ASSIGN_OR_RETURN(parts_.draft_model, parts_.budget->reserve("draft model", parts_.draft.ram_bytes));
  }
  parts_.vram = std::make_unique<residency::Budget>(cap_of(0), "--vram");
  MR_ASSIGN_OR_RETURN(parts_.gpu_context, parts_.vram->reserve("CUDA context", context_bytes_[0]));
  for (std::size_t g = 1; g < gpus_.size(); ++g) {
    loaded_->budgets.push_back(std::make_unique<residency::Budget>(cap_of(g), "--vram"));
    MR_ASSIGN_OR_RETURN(loaded_->contexts.emplace_back(), vram(g).reserve("CUDA context", context_bytes_[g]));
  }
  return {};
}

/// One GPU after the other: the disk and the copies of each are one's at a time.
Expected<std::unique_ptr<residency::DeviceWeights>> Assembly::load_weights(std::size_t gpu) {
  const device::OnGpu on(gpus_[gpu]);
  residency::OnLoad on_load;
  if (options_.watch.on_load)
    on_load.progress = [tell = options_.watch.on_load, gpu, gpus = gpus_.size()](
                           std::uint64_t done, std::uint64_t total) { return tell(gpu * total + done, gpus * total); };
  on_load.end = options_.watch.on_load_end;
  return residency::DeviceWeights::load(model(gpu).units(), planner_->homes().placement, *parts_.backend,
                                        parts_.straight.get(), vram(gpu), *parts_.budget, on_load,
                                        std::move(parts_.head_start));
}

/// Behind the weights, in whose tables their addresses are.
Status Assembly::open_experts() {
  if (!experts_.any()) return {};
  parts_.usage = UsageKeeper::open(options_, whole().units());
  const std::vector<float> expected = parts_.usage != nullptr ? parts_.usage->expected() : std::vector<float>();
  std::vector<residency::ExpertGpu> gpus;
  for (std::size_t g = 0; g < gpus_.size(); ++g)
    gpus.push_back({gpus_[g], model(g).units(), loaded_->weights[g]->table(), vram(g)});
  MR_ASSIGN_OR_RETURN(loaded_->experts,
                      residency::DeviceExperts::create(whole().units(), experts_, gpus, *parts_.backend, *parts_.budget,
                                                       {options_.watch.on_load, options_.watch.on_load_end},
                                                       pack_check(parts_), expected));
  return {};
}

exec::GpuOptions Assembly::plain_options(std::size_t gpu) const {
  exec::GpuOptions ops;
  ops.device = gpus_[gpu];
  ops.graphs = options_.device.graphs;
  ops.fuse = options_.device.fuse;
  ops.kv_dtype = options_.kv.dtype;
  return ops;
}

exec::GpuOptions Assembly::options_of(std::size_t gpu) {
  exec::GpuOptions ops = plain_options(gpu);
  ops.trace = gpu == 0 ? options_.watch.trace : nullptr;
  ops.rows = {parts_.routing.get(), parts_.adapters.get()};
  if (several()) {
    ops.blocks.layout = layout_on_gpu(model(gpu), options_, gpus_[gpu]);
    ops.blocks.own_block = [loaded = loaded_.get(), gpu](std::size_t group, const std::byte* block) {
      return loaded->blocks[group]->on_device(gpu, block);
    };
  }
  ops.experts = {loaded_->experts.get(), gpu, options_.experts.prefetch};
  ThreadPool* const pool = !several()                    ? parts_.pool.get()
                           : gpu < loaded_->pools.size() ? loaded_->pools[gpu].get()
                                                         : nullptr;
  if (pool != nullptr) ops.processor = {pool, &kernels::table(parts_.isa), parts_.budget.get()};
  return ops;
}

Status Assembly::make_executor() {
  if (!several()) {
    loaded_->aside = plain_options(0);
    loaded_->aside.aside = true;
    MR_ASSIGN_OR_RETURN(parts_.executor, exec::make_gpu_executor(parts_.model->units(), *loaded_->weights.front(),
                                                                 *parts_.vram, options_of(0)));
    return {};
  }
  std::vector<exec::GpuShard> shards;
  for (std::size_t g = 0; g < gpus_.size(); ++g)
    shards.push_back({model(g).units(), *loaded_->weights[g], vram(g), model(g).program(), options_of(g)});
  MR_ASSIGN_OR_RETURN(parts_.executor, exec::make_sharded_executor(std::move(shards), *parts_.budget,
                                                                   options_.device.gpus_through_host));
  return {};
}

Status Assembly::load() {
  MR_RETURN_IF_ERROR(load_adapters(options_, parts_));
  if (shares_rows() || experts_.any()) start_processors();
  Status loaded;
  for (std::size_t g = 0; g < gpus_.size() && loaded.ok(); ++g) {
    auto weights = load_weights(g);
    loaded = weights.status();
    if (loaded.ok()) loaded_->weights.push_back(std::move(*weights));
  }
  if (options_.watch.on_load_end) options_.watch.on_load_end();
  MR_RETURN_IF_ERROR(loaded);
  MR_RETURN_IF_ERROR(open_experts());
  MR_RETURN_IF_ERROR(make_executor());
  MR_RETURN_IF_ERROR(parts_.executor->prepare(parts_.model->program(), pass_limits(parts_.limits)));
  MR_RETURN_IF_ERROR(make_blocks());
  parts_.gpu = std::move(loaded_);
  finish_kv(options_, parts_);
  if (parts_.tower_seat.rows > 0) {
    MR_ASSIGN_OR_RETURN(parts_.tower, load_tower_on_gpu(options_, parts_));
  } else if (!options_.model.mmproj.empty() && !several()) {
    log::info("pictures are computed on the CPU: {}", parts_.tower_seat.words);
  }
  log::info("executor: {}; storage: {}", parts_.executor->describe(),
            parts_.straight != nullptr ? parts_.straight->traits().name : parts_.backend->traits().name);
  return {};
}

/// What a sequence keeps on all GPUs together: of each block each has its part, or all.
Status Assembly::make_blocks() {
  const kv::Layout layout = layout_on_gpu(whole(), options_, gpus_.front());
  std::vector<std::unique_ptr<kv::BlockMemory>> memory;
  std::vector<exec::BlockDevice> devices;
  for (std::size_t g = 0; g < gpus_.size(); ++g) devices.push_back({gpus_[g], vram(g)});
  for (std::size_t i = 0; i < layout.groups().size(); ++i) {
    const kv::Group& own = planner_->layout().groups()[i];
    const std::int64_t bytes = layout.groups()[i].block_bytes();
    if (bytes != own.block_bytes() * std::ssize(gpus_) && bytes != own.block_bytes())
      return error(Code::internal, "a block of KV is neither cut into {} equal parts nor whole", gpus_.size());
    MR_ASSIGN_OR_RETURN(auto blocks, exec::DeviceBlocks::create(planner_->blocks_shape(own), devices));
    loaded_->blocks.push_back(blocks.get());
    memory.push_back(std::move(blocks));
  }
  parts_.kv_pool = std::make_shared<kv::BlockPool>(layout, std::move(memory));
  return {};
}

}  // namespace

Expected<Parts> assemble_gpu(const EngineOptions& options, const DraftModelPlan* draft, bool load,
                             const std::function<Status(const Parts&)>& accept) {
  MR_RETURN_IF_ERROR(check_options(options, draft != nullptr));
  return Assembly(options, draft).run(load, accept);
}

Expected<Parts> assemble_gpu_on_paper(const EngineOptions& given, int processors, int gpus) {
  constexpr std::uint64_t kBlockShared = 99 << 10;  // of a GeForce: no machine's file says more
  EngineOptions options = given;
  options.planning.find_rates = false;
  if (gpus > 1) options.part.shard = {0, gpus};
  Parts parts;
  std::vector<std::string> paths;
  MR_RETURN_IF_ERROR(open_model(options, kGpuTileBytes, DraftUnits::none, parts, paths));
  MR_RETURN_IF_ERROR(exec::check_gpu(parts.model->program(), parts.model->units(), {options.kv.dtype, kBlockShared}));
  MR_RETURN_IF_ERROR(check_kv(parts.model->program().layout, options.kv.dtype));
  Vram vram = vram_on_paper(options.memory.vram_bytes, processors);
  if (gpus > 1) add_gathers(static_cast<std::size_t>(gpus), vram);
  MR_RETURN_IF_ERROR(GpuPlanner(options, vram, parts).plan());
  return parts;
}

}  // namespace millrace::engine
