// Device memory that is free for now holds units that else cross in every pass: what KV will need once sequences grow
// is of use before. A unit is copied as it passes by, within the device, and from the next pass on it does not cross;
// when the memory is asked back, the unit crosses again. Who computes it stays the same, and so do its results.
// Thread-safety: one thread, also for the budget's reservations that make units give way.
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
  /// Where the group lies; null: it is not kept.
  const std::byte* kept(std::size_t group) const;
  /// The group has crossed; `offset`: of it in its unit. Puts a copy of it on `compute` where its unit is to be kept.
  Status pass_by(std::size_t group, std::uint64_t offset, const std::byte* data, std::uint64_t bytes,
                 device::StreamRef compute);

  /// Lets units go until `bytes` are free. REQUIRES: no pass is under way. Returns what was freed.
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
