#include "engine/gpu/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "device/cpu.h"
#include "device/device.h"
#include "engine/gpu/plan.h"
#include "engine/machine_rates.h"
#include "engine/usage_keeper.h"
#include "engine/within.h"
#include "exec/gpu/blocks.h"
#include "exec/gpu/shards.h"
#include "residency/calibrate.h"
#include "residency/gpu/experts.h"
#include "residency/gpu/weights.h"

namespace millrace::engine {
namespace {

/// What each GPU has; the first one's model and budget are the engine's.
struct ShardedParts final : GpuParts {
  std::vector<std::unique_ptr<model::Model>> models;               // of the GPUs beside the first
  std::vector<std::unique_ptr<residency::Budget>> budgets;         // likewise
  std::vector<residency::Reservation> contexts;                    // likewise
  std::vector<std::unique_ptr<residency::DeviceWeights>> weights;  // of all
  std::vector<std::unique_ptr<ThreadPool>> pools;  // of all, where the CPU has a share of rows; one for experts
  // Where experts flow:
  std::unique_ptr<model::Model> whole;
  std::unique_ptr<residency::DeviceExperts> experts;
  std::vector<exec::DeviceBlocks*> blocks;  // by group; the pool's

  residency::ExpertUsage expert_usage() const override {
    return experts != nullptr ? experts->usage() : residency::ExpertUsage();
  }
  void add_to(residency::StoreCounters& counters) const override {
    for (const auto& one : weights) one->add_to(counters);
    if (experts != nullptr) experts->add_to(counters);
  }
};

Status check_shard_options(const EngineOptions& options, bool drafts) {
  const auto off = [](std::string_view what) {
    return error(Code::unsupported, "{} does not work over several GPUs; leave it out, or name one GPU", what);
  };
  if (options.part.cluster != nullptr) return off("a job of several processes");
  if (drafts || drafts_within(options)) return off("--draft");
  if (!options.memory.pins.empty()) return off("--pin");
  if (options.storage.cufile) return off("--storage cufile");
  if (options.planning.follow != nullptr) return off("--plan");
  if (!options.experts.record_routing.empty()) return off("--record-routing");
  return {};
}

class Assembly {
 public:
  explicit Assembly(const EngineOptions& options) : options_(options), gpus_{options.device.gpu} {
    gpus_.insert(gpus_.end(), options.device.gpus_beside.begin(), options.device.gpus_beside.end());
    options_.part.shard = {0, static_cast<std::int64_t>(gpus_.size())};
  }

  Expected<Parts> run(bool load, const std::function<Status(const Parts&)>& accept) {
    MR_RETURN_IF_ERROR(open());
    MR_RETURN_IF_ERROR(measure());
    EngineOptions one = options_;  // of RAM, what each GPU has beside the program
    const std::uint64_t ram = ram_of(options_);
    const std::uint64_t program = std::min(ram, measured_program_bytes(options_, ram, parts_));
    const std::uint64_t words = std::min(ram - program, exec::gather_memory(gpus_.size()).ram_bytes);
    one.memory.ram_bytes = program + (ram - program - words) / gpus_.size();
    one.memory.ram_taken_bytes = 0;
    one.planning.find_rates = false;
    if (!one.memory.vram_beside.empty())
      one.memory.vram_bytes = std::min(one.memory.vram_bytes,
                                       *std::min_element(one.memory.vram_beside.begin(), one.memory.vram_beside.end()));
    share_processor();
    planner_.emplace(one, vram_, parts_);
    MR_RETURN_IF_ERROR(planner_->plan());
    if (planner_->chose() && measure_all(ram - program)) {
      planner_.emplace(one, vram_, parts_);
      MR_RETURN_IF_ERROR(planner_->plan());
    }
    MR_RETURN_IF_ERROR(share_out_experts());
    planner_->say_homes();
    MR_RETURN_IF_ERROR(accept(parts_));
    MR_RETURN_IF_ERROR(take_memory(ram));
    if (load) MR_RETURN_IF_ERROR(this->load());
    return std::move(parts_);
  }

