// The middle of some values. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace millrace {

/// Of an even number the larger of the two in the middle; changes the order. REQUIRES: there is one.
inline double median_of(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace millrace
