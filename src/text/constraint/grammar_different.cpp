#include <algorithm>
#include <set>
#include <unordered_set>

#include "text/constraint/grammar.h"

namespace millrace::text {

using EdgeKind = GrammarEdge::Kind;

namespace {

constexpr std::uint32_t kMostSteps = 20'000'000;  // of all that is looked at here: a second or so

}  // namespace

bool GrammarBuilder::step() {
  if (++steps_ > kMostSteps) stopped_ = true;
  return go_on();
}

/// The states that edges lead to, those of called rules with them.
std::vector<StateId> GrammarBuilder::reached_from(StateId state, bool taking_nothing) {
  std::vector<StateId> reached{state};
  std::unordered_set<StateId> seen{state};
  const auto reach = [&](StateId to) {
    if (seen.insert(to).second) reached.push_back(to);
  };
  for (std::size_t i = 0; i < reached.size() && step(); ++i)
    for (const GrammarEdge& edge : grammar_.edges(reached[i])) {
      if (edge.kind == EdgeKind::nothing || !taking_nothing) reach(edge.to);
      if (edge.kind == EdgeKind::call && !taking_nothing) reach(grammar_.starts_[edge.rule]);
    }
  return reached;
}

/// A ring in which something is taken makes texts of any length. REQUIRES: no dead ends, no left recursion.
bool GrammarBuilder::is_endless(RuleId rule, const std::vector<std::uint32_t>& components) {
  for (const StateId state : reached_from(grammar_.starts_[rule], false))
    for (const GrammarEdge& edge : grammar_.edges(state)) {
      if (edge.kind == EdgeKind::nothing) continue;
      if (components[state] == components[edge.to]) return true;
      if (edge.kind == EdgeKind::call && components[state] == components[grammar_.starts_[edge.rule]]) return true;
    }
  return false;
}

/// How many texts a rule has, up to `most`: walks through them. Those within, which have to differ themselves, may
/// repeat here. REQUIRES: no dead ends, no left recursion.
std::uint32_t GrammarBuilder::count_texts(RuleId rule, std::uint32_t most,
                                          const std::vector<std::uint32_t>& components) {
  if (is_endless(rule, components)) return most;
  using Place = std::vector<StateId>;  // those that wait, then the state
  struct Set {
    std::set<Place> places;
    bool ends = false;
  };
  const auto close = [&](Set& set) {
    std::vector<Place> open(set.places.begin(), set.places.end());
    while (!open.empty() && step()) {
      Place place = std::move(open.back());
      open.pop_back();
      const StateId state = place.back();
      place.pop_back();
      const auto reach = [&](Place to) {
        if (set.places.insert(to).second) open.push_back(std::move(to));
      };
      if (grammar_.ends_rule(state)) {
        set.ends = set.ends || place.empty();
        if (!place.empty()) reach(place);
      }
      for (const GrammarEdge& edge : grammar_.edges(state)) {
        if (edge.kind == EdgeKind::bytes) continue;
        Place to = place;
        to.push_back(edge.to);
        if (edge.kind == EdgeKind::call) to.push_back(grammar_.starts_[edge.rule]);
        reach(std::move(to));
      }
    }
  };
  std::vector<Set> open(1);
  open[0].places.insert({grammar_.starts_[rule]});
  std::uint32_t count = 0;
  while (!open.empty() && count < most && go_on()) {
    Set set = std::move(open.back());
    open.pop_back();
    close(set);
    count += set.ends ? 1 : 0;
    for (int byte = 0; byte < 256; ++byte) {
      Set next;
      for (const Place& place : set.places)
        for (const GrammarEdge& edge : grammar_.edges(place.back())) {
          if (edge.kind != EdgeKind::bytes || byte < edge.low || edge.high < byte) continue;
          Place to = place;
          to.back() = edge.to;
          next.places.insert(std::move(to));
        }
      if (!next.places.empty()) open.push_back(std::move(next));
    }
  }
  return count;
}

/// What has to come several times, each time differently, is there: whoever has begun can always end.
Status GrammarBuilder::check_different() {
  if (wanted_.empty()) return {};
  const std::vector<std::uint32_t> rings = components({});
  for (const auto& [from, least] : wanted_) {
    std::set<RuleId> rules;
    for (const StateId state : reached_from(from, true))
      for (const GrammarEdge& edge : grammar_.edges(state))
        if (edge.differs) rules.insert(edge.rule);
    std::uint32_t count = 0;
    for (const RuleId rule : rules) {
      count = std::min(least, count + count_texts(rule, least, rings));
      // As many of what differs within, and there are enough texts though nothing repeats in them.
      for (const StateId state : reached_from(grammar_.starts_[rule], false))
        for (const GrammarEdge& edge : grammar_.edges(state))
          if (edge.differs && count_texts(edge.rule, least, rings) < least)
            return error(Code::unsupported,
                         "{} lists or objects that differ are wanted, and what is in them has to differ, too, and has "
                         "few values; leave out minItems or uniqueItems of one of them",
                         least);
    }
    if (!rules.empty() && count < least && !full())
      return error(Code::invalid_argument, "{} items or names that differ are wanted, and there are only {}", least,
                   count);
  }
  return full() ? error(cancelled_ ? Code::cancelled : Code::invalid_argument, "the schema is too large") : Status();
}

}  // namespace millrace::text
