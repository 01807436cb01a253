// The hard cap on memory: a Budget grants every byte that the process takes beyond its size at start, and each grant
// has a tag that names its purpose. Budgets are elastic: when a reservation does not fit, the budget asks holders of
// evictable memory in turn to shrink, and they take bytes back when reservations end. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace millrace::residency {

class Budget;

/// `bytes` in the form that users type after --ram, rounded up so that it always suffices: "4.3M", "812M", "12.41G".
std::string ram_argument(std::uint64_t bytes);

/// The right to hold `bytes()` bytes; the destructor returns them. Move-only. Must not outlive its Budget.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();
  std::uint64_t bytes() const { return bytes_; }
  /// Grows or shrinks the reservation. Growing may make other holders shrink. On error nothing changes.
  Status resize(std::uint64_t bytes);
  /// Grows by `bytes` if they are free now; never makes other holders shrink (so a reclaimer may call it).
  /// False: nothing changed.
  bool try_grow(std::uint64_t bytes);

 private:
  friend class Budget;
  Reservation(Budget* budget, std::string tag, std::uint64_t bytes)
      : budget_(budget), tag_(std::move(tag)), bytes_(bytes) {}
  Budget* budget_ = nullptr;
  std::string tag_;
  std::uint64_t bytes_ = 0;
};

/// Holders that can shrink, in the order in which they are asked: first copies of bytes that are also elsewhere in
/// memory, then bytes that would have to be read again.
enum class GivesWay : std::uint8_t { copies, weights };
constexpr std::size_t kGiversOfWay = 2;

class Budget {
 public:
  /// flag: the command-line option that raises this cap, for messages.
  explicit Budget(std::uint64_t cap_bytes, std::string_view flag = "--ram");

  /// Errors: out_of_budget; the message lists the holders and names the smallest cap that would suffice.
  Expected<Reservation> reserve(std::string tag, std::uint64_t bytes);

  std::uint64_t cap_bytes() const { return cap_; }
  /// False: more than `bytes` is reserved now, and nothing has changed.
  bool set_cap(std::uint64_t cap_bytes);
  std::uint64_t reserved_bytes() const;
  std::uint64_t available_bytes() const;

  /// The reservations by tag, largest first.
  struct Entry {
    std::string tag;
    std::uint64_t bytes;
  };
  std::vector<Entry> entries() const;

  /// give_way(bytes) tries to shrink a reservation of its holder by at least `bytes` and returns the bytes that it
  /// freed. It is called without the budget's lock, with the bytes that earlier reclaimers did not free. At most one of
  /// each kind; nullptr removes it. Returns once no call of the old reclaimer is running. A reclaimer must only shrink,
  /// never reserve.
  void set_reclaimer(GivesWay kind, std::function<std::uint64_t(std::uint64_t bytes)> give_way);

 private:
  friend class Reservation;
  bool grow_if_free(const std::string& tag, std::uint64_t bytes);
  Status grow(const std::string& tag, std::uint64_t bytes);
  Status refusal(const std::string& tag, std::uint64_t bytes) const;
  void shrink(const std::string& tag, std::uint64_t bytes);

  const std::string_view flag_;
  std::atomic<std::uint64_t> cap_;  // changed with the mutex held
  mutable Mutex mutex_;
  std::map<std::string, std::uint64_t> by_tag_ MR_GUARDED_BY(mutex_);
  std::uint64_t reserved_ MR_GUARDED_BY(mutex_) = 0;
  Mutex reclaim_mutex_;  // held while a reclaimer runs; taken before mutex_
  std::array<std::function<std::uint64_t(std::uint64_t)>, kGiversOfWay> reclaimers_ MR_GUARDED_BY(reclaim_mutex_);
};

}  // namespace millrace::residency
