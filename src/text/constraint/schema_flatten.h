// Takes allOf, anyOf, oneOf, not, if, dependencies and references beside other keywords out of a schema: what is left
// is a list of plain schemas, one of which has to hold. Thread-safety: a Flattener belongs to one thread; it keeps no
// state but its limits.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/constraint/schema_document.h"
#include "text/constraint/schema_keywords.h"

namespace millrace::text {

class Flattener {
 public:
  /// `document` outlives the flattener.
  explicit Flattener(const SchemaDocument& document) : document_(document) {}

  /// Plain schemas; one that is a lone {"$ref": ...} stays so. Errors: unsupported, invalid_argument.
  Expected<std::vector<SchemaJson>> flatten(const SchemaJson& schema, int depth = 0);
  Expected<const SchemaJson*> resolve(const std::string& reference) const { return document_.resolve(reference); }

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

  const SchemaDocument& document_;
  int produced_ = 0;
  std::size_t work_ = 0;
};

}  // namespace millrace::text
