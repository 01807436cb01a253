// What the handler of guarded_map.h knows of maps. Internal to storage/. Records form a list that only grows, so that
// the handler can walk it at any moment without a lock; a free record has end == 0 and is used again.
// Thread-safety: record_at() from a handler, all else from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace millrace::storage {

struct MapRecord {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<bool> failed{false};
  std::atomic<bool> replaced{false};  // Windows: zeros lie in the view's place
  MapRecord* next = nullptr;          // never changes once in the list
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

/// The map that has the address; null: none.
MapRecord* record_at(std::uintptr_t address);
MapRecord* add_record(const void* data, std::uint64_t bytes);
/// Before the map goes.
void drop_record(MapRecord& record);

}  // namespace millrace::storage
