// The chat on a terminal: lines in, answers out, and commands that begin with a slash.
#pragma once

#include "app/cli/chat.h"

namespace millrace::cli {

/// Runs until /bye or Ctrl-D. Ctrl-C stops an answer, or clears the line. Returns the exit code.
int run_repl(Chat& chat);

}  // namespace millrace::cli
