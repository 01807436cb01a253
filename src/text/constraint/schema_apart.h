// What can be told of schemas by looking at what they say and no further: whether they have a value in common, and
// which values are left to one. So that branches and conditions need not be written out in every combination.
// Thread-safety: pure functions.
#pragma once

#include <vector>

#include "text/constraint/schema_document.h"

namespace millrace::text {

/// A value that both allow certainly does not exist. REQUIRES: plain schemas.
bool is_disjoint(const SchemaJson& a, const SchemaJson& b, int depth = 0);
/// Nor one that some schema of each list allows.
bool are_disjoint(const std::vector<SchemaJson>& a, const std::vector<SchemaJson>& b);
/// Both are lists of values, and none is in both.
bool no_common_value(const SchemaJson& a, const SchemaJson& b);
/// The values that a schema is limited to by all that it certainly says; null where it is not.
SchemaJson limits_of(const SchemaJson& schema, int depth = 0);
/// A property that has to be there has no value left to it.
bool is_hopeless(const SchemaJson& schema);

}  // namespace millrace::text
