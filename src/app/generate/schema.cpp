#include "app/generate/schema.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace millrace::generate {
namespace {

constexpr std::array<std::string_view, 7> kMapsOfSchemas = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies", "schemas"};
constexpr std::array<std::string_view, 5> kValues = {"enum", "const", "default", "examples", "required"};

bool is_one_of(std::string_view word, const auto& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Json::object_t& members_of(Json& object) { return object.get_ref<Json::object_t&>(); }

/// Calls `work` with each schema in this one. REQUIRES: the JSON nests as deep as requests may.
template <typename Work>
void each_schema(Json& schema, const Work& work) {
  if (schema.is_array()) {
    for (Json& one : schema) each_schema(one, work);
    return;
  }
  if (!schema.is_object()) return;
  work(schema);
  for (auto& [key, value] : members_of(schema)) {
    if (is_one_of(key, kValues)) continue;
    if (is_one_of(key, kMapsOfSchemas) && value.is_object()) {
      for (auto& [name, inner] : members_of(value)) each_schema(inner, work);
    } else {
      each_schema(value, work);
    }
  }
}

void to_lower(Json& type) {
  if (!type.is_string()) return;
  for (char& c : type.get_ref<std::string&>()) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

/// The largest value that a limit may have at a step; 0: the keyword is none of them.
double most_of(std::string_view keyword, int step) {
  constexpr std::array<double, 4> characters = {50'000, 8'192, 1'024, 128}, items = {5'000, 1'024, 256, 32};
  const auto at = static_cast<std::size_t>(step);
  if (keyword == "maxLength" || keyword == "minLength") return characters[at];
  if (keyword == "maxContains" || keyword == "minContains") return std::min(100.0, items[at]);
  const bool counts =
      keyword == "maxItems" || keyword == "minItems" || keyword == "maxProperties" || keyword == "minProperties";
  return counts ? items[at] : 0;
}

}  // namespace

void tidy_schema(Json& schema) {
  each_schema(schema, [](Json& one) {
    auto& members = one.get_ref<Json::object_t&>();
    for (auto& [key, value] : members) {
      if (key != "type") continue;
      to_lower(value);
      if (value.is_array())
        for (Json& type : value) to_lower(type);
    }
    const auto is_null = [](const auto& member) {
      return member.second.is_null() && member.first != "const" && member.first != "default";
    };
    Json::object_t kept;
    if (std::none_of(members.begin(), members.end(), is_null)) return;
    for (auto& member : members)
      if (!is_null(member)) kept.emplace_back(member.first, std::move(member.second));
    members = std::move(kept);
  });
}

bool clamp_limits(Json& schema, int n) {
  constexpr int kSteps = 4;
  if (n >= kSteps) return false;
  each_schema(schema, [n](Json& one) {
    for (auto& [key, value] : one.get_ref<Json::object_t&>()) {
      const double most = most_of(key, n);
      if (most > 0 && value.is_number() && value.get<double>() > most) value = static_cast<std::int64_t>(most);
    }
  });
  return true;
}

}  // namespace millrace::generate
