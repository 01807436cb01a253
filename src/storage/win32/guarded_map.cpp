#include "storage/guarded_map.h"

#include <windows.h>

#include <atomic>
#include <mutex>

#include "storage/map_records.h"
#include "storage/win32/system.h"

namespace millrace::storage {

namespace {

SRWLOCK replacing = SRWLOCK_INIT;  // taken by the handler: one thread puts zeros in a view's place

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): the handler is told numbers
}

/// Puts zeros behind the page, for good: the view goes and addresses without memory take its place, which get a page
/// each when it is asked for. Between the two, memory that another thread asks for could take the place; it then stays
/// with whoever has it, and false is returned. Windows cannot replace a single page of a view.
bool put_zeros(MapRecord& record, std::uintptr_t address) {
  const std::uintptr_t begin = record.begin.load(std::memory_order_acquire);
  if (!record.replaced.load(std::memory_order_acquire)) {
    const std::uintptr_t bytes = record.end.load(std::memory_order_acquire) - begin;
    if (UnmapViewOfFile(pointer(begin)) == 0) return false;
    if (VirtualAlloc(pointer(begin), bytes, MEM_RESERVE, PAGE_READONLY) == nullptr) return false;
    record.replaced.store(true, std::memory_order_release);
  }
  SYSTEM_INFO system{};
  GetSystemInfo(&system);
  return VirtualAlloc(pointer(address / system.dwPageSize * system.dwPageSize), system.dwPageSize, MEM_COMMIT,
                      PAGE_READONLY) != nullptr;
}

LONG CALLBACK on_exception(EXCEPTION_POINTERS* exception) {
  const EXCEPTION_RECORD& what = *exception->ExceptionRecord;
  // A disk that fails is an in-page error. An access violation inside a map: another thread has just replaced the view,
  // or this one reads a page of what took its place; or the system (Wine) has one name for both.
  const bool mapped = what.ExceptionCode == EXCEPTION_IN_PAGE_ERROR || what.ExceptionCode == EXCEPTION_ACCESS_VIOLATION;
  constexpr ULONG_PTR kRead = 0;
  if (!mapped || what.NumberParameters < 2 || what.ExceptionInformation[0] != kRead) return EXCEPTION_CONTINUE_SEARCH;
  const std::uintptr_t address = what.ExceptionInformation[1];
  MapRecord* const record = record_at(address);
  if (record == nullptr) return EXCEPTION_CONTINUE_SEARCH;
  const DWORD before = GetLastError();
  record->failed.store(true, std::memory_order_release);
  AcquireSRWLockExclusive(&replacing);
  const bool readable = put_zeros(*record, address);
  ReleaseSRWLockExclusive(&replacing);
  SetLastError(before);
  return readable ? EXCEPTION_CONTINUE_EXECUTION : EXCEPTION_CONTINUE_SEARCH;
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] { AddVectoredExceptionHandler(1, on_exception); });
}

}  // namespace

Expected<GuardedMap> GuardedMap::map(SystemHandle handle, std::uint64_t bytes, const std::string& path) {
  if (bytes == 0) return GuardedMap(nullptr, 0, nullptr);
  const auto refused = [&] { return error(Code::io_error, "cannot map {}: {}", path, system_words(GetLastError())); };
  const HANDLE section =
      CreateFileMappingW(pointer(static_cast<std::uintptr_t>(handle)), nullptr, PAGE_READONLY, 0, 0, nullptr);
  if (section == nullptr) return refused();
  const void* const data = MapViewOfFile(section, FILE_MAP_READ, 0, 0, bytes);
  const Status status = data != nullptr ? Status() : refused();
  CloseHandle(section);  // the view keeps it
  if (!status.ok()) return status;
  install_handler();
  return GuardedMap(static_cast<const std::byte*>(data), bytes, add_record(data, bytes));
}

GuardedMap::~GuardedMap() {
  if (data_ == nullptr) return;
  const bool replaced = record_->replaced.load(std::memory_order_acquire);
  drop_record(*record_);
  if (replaced) {
    VirtualFree(const_cast<std::byte*>(data_), 0, MEM_RELEASE);
  } else {
    UnmapViewOfFile(data_);
  }
}

void GuardedMap::read_ahead() const {
  if (bytes_ == 0) return;
  WIN32_MEMORY_RANGE_ENTRY range{.VirtualAddress = const_cast<std::byte*>(data_), .NumberOfBytes = bytes_};
  (void)PrefetchVirtualMemory(GetCurrentProcess(), 1, &range, 0);
}

bool GuardedMap::failed() const { return record_ != nullptr && record_->failed.load(std::memory_order_acquire); }

}  // namespace millrace::storage
