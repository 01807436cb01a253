#include "text/constraint/grammar.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

namespace millrace::text {

using EdgeKind = GrammarEdge::Kind;

namespace {

// What a state and an edge cost while building, with the room that growing vectors and finish() need.
constexpr std::uint64_t kStateBytes = 24, kEdgeBytes = 64;

}  // namespace

std::uint64_t Grammar::bytes() const {
  return edges_.capacity() * sizeof(GrammarEdge) + begins_.capacity() * sizeof(std::uint32_t) + ends_.size() / 8 +
         starts_.capacity() * sizeof(StateId) + rows_.capacity() * sizeof(GrammarRow);
}

StateId Grammar::twin(StateId state, std::uint32_t look_ahead) const {
  auto row = std::upper_bound(rows_.begin(), rows_.end(), state,
                              [](StateId id, const GrammarRow& each) { return id < each.begin; });
  if (row == rows_.begin()) return state;
  --row;
  const std::uint32_t taken = state - row->begin;
  if (taken > row->most || row->most - taken <= look_ahead) return state;
  if (taken >= row->least) return row->begin + row->least;
  return row->least - taken > look_ahead ? row->begin : state;
}

GrammarBuilder::GrammarBuilder(const BuildLimits& limits) : limits_(limits), memory_(limits.bytes, limits.grant) {
  new_state();  // stands for all that would come past the limits, too
}

bool GrammarBuilder::charge(std::uint64_t bytes) {
  if (stopped_ || !memory_.grow(bytes)) {
    stopped_ = true;
    return false;
  }
  return true;
}

bool GrammarBuilder::go_on() {
  if ((++asked_ & 0xFFF) == 0 && memory_.cancelled()) stopped_ = cancelled_ = true;
  return !stopped_;
}

RuleId GrammarBuilder::new_rule() {
  if (!grammar_.starts_.empty() && !charge(kStateBytes)) return 0;
  grammar_.starts_.push_back(0);
  finals_.push_back(0);
  return static_cast<RuleId>(grammar_.starts_.size() - 1);
}

void GrammarBuilder::define(RuleId rule, Fragment body) {
  if (full()) return;
  grammar_.starts_[rule] = body.begin;
  // An end of its own: the body's end may be another rule's, too.
  finals_[rule] = new_state();
  nothing(body.end, finals_[rule]);
  if (!full()) grammar_.ends_[finals_[rule]] = true;
}

StateId GrammarBuilder::new_state() {
  if (heads_.size() >= limits_.states) stopped_ = true;
  if (!go_on() || !charge(kStateBytes)) return 0;
  heads_.push_back(kNone);
  grammar_.ends_.push_back(false);
  return static_cast<StateId>(heads_.size() - 1);
}

void GrammarBuilder::add(StateId from, const GrammarEdge& edge) {
  if (!go_on() || !charge(kEdgeBytes)) return;
  links_.push_back({edge, heads_[from]});
  heads_[from] = static_cast<std::uint32_t>(links_.size() - 1);
}

void GrammarBuilder::bytes(StateId from, std::uint8_t low, std::uint8_t high, StateId to) {
  add(from, {EdgeKind::bytes, low, high, false, false, 0, to});
}

void GrammarBuilder::nothing(StateId from, StateId to) {
  if (from != to) add(from, {EdgeKind::nothing, 0, 0, false, false, 0, to});
}

void GrammarBuilder::call(StateId from, RuleId rule, StateId to) {
  add(from, {EdgeKind::call, 0, 0, false, false, rule, to});
}

void GrammarBuilder::call_different(StateId from, RuleId rule, StateId to) {
  add(from, {EdgeKind::call, 0, 0, false, true, rule, to});
  grammar_.has_different_ = true;
}

void GrammarBuilder::want_different(StateId from, std::uint32_t least) {
  if (least > 1 && charge(sizeof(wanted_[0]))) wanted_.emplace_back(from, least);
}

Fragment GrammarBuilder::empty() {
  const StateId state = new_state();
  return {state, state};
}

Fragment GrammarBuilder::literal(std::string_view text) {
  Fragment whole = empty();
  for (const char c : text) {
    const StateId next = new_state();
    bytes(whole.end, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), next);
    whole.end = next;
  }
  return whole;
}

