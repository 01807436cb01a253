// The CPU executor's leases of weights: taken by the wave; the last one is kept until another tile is leased.
#include <chrono>

#include "exec/cpu_executor.h"

namespace millrace::exec {
namespace {

// The most that a wave leases: the disk cannot fill leased slots.
constexpr std::uint64_t kWaveBytes = 16u << 20;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace

/// A pass aside the model's does not count as a use of a tile in memory: counters and eviction order do not change.
Expected<residency::Lease> CpuExecutor::take_lease(std::int32_t tile) {
  if (options_.aside)
    if (std::optional<residency::Lease> lease = store_.borrow(tile); lease) return std::move(*lease);
  return store_.lease(tile);
}

std::optional<residency::Lease> CpuExecutor::try_lease(std::int32_t tile) {
  if (options_.aside)
    if (std::optional<residency::Lease> lease = store_.borrow(tile); lease) return lease;
  return store_.try_lease(tile);
}

/// The piece's bytes, if a lease of this wave covers them.
const std::byte* CpuExecutor::held_bytes(const Piece& piece) const {
  for (const residency::Lease& lease : leases_) {
    if (lease.tile() == piece.tile) return lease.segment(static_cast<std::size_t>(piece.segment));
  }
  return nullptr;
}

bool CpuExecutor::wait_for(residency::Lease& lease) {
  const bool there = lease.ready();
  const std::uint64_t begin = there ? 0 : now_ns();
  Status status = lease.wait();
  if (!there) counters_.weight_wait_ns += now_ns() - begin;
  if (status.ok()) return true;
  fail(std::move(status));
  return false;
}

/// Ends a wave: keeps the last lease, because the next op often continues in that tile, and releases the others for the
/// disk.
void CpuExecutor::keep_last_lease() {
  if (leases_.size() <= 1) return;
  leases_.front() = std::move(leases_.back());
  leases_.resize(1);
  wave_bytes_ = store_.units().tiles()[static_cast<std::size_t>(leases_.front().tile())].bytes;
}

/// The piece's bytes, after waiting for them; nullptr if the read fails (the pass has failed then). Drops the leases of
/// the last wave unless one of them covers the piece.
const std::byte* CpuExecutor::lease_now(const Piece& piece) {
  if (const std::byte* bytes = held_bytes(piece)) return bytes;
  drop_leases();  // first: the ring may have a single slot
  wave_bytes_ = store_.units().tiles()[static_cast<std::size_t>(piece.tile)].bytes;
  Expected<residency::Lease> lease = take_lease(piece.tile);
  if (!lease.ok()) {
    fail(lease.status());
    return nullptr;
  }
  leases_.push_back(std::move(lease).value());
  if (!wait_for(leases_.back())) {
    drop_leases();
    return nullptr;
  }
  return leases_.back().segment(static_cast<std::size_t>(piece.segment));
}

/// The piece's bytes if they are in memory and the wave has room for them, otherwise nullptr.
const std::byte* CpuExecutor::lease_if_ready(const Piece& piece) {
  if (const std::byte* bytes = held_bytes(piece)) return bytes;
  const std::uint64_t tile_bytes = store_.units().tiles()[static_cast<std::size_t>(piece.tile)].bytes;
  if (wave_bytes_ + tile_bytes > kWaveBytes || leases_.size() == leases_.capacity() || !store_.present(piece.tile)) {
    return nullptr;
  }
  std::optional<residency::Lease> lease = try_lease(piece.tile);
  if (!lease || !lease->ready() || !wait_for(*lease)) return nullptr;
  wave_bytes_ += tile_bytes;
  leases_.push_back(std::move(*lease));
  return leases_.back().segment(static_cast<std::size_t>(piece.segment));
}

}  // namespace millrace::exec
