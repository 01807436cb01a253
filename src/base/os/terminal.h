// The process's standard streams, and what they are connected to. Thread-safety: functions without shared state; one
// thread reads the input.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include "base/status.h"

namespace millrace::os {

enum class Stream { input, output, errors };

/// True if the stream is a terminal.
bool is_terminal(Stream stream);
/// The columns of the stream's terminal; 80 if there is none or it is unknown.
int terminal_columns(Stream stream);

/// True if the input may hold data that is not typed: it is a pipe, a socket or a file, not a terminal or /dev/null.
bool input_is_fed();
/// Waits up to `patience`. True if the input has bytes or has ended. A signal ends the wait early.
bool input_is_ready(std::chrono::milliseconds patience);
/// Reads available bytes of the input, up to the size of `out`, and waits for the first; 0: the input has ended.
/// Errors: unavailable (interrupted by a signal, or the input is non-blocking and empty), io_error.
Expected<std::size_t> read_input(std::span<char> out);
/// While it lives, read_input() returns each key when it is pressed, without echo: characters in UTF-8, special keys as
/// xterm's sequences (ESC [ A). Ctrl-C remains a request to stop. Has no effect if the input is not a terminal. Only
/// one object at a time.
class SingleKeys {
 public:
  SingleKeys();
  ~SingleKeys();
  SingleKeys(const SingleKeys&) = delete;
  SingleKeys& operator=(const SingleKeys&) = delete;
};

/// True if the output is a pipe without a reader.
bool output_has_no_reader();

}  // namespace millrace::os
