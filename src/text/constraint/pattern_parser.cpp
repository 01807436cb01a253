#include "text/constraint/pattern_parser.h"

#include <utf8proc.h>

#include <algorithm>
#include <string>

#include "text/constraint/unicode_classes.h"
#include "text/utf8.h"

namespace millrace::text {
namespace {

using PatternKind = PatternNode::Kind;

constexpr int kMostDepth = 64;
constexpr std::uint32_t kMostRepeats = 10'000;

const CharacterRanges kDigits = {{'0', '9'}};
const CharacterRanges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharacterRanges kSpace = {{9, 13}, {32, 32}, {0xA0, 0xA0}, {0x2028, 0x2029}, {0x3000, 0x3000}};
const CharacterRanges kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

CharacterRanges joined(CharacterRanges all, std::initializer_list<std::string_view> properties) {
  for (const std::string_view property : properties) {
    const CharacterRanges& more = characters_with(property);
    all.insert(all.end(), more.begin(), more.end());
  }
  return tidy(std::move(all));
}

/// The ranges of \d, \w, \s and their opposites; empty for other letters. ECMA-262, Python and Rust differ in
/// them: `wide` is what any of them takes, for what must not be there.
CharacterRanges class_of(char32_t letter, bool wide) {
  static const CharacterRanges some_spaces = joined({{9, 13}, {28, 31}, {0x85, 0x85}, {0xFEFF, 0xFEFF}}, {"Z"});
  switch (letter) {
    case 'd':
      return wide ? joined(kDigits, {"Nd"}) : kDigits;
    case 'D':
      return complement(kDigits);
    case 'w':
      return wide ? joined(kWord, {"L", "M", "N", "Pc"}) : kWord;
    case 'W':
      return complement(kWord);
    case 's':
      return wide ? some_spaces : kSpace;
    case 'S':
      return complement(wide ? kSpace : some_spaces);
    default:
      return {};
  }
}

class Parser {
 public:
  Parser(std::string_view text, const PatternReading& reading)
      : text_(text),
        reading_(reading),
        wide_(reading.wide),
        any_case_(reading.any_case),
        dot_is_all_(reading.dot_is_all) {}

