// The parts of a run on one GPU. A model that fits is at home in the GPU's memory as a whole; of a larger dense one as
// many layers as fit, and the others stream from RAM and, where that is too small, from the disk. What does not fit is
// said before anything is loaded: context, weights, KV and activations are all computed first.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "base/bytes.h"
#include "base/log.h"
#include "device/cpu.h"
#include "device/cuda_runtime.h"
#include "device/gpu.h"
#include "engine/setup.h"
#include "exec/cuda_ops.h"
#include "residency/calibrate.h"
#include "residency/cuda_experts.h"
#include "residency/cuda_weights.h"
#include "residency/predict.h"
#include "storage/cufile.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kAutomaticBatch = 2048, kLeastBatch = 64, kAutomaticChunk = 512;
// Where layers stream, a pass takes a whole prompt, so that each comes once for it, and works it in parts, which leaves
// more room for weights.
constexpr std::int64_t kStreamingBatch = 16384, kStreamingWork = 512;
constexpr std::uint64_t kTileBytes = 256 * kMiB;  // an expert is one tile
// What the driver takes after its context was measured: kernels loaded when first launched, graphs, fragmentation.
constexpr std::uint64_t kDriverMargin = 160 * kMiB;
constexpr int kMostRingUnits = 2, kLeastRingUnits = 1;
// Of a layer's experts outside VRAM, in passes of few rows: what the GPU reads across the link where rates are unknown.
constexpr int kUsualLinkPermille = 300;
constexpr int kMostWaveExperts = 16;  // more would take VRAM from slots, and copies are long enough
// Of --ram: what the engine takes beside page-locked weights, after the program (the driver's part of it, too) was
// measured; and by how much the next run's measurement may differ, so that a plan can be followed.
constexpr std::uint64_t kHostMargin = 64 * kMiB, kMeasurementSpread = 32 * kMiB;
constexpr std::uint64_t kThreadBytes = kMiB;              // of each that computes the CPU's share
constexpr std::uint64_t kUsualContextBytes = 600 * kMiB;  // where the driver does not tell

struct LoadedWeights final : GpuParts {
  std::unique_ptr<residency::DeviceWeights> weights;
  std::unique_ptr<residency::DeviceExperts> experts;  // null: all are in VRAM
  std::uint64_t copied_bytes() const override {
    return weights->moved().copied_bytes + (experts == nullptr ? 0 : experts->counters().copied_bytes);
  }
  std::uint64_t disk_bytes() const override {
    return weights->moved().disk_bytes + (experts == nullptr ? 0 : experts->store().counters().bytes_from_disk);
  }
  void add_to(residency::StoreCounters& counters) const override {
    if (experts == nullptr) return;
    const residency::StoreCounters store = experts->store().counters();
    counters.experts = experts->counters().figures;
    const residency::LayerCounters all = counters.experts.total();
    counters.hits = all.hits;
    counters.misses = all.misses;
    counters.evictions = store.evictions;
    counters.stall_ns = store.stall_ns;
  }
};

/// Device memory that is there, and what this process's context has taken of it.
struct Vram {
  std::uint64_t free_bytes = 0, context_bytes = 0;
};

Expected<device::Gpu> find_gpu(int index) {
  MR_ASSIGN_OR_RETURN(const std::vector<device::Gpu> found, device::gpus());
  if (index < 0 || index >= static_cast<int>(found.size()))
    return error(Code::unsupported, "--device cuda:{}: there are {} GPUs here, counted from 0", index, found.size());
  return found[static_cast<std::size_t>(index)];
}

Expected<Vram> open_gpu(int index) {
  const auto before = device::vram_state_without_context(index);
  MR_RETURN_IF_ERROR(device::use_gpu(index));
  MR_ASSIGN_OR_RETURN(const device::VramState after, device::vram_state());
  Vram vram;
  vram.free_bytes = after.free_bytes;
  vram.context_bytes =
      before.ok() && before->free_bytes > after.free_bytes ? before->free_bytes - after.free_bytes : kUsualContextBytes;
  vram.context_bytes += kDriverMargin;
  return vram;
}

