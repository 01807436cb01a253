// Small files that people keep: plans, rates, a process's number. They are read with a bound, and written aside and
// put in place in one step, so that a full disk leaves the old text and never half of the new one.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::residency {

/// At most `most_bytes` of a file, a pipe or a device. Errors: not_found, io_error, invalid_argument (it is longer).
Expected<std::string> read_small_file(const std::string& path, std::uint64_t most_bytes);

/// A rates file is at most so long.
constexpr std::uint64_t kMostRatesBytes = 1 << 20;

enum class Links { follow, replace };  // a symbolic link's file is written, or the link itself gives way

/// What is no regular file (a pipe, /dev/stdout) is written where it is. Errors: io_error; all name the path.
Status write_small_file(const std::string& path, std::string_view text, Links links = Links::follow);

}  // namespace millrace::residency
