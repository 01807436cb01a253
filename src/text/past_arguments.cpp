#include "text/past_arguments.h"

#include "base/json_nesting.h"
#include "base/words.h"
#include "text/json_copy.h"

namespace millrace::text {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostMembers = 4096;
constexpr int kMostCut = 64;  // bytes at the end of a cut text: a key without its value, half a word or escape

/// The limits bound nlohmann's parser, which compares each key with all earlier ones and recurses at each bracket.
bool is_unwieldy(std::string_view text) {
  std::size_t members = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\') ++i;
    if (!in_string && text[i] == ':') ++members;
  }
  return members > kMostMembers || nests_too_deep(text);
}

bool is_nothing(const Json& value) { return value.is_null() || (value.is_array() && value.empty()); }

/// Parses a truncated object or a Python dict; returns a discarded value if `text` is neither.
Json repaired(std::string_view text) {
  LooseCopy copy("");
  std::string json;
  const std::size_t taken = copy.take(text, true, json);
  if (copy.done() && text.find_first_not_of(kSpaces, taken) == std::string_view::npos) {
    Json read = Json::parse(json, nullptr, false);
    if (read.is_object()) return read;
  }
  for (int i = 0; i < kMostCut && !text.empty(); ++i, text.remove_suffix(1)) {
    Json read = Json::parse(std::string(text) + closing_brackets(text), nullptr, false);
    if (read.is_object()) return read;
  }
  return Json(Json::value_t::discarded);
}

Json from_text(const std::string& whole) {
  const std::string_view text = std::string_view(whole).substr(spaces(whole));
  if (text.empty()) return Json::object();
  Json kept = {{"arguments", whole}};
  if (is_unwieldy(text)) return kept;
  Json read = Json::parse(text, nullptr, false);
  if (read.is_object()) return read;
  if (is_nothing(read)) return Json::object();
  if (read.is_string()) {  // JSON encoded twice
    const std::string& inner = read.get_ref<const std::string&>();
    if (inner.size() + 2 < text.size() && inner.starts_with('{') && !is_unwieldy(inner)) {
      Json object = Json::parse(inner, nullptr, false);
      if (object.is_object()) return object;
    }
  }
  if (text.starts_with('{') && read.is_discarded()) read = repaired(text);
  return read.is_object() ? read : kept;
}

}  // namespace

std::string closing_brackets(std::string_view json) {
  std::string closers;
  bool string = false, escaped = false;
  for (const char c : json) {
    if (escaped || (string && c == '\\')) {
      escaped = !escaped;
    } else if (c == '"') {
      string = !string;
    } else if (!string && (c == '{' || c == '[')) {
      closers += c == '{' ? '}' : ']';
    } else if (!string && (c == '}' || c == ']') && !closers.empty()) {
      closers.pop_back();
    }
  }
  if (string) closers += '"';
  return {closers.rbegin(), closers.rend()};
}

Json past_arguments(const Json& arguments) {
  if (arguments.is_object()) return arguments;
  if (is_nothing(arguments)) return Json::object();
  if (arguments.is_string()) return from_text(arguments.get_ref<const std::string&>());
  return Json{{"arguments", arguments}};
}

}  // namespace millrace::text
