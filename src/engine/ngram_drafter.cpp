#include "engine/ngram_drafter.h"

#include <algorithm>
#include <bit>

namespace millrace::engine {

using text::TokenId;

namespace {

/// Of the `length` tokens before place `end`.
std::uint64_t hash_of(std::span<const TokenId> tokens, std::size_t end, int length) {
  std::uint64_t hash = 0;
  for (int i = length; i > 0; --i)
    hash = (hash ^ static_cast<std::uint32_t>(tokens[end - static_cast<std::size_t>(i)])) * 0x9e3779b97f4a7c15ull;
  return hash >> 32;
}

}  // namespace

/// Null: there is no memory for it.
NgramDrafter::Known* NgramDrafter::known(const DraftAsk& ask) {
  Known& known = requests_[ask.request];
  if (known.refused) return nullptr;
  if (!known.behind[0].empty()) return &known;
  const std::size_t slots =
      std::min(kMostSlots, std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(64, ask.expected))));
  auto granted = budget_.reserve("drafts", known.behind.size() * slots * sizeof(std::uint32_t));
  known.refused = !granted.ok();
  if (known.refused) return nullptr;
  known.memory = std::move(*granted);
  for (auto& table : known.behind) table.assign(slots, 0);
  return &known;
}

/// A run's place is entered when the token behind it is known, so that no run finds itself.
void NgramDrafter::propose(Known& known, DraftAsk& ask) {
  const std::span<const TokenId> tokens = ask.tokens;
  const std::size_t mask = known.behind[0].size() - 1;
  for (; known.read < tokens.size(); ++known.read)
    for (int length = kShortest; length <= kLongest && static_cast<std::size_t>(length) <= known.read; ++length)
      known.behind[static_cast<std::size_t>(length - kShortest)][hash_of(tokens, known.read, length) & mask] =
          static_cast<std::uint32_t>(known.read);
  for (int length = kLongest; length >= kShortest; --length) {
    const auto run = static_cast<std::size_t>(length);
    if (tokens.size() < run) continue;
    const std::size_t place =
        known.behind[static_cast<std::size_t>(length - kShortest)][hash_of(tokens, tokens.size(), length) & mask];
    if (place < run ||
        !std::equal(tokens.end() - length, tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(place - run)))
      continue;
    ask.level = length - kShortest;
    // What came there may reach up to the end: it goes on with the guesses themselves then, as a text that repeats
    // does.
    for (std::size_t i = 0; i < static_cast<std::size_t>(ask.most); ++i) {
      const std::size_t from = place + i;
      const TokenId guess = from < tokens.size() ? tokens[from] : ask.guesses[from - tokens.size()];
      if (guess < 0) break;  // a picture's
      ask.guesses.push_back(guess);
    }
    return;
  }
}

Status NgramDrafter::propose(std::span<DraftAsk> asks, const std::function<bool()>& /*stop*/) {
  for (DraftAsk& ask : asks)
    if (Known* const found = known(ask); found != nullptr && ask.most > 0) propose(*found, ask);
  return {};
}

}  // namespace millrace::engine