class CudaPlanner {
 public:
  CudaPlanner(const EngineOptions& options, const Vram& vram, Parts& parts)
      : options_(options),
        vram_(vram),
        parts_(parts),
        hp_(parts.model->hyperparameters()),
        layout_(kv_layout(*parts.model, options.kv_dtype, options.cuda_index)),
        ram_(ram_of(options)),
        program_bytes_(measured_program_bytes(options)) {
    const int threads = options.threads > 0 ? options.threads : ThreadPool::usable_processors();
    threads_bytes_ = static_cast<std::uint64_t>(threads) * kThreadBytes;
  }

  Status plan() {
    const std::uint64_t most = vram_.free_bytes + vram_.context_bytes - kDriverMargin;
    if (options_.vram_bytes > most)
      log::warn("--vram {}: only {} of this GPU are free now", format_bytes(options_.vram_bytes), format_bytes(most));
    placement_.straight = options_.cufile;
    cap_ = options_.vram_bytes > 0 ? std::min(options_.vram_bytes, most) : most;
    const bool shares = shares_out(options_);
    if (shares) share_out();
    Status status = place_all();
    while (status.code() == Code::out_of_budget && shares && options_.max_sequences > 1) {
      options_.max_sequences /= 2;
      if (options_.kv_tokens > 0) options_.kv_tokens = std::max<std::int64_t>(1, options_.kv_tokens / 2);
      status = place_all();
    }
    MR_RETURN_IF_ERROR(status);
    residency::PlanOptions& plan_options = parts_.plan_options;
    plan_options.vram_bytes = cap_;
    plan_options.kv_bytes = 0;
    for (const kv::Group& group : layout_.groups())
      plan_options.kv_bytes += static_cast<std::uint64_t>(blocks(group) * group.block_bytes());
    plan_options.most_kv_bytes = plan_options.kv_bytes;
    plan_options.context_tokens = parts_.limits.kv_tokens;
    plan_options.top_k = static_cast<int>(hp_.top_k);
    plan_options.pass_tokens = parts_.limits.batch_tokens;
    plan_options.attention = attention_costs(parts_.model->program(), layout_);
    plan_options.crowded = residency::threads_beside_gpu(options_.threads) >= ThreadPool::usable_processors();
    plan_options.quantized_kv = info(options_.kv_dtype).block_elements > 1;
    plan_options.feed_forwards = parts_.model->program().feed_forwards();
    plan_options.vram_expert_slots = experts_.vram_slots;
    plan_options.ram_expert_slots = experts_.ram_slots;
    plan_options.expert_link_permille = experts_.link_permille;
    plan_options.cpu.reset();
    if (options_.follow != nullptr)
      plan_options.cpu = options_.follow->decisions.cpu;
    else if (options_.cpu_share_percent >= 0 || options_.cpu_feed_forwards >= 0)
      plan_options.cpu = {std::max(0, options_.cpu_share_percent) * 10, std::max(0, options_.cpu_feed_forwards)};
    else if (streams_from_ram())
      measure_rates();
    parts_.plan = residency::make_vram_plan(parts_.model->units(), placement_.homes, plan_options, options_.rates);
    placement_.host_permille = parts_.plan.cpu.permille;
    for (const residency::FeedForward& feed_forward : plan_options.feed_forwards)
      if (parts_.plan.homes[static_cast<std::size_t>(feed_forward.unit)].executor == residency::Executor::feed_forward)
        placement_.host_feed_forwards.push_back(feed_forward);
    placement_.use_spare = uses_spare();
    for (const kv::Group& group : layout_.groups()) placement_.spare_margin += 2 * blocks_shape(group).chunk_bytes();
    parts_.plan.ring_slots = placement_.ring_units;
    parts_.plan.expert_slots = experts_.ram_slots;
    parts_.plan.vram_weight_bytes = weight_bytes();
    parts_.plan.vram_fixed_bytes = vram_.context_bytes + activation_bytes();
    return {};
  }