Fragment GrammarBuilder::byte_range(std::uint8_t low, std::uint8_t high) {
  const Fragment whole{new_state(), new_state()};
  bytes(whole.begin, low, high, whole.end);
  return whole;
}

Fragment GrammarBuilder::rule(RuleId rule) {
  const Fragment whole{new_state(), new_state()};
  call(whole.begin, rule, whole.end);
  return whole;
}

Fragment GrammarBuilder::different(RuleId rule) {
  const Fragment whole{new_state(), new_state()};
  call_different(whole.begin, rule, whole.end);
  return whole;
}

Fragment GrammarBuilder::sequence(Fragment a, Fragment b) {
  nothing(a.end, b.begin);
  return {a.begin, b.end};
}

Fragment GrammarBuilder::either(const std::vector<Fragment>& options) {
  const Fragment whole{new_state(), new_state()};
  for (const Fragment& option : options) {
    nothing(whole.begin, option.begin);
    nothing(option.end, whole.end);
  }
  return whole;
}

Fragment GrammarBuilder::either_behind(const std::vector<std::pair<std::string, Fragment>>& options) {
  constexpr std::uint64_t entry = 64;  // of the map
  const Fragment whole{new_state(), new_state()};
  std::unordered_map<std::uint64_t, StateId> known;  // by state and letter
  for (const auto& [text, then] : options) {
    StateId at = whole.begin;
    for (const char c : text) {
      const auto letter = static_cast<std::uint8_t>(c);
      const auto [next, fresh] = known.try_emplace((std::uint64_t{at} << 8) | letter, 0);
      if (fresh) {
        if (!charge(entry)) break;
        next->second = new_state();
        bytes(at, letter, letter, next->second);
      }
      at = next->second;
    }
    if (full()) break;
    nothing(at, then.begin);
    nothing(then.end, whole.end);
  }
  discharge(full() ? 0 : known.size() * entry);
  return whole;
}

Fragment GrammarBuilder::optional(Fragment a) { return either({a, empty()}); }

Fragment GrammarBuilder::repeat(std::uint32_t least, std::uint32_t most, const std::function<Fragment()>& make) {
  Fragment whole = empty();
  for (std::uint32_t i = 0; i < least && !full(); ++i) whole = sequence(whole, make());
  if (most == UINT32_MAX) {
    const StateId loop = new_state();
    const Fragment again = make();
    nothing(whole.end, loop);
    nothing(loop, again.begin);
    nothing(again.end, loop);
    return {whole.begin, loop};
  }
  const StateId end = new_state();
  for (std::uint32_t i = least; i < most && !full(); ++i) {
    nothing(whole.end, end);
    whole = sequence(whole, make());
  }
  nothing(whole.end, end);
  return {whole.begin, end};
}

Fragment GrammarBuilder::one_of(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  if (texts.empty()) return either({});
  // The states of the last text, from the root on, that may still get more edges. What is behind them is final, and one
  // state stands for all that lead to the same ends.
  struct Open {
    std::string edges;  // five bytes each: a letter and its state
    bool whole = false;
  };
  std::vector<Open> path(1);
  std::unordered_map<std::string, StateId> known;
  std::uint64_t charged = 0;
  const StateId end = new_state();
  const auto close_last = [&] {
    Open& last = path.back();
    std::string key = last.edges + (last.whole ? "." : "");
    auto [found, fresh] = known.try_emplace(std::move(key), 0);
    if (fresh) {
      found->second = new_state();
      for (std::size_t i = 0; i < last.edges.size(); i += 5) {
        StateId to = 0;
        std::memcpy(&to, last.edges.data() + i + 1, sizeof(to));
        const auto letter = static_cast<std::uint8_t>(last.edges[i]);
        bytes(found->second, letter, letter, to);
      }
      if (last.whole) nothing(found->second, end);
      const std::uint64_t cost = 128 + found->first.capacity();
      if (charge(cost)) charged += cost;
    }
    const StateId state = found->second;
    path.pop_back();
    if (!path.empty()) path.back().edges.append(reinterpret_cast<const char*>(&state), sizeof(state));
    return state;
  };
  std::string_view before;
  for (const std::string& text : texts) {
    if (full()) break;
    const std::size_t shared = static_cast<std::size_t>(
        std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first - before.begin());
    while (path.size() > shared + 1) close_last();
    for (const char letter : std::string_view(text).substr(shared)) {
      path.back().edges += letter;
      path.emplace_back();
    }
    path.back().whole = true;
    before = text;
  }
  StateId begin = 0;
  while (!path.empty()) begin = close_last();
  discharge(charged);
  return {begin, end};
}

