// What a schema says of the items of a list, whichever draft wrote it: by their places, and how many of them have to be
// what. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "text/constraint/schema_document.h"

namespace millrace::text {

/// The schemas of items by their places.
struct ItemSchemas {
  std::vector<SchemaJson> first;
  SchemaJson others = true;  // behind them
  bool says_others = false;
  const SchemaJson& at(std::size_t i) const { return i < first.size() ? first[i] : others; }
};
/// Errors: invalid_argument (no list).
Expected<ItemSchemas> item_schemas(const SchemaJson& schema);

/// `least` to `most` of the items in [first, last) hold `schema`.
struct Contained {
  SchemaJson schema;
  std::uint32_t least = 1, most = UINT32_MAX;
  std::size_t first = 0, last = SIZE_MAX;
  bool binds_most() const { return most != UINT32_MAX; }
  std::uint32_t counted() const { return binds_most() ? most : least; }  // what is beyond says nothing more
  bool speaks_of(std::size_t i) const { return first <= i && i < last; }
};
/// Those of a plain schema that bind. Errors: invalid_argument (no count), unsupported (a count above 100).
Expected<std::vector<Contained>> contained_of(const SchemaJson& schema);

}  // namespace millrace::text
