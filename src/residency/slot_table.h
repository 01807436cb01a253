// The bookkeeping of a cache with equal slots: which key has which slot, and the worth of each key. Independent of
// where slots are stored and how they are filled. Pure data. Not thread-safe.
//
// By lfu, a key's worth is the number of its uses, each halved after `half_life` turns; ties go to the later use. By
// lru, it is the time of the last use. A key should get a slot only if it is worth more than a key that has one, so
// that rarely used keys do not evict each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::residency {

/// automatic: the policy that would have had fewer misses recently (policy_choice.h).
enum class CachePolicy : std::uint8_t { lru, lfu, automatic };
/// What a cache decides by at a time. half_life: in turns, of a use's worth by lfu.
struct CacheRule {
  CachePolicy policy = CachePolicy::lfu;
  double half_life = 32;
};
/// "lru", "lfu", "auto". Errors: invalid_argument.
Expected<CachePolicy> policy_from_name(std::string_view name);

class SlotTable {
 public:
  /// Slots without memory are dead, and nobody's, until set_live(). REQUIRES: policy is lru or lfu.
  SlotTable(std::size_t keys, std::size_t slots, CacheRule rule, bool live = true);

  std::size_t slots() const { return key_of_.size(); }
  std::size_t live_slots() const { return live_slots_; }
  std::size_t free_slots() const { return free_.size(); }
  bool live(std::int32_t slot) const { return live_[static_cast<std::size_t>(slot)]; }
  /// REQUIRES: no key has a slot that is to be dead.
  void set_live(std::int32_t slot, bool live);
  /// -1: it has none.
  std::int32_t slot_of(std::int32_t key) const { return slot_of_[static_cast<std::size_t>(key)]; }
  /// -1: the slot is free, or dead.
  std::int32_t key_of(std::int32_t slot) const { return key_of_[static_cast<std::size_t>(slot)]; }

  /// By key, the part of all turns that use it, as is known from before the first one: each is worth what such uses
  /// would have left, which fades as theirs does, and the likeliest was used last. Call before any use.
  void expect(std::span<const float> rates);
  /// What is known of keys stays. REQUIRES: lru or lfu.
  void set_rule(CacheRule rule);
  CachePolicy policy() const { return policy_; }
  /// A turn ends: uses before it are worth a little less than those to come.
  void turn();
  void use(std::int32_t key) {
    worth_[static_cast<std::size_t>(key)] += now_;
    used_[static_cast<std::size_t>(key)] = ++uses_;
  }
  /// By lfu; in uses of the present turn.
  double worth(std::int32_t key) const { return worth_[static_cast<std::size_t>(key)] / now_; }

  /// Gives the key a free slot. REQUIRES: there is one, and the key has none.
  std::int32_t put(std::int32_t key);
  /// The key's slot is free again.
  void remove(std::int32_t key);
  /// The key of least worth among those with a slot that are not pinned and may be evicted; -1: there is none.
  std::int32_t least_worth() const {
    return least_worth([](std::int32_t) { return true; });
  }
  template <typename MayLeave>
  std::int32_t least_worth(const MayLeave& may_leave) const {
    std::int32_t least = -1;
    for (const std::int32_t key : key_of_)
      if (key >= 0 && pins_[static_cast<std::size_t>(key)] == 0 && (least < 0 || worth_less(key, least)) &&
          may_leave(key))
        least = key;
    return least;
  }
  /// Pinned keys keep their slots.
  void pin(std::int32_t key) { ++pins_[static_cast<std::size_t>(key)]; }
  void unpin(std::int32_t key) { --pins_[static_cast<std::size_t>(key)]; }

 private:
  bool worth_less(std::int32_t key, std::int32_t than) const {
    const auto a = static_cast<std::size_t>(key), b = static_cast<std::size_t>(than);
    return policy_ == CachePolicy::lru || worth_[a] == worth_[b] ? used_[a] < used_[b] : worth_[a] < worth_[b];
  }

  std::vector<std::int32_t> slot_of_, key_of_, free_, pins_;
  std::vector<bool> live_;
  std::size_t live_slots_ = 0;
  std::vector<double> worth_;        // in uses of turn 0
  std::vector<std::uint64_t> used_;  // number of the last use
  std::uint64_t uses_ = 0;
  double now_ = 1;     // what a use is worth at present
  double growth_ = 1;  // of it, a turn
  CachePolicy policy_ = CachePolicy::lfu;
};

}  // namespace millrace::residency
