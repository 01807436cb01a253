// A file that holds a verb's options, so that a service need not have them on its command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"

namespace millrace::cli {

/// Gives `command` the options in the file at `path`: a line an option, `name = value` with the option's long name,
/// or `name` alone for a flag; a line again for an option that may be repeated. Empty lines and what follows a '#' at
/// a line's start say nothing. An option that the command line gave stays as it is. To be called when the command line
/// has been parsed.
/// Errors: not_found; invalid_argument naming file and line.
Status apply_config_file(CLI::App& command, const std::string& path);

}  // namespace millrace::cli
