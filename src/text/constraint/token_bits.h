// A set of tokens as Constraint::mask() has it: bit i % 32 of bits[i / 32] is 1 if token i is in it.
// Thread-safety: pure functions of what the caller owns. REQUIRES: an id within the bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "text/tokenizer.h"

namespace millrace::text {

inline std::uint32_t bit_of(TokenId id) { return 1u << (static_cast<std::uint32_t>(id) % 32); }
inline std::uint32_t& word_of(std::span<std::uint32_t> bits, TokenId id) {
  return bits[static_cast<std::size_t>(id) / 32];
}
inline void allow(std::span<std::uint32_t> bits, TokenId id) { word_of(bits, id) |= bit_of(id); }
inline void forbid(std::span<std::uint32_t> bits, TokenId id) { word_of(bits, id) &= ~bit_of(id); }
inline bool allows(std::span<std::uint32_t> bits, TokenId id) { return (word_of(bits, id) & bit_of(id)) != 0; }

/// Every token of the vocabulary; bits past it are 0.
inline void allow_every_token(std::span<std::uint32_t> bits, std::int64_t vocab_size) {
  const auto vocab = static_cast<std::size_t>(vocab_size);
  std::fill(bits.begin(), bits.end(), 0u);
  std::fill_n(bits.begin(), vocab / 32, ~0u);
  if (vocab % 32 != 0) bits[vocab / 32] = (1u << (vocab % 32)) - 1;
}

}  // namespace millrace::text
