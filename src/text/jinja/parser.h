// A template's tokens as nodes. Source: the Jinja 3.1 documentation. Thread-safety: a pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/nodes.h"

namespace millrace::text::jinja {

struct Parsed {
  std::vector<std::string> names;  // of variables, by Name
  Body body;
};

/// Fails (Trouble, with the line) for what is no template.
Parsed parse(std::string_view source);

}  // namespace millrace::text::jinja
