// What a schema says of a string, as a regular set. Thread-safety: as GrammarBuilder.
#pragma once

#include <cstdint>

#include "text/constraint/regular.h"
#include "text/constraint/schema_flatten.h"

namespace millrace::text {

/// A count of a schema, such as minLength. Errors: invalid_argument (no whole number), unsupported (above `most`).
Expected<std::uint32_t> schema_count(const SchemaJson& schema, const char* keyword, std::uint32_t fallback,
                                     std::uint32_t most);

/// minLength and maxLength.
struct Lengths {
  std::uint32_t least = 0, most = UINT32_MAX;
  bool bind() const { return least > 0 || most != UINT32_MAX; }
};
Expected<Lengths> lengths_of(const SchemaJson& schema);

/// Whether patterns, formats or values that are excluded bind a string of this plain schema.
bool has_string_form(const SchemaJson& schema);

/// Patterns and formats that have to match. Errors: invalid_argument (no strings).
Expected<std::vector<std::string>> patterns_of(const SchemaJson& schema);

/// The strings that a plain schema allows. Errors: invalid_argument, unsupported.
Expected<RegularSets::Set> string_set(RegularSets& sets, const SchemaJson& schema);

}  // namespace millrace::text