 private:
  Status open();
  Status measure();
  void share_processor();
  bool measure_all(std::uint64_t ram);
  Status share_out_experts();
  int threads_of(int pools) const;
  void start_processors(int pools);
  Status take_memory(std::uint64_t ram);
  Status load();
  std::uint64_t cap_of(std::size_t gpu) const;
  void say_caps() const;
  Expected<std::unique_ptr<residency::DeviceWeights>> load_weights(std::size_t gpu);
  Status open_experts();
  Status make_blocks();
  const model::Model& model(std::size_t gpu) const { return gpu == 0 ? *parts_.model : *sharded_->models[gpu - 1]; }
  residency::Budget& vram(std::size_t gpu) const { return gpu == 0 ? *parts_.vram : *sharded_->budgets[gpu - 1]; }

  EngineOptions options_;
  std::vector<int> gpus_;
  Vram vram_;                                              // the least of any, and the largest context
  std::vector<std::uint64_t> context_bytes_, most_bytes_;  // of each: of its context; the largest cap
  Parts parts_;
  std::unique_ptr<ShardedParts> sharded_ = std::make_unique<ShardedParts>();
  std::vector<std::string> paths_;
  kv::Layout layout_;  // of sequences: all heads
  std::optional<GpuPlanner> planner_;
  residency::ExpertTiers experts_;  // of all GPUs: each has its rows of those in slots
};

/// A model for each GPU, and what a sequence keeps on all of them together.
Status Assembly::open() {
  MR_RETURN_IF_ERROR(open_model(options_, kGpuTileBytes, false, parts_, paths_));
  if (!parts_.identity.empty()) parts_.identity += fmt::format(" over {} GPUs", gpus_.size());
  if (wants_draft_block(options_)) parts_.draft.words = "several GPUs have no passes through that block";
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, open_file(options_));
  MR_ASSIGN_OR_RETURN(sharded_->whole, model::load(file, {kGpuTileBytes, options_.demand.context_tokens}));
  layout_ = kv_layout(*sharded_->whole, options_, gpus_.front());
  MR_RETURN_IF_ERROR(check_kv(layout_, options_.kv.dtype));
  for (std::int64_t index = 1; index < std::ssize(gpus_); ++index) {
    model::LoadOptions how{kGpuTileBytes, options_.demand.context_tokens};
    how.shard = {index, options_.part.shard.count};
    MR_ASSIGN_OR_RETURN(sharded_->models.emplace_back(), model::load(file, how));
  }
  return {};
}

/// Can each GPU compute its rows, and how much memory has each?
Status Assembly::measure() {
  device::load_all_kernels_first();
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    MR_ASSIGN_OR_RETURN(const device::Gpu gpu, find_gpu(gpus_[g]));
    MR_RETURN_IF_ERROR(
        exec::check_gpu(model(g).program(), model(g).units(), {options_.kv.dtype, gpu.block_shared_bytes}));
    const device::OnGpu on(gpus_[g]);
    MR_ASSIGN_OR_RETURN(const Vram vram, open_gpu(gpus_[g]));
    context_bytes_.push_back(vram.context_bytes);
    most_bytes_.push_back(most_cap(vram));
    if (g == 0) vram_ = vram;
    vram_.free_bytes = std::min(vram_.free_bytes, vram.free_bytes);
    vram_.context_bytes = std::max(vram_.context_bytes, vram.context_bytes);
    vram_.multiprocessors = std::min(vram_.multiprocessors, vram.multiprocessors);
  }
  vram_.context_bytes += exec::gather_memory(gpus_.size()).vram_bytes;  // the plan counts it with that
  return {};
}

/// Beside each GPU computes its part of the threads.
void Assembly::share_processor() {
  residency::Rates& rates = parts_.rates;
  for (double* const rate :
       {&rates.ram, &rates.cpu_decode, &rates.cpu_decode_busy, &rates.cpu_prefill_macs, &rates.cpu_few_macs})
    *rate /= static_cast<double>(gpus_.size());
}

/// What the plan lacks, the first GPU's rates being every one's. True: there is more than before.
bool Assembly::measure_all(std::uint64_t ram) {
  const device::OnGpu on(gpus_.front());
  const residency::Rates shared = parts_.rates;
  parts_.rates = options_.planning.rates;
  const std::uint64_t vram = vram_.free_bytes - std::min(vram_.free_bytes, vram_.context_bytes);
  const bool more = measure_rates(options_, {.host_bytes = ram, .device_bytes = vram, .gpu = true}, parts_);
  if (more)
    share_processor();
  else
    parts_.rates = shared;
  return more;
}

