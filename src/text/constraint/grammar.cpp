#include "text/constraint/grammar.h"

#include <algorithm>

namespace millrace::text {

using Kind = GrammarEdge::Kind;

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

RuleId GrammarBuilder::new_rule() {
  grammar_.starts_.push_back(0);
  finals_.push_back(0);
  return static_cast<RuleId>(grammar_.starts_.size() - 1);
}

void GrammarBuilder::define(RuleId rule, Fragment body) {
  grammar_.starts_[rule] = body.begin;
  // An end of its own: the body's end may be another rule's, too.
  finals_[rule] = new_state();
  nothing(body.end, finals_[rule]);
  grammar_.ends_[finals_[rule]] = true;
}

StateId GrammarBuilder::new_state() {
  // Past the limit one state stands for all that would come; finish() refuses the whole.
  if (full()) return static_cast<StateId>(grammar_.states_.size() - 1);
  grammar_.states_.emplace_back();
  grammar_.ends_.push_back(false);
  return static_cast<StateId>(grammar_.states_.size() - 1);
}

void GrammarBuilder::bytes(StateId from, std::uint8_t low, std::uint8_t high, StateId to) {
  if (!full()) grammar_.states_[from].push_back({Kind::bytes, low, high, 0, to});
}

void GrammarBuilder::nothing(StateId from, StateId to) {
  if (!full() && from != to) grammar_.states_[from].push_back({Kind::nothing, 0, 0, 0, to});
}

void GrammarBuilder::call(StateId from, RuleId rule, StateId to) {
  if (!full()) grammar_.states_[from].push_back({Kind::call, 0, 0, rule, to});
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

/// A state lives if some finite text leads from it to its rule's end; edges to others go.
void GrammarBuilder::drop_dead_ends() {
  std::vector<bool> lives = grammar_.ends_;
  const auto leads_on = [&](const GrammarEdge& edge) {
    return lives[edge.to] && (edge.kind != Kind::call || lives[grammar_.starts_[edge.rule]]);
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (StateId state = static_cast<StateId>(lives.size()); state-- > 0;) {
      const auto& edges = grammar_.states_[state];
      if (lives[state] || std::none_of(edges.begin(), edges.end(), leads_on)) continue;
      lives[state] = changed = true;
    }
  }
  for (auto& edges : grammar_.states_) std::erase_if(edges, [&](const GrammarEdge& edge) { return !leads_on(edge); });
}

/// No rule may come back to itself before a byte was taken. REQUIRES: no dead ends.
Status GrammarBuilder::check_left_recursion() const {
  const std::size_t rules = grammar_.starts_.size();
  // Rules that may be empty, found until nothing changes; then a walk over "begins with", with three colours.
  std::vector<bool> may_be_empty(rules, false);
  std::vector<std::vector<RuleId>> begins_with(rules);
  const auto explore = [&](RuleId rule) {
    std::vector<bool> seen(grammar_.states_.size(), false);
    std::vector<StateId> open{grammar_.starts_[rule]};
    seen[open[0]] = true;
    begins_with[rule].clear();
    bool empty = false;
    while (!open.empty()) {
      const StateId state = open.back();
      open.pop_back();
      empty = empty || grammar_.ends_[state];
      for (const GrammarEdge& edge : grammar_.states_[state]) {
        if (edge.kind == Kind::bytes) continue;
        if (edge.kind == Kind::call) begins_with[rule].push_back(edge.rule);
        if ((edge.kind == Kind::nothing || may_be_empty[edge.rule]) && !seen[edge.to]) {
          seen[edge.to] = true;
          open.push_back(edge.to);
        }
      }
    }
    return empty;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (RuleId rule = 0; rule < rules; ++rule)
      if (explore(rule) && !may_be_empty[rule]) may_be_empty[rule] = changed = true;
  }
  std::vector<char> colour(rules, 0);
  for (RuleId first = 0; first < rules; ++first) {
    std::vector<std::pair<RuleId, std::size_t>> path;
    if (colour[first] == 0) path.emplace_back(first, 0);
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      colour[rule] = 1;
      if (next == begins_with[rule].size()) {
        colour[rule] = 2;
        path.pop_back();
        continue;
      }
      const RuleId child = begins_with[rule][next++];
      if (colour[child] == 1) return error(Code::invalid_argument, "a part of the schema refers to itself without end");
      if (colour[child] == 0) path.emplace_back(child, 0);
    }
  }
  return {};
}

Expected<std::shared_ptr<const Grammar>> GrammarBuilder::finish(RuleId root) {
  if (full()) return error(Code::invalid_argument, "the schema is too large; use smaller limits and fewer properties");
  grammar_.root_ = root;
  drop_dead_ends();
  if (!grammar_.ends_[grammar_.starts_[root]] && grammar_.states_[grammar_.starts_[root]].empty())
    return error(Code::invalid_argument, "no finite text fulfils the schema; look for contradictions in it");
  MR_RETURN_IF_ERROR(check_left_recursion());
  std::sort(grammar_.rows_.begin(), grammar_.rows_.end(),
            [](const GrammarRow& a, const GrammarRow& b) { return a.begin < b.begin; });
  return std::make_shared<const Grammar>(std::move(grammar_));
}

}  // namespace millrace::text
