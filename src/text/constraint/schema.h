// Compiles JSON schemas to grammars. Every text that the grammar accepts is valid, but not every valid text is
// accepted: declared properties come in the schema's order, and others are only allowed if additionalProperties permits
// them explicitly.
//
// Supported: draft 2020-12 except the following, differences of older drafts (schema_document.h), `nullable`, and
// formats of OpenAPI and Pydantic. Patterns, formats and lengths of a string apply together. Bounds of numbers have up
// to 15 digits (others are rounded inwards), and multipleOf is exact in decimals. Annotations and unknown formats are
// ignored.
//
// Items that must differ (uniqueItems), and undeclared names counted by minProperties, have one spelling each, by which
// they are compared (written_texts.h): non-integer numbers have at most 15 digits, and unspecified items are neither
// lists nor objects.
//
// Errors that name it: references to other documents; look-behind and back references of patterns; uniqueItems over
// objects of free names; more than 4 conditions of what a list contains; `not`, and `if`, and `oneOf` with branches
// that may both hold, and `contains` beside maxContains, over what has no opposite (schema_negate.h). Words that no
// draft knows are annotations, but for those that look misspelt. Source: JSON Schema 2020-12. Thread-safety: pure
// functions.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "text/constraint/grammar.h"

namespace millrace::text {

/// Of a string in a schema that is made here, never a client's: {"syntax": "gbnf" | "lark" | "regex", "definition"},
/// the grammar that its text keeps. Nothing else may bind the string.
inline constexpr const char* kGrammarOfString = "\x01grammar";

/// A schema has 1 MiB at most, and takes time and memory in proportion to its size, within `limits`: an enum of 100,000
/// values is fine. Errors: invalid_argument (no JSON, contradictions, too large), unsupported (a keyword or value,
/// named with its place), cancelled (by the limits' grant).
Expected<std::shared_ptr<const Grammar>> schema_grammar(std::string_view json_schema, const BuildLimits& limits = {});

/// Any JSON object. Cannot fail.
std::shared_ptr<const Grammar> json_object_grammar();

}  // namespace millrace::text
