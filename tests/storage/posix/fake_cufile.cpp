// Stands in for libcufile: the same calls and answers as in compatibility mode, on host memory. It holds its caller to
// the library's rules: a session, registered files, and a base address that is registered where there is an offset.
#include "fake_cufile.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#define EXPORTED extern "C" __attribute__((visibility("default")))

extern "C" {
__attribute__((visibility("default"))) FakeCuFile fake_cufile_state;
}

namespace {

struct Error {
  int code, cuda_code;
};
// Laid out by hand, apart from the program's own declarations.
struct Description {
  int type;
  int gap;
  int fd;
  int gap_too;
  const void* file_system;
};
struct File {
  int fd;
};

FakeCuFile& state() { return fake_cufile_state; }
std::mutex mutex;
std::set<File*> files;                      // GUARDED_BY mutex
std::map<const char*, std::size_t> ranges;  // GUARDED_BY mutex

/// Breaking the library's rules is undefined there; here it ends the test.
void hold(bool rule, const char* what) {
  if (rule) return;
  std::fprintf(stderr, "fake cuFile: %s\n", what);
  std::abort();
}

}  // namespace

EXPORTED Error cuFileDriverOpen() {
  if (state().open_code != 0) return {state().open_code, 0};
  ++state().opened;
  ++state().open_now;
  return {0, 0};
}

EXPORTED Error cuFileDriverClose_v2() {
  const std::lock_guard lock(mutex);
  hold(state().open_now > 0, "closed but not open");
  hold(files.empty(), "closed with files registered");
  hold(ranges.empty(), "closed with memory registered");
  --state().open_now;
  return {0, 0};
}

EXPORTED Error cuFileDriverGetProperties(unsigned char* properties) {
  hold(state().open_now > 0, "properties asked but not open");
  if (!state().has_properties) return {5001, 0};
  std::memset(properties, 0, 56);
  const unsigned compat_allowed = 2, features = state().features;
  std::memcpy(properties + 28, &compat_allowed, 4);
  std::memcpy(properties + 32, &features, 4);
  return {0, 0};
}

EXPORTED Error cuFileHandleRegister(void** handle, const Description* description) {
  hold(state().open_now > 0, "a file registered but not open");
  if (state().register_code != 0) return {state().register_code, 0};
  hold(description->type == 1, "not a Linux file descriptor");
  hold(description->file_system == nullptr, "a file system's own calls were given");
  hold(fcntl(description->fd, F_GETFL) >= 0, "a bad file descriptor");
  const std::lock_guard lock(mutex);
  auto* file = new File{description->fd};
  files.insert(file);
  ++state().handles;
  *handle = file;
  return {0, 0};
}

EXPORTED void cuFileHandleDeregister(void* handle) {
  const std::lock_guard lock(mutex);
  auto* file = static_cast<File*>(handle);
  hold(files.erase(file) == 1, "an unknown file deregistered");
  hold(fcntl(file->fd, F_GETFL) >= 0, "a file deregistered after it was closed");
  --state().handles;
  delete file;
}

EXPORTED Error cuFileBufRegister(const void* base, std::size_t bytes, int flags) {
  hold(state().open_now > 0, "memory registered but not open");
  hold(flags == 0, "unknown flags");
  if (state().buffer_code != 0) return {state().buffer_code, 0};
  const std::lock_guard lock(mutex);
  if (!ranges.emplace(static_cast<const char*>(base), bytes).second) return {5023, 0};
  ++state().buffers;
  return {0, 0};
}

EXPORTED Error cuFileBufDeregister(const void* base) {
  const std::lock_guard lock(mutex);
  if (ranges.erase(static_cast<const char*>(base)) == 0) return {5024, 0};
  --state().buffers;
  return {0, 0};
}

EXPORTED ssize_t cuFileRead(void* handle, void* base, std::size_t bytes, off_t file_offset, off_t base_offset) {
  auto* file = static_cast<File*>(handle);
  {
    const std::lock_guard lock(mutex);
    hold(files.contains(file), "a read from a file that is not registered");
    const auto range = ranges.find(static_cast<const char*>(base));
    hold(base_offset == 0 || range != ranges.end(), "an offset to memory that is not registered");
    if (range != ranges.end()) {
      hold(base_offset >= 0 && static_cast<std::size_t>(base_offset) + bytes <= range->second,
           "a read beyond what is registered");
      ++state().based_reads;
    }
  }
  ++state().reads;
  if (file_offset % 4096 != 0 || bytes % 4096 != 0) ++state().unaligned_reads;
  long largest = state().largest_read;
  while (largest < static_cast<long>(bytes) &&
         !state().largest_read.compare_exchange_weak(largest, static_cast<long>(bytes))) {
  }
  if (state().read_errno != 0) {
    errno = state().read_errno;
    return -1;
  }
  if (state().read_code != 0) return -state().read_code;
  if (state().most_bytes > 0 && bytes > static_cast<std::size_t>(state().most_bytes))
    bytes = static_cast<std::size_t>(state().most_bytes);
  // As the library does: whole blocks into memory of its own, and a copy of what was asked.
  const off_t begin = file_offset / 4096 * 4096;
  const std::size_t whole = (static_cast<std::size_t>(file_offset - begin) + bytes + 4095) / 4096 * 4096;
  void* bounce = std::aligned_alloc(4096, whole);
  const ssize_t got = pread(file->fd, bounce, whole, begin);
  ssize_t result = got < 0 ? -1 : got - (file_offset - begin);
  if (got >= 0 && result < 0) result = 0;
  if (result > static_cast<ssize_t>(bytes)) result = static_cast<ssize_t>(bytes);
  if (result > 0)
    std::memcpy(static_cast<char*>(base) + base_offset, static_cast<char*>(bounce) + (file_offset - begin),
                static_cast<std::size_t>(result));
  std::free(bounce);
  return result < 0 ? result : result + state().lie;
}