/// The plan is of one GPU's rows in its part of RAM: so many experts with slots there have all their rows in all of it.
/// But each GPU leases for its waves.
Status Assembly::share_out_experts() {
  experts_ = planner_->homes().experts;
  if (!experts_.any()) return {};
  experts_.spare_slots = 0;
  const auto gpus = static_cast<int>(gpus_.size());
  const std::int64_t all = parts_.model->units().experts();
  if (experts_.ram_slots < all)
    experts_.wave_experts = std::min(experts_.wave_experts, experts_.ram_slots / residency::least_ram_experts(gpus));
  if (experts_.wave_experts > 0) return {};
  return error(Code::out_of_budget, "RAM for {} experts is too little for {} GPUs; give more --ram", experts_.ram_slots,
               gpus);
}

/// Threads of each of so many pools; one processor is left to each GPU's launches.
int Assembly::threads_of(int pools) const {
  const auto gpus = static_cast<int>(gpus_.size());
  const int all = options_.device.threads > 0 ? options_.device.threads : ThreadPool::usable_processors();
  return std::max(1, options_.device.threads > 0 ? all / pools : (all - gpus) / pools);
}

void Assembly::start_processors(int pools) {
  constexpr std::chrono::milliseconds kSpin{1};  // longer than a GPU takes for its own layers
  for (int p = 0; p < pools; ++p)
    sharded_->pools.push_back(std::make_unique<ThreadPool>(
        ThreadPool::Options{.threads = threads_of(pools),
                            .spin = kSpin,
                            .first = p * (threads_of(pools) + (options_.device.threads > 0 ? 0 : 1))}));
  parts_.isa = options_.device.best_isa ? device::best_isa() : options_.device.isa;
}

/// The plan is for the least of any, each GPU having the same rows. One with more keeps units there that else cross.
std::uint64_t Assembly::cap_of(std::size_t gpu) const {
  const bool by_gpu = gpu > 0 && !options_.memory.vram_beside.empty();
  const std::uint64_t asked = by_gpu ? options_.memory.vram_beside[gpu - 1] : options_.memory.vram_bytes;
  return std::max(planner_->cap_bytes(), asked > 0 ? std::min(asked, most_bytes_[gpu]) : most_bytes_[gpu]);
}

void Assembly::say_caps() const {
  if (options_.memory.vram_beside.empty()) return;
  std::string caps;
  for (std::size_t g = 0; g < gpus_.size(); ++g) caps += (g > 0 ? ", " : "") + format_bytes(cap_of(g));
  log::info("VRAM by GPU: {}; the plan is for the least, because each has the same rows{}", caps,
            planner_->homes().placement.use_spare ? ", and what others have beyond it holds layers that else cross"
                                                  : "; nothing uses what others have beyond it");
}

