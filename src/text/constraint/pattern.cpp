#include "text/constraint/pattern.h"

#include <algorithm>
#include <array>

#include "text/constraint/pattern_parser.h"
#include "text/constraint/shared_beginnings.h"

namespace millrace::text {
namespace {

using PatternKind = PatternNode::Kind;
using Set = RegularSets::Set;

constexpr std::size_t kMostPatternBytes = 8192;  // of those that become sets

bool takes_no_character(const PatternNode& node) {
  return node.kind == PatternKind::begin || node.kind == PatternKind::end || node.kind == PatternKind::border ||
         node.kind == PatternKind::look;
}

bool has_assertion(const PatternNode& node) {
  return takes_no_character(node) || std::any_of(node.parts.begin(), node.parts.end(), has_assertion);
}

/// What stands before a place decides what ^ and \b say there.
enum Before : std::size_t { at_start, after_word, after_other };

/// What may follow from a place on to the text's end, by what stands before it.
using Rests = std::array<Set, 3>;

/// A pattern's tree, from its end to its beginning: each node turns what may follow it into what may follow it and
/// begins with it. So look-ahead sees the whole rest, not only that of its group.
class SetMaker {
 public:
  explicit SetMaker(RegularSets& sets) : sets_(sets) {}

  Expected<Set> whole(const PatternNode& node) {
    constexpr Rests anything = {RegularSets::kAll, RegularSets::kAll, RegularSets::kAll};
    MR_ASSIGN_OR_RETURN(const Rests from, rests(node, anything));
    const auto behind = [&](Set before, Set rest) {
      return sets_.sequence(RegularSets::kAll, sets_.sequence(before, rest));
    };
    return sets_.either({from[at_start], behind(word_, from[after_word]), behind(other_, from[after_other])});
  }

 private:
  Expected<Rests> rests(const PatternNode& node, const Rests& then) {
    constexpr int most_nodes = 100'000;  // repeats are unrolled, also within each other
    if (++nodes_ > most_nodes) return error(Code::invalid_argument, "the pattern repeats too much within repeats");
    switch (node.kind) {
      case PatternKind::characters:
        return characters(node.ranges, then);
      case PatternKind::sequence: {
        Rests result = then;
        for (auto part = node.parts.rbegin(); part != node.parts.rend(); ++part) {
          MR_ASSIGN_OR_RETURN(result, rests(*part, result));
        }
        return result;
      }
      case PatternKind::either: {
        std::array<std::vector<Set>, 3> options;
        for (const PatternNode& part : node.parts) {
          MR_ASSIGN_OR_RETURN(const Rests option, rests(part, then));
          for (std::size_t i = 0; i < option.size(); ++i) options[i].push_back(option[i]);
        }
        return each([&](std::size_t i) { return sets_.either(options[i]); });
      }
      case PatternKind::repeat:
        return repeat(node, then);
      case PatternKind::begin:
        return Rests{then[at_start], RegularSets::kNothing, RegularSets::kNothing};
      case PatternKind::end:
        return each([&](std::size_t i) { return sets_.both({then[i], RegularSets::kEmptyText}); });
      case PatternKind::border: {
        const Set word_ahead = sets_.sequence(word_, RegularSets::kAll), none_ahead = sets_.inverse(word_ahead);
        return each([&](std::size_t i) {
          return sets_.both({then[i], (i == after_word) != node.negated ? none_ahead : word_ahead});
        });
      }
      case PatternKind::look: {
        constexpr Rests anything = {RegularSets::kAll, RegularSets::kAll, RegularSets::kAll};
        MR_ASSIGN_OR_RETURN(const Rests ahead, rests(node.parts[0], anything));
        return each([&](std::size_t i) {
          return sets_.both({then[i], node.negated ? sets_.inverse(ahead[i]) : ahead[i]});
        });
      }
    }
    return then;
  }

  Rests characters(const CharacterRanges& ranges, const Rests& then) {
    const Set all = sets_.characters(ranges);
    if (then[after_word] == then[after_other]) return same(sets_.sequence(all, then[after_word]));
    return same(sets_.either({sets_.sequence(sets_.both({all, word_}), then[after_word]),
                              sets_.sequence(sets_.both({all, other_}), then[after_other])}));
  }

  Expected<Rests> repeat(const PatternNode& node, const Rests& then) {
    const PatternNode& inner = node.parts[0];
    if (!has_assertion(inner)) {
      constexpr Rests nothing_more = {RegularSets::kEmptyText, RegularSets::kEmptyText, RegularSets::kEmptyText};
      MR_ASSIGN_OR_RETURN(const Rests once, rests(inner, nothing_more));
      const Set core = once[0];
      if (then[0] == then[1] && then[1] == then[2])
        return same(sets_.sequence(sets_.repeat(core, node.least, node.most), then[0]));
      if (!sets_.has_empty_text(core) && node.most > 0) {
        // The last one tells what stands before the rest.
        MR_ASSIGN_OR_RETURN(const Rests last, rests(inner, then));
        const std::uint32_t more = node.most == UINT32_MAX ? node.most : node.most - 1;
        const Set some = sets_.sequence(sets_.repeat(core, std::max(node.least, 1u) - 1, more), last[0]);
        return each([&](std::size_t i) { return node.least > 0 ? some : sets_.either({then[i], some}); });
      }
    }
    constexpr std::uint32_t most_unrolled = 8;
    if (node.most > most_unrolled)
      return error(Code::unsupported,
                   "patterns with ^, $, \\b or look-ahead inside of a repeat are not supported; write them outside");
    Rests result = then;
    for (std::uint32_t i = node.most; i > 0; --i) {
      MR_ASSIGN_OR_RETURN(result, rests(inner, result));
      if (i > node.least)
        for (std::size_t before = 0; before < result.size(); ++before)
          result[before] = sets_.either({then[before], result[before]});
    }
    return result;
  }