/// From a list of edges by state to one array.
void GrammarBuilder::lay_out() {
  grammar_.begins_.assign(1, 0);
  grammar_.begins_.reserve(heads_.size() + 1);
  grammar_.edges_.clear();
  grammar_.edges_.reserve(links_.size());
  for (const std::uint32_t head : heads_) {
    for (std::uint32_t at = head; at != kNone; at = links_[at].next) grammar_.edges_.push_back(links_[at].edge);
    grammar_.begins_.push_back(static_cast<std::uint32_t>(grammar_.edges_.size()));
  }
  links_ = {};
  heads_ = {};
}

/// `found`, and the states from which edges that count lead to them: of a call, both from its rule's beginning and from
/// where it returns. An edge is looked at when its target joins them, and a call also when its rule's beginning does.
/// REQUIRES: laid out.
template <typename Counts>
std::vector<bool> GrammarBuilder::leading_to(std::vector<bool> found, Counts counts) const {
  const std::size_t states = grammar_.state_count();
  struct Back {
    StateId from;
    std::uint32_t edge;
  };
  std::vector<std::uint32_t> begins(states + 1, 0);
  const auto each_back = [&](const auto& visit) {
    for (StateId from = 0; from < states; ++from)
      for (std::uint32_t i = grammar_.begins_[from]; i < grammar_.begins_[from + 1]; ++i) {
        const GrammarEdge& edge = grammar_.edges_[i];
        if (!counts(edge)) continue;
        visit(edge.to, Back{from, i});
        if (edge.kind == EdgeKind::call) visit(grammar_.starts_[edge.rule], Back{from, i});
      }
  };
  each_back([&](StateId to, Back) { ++begins[to]; });
  std::uint32_t total = 0;
  for (std::uint32_t& begin : begins) total += std::exchange(begin, total);
  std::vector<Back> backs(total);
  std::vector<std::uint32_t> next(begins.begin(), begins.end());
  each_back([&](StateId to, Back back) { backs[next[to]++] = back; });
  std::vector<StateId> open;
  for (StateId state = 0; state < states; ++state)
    if (found[state]) open.push_back(state);
  while (!open.empty()) {
    const StateId state = open.back();
    open.pop_back();
    for (std::uint32_t i = begins[state]; i < begins[state + 1]; ++i) {
      const GrammarEdge& edge = grammar_.edges_[backs[i].edge];
      const bool leads = found[edge.to] && (edge.kind != EdgeKind::call || found[grammar_.starts_[edge.rule]]);
      if (!leads || found[backs[i].from]) continue;
      found[backs[i].from] = true;
      open.push_back(backs[i].from);
    }
  }
  return found;
}

/// A state lives if some finite text leads from it to its rule's end; edges to others go.
void GrammarBuilder::drop_dead_ends() {
  const std::vector<bool> lives = leading_to(grammar_.ends_, [](const GrammarEdge&) { return true; });
  std::uint32_t kept = 0;
  for (StateId state = 0; state < lives.size(); ++state) {
    const std::uint32_t begin = std::exchange(grammar_.begins_[state], kept);
    for (std::uint32_t i = begin; i < grammar_.begins_[state + 1]; ++i) {
      const GrammarEdge edge = grammar_.edges_[i];
      if (lives[state] && lives[edge.to] && (edge.kind != EdgeKind::call || lives[grammar_.starts_[edge.rule]]))
        grammar_.edges_[kept++] = edge;
    }
  }
  grammar_.begins_.back() = kept;
  grammar_.edges_.resize(kept);
}

/// A call with nothing behind it but its rule's end needs no place to return to: rules that end with themselves, as
/// lists are often written, do not nest.
void GrammarBuilder::mark_last_calls() {
  std::vector<bool> more(grammar_.state_count(), false);
  for (StateId state = 0; state < more.size(); ++state)
    for (const GrammarEdge& edge : grammar_.edges(state)) more[state] = more[state] || edge.kind != EdgeKind::nothing;
  more = leading_to(std::move(more), [](const GrammarEdge& edge) { return edge.kind == EdgeKind::nothing; });
  for (GrammarEdge& edge : grammar_.edges_) edge.last = edge.kind == EdgeKind::call && !edge.differs && !more[edge.to];
}