  std::uint64_t cap_bytes() const { return cap_; }
  std::uint64_t ram_bytes() const { return ram_; }
  std::uint64_t program_bytes() const { return program_bytes_; }
  bool streams_from_ram() const { return movers_ > on_disk_; }
  bool knows_rates() const { return options_.rates.cpu_decode > 0; }
  const residency::DevicePlacement& placement() const { return placement_; }
  const residency::ExpertTiers& experts() const { return experts_; }
  const kv::Layout& layout() const { return layout_; }
  std::int64_t blocks(const kv::Group& group) const { return kv::most_blocks(group, kv_load(parts_.limits)); }
  /// Where layers stream, they use the memory of blocks that no sequence needs yet.
  exec::DeviceBlocksShape blocks_shape(const kv::Group& group) const {
    const std::int64_t most = blocks(group), first = uses_spare() ? std::max<std::int64_t>(1, most / 4) : most;
    return {first, most, static_cast<std::uint64_t>(group.block_bytes())};
  }

 private:
  void share_out() {
    stay_in_vram();
    choose_limits();
    SharingInput input;
    input.cap_bytes = cap_;
    input.taken_bytes = vram_.context_bytes + weight_bytes() + activation_bytes();
    input.weights_give_way = parts_.model->units().experts() == 0;
    input.kv_bytes = [this](std::int64_t tokens, std::int64_t sequences) {
      std::uint64_t bytes = 0;
      for (const kv::Group& group : layout_.groups())
        bytes += static_cast<std::uint64_t>(kv::most_blocks(group, {tokens, sequences, parts_.limits.batch_tokens}) *
                                            group.block_bytes());
      return bytes;
    };
    input.vocab = hp_.vocab;
    input.context_tokens = parts_.limits.context_tokens;
    take_share(std::move(input), options_);
  }

  /// The rates of a machine that was never calibrated, for this run alone. They differ a little from run to run: the
  /// part is chosen in large steps, so that most runs have the same one, and with it the same bits.
  void measure_rates() {
    if (!options_.measure_rates || knows_rates()) return;
    constexpr int kShareStep = 50;
    const auto begin = std::chrono::steady_clock::now();
    auto rates = residency::measure_sharing(kernels(), options_.threads, ram_ - std::min(ram_, program_bytes_),
                                            cap_ - std::min(cap_, vram_.context_bytes));
    if (!rates.ok()) return log::warn("rates not measured: {}", rates.status().message());
    log::info(
        "this machine was never calibrated: measured in {:.1f} s, for this run, {}/s to the GPU and {}/s of "
        "weights decoded by the CPU at once; run `millrace calibrate` to keep better figures",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
        format_bytes(static_cast<std::uint64_t>(rates->shared_link())),
        format_bytes(static_cast<std::uint64_t>(rates->shared_decode())));
    options_.rates = parts_.rates = *rates;
    residency::PlanOptions& plan_options = parts_.plan_options;
    const auto rounded = [](int exact, int step) { return (exact + step / 2) / step * step; };
    const residency::CpuPart exact =
        residency::make_vram_plan(parts_.model->units(), placement_.homes, plan_options, options_.rates).cpu;
    const int layers = static_cast<int>(movers_ - on_disk_);
    plan_options.cpu = {rounded(exact.permille, kShareStep),
                        std::min(layers, rounded(exact.feed_forwards, std::max(1, layers / 10)))};
  }

  void stay_in_vram() {
    placement_.homes.assign(parts_.model->units().units().size(), residency::Tier::vram);
    experts_ = {};
    streams_ = false;
  }

  /// The model in VRAM as a whole, or as much of it as fits.
  Status place_all() {
    stay_in_vram();
    choose_limits();
    if (options_.follow != nullptr) return follow();
    if (!options_.pins.empty() || wants_flow()) return plan_streaming();
    while (needed() > cap_ && shrink()) {
    }
    return needed() > cap_ ? plan_streaming() : Status();
  }

