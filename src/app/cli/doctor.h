// What this machine offers Millrace and what to change, for people.
#pragma once

#include <string>

namespace millrace::cli {

/// A table, a line a finding: a mark, what was looked at, what was found; below it what to change, where there is
/// something. `path`: a model file or a directory; its disk is looked at ("": the current directory). Looks only: it
/// fails on nothing that is absent, and leaves nothing behind.
std::string render_doctor(const std::string& path);

}  // namespace millrace::cli
