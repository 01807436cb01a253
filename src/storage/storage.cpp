#include "storage/storage.h"

#include "base/bytes.h"
#include "base/carry_on.h"
#include "base/os/wait.h"

namespace millrace::storage {

Widened widened(std::uint64_t offset, std::uint64_t bytes, std::uint64_t alignment) {
  const std::uint64_t begin = round_down(offset, alignment);
  return {.offset = begin, .bytes = round_up(offset + bytes, alignment) - begin, .lead = offset - begin};
}

void Completion::expect(std::uint32_t reads) {
  const MutexLock lock(mutex_);
  if (reported_ && done()) {
    status_ = Status();
    reported_ = false;
  }
  pending_.fetch_add(reads, std::memory_order_relaxed);
}

void Completion::finish_one(const Status& status) {
  if (!status.ok()) {
    const MutexLock lock(mutex_);
    if (status_.ok() && !carry_on("a read's error", [&]() MR_REQUIRES(mutex_) { status_ = status; }))
      status_ = Status(status.code(), "out of memory");  // short: it takes none
  }
  // Setting the count to zero is the last access to this object, because its owner may then destroy it. wake_all() only
  // passes an address to the kernel.
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) os::wake_all(pending_);
}

Status Completion::wait() {
  for (std::uint32_t left; (left = pending_.load(std::memory_order_acquire)) != 0;)
    os::sleep_while_equal(pending_, left);
  const MutexLock lock(mutex_);
  reported_ = true;
  return status_;
}

const std::byte* Backend::in_place(int, std::uint64_t, std::uint64_t) const { return nullptr; }
void Backend::register_memory(std::span<std::byte>) {}

std::string_view backend_name(BackendKind kind) {
  switch (kind) {
    case BackendKind::automatic:
      return "auto";
    case BackendKind::io_uring:
      return "io_uring";
    case BackendKind::pread_direct:
      return "pread-direct";
    case BackendKind::pread_buffered:
      return "pread";
    case BackendKind::mmap:
      return "mmap";
    case BackendKind::directstorage:
      return "directstorage";
  }
  return "unknown";
}

std::string backend_names() {
  std::string names;
  for (const BackendKind kind : backend_kinds()) {
    if (!names.empty()) names += ", ";
    names += backend_name(kind);
  }
  return names;
}

Expected<BackendKind> backend_from_name(std::string_view name) {
  for (const BackendKind kind : backend_kinds()) {
    if (name == backend_name(kind)) return kind;
  }
  std::string names = backend_names();
  if (const std::size_t last = names.rfind(", "); last != std::string::npos) names.replace(last, 2, " or ");
  return error(Code::invalid_argument, "'{}' is not a storage backend; use {}", name, names);
}

}  // namespace millrace::storage
