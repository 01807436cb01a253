// Who has which of a number of equal slots, over plain keys, and how much each key is worth: what a cache decides by,
// apart from where its slots lie and how they are filled. Pure data. Not thread-safe.
//
// A key's worth is the number of its uses, each worth half after `half_life` turns: what was used often and lately is
// worth most. A key that is worth more than one with a slot should have it, one that is worth less should not: keys of
// which none is a favourite do not drive each other out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::residency {

class SlotTable {
 public:
  SlotTable(std::size_t keys, std::size_t slots, double half_life);

  std::size_t slots() const { return key_of_.size(); }
  std::size_t free_slots() const { return free_.size(); }
  /// -1: it has none.
  std::int32_t slot_of(std::int32_t key) const { return slot_of_[static_cast<std::size_t>(key)]; }
  /// -1: the slot is free.
  std::int32_t key_of(std::int32_t slot) const { return key_of_[static_cast<std::size_t>(slot)]; }

  /// A turn ends: uses before it are worth a little less than those to come.
  void turn();
  void use(std::int32_t key) { worth_[static_cast<std::size_t>(key)] += now_; }
  /// In uses of the present turn.
  double worth(std::int32_t key) const { return worth_[static_cast<std::size_t>(key)] / now_; }

  /// Gives the key a free slot. REQUIRES: there is one, and the key has none.
  std::int32_t put(std::int32_t key);
  /// The key's slot is free again.
  void remove(std::int32_t key);
  /// The key with a slot that is worth least, of those that are not pinned; -1: there is none.
  std::int32_t least_worth() const;
  /// Pinned keys keep their slots.
  void pin(std::int32_t key) { ++pins_[static_cast<std::size_t>(key)]; }
  void unpin(std::int32_t key) { --pins_[static_cast<std::size_t>(key)]; }

 private:
  std::vector<std::int32_t> slot_of_, key_of_, free_, pins_;
  std::vector<double> worth_;  // in uses of turn 0
  double now_ = 1;             // what a use is worth at present
  const double growth_;        // of it, a turn
};

}  // namespace millrace::residency
