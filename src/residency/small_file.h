// Small files such as plans, rates and PID files. They are read up to a bound, and written to a temporary file that is
// then renamed, so that a full disk leaves the old file and never half of a new one.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::residency {

/// Reads a file, a pipe or a device of at most `most_bytes`. Errors: not_found, io_error, invalid_argument (it is
/// longer).
Expected<std::string> read_small_file(const std::string& path, std::uint64_t most_bytes);

/// The largest rates file that is read.
constexpr std::uint64_t kMostRatesBytes = 1 << 20;

enum class Links { follow, replace };  // write the file that a symbolic link points to, or replace the link

/// Writes directly to a path that is not a regular file (a pipe, /dev/stdout). Errors: io_error, naming the path.
Status write_small_file(const std::string& path, std::string_view text, Links links = Links::follow);

}  // namespace millrace::residency
