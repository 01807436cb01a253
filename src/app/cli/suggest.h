// What to write instead of a word that the command line does not know: the nearest command or option by edit distance,
// and the option that does what another engine's does. Thread-safety: pure functions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace millrace::cli {

/// The cost of turning one word into the other: 2 for a missing, an extra or two swapped letters, 3 for a wrong one.
int edit_cost(const std::string& typed, const std::string& meant);

/// The message for a first word that is no command.
std::string unknown_command(const CLI::App& app, const std::string& word);

/// The message for an option (or a further word) that `command` does not take. `command` may be the program itself.
std::string unknown_argument(const CLI::App& command, const std::string& word);

/// The first of `words` that is another engine's option with one dash and several letters ("-ngl"): the parser would
/// read it as a short option and its value. Empty: there is none.
std::string foreign_short_option(const std::vector<std::string>& words);

/// What CLI11 says of a command line, in plain words.
std::string plain_message(const CLI::App& command, const CLI::Error& wrong);

}  // namespace millrace::cli
