// A progress bar on stderr for work of more than a second. On a terminal it redraws one line; otherwise it prints a
// line every twenty seconds, so that logs and pipes get only complete lines. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "base/mutex.h"

namespace millrace::cli {

enum class Unit { bytes, tokens, items };

/// A line of less than `columns`: the label, a bar, `head` and as many of `tails` as there is room for.
std::string progress_line(const std::string& label, double share, const std::string& head,
                          const std::vector<std::string>& tails, int columns);

class Progress {
 public:
  Progress(std::string label, Unit unit, bool quiet);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// `note`: written behind, in the place of the rate.
  void update(std::uint64_t done, std::uint64_t total, const std::string& note = "");
  /// What was done before this run began: it counts for no rate.
  void begin_at(std::uint64_t done) { before_ = done; }
  void finish();

 private:
  const std::string label_;
  const Unit unit_;
  bool enabled_;
  const bool redraws_;  // a terminal's line
  std::uint64_t before_ = 0;
  Mutex mutex_;
  bool drawn_ MR_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_ MR_GUARDED_BY(mutex_);
};

/// Work of bytes that shows itself and ends at Ctrl-C: sets `progress` and `cancel` of its options. `bar` outlives it.
template <typename Options>
void follow(Progress& bar, Options& options) {
  install_interrupt_handler();
  options.cancel = &interrupted();
  options.progress = [&bar](std::uint64_t done, std::uint64_t total) { bar.update(done, total); };
}

}  // namespace millrace::cli
