// The part of the matcher that keeps texts from coming again.
#include <algorithm>
#include <set>

#include "text/constraint/matcher.h"
#include "text/constraint/token_bits.h"

namespace millrace::text {

using EdgeKind = GrammarEdge::Kind;

namespace {

constexpr std::uint64_t kMomentWork = 100;  // what a copy of a moment costs, about

}  // namespace

/// `next`: after(moment.places, byte).
void Matcher::advance(Moment& moment, std::vector<Place> next, std::uint8_t byte) {
  if (!grammar_->has_different()) {
    moment.ends = close(next);
    moment.places = std::move(next);
    return;
  }
  moment.written.take(byte);
  moment.ends = close(next, &moment);
  moment.places = std::move(next);
  if (moment.written.is_free()) return;
  const std::size_t all = moment.places.size();
  std::erase_if(moment.places, [&](Place place) { return !leads_on(place, moment.written); });
  moment.refused = moment.refused || moment.places.size() != all;
}

/// The place is not within a text that has to differ, or a byte leads to where the text is none that came. `others`:
/// gets the bytes that lead elsewhere.
bool Matcher::leads_at_once(Place place, const WrittenTexts& written, std::bitset<256>& others) const {
  std::bitset<256> next;
  bool bound = written.is_before_text();
  if (bound)
    for (const char space : std::string_view(" \t\n\r")) next.set(static_cast<std::uint8_t>(space));
  for (StackId at = place.stack; at != 0; at = stacks_[at].below) {
    const WrittenTexts::Depth depth = stacks_[at].differs;
    if (depth == 0 || written.is_free(depth)) continue;
    bound = true;
    written.add_next_bytes(depth, next);
  }
  if (!bound) return true;
  next.set(',');  // another text may begin behind it, which is bound from its beginning
  for (const GrammarEdge& edge : grammar_->edges(place.state)) {
    if (edge.kind != EdgeKind::bytes) continue;
    for (std::size_t byte = edge.low; byte <= edge.high; ++byte) {
      if (!next[byte]) return true;
      others.set(byte);
    }
  }
  return false;
}

/// Whether some text goes on from here to where it differs from all that came. What is past a text's end needs no look:
/// there are as many different texts as the grammar asks for (GrammarBuilder::want_different).
bool Matcher::leads_on(Place place, const WrittenTexts& written) {
  std::bitset<256> first;
  if (leads_at_once(place, written, first)) return true;
  struct Open {
    Moment moment;
    std::size_t text;  // which was written, white space at its end aside
  };
  std::vector<Open> open(1);
  open[0] = {{{place}, written}, 0};
  std::size_t texts = 1;
  std::set<std::pair<std::size_t, std::vector<Place>>> after_space;  // many texts of it lead to the same
  while (!open.empty()) {
    const auto [moment, text] = std::move(open.back());
    open.pop_back();
    std::bitset<256> others;
    for (const Place& each : moment.places)
      if (leads_at_once(each, moment.written, others)) return true;
    for (std::size_t byte = 0; byte < others.size(); ++byte) {
      if (!others[byte]) continue;
      if (!spend(kMomentWork)) return true;  // ends in an error
      Moment then;
      then.written = moment.written;
      then.written.take(static_cast<std::uint8_t>(byte));
      then.places = after(moment.places, static_cast<std::uint8_t>(byte));
      if (close(then.places, &then)) return true;
      if (then.places.empty()) continue;
      const bool space = byte != ',' && then.written.is_before_text();
      if (space && !after_space.emplace(text, then.places).second) continue;
      open.push_back({std::move(then), space ? text : texts++});
    }
  }
  return false;
}

/// Takes away the tokens after which no place is left. Where no text is bound, those alone that hold a text's end and
/// the beginning of the next need a look: there is a comma in them.
void Matcher::drop_repeats(std::span<std::uint32_t> bits) {
  const auto& nodes = trie_->nodes();
  std::vector<Moment> path(trie_->longest_token() + 1);
  path[0] = now_;
  for (std::uint32_t at = 1; at < nodes.size();) {
    const TokenTrie::Node& node = nodes[at];
    const Moment& before = path[node.depth - 1u];
    const bool comma = before.written.in_string() ? node.comma_after_quote : node.comma;
    if (!comma && !before.refused && before.written.is_free()) {
      at = node.after;
      continue;
    }
    std::vector<Place> next = after(before.places, node.byte);
    Moment& here = path[node.depth];
    const bool leads = !next.empty();
    if (leads) {
      here = before;
      advance(here, std::move(next), node.byte);
      if (!spend(kMomentWork)) return;
    }
    if (leads && (!here.places.empty() || here.ends)) {
      ++at;
      continue;
    }
    for (std::uint32_t below = at; below < node.after; ++below)
      for (const TokenId id : trie_->tokens_at(nodes[below])) forbid(bits, id);
    at = node.after;
  }
}

}  // namespace millrace::text