/// By state: the ring of edges that it is in, by number. Edges of bytes count where calls may be empty all the same
/// (`may_be_empty` is not given); else no byte is taken on the way.
/// Source of the walk: Tarjan 1972, strongly connected components, with a stack of its own. REQUIRES: no dead ends.
std::vector<std::uint32_t> GrammarBuilder::components(const std::vector<bool>& may_be_empty) const {
  const bool all = may_be_empty.empty();
  const std::size_t states = grammar_.state_count();
  std::vector<std::uint32_t> order(states, 0), lowest(states, 0), component(states, 0);
  std::uint32_t visited = 0, components = 0;
  std::vector<StateId> in_work;
  struct Step {
    StateId state;
    std::uint32_t edge;
    bool into_rule;  // of a call: its rule's beginning was seen
  };
  std::vector<Step> path;
  const auto enter = [&](StateId state) {
    order[state] = lowest[state] = ++visited;
    in_work.push_back(state);
    path.push_back({state, grammar_.begins_[state], false});
  };
  const auto see = [&](StateId from, StateId to) {
    if (order[to] == 0) {
      enter(to);
    } else if (component[to] == 0) {
      lowest[from] = std::min(lowest[from], order[to]);
    }
  };
  for (StateId first = 0; first < states; ++first) {
    if (order[first] == 0) enter(first);
    while (!path.empty()) {
      Step& step = path.back();
      const StateId state = step.state;
      if (step.edge < grammar_.begins_[state + 1]) {
        const GrammarEdge& edge = grammar_.edges_[step.edge];
        const bool into_rule = edge.kind == EdgeKind::call && !step.into_rule;
        step.into_rule = into_rule;
        if (!into_rule) ++step.edge;
        if (into_rule) {
          see(state, grammar_.starts_[edge.rule]);
        } else if (all || edge.kind == EdgeKind::nothing ||
                   (edge.kind == EdgeKind::call && may_be_empty[grammar_.starts_[edge.rule]])) {
          see(state, edge.to);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) lowest[path.back().state] = std::min(lowest[path.back().state], lowest[state]);
      if (lowest[state] != order[state]) continue;
      ++components;
      for (StateId member = kNone; member != state;) {
        member = in_work.back();
        in_work.pop_back();
        component[member] = components;
      }
    }
  }
  return component;
}

/// No rule may come back to itself before a byte was taken: no ring of edges that take nothing goes through a rule's
/// beginning. REQUIRES: no dead ends.
Status GrammarBuilder::check_left_recursion() {
  const std::vector<std::uint32_t> component =
      components(leading_to(grammar_.ends_, [](const GrammarEdge& edge) { return edge.kind != EdgeKind::bytes; }));
  for (StateId from = 0; from < component.size(); ++from)
    for (const GrammarEdge& edge : grammar_.edges(from))
      if (edge.kind == EdgeKind::call && component[from] == component[grammar_.starts_[edge.rule]]) {
        at_fault_ = edge.rule;
        return error(Code::invalid_argument, "a part of the schema refers to itself without end");
      }
  return {};
}

Expected<std::shared_ptr<const Grammar>> GrammarBuilder::finish(RuleId root) {
  if (cancelled_ || memory_.cancelled()) return error(Code::cancelled, "the schema is no longer wanted");
  if (full()) return error(Code::invalid_argument, "the schema is too large; use smaller limits and fewer properties");
  grammar_.root_ = root;
  lay_out();
  drop_dead_ends();
  const StateId start = grammar_.starts_[root];
  if (!grammar_.ends_[start] && grammar_.edges(start).empty())
    return error(Code::invalid_argument, "no finite text fulfils the schema; look for contradictions in it");
  MR_RETURN_IF_ERROR(check_left_recursion());
  MR_RETURN_IF_ERROR(check_different());
  mark_last_calls();
  std::sort(grammar_.rows_.begin(), grammar_.rows_.end(),
            [](const GrammarRow& a, const GrammarRow& b) { return a.begin < b.begin; });
  grammar_.edges_.shrink_to_fit();
  return std::make_shared<const Grammar>(std::move(grammar_));
}

}  // namespace millrace::text
