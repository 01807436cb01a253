// Requests from outside that this process stop: Ctrl-C, a supervisor's request to terminate, a terminal that closes.
// The whole process has one answer to each kind; the last call decides. Thread-safety: the functions that choose an
// answer belong to the main thread; request_stop() may be called from any.
#pragma once

#include <atomic>

namespace millrace::os {

/// A write that cannot succeed (the reader of a pipe is gone, a file may not grow) returns an error and no longer ends
/// the process.
void let_failed_writes_return();

/// Ctrl-C, with `terminate` also a request to terminate, sets `flag`. A second one that arrives while `flag` is set
/// ends the process at once with `exit_code`. `flag` must live as long as the process.
void flag_stop_requests(std::atomic<bool>& flag, int exit_code, bool terminate);

/// Ctrl-C and requests to terminate have no effect.
void ignore_stop_requests();

/// Ctrl-C, a request to terminate and the end of the terminal (unless this process was started to survive that) let
/// wait_for_stop_request() return.
void catch_stop_requests();
/// Waits for the first of them. A second one ends the process at once. REQUIRES: catch_stop_requests().
void wait_for_stop_request();
/// The process asks itself to stop: wait_for_stop_request() returns. REQUIRES: catch_stop_requests().
void request_stop();

}  // namespace millrace::os
