// Requests to stop this process: Ctrl-C, a supervisor's request to terminate, a closed terminal. The process has one
// handler for each kind, set by the last call. Thread-safety: call the functions that set handlers on the main thread;
// request_stop() on any.
#pragma once

#include <atomic>

namespace millrace::os {

/// Makes a write that cannot succeed (a pipe without a reader, a file at its size limit) return an error instead of
/// ending the process.
void let_failed_writes_return();

/// Sets `flag` on Ctrl-C and, with `terminate`, on a request to terminate. A second request while `flag` is set ends
/// the process at once with `exit_code`. `flag` must outlive the process's handlers.
void flag_stop_requests(std::atomic<bool>& flag, int exit_code, bool terminate);

/// Ignores Ctrl-C and requests to terminate.
void ignore_stop_requests();

/// Makes wait_for_stop_request() return on Ctrl-C, a request to terminate, and the end of the terminal (unless this
/// process was started to survive that).
void catch_stop_requests();
/// Waits for the first request. A second one ends the process at once. REQUIRES: catch_stop_requests().
void wait_for_stop_request();
/// Makes wait_for_stop_request() return. REQUIRES: catch_stop_requests().
void request_stop();

}  // namespace millrace::os
