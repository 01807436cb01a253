#include "text/constraint/character_rules.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "text/utf8.h"

namespace millrace::text {
namespace {

std::string utf8(char32_t code_point) {
  std::string text;
  append_utf8(code_point, text);
  return text;
}

/// Splits [low, high] where the length of the encoding changes, or its leading bytes do not move together.
CharacterRanges same_shape_ranges(char32_t low, char32_t high) {
  CharacterRanges open{{low, high}}, ranges;
  while (!open.empty()) {
    const char32_t from = open.back().first, to = open.back().second;
    open.pop_back();
    const auto cut = [&](char32_t last_left) {
      open.emplace_back(last_left + 1, to);
      open.emplace_back(from, last_left);
    };
    bool whole = true;
    for (const char32_t border : {0x7Fu, 0x7FFu, 0xFFFFu}) {
      if (!whole || from > border || to <= border) continue;
      cut(border);
      whole = false;
    }
    const std::size_t bytes = whole ? utf8(from).size() : 0;
    for (std::size_t i = 1; whole && i < bytes; ++i) {
      const char32_t mask = (char32_t{1} << (6 * i)) - 1;
      if ((from & ~mask) == (to & ~mask)) continue;
      if ((from & mask) != 0) {
        cut(from | mask);
        whole = false;
      } else if ((to & mask) != mask) {
        cut((to & ~mask) - 1);
        whole = false;
      }
    }
    if (whole) ranges.emplace_back(from, to);
  }
  return ranges;
}

}  // namespace

Fragment CharacterRules::code_points(const CharacterRanges& ranges) {
  const Fragment whole{builder_.new_state(), builder_.new_state()};
  // By state and the bytes that lead on from it. Two ranges of bytes at one state are the same or share nothing, as the
  // characters behind them do.
  std::map<std::tuple<StateId, char, char>, StateId> known;
  for (const auto& [low, high] : ranges)
    for (const auto& [from, to] : same_shape_ranges(low, high)) {
      const std::string first = utf8(from), last = utf8(to);
      StateId at = whole.begin;
      for (std::size_t i = 0; i < first.size() && !builder_.full(); ++i) {
        const auto [found, fresh] = known.try_emplace({at, first[i], last[i]}, whole.end);
        if (fresh) {
          if (i + 1 < first.size()) found->second = builder_.new_state();
          builder_.bytes(at, static_cast<std::uint8_t>(first[i]), static_cast<std::uint8_t>(last[i]), found->second);
        }
        at = found->second;
      }
    }
  return whole;
}

Fragment CharacterRules::any_of(const CharacterRanges& ranges) {
  const Fragment whole{builder_.new_state(), builder_.new_state()};
  add_characters(whole.begin, ranges, whole.end);
  return whole;
}

void PlainRules::add_characters(StateId from, const CharacterRanges& ranges, StateId to) {
  CharacterRanges others;
  for (const auto& [low, high] : ranges) {
    if (low < 0x80)
      builder_.bytes(from, static_cast<std::uint8_t>(low), static_cast<std::uint8_t>(std::min<char32_t>(high, 0x7F)),
                     to);
    if (high >= 0x80) others.emplace_back(std::max<char32_t>(low, 0x80), high);
  }
  if (others.empty()) return;
  const auto [known, fresh] = sets_.try_emplace(others, 0);
  if (fresh) {
    known->second = builder_.new_rule();
    builder_.define(known->second, code_points(others));
  }
  builder_.call(from, known->second, to);
}

}  // namespace millrace::text
