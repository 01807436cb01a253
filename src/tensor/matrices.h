// Tensors that are several matrices, one behind the other: experts of a layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

/// How many a tensor of such a shape is.
inline std::int64_t matrices_of(std::span<const std::int64_t> shape) { return shape.size() == 3 ? shape[2] : 1; }

/// Of a tensor of so many elements, in `matrices` alike: calls part(matrix, begin, end) for what of elements
/// [first, first + count) lies in each, begin and end counted from `first`.
template <typename Part>
void each_matrix(std::int64_t elements, std::size_t matrices, std::int64_t first, std::int64_t count,
                 const Part& part) {
  const std::int64_t each = std::max<std::int64_t>(1, elements / static_cast<std::int64_t>(matrices));
  for (std::int64_t at = 0; at < count;) {
    const std::int64_t matrix = (first + at) / each, end = std::min(count, (matrix + 1) * each - first);
    part(static_cast<std::size_t>(matrix), at, end);
    at = end;
  }
}

}  // namespace millrace
