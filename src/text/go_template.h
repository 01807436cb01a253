// Converts Go templates, as in Modelfiles, to Jinja.
// Thread-safety: pure.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::text {

/// True if a template is a Go template.
bool is_go_template(std::string_view text);

/// Converts it to Jinja. Supported: .Prompt, .System, .Response (one turn), range over .Messages with .Role and
/// .Content; if, else if, else and end with eq, ne, and, or, not; comments. Errors: unsupported (anything else, named).
Expected<std::string> jinja_of_go(std::string_view text);

}  // namespace millrace::text
