#include "text/constraint/json_rules.h"

#include <algorithm>
#include <map>

#include "base/json.h"
#include "text/utf8.h"

namespace millrace::text {
namespace {

constexpr std::uint32_t kMostIndent = 40;
constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

std::string utf8(char32_t code_point) {
  std::string text;
  append_utf8(code_point, text);
  return text;
}

}  // namespace

JsonRules::JsonRules(GrammarBuilder& builder)
    : CharacterRules(builder),
      space_(builder.new_rule()),
      multibyte_(builder.new_rule()),
      escape_(builder.new_rule()),
      string_(builder.new_rule()),
      any_value_(builder.new_rule()),
      any_object_(builder.new_rule()) {
  GrammarBuilder& b = builder_;
  const auto indent = [&] { return b.either({b.literal(" "), b.literal("\t")}); };
  b.define(space_,
           b.either({b.empty(), b.literal(" "), b.sequence(b.literal("\n"), b.repeat(0, kMostIndent, indent))}));
  define_characters();
  b.define(string_, plain_string());
  define_values();
}

std::string JsonRules::quoted(std::string_view text) {
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string JsonRules::spelled(std::string_view utf8) const {
  const std::string text = quoted(utf8);
  return text.substr(1, text.size() - 2);
}

Fragment JsonRules::space() { return spelling_ == JsonSpelling::one ? builder_.empty() : builder_.rule(space_); }
Fragment JsonRules::optional_blank() {
  return spelling_ == JsonSpelling::one ? builder_.empty() : builder_.optional(builder_.literal(" "));
}

void JsonRules::define_characters() {
  GrammarBuilder& b = builder_;
  b.define(multibyte_, code_points({{0x80, kFirstSurrogate - 1}, {kLastSurrogate + 1, 0x10FFFF}}));
  const auto hex = [&] { return b.either({b.byte_range('0', '9'), b.byte_range('a', 'f'), b.byte_range('A', 'F')}); };
  const auto hex3 = [&] { return b.sequence(hex(), b.sequence(hex(), hex())); };
  const auto d = [&] { return b.either({b.literal("d"), b.literal("D")}); };
  const auto hex2 = [&] { return b.sequence(hex(), hex()); };
  // \u0000 to \uD7FF and \uE000 to \uFFFF, or a pair of surrogates.
  const Fragment not_d = b.either({b.byte_range('0', '9'), b.byte_range('a', 'c'), b.byte_range('e', 'f'),
                                   b.byte_range('A', 'C'), b.byte_range('E', 'F')});
  const Fragment single =
      b.either({b.sequence(not_d, hex3()), b.sequence(d(), b.sequence(b.byte_range('0', '7'), hex2()))});
  const auto from = [&](std::uint8_t low_digit, char low, char high) {
    return b.sequence(b.either({b.byte_range(low_digit, '9'), b.byte_range(low, high),
                                b.byte_range(static_cast<std::uint8_t>(low - 'a' + 'A'),
                                             static_cast<std::uint8_t>(high - 'a' + 'A'))}),
                      hex2());
  };
  const Fragment high_half = b.sequence(d(), from('8', 'a', 'b'));
  const Fragment low_half =
      b.sequence(d(), b.sequence(b.either({b.byte_range('c', 'f'), b.byte_range('C', 'F')}), hex2()));
  const Fragment pair = b.sequence(high_half, b.sequence(b.literal("\\u"), low_half));
  std::vector<Fragment> simple;
  for (const char c : std::string_view("\"\\/bfnrt")) simple.push_back(b.literal(std::string_view(&c, 1)));
  simple.push_back(b.sequence(b.literal("u"), b.either({single, pair})));
  b.define(escape_, b.sequence(b.literal("\\"), b.either(simple)));
}

/// The bytes of ASCII that stand for themselves in a string.
void JsonRules::add_plain_bytes(StateId from, StateId to, const std::vector<std::uint8_t>& except) {
  int begin = -1;
  for (int byte = 0x20; byte <= 0x80; ++byte) {
    const bool plain =
        byte < 0x80 && byte != '"' && byte != '\\' && std::find(except.begin(), except.end(), byte) == except.end();
    if (plain && begin < 0) begin = byte;
    if (!plain && begin >= 0) {
      builder_.bytes(from, static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(byte - 1), to);
      begin = -1;
    }
  }
}

void JsonRules::add_escapes(StateId from, StateId to) {
  if (spelling_ == JsonSpelling::any) {
    builder_.call(from, escape_, to);
  } else {
    add_characters(from, {{0, 0x1F}, {U'"', U'"'}, {U'\\', U'\\'}}, to);
  }
}

/// The characters of a string that are not ASCII, or escaped.
void JsonRules::add_others(StateId from, StateId to) {
  builder_.call(from, multibyte_, to);
  add_escapes(from, to);
}

Fragment JsonRules::plain_string() {
  const StateId body = builder_.new_state();
  add_plain_bytes(body, body, {});
  add_others(body, body);
  return builder_.sequence(builder_.sequence(builder_.literal("\""), {body, body}), builder_.literal("\""));
}

Fragment JsonRules::string(std::uint32_t least, std::uint32_t most) {
  if (least == 0 && most == UINT32_MAX && spelling_ == JsonSpelling::any) return builder_.rule(string_);
  const std::uint32_t count = most == UINT32_MAX ? least : most;
  std::vector<StateId> row;
  for (std::uint32_t i = 0; i <= count && !builder_.full(); ++i) row.push_back(builder_.new_state());
  if (builder_.full()) return builder_.empty();  // there may be no row at all
  const StateId end = builder_.new_state();
  const auto add = [&](StateId from, StateId to) {
    add_plain_bytes(from, to, {});
    add_others(from, to);
  };
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i + 1 < row.size()) add(row[i], row[i + 1]);
    if (i >= least) builder_.nothing(row[i], end);
  }
  if (most == UINT32_MAX) add(row.back(), row.back());
  // Where there is no most, a row of `least` says nothing of what may follow it.
  if (most != UINT32_MAX) builder_.row({row.front(), least, most});
  return builder_.sequence(builder_.sequence(builder_.literal("\""), {row.front(), end}), builder_.literal("\""));
}

