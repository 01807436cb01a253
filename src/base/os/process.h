// This process, and others of this machine by their numbers. Thread-safety: functions without shared state, from any
// thread; replace_process() and Daemon::start() while no other thread runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/os/handle.h"
#include "base/status.h"

namespace millrace::os {

/// The process's number: no other that runs on this machine now has it (in a container: in the container).
std::int64_t process_id();
/// The number of the user who started it.
std::int64_t user_id();

/// The words this process was started with; the first is the path of its program. Errors: unsupported.
Expected<std::vector<std::string>> command_line();
/// Runs the program words[0], which the system looks up in PATH, with these words in place of this process. Returns
/// only on failure. Errors: not_found, io_error (the system's words). REQUIRES: words is not empty.
Status replace_process(std::vector<std::string> words);
/// Gives the environment a variable that it does not have yet. REQUIRES: no other thread runs.
void add_to_environment(const char* name, const char* value);
/// Ends the process now: no destructor runs, and buffered output is lost.
[[noreturn]] void end_process(int exit_code);

/// Whether a process of that number runs which this user may stop.
bool can_stop(std::int64_t process);
/// Asks the process to terminate. Errors: io_error. On Windows a process that waits for no such request (signals.h) is
/// ended at once.
Status stop_process(std::int64_t process);

/// Raises the number of files and sockets that this process may have open to `most`, as far as its user may.
void allow_open_files(std::size_t most);

/// Bytes of memory that this process may lock, and how far it may raise that by itself. None: the system does not say.
struct LockedMemoryLimit {
  std::uint64_t bytes = 0, highest_bytes = 0;  // UINT64_MAX: no limit
};
std::optional<LockedMemoryLimit> locked_memory_limit();

/// A copy of this process that goes on in the background. On Windows it is a process that was started with the same
/// words and comes to Daemon::start() by itself: nothing before may depend on what only the first process did.
/// Move-only; the destructor ends the report, if empty.
class Daemon {
 public:
  /// Starts the copy, away from the terminal: its input is empty, and its output and errors are appended to the file at
  /// `log_path` (a new one is its owner's alone; empty: they are thrown away). Returns in the copy. The first process
  /// waits for the copy's report or its end, calls `end` with the report (empty: there was none) and exits with what
  /// `end` returns. Errors, in the first process: io_error; unavailable (log_path is a pipe that nobody reads).
  static Expected<Daemon> start(const std::string& log_path, const std::function<int(const std::string& report)>& end);
  Daemon(Daemon&& other) noexcept : report_(std::exchange(other.report_, kNoHandle)) {}
  Daemon& operator=(Daemon&& other) noexcept {
    std::swap(report_, other.report_);
    return *this;
  }
  ~Daemon();

  /// Sends the report to the first process, once.
  void report(std::string_view text);

 private:
  explicit Daemon(Handle report) : report_(report) {}

  Handle report_;  // the pipe's end; kNoHandle: the report is sent
};

}  // namespace millrace::os
