// Which rows of a table a token reads by the tokens before it: hashed n-grams. Source: Engram (arXiv:2601.07372), as
// Qwen3.8-Flash-Next (2026) has it. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::exec {

constexpr std::int64_t kMostNgram = 8;       // tokens
constexpr std::int64_t kMostNgramRows = 64;  // of a token

/// n-grams of 2 to order() tokens, each of which reads one row for each of its heads. An n-gram's hash is the exclusive
/// or of its tokens, each times the multiplier of its distance; head h of it reads row offsets[h] + hash % sizes[h].
struct Ngrams {
  std::vector<std::uint64_t> multipliers;     // [order], of the token itself first
  std::vector<std::uint64_t> sizes, offsets;  // [rows()]: heads of 2-grams, then those of 3-grams, ...
  std::int32_t end = 0;       // no n-gram reaches behind this token: it stands in place of all before it
  std::int32_t picture = -1;  // the token of a picture's rows; -1: `end`

  std::int64_t order() const { return static_cast<std::int64_t>(multipliers.size()); }
  std::int64_t rows() const { return static_cast<std::int64_t>(sizes.size()); }  // of a token
  std::int64_t rows_of_order() const { return rows() / (order() - 1); }
  /// tokens: [order()], the newest first; before the first token of a sequence stands `end`. rows: [rows()].
  void rows_of(std::span<const std::int32_t> tokens, std::int64_t* rows) const;
};

}  // namespace millrace::exec
