#include "residency/gpu/experts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"

namespace millrace::residency {
namespace {

constexpr double kHalfLifePasses = 256;       // of an expert's worth
constexpr std::size_t kMostOffersAPass = 32;  // copies to slots, so that they do not take the link and RAM from misses
// An expert takes another's slot when it has been used more by so many standard deviations of the difference of two
// such counts: chance alone moves few.
constexpr double kSureDeviations = 1.5;

}  // namespace

DeviceExperts::DeviceExperts(const UnitTable& units, const ExpertTiers& tiers, OnLoad on_load)
    : units_(units),
      tiers_(tiers),
      index_(units),
      slots_(index_.count(), static_cast<std::size_t>(tiers.vram_slots + tiers.spare_slots),
             CacheRule{CachePolicy::lfu, kHalfLifePasses}, false),
      visible_(index_.count(), false),
      on_load_(std::move(on_load)),
      meter_(units) {
  for (std::int32_t slot = tiers.vram_slots; slot-- > 0;) slots_.set_live(slot, true);  // the first comes first
  for (const std::int32_t unit : index_.units()) all_bytes_ += units.units()[static_cast<std::size_t>(unit)].bytes();
}

DeviceExperts::~DeviceExperts() {
  if (asks_ != nullptr) asks_->set_reclaimer(GivesWay::copies, nullptr);
  gpus_.clear();  // their copies end: they still read what is leased
}

Expected<std::unique_ptr<DeviceExperts>> DeviceExperts::create(const UnitTable& units, const ExpertTiers& tiers,
                                                               const std::vector<ExpertGpu>& gpus,
                                                               storage::Backend& backend, Budget& ram, OnLoad on_load,
                                                               TileCheck check, const std::vector<float>& expected) {
  std::unique_ptr<DeviceExperts> experts(new DeviceExperts(units, tiers, std::move(on_load)));
  MR_RETURN_IF_ERROR(experts->open(gpus, backend, ram, std::move(check), expected));
  return experts;
}

Status DeviceExperts::open(const std::vector<ExpertGpu>& gpus, storage::Backend& backend, Budget& ram, TileCheck check,
                           const std::vector<float>& expected) {
  const int least = static_cast<int>(gpus.size()) * least_ram_experts(tiers_.wave_experts);
  if (tiers_.ram_slots < least && !all_in_ram())
    return error(Code::internal, "{} experts in RAM are too few for waves of {}", tiers_.ram_slots,
                 tiers_.wave_experts);
  const std::uint64_t others_tables = (gpus.size() - 1) * ExpertSlots::table_bytes(index_, tiers_);
  MR_ASSIGN_OR_RETURN(ram_reservation_,
                      ram.reserve("page-locked experts", pinned_expert_bytes(units_, tiers_) + others_tables));
  StoreOptions options;
  options.policy = tiers_.policy;
  options.experts_only = true;
  options.check = std::move(check);
  options.expected = expected;
  const bool for_all = gpus.size() > 1;
  options.memory = [this, for_all](std::uint64_t bytes) -> Expected<std::byte*> {
    MR_ASSIGN_OR_RETURN(memory_, device::PinnedBuffer::allocate(bytes + kBehindExperts, for_all));
    return memory_.data();
  };
  MR_ASSIGN_OR_RETURN(store_,
                      WeightStore::create(units_, expert_store_plan(units_, tiers_.ram_slots), backend, ram, options));
  for (const ExpertGpu& gpu : gpus) {
    MR_ASSIGN_OR_RETURN(gpus_.emplace_back(), ExpertSlots::create(units_, index_, tiers_, gpu));
    MR_RETURN_IF_ERROR(gpus_.back()->see_ram(memory_.data()));
  }
  if (!expected.empty()) {
    std::vector<float> rates;
    for (const std::int32_t unit : index_.units()) rates.push_back(expected[static_cast<std::size_t>(unit)]);
    slots_.expect(rates);
  }
  waves_ = std::vector<Waves>(gpus.size());
  if (all_in_ram() && tiers_.link.any()) not_in_ram_ = index_.units();
  if (spare() == nullptr) return {};
  asks_ = &gpus.front().vram;
  asks_->set_reclaimer(GivesWay::copies, [this](std::uint64_t bytes) { return give_way(bytes); });
  return {};
}

// --- Slots ---

void DeviceExperts::set_slot(std::int32_t unit, std::int32_t slot) {
  for (const auto& gpu : gpus_) gpu->set(unit, slot < 0 ? nullptr : gpu->slot_at(slot));
}

Status DeviceExperts::begin_pass() {
  for (const auto& gpu : gpus_) MR_RETURN_IF_ERROR(gpu->orders().drain());
  store_->begin_pass();
  slots_.turn();
  {
    const MutexLock lock(meter_mutex_);
    meter_.begin_pass();
  }
  take_arrivals();
  use_spare_memory();
  free_some_slots();
  find_in_ram();
  while (arrivals_.size() < kMostOffersAPass) MR_RETURN_IF_ERROR(make_arrivals());
  offered_ = refused_ = 0;
  return {};
}

Status DeviceExperts::make_arrivals() {
  std::vector<Arrival>& made = arrivals_.emplace_back(gpus_.size());
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    const device::OnGpu on(gpus_[g]->device());
    MR_ASSIGN_OR_RETURN(made[g].event, device::Event::create());
  }
  return {};
}

