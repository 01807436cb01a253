// Thread-safety: a pure function.
#pragma once

#include <string>

#include "app/generate/json.h"

namespace millrace::openai {

/// A text field of an object; empty where there is none.
inline std::string word(const generate::Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace millrace::openai
