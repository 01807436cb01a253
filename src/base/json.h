// nlohmann's JSON, whose destructors here take no memory. Included in place of <nlohmann/json.hpp>.
//
// The library's destructor lists the values inside of a value, so that deep nesting takes no stack. Where memory is
// short it gets none for the list, throws, and ends the process. Ours keeps the list in the places of the values that
// it destroys. And its comparison with a literal makes a value of that, but promises not to throw: ours makes none.
// Thread-safety: as the library's.
#pragma once

#include <nlohmann/json.hpp>

// Of every kind of JSON in the program. The library calls it from the destructor alone.
template <>
void nlohmann::json::json_value::destroy(value_t type);
template <>
void nlohmann::ordered_json::json_value::destroy(value_t type);

namespace nlohmann {

inline bool operator==(const json& value, const char* text) noexcept {
  const auto* const own = value.get_ptr<const json::string_t*>();
  return own != nullptr && *own == text;
}
inline bool operator!=(const json& value, const char* text) noexcept { return !(value == text); }
inline bool operator==(const ordered_json& value, const char* text) noexcept {
  const auto* const own = value.get_ptr<const ordered_json::string_t*>();
  return own != nullptr && *own == text;
}
inline bool operator!=(const ordered_json& value, const char* text) noexcept { return !(value == text); }

}  // namespace nlohmann