/// Experts that have come to RAM, where each has a slot of its own, get their addresses there; those that some GPU
/// cannot read as they lie are the processor's.
void DeviceExperts::find_in_ram() {
  std::erase_if(not_in_ram_, [&](std::int32_t unit) {
    if (!store_->present(tile_of(unit))) return false;
    const std::optional<Lease> lease = store_->try_lease(tile_of(unit));
    if (!lease) return false;
    bool readable = true;
    for (const auto& gpu : gpus_) readable = gpu->find_in_ram(unit, *lease) && readable;
    for (const auto& gpu : gpus_)
      if (!readable) gpu->forget_in_ram(unit);
    return true;
  });
}

bool DeviceExperts::arrived(const Coming& coming) const {
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    const Arrival& arrival = coming.arrivals[g];
    if (!gpus_[g]->orders().recorded(arrival.number)) return false;
    const Expected<bool> reached = device::is_reached(arrival.event);
    if (!reached.ok() || !*reached) return false;
  }
  return true;
}

/// Slots whose copies have ended become visible.
void DeviceExperts::take_arrivals() {
  std::erase_if(coming_, [this](Coming& coming) {
    if (!arrived(coming)) return false;
    const std::int32_t key = key_of(coming.unit);
    slots_.unpin(key);
    const MutexLock lock(meter_mutex_);
    meter_.came(coming.unit);
    visible_[static_cast<std::size_t>(key)] = true;
    set_slot(coming.unit, slots_.slot_of(key));
    for (Arrival& arrival : coming.arrivals) arrival.number = 0;
    arrivals_.push_back(std::move(coming.arrivals));
    return true;
  });
}

/// For those that were worth a slot in the last pass and found none; nobody else gets it.
void DeviceExperts::free_some_slots() {
  int wanted = static_cast<int>(std::min(refused_, kMostOffersAPass)) - static_cast<int>(slots_.free_slots());
  std::int32_t least = -1;
  for (; wanted > 0 && (least = slots_.least_worth()) >= 0; --wanted) {
    leave_slot(least);
    ++reserved_;
  }
  least = slots_.least_worth();
  least_worth_ = least < 0 ? 0 : slots_.worth(least);
}

void DeviceExperts::leave_slot(std::int32_t key) {
  slots_.remove(key);
  visible_[static_cast<std::size_t>(key)] = false;
  set_slot(index_.unit_of(key), -1);
  const MutexLock lock(meter_mutex_);
  meter_.left(index_.unit_of(key));
}

/// Once the slots that there are have all been given away.
void DeviceExperts::use_spare_memory() {
  if (spare() == nullptr || slots_.free_slots() > reserved_) return;
  const int before = spare()->count();
  for (int slot = spare()->grow(); slot-- > before;) slots_.set_live(tiers_.vram_slots + slot, true);
}