/// A trie of the words; whoever leaves it is free, and no word's end may be the string's. Escapes begin only once the
/// string is free: they could spell a word.
Fragment JsonRules::string_except(const std::vector<std::string>& words) {
  struct Node {
    StateId state;
    std::map<std::uint8_t, std::size_t> children;
    bool word = false;
  };
  std::vector<Node> trie{{builder_.new_state(), {}, false}};
  for (const std::string& word : words) {
    const std::string text = quoted(word);
    std::size_t at = 0;
    for (const char c : text.substr(1, text.size() - 2)) {
      const auto [child, fresh] = trie[at].children.try_emplace(static_cast<std::uint8_t>(c), trie.size());
      at = child->second;
      if (fresh) trie.push_back({builder_.new_state(), {}, false});
    }
    trie[at].word = true;
  }
  const StateId free = builder_.new_state(), end = builder_.new_state();
  add_plain_bytes(free, free, {});
  add_others(free, free);
  builder_.nothing(free, end);
  for (const Node& node : trie) {
    std::vector<std::uint8_t> taken;
    for (const auto& [byte, child] : node.children) {
      builder_.bytes(node.state, byte, byte, trie[child].state);
      taken.push_back(byte);
    }
    const bool inside_character =
        std::any_of(taken.begin(), taken.end(), [](std::uint8_t byte) { return (byte & 0xC0) == 0x80; });
    if (inside_character) continue;
    add_plain_bytes(node.state, free, taken);
    if (std::none_of(taken.begin(), taken.end(), [](std::uint8_t byte) { return byte >= 0x80; }))
      builder_.call(node.state, multibyte_, free);
    if (!node.word) builder_.nothing(node.state, end);
  }
  return builder_.sequence(builder_.sequence(builder_.literal("\""), {trie[0].state, end}), builder_.literal("\""));
}

Fragment JsonRules::escaped(char32_t code_point) { return builder_.literal(spelled(utf8(code_point))); }

Fragment JsonRules::characters(const CharacterRanges& ranges) {
  std::vector<Fragment> options;
  CharacterRanges plain;
  for (const auto& [first, high] : ranges) {
    char32_t low = first;
    for (; low < 0x20 && low <= high; ++low) options.push_back(escaped(low));
    for (const char32_t special : {U'"', U'\\'}) {
      if (low > special || special > high) continue;
      if (low < special) plain.emplace_back(low, special - 1);
      options.push_back(escaped(special));
      low = special + 1;
    }
    if (low <= high) plain.emplace_back(low, high);
  }
  options.push_back(code_points(plain));
  return builder_.either(options);
}

void JsonRules::add_characters(StateId from, const CharacterRanges& ranges, StateId to) {
  CharacterRanges others;  // escaped, or of several bytes
  for (const auto& [low, high] : ranges) {
    char32_t next = low;
    for (char32_t c = std::max<char32_t>(low, 0x20); c < 0x80 && c <= high; ++c) {
      if (c == U'"' || c == U'\\') continue;
      char32_t last = c;
      while (last + 1 < 0x80 && last + 1 <= high && last + 1 != U'"' && last + 1 != U'\\') ++last;
      builder_.bytes(from, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(last), to);
      if (c > next) others.emplace_back(next, c - 1);
      next = last + 1;
      c = last;
    }
    if (next <= high) others.emplace_back(next, high);
  }
  if (others.empty()) return;
  const auto [known, fresh] = sets_.try_emplace(others, 0);
  if (fresh) {
    known->second = builder_.new_rule();
    builder_.define(known->second, characters(others));
  }
  builder_.call(from, known->second, to);
}

void JsonRules::define_values() {
  GrammarBuilder& b = builder_;
  const auto join = [&](std::initializer_list<Fragment> parts) {
    Fragment whole = b.empty();
    for (const Fragment& part : parts) whole = b.sequence(whole, part);
    return whole;
  };
  const auto list = [&](const std::function<Fragment()>& item) {
    const auto more = [&] { return join({b.literal(","), space(), item()}); };
    return b.optional(b.sequence(item(), b.repeat(0, UINT32_MAX, more)));
  };
  const auto member = [&] { return join({b.rule(string_), b.literal(":"), optional_blank(), b.rule(any_value_)}); };
  const auto item = [&] { return b.rule(any_value_); };
  b.define(any_object_, join({b.literal("{"), space(), list(member), space(), b.literal("}")}));
  const Fragment array = join({b.literal("["), space(), list(item), space(), b.literal("]")});
  b.define(any_value_, b.either({b.rule(any_object_), array, b.rule(string_), json_number(b, Numbers::all),
                                 b.literal("true"), b.literal("false"), b.literal("null")}));
}

}  // namespace millrace::text
