// The words of JSON schema: what each speaks of, and what becomes of it here. Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace millrace::text {

/// What plain schemas say beside JSON schema's own keywords: lists of patterns that match too, of patterns that do not,
/// of formats that hold too, and of values that it is none of; true where a number is no integer.
inline constexpr const char *kMorePatterns = "\x01patterns", *kNotPatterns = "\x01not patterns",
                            *kMoreFormats =
                                "\x01"
                                "formats",
                            *kNotValues = "\x01not values", *kNotInteger = "\x01not integer";

/// More that a list contains: {"contains", "minContains", "maxContains"} each; of the items from "first" to before
/// "last" where these stand there; "unseen" where unevaluatedItems does not see it.
inline constexpr const char* kContained =
    "\x01"
    "contained";

/// Properties by name, as "properties" has them, that unevaluatedProperties does not see: what `not` says evaluates
/// none.
inline constexpr const char* kUnseenProperties = "\x01unseen";

enum class KeywordUse : std::uint8_t {
  plain,       // a plain schema keeps it
  combined,    // the flattener takes it out
  refused,     // binds, and cannot be kept
  annotation,  // binds nothing
};

struct SchemaKeyword {
  std::string_view word;
  KeywordUse use = KeywordUse::plain;
  std::string_view type = "";  // of the values that it binds; empty: of every type
  bool evaluates = false;      // may say of properties or items that they are evaluated
};

/// Words are few where this is asked.
inline bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Null: no draft of JSON schema knows this word, and none is made here.
const SchemaKeyword* schema_keyword(std::string_view word);
/// The keyword that binds and is meant: this one, or the one that it is misspelt for. Empty: it binds nothing.
std::string_view meant_keyword(std::string_view word);
/// Title, description, default and the like, and what no draft of JSON schema knows: they bind nothing.
bool is_annotation(const std::string& word);

}  // namespace millrace::text
