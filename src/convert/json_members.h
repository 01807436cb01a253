// Reads members of untrusted JSON: a missing member, or one of another type, counts as empty.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "base/json.h"

namespace millrace::convert {

inline std::string text_of(const nlohmann::json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

/// The member by reference, so that a vocabulary is not copied; null if there is none.
inline const nlohmann::json& member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json none;
  if (!object.is_object()) return none;
  const auto found = object.find(key);
  return found == object.end() ? none : *found;
}

inline bool flag_of(const nlohmann::json& object, const char* key, bool fallback = false) {
  return object.is_object() && object.contains(key) && object[key].is_boolean() ? object[key].get<bool>() : fallback;
}

}  // namespace millrace::convert