Status Assembly::take_memory(std::uint64_t ram) {
  MR_RETURN_IF_ERROR(start_storage(options_, paths_, false, parts_));
  log::info("GPUs {}: context {} tokens x {}, {} rows a pass, {} of VRAM at most on each", fmt::join(gpus_, " and "),
            parts_.limits.context_tokens, parts_.limits.sequences, parts_.limits.batch_tokens,
            format_bytes(planner_->cap_bytes()));
  say_caps();
  if (parts_.plan.cpu_permille > 0)
    log::info("the CPU computes {:.1f} % of the rows of layers streamed from RAM, {} threads beside each GPU",
              parts_.plan.cpu_permille / 10.0, threads_of(static_cast<int>(gpus_.size())));
  parts_.budget = std::make_unique<residency::Budget>(
      std::max(ram, planner_->program_bytes() + residency::kLoadingBytes * gpus_.size()));
  MR_ASSIGN_OR_RETURN(parts_.program, parts_.budget->reserve("program", planner_->program_bytes()));
  parts_.vram = std::make_unique<residency::Budget>(cap_of(0), "--vram");
  MR_ASSIGN_OR_RETURN(parts_.gpu_context, parts_.vram->reserve("CUDA context", context_bytes_[0]));
  for (std::size_t g = 1; g < gpus_.size(); ++g) {
    sharded_->budgets.push_back(std::make_unique<residency::Budget>(cap_of(g), "--vram"));
    MR_ASSIGN_OR_RETURN(sharded_->contexts.emplace_back(), vram(g).reserve("CUDA context", context_bytes_[g]));
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
  return residency::DeviceWeights::load(model(gpu).units(), planner_->homes().placement, *parts_.backend, nullptr,
                                        vram(gpu), *parts_.budget, on_load);
}

/// Behind the weights, in whose tables their addresses are.
Status Assembly::open_experts() {
  if (!experts_.any()) return {};
  parts_.usage = UsageKeeper::open(options_, sharded_->whole->units());
  const std::vector<float> expected = parts_.usage != nullptr ? parts_.usage->expected() : std::vector<float>();
  std::vector<residency::ExpertGpu> gpus;
  for (std::size_t g = 0; g < gpus_.size(); ++g)
    gpus.push_back({gpus_[g], model(g).units(), sharded_->weights[g]->table(), vram(g)});
  MR_ASSIGN_OR_RETURN(sharded_->experts, residency::DeviceExperts::create(
                                             sharded_->whole->units(), experts_, gpus, *parts_.backend, *parts_.budget,
                                             {options_.watch.on_load, options_.watch.on_load_end}, {}, expected));
  return {};
}

Status Assembly::load() {
  std::vector<exec::GpuShard> shards;
  const bool processor = parts_.plan.cpu_permille > 0 && !experts_.any();
  if (processor || experts_.any()) start_processors(experts_.any() ? 1 : static_cast<int>(gpus_.size()));
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    MR_ASSIGN_OR_RETURN(sharded_->weights.emplace_back(), load_weights(g));
  }
  if (options_.watch.on_load_end) options_.watch.on_load_end();
  MR_RETURN_IF_ERROR(open_experts());
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    exec::GpuOptions ops;
    ops.device = gpus_[g];
    ops.graphs = options_.device.graphs;
    ops.fuse = options_.device.fuse;
    ops.kv_dtype = options_.kv.dtype;
    ops.trace = g == 0 ? options_.watch.trace : nullptr;
    ops.blocks.layout = kv_layout(model(g), options_, gpus_[g]);
    ops.blocks.own_block = [sharded = sharded_.get(), g](std::size_t group, const std::byte* block) {
      return sharded->blocks[group]->on_device(g, block);
    };
    ops.rows.routing = parts_.routing.get();
    if (experts_.any()) {
      ops.experts.slots = sharded_->experts.get();
      ops.experts.gpu = g;
      ops.experts.prefetch = options_.experts.prefetch;
    }
    if (processor || (experts_.any() && g == 0)) {
      ops.processor.pool = sharded_->pools[g].get();
      ops.processor.kernels = &kernels::table(parts_.isa);
      ops.processor.ram = parts_.budget.get();
    }
    shards.push_back({model(g).units(), *sharded_->weights[g], vram(g), model(g).program(), std::move(ops)});
  }
  MR_ASSIGN_OR_RETURN(parts_.executor, exec::make_sharded_executor(std::move(shards), *parts_.budget,
                                                                   options_.device.gpus_through_host));
  MR_RETURN_IF_ERROR(parts_.executor->prepare(parts_.model->program(), pass_limits(parts_.limits)));
  MR_RETURN_IF_ERROR(make_blocks());
  parts_.gpu = std::move(sharded_);
  finish_kv(options_, parts_);
  log::info("executor: {}; storage: {}", parts_.executor->describe(), parts_.backend->traits().name);
  return {};
}

Status Assembly::make_blocks() {
  std::vector<std::unique_ptr<kv::BlockMemory>> memory;
  std::vector<exec::BlockDevice> devices;
  for (std::size_t g = 0; g < gpus_.size(); ++g) devices.push_back({gpus_[g], vram(g)});
  for (std::size_t i = 0; i < layout_.groups().size(); ++i) {
    const kv::Group& own = planner_->layout().groups()[i];
    if (layout_.groups()[i].block_bytes() != own.block_bytes() * std::ssize(gpus_) &&
        layout_.groups()[i].block_bytes() != own.block_bytes())
      return error(Code::internal, "a block of KV is neither cut into {} equal parts nor whole", gpus_.size());
    MR_ASSIGN_OR_RETURN(auto blocks, exec::DeviceBlocks::create(planner_->blocks_shape(own), devices));
    sharded_->blocks.push_back(blocks.get());
    memory.push_back(std::move(blocks));
  }
  parts_.kv_pool = std::make_shared<kv::BlockPool>(layout_, std::move(memory));
  return {};
}

}  // namespace

Expected<Parts> assemble_shards(const EngineOptions& options, bool drafts, bool load,
                                const std::function<Status(const Parts&)>& accept) {
  MR_RETURN_IF_ERROR(check_shard_options(options, drafts));
  return Assembly(options).run(load, accept);
}

}  // namespace millrace::engine
