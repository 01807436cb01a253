// Passes of many rows: a layer's experts cross in waves of neighbours, ahead of the launches that use them. Beside
// several GPUs each brings its waves itself, and may be ahead of the others; leases and slots are taken under one
// mutex. Of RAM there is room for the leases of all, so that no one's wait for a slot there needs another's progress.
#include <algorithm>
#include <thread>
#include <utility>

#include "residency/gpu/experts.h"

namespace millrace::residency {
namespace {

constexpr std::chrono::milliseconds kTellAfter{100};  // how often a pass that waits says how far RAM is
constexpr std::chrono::microseconds kAskAgain{200};

}  // namespace

std::int32_t DeviceExperts::wave_count(const Waves& waves, At at) const {
  return std::min(tiers_.wave_experts, waves.layers[at.layer].count - at.first);
}

DeviceExperts::At DeviceExperts::after(const Waves& waves, At at) const {
  const std::int32_t next = at.first + wave_count(waves, at);
  return next < waves.layers[at.layer].count ? At{at.layer, next} : At{at.layer + 1, 0};
}

void DeviceExperts::begin_waves(std::size_t gpu, std::vector<Layer> layers) {
  waves_[gpu] = {};
  waves_[gpu].layers = std::move(layers);
  waves_[gpu].any = true;
}

/// Starts the reads of one more wave, as far as RAM has slots. False: there is none, or it has no slot at all.
bool DeviceExperts::lease_ahead(Waves& waves) {
  if (waves.ended(waves.leased_to)) return false;
  LeasedWave wave{waves.leased_to, std::vector<Lease>(static_cast<std::size_t>(wave_count(waves, waves.leased_to)))};
  for (std::size_t i = 0; i < wave.leases.size(); ++i) {
    const std::int32_t unit = waves.layers[wave.at.layer].first_unit + wave.at.first + static_cast<std::int32_t>(i);
    if (!crosses(unit)) continue;
    std::optional<Lease> lease = store_->try_lease(tile_of(unit));
    if (!lease) break;
    wave.leases[i] = std::move(*lease);
  }
  waves.leased_to = after(waves, waves.leased_to);
  waves.leased.push_back(std::move(wave));
  return true;
}

/// The next wave's bytes into the next room, once the launches that used it are over.
Status DeviceExperts::fill_next(std::size_t gpu, const std::function<bool()>& cancelled) {
  Waves& waves = waves_[gpu];
  ExpertSlots& slots = *gpus_[gpu];
  {
    const MutexLock lock(waves_mutex_);
    if (waves.leased.empty() && !lease_ahead(waves))
      return error(Code::internal, "more waves of experts than the pass has");
    if (waves.leased.size() < 2) lease_ahead(waves);  // the disk reads on while this one is waited for
  }
  ExpertSlots::Room& room = slots.room(waves.filled);
  if (waves.filled >= kExpertRooms) {
    MR_RETURN_IF_ERROR(device::wait(room.filled));
    MR_RETURN_IF_ERROR(device::wait_on_device(slots.copy_stream(), room.used));
  }
  const MutexLock lock(waves_mutex_);
  room.leases.clear();
  let_leases_go();
  LeasedWave wave = std::move(waves.leased.front());
  waves.leased.pop_front();
  MR_RETURN_IF_ERROR(fill(slots, waves.layers[wave.at.layer], wave, room, cancelled));
  ++waves.filled;
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

/// Beside several GPUs, others may have to go on before RAM has a slot: they get the mutex meanwhile.
Expected<Lease> DeviceExperts::lease_for(std::int32_t unit, const std::function<bool()>& cancelled) {
  if (gpus_.size() == 1) return store_->lease(tile_of(unit));
  while (true) {
    if (std::optional<Lease> lease = store_->try_lease(tile_of(unit))) return std::move(*lease);
    if (cancelled && cancelled()) return error(Code::cancelled, "stopped");
    {
      const MutexUnlock unlocked(waves_mutex_);
      std::this_thread::sleep_for(kAskAgain);
    }
    let_leases_go();
  }
}

/// To a slot on all GPUs, ordered before what any of them brings of the expert later.
Status DeviceExperts::send_to_slot(std::int32_t unit, Lease lease) {
  if (arrivals_.empty()) MR_RETURN_IF_ERROR(make_arrivals());
  Coming& coming = take_slot(unit, std::move(lease));
  const std::int32_t slot = slots_.slot_of(key_of(unit));
  for (std::size_t g = 0; g < gpus_.size(); ++g) {
    const device::OnGpu on(gpus_[g]->device());
    MR_RETURN_IF_ERROR(gpus_[g]->copy(coming.lease, unit, gpus_[g]->slot_at(slot)));
    MR_RETURN_IF_ERROR(device::record(coming.arrivals[g].event, gpus_[g]->copy_stream()));
  }
  return {};
}

Status DeviceExperts::fill(ExpertSlots& gpu, const Layer& layer, LeasedWave& wave, ExpertSlots::Room& room,
                           const std::function<bool()>& cancelled) {
  const std::size_t count = wave.leases.size(), parts = index_.parts();
  for (std::size_t i = 0; i < count; ++i) {
    if (cancelled && cancelled()) return error(Code::cancelled, "stopped");
    const std::int32_t unit = layer.first_unit + wave.at.first + static_cast<std::int32_t>(i);
    const std::byte* address = nullptr;
    if (const std::int32_t slot = slots_.slot_of(key_of(unit)); slot >= 0) {
      address = gpu.slot_at(slot);  // there, or on its way by copies before these
      wave.leases[i] = {};
    } else {
      Lease lease = std::move(wave.leases[i]);
      if (!lease.valid()) {
        MR_ASSIGN_OR_RETURN(lease, lease_for(unit, cancelled));
      }
      MR_RETURN_IF_ERROR(await_bytes(lease, cancelled));
      if (slots_.free_slots() > reserved_) {
        MR_RETURN_IF_ERROR(send_to_slot(unit, std::move(lease)));
        address = gpu.slot_at(slots_.slot_of(key_of(unit)));
      } else {
        std::byte* const to = room.memory + i * gpu.slot_bytes();
        MR_RETURN_IF_ERROR(gpu.copy(lease, unit, to));
        room.leases.push_back(std::move(lease));
        address = to;
      }
    }
    gpu.write_addresses(unit, address, room.host_table + i * parts);
  }
  for (std::size_t b = 0; b < std::size(layer.biases); ++b) {
    const OfEach& bias = layer.biases[b];
    const std::byte*& address = room.host_table[count * parts + b];
    address = nullptr;
    if (!bias.ref.none())
      address = gpu.table().address(bias.ref) + static_cast<std::size_t>(bias.stride * wave.at.first) * sizeof(float);
  }
  const std::size_t entries = count * parts + std::size(layer.biases);
  MR_RETURN_IF_ERROR(
      device::copy_to_device(room.device_table, room.host_table, entries * sizeof(std::byte*), gpu.copy_stream()));
  MR_RETURN_IF_ERROR(device::record(room.filled, gpu.copy_stream()));
  return {};
}

Expected<DeviceExperts::Wave> DeviceExperts::acquire(std::size_t gpu, device::StreamRef compute,
                                                     const std::function<bool()>& cancelled) {
  Waves& waves = waves_[gpu];
  if (waves.filled == waves.acquired) MR_RETURN_IF_ERROR(fill_next(gpu, cancelled));
  const ExpertSlots::Room& room = gpus_[gpu]->room(waves.acquired++);
  MR_RETURN_IF_ERROR(device::wait_on_device(compute, room.filled));
  const Wave wave{waves.next.first, wave_count(waves, waves.next), room.device_table, parts_of_expert()};
  waves.next = after(waves, waves.next);
  return wave;
}

Status DeviceExperts::let_go(std::size_t gpu, device::StreamRef compute, const std::function<bool()>& cancelled) {
  Waves& waves = waves_[gpu];
  MR_RETURN_IF_ERROR(device::record(gpus_[gpu]->room(waves.let_go++).used, compute));
  while (waves.filled < waves.let_go + kExpertRooms && !(waves.leased.empty() && waves.ended(waves.leased_to)))
    MR_RETURN_IF_ERROR(fill_next(gpu, cancelled));
  return {};
}

}  // namespace millrace::residency