std::uint64_t DeviceExperts::give_way(std::uint64_t bytes) {
  if (spare() == nullptr || spare()->count() == 0) return 0;
  // Copies to slots may be under way, and memory goes without a wait for what the device still does. A lost device says
  // so elsewhere.
  if (!gpus_.front()->orders().drain().ok() || !device::synchronise_gpu().ok()) return 0;
  take_arrivals();
  const int count = spare()->count_without(bytes);
  for (int slot = count; slot < spare()->count(); ++slot) {
    const std::int32_t key = slots_.key_of(tiers_.vram_slots + slot);
    if (key >= 0) leave_slot(key);
    slots_.set_live(tiers_.vram_slots + slot, false);
  }
  reserved_ = std::min(reserved_, slots_.free_slots());
  return spare()->shrink(count);
}

void DeviceExperts::end_pass() {
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    if (!std::exchange(waves_[g].any, false)) continue;
    gpus_[g]->await_copies();  // nothing reads any more
    waves_[g].leased.clear();
    for (std::uint64_t r = 0; r < kExpertRooms; ++r) gpus_[g]->room(r).leases.clear();
  }
  let_leases_go();
  store_->end_pass();
  if (std::exchange(told_, false) && on_load_.end) on_load_.end();
}

void DeviceExperts::let_leases_go() {
  for (Coming& coming : coming_)
    if (coming.lease.valid() && arrived(coming)) coming.lease = {};
}

/// REQUIRES: a slot is free, the lease's bytes are there.
DeviceExperts::Coming& DeviceExperts::take_slot(std::int32_t unit, Lease lease) {
  slots_.put(key_of(unit));
  slots_.pin(key_of(unit));
  coming_.push_back({unit, std::move(lease), std::move(arrivals_.back())});
  arrivals_.pop_back();
  return coming_.back();
}

// --- Few rows ---

bool DeviceExperts::use(std::int32_t unit) {
  const std::int32_t key = key_of(unit);
  slots_.use(key);
  const bool here = visible_[static_cast<std::size_t>(key)];
  const MutexLock lock(meter_mutex_);
  meter_.used(unit, !here);
  return here;
}

bool DeviceExperts::wants(std::int32_t unit) {
  const std::int32_t key = key_of(unit);
  if (offered_ >= kMostOffersAPass || arrivals_.empty() || slots_.slot_of(key) >= 0) return false;
  if (slots_.free_slots() > reserved_) return true;
  const double worth = slots_.worth(key);
  if (worth - least_worth_ <= kSureDeviations * std::sqrt(worth + least_worth_)) return false;
  if (reserved_ > 0) return true;
  ++refused_;
  return false;
}

void DeviceExperts::offer(std::int32_t unit, Lease lease) {
  ++offered_;
  Coming& coming = take_slot(unit, std::move(lease));
  const std::int32_t slot = slots_.slot_of(key_of(unit));
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    gpus_[g]->order_copy(coming.lease, unit, gpus_[g]->slot_at(slot));
    coming.arrivals[g].number = gpus_[g]->orders().record(coming.arrivals[g].event);
  }
  reserved_ = std::min(reserved_, slots_.free_slots());
}

ExpertUsage DeviceExperts::usage() const {
  const MutexLock lock(meter_mutex_);
  return meter_.usage();
}

void DeviceExperts::add_to(StoreCounters& counters) const {
  const StoreCounters in_ram = store_->counters();
  counters.bytes_to_device += bytes_read_in_ram_;
  for (const auto& gpu : gpus_) counters.bytes_to_device += gpu->copied_bytes();
  counters.bytes_from_disk += in_ram.bytes_from_disk;
  counters.bytes_from_pack += in_ram.bytes_from_pack;
  counters.evictions += in_ram.evictions;
  counters.stall_ns += in_ram.stall_ns;
  counters.guesses = in_ram.guesses;
  const MutexLock lock(meter_mutex_);
  counters.experts = meter_.figures();
  counters.experts.learned = in_ram.experts.learned;
  counters.experts.learned_used = in_ram.experts.learned_used;
  const LayerCounters all = counters.experts.total();
  counters.hits += all.hits;
  counters.misses += all.misses;
}

}  // namespace millrace::residency
