#include "storage/map_records.h"

#include "base/mutex.h"

namespace millrace::storage {
namespace {

std::atomic<MapRecord*> all_records{nullptr};
Mutex records_mutex;  // for adding records; the handler never takes it

}  // namespace

MapRecord* record_at(std::uintptr_t address) {
  for (MapRecord* record = all_records.load(std::memory_order_acquire); record != nullptr; record = record->next) {
    if (address >= record->begin.load(std::memory_order_acquire) &&
        address < record->end.load(std::memory_order_acquire)) {
      return record;
    }
  }
  return nullptr;
}

MapRecord* add_record(const void* data, std::uint64_t bytes) {
  const MutexLock lock(records_mutex);
  MapRecord* record = all_records.load(std::memory_order_relaxed);
  while (record != nullptr && record->end.load(std::memory_order_acquire) != 0) record = record->next;
  const bool fresh = record == nullptr;
  if (fresh) record = new MapRecord;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  record->failed.store(false, std::memory_order_relaxed);
  record->replaced.store(false, std::memory_order_relaxed);
  record->begin.store(begin, std::memory_order_release);
  record->end.store(begin + bytes, std::memory_order_release);
  if (fresh) {
    record->next = all_records.load(std::memory_order_relaxed);
    all_records.store(record, std::memory_order_release);
  }
  return record;
}

void drop_record(MapRecord& record) { record.end.store(0, std::memory_order_release); }

}  // namespace millrace::storage
