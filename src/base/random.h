// Pseudo-random numbers that are the same in every run.
#pragma once

#include <cstdint>

namespace millrace {

/// Steps xorshift64 (Marsaglia: Xorshift RNGs, 2003): all 64 bits vary. REQUIRES: state != 0.
inline std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

}  // namespace millrace
