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

}  // namespace

Sharing choose_sharing(const SharingInput& input) {
  const std::uint64_t cap = input.cap_bytes;
  std::uint64_t room = cap > input.taken_bytes ? (cap - input.taken_bytes) / 8 * 7 : 0;
  if (input.weights_give_way) room = std::max(room, cap / 4);
  const auto tokens = static_cast<std::int64_t>(room / std::max<std::uint64_t>(1, input.kv_bytes_per_token));
  const std::uint64_t words = kBytesPerWord * static_cast<std::uint64_t>(std::max<std::int64_t>(1, input.vocab));
  const auto rows = static_cast<std::int64_t>(cap / 16 / words);
  Sharing sharing;
  sharing.sequences = std::clamp<std::int64_t>(std::min(tokens / kUsualTokens, rows), 1, kMostSequences);
  const std::int64_t most = sharing.sequences * std::min(input.context_tokens, kMostTokens);
  sharing.kv_tokens = std::max<std::int64_t>(1, std::min(tokens, most));
  return sharing;
}

}  // namespace millrace::engine
