// The file that answers are written to, a line each, whole or not at all: what a killed run has left of a line is cut
// off by the next one.
// Thread-safety: one thread; one process at a time holds the file.
#pragma once

#include <chrono>
#include <string>

#include "app/batch/index.h"
#include "app/batch/lines.h"
#include "base/os/file.h"
#include "base/status.h"

namespace millrace::batch {

class Output {
 public:
  /// Makes the file, or goes on with it: marks in `index` what it answers. Errors: io_error; unavailable (another
  /// process writes to it); invalid_argument (it is `input`, or answers another file's requests); corrupt.
  static Expected<Output> open(const std::string& path, const std::string& input, Index& index);

  /// Appends a line. Errors: io_error.
  Status write(std::string line);
  /// To the disk. Errors: io_error.
  Status sync();

 private:
  Output(os::File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  Status take_up(Index& index);

  os::File file_;
  std::string path_;
  std::chrono::steady_clock::time_point synced_ = std::chrono::steady_clock::now();
};

}  // namespace millrace::batch
