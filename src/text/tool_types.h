// The types of the tools' parameters, from their JSON schemas. Models that write arguments as text in tags do not
// distinguish a number from a string of digits. Thread-safety: immutable once made.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/json.h"

namespace millrace::text {

/// A set of JSON types. Empty: unknown.
struct JsonTypes {
  enum Bit : std::uint8_t { null = 1, boolean = 2, integer = 4, number = 8, string = 16, array = 32, object = 64 };
  std::uint8_t bits = 0;

  bool has(Bit bit) const { return (bits & bit) != 0; }
  bool only_string() const { return bits == string; }
  /// True if a value of that kind has one of these types. An integer is also a number.
  bool take(const nlohmann::ordered_json& value) const;
};

class ToolTypes {
 public:
  /// A value's place in a tool's schema. Unknown: nothing is known of it.
  class Place {
   public:
    Place() = default;
    Place(const nlohmann::ordered_json* root, const nlohmann::ordered_json* schema) : root_(root), schema_(schema) {}
    JsonTypes types() const;
    Place member(std::string_view key) const;
    Place item() const;

   private:
    const nlohmann::ordered_json* root_ = nullptr;
    const nlohmann::ordered_json* schema_ = nullptr;
  };

  /// [{"type": "function", "function": {"name", "parameters"}}]; other entries are ignored.
  explicit ToolTypes(const nlohmann::ordered_json& tools);

  bool knows(std::string_view tool) const { return tools_.find(tool) != tools_.end(); }
  JsonTypes of(std::string_view tool, std::string_view parameter) const;
  /// Valid as long as this.
  Place place(std::string_view tool, std::string_view parameter) const;

 private:
  struct Tool {
    nlohmann::ordered_json parameters;
    std::map<std::string, JsonTypes, std::less<>> types;
  };
  std::map<std::string, Tool, std::less<>> tools_;
};

/// The JSON value of `text` with one of these types; a text that has none of the other types becomes a string.
std::string typed_json(std::string_view text, JsonTypes types);

}  // namespace millrace::text
