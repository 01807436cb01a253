// A timeline of named spans on named rows, written as Chrome's trace JSON (open it in chrome://tracing or Perfetto).
// Source of the format: Google's "Trace Event Format".
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace millrace {

class Trace {
 public:
  /// The current time in nanoseconds, by the clock that all spans use.
  static std::uint64_t now_ns();
  /// `row`: "CPU", "copy", "kernel". REQUIRES: begin_ns <= end_ns.
  void add(std::string row, std::string name, std::uint64_t begin_ns, std::uint64_t end_ns);
  /// Errors: io_error.
  Status write(const std::string& path) const;

 private:
  struct Span {
    std::string row, name;
    std::uint64_t begin_ns, end_ns;
  };
  mutable Mutex mutex_;
  std::vector<Span> spans_ MR_GUARDED_BY(mutex_);
};

/// Records a span from here to the end of the scope, unless `trace` is null.
class TraceZone {
 public:
  TraceZone(Trace* trace, const char* name) : trace_(trace), name_(name), begin_ns_(trace ? Trace::now_ns() : 0) {}
  TraceZone(const TraceZone&) = delete;
  TraceZone& operator=(const TraceZone&) = delete;
  ~TraceZone() {
    if (trace_ != nullptr) trace_->add("CPU", name_, begin_ns_, Trace::now_ns());
  }

 private:
  Trace* trace_;
  const char* name_;
  std::uint64_t begin_ns_;
};

}  // namespace millrace
