// What does not hold a schema. Without an opposite are uniqueItems, additionalProperties, patternProperties,
// propertyNames and multipleOf, but where they say nothing. Thread-safety: pure functions.
#pragma once

#include <vector>

#include "base/status.h"
#include "text/constraint/schema_document.h"

namespace millrace::text {

/// A schema of what `schema` does not allow, as a word: {"not": ...}.
SchemaJson negation(const SchemaJson& schema);

/// Schemas (not plain), one of which holds for a value where `schema` does not, and none where it does. Properties and
/// items of which they speak are none that unevaluatedProperties and unevaluatedItems see. A format beside other
/// keywords is taken to hold always: for many readers it is an annotation, and `not` of it would be nothing for them.
/// REQUIRES: no $ref beside other keywords. Errors: unsupported (names the keyword), invalid_argument.
Expected<std::vector<SchemaJson>> negated_schemas(const SchemaJson& schema);

}  // namespace millrace::text