  void choose_limits() {
    Limits& limits = parts_.limits;
    limits.sequences = std::max<std::int64_t>(1, options_.max_sequences);
    limits.context_tokens =
        options_.context_tokens > 0 ? options_.context_tokens : std::min(hp_.context_length, kAutomaticContext);
    const std::int64_t automatic =
        streams_ ? std::max(kAutomaticBatch, std::min(limits.context_tokens, kStreamingBatch)) : kAutomaticBatch;
    const std::int64_t wanted = options_.batch_tokens > 0 ? options_.batch_tokens : automatic;
    limits.batch_tokens = std::max(std::min(wanted, limits.context_tokens * limits.sequences), limits.sequences);
    limits.work_tokens = streams_ ? std::min(limits.batch_tokens, kStreamingWork) : 0;
    limits.logit_rows = std::max(limits.sequences, std::min<std::int64_t>(limits.batch_tokens, 64));
    limits.tile_bytes = kTileBytes;
    set_shared_limits(options_, kAutomaticChunk, limits);
  }

  bool shrink() {
    Limits& limits = parts_.limits;
    const Limits before = limits;
    limits.batch_tokens = std::max({kLeastBatch, limits.sequences, limits.batch_tokens / 2});
    if (options_.context_tokens == 0) limits.context_tokens = std::max<std::int64_t>(512, limits.context_tokens / 2);
    limits.batch_tokens = std::min(limits.batch_tokens, before.batch_tokens);
    limits.work_tokens = std::min(limits.work_tokens, limits.batch_tokens);
    limits.context_tokens = std::min(limits.context_tokens, before.context_tokens);
    limits.logit_rows = std::min(limits.logit_rows, std::max(limits.sequences, limits.batch_tokens));
    set_shared_limits(options_, kAutomaticChunk, limits);
    return limits.batch_tokens != before.batch_tokens || limits.context_tokens != before.context_tokens;
  }

  /// As many layers as fit at home in VRAM, the others in RAM while there is room, the rest on the disk.
  Status plan_streaming() {
    const auto& units = parts_.model->units().units();
    if (parts_.model->units().experts() > 0) {
      if (options_.pins.empty()) return plan_mixture();
      return error(Code::unsupported, "--pin: experts come and go as they are used; leave it out");
    }
    const auto trunks = std::count_if(units.begin(), units.end(), is_trunk);
    streams_ = true;
    choose_limits();
    std::uint64_t least = UINT64_MAX;
    do {
      for (ring_units_ = kMostRingUnits; ring_units_ >= kLeastRingUnits; --ring_units_) {
        for (std::int64_t moving = options_.pins.empty() ? 1 : 0; moving <= trunks; ++moving) {
          if (!place(moving, trunks)) return ram_refusal();
          least = std::min(least, needed());
          if (needed() > cap_) continue;
          log::info("{} of {} layers stream to the GPU in every pass, {} of them from the disk", movers_, trunks,
                    on_disk_);
          return {};
        }
      }
    } while (shrink());
    return error(Code::out_of_budget,
                 "{} of VRAM are too few even with every layer streamed ({} tokens of context): --vram {} is the least "
                 "that works",
                 format_bytes(cap_), parts_.limits.context_tokens, residency::ram_argument(least));
  }

