#include "text/constraint/pattern.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace millrace::text {
namespace {

constexpr int kMostDepth = 64;
constexpr std::uint32_t kMostRepeats = 10'000;

using Range = std::pair<char32_t, char32_t>;

struct Node {
  enum class Kind { characters, sequence, either, repeat } kind = Kind::sequence;
  std::vector<Range> ranges;  // characters
  std::vector<Node> parts;    // of a sequence; options; what is repeated
  std::uint32_t least = 0, most = 0;
};

/// Sorted, without overlaps, without surrogates.
std::vector<Range> tidy(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> merged;
  for (const Range& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, range.second);
    } else {
      merged.push_back(range);
    }
  }
  std::vector<Range> result;
  for (const auto& [low, high] : merged) {
    if (low < 0xD800) result.emplace_back(low, std::min<char32_t>(high, 0xD7FF));
    if (high > 0xDFFF) result.emplace_back(std::max<char32_t>(low, 0xE000), high);
  }
  return result;
}

std::vector<Range> complement(const std::vector<Range>& ranges) {
  std::vector<Range> result;
  char32_t next = 0;
  for (const auto& [low, high] : tidy(ranges)) {
    if (low > next) result.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= 0x10FFFF) result.emplace_back(next, 0x10FFFF);
  return tidy(result);
}

