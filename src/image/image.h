// Pictures in memory: red, green and blue, eight bits each. Thread-safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/work_grant.h"

namespace millrace::image {

struct Image {
  std::int64_t width = 0, height = 0;
  std::vector<std::uint8_t> rgb;  // [height, width, 3]
  GrantLease memory;              // covers rgb
};

}  // namespace millrace::image
