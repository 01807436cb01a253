// The process's standard streams, and whether people sit at them. Thread-safety: functions without shared state.
#pragma once

namespace millrace::os {

enum class Stream { input, output, errors };

/// Whether the stream is a terminal, not a file or a pipe.
bool is_terminal(Stream stream);
/// Columns of the stream's terminal; 80 where it is none or does not say.
int terminal_columns(Stream stream);

}  // namespace millrace::os
