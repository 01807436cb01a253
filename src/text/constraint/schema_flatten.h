// Takes allOf, anyOf, oneOf and references beside other keywords out of a schema: what is left is a list of plain
// schemas, one of which has to hold. Thread-safety: a Flattener belongs to one thread; it keeps no state but its
// limits.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace::text {

using SchemaJson = nlohmann::ordered_json;

/// Title, description, default and the like, which bind nothing.
bool is_annotation(const std::string& keyword);

class Flattener {
 public:
  /// `root` outlives the flattener.
  explicit Flattener(const SchemaJson& root) : root_(root) {}

  /// Plain schemas; one that is a lone {"$ref": ...} stays so. Errors: unsupported, invalid_argument.
  Expected<std::vector<SchemaJson>> flatten(const SchemaJson& schema, int depth = 0);
  /// What "#/..." points to. Errors: invalid_argument, unsupported (another document).
  Expected<const SchemaJson*> resolve(const std::string& reference) const;

 private:
  Expected<SchemaJson> without_reference(const SchemaJson& schema, int depth) const;
  Expected<SchemaJson> merge(const SchemaJson& a, const SchemaJson& b) const;
  Status merge_keyword(SchemaJson& into, const std::string& keyword, const SchemaJson& value) const;
  Expected<std::vector<SchemaJson>> branches(const SchemaJson& schema, const char* keyword, int depth);
  Status check_disjoint(const std::vector<std::vector<SchemaJson>>& branches) const;

  const SchemaJson& root_;
  int produced_ = 0;
};

}  // namespace millrace::text