  static Rests same(Set set) { return {set, set, set}; }
  template <typename Make>
  static Rests each(Make make) {
    return {make(std::size_t{at_start}), make(std::size_t{after_word}), make(std::size_t{after_other})};
  }

  RegularSets& sets_;
  int nodes_ = 0;
  const Set word_ = sets_.characters(word_characters()), other_ = sets_.characters(complement(word_characters()));
};

/// Nothing but characters, and ^ and $ only where an alternative begins and ends.
bool is_plain(const PatternNode& whole) {
  for (const PatternNode& option : whole.parts)
    for (std::size_t i = 0; i < option.parts.size(); ++i) {
      const PatternNode& part = option.parts[i];
      const bool anchor = (part.kind == PatternKind::begin && i == 0) ||
                          (part.kind == PatternKind::end && i + 1 == option.parts.size());
      if (!anchor && has_assertion(part)) return false;
    }
  return true;
}

Fragment build(GrammarBuilder& b, CharacterRules& rules, const PatternNode& node) {
  if (b.full()) return b.empty();
  switch (node.kind) {
    case PatternKind::characters:
      return rules.any_of(node.ranges);
    case PatternKind::either:
      return *either_by_beginnings(
          b, rules, node.parts, [&](const PatternNode& part) -> Expected<Fragment> { return build(b, rules, part); });
    case PatternKind::repeat:
      return b.repeat(node.least, node.most, [&] { return build(b, rules, node.parts[0]); });
    default: {
      Fragment whole = b.empty();
      for (const PatternNode& part : node.parts) whole = b.sequence(whole, build(b, rules, part));
      return whole;
    }
  }
}

Fragment build_plain(GrammarBuilder& b, CharacterRules& rules, const PatternNode& whole) {
  const auto any = [&] { return rules.any_of(complement({})); };
  const auto anything = [&] { return b.repeat(0, UINT32_MAX, any); };
  std::vector<Fragment> options;
  for (const PatternNode& option : whole.parts) {
    const bool from_begin = !option.parts.empty() && option.parts.front().kind == PatternKind::begin;
    const bool to_end = !option.parts.empty() && option.parts.back().kind == PatternKind::end;
    Fragment text = from_begin ? b.empty() : anything();
    text = b.sequence(text, build(b, rules, option));  // an anchor is an empty sequence there
    options.push_back(to_end ? text : b.sequence(text, anything()));
  }
  return b.either(options);
}

}  // namespace

Expected<RegularSets::Set> pattern_set(RegularSets& sets, std::string_view pattern, bool inverted) {
  if (pattern.size() > kMostPatternBytes)
    return error(Code::invalid_argument, "the pattern has {} bytes; {} are the most", pattern.size(),
                 kMostPatternBytes);
  MR_ASSIGN_OR_RETURN(const PatternNode node, parse_pattern(pattern, {.wide = inverted}));
  MR_ASSIGN_OR_RETURN(const Set set, SetMaker(sets).whole(node));
  return inverted ? sets.inverse(set) : set;
}

Expected<Fragment> pattern_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                    std::string_view pattern) {
  MR_ASSIGN_OR_RETURN(const PatternNode node, parse_pattern(pattern));
  if (is_plain(node)) return build_plain(builder, rules, node);
  MR_ASSIGN_OR_RETURN(const Set set, pattern_set(sets, pattern));
  return sets.fragment(rules, set);
}

Expected<Fragment> whole_pattern_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                          std::string_view pattern, const PatternReading& reading) {
  MR_ASSIGN_OR_RETURN(PatternNode node, parse_pattern(pattern, reading));
  if (is_plain(node)) return build(builder, rules, node);  // its anchors stand where the text begins and ends
  if (pattern.size() > kMostPatternBytes)
    return error(Code::invalid_argument, "the pattern has {} bytes; {} are the most with look-ahead or \\b",
                 pattern.size(), kMostPatternBytes);
  PatternNode whole;
  whole.parts.resize(3);
  whole.parts[0].kind = PatternKind::begin;
  whole.parts[1] = std::move(node);
  whole.parts[2].kind = PatternKind::end;
  MR_ASSIGN_OR_RETURN(const Set set, SetMaker(sets).whole(whole));
  return sets.fragment(rules, set);
}

}  // namespace millrace::text
