// How the simple blocks of 32 keep four bits a number (tensor/blocks.h). Thread-safe (a pure function).
#pragma once

#include <cstdint>

namespace millrace {

/// The low nibble of qs[i] is the low four bits of q[i], the high one those of q[i + 16]. q: [32], qs: [16].
inline void pack_nibbles(const std::uint8_t* q, std::uint8_t* qs) {
  for (int i = 0; i < 16; ++i) qs[i] = static_cast<std::uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
}

}  // namespace millrace
