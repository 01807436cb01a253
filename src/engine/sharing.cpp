#include "engine/sharing.h"

#include <algorithm>

namespace millrace::engine {
namespace {

// More rows than this gain little: the products are bound by computing then.
constexpr std::int64_t kMostSequences = 64;
// Tokens of a request: a guess on the low side, since KV is taken block by block as they come.
constexpr std::int64_t kUsualTokens = 256;
// KV that a request gets on average at most. More would only keep what is over.
constexpr std::int64_t kMostTokens = 2048;
// A row of logits and a sampler's candidates, for each token of the vocabulary.
constexpr std::uint64_t kBytesPerWord = 12;

/// The most in [1, most] that fits, if one does; 1 where none does.
template <class Fits>
std::int64_t most_that(std::int64_t most, const Fits& fits) {
  std::int64_t good = 1, bad = most + 1;
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

Sharing choose_sharing(const SharingInput& input) {
  const std::uint64_t cap = input.cap_bytes;
  std::uint64_t room = cap > input.taken_bytes ? (cap - input.taken_bytes) / 8 * 7 : 0;
  if (input.weights_give_way) room = std::max(room, cap / 4);
  const std::uint64_t words = kBytesPerWord * static_cast<std::uint64_t>(std::max<std::int64_t>(1, input.vocab));
  const auto rows = static_cast<std::int64_t>(cap / 16 / words);
  Sharing sharing;
  const std::int64_t most_sequences = input.most_sequences > 0 ? input.most_sequences : kMostSequences;
  sharing.sequences = most_that(std::clamp<std::int64_t>(rows, 1, most_sequences), [&](std::int64_t sequences) {
    return input.kv_bytes(sequences * kUsualTokens, sequences) <= room;
  });
  const std::int64_t most =
      input.most_kv_tokens > 0 ? input.most_kv_tokens : sharing.sequences * std::min(input.context_tokens, kMostTokens);
  sharing.kv_tokens = most_that(std::max<std::int64_t>(1, most),
                                [&](std::int64_t tokens) { return input.kv_bytes(tokens, sharing.sequences) <= room; });
  return sharing;
}

}  // namespace millrace::engine
