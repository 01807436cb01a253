#include "residency/cuda_experts.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"

namespace millrace::residency {
namespace {

constexpr std::uint64_t kLeastEdge = 16;              // of addresses that kernels read wide
constexpr std::chrono::milliseconds kTellAfter{100};  // how often a pass that waits says how far RAM is
constexpr std::chrono::microseconds kAskAgain{200};
constexpr double kHalfLifePasses = 256;       // of an expert's worth
constexpr std::size_t kMostOffersAPass = 32;  // copies to slots, so that they do not take the link and RAM from misses
// An expert takes another's slot when it has been used more by so many standard deviations of the difference of two
// such counts: chance alone moves few.
constexpr double kSureDeviations = 1.5;

std::size_t count_experts(const UnitTable& units) { return static_cast<std::size_t>(units.experts()); }

}  // namespace

DeviceExperts::DeviceExperts(const UnitTable& units, const ExpertTiers& tiers, const AddressTable& table,
                             OnLoad on_load)
    : units_(units),
      tiers_(tiers),
      table_(table),
      part_offset_(expert_part_offsets(units)),
      slot_bytes_(device_slot_bytes(units)),
      slots_(count_experts(units), static_cast<std::size_t>(tiers.vram_slots + tiers.spare_slots),
             CacheRule{CachePolicy::lfu, kHalfLifePasses}, false),
      visible_(count_experts(units), false),
      on_load_(std::move(on_load)),
      meter_(units) {
  for (std::int32_t slot = tiers.vram_slots; slot-- > 0;) slots_.set_live(slot, true);  // the first comes first
}

DeviceExperts::~DeviceExperts() {
  if (asks_ != nullptr) asks_->set_reclaimer(GivesWay::copies, nullptr);
  copies_.reset();
  (void)copy_.synchronise();  // copies still read what is leased
}

Expected<std::unique_ptr<DeviceExperts>> DeviceExperts::create(const UnitTable& units, const ExpertTiers& tiers,
                                                               const AddressTable& table, storage::Backend& backend,
                                                               Budget& vram, Budget& ram, OnLoad on_load,
                                                               TileCheck check, const std::vector<float>& expected) {
  std::unique_ptr<DeviceExperts> experts(new DeviceExperts(units, tiers, table, std::move(on_load)));
  MR_RETURN_IF_ERROR(experts->open(backend, vram, ram, std::move(check), expected));
  return experts;
}

Status DeviceExperts::open(storage::Backend& backend, Budget& vram, Budget& ram, TileCheck check,
                           const std::vector<float>& expected) {
  for (std::size_t u = 0; u < units_.units().size(); ++u) {
    if (units_.units()[u].kind != UnitKind::expert) continue;
    const auto range = units_.tiles_of(static_cast<std::int32_t>(u));
    if (range.last - range.first != 1)
      return error(Code::internal, "unit {} is an expert of {} tiles", u, range.last - range.first);
    for (const Segment& segment : units_.tiles()[static_cast<std::size_t>(range.first)].segments)
      as_in_ram_ = as_in_ram_ && segment.slot_offset % kLeastEdge == 0;
  }
  if (tiers_.ram_slots < least_ram_experts(tiers_.wave_experts) &&
      tiers_.ram_slots < static_cast<int>(count_experts(units_)))
    return error(Code::internal, "{} experts in RAM are too few for waves of {}", tiers_.ram_slots,
                 tiers_.wave_experts);
  MR_ASSIGN_OR_RETURN(ram_reservation_, ram.reserve("page-locked experts", pinned_expert_bytes(units_, tiers_)));
  MR_ASSIGN_OR_RETURN(vram_reservation_, vram.reserve("experts", device_expert_bytes(units_, tiers_)));
  StoreOptions options;
  options.policy = tiers_.policy;
  options.experts_only = true;
  options.check = std::move(check);
  options.expected = expected;
  options.memory = [this](std::uint64_t bytes) -> Expected<std::byte*> {
    MR_ASSIGN_OR_RETURN(memory_, device::PinnedBuffer::allocate(bytes + kBehindExperts));
    return memory_.data();
  };
  MR_ASSIGN_OR_RETURN(store_,
                      WeightStore::create(units_, expert_store_plan(units_, tiers_.ram_slots), backend, ram, options));
  index_experts();
  if (!expected.empty()) {
    std::vector<float> rates;
    for (const std::int32_t unit : unit_of_) rates.push_back(expected[static_cast<std::size_t>(unit)]);
    slots_.expect(rates);
  }
  MR_RETURN_IF_ERROR(lay_out());
  if (tiers_.spare_slots == 0) return {};
  auto spare = SpareSlots::create(tiers_.spare_slots, slot_bytes_, vram, tiers_.spare_margin);
  if (!spare.ok()) {
    log::info("experts have no slots in spare VRAM: {}", spare.status().message());
    return {};
  }
  spare_ = std::move(*spare);
  asks_ = &vram;
  vram.set_reclaimer(GivesWay::copies, [this](std::uint64_t bytes) { return give_way(bytes); });
  return {};
}

/// Experts of a layer follow each other in the unit table.
void DeviceExperts::index_experts() {
  key_of_.assign(units_.units().size(), -1);
  entries_of_.assign(units_.units().size(), -1);
  for (std::size_t u = 0; u < units_.units().size(); ++u) {
    if (units_.units()[u].kind != UnitKind::expert) continue;
    const auto unit = static_cast<std::int32_t>(u);
    if (units_.units()[u].expert == 0) entries_.push_back({unit, 0, mirrored_});
    ++entries_.back().count;
    entries_of_[u] = static_cast<std::int32_t>(entries_.size()) - 1;
    key_of_[u] = static_cast<std::int32_t>(unit_of_.size());
    unit_of_.push_back(unit);
    all_bytes_ += units_.units()[u].bytes();
    mirrored_ += parts();
  }
}

Status DeviceExperts::lay_out() {
  const std::uint64_t bytes = device_expert_bytes(units_, tiers_), room_table = wave_table_bytes(tiers_, parts());
  MR_ASSIGN_OR_RETURN(arena_, device::DeviceBuffer::allocate(bytes));
  MR_RETURN_IF_ERROR(device::clear_device(arena_));
  const std::uint64_t mirror = mirrored_ * sizeof(std::byte*);
  MR_ASSIGN_OR_RETURN(tables_,
                      device::PinnedBuffer::allocate(2 * mirror + kExpertRooms * room_table + unit_of_.size()));
  void* seen = nullptr;
  MR_CUDA(cudaHostGetDevicePointer(&seen, memory_.data(), 0));
  device_memory_ = static_cast<std::byte*>(seen);
  MR_ASSIGN_OR_RETURN(copy_, device::Stream::create());
  MR_ASSIGN_OR_RETURN(copies_, CopyQueue::create(copy_.get()));
  slots_memory_ = arena_.data() + slot_bytes_;
  std::byte* at = slots_memory_ + static_cast<std::uint64_t>(tiers_.vram_slots) * slot_bytes_;
  in_ram_ = reinterpret_cast<const std::byte**>(tables_.data() + mirror);
  std::byte* host = tables_.data() + 2 * mirror;
  for (Room& room : rooms_) {
    room.memory = at;
    at += static_cast<std::uint64_t>(tiers_.wave_experts) * slot_bytes_;
    MR_ASSIGN_OR_RETURN(room.filled, device::Event::create());
    MR_ASSIGN_OR_RETURN(room.used, device::Event::create());
  }
  for (Room& room : rooms_) {
    room.device_table = reinterpret_cast<const std::byte**>(at);
    room.host_table = reinterpret_cast<const std::byte**>(host);
    at += room_table;
    host += room_table;
  }
  device_in_ram_ = reinterpret_cast<const std::byte**>(at);
  claimed_ = device_in_ram_ + mirrored_;
  near_ = reinterpret_cast<std::uint8_t*>(host);
  device_near_ = reinterpret_cast<std::uint8_t*>(arena_.data() + bytes - unit_of_.size());
  const bool stays = all_in_ram() && tiers_.link.any();
  for (const std::int32_t unit : unit_of_) set_entries(unit, nullptr);
  if (stays) not_in_ram_ = unit_of_;
  return {};
}

// --- The table ---

void DeviceExperts::set_entries(std::int32_t unit, const std::byte* first) {
  entries_[static_cast<std::size_t>(entries_of_[static_cast<std::size_t>(unit)])].dirty = true;
  auto* const mirror = reinterpret_cast<const std::byte**>(tables_.data()) + mirror_of(unit);
  for (std::size_t p = 0; p < parts(); ++p) mirror[p] = absent() + part_offset_[p];
  if (first == nullptr) return;
  for (const Segment& segment : tile(unit).segments) mirror[segment.part] = first + offset_in_slot(segment);
}

Status DeviceExperts::begin_pass(cudaStream_t compute) {
  MR_RETURN_IF_ERROR(copies_->drain());
  store_->begin_pass();
  slots_.turn();
  {
    const MutexLock lock(meter_mutex_);
    meter_.begin_pass();
  }
  take_arrivals();
  use_spare_memory();
  free_some_slots();
  MR_RETURN_IF_ERROR(find_in_ram(compute));
  MR_RETURN_IF_ERROR(find_tiers(compute));
  while (events_.size() < kMostOffersAPass) {
    MR_ASSIGN_OR_RETURN(events_.emplace_back(), device::Event::create());
  }
  offered_ = refused_ = 0;
  for (Entries& entries : entries_) {
    if (!entries.dirty) continue;
    entries.dirty = false;
    const auto* const mirror = reinterpret_cast<const std::byte**>(tables_.data()) + entries.mirror;
    auto* const table = const_cast<const std::byte**>(table_.entry({entries.first_unit, 0}));
    MR_CUDA(cudaMemcpyAsync(table, mirror, static_cast<std::size_t>(entries.count) * parts() * sizeof(std::byte*),
                            cudaMemcpyHostToDevice, compute));
  }
  return {};
}

/// Experts that have come to RAM, where each has a slot of its own, get their addresses there.
Status DeviceExperts::find_in_ram(cudaStream_t compute) {
  bool found = false;
  std::erase_if(not_in_ram_, [&](std::int32_t unit) {
    if (!store_->present(tile_of(unit))) return false;
    const std::optional<Lease> lease = store_->try_lease(tile_of(unit));
    if (!lease) return false;
    const Tile& tile = this->tile(unit);
    const std::byte** const addresses = in_ram_ + mirror_of(unit);
    bool aligned = true;
    for (std::size_t s = 0; s < tile.segments.size(); ++s) {
      const std::byte* const at = device_memory_ + (lease->segment(s) - memory_.data());
      aligned = aligned && reinterpret_cast<std::uintptr_t>(at) % kLeastEdge == 0;
      addresses[tile.segments[s].part] = at;
    }
    if (!aligned) std::fill_n(addresses, parts(), nullptr);  // the processor's, then
    return found = true;
  });
  if (!found) return {};
  MR_CUDA(cudaMemcpyAsync(device_in_ram_, in_ram_, mirrored_ * sizeof(std::byte*), cudaMemcpyHostToDevice, compute));
  return {};
}

/// Once a pass, so that all its rows and layers see the same.
Status DeviceExperts::find_tiers(cudaStream_t compute) {
  if (!tells_tiers_) return {};
  const auto fastest = static_cast<std::uint8_t>(fastest_tier());
  for (std::size_t key = 0; key < unit_of_.size(); ++key)
    near_[key] = visible_[key] ? fastest : fastest > 1 && store_->present(tile_of(unit_of_[key])) ? 1 : 0;
  MR_CUDA(cudaMemcpyAsync(device_near_, near_, unit_of_.size(), cudaMemcpyHostToDevice, compute));
  return {};
}

bool DeviceExperts::arrived(const Coming& coming) const {
  return copies_->recorded(coming.number) && cudaEventQuery(coming.arrived.get()) == cudaSuccess;
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
    set_entries(coming.unit, slot_at(slots_.slot_of(key)));
    events_.push_back(std::move(coming.arrived));
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
  const std::int32_t unit = unit_of_[static_cast<std::size_t>(key)];
  slots_.remove(key);
  visible_[static_cast<std::size_t>(key)] = false;
  set_entries(unit, nullptr);
  const MutexLock lock(meter_mutex_);
  meter_.left(unit);
}

/// Once the slots that there are have all been given away.
void DeviceExperts::use_spare_memory() {
  if (spare_ == nullptr || slots_.free_slots() > reserved_) return;
  const int before = spare_->count();
  for (int slot = spare_->grow(); slot-- > before;) slots_.set_live(tiers_.vram_slots + slot, true);
}

std::uint64_t DeviceExperts::give_way(std::uint64_t bytes) {
  if (spare_ == nullptr || spare_->count() == 0) return 0;
  // Copies to slots may be under way, and memory goes without a wait for what the device still does. A lost device says
  // so elsewhere.
  if (!copies_->drain().ok() || cudaDeviceSynchronize() != cudaSuccess) return 0;
  take_arrivals();
  const int count = spare_->count_without(bytes);
  for (int slot = count; slot < spare_->count(); ++slot) {
    const std::int32_t key = slots_.key_of(tiers_.vram_slots + slot);
    if (key >= 0) leave_slot(key);
    slots_.set_live(tiers_.vram_slots + slot, false);
  }
  reserved_ = std::min(reserved_, slots_.free_slots());
  return spare_->shrink(count);
}

void DeviceExperts::end_pass() {
  if (std::exchange(waves_, false)) {
    (void)copy_.synchronise();  // a lost device says so elsewhere; nothing reads any more
    leased_.clear();
    for (Room& room : rooms_) room.leases.clear();
  }
  let_leases_go();
  store_->end_pass();
  if (std::exchange(told_, false) && on_load_.end) on_load_.end();
}

void DeviceExperts::let_leases_go() {
  for (Coming& coming : coming_)
    if (coming.lease.valid() && arrived(coming)) coming.lease = {};
}

// --- Copies ---

/// copy(to, from, bytes) for each stretch of the unit's bytes. With the few between segments where they lie as in RAM:
/// one long copy is a tenth faster than three.
template <typename Copy>
void DeviceExperts::for_each_stretch(const Lease& lease, std::int32_t unit, std::byte* to, Copy copy) {
  const std::vector<Segment>& segments = tile(unit).segments;
  copied_bytes_ += tile(unit).bytes;
  if (as_in_ram_) {
    std::uint64_t first = UINT64_MAX, end = 0;
    for (const Segment& segment : segments) {
      first = std::min(first, segment.slot_offset);
      end = std::max(end, segment.slot_offset + segment.bytes);
    }
    return copy(to + first, lease.segment(0) - segments[0].slot_offset + first, end - first);
  }
  for (std::size_t s = 0; s < segments.size(); ++s)
    copy(to + offset_in_slot(segments[s]), lease.segment(s), segments[s].bytes);
}

Status DeviceExperts::copy(const Lease& lease, std::int32_t unit, std::byte* to) {
  cudaError_t code = cudaSuccess;
  for_each_stretch(lease, unit, to, [&](std::byte* there, const std::byte* from, std::uint64_t bytes) {
    if (code == cudaSuccess) code = cudaMemcpyAsync(there, from, bytes, cudaMemcpyHostToDevice, copy_.get());
  });
  MR_CUDA(code);
  return {};
}

/// REQUIRES: a slot is free, the lease's bytes are there.
DeviceExperts::Coming& DeviceExperts::take_slot(std::int32_t unit, Lease lease) {
  slots_.put(key_of(unit));
  slots_.pin(key_of(unit));
  coming_.push_back({unit, std::move(lease), std::move(events_.back())});
  events_.pop_back();
  return coming_.back();
}

Status DeviceExperts::send_to_slot(std::int32_t unit, Lease lease) {
  if (events_.empty()) {
    MR_ASSIGN_OR_RETURN(events_.emplace_back(), device::Event::create());
  }
  const Coming& coming = take_slot(unit, std::move(lease));
  MR_RETURN_IF_ERROR(copy(coming.lease, unit, slot_at(slots_.slot_of(key_of(unit)))));
  MR_CUDA(cudaEventRecord(coming.arrived.get(), copy_.get()));
  return {};
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
  if (offered_ >= kMostOffersAPass || events_.empty() || slots_.slot_of(key) >= 0) return false;
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
  for_each_stretch(coming.lease, unit, slot_at(slots_.slot_of(key_of(unit))),
                   [&](std::byte* to, const std::byte* from, std::uint64_t bytes) { copies_->copy(to, from, bytes); });
  coming.number = copies_->record(coming.arrived.get());
  reserved_ = std::min(reserved_, slots_.free_slots());
}

// --- Many rows ---

std::int32_t DeviceExperts::wave_count(At at) const {
  return std::min(tiers_.wave_experts, layers_[at.layer].count - at.first);
}

DeviceExperts::At DeviceExperts::after(At at) const {
  const std::int32_t next = at.first + wave_count(at);
  return next < layers_[at.layer].count ? At{at.layer, next} : At{at.layer + 1, 0};
}

void DeviceExperts::begin_waves(std::vector<Layer> layers) {
  layers_ = std::move(layers);
  leased_to_ = next_ = {};
  filled_ = acquired_ = let_go_ = 0;
  leased_.clear();
  waves_ = true;
}

/// Starts the reads of one more wave, as far as RAM has slots. False: there is none, or it has no slot at all.
bool DeviceExperts::lease_ahead() {
  if (ended(leased_to_)) return false;
  LeasedWave wave{leased_to_, std::vector<Lease>(static_cast<std::size_t>(wave_count(leased_to_)))};
  for (std::size_t i = 0; i < wave.leases.size(); ++i) {
    const std::int32_t unit = layers_[wave.at.layer].first_unit + wave.at.first + static_cast<std::int32_t>(i);
    if (!crosses(unit)) continue;
    std::optional<Lease> lease = store_->try_lease(tile_of(unit));
    if (!lease) break;
    wave.leases[i] = std::move(*lease);
  }
  leased_to_ = after(leased_to_);
  leased_.push_back(std::move(wave));
  return true;
}

/// The next wave's bytes into the next room, once the launches that used it are over.
Status DeviceExperts::fill_next(const std::function<bool()>& cancelled) {
  if (leased_.empty() && !lease_ahead()) return error(Code::internal, "more waves of experts than the pass has");
  if (leased_.size() < 2) lease_ahead();  // the disk reads on while this one is waited for
  Room& room = rooms_[filled_ % kExpertRooms];
  if (filled_ >= kExpertRooms) {
    MR_CUDA(cudaEventSynchronize(room.filled.get()));
    MR_CUDA(cudaStreamWaitEvent(copy_.get(), room.used.get(), 0));
  }
  room.leases.clear();
  let_leases_go();
  LeasedWave wave = std::move(leased_.front());
  leased_.pop_front();
  MR_RETURN_IF_ERROR(fill(wave, room, cancelled));
  ++filled_;
  return {};
}

/// Where all experts belong into RAM, a wait is part of their loading, which shows itself.
Status DeviceExperts::await_bytes(Lease& lease, const std::function<bool()>& cancelled) {
  const bool tells = on_load_.progress && all_in_ram();
  while (tells && !lease.ready()) {
    if (cancelled && cancelled()) return error(Code::cancelled, "stopped");
    const auto now = std::chrono::steady_clock::now();
    if (now - told_at_ >= kTellAfter) {
      told_at_ = now;
      told_ = true;
      if (!on_load_.progress(std::min(store_->counters().bytes_from_disk, all_bytes_), all_bytes_))
        return error(Code::cancelled, "stopped while the weights were loading");
    }
    std::this_thread::sleep_for(kAskAgain);
  }
  return lease.wait();
}

Status DeviceExperts::fill(LeasedWave& wave, Room& room, const std::function<bool()>& cancelled) {
  const Layer& layer = layers_[wave.at.layer];
  const std::size_t count = wave.leases.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (cancelled && cancelled()) return error(Code::cancelled, "stopped");
    const std::int32_t unit = layer.first_unit + wave.at.first + static_cast<std::int32_t>(i);
    const std::byte* address = nullptr;
    if (const std::int32_t slot = slots_.slot_of(key_of(unit)); slot >= 0) {
      address = slot_at(slot);  // there, or on its way by copies before these
      wave.leases[i] = {};
    } else {
      Lease lease = std::move(wave.leases[i]);
      if (!lease.valid()) {
        MR_ASSIGN_OR_RETURN(lease, store_->lease(tile_of(unit)));
      }
      MR_RETURN_IF_ERROR(await_bytes(lease, cancelled));
      if (slots_.free_slots() > reserved_) {
        MR_RETURN_IF_ERROR(send_to_slot(unit, std::move(lease)));
        address = slot_at(slots_.slot_of(key_of(unit)));
      } else {
        std::byte* const to = room.memory + i * slot_bytes_;
        MR_RETURN_IF_ERROR(copy(lease, unit, to));
        room.leases.push_back(std::move(lease));
        address = to;
      }
    }
    for (const Segment& segment : tile(unit).segments)
      room.host_table[i * parts() + static_cast<std::size_t>(segment.part)] = address + offset_in_slot(segment);
  }
  for (std::size_t b = 0; b < std::size(layer.biases); ++b) {
    const WeightRef ref = layer.biases[b];
    const std::byte*& address = room.host_table[count * parts() + b];
    address = nullptr;
    if (ref.none()) continue;
    const Part& part = units_.part(ref);
    address = table_.address(ref) +
              part.bytes() / static_cast<std::uint64_t>(layer.count) * static_cast<std::uint64_t>(wave.at.first);
  }
  const std::size_t entries = count * parts() + std::size(layer.biases);
  MR_CUDA(cudaMemcpyAsync(room.device_table, room.host_table, entries * sizeof(std::byte*), cudaMemcpyHostToDevice,
                          copy_.get()));
  MR_CUDA(cudaEventRecord(room.filled.get(), copy_.get()));
  return {};
}

Expected<DeviceExperts::Wave> DeviceExperts::acquire(cudaStream_t compute, const std::function<bool()>& cancelled) {
  if (filled_ == acquired_) MR_RETURN_IF_ERROR(fill_next(cancelled));
  const Room& room = rooms_[acquired_++ % kExpertRooms];
  MR_CUDA(cudaStreamWaitEvent(compute, room.filled.get(), 0));
  const Wave wave{next_.first, wave_count(next_), room.device_table, static_cast<std::int32_t>(parts())};
  next_ = after(next_);
  return wave;
}

Status DeviceExperts::let_go(cudaStream_t compute, const std::function<bool()>& cancelled) {
  MR_CUDA(cudaEventRecord(rooms_[let_go_++ % kExpertRooms].used.get(), compute));
  while (filled_ < let_go_ + kExpertRooms && !(leased_.empty() && ended(leased_to_)))
    MR_RETURN_IF_ERROR(fill_next(cancelled));
  return {};
}

ExpertUsage DeviceExperts::usage() const {
  const MutexLock lock(meter_mutex_);
  return meter_.usage();
}

void DeviceExperts::add_to(StoreCounters& counters) const {
  const StoreCounters in_ram = store_->counters();
  counters.bytes_to_device += copied_bytes_;
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
