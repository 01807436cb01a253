#include "text/constraint/matcher.h"

#include <algorithm>

#include "text/constraint/token_bits.h"

namespace millrace::text {

using EdgeKind = GrammarEdge::Kind;

namespace {

constexpr std::uint32_t kMostDepth = 200;         // calls within calls: what nests deeper is not begun
constexpr std::size_t kMostPlaces = 4096;         // at once
constexpr std::size_t kMostLocals = 4096;         // 1 KiB each
constexpr std::uint64_t kKnownBytes = 16u << 20;  // masks that are kept
constexpr std::uint64_t kMostWork = 200'000'000;  // steps a mask or a token, about a second
constexpr std::uint64_t kMemoryWork = 10'000;     // what a new set costs, so that memory is bounded, too
constexpr std::size_t kMostStacks = 1u << 20;
constexpr std::uint64_t kMostWritten = 16u << 20;  // of texts that have to differ
constexpr std::uint32_t kDiffers = 1u << 31;       // beside a state that waits: more than any state

}  // namespace

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : grammar_(std::move(grammar)), trie_(std::move(trie)) {
  stacks_.emplace_back();
  work_left_ = kMostWork;
  now_.places.push_back({grammar_->start(grammar_->root()), 0});
  now_.ends = close(now_.places);
  begins_crowded_ = crowded_;
}

Matcher Matcher::copy() const {
  Matcher other(grammar_, trie_);
  other.stacks_ = stacks_;
  other.stack_ids_ = stack_ids_;
  other.now_ = now_;
  other.now_.written = now_.written.deep_copy();
  return other;
}

bool Matcher::spend(std::uint64_t work) {
  work_left_ = work_left_ > work ? work_left_ - work : 0;
  return work_left_ > 0;
}

Status Matcher::too_much() const {
  if (!crowded_) return error(Code::invalid_argument, "the asked-for form is too ambiguous to follow; make it simpler");
  return error(Code::invalid_argument,
               "the asked-for form leaves more than {} ways open at once; write those that begin alike with one "
               "beginning",
               kMostPlaces);
}

/// The depth goes with what waits: it needs no place in the key.
Matcher::StackId Matcher::push(StateId waits, StackId below, WrittenTexts::Depth differs) {
  const std::uint64_t key = (std::uint64_t{differs != 0 ? waits | kDiffers : waits} << 32) | below;
  const auto [found, fresh] = stack_ids_.try_emplace(key, static_cast<StackId>(stacks_.size()));
  if (fresh) {
    stacks_.push_back({waits, below, below == 0 ? 1 : stacks_[below].height + 1, differs});
    spend(kMemoryWork / 16);
  }
  return found->second;
}

/// Follows every edge that takes no byte; keeps the places that take one, sorted. True if the stack's bottom is
/// reached: the rule that the places began in may end. `differing`: texts may not repeat what was written there.
bool Matcher::close(std::vector<Place>& places, Moment* differing) {
  std::vector<Place> open = std::move(places), seen = open;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  open = seen;
  places.clear();
  bool ends = false;
  const auto reach = [&](Place place) {
    const auto at = std::lower_bound(seen.begin(), seen.end(), place);
    if (at != seen.end() && *at == place) return;
    if (seen.size() >= kMostPlaces) {
      crowded_ = true;
      work_left_ = 0;
      return;
    }
    seen.insert(at, place);
    open.push_back(place);
  };
  while (!open.empty() && spend(1)) {
    const Place place = open.back();
    open.pop_back();
    if (grammar_->ends_rule(place.state)) {
      const StackNode below = stacks_[place.stack];
      if (place.stack == 0) {
        ends = true;
      } else if (differing != nullptr && below.differs != 0 && differing->written.has_come(below.differs)) {
        differing->refused = true;
      } else {
        reach({below.waits, below.below});
      }
    }
    bool takes_byte = false;
    for (const GrammarEdge& edge : grammar_->edges(place.state)) {
      if (edge.kind == EdgeKind::bytes) takes_byte = true;
      if (edge.kind == EdgeKind::nothing) reach({edge.to, place.stack});
      if (edge.kind != EdgeKind::call) continue;
      if (edge.last) {
        reach({grammar_->start(edge.rule), place.stack});
      } else if (place.stack == 0 || stacks_[place.stack].height < kMostDepth) {
        const bool differs = edge.differs && differing != nullptr;
        if (differs) differing->written.mark();
        reach({grammar_->start(edge.rule), push(edge.to, place.stack, differs ? differing->written.depth() : 0)});
      }
    }
    if (takes_byte) places.push_back(place);
  }
  std::sort(places.begin(), places.end());
  return ends;
}

/// Where a byte leads, not closed.
std::vector<Matcher::Place> Matcher::after(const std::vector<Place>& places, std::uint8_t byte) const {
  std::vector<Place> next;
  for (const Place& place : places)
    for (const GrammarEdge& edge : grammar_->edges(place.state))
      if (edge.kind == EdgeKind::bytes && edge.low <= byte && byte <= edge.high) next.push_back({edge.to, place.stack});
  return next;
}

Status Matcher::take(std::string_view bytes) {
  if (begins_crowded_) return too_much();
  work_left_ = kMostWork;
  crowded_ = false;
  if (now_.written.bytes() > kMostWritten)
    return error(Code::invalid_argument, "the items that have to differ are more than {} MiB", kMostWritten >> 20);
  Moment moment = now_;
  for (const char c : bytes) {
    const auto byte = static_cast<std::uint8_t>(c);
    std::vector<Place> next = after(moment.places, byte);
    if (next.empty()) return error(Code::invalid_argument, "the text leaves the asked-for form");
    advance(moment, std::move(next), byte);
    if (work_left_ == 0) return too_much();
    if (!moment.places.empty() || moment.ends) continue;
    if (moment.refused) return error(Code::invalid_argument, "the text repeats what the asked-for form has once");
    return error(Code::invalid_argument, "the answer nests more than {} deep in the asked-for form", kMostDepth);
  }
  now_ = std::move(moment);
  now_.refused = false;
  now_.written.keep();
  if (stacks_.size() > kMostStacks) forget();
  return {};
}

std::uint64_t Matcher::bytes() const {
  constexpr std::uint64_t kMapEntry = 64;  // a node of a hash map with its place in the table, about
  const std::uint64_t entries = stack_ids_.size() + 2 * local_ids_.size() + local_starts_.size() +
                                known_.size();  // local_ids_ hold a vector each
  return learned_bytes_ + stacks_.capacity() * sizeof(StackNode) + now_.places.capacity() * sizeof(Place) +
         now_.written.bytes() + locals_.capacity() * sizeof(Local) + entries * kMapEntry;
}

/// Keeps the stacks that the places stand on; everything that was learned goes.
void Matcher::forget() {
  const std::vector<StackNode> old = std::move(stacks_);
  stacks_.assign(1, {});
  stack_ids_.clear();
  locals_.clear();
  local_ids_.clear();
  local_starts_.clear();
  known_.clear();
  learned_bytes_ = 0;
  for (Place& place : now_.places) {
    std::vector<StackNode> waiting;
    for (StackId at = place.stack; at != 0; at = old[at].below) waiting.push_back(old[at]);
    place.stack = 0;
    for (auto node = waiting.rbegin(); node != waiting.rend(); ++node)
      place.stack = push(node->waits, place.stack, node->differs);
  }
}

/// The index of a closed set; -2 for the empty one that ends nowhere. REQUIRES: places not closed yet.
std::int32_t Matcher::local_of(std::vector<Place> places) {
  const bool ends = close(places);
  if (places.empty() && !ends) return kDead;
  std::uint64_t hash = ends ? 0x9e3779b97f4a7c15u : 0;
  for (const Place& place : places) hash = (hash ^ ((std::uint64_t{place.state} << 32) | place.stack)) * 0x100000001b3u;
  auto& same_hash = local_ids_[hash];
  for (const std::int32_t id : same_hash) {
    const Local& local = locals_[static_cast<std::size_t>(id)];
    if (local.ends == ends && local.places == places) return id;
  }
  const auto id = static_cast<std::int32_t>(locals_.size());
  same_hash.push_back(id);
  Local local;
  local.places = std::move(places);
  local.ends = ends;
  local.next = std::make_unique<std::int32_t[]>(256);
  std::fill_n(local.next.get(), 256, kUnknown);
  learned_bytes_ += local.places.capacity() * sizeof(Place) + 256 * sizeof(std::int32_t);
  locals_.push_back(std::move(local));
  spend(kMemoryWork);
  return id;
}

std::int32_t Matcher::local_start(StateId state) {
  const auto [found, fresh] = local_starts_.try_emplace(state, kUnknown);
  if (!fresh) return found->second;
  const std::int32_t local = local_of({{state, 0}});
  return local_starts_[state] = local;
}

std::int32_t Matcher::step(std::int32_t local, std::uint8_t byte) {
  const std::int32_t learned = locals_[static_cast<std::size_t>(local)].next[byte];
  if (learned != kUnknown) return learned;
  const auto& places = locals_[static_cast<std::size_t>(local)].places;
  std::vector<Place> next = after(places, byte);
  spend(places.size());
  const std::int32_t result = next.empty() ? kDead : local_of(std::move(next));
  locals_[static_cast<std::size_t>(local)].next[byte] = result;
  return result;
}

/// Visits what lies below a node of the trie, as far as the grammar goes along.
template <typename OnTokens, typename OnEnd>
void Matcher::walk(std::uint32_t from, std::int32_t local, OnTokens on_tokens, OnEnd on_end) {
  const auto& nodes = trie_->nodes();
  const std::uint32_t base = nodes[from].depth, end = nodes[from].after;
  std::vector<std::int32_t> path(trie_->longest_token() + 1, kDead);
  path[0] = local;
  for (std::uint32_t at = from + 1; at < end;) {
    const TokenTrie::Node& node = nodes[at];
    const std::int32_t here = step(path[node.depth - base - 1], node.byte);
    if (here == kDead) {
      at = node.after;
      continue;
    }
    path[node.depth - base] = here;
    on_tokens(node);
    if (locals_[static_cast<std::size_t>(here)].ends && node.after > at + 1) on_end(at);
    if (!spend(1)) return;
    ++at;
  }
}

void Matcher::set_tokens(const TokenTrie::Node& node, std::span<std::uint32_t> bits) const {
  for (const TokenId id : trie_->tokens_at(node)) allow(bits, id);
}

const Matcher::Known* Matcher::known(StateId state) {
  state = grammar_->twin(state, trie_->longest_token());
  if (const auto found = known_.find(state); found != known_.end()) return &found->second;
  Known fresh;
  fresh.bits.assign((static_cast<std::size_t>(trie_->vocab_size()) + 31) / 32, 0);
  const std::int32_t start = local_start(state);
  if (start != kDead) {
    fresh.ends_at_once = locals_[static_cast<std::size_t>(start)].ends;
    walk(
        0, start, [&](const TokenTrie::Node& node) { set_tokens(node, fresh.bits); },
        [&](std::uint32_t node) { fresh.end_nodes.push_back(node); });
  }
  learned_bytes_ += (fresh.bits.capacity() + fresh.end_nodes.capacity()) * sizeof(std::uint32_t);
  return &known_.emplace(state, std::move(fresh)).first->second;
}

/// The tokens below a node of the trie that go on from a place.
void Matcher::add_below(std::uint32_t node, Place place, std::span<std::uint32_t> bits) {
  const std::int32_t start = local_start(grammar_->twin(place.state, trie_->longest_token()));
  if (start == kDead || work_left_ == 0) return;
  const bool waits = place.stack != 0;
  const Place below = waits ? Place{stacks_[place.stack].waits, stacks_[place.stack].below} : Place{};
  std::vector<std::uint32_t> end_nodes;
  if (locals_[static_cast<std::size_t>(start)].ends) end_nodes.push_back(node);
  walk(
      node, start, [&](const TokenTrie::Node& each) { set_tokens(each, bits); },
      [&](std::uint32_t each) { end_nodes.push_back(each); });
  if (!waits) return;
  for (const std::uint32_t each : end_nodes) add_below(each, below, bits);
}

void Matcher::add_place(Place place, std::span<std::uint32_t> bits) {
  while (work_left_ > 0) {
    const Known* const here = known(place.state);
    for (std::size_t i = 0; i < here->bits.size(); ++i) bits[i] |= here->bits[i];
    if (place.stack == 0) return;
    const Place below{stacks_[place.stack].waits, stacks_[place.stack].below};
    const bool goes_on = here->ends_at_once;
    const std::vector<std::uint32_t> end_nodes = here->end_nodes;
    for (const std::uint32_t node : end_nodes) add_below(node, below, bits);
    if (!goes_on) return;
    place = below;
  }
}

Status Matcher::add_mask(std::span<std::uint32_t> bits) {
  if (begins_crowded_) return too_much();
  work_left_ = kMostWork;
  crowded_ = false;
  const std::uint64_t known_bytes = known_.size() * static_cast<std::uint64_t>(trie_->vocab_size()) / 8;
  if (locals_.size() > kMostLocals || known_bytes > kKnownBytes) forget();
  for (const Place& place : now_.places) add_place(place, bits);
  if (grammar_->has_different()) drop_repeats(bits);
  if (work_left_ > 0) return {};
  forget();  // what was learned is not whole
  return too_much();
}

}  // namespace millrace::text