  /// Everything but the experts in VRAM, and of these as many as there is room for; all of them in RAM, or as many as
  /// there is room for, and the rest on the disk.
  Status plan_mixture() {
    const residency::UnitTable& table = parts_.model->units();
    for (std::size_t u = 0; u < table.units().size(); ++u) {
      const residency::Unit& unit = table.units()[u];
      residency::Tier& home = placement_.homes[u];
      home = is_expert(unit) || unit.by_rows ? residency::Tier::ram : residency::Tier::vram;
    }
    choose_limits();
    const std::int64_t experts = table.experts();
    const int layer = static_cast<int>(hp_.experts);
    const auto most_vram_slots = static_cast<std::uint64_t>(
        options_.vram_experts >= 0 ? std::min<std::int64_t>(options_.vram_experts, experts) : experts);
    std::uint64_t least_vram = UINT64_MAX;
    do {
      for (int wave = std::min(kMostWaveExperts, layer); wave > 0; wave /= 2) {
        experts_ = {static_cast<int>(experts), 0, wave};
        experts_.policy = options_.policy;
        if (options_.expert_slots > 0)
          experts_.ram_slots = static_cast<int>(std::min<std::int64_t>(experts, options_.expert_slots));
        if (experts_.ram_slots < std::min<std::int64_t>(experts, residency::least_ram_experts(wave))) {
          if (wave > 1) continue;
          return error(Code::out_of_budget, "--expert-slots {}: beside a GPU {} are the least that work",
                       options_.expert_slots, residency::least_ram_experts(1));
        }
        least_vram = std::min(least_vram, needed());
        if (needed() > cap_) continue;
        const std::uint64_t slot = residency::device_slot_bytes(table);
        experts_.vram_slots = static_cast<int>(std::min<std::uint64_t>(most_vram_slots, (cap_ - needed()) / slot));
        return place_experts_in_ram();
      }
    } while (shrink());
    return error(Code::out_of_budget,
                 "{} of VRAM are too few even with every expert outside ({} tokens of context): --vram {} is the least "
                 "that works",
                 format_bytes(cap_), parts_.limits.context_tokens, residency::ram_argument(least_vram));
  }

  /// REQUIRES: what lies in VRAM is decided.
  Status place_experts_in_ram() {
    const residency::UnitTable& table = parts_.model->units();
    const auto all = static_cast<int>(table.experts());
    const int most = experts_.ram_slots;
    const std::uint64_t room = ram_ - std::min(ram_, kMeasurementSpread), slot = residency::expert_slot_bytes(table);
    if (host_needed() > room) {
      experts_.ram_slots = residency::least_ram_experts(experts_.wave_experts);
      const std::uint64_t least = host_needed();
      if (least > room)
        return error(Code::out_of_budget,
                     "--ram {} is too little for experts beside the GPU: --ram {} is the least that works; or use "
                     "--device cpu, which needs less",
                     residency::ram_argument(ram_), residency::ram_argument(least + kMeasurementSpread));
      experts_.ram_slots = std::min(most, experts_.ram_slots + static_cast<int>((room - least) / slot));
      while (host_needed() > room) --experts_.ram_slots;
    }
    if (experts_.ram_slots < all)
      for (std::size_t u = 0; u < table.units().size(); ++u)
        if (is_expert(table.units()[u])) placement_.homes[u] = residency::Tier::disk;
    experts_.link_permille = experts_.ram_slots < all ? 0 : link_permille();
    log::info("{} of {} experts have slots in VRAM, {} lie in RAM; the CPU computes with those that are not in VRAM",
              experts_.vram_slots, all, experts_.ram_slots);
    return {};
  }

  /// What lets link and processor end together. A user's share of rows is one of experts, too.
  int link_permille() const {
    if (options_.cpu_share_percent >= 0) return 1000 - options_.cpu_share_percent * 10;
    const int share = residency::link_share(options_.rates);
    return share > 0 ? share : kUsualLinkPermille;
  }

