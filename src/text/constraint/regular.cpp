#include "text/constraint/regular.h"

#include <algorithm>
#include <tuple>

#include "text/utf8.h"

namespace millrace::text {
namespace {

constexpr char32_t kLastCharacter = 0x10FFFF;
constexpr std::size_t kMostStates = 60'000;
constexpr int kMostRegularDepth = 1000;  // of terms within terms, which are walked by recursion

Status too_many_states() {
  return error(Code::unsupported,
               "a string's pattern, format and length need more than {} states together; use smaller limits",
               kMostStates);
}

}  // namespace

CharacterRanges tidy(CharacterRanges ranges) {
  std::sort(ranges.begin(), ranges.end());
  CharacterRanges merged;
  for (const CharacterRange& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, range.second);
    } else {
      merged.push_back(range);
    }
  }
  CharacterRanges result;
  for (const auto& [low, high] : merged) {
    if (low < 0xD800) result.emplace_back(low, std::min<char32_t>(high, 0xD7FF));
    if (high > 0xDFFF) result.emplace_back(std::max<char32_t>(low, 0xE000), high);
  }
  return result;
}

CharacterRanges complement(const CharacterRanges& ranges) {
  CharacterRanges result;
  char32_t next = 0;
  for (const auto& [low, high] : tidy(ranges)) {
    if (low > next) result.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCharacter) result.emplace_back(next, kLastCharacter);
  return tidy(result);
}

RegularSets::RegularSets(GrammarBuilder& builder) : builder_(builder) {
  intern({Kind::nothing, 0, 0, {}, {}, false});
  intern({Kind::empty, 0, 0, {}, {}, true});
  const Set any = 3;  // made after kAll, which is its repeat
  intern({Kind::repeat, 0, UINT32_MAX, {any}, {}, true});
  intern({Kind::characters, 0, 0, {}, complement({}), false});
}

RegularSets::Set RegularSets::intern(Term term) {
  if (const auto known = ids_.find(term); known != ids_.end()) return known->second;
  const std::uint64_t cost =
      2 * (sizeof(Term) + term.parts.size() * sizeof(Set) + term.ranges.size() * sizeof(CharacterRange)) + 64;
  if (terms_.size() > 3 && !builder_.charge(cost)) return kNothing;
  const auto id = static_cast<Set>(terms_.size());
  terms_.push_back(term);
  ids_.emplace(std::move(term), id);
  return id;
}

RegularSets::Set RegularSets::characters(CharacterRanges ranges) {
  ranges = tidy(std::move(ranges));
  if (ranges.empty()) return kNothing;
  return intern({Kind::characters, 0, 0, {}, std::move(ranges), false});
}

RegularSets::Set RegularSets::literal(std::string_view utf8) {
  std::vector<char32_t> text;
  for (std::size_t at = 0; at < utf8.size();) {
    const Utf8Step step = next_utf8(utf8.substr(at));
    if (step.kind != Utf8Kind::character) return kNothing;  // no JSON string can be that
    text.push_back(decode_utf8(utf8.substr(at, step.bytes)));
    at += step.bytes;
  }
  Set whole = kEmptyText;
  for (auto c = text.rbegin(); c != text.rend() && !builder_.full(); ++c)
    whole = sequence(characters({{*c, *c}}), whole);
  return whole;
}

RegularSets::Set RegularSets::sequence(Set a, Set b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEmptyText) return b;
  if (b == kEmptyText || (a == kAll && b == kAll)) return a;
  // To the right, so that what is left of a sequence is a part of it.
  if (terms_[a].kind == Kind::sequence) {
    const Set first = terms_[a].parts[0], second = terms_[a].parts[1];
    return sequence(first, sequence(second, b));
  }
  return intern({Kind::sequence, 0, 0, {a, b}, {}, has_empty_text(a) && has_empty_text(b)});
}

