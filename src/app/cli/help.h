// What --help shows: flags in groups (memory, sampling, network, ...), and of verbs with many flags only those that
// most people want; --help-all shows the rest. Thread-safety: one thread, before the command line is parsed.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace millrace::cli {

/// Sorts the flags of all verbs that were added into groups. Where `words` ask for --help-all, they ask for --help
/// afterwards, and nothing is left out.
void arrange_help(CLI::App& app, std::vector<std::string>& words);

}  // namespace millrace::cli
