#include "text/constraint/grammar_reader.h"

namespace millrace::text {
namespace {

class GbnfParser : private GrammarReader {
 public:
  using GrammarReader::GrammarReader;

  Expected<GrammarTree> parse() {
    skip_space(true);
    while (!at_end()) MR_RETURN_IF_ERROR(rule());
    MR_RETURN_IF_ERROR(tree_.check("root"));
    return std::move(tree_);
  }

 private:
  void skip_space(bool line_ends) {
    while (!at_end()) {
      if (peek() == '#') {
        while (!at_end() && peek() != '\n') ++at_;
      } else if (peek() == ' ' || peek() == '\t' || (line_ends && (peek() == '\n' || peek() == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '-' || c == '_'; }

  std::uint32_t name() {
    const TextPlace place = here();
    const std::size_t begin = at_;
    while (is_word(peek())) ++at_;
    return tree_.rule(std::string(text_.substr(begin, at_ - begin)), place);
  }

  Status rule() {
    if (!is_word(peek())) return bad("a rule begins with its name");
    const TextPlace place = here();
    const std::uint32_t index = name();
    if (tree_.rules[index].defined)
      return error_at(place, fmt::format("the rule {} is defined twice", tree_.rules[index].name));
    skip_space(false);
    if (!eat("::=")) return bad("::= has to follow a rule's name");
    skip_space(true);
    MR_ASSIGN_OR_RETURN(GrammarNode body, alternatives(0));
    tree_.rules[index].place = place;
    tree_.rules[index].defined = true;
    tree_.rules[index].body = std::move(body);
    if (!at_end() && peek() != '\n' && peek() != '\r')
      return bad(peek() == ')' ? "an unexpected )" : "this is no part of a rule");
    skip_space(true);
    return {};
  }

  Expected<GrammarNode> alternatives(int depth) {
    if (depth > kMostGrammarDepth) return cannot("groups that deep");
    std::vector<GrammarNode> options;
    do {
      if (!options.empty()) skip_space(true);
      MR_ASSIGN_OR_RETURN(GrammarNode option, sequence(depth));
      options.push_back(std::move(option));
    } while (eat("|"));
    return either_node(std::move(options));
  }

  Expected<GrammarNode> sequence(int depth) {
    std::vector<GrammarNode> parts;
    for (;;) {
      const char c = peek();
      const bool begins =
          !at_end() && (c == '"' || c == '[' || c == '(' || c == '.' || c == '<' || c == '!' || is_word(c));
      if (begins) {
        MR_ASSIGN_OR_RETURN(GrammarNode part, item(depth));
        parts.push_back(std::move(part));
      } else if (!at_end() && std::string_view("*+?{").find(c) != std::string_view::npos) {
        if (parts.empty()) return bad("nothing stands here to be repeated");
        MR_RETURN_IF_ERROR(repeats(parts.back()));
      } else {
        return sequence_node(std::move(parts));
      }
      skip_space(depth > 0);
    }
  }

  Expected<GrammarNode> item(int depth) {
    if (eat("\"")) return literal();
    if (eat("[")) return characters();
    if (eat(".")) return characters_node(complement({}));
    if (peek() == '<' || peek() == '!') return cannot("tokens as terminals");
    if (eat("(")) {
      skip_space(true);
      MR_ASSIGN_OR_RETURN(GrammarNode inner, alternatives(depth + 1));
      if (!eat(")")) return bad("a ( without its )");
      return inner;
    }
    return reference_node(name());
  }

  Expected<char32_t> letter() { return eat("\\") ? escaped("\"[]-^/") : character(); }

  Expected<GrammarNode> literal() {
    std::string text;
    while (!eat("\"")) {
      if (at_end()) return bad("a \" without its end");
      MR_ASSIGN_OR_RETURN(const char32_t c, letter());
      append_utf8(c, text);
    }
    return text_node(text);
  }

  Expected<GrammarNode> characters() {
    const bool negated = eat("^");
    CharacterRanges ranges;
    while (!eat("]")) {
      if (at_end()) return bad("a [ without its ]");
      MR_ASSIGN_OR_RETURN(const char32_t low, letter());
      char32_t high = low;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        MR_ASSIGN_OR_RETURN(high, letter());
        if (high < low) return bad("a range upside down");
      }
      ranges.emplace_back(low, high);
    }
    if (ranges.empty() && !negated) return bad("a class of no characters");
    return characters_node(negated ? complement(ranges) : ranges);
  }

  Status repeats(GrammarNode& part) {
    std::uint32_t least = 0, most = UINT32_MAX;
    if (eat("+")) {
      least = 1;
    } else if (eat("?")) {
      most = 1;
    } else if (eat("{")) {
      skip_space(false);
      if (peek() != ',') {
        MR_ASSIGN_OR_RETURN(least, count());
      }
      most = least;
      skip_space(false);
      if (eat(",")) {
        most = UINT32_MAX;
        skip_space(false);
        if (is_digit(peek())) {
          MR_ASSIGN_OR_RETURN(most, count());
        }
        skip_space(false);
      }
      if (most < least) return bad("a count upside down");
      if (!eat("}")) return bad("a { without its }");
    } else {
      eat("*");
    }
    part = repeat_node(std::move(part), least, most);
    return {};
  }

  GrammarTree tree_;
};

}  // namespace

Expected<GrammarTree> parse_gbnf(std::string_view text) { return GbnfParser(text).parse(); }

}  // namespace millrace::text
