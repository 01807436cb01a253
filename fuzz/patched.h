// What fuzzers of files that Millrace writes have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

/// `good` with `bytes` from the place on that data[1] and data[2] say, as far as there is room.
inline std::vector<char> patched(const std::vector<char>& good, const std::uint8_t* data,
                                 const std::vector<char>& bytes) {
  const std::size_t at = (data[1] * 256u + data[2]) % good.size();
  std::vector<char> made = good;
  std::copy_n(bytes.begin(), std::min(bytes.size(), made.size() - at), made.begin() + static_cast<std::ptrdiff_t>(at));
  return made;
}