/// Flat, sorted, without doubles, characters as one set; `zero` decides alone and `one` changes nothing.
RegularSets::Set RegularSets::combine(Kind kind, const std::vector<Set>& parts) {
  const bool joins = kind == Kind::either;
  const Set zero = joins ? kAll : kNothing, one = joins ? kNothing : kAll;
  std::vector<Set> flat;
  std::optional<CharacterRanges> shared;
  bool has_empty = !joins;
  for (const Set part : parts) {
    const Term& term = terms_[part];
    if (part == zero) return zero;
    if (part == one) continue;
    if (term.kind == kind) {
      flat.insert(flat.end(), term.parts.begin(), term.parts.end());
    } else {
      flat.push_back(part);
    }
  }
  std::erase_if(flat, [&](Set part) {
    const Term& term = terms_[part];
    has_empty = joins ? has_empty || term.has_empty : has_empty && term.has_empty;
    if (term.kind != Kind::characters) return false;
    if (!shared) {
      shared = term.ranges;
    } else if (joins) {
      shared->insert(shared->end(), term.ranges.begin(), term.ranges.end());
    } else {
      CharacterRanges others = complement(term.ranges);
      const CharacterRanges left = complement(*shared);
      others.insert(others.end(), left.begin(), left.end());
      shared = complement(others);
    }
    return true;
  });
  if (shared) flat.push_back(characters(std::move(*shared)));
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (!joins && flat.size() > 1) {  // sets whose characters or emptiness exclude each other
    if (flat[0] == kNothing) return kNothing;
    if (flat[0] == kEmptyText) return has_empty ? kEmptyText : kNothing;
  }
  if (joins) std::erase(flat, kNothing);
  if (flat.empty()) return one;
  if (flat.size() == 1) return flat[0];
  return intern({kind, 0, 0, std::move(flat), {}, has_empty});
}

RegularSets::Set RegularSets::either(const std::vector<Set>& options) { return combine(Kind::either, options); }
RegularSets::Set RegularSets::both(const std::vector<Set>& parts) { return combine(Kind::both, parts); }

RegularSets::Set RegularSets::inverse(Set a) {
  if (a == kNothing) return kAll;
  if (a == kAll) return kNothing;
  if (terms_[a].kind == Kind::inverse) return terms_[a].parts[0];
  return intern({Kind::inverse, 0, 0, {a}, {}, !has_empty_text(a)});
}

RegularSets::Set RegularSets::repeat(Set a, std::uint32_t least, std::uint32_t most) {
  if (most == 0 || a == kEmptyText) return kEmptyText;
  if (a == kNothing) return least == 0 ? kEmptyText : kNothing;
  if (least == 1 && most == 1) return a;
  const bool starred = terms_[a].kind == Kind::repeat && terms_[a].least == 0 && terms_[a].most == UINT32_MAX;
  if (starred) return a;
  return intern({Kind::repeat, has_empty_text(a) ? 0 : least, most, {a}, {}, least == 0 || has_empty_text(a)});
}

template <typename Change>
RegularSets::Steps RegularSets::changed(const Steps& steps, Change change) {
  Steps result;
  for (const Step& step : steps) {
    const Set rest = change(step.rest);
    if (result.empty() || result.back().rest != rest) result.push_back({step.from, rest});
  }
  return result;
}

/// Side by side: for each character the rests of all, joined or met.
RegularSets::Steps RegularSets::overlay(const std::vector<const Steps*>& all, Kind kind) {
  std::vector<char32_t> borders;
  for (const Steps* const steps : all)
    for (const Step& step : *steps) borders.push_back(step.from);
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::vector<std::size_t> at(all.size(), 0);
  std::vector<Set> rests(all.size());
  Steps result;
  for (const char32_t border : borders) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      while (at[i] + 1 < all[i]->size() && (*all[i])[at[i] + 1].from <= border) ++at[i];
      rests[i] = (*all[i])[at[i]].rest;
    }
    const Set rest = combine(kind, rests);
    if (result.empty() || result.back().rest != rest) result.push_back({border, rest});
  }
  return result;
}

const RegularSets::Steps& RegularSets::steps(Set a) {
  static const Steps none = {{0, kNothing}};
  if (const auto known = steps_.find(a); known != steps_.end()) return known->second;
  if (!builder_.go_on()) return none;
  if (depth_ > kMostRegularDepth) {
    (void)builder_.charge(UINT64_MAX / 2);  // as too large as what takes too much memory
    return none;
  }
  ++depth_;
  Steps made = make_steps(a);
  --depth_;
  if (!builder_.charge(made.size() * sizeof(Step) + 96)) return none;
  return steps_.emplace(a, std::move(made)).first->second;
}

