// Templates in Go's language, as Modelfiles have them, as Jinja.
// Thread-safety: pure.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::text {

/// Whether a template is written in Go's language.
bool is_go_template(std::string_view text);

/// The same in Jinja. Known are .Prompt, .System, .Response (a turn each), range over .Messages with .Role and
/// .Content, if, else if, else and end with eq, ne, and, or, not, and comments.
/// Errors: unsupported (whatever else it has, by name).
Expected<std::string> jinja_of_go(std::string_view text);

}  // namespace millrace::text
