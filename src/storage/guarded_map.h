// A read-only map of a file whose unreadable pages (the file was truncated, the disk failed) read as zeros and mark the
// map as failed, instead of ending the process with SIGBUS (Windows: an in-page error).
//
// One handler serves the process. The first map installs it. It replaces the page that failed by a page of zeros (on
// Windows, which cannot replace a single page of a view, the whole map), marks the map, and resumes the load. Faults
// outside maps are passed to the previous handler. Thread-safety: bytes may be read from any thread; maps may come and
// go on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"
#include "storage/file_set.h"

namespace millrace::storage {

struct MapRecord;  // the handler's record of a map

class GuardedMap {
 public:
  /// Maps the first `bytes` of the file, shared and read-only. `path` is for messages. Errors: io_error.
  static Expected<GuardedMap> map(SystemHandle handle, std::uint64_t bytes, const std::string& path);
  GuardedMap(GuardedMap&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        record_(std::exchange(other.record_, nullptr)) {}
  GuardedMap& operator=(GuardedMap&&) = delete;
  ~GuardedMap();

  const std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Asks the system to read the whole map ahead. A hint.
  void read_ahead() const;
  /// True once a page could not be read.
  bool failed() const;

 private:
  GuardedMap(const std::byte* data, std::uint64_t bytes, MapRecord* record)
      : data_(data), bytes_(bytes), record_(record) {}
  const std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  MapRecord* record_ = nullptr;
};

}  // namespace millrace::storage