RegularSets::Steps RegularSets::make_steps(Set a) {
  const Term term = terms_[a];  // a copy: new terms move the others
  switch (term.kind) {
    case Kind::nothing:
    case Kind::empty:
      return {{0, kNothing}};
    case Kind::characters: {
      Steps result;
      char32_t next = 0;
      for (const auto& [low, high] : term.ranges) {
        if (low > next) result.push_back({next, kNothing});
        result.push_back({low, kEmptyText});
        next = high + 1;
      }
      if (next <= kLastCharacter) result.push_back({next, kNothing});
      return result;
    }
    case Kind::sequence: {
      Steps first = changed(steps(term.parts[0]), [&](Set rest) { return sequence(rest, term.parts[1]); });
      if (!has_empty_text(term.parts[0])) return first;
      return overlay({&first, &steps(term.parts[1])}, Kind::either);
    }
    case Kind::either:
    case Kind::both: {
      std::vector<const Steps*> all;  // a map's values stay where they are
      for (const Set part : term.parts) all.push_back(&steps(part));
      return overlay(all, term.kind);
    }
    case Kind::inverse:
      return changed(steps(term.parts[0]), [&](Set rest) { return inverse(rest); });
    case Kind::repeat: {
      const std::uint32_t most = term.most == UINT32_MAX ? UINT32_MAX : term.most - 1;
      const Set again = repeat(term.parts[0], term.least == 0 ? 0 : term.least - 1, most);
      return changed(steps(term.parts[0]), [&](Set rest) { return sequence(rest, again); });
    }
  }
  return {{0, kNothing}};
}

RegularSets::Set RegularSets::rest_after(Set a, char32_t character) {
  const Steps& all = steps(a);
  const auto after =
      std::upper_bound(all.begin(), all.end(), character, [](char32_t c, const Step& step) { return c < step.from; });
  return std::prev(after)->rest;
}

bool RegularSets::contains(Set a, std::string_view utf8) {
  for (std::size_t at = 0; at < utf8.size();) {
    const Utf8Step step = next_utf8(utf8.substr(at));
    if (step.kind != Utf8Kind::character) return false;
    a = rest_after(a, decode_utf8(utf8.substr(at, step.bytes)));
    at += step.bytes;
  }
  return has_empty_text(a);
}

Expected<bool> RegularSets::is_nothing(Set a) {
  std::vector<Set> open{a};
  std::map<Set, bool> seen{{a, true}};
  while (!open.empty()) {
    const Set set = open.back();
    open.pop_back();
    if (has_empty_text(set)) return false;
    if (seen.size() > kMostStates || builder_.full()) return too_many_states();
    for (const Step& step : steps(set))
      if (step.rest != kNothing && seen.try_emplace(step.rest, true).second) open.push_back(step.rest);
  }
  return true;
}

Expected<Fragment> RegularSets::fragment(CharacterRules& rules, Set a) {
  const StateId end = builder_.new_state();
  std::map<Set, StateId> states{{a, builder_.new_state()}};
  std::vector<Set> open{a};
  while (!open.empty() && !builder_.full()) {
    const Set set = open.back();
    open.pop_back();
    const StateId from = states[set];
    if (has_empty_text(set)) builder_.nothing(from, end);
    std::map<Set, CharacterRanges> ways;
    const Steps& all = steps(set);
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].rest != kNothing)
        ways[all[i].rest].emplace_back(all[i].from, i + 1 < all.size() ? all[i + 1].from - 1 : kLastCharacter);
    for (auto& [rest, ranges] : ways) {
      const auto [place, fresh] = states.try_emplace(rest, 0);
      if (fresh) {
        place->second = builder_.new_state();
        open.push_back(rest);
      }
      rules.add_characters(from, tidy(std::move(ranges)), place->second);
    }
    if (states.size() > kMostStates) return too_many_states();
  }
  return Fragment{states[a], end};
}

}  // namespace millrace::text
