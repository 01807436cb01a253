// Takes allOf, anyOf, oneOf, not, if, dependencies and references beside other keywords out of a schema: what is left
// is a list of plain schemas, one of which has to hold. Thread-safety: a Flattener belongs to one thread; it keeps no
// state but its limits.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace::text {

using SchemaJson = nlohmann::ordered_json;

/// What plain schemas say beside JSON schema's own keywords: lists of patterns that match too, of patterns that do not,
/// of formats that hold too, and of values that it is none of; true where a number is no integer.
inline constexpr const char *kMorePatterns = "\x01patterns", *kNotPatterns = "\x01not patterns",
                            *kMoreFormats =
                                "\x01"
                                "formats",
                            *kNotValues = "\x01not values", *kNotInteger = "\x01not integer";

/// Properties by name, as "properties" has them, that unevaluatedProperties does not see: what `not` says evaluates
/// none.
inline constexpr const char* kUnseenProperties = "\x01unseen";

/// The keyword that binds and is meant: this one, or the one that it is misspelt for. Empty: it binds nothing.
std::string_view meant_keyword(std::string_view keyword);
/// Title, description, default and the like, and what no draft of JSON schema knows: they bind nothing.
bool is_annotation(const std::string& keyword);

class Flattener {
 public:
  /// `root` outlives the flattener.
  explicit Flattener(const SchemaJson& root);

  /// Plain schemas; one that is a lone {"$ref": ...} stays so. Errors: unsupported, invalid_argument.
  Expected<std::vector<SchemaJson>> flatten(const SchemaJson& schema, int depth = 0);
  /// What "#/..." points to. Errors: invalid_argument, unsupported (another document).
  Expected<const SchemaJson*> resolve(const std::string& reference) const;

 private:
  Expected<SchemaJson> without_reference(const SchemaJson& schema, int depth) const;
  /// Of a schema that is to stand beside others, which its unevaluatedProperties and unevaluatedItems do not see: what
  /// they say, without them. Plain schemas then, one of which has to hold; else `schema` alone.
  Expected<std::vector<SchemaJson>> on_its_own(const SchemaJson& schema, const SchemaJson& beside, int depth);
  /// Schemas (not plain), one of which holds for a value where `schema` does not, and none where it does.
  Expected<std::vector<SchemaJson>> negated(const SchemaJson& schema, int depth) const;
  Status check_nots(const SchemaJson& beside, const SchemaJson& denied, int depth) const;
  bool may_hold(const SchemaJson& beside, const SchemaJson& option, int depth) const;
  Expected<std::vector<SchemaJson>> any_of(const SchemaJson& beside, const std::vector<SchemaJson>& options, int depth);
  Expected<std::vector<SchemaJson>> all_of(const SchemaJson& schema, int depth);
  Expected<std::vector<SchemaJson>> one_of(const SchemaJson& schema, int depth);
  Expected<std::vector<SchemaJson>> conditional(const SchemaJson& schema, int depth);
  Expected<std::vector<SchemaJson>> dependent(const SchemaJson& schema, const char* keyword, int depth);
  Expected<std::set<std::string>> tags_between(const std::vector<SchemaJson>& a,
                                               const std::vector<SchemaJson>& b) const;

  const SchemaJson& root_;
  bool is_old_ = false;  // of a draft before 2020-12
  int produced_ = 0;
  std::size_t work_ = 0;
};

}  // namespace millrace::text
