// The process's standard streams, and what is at their other ends. Thread-safety: functions without shared state; one
// thread reads the input.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include "base/status.h"

namespace millrace::os {

enum class Stream { input, output, errors };

/// Whether the stream is a terminal, not a file or a pipe.
bool is_terminal(Stream stream);
/// Columns of the stream's terminal; 80 where it is none or does not say.
int terminal_columns(Stream stream);

/// Whether the input may hold data that nobody types: it is a pipe, a socket or a file, and no terminal or /dev/null.
bool input_is_fed();
/// Whether the input has bytes or has ended, after `patience` at most. A signal ends the wait early.
bool input_is_ready(std::chrono::milliseconds patience);
/// Bytes of the input that are there, at most as many as `out` holds; 0: it has ended. Waits for the first one.
/// Errors: unavailable (a signal came first, or the input does not wait and has nothing now), io_error.
Expected<std::size_t> read_input(std::span<char> out);
/// While it lives, read_input() gives each key as it is pressed, and the terminal shows none: characters in UTF-8,
/// arrows and the like as xterm sends them (ESC [ A). Ctrl-C stays a request to stop. Does nothing where the input is
/// no terminal. One at a time.
class SingleKeys {
 public:
  SingleKeys();
  ~SingleKeys();
  SingleKeys(const SingleKeys&) = delete;
  SingleKeys& operator=(const SingleKeys&) = delete;
};

/// Whether the output is a pipe whose reader is gone.
bool output_has_no_reader();

}  // namespace millrace::os