  /// The homes of a saved plan, if they fit today.
  Status follow() {
    placement_.homes = options_.follow->homes;
    if (placement_.homes.size() != parts_.model->units().units().size())
      return error(Code::invalid_argument, "the plan is for the CPU; add --device cpu, or make one anew");
    const residency::UnitTable& table = parts_.model->units();
    for (std::size_t u = 0; u < placement_.homes.size(); ++u)
      if (is_expert(table.units()[u]) && placement_.homes[u] != residency::Tier::vram) return plan_mixture();
    for (std::size_t u = 0; u < placement_.homes.size(); ++u) {
      const residency::Unit& unit = table.units()[u];
      if (placement_.homes[u] == residency::Tier::vram || is_trunk(unit)) continue;
      if (!unit.by_rows || placement_.homes[u] == residency::Tier::disk)
        return error(Code::unsupported, "the plan has unit {}, {}, at home in {}; this one has to be in vram", u,
                     residency::unit_kind_name(unit.kind), residency::tier_name(placement_.homes[u]));
    }
    movers_ = 0;
    for (std::size_t u = 0; u < placement_.homes.size(); ++u)
      if (is_trunk(table.units()[u]) && placement_.homes[u] != residency::Tier::vram) ++movers_;
    placement_.ring_units =
        movers_ > 0 ? std::clamp(options_.follow->decisions.ring_slots, kLeastRingUnits, kMostRingUnits) : 0;
    streams_ = movers_ > 0;
    choose_limits();
    if (needed() > cap_)
      return error(Code::out_of_budget,
                   "the plan takes {} of VRAM and there are {}: --vram {} is the least for it, or make one anew",
                   format_bytes(needed()), format_bytes(cap_), residency::ram_argument(needed()));
    const std::uint64_t host = host_needed();
    if (host > ram_)
      return error(Code::out_of_budget, "the plan takes {} of RAM: --ram {} is the least for it, or make one anew",
                   format_bytes(host), residency::ram_argument(host));
    return {};
  }

  /// What is pinned stays where it is.
  bool uses_spare() const { return streams_ && options_.pins.empty(); }

  /// Of a mixture: told to keep experts outside VRAM, wherever they would fit.
  bool wants_flow() const { return hp_.experts > 0 && (options_.vram_experts >= 0 || options_.expert_slots > 0); }
  static bool is_expert(const residency::Unit& unit) { return unit.kind == residency::UnitKind::expert; }
  static bool is_trunk(const residency::Unit& unit) { return unit.kind == residency::UnitKind::trunk; }

  /// Homes for `moving` of the layers outside VRAM, spread evenly, so that copies run on while the others are computed;
  /// what the user pinned stays where it is pinned. False: RAM is too small even for the ring in front of the disk.
  bool place(std::int64_t moving, std::int64_t trunks) {
    const residency::UnitTable& table = parts_.model->units();
    for (std::int64_t to_disk = 0; to_disk <= moving; ++to_disk) {
      std::int64_t trunk = 0, mover = 0;
      movers_ = on_disk_ = 0;
      for (std::size_t u = 0; u < table.units().size(); ++u) {
        const residency::Unit& unit = table.units()[u];
        residency::Tier& home = placement_.homes[u];
        home = unit.by_rows ? residency::Tier::ram : residency::Tier::vram;
        if (!is_trunk(unit)) continue;
        const bool moves = (trunk + 1) * moving / trunks > trunk * moving / trunks;
        ++trunk;
        if (moves) {
          const bool disk = (mover + 1) * to_disk / moving > mover * to_disk / moving;
          home = disk ? residency::Tier::disk : residency::Tier::ram;
          ++mover;
        }
        for (const Pin& pin : options_.pins)
          if (unit.layer >= pin.first_layer && unit.layer <= pin.last_layer) home = pin.tier;
        if (home != residency::Tier::vram) ++movers_;
        if (home == residency::Tier::disk) ++on_disk_;
      }
      placement_.ring_units = movers_ == 0 ? 0 : wants_large_ring() ? ring_units_ : kLeastRingUnits;
      if (host_needed() + kMeasurementSpread <= ram_) return true;
    }
    return false;
  }

  Status ram_refusal() const {
    return error(
        Code::out_of_budget,
        "--ram {} is too little to stream to the GPU: reading ahead of it takes {}; give more, or use --device "
        "cpu, which needs less",
        residency::ram_argument(ram_), format_bytes(host_needed() + kMeasurementSpread));
  }

