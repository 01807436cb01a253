// This process, and other processes of this machine by id. Thread-safety: functions without shared state, from any
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

/// The process id, unique on this machine now (within a container: in the container).
std::int64_t process_id();
/// The user's id.
std::int64_t user_id();

/// The arguments of this process; the first is the path of its program. Errors: unsupported.
Expected<std::vector<std::string>> command_line();
/// Replaces this process by the program words[0], found in PATH, with these arguments. Returns only on failure. Errors:
/// not_found, io_error (with the system's text). REQUIRES: words is not empty.
Status replace_process(std::vector<std::string> words);
/// Sets an environment variable unless it exists. REQUIRES: no other thread runs.
void add_to_environment(const char* name, const char* value);
/// Ends the process at once, without destructors; buffered output is lost.
[[noreturn]] void end_process(int exit_code);

/// True if a process with that id runs and this user may stop it.
bool can_stop(std::int64_t process);
/// Asks the process to terminate. Errors: io_error. On Windows, a process that does not wait for such requests
/// (signals.h) is terminated at once.
Status stop_process(std::int64_t process);

/// Raises the limit on open files and sockets to `most`, as far as the user's limit allows.
void allow_open_files(std::size_t most);

/// The limit on locked memory, and how far the process may raise it. nullopt: unknown.
struct LockedMemoryLimit {
  std::uint64_t bytes = 0, highest_bytes = 0;  // UINT64_MAX: no limit
};
std::optional<LockedMemoryLimit> locked_memory_limit();

/// A copy of this process that continues in the background. On Windows it is a new process with the same arguments that
/// reaches Daemon::start() again, so code before must not depend on side effects of the first process. Move-only; the
/// destructor ends the report, which may be empty.
class Daemon {
 public:
  /// Starts the copy, detached from the terminal: its input is empty, and its output and errors are appended to the
  /// file at `log_path` (a new file is accessible to its owner only; if empty, they are discarded). Returns in the
  /// copy. The first process waits for the copy's report or its end, calls `end` with the report (possibly empty), and
  /// exits with the result. Errors, in the first process: io_error; unavailable (log_path is a pipe without a reader).
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

  Handle report_;  // the pipe's end; kNoHandle: the report was sent
};

}  // namespace millrace::os
