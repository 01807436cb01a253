// The hard cap on memory: every byte the process takes beyond its bare start is granted here, with a tag that says what
// for. Budgets are elastic: when a reservation does not fit, those who hold what can be had again are asked to give
// way, one after the other, and take bytes back when reservations end. Thread-safe.
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

/// `bytes` as people type it after --ram, rounded up so that it is never too little: "4.3M", "812M", "12.41G".
std::string ram_argument(std::uint64_t bytes);

/// The right to hold `bytes()` bytes; gives them back when destroyed. Move-only. Must not outlive its Budget.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();
  std::uint64_t bytes() const { return bytes_; }
  /// Grows or shrinks. Growing may make others give way. On error nothing changes.
  Status resize(std::uint64_t bytes);
  /// Grows by `bytes` if they are free now; never makes others give way (so a reclaimer itself may call it).
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

/// Who gives memory back, in this order: copies of what lies elsewhere, too, then what has to be read again.
enum class GivesWay : std::uint8_t { copies, weights };
constexpr std::size_t kGiversOfWay = 2;

class Budget {
 public:
  /// flag: of the command line, by which users give more.
  explicit Budget(std::uint64_t cap_bytes, std::string_view flag = "--ram");

  /// Errors: out_of_budget; the message lists who holds what and names the smallest cap that would do.
  Expected<Reservation> reserve(std::string tag, std::uint64_t bytes);

  std::uint64_t cap_bytes() const { return cap_; }
  /// False: more than that is held now; nothing changed.
  bool set_cap(std::uint64_t cap_bytes);
  std::uint64_t reserved_bytes() const;
  std::uint64_t available_bytes() const;

  /// Who holds what, largest first.
  struct Entry {
    std::string tag;
    std::uint64_t bytes;
  };
  std::vector<Entry> entries() const;

  /// give_way(bytes) tries to shrink its own reservation by at least `bytes` and returns what it gave. Called without
  /// the budget's lock held, with what those before it have left to be wished for. At most one of each kind; nullptr
  /// removes it. Returns once no call of the old one is running. A reclaimer must not reserve, only shrink.
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