  /// While a prompt of several parts is worked, one unit stays: the disk reads on only where the ring has room for
  /// more.
  bool wants_large_ring() const { return on_disk_ > 0 && parts_.limits.batch_tokens > parts_.limits.work_tokens; }

  /// Page-locked memory of the placement, the program, and what the engine takes beside it.
  std::uint64_t host_needed() const {
    return program_bytes_ + residency::pinned_weight_bytes(parts_.model->units(), placement_) +
           residency::kLoadingBytes + kHostMargin + threads_bytes_ +
           residency::pinned_expert_bytes(parts_.model->units(), experts_) +
           (experts_.any() ? exec::expert_share_bytes(pass_shape(), kernels(), threads()) : 0);
  }
  std::uint64_t weight_bytes() const {
    return residency::device_weight_bytes(parts_.model->units(), placement_) +
           residency::device_expert_bytes(parts_.model->units(), experts_);
  }
  exec::PassShape pass_shape() const {
    return exec::pass_shape(parts_.model->program(), parts_.model->units(), pass_limits(parts_.limits));
  }
  std::uint64_t activation_bytes() const { return exec::cuda_activation_bytes(pass_shape()); }
  const kernels::Table& kernels() const {
    return kernels::table(options_.best_isa ? device::best_isa() : options_.isa);
  }
  int threads() const { return residency::threads_beside_gpu(options_.threads); }
  std::uint64_t kv_bytes() const {
    std::uint64_t bytes = 0;
    for (const kv::Group& group : layout_.groups()) bytes += blocks_shape(group).most_bytes();
    return bytes;
  }
  std::uint64_t needed() const { return vram_.context_bytes + weight_bytes() + activation_bytes() + kv_bytes(); }

  EngineOptions options_;  // ours: sharing fills in what the user left open
  const Vram vram_;
  Parts& parts_;
  const model::Hyperparameters& hp_;
  const kv::Layout layout_;
  const std::uint64_t ram_;  // the cap: the machine is asked once
  const std::uint64_t program_bytes_;
  std::uint64_t threads_bytes_ = 0;  // of those that compute the CPU's share
  std::uint64_t cap_ = 0;
  residency::DevicePlacement placement_;
  residency::ExpertTiers experts_;  // of a mixture that is not in VRAM as a whole
  bool streams_ = false;            // some layers may
  int ring_units_ = kMostRingUnits;
  std::int64_t movers_ = 0, on_disk_ = 0;
};

}  // namespace

