// The form that `run` has its answers keep: a grammar, a JSON schema or a regular expression.
// Thread-safety: one thread.
#pragma once

#include <string>

#include "app/cli/command.h"
#include "app/generate/job.h"

namespace millrace::cli {

struct FormFlags {
  std::string grammar, schema, regex;  // two files and an expression; empty: not asked for

  bool any() const { return !grammar.empty() || !schema.empty() || !regex.empty(); }
};
/// One of them at most is taken.
void add_form_flags(CLI::App& command, FormFlags& flags);

/// A job that asks for this form and nothing else; for any text without flags. The form is built once, so that what
/// is wrong with it is said before a model is loaded.
/// Errors: not_found, io_error (the file); invalid_argument, unsupported (what it says). All name the flag.
Expected<generate::Job> read_form(const FormFlags& flags);

}  // namespace millrace::cli
