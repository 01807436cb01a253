// Control vectors as the command line names them, in llama.cpp's words.
// Thread-safety: pure functions but for the file they write.
#pragma once

#include <CLI/CLI.hpp>

#include "app/cli/command.h"
#include "base/status.h"
#include "engine/options.h"

namespace millrace::cli {

void add_control_options(CLI::App& command, ControlFlags& flags);

/// Sums the vectors up in a file for the model (ModelOptions::control), which lies in the folder for temporary files as
/// long as a copy of the options does. Does nothing without vectors. Errors: invalid_argument; those of
/// model::write_control.
Status read_control_vectors(const ControlFlags& flags, engine::ModelOptions& model);

}  // namespace millrace::cli