Expected<Parts> assemble_cuda(const EngineOptions& options, bool load,
                              const std::function<Status(const Parts&)>& accept) {
  if (!options.record_routing.empty())
    return error(Code::unsupported, "--record-routing: the CPU writes down what routers choose; add --device cpu");
  Parts parts;
  std::vector<std::string> paths;
  MR_RETURN_IF_ERROR(open_model(options, kTileBytes, parts, paths));
  MR_ASSIGN_OR_RETURN(const device::Gpu gpu, find_gpu(options.cuda_index));
  MR_RETURN_IF_ERROR(
      exec::check_cuda(parts.model->program(), parts.model->units(), {options.kv_dtype, gpu.block_shared_bytes}));
  MR_RETURN_IF_ERROR(check_kv(parts.model->program().layout, options.kv_dtype));
  MR_ASSIGN_OR_RETURN(const Vram vram, open_gpu(options.cuda_index));
  CudaPlanner planner(options, vram, parts);
  MR_RETURN_IF_ERROR(planner.plan());
  MR_RETURN_IF_ERROR(accept(parts));
  MR_RETURN_IF_ERROR(start_storage(options, paths, false, parts));
  if (options.cufile) {
    MR_ASSIGN_OR_RETURN(parts.straight, storage::open_cufile(paths, {.device = options.cuda_index}));
  }
  log::info("GPU {}: context {} tokens x {}, {} rows a pass, {} of VRAM at most", options.cuda_index,
            parts.limits.context_tokens, parts.limits.sequences, parts.limits.batch_tokens,
            format_bytes(planner.cap_bytes()));
  parts.budget = std::make_unique<residency::Budget>(
      std::max(planner.ram_bytes(), planner.program_bytes() + residency::kLoadingBytes));
  if (planner.program_bytes() > planner.ram_bytes())
    log::warn("--ram {}: the program and CUDA's driver alone take {} of RAM", format_bytes(planner.ram_bytes()),
              format_bytes(planner.program_bytes()));
  MR_ASSIGN_OR_RETURN(parts.program, parts.budget->reserve("program", planner.program_bytes()));
  parts.vram = std::make_unique<residency::Budget>(planner.cap_bytes());
  MR_ASSIGN_OR_RETURN(parts.gpu_context, parts.vram->reserve("CUDA context", vram.context_bytes));
  const residency::CpuPart& cpu = parts.plan.cpu;
  if (cpu.feed_forwards > 0)
    log::info("the CPU computes the feed-forward of {} of {} layers streamed from RAM", cpu.feed_forwards,
              parts.plan.cost.shared_layers);
  if (cpu.permille > 0)
    log::info("the CPU computes {:.1f} % of the rows of {} layers streamed from RAM, the GPU the others",
              cpu.permille / 10.0, parts.plan.cost.shared_layers - parts.plan.cost.feed_forward_layers);
  if (!cpu.any() && !parts.plan_options.cpu && !planner.knows_rates() && planner.streams_from_ram())
    log::info("the GPU computes layers streamed from RAM alone: run `millrace calibrate`, and the CPU takes its share");
  if (!load) return parts;

  exec::CudaOptions ops;
  ops.device = options.cuda_index;
  ops.graphs = options.cuda_graphs;
  ops.fuse = options.cuda_fuse;
  ops.kv_dtype = options.kv_dtype;
  ops.routing = parts.routing.get();
  ops.trace = options.trace;
  if (cpu.any() || planner.experts().any()) {
    constexpr std::chrono::milliseconds kSpin{1};  // longer than the GPU takes for its own layers
    start_threads(options, residency::threads_beside_gpu(options.threads), kSpin, parts);
    ops.pool = parts.pool.get();
    ops.kernels = &kernels::table(parts.isa);
    ops.ram = parts.budget.get();
  }
  auto loaded = std::make_unique<LoadedWeights>();
  auto weights =
      residency::DeviceWeights::load(parts.model->units(), planner.placement(), *parts.backend, parts.straight.get(),
                                     *parts.vram, *parts.budget, {options.on_load, options.on_load_end});
  if (options.on_load_end) options.on_load_end();
  if (!weights.ok()) return weights.status();
  loaded->weights = std::move(*weights);
  if (planner.experts().any()) {
    MR_ASSIGN_OR_RETURN(loaded->experts, residency::DeviceExperts::create(
                                             parts.model->units(), planner.experts(), *loaded->weights, *parts.backend,
                                             *parts.vram, *parts.budget, {options.on_load, options.on_load_end}));
    ops.experts = loaded->experts.get();
  }
  MR_ASSIGN_OR_RETURN(parts.executor,
                      exec::make_cuda_executor(parts.model->units(), *loaded->weights, *parts.vram, ops));
  parts.gpu = std::move(loaded);
  MR_RETURN_IF_ERROR(parts.executor->prepare(parts.model->program(), pass_limits(parts.limits)));
  std::vector<std::unique_ptr<kv::BlockMemory>> blocks;
  for (const kv::Group& group : planner.layout().groups()) {
    MR_ASSIGN_OR_RETURN(blocks.emplace_back(), exec::make_device_blocks(planner.blocks_shape(group), *parts.vram));
  }
  parts.kv_pool = std::make_shared<kv::BlockPool>(planner.layout(), std::move(blocks));
  finish_kv(options, parts);
  log::info("executor: {}; storage: {}", parts.executor->describe(),
            parts.straight != nullptr ? parts.straight->traits().name : parts.backend->traits().name);
  return parts;
}

}  // namespace millrace::engine