const std::vector<Range> kDigits = {{'0', '9'}};
const std::vector<Range> kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const std::vector<Range> kSpace = {{9, 13},          {32, 32},         {0xA0, 0xA0},
                                   {0x2028, 0x2029}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

/// The ranges of \d, \w, \s and their opposites; empty for other letters.
std::vector<Range> class_of(char32_t letter) {
  switch (letter) {
    case 'd':
      return kDigits;
    case 'D':
      return complement(kDigits);
    case 'w':
      return kWord;
    case 'W':
      return complement(kWord);
    case 's':
      return kSpace;
    // ECMA-262 counts some more as white space; a narrower \S and a narrower \s stay right.
    case 'S':
      return complement({{9, 13},
                         {32, 32},
                         {0xA0, 0xA0},
                         {0x1680, 0x1680},
                         {0x2000, 0x200A},
                         {0x2028, 0x2029},
                         {0x202F, 0x202F},
                         {0x205F, 0x205F},
                         {0x3000, 0x3000},
                         {0xFEFF, 0xFEFF}});
    default:
      return {};
  }
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Expected<Node> parse() {
    MR_ASSIGN_OR_RETURN(Node whole, alternatives(0, true));
    if (!at_end()) return bad("an unexpected ')'");
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

  Expected<char32_t> next_character() {
    const Utf8Step step = next_utf8(text_.substr(at_));
    if (step.kind != Utf8Kind::character) return bad("bytes that are no UTF-8");
    const char32_t code_point = decode_utf8(text_.substr(at_, step.bytes));
    at_ += step.bytes;
    return code_point;
  }

  static Node anything() {
    Node any;
    any.kind = Node::Kind::repeat;
    any.most = UINT32_MAX;
    any.parts.resize(1);
    any.parts[0].kind = Node::Kind::characters;
    any.parts[0].ranges = complement({});
    return any;
  }

  /// `open_ended`: of the whole pattern, which matches anywhere unless ^ and $ say otherwise.
  Expected<Node> alternatives(int depth, bool open_ended) {
    if (depth > kMostDepth) return cannot("groups that deep");
    Node node;
    node.kind = Node::Kind::either;
    do {
      MR_ASSIGN_OR_RETURN(Node option, sequence(depth, open_ended));
      node.parts.push_back(std::move(option));
    } while (eat("|"));
    return node;
  }

  Expected<Node> sequence(int depth, bool open_ended) {
    Node node;
    const bool from_begin = open_ended && eat("^");
    if (open_ended && !from_begin) node.parts.push_back(anything());
    bool to_end = false;
    while (!at_end() && peek() != '|' && peek() != ')') {
      if (peek() == '^' || to_end) return cannot("^ or $ inside");
      if (peek() == '$') {
        if (!open_ended) return cannot("$ inside");
        to_end = eat("$");
        continue;
      }
      MR_ASSIGN_OR_RETURN(Node part, atom(depth));
      MR_RETURN_IF_ERROR(quantifiers(part));
      node.parts.push_back(std::move(part));
    }
    if (open_ended && !to_end) node.parts.push_back(anything());
    return node;
  }

  Expected<Node> atom(int depth) {
    if (eat("(")) {
      if (peek() == '?' && !eat("?:")) return cannot("(? groups other than (?:");
      MR_ASSIGN_OR_RETURN(Node group, alternatives(depth + 1, false));
      if (!eat(")")) return bad("a group without its ')'");
      return group;
    }
    Node node;
    node.kind = Node::Kind::characters;
    if (eat("[")) {
      MR_ASSIGN_OR_RETURN(node.ranges, bracket());
    } else if (eat(".")) {
      node.ranges = complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
    } else if (eat("\\")) {
      MR_ASSIGN_OR_RETURN(node.ranges, escape());
    } else {
      if (std::string_view("*+?{}").find(peek()) != std::string_view::npos) return bad("a repeat of nothing");
      MR_ASSIGN_OR_RETURN(const char32_t code_point, next_character());
      node.ranges = {{code_point, code_point}};
    }
    node.ranges = tidy(node.ranges);
    return node;
  }

  Expected<std::vector<Range>> escape() {
    if (at_end()) return bad("a '\\' without what it escapes");
    MR_ASSIGN_OR_RETURN(const char32_t letter, next_character());
    if (auto ranges = class_of(letter); !ranges.empty()) return ranges;
    char32_t code_point = letter;
    const std::u32string_view names = U"nrtfv0", values(U"\n\r\t\f\v\0", 6);
    if (const auto i = names.find(letter); i != std::u32string_view::npos) {
      code_point = values[i];
    } else if (letter == 'x' || letter == 'u') {
      MR_ASSIGN_OR_RETURN(code_point, hex(letter == 'x' ? 2 : 4));
    } else if ((letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
               (letter >= 'A' && letter <= 'Z')) {
      return cannot(fmt::format("\\{}", static_cast<char>(letter)));
    }
    return std::vector<Range>{{code_point, code_point}};
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

  Expected<std::vector<Range>> bracket() {
    const bool negated = eat("^");
    std::vector<Range> ranges;
    while (peek() != ']') {
      if (at_end()) return bad("a '[' without its ']'");
      MR_ASSIGN_OR_RETURN(std::vector<Range> low, class_member());
      const bool is_range = peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (is_range) {
        ++at_;
        MR_ASSIGN_OR_RETURN(const std::vector<Range> high, class_member());
        const bool single = low.size() == 1 && high.size() == 1 && low[0].first == low[0].second;
        if (!single || high[0].first != high[0].second || high[0].first < low[0].first)
          return bad("a range upside down");
        low[0].second = high[0].first;
      }
      ranges.insert(ranges.end(), low.begin(), low.end());
    }
    ++at_;
    return negated ? complement(ranges) : tidy(ranges);
  }

  Expected<std::vector<Range>> class_member() {
    if (at_end()) return bad("a '[' without its ']'");
    if (eat("\\b")) return std::vector<Range>{{8, 8}};
    if (eat("\\")) return escape();
    MR_ASSIGN_OR_RETURN(const char32_t code_point, next_character());
    return std::vector<Range>{{code_point, code_point}};
  }

  Status quantifiers(Node& part) {
    std::uint32_t least = 0, most = UINT32_MAX;
    if (eat("*")) {
    } else if (eat("+")) {
      least = 1;
    } else if (eat("?")) {
      most = 1;
    } else if (eat("{")) {
      MR_RETURN_IF_ERROR(counts(least, most));
    } else {
      return {};
    }
    eat("?");  // lazy or not, the texts are the same
    Node repeat;
    repeat.kind = Node::Kind::repeat;
    repeat.least = least;
    repeat.most = most;
    repeat.parts.push_back(std::move(part));
    part = std::move(repeat);
    if (!at_end() && std::string_view("*+?{").find(peek()) != std::string_view::npos)
      return bad("a repeat of a repeat");
    return {};
  }

  Status counts(std::uint32_t& least, std::uint32_t& most) {
    const auto number = [&](std::uint32_t& value) {
      const std::size_t begin = at_;
      for (value = 0; peek() >= '0' && peek() <= '9' && value <= kMostRepeats; ++at_)
        value = value * 10 + static_cast<std::uint32_t>(peek() - '0');
      return at_ > begin;
    };
    if (!number(least)) return bad("a '{' without a count");
    most = least;
    if (eat(",") && !number(most)) most = UINT32_MAX;
    if (!eat("}") || (most != UINT32_MAX && (most > kMostRepeats || most < least)) || least > kMostRepeats)
      return bad("a count that is too large or upside down");
    return {};
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

Fragment build(GrammarBuilder& b, JsonRules& rules, const Node& node) {
  if (b.full()) return b.empty();
  switch (node.kind) {
    case Node::Kind::characters: {
      std::vector<Fragment> options;
      for (const auto& [low, high] : node.ranges) options.push_back(rules.characters(low, high));
      return b.either(options);
    }
    case Node::Kind::sequence: {
      Fragment whole = b.empty();
      for (const Node& part : node.parts) whole = b.sequence(whole, build(b, rules, part));
      return whole;
    }
    case Node::Kind::either: {
      std::vector<Fragment> options;
      for (const Node& part : node.parts) options.push_back(build(b, rules, part));
      return b.either(options);
    }
    case Node::Kind::repeat:
      break;
  }
  return b.repeat(node.least, node.most, [&] { return build(b, rules, node.parts[0]); });
}

}  // namespace

Expected<Fragment> pattern_fragment(GrammarBuilder& builder, JsonRules& rules, std::string_view pattern) {
  MR_ASSIGN_OR_RETURN(const Node node, Parser(pattern).parse());
  return build(builder, rules, node);
}

Expected<std::string_view> format_pattern(std::string_view format) {
#define MR_DATE                                                                                 \
  "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0" \
  "[1-9]|1[0-9]|2[0-8]))"
#define MR_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define MR_LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define MR_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
  if (format == "date") return std::string_view("^" MR_DATE "$");
  if (format == "time") return std::string_view("^" MR_TIME "$");
  if (format == "date-time") return std::string_view("^" MR_DATE "T" MR_TIME "$");
  if (format == "uuid") return std::string_view("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$");
  if (format == "ipv4") return std::string_view("^(" MR_BYTE "\\.){3}" MR_BYTE "$");
  if (format == "hostname") return std::string_view("^" MR_LABEL "(\\." MR_LABEL "){0,3}$");
  if (format == "email")
    return std::string_view("^[a-zA-Z0-9_+-]{1,40}(\\.[a-zA-Z0-9_+-]{1,20})?@(" MR_LABEL "\\.){1,3}[a-zA-Z]{2,20}$");
  if (format == "uri")
    return std::string_view("^https?://" MR_LABEL "(\\." MR_LABEL
                            "){0,3}(:[1-9][0-9]{0,3})?(/[a-zA-Z0-9._~-]*)*(\\?[a-zA-Z0-9._~=&-]*)?$");
#undef MR_DATE
#undef MR_TIME
#undef MR_LABEL
#undef MR_BYTE
  return error(Code::unsupported,
               "format '{}' is not supported; date, time, date-time, uuid, ipv4, hostname, email and uri are",
               format.substr(0, 60));
}

}  // namespace millrace::text
