// Two schemas that have to hold at once, as one. Thread-safety: pure functions.
#pragma once

#include "text/constraint/schema_flatten.h"

namespace millrace::text {

/// REQUIRES: neither is a $ref. Combinations (anyOf and the like) of both stand in the result's allOf where they cannot
/// stand beside each other. Errors: invalid_argument (no schema), unsupported (names what cannot be said as one).
Expected<SchemaJson> merge_schemas(const SchemaJson& a, const SchemaJson& b);

/// One that holds where both do, in the plainest words.
SchemaJson both_schemas(const SchemaJson& a, const SchemaJson& b);

/// Of one value, a list of it.
SchemaJson as_list(const SchemaJson& one_or_many);

/// Equal as JSON schema has it (1 and 1.0 are), in n log n steps: the values of `a` that `b` has, too.
SchemaJson common_values(const SchemaJson& a, const SchemaJson& b);

/// The values that a schema is limited to; null where it is not.
SchemaJson values_of(const SchemaJson& schema);

}  // namespace millrace::text
