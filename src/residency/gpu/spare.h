// Uses device memory that KV does not need yet for units that would otherwise cross in every pass. A unit is copied
// within the device when it crosses, and does not cross from the next pass on; when the memory is reclaimed, it crosses
// again. The device that computes it does not change, nor do its results. Thread-safety: one thread, also for the
// budget's reservations that evict units.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "residency/budget.h"

namespace millrace::residency {

class SpareUnits {
 public:
  struct Candidate {
    std::size_t first_group = 0, groups = 0;  // of the DeviceStream
    std::uint64_t bytes = 0;                  // of room
    bool on_disk = false;                     // these go first
  };
  /// margin: bytes of the budget that stay free, so that not every growth of others moves a unit.
  /// `vram` outlives the object; its reclaimer should call give_way().
  SpareUnits(std::vector<Candidate> candidates, Budget& vram, std::uint64_t margin);

  /// Between passes: units that passed by completely are kept from here on, and memory is taken for others. True: which
  /// units are kept has changed since the last call.
  bool begin_pass();
  /// The address of the group's copy; null: it is not kept.
  const std::byte* kept(std::size_t group) const;
  /// The group has crossed; `offset`: of it in its unit. Puts a copy of it on `compute` where its unit is to be kept.
  Status pass_by(std::size_t group, std::uint64_t offset, const std::byte* data, std::uint64_t bytes,
                 device::StreamRef compute);

  /// Evicts units until `bytes` are free. REQUIRES: no pass is in flight. Returns the bytes freed.
  std::uint64_t give_way(std::uint64_t bytes);
  std::int64_t kept_units() const;
  std::size_t candidates() const { return units_.size(); }

 private:
  struct Unit : Candidate {
    Reservation reservation;
    device::DeviceBuffer memory;
    std::size_t passed_by = 0;  // groups
    bool kept = false;
  };
  void let_go(Unit& unit);

  Budget& vram_;
  const std::uint64_t margin_;
  std::vector<Unit> units_;            // those on the disk first
  std::vector<std::int32_t> unit_of_;  // by group; -1: no candidate
  bool changed_ = false;
  bool refused_ = false;  // the driver had no memory although the budget had: not asked again
};

}  // namespace millrace::residency
