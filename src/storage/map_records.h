// The records of maps that guarded_map.h's handler reads. Internal to storage/. Records form a list that only grows, so
// that the handler can walk it at any time without a lock. A free record has end == 0 and is reused. Thread-safety:
// record_at() from a handler, all else from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace millrace::storage {

struct MapRecord {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<bool> failed{false};
  std::atomic<bool> replaced{false};  // Windows: zeros have replaced the view
  MapRecord* next = nullptr;          // never changes once in the list
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

/// The map that contains the address; null: none.
MapRecord* record_at(std::uintptr_t address);
MapRecord* add_record(const void* data, std::uint64_t bytes);
/// Call before the map is unmapped.
void drop_record(MapRecord& record);

}  // namespace millrace::storage
