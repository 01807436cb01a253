// Whether a value holds by a schema: for the values of an enum that has other keywords beside it.
// Thread-safety: as GrammarBuilder.
#pragma once

#include <set>

#include "text/constraint/regular.h"
#include "text/constraint/schema_flatten.h"

namespace millrace::text {

/// JSON schema's types; "integer" has 1.0, too.
bool has_type(const SchemaJson& value, const std::string& type);
/// One of those that the schema names with "type" and "nullable". REQUIRES: it says "type".
bool has_type_of(const SchemaJson& value, const SchemaJson& schema);

class ValueChecker {
 public:
  /// Both outlive the checker.
  ValueChecker(Flattener& flattener, RegularSets& sets) : flattener_(flattener), sets_(sets) {}

  /// Errors: unsupported (a keyword that is not checked, by name), invalid_argument.
  Expected<bool> holds(const SchemaJson& value, const SchemaJson& schema, int depth = 0);

 private:
  Expected<bool> holds_plain(const SchemaJson& value, const SchemaJson& plain, int depth);
  Expected<bool> object_holds(const SchemaJson& value, const SchemaJson& plain, int depth);
  Expected<bool> array_holds(const SchemaJson& value, const SchemaJson& plain, int depth);

  Flattener& flattener_;
  RegularSets& sets_;
};

}  // namespace millrace::text
