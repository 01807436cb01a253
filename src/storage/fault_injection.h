// A backend that wraps another and fails on purpose: for tests, and for `--inject-fault` (a developer's flag).
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "storage/storage.h"

namespace millrace::storage {

struct Fault {
  enum class Kind { eio, short_read, stall, truncated, slow } kind = Kind::eio;
  std::uint64_t after_reads = 0;  // this many reads succeed first
  std::uint64_t count = 1;        // then this many fail
  std::uint64_t stall_ms = 0;     // for stall; for slow: of each million bytes, one read after the other
};

/// "eio@100", "short@5x3", "stall:5000@20": kind, after_reads, count. "slow:50": every read, at 20 MB/s. Errors:
/// invalid_argument.
Expected<Fault> parse_fault(std::string_view text);

std::unique_ptr<Backend> inject_faults(std::unique_ptr<Backend> inner, std::vector<Fault> faults);

}  // namespace millrace::storage
