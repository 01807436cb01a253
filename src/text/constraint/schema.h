// JSON schemas as grammars. What the grammar accepts is valid by the schema; not everything that is valid is accepted:
// declared properties come in the schema's order, and none is added unless additionalProperties allows it aloud.
//
// Understood: type (also a list), nullable, enum, const, properties, required, additionalProperties, items,
// prefixItems, minItems, maxItems, minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum,
// exclusiveMaximum, anyOf, oneOf (where its branches cannot both hold), allOf, $ref within the schema (also recursive),
// $defs. Annotations are passed over. Everything else is an error that names it: nothing is silently ignored. Source:
// JSON Schema 2020-12. Thread-safety: pure functions.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "text/constraint/grammar.h"

namespace millrace::text {

/// A schema has 1 MiB at most, and takes time and memory in proportion to its size, within `limits`: an enum of 100,000
/// values is fine. Errors: invalid_argument (no JSON, contradictions, too large), unsupported (a keyword or value,
/// named with its place), cancelled (by the limits' grant).
Expected<std::shared_ptr<const Grammar>> schema_grammar(std::string_view json_schema, const BuildLimits& limits = {});

/// Any JSON object. Cannot fail.
std::shared_ptr<const Grammar> json_object_grammar();

}  // namespace millrace::text