  Expected<PatternNode> parse() {
    auto whole = alternatives(0);
    if (whole.ok() && !at_end()) whole = bad("an unexpected ')'");
    if (!whole.ok() && reading_.failed_at != nullptr) *reading_.failed_at = at_;
    return whole;
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool eat(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  Status bad(std::string_view what) const {
    return error(Code::invalid_argument, "the pattern has {} at byte {}", what, at_);
  }
  static Status cannot(std::string_view what) {
    return error(Code::unsupported, "patterns with {} are not supported; write it with classes and repeats", what);
  }

  /// A '{' that counts, as in a{2,3}; others stand for themselves.
  bool is_count() const {
    std::size_t i = at_ + 1, digits = 0;
    const auto skip_digits = [&] {
      for (; i < text_.size() && text_[i] >= '0' && text_[i] <= '9'; ++i) ++digits;
    };
    if (peek() != '{') return false;
    skip_digits();
    if (i < text_.size() && text_[i] == ',') {
      ++i;
      skip_digits();
    }
    return digits > 0 && i < text_.size() && text_[i] == '}';
  }
  bool repeats() const {
    return !at_end() && (std::string_view("*+?").find(peek()) != std::string_view::npos || is_count());
  }

  Expected<char32_t> next_character() {
    const Utf8Step step = next_utf8(text_.substr(at_));
    if (step.kind != Utf8Kind::character) return bad("bytes that are no UTF-8");
    const char32_t code_point = decode_utf8(text_.substr(at_, step.bytes));
    at_ += step.bytes;
    return code_point;
  }

  Expected<PatternNode> alternatives(int depth) {
    if (depth > kMostDepth) return cannot("groups that deep");
    PatternNode node;
    node.kind = PatternKind::either;
    do {
      MR_ASSIGN_OR_RETURN(PatternNode option, sequence(depth));
      node.parts.push_back(std::move(option));
    } while (eat("|"));
    return node;
  }

  Expected<PatternNode> sequence(int depth) {
    PatternNode node;
    while (!at_end() && peek() != '|' && peek() != ')') {
      MR_ASSIGN_OR_RETURN(PatternNode part, atom(depth));
      MR_RETURN_IF_ERROR(quantifiers(part));
      const bool says_nothing = part.kind == PatternKind::sequence && part.parts.empty();
      if (!says_nothing) node.parts.push_back(std::move(part));
    }
    return node;
  }

  Expected<PatternNode> atom(int depth) {
    PatternNode node;
    if (eat("(")) return group(depth);
    if (eat("^") || eat("\\A")) return of(PatternKind::begin);
    if (eat("$") || eat("\\Z") || eat("\\z")) return of(PatternKind::end);
    if (eat("\\b")) return of(PatternKind::border);
    if (eat("\\B")) return of(PatternKind::border, true);
    node.kind = PatternKind::characters;
    if (eat("[")) {
      MR_ASSIGN_OR_RETURN(node.ranges, bracket());
    } else if (eat(".")) {
      node.ranges = dot();
    } else if (eat("\\")) {
      MR_ASSIGN_OR_RETURN(node.ranges, escape());
    } else {
      if (repeats()) return bad("a repeat of nothing");
      MR_ASSIGN_OR_RETURN(const char32_t code_point, next_character());
      node.ranges = {{code_point, code_point}};
    }
    node.ranges = cased(tidy(node.ranges));
    return node;
  }

  CharacterRanges dot() const {
    if (dot_is_all_) return complement({});
    return complement(wide_ || reading_.dot_is_line ? CharacterRanges{{'\n', '\n'}} : kLineEnds);
  }
  CharacterRanges cased(const CharacterRanges& ranges) const { return any_case_ ? any_case(ranges) : ranges; }

  static PatternNode of(PatternKind kind, bool negated = false) {
    PatternNode node;
    node.kind = kind;
    node.negated = negated;
    return node;
  }

  /// Behind its "(".
  Expected<PatternNode> group(int depth) {
    const bool outer_case = any_case_, outer_dot = dot_is_all_;
    PatternNode look = of(PatternKind::look);
    bool looks = false;
    if (eat("?=") || eat("?!")) {
      looks = true;
      look.negated = text_[at_ - 1] == '!';
    } else if (eat("?P<") || eat("?<")) {
      if (peek() == '=' || peek() == '!') return cannot("look-behind");
      const auto name_end = text_.find('>', at_);
      if (name_end == std::string_view::npos) return bad("a group's name without its '>'");
      at_ = name_end + 1;
    } else if (peek() == '?' && !eat("?:")) {
      ++at_;
      MR_RETURN_IF_ERROR(flags());
      if (eat(")")) return PatternNode();  // they hold to the end of the group around
      ++at_;
    }
    wide_ = wide_ != look.negated;
    MR_ASSIGN_OR_RETURN(PatternNode inner, alternatives(depth + 1));
    wide_ = wide_ != look.negated;
    if (!eat(")")) return bad("a group without its ')'");
    any_case_ = outer_case;
    dot_is_all_ = outer_dot;
    if (!looks) return inner;
    look.parts.push_back(std::move(inner));
    return look;
  }

  /// Of (?i) or (?i-s:, up to the ')' or ':'.
  Status flags() {
    for (bool value = true; peek() != ')' && peek() != ':'; ++at_) {
      if (peek() == '-' && value) {
        value = false;
      } else if (peek() == 'i') {
        any_case_ = value;
      } else if (peek() == 's') {
        dot_is_all_ = value;
      } else if (peek() != 'u' || !value) {
        return cannot("(? groups other than (?:, (?=, (?!, (?<name> and the flags i and s");
      }
    }
    return {};
  }

  Expected<CharacterRanges> escape() {
    if (at_end()) return bad("a '\\' without what it escapes");
    MR_ASSIGN_OR_RETURN(const char32_t letter, next_character());
    if (letter == 'p' || letter == 'P') return property(letter == 'P');
    if (auto ranges = class_of(letter, wide_); !ranges.empty()) return ranges;
    char32_t code_point = letter;
    const std::u32string_view names = U"nrtfv0", values(U"\n\r\t\f\v\0", 6);
    if (const auto i = names.find(letter); i != std::u32string_view::npos) {
      code_point = values[i];
    } else if (letter == 'c') {
      MR_ASSIGN_OR_RETURN(code_point, control());
    } else if (letter == 'x' || letter == 'u') {
      MR_ASSIGN_OR_RETURN(code_point, eat("{") ? braced_hex() : hex(letter == 'x' ? 2 : 4));
      const bool halves = letter == 'u' && code_point >= 0xD800 && code_point <= 0xDBFF;
      const std::size_t behind = at_;
      if (halves && eat("\\u") && peek() != '{') {
        MR_ASSIGN_OR_RETURN(const char32_t low, hex(4));
        if (low >= 0xDC00 && low <= 0xDFFF) {
          code_point = 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00);
        } else {
          at_ = behind;
        }
      } else {
        at_ = behind;
      }
    } else if ((letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
               (letter >= 'A' && letter <= 'Z')) {
      return cannot(fmt::format("\\{}", static_cast<char>(letter)));
    }
    return CharacterRanges{{code_point, code_point}};
  }

  /// Behind the "\\c" of a control character.
  Expected<char32_t> control() {
    const char letter = peek();
    const bool known = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    if (!known) return bad("a \\c without the letter of a control character");
    ++at_;
    return static_cast<char32_t>(letter % 32);
  }

  /// Behind its "\\p". What Unicode has not assigned yet is in neither \\p nor \\P: a later version may say otherwise.
  Expected<CharacterRanges> property(bool negated) {
    const auto end = text_.find('}', at_);
    if (!eat("{") || end == std::string_view::npos) return bad("a \\p without {a property}");
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end + 1;
    CharacterRanges ranges = characters_with(name, wide_ != negated);
    if (ranges.empty()) return cannot(fmt::format("\\p{{{}}}", name.substr(0, 40)));
    if (!negated) return ranges;
    const CharacterRanges& open = characters_with("Cn");
    ranges.insert(ranges.end(), open.begin(), open.end());
    return complement(ranges);
  }

  Expected<char32_t> hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = peek();
      const auto digit =
          std::string_view("0123456789abcdef").find(static_cast<char>(c >= 'A' && c <= 'F' ? c + 32 : c));
      if (at_end() || digit == std::string_view::npos) return bad("too few hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    return value;
  }

  /// Behind the '{' of \\u{1F600}.
  Expected<char32_t> braced_hex() {
    const auto end = text_.find('}', at_);
    constexpr std::size_t most_digits = 6;
    if (end == std::string_view::npos || end - at_ > most_digits) return bad("a \\u{ without up to 6 digits and a '}'");
    MR_ASSIGN_OR_RETURN(const char32_t value, hex(static_cast<int>(std::max<std::size_t>(end - at_, 1))));
    if (value > 0x10FFFF) return bad("a number that is no character's");
    ++at_;
    return value;
  }

  /// What some read as a class within a class, or as one without another, and others as its characters.
  Status check_class() const {
    const std::string_view rest = text_.substr(at_);
    for (const char kind : {':', '.', '='}) {
      const std::string begin{'[', kind}, end{kind, ']'};
      if (rest.starts_with(begin) && rest.find(end, 2) != std::string_view::npos)
        return cannot("classes such as [:alpha:]");
    }
    const bool subtracts = rest.starts_with("--") && !rest.starts_with("--]");
    if (rest.starts_with("&&") || rest.starts_with("~~") || subtracts) return cannot("&&, -- or ~~ in classes");
    return {};
  }

  Expected<CharacterRanges> bracket() {
    const bool negated = eat("^");
    CharacterRanges ranges;
    while (peek() != ']') {
      MR_RETURN_IF_ERROR(check_class());
      MR_ASSIGN_OR_RETURN(CharacterRanges low, class_member());
      if (!at_end()) MR_RETURN_IF_ERROR(check_class());
      const bool is_range = peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (is_range) {
        ++at_;
        MR_ASSIGN_OR_RETURN(const CharacterRanges high, class_member());
        const bool single = low.size() == 1 && high.size() == 1 && low[0].first == low[0].second;
        if (!single || high[0].first != high[0].second || high[0].first < low[0].first)
          return bad("a range upside down");
        low[0].second = high[0].first;
      }
      ranges.insert(ranges.end(), low.begin(), low.end());
    }
    ++at_;
    return negated ? complement(cased(tidy(ranges))) : tidy(ranges);
  }

  Expected<CharacterRanges> class_member() {
    if (at_end()) return bad("a '[' without its ']'");
    if (eat("\\b")) return CharacterRanges{{8, 8}};
    if (eat("\\")) return escape();
    MR_ASSIGN_OR_RETURN(const char32_t code_point, next_character());
    return CharacterRanges{{code_point, code_point}};
  }

  Status quantifiers(PatternNode& part) {
    std::uint32_t least = 0, most = UINT32_MAX;
    if (eat("*")) {
    } else if (eat("+")) {
      least = 1;
    } else if (eat("?")) {
      most = 1;
    } else if (is_count()) {
      ++at_;
      MR_RETURN_IF_ERROR(counts(least, most));
    } else {
      return {};
    }
    eat("?");  // lazy or not, the texts are the same
    if (part.kind == PatternKind::begin || part.kind == PatternKind::end || part.kind == PatternKind::border ||
        part.kind == PatternKind::look)
      return bad("a repeat of what takes no character");
    PatternNode repeat;
    repeat.kind = PatternKind::repeat;
    repeat.least = least;
    repeat.most = most;
    repeat.parts.push_back(std::move(part));
    part = std::move(repeat);
    if (repeats()) return bad("a repeat of a repeat");
    return {};
  }

  Status counts(std::uint32_t& least, std::uint32_t& most) {
    const auto number = [&](std::uint32_t& value) {
      const std::size_t begin = at_;
      for (value = 0; peek() >= '0' && peek() <= '9' && value <= kMostRepeats; ++at_)
        value = value * 10 + static_cast<std::uint32_t>(peek() - '0');
      return at_ > begin;
    };
    if (!number(least) && peek() != ',') return bad("a '{' without a count");
    most = least;
    if (eat(",") && !number(most)) most = UINT32_MAX;
    if (!eat("}") || (most != UINT32_MAX && (most > kMostRepeats || most < least)) || least > kMostRepeats)
      return bad("a count that is too large or upside down");
    return {};
  }

  const std::string_view text_;
  const PatternReading& reading_;
  std::size_t at_ = 0;
  bool wide_, any_case_, dot_is_all_;
};

/// Characters and what else they are called in another case, both ways.
const std::vector<std::pair<char32_t, char32_t>>& case_pairs() {
  static const auto all = [] {
    std::vector<std::pair<char32_t, char32_t>> pairs;
    for (char32_t c = 0; c <= 0x1FFFF; ++c)  // nothing beyond has cases
      for (const utf8proc_int32_t other :
           {utf8proc_tolower(static_cast<utf8proc_int32_t>(c)), utf8proc_toupper(static_cast<utf8proc_int32_t>(c))})
        if (static_cast<char32_t>(other) != c) {
          pairs.emplace_back(c, static_cast<char32_t>(other));
          pairs.emplace_back(static_cast<char32_t>(other), c);
        }
    return pairs;
  }();
  return all;
}

}  // namespace

CharacterRanges any_case(const CharacterRanges& ranges) {
  CharacterRanges all = ranges;
  for (const auto& [from, to] : case_pairs()) {
    const auto after = std::upper_bound(ranges.begin(), ranges.end(), from,
                                        [](char32_t c, const CharacterRange& range) { return c < range.first; });
    if (after != ranges.begin() && from <= std::prev(after)->second) all.emplace_back(to, to);
  }
  return tidy(std::move(all));
}

Expected<PatternNode> parse_pattern(std::string_view pattern, const PatternReading& reading) {
  return Parser(pattern, reading).parse();
}

const CharacterRanges& word_characters() { return kWord; }

}  // namespace millrace::text
