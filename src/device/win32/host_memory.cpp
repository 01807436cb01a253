// Windows counts every committed page against RAM and page files, touched or not, and refuses what exceeds them. So a
// buffer is reserved, and a piece of it is committed when the first access meets a page without memory: a vectored
// handler, installed with the first buffer, commits it and lets the access run again. Large pages are not asked for:
// they need a privilege that users do not have, and could not be given back.
#include "device/host_memory.h"

#include <windows.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/bytes.h"
#include "base/mutex.h"
#include "device/win32/backing.h"

namespace millrace::device {
namespace {

constexpr std::size_t kPieceBytes = 64u << 10;  // committed at once; buffers for huge pages: a huge page's size

/// Where a buffer lies. Records form a list that only grows, so that the handler can walk it at any moment without a
/// lock; a free record has end == 0 and is used again.
struct Record {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<std::size_t> piece_bytes{0};
  Record* next = nullptr;  // never changes once in the list
};
std::atomic<Record*> all_records{nullptr};
Mutex records_mutex;  // taken by those who add and free records, never by the handler

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free);

/// Commits the pieces that cover [begin, end) of a record's range.
bool commit(const Record& record, std::uintptr_t begin, std::uintptr_t end) {
  const std::uintptr_t first = record.begin.load(std::memory_order_acquire);
  const std::uintptr_t last = record.end.load(std::memory_order_acquire);
  const std::size_t piece = record.piece_bytes.load(std::memory_order_acquire);
  if (last == 0) return false;
  begin = first + (begin - first) / piece * piece;
  end = std::min(first + round_up(end - first, piece), last);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the handler is told addresses as numbers
  return VirtualAlloc(reinterpret_cast<void*>(begin), end - begin, MEM_COMMIT, PAGE_READWRITE) != nullptr;
}

LONG CALLBACK on_exception(EXCEPTION_POINTERS* exception) {
  const EXCEPTION_RECORD& what = *exception->ExceptionRecord;
  if (what.ExceptionCode != EXCEPTION_ACCESS_VIOLATION || what.NumberParameters < 2) return EXCEPTION_CONTINUE_SEARCH;
  constexpr ULONG_PTR kExecute = 8;
  if (what.ExceptionInformation[0] == kExecute) return EXCEPTION_CONTINUE_SEARCH;
  const std::uintptr_t address = what.ExceptionInformation[1];
  for (const Record* record = all_records.load(std::memory_order_acquire); record != nullptr; record = record->next) {
    if (address < record->begin.load(std::memory_order_acquire) ||
        address >= record->end.load(std::memory_order_acquire))
      continue;
    const DWORD before = GetLastError();
    const bool committed = commit(*record, address, address + 1);
    if (!committed) {
      static constexpr char kWords[] =
          "error: Windows commits no more memory: close other programs, enlarge the page file or lower --ram\n";
      DWORD written = 0;
      WriteFile(GetStdHandle(STD_ERROR_HANDLE), kWords, sizeof(kWords) - 1, &written, nullptr);
    }
    SetLastError(before);
    return committed ? EXCEPTION_CONTINUE_EXECUTION : EXCEPTION_CONTINUE_SEARCH;
  }
  return EXCEPTION_CONTINUE_SEARCH;
}

void add_record(const std::byte* data, std::size_t bytes, std::size_t piece_bytes) {
  static std::once_flag once;
  std::call_once(once, [] { AddVectoredExceptionHandler(1, on_exception); });
  const MutexLock lock(records_mutex);
  Record* record = all_records.load(std::memory_order_relaxed);
  while (record != nullptr && record->end.load(std::memory_order_relaxed) != 0) record = record->next;
  const bool fresh = record == nullptr;
  if (fresh) record = new Record;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  record->piece_bytes.store(piece_bytes, std::memory_order_relaxed);
  record->begin.store(begin, std::memory_order_release);
  record->end.store(begin + bytes, std::memory_order_release);
  if (fresh) {
    record->next = all_records.load(std::memory_order_relaxed);
    all_records.store(record, std::memory_order_release);
  }
}

void drop_record(const std::byte* data) {
  const MutexLock lock(records_mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  for (Record* record = all_records.load(std::memory_order_relaxed); record != nullptr; record = record->next)
    if (record->end.load(std::memory_order_relaxed) != 0 && record->begin.load(std::memory_order_relaxed) == begin)
      record->end.store(0, std::memory_order_release);
}

}  // namespace

Status back_memory(const void* begin, std::size_t bytes) {
  const auto from = reinterpret_cast<std::uintptr_t>(begin), to = from + bytes;
  for (const Record* record = all_records.load(std::memory_order_acquire); record != nullptr; record = record->next) {
    const std::uintptr_t first = std::max(from, record->begin.load(std::memory_order_acquire));
    const std::uintptr_t last = std::min(to, record->end.load(std::memory_order_acquire));
    if (first < last && !commit(*record, first, last))
      return error(Code::out_of_budget,
                   "Windows commits no more memory ({} were wanted): close other programs, enlarge the page file or "
                   "lower --ram",
                   format_bytes(last - first));
  }
  return {};
}

Expected<HostBuffer> HostBuffer::reserve(std::size_t bytes, Pages pages) {
  HostBuffer buffer;
  buffer.pages_ = pages;
  if (bytes == 0) return buffer;
  const std::size_t slack = pages == Pages::huge ? kHugePageBytes : 0;
  const auto refused = [&](DWORD code) {
    return error(Code::out_of_budget, "cannot reserve {} of memory (error {}): lower --ram or enlarge the page file",
                 format_bytes(bytes), code);
  };
  if (bytes > SIZE_MAX - slack - kPageBytes) return refused(ERROR_NOT_ENOUGH_MEMORY);
  const std::size_t rounded = round_up(bytes, kPageBytes);
  // A small buffer is committed here, where a refusal is an error in words.
  const bool small = rounded <= kPieceBytes;
  void* const mapping =
      VirtualAlloc(nullptr, rounded + slack, small ? MEM_RESERVE | MEM_COMMIT : MEM_RESERVE, PAGE_READWRITE);
  if (mapping == nullptr) return refused(GetLastError());
  buffer.mapping_ = mapping;
  buffer.mapping_bytes_ = rounded + slack;
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  buffer.data_ = static_cast<std::byte*>(mapping) + (slack == 0 ? 0 : round_up(address, kHugePageBytes) - address);
  buffer.bytes_ = rounded;
  add_record(buffer.data_, rounded, pages == Pages::huge ? kHugePageBytes : kPieceBytes);
  return buffer;
}

HostBuffer::~HostBuffer() {
  if (mapping_ == nullptr) return;
  drop_record(data_);
  VirtualFree(mapping_, 0, MEM_RELEASE);
}

void HostBuffer::discard(std::size_t offset, std::size_t bytes) { VirtualFree(data_ + offset, bytes, MEM_DECOMMIT); }

}  // namespace millrace::device
