// Adapters as the command line names them: FILE or FILE=SCALE, in GGUF or as PEFT saves them.
// Thread-safety: pure functions but for the files they write.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/options.h"

namespace millrace::cli {

/// Adds --lora, which may be repeated: FILE or FILE=SCALE, in GGUF or as PEFT saves it. What follows its value is the
/// command's.
CLI::Option* add_adapter_option(CLI::App& command, std::vector<std::string>& adapters);

/// What PEFT saved is written as a GGUF file for the model at `base` into the folder for temporary files, where it
/// lies as long as a copy of its options does. Errors: invalid_argument, not_found; those of convert::convert_adapter.
Expected<std::vector<engine::AdapterOptions>> read_adapters(const std::vector<std::string>& texts,
                                                            const std::string& base);

/// Removes the file when the last copy of what is returned is gone.
std::shared_ptr<void> removal_of(const std::string& path);

}  // namespace millrace::cli
