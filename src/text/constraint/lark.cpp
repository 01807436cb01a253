#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "text/constraint/grammar_reader.h"
#include "text/constraint/lark_common.h"

namespace millrace::text {
namespace {

class LarkParser : private GrammarReader {
 public:
  using GrammarReader::GrammarReader;

  Expected<GrammarTree> parse() {
    for (skip_lines(); !at_end(); skip_lines()) MR_RETURN_IF_ERROR(peek() == '%' ? directive() : definition());
    MR_RETURN_IF_ERROR(write_out_templates());
    MR_RETURN_IF_ERROR(tree_.check("start"));
    tree_.unfold_left_recursion();
    if (!ignored_.empty()) let_ignore();
    return std::move(tree_);
  }

 private:
  // --- Space ---

  /// Spaces and comments of a line.
  void skip_space() {
    while (!at_end()) {
      const bool comment = peek() == '#' || (peek() == '/' && peek(1) == '/');
      if (comment) {
        while (!at_end() && peek() != '\n') ++at_;
      } else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\f') {
        ++at_;
      } else if (peek() == '\\' && peek(1) == '\n') {
        at_ += 2;
      } else {
        return;
      }
    }
  }
  void skip_lines() {
    for (skip_space(); eat("\n"); skip_space()) {
    }
  }
  /// A definition goes on in the next line where that begins with |, and anywhere within a group.
  void skip_to_more(bool in_group) {
    skip_space();
    const std::size_t line_end = at_;
    skip_lines();
    if (!in_group && peek() != '|') at_ = line_end;
  }

  // --- Definitions ---

  static bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }
  static bool is_terminal(std::string_view name) {
    const auto first = std::find_if(name.begin(), name.end(), is_letter);
    return first != name.end() && *first >= 'A' && *first <= 'Z';
  }

  Expected<std::string> name() {
    const std::size_t begin = at_;
    if (!is_digit(peek()))
      while (is_word(peek())) ++at_;
    if (at_ == begin) return bad("a name is missing here");
    return std::string(text_.substr(begin, at_ - begin));
  }

  /// How a definition stands to an earlier one of the same name.
  enum class Earlier { none, replaced, extended };

  Status define(const std::string& name, TextPlace place, GrammarNode body, Earlier earlier = Earlier::none) {
    GrammarRule& rule = tree_.rules[tree_.rule(name, place)];
    if (rule.defined && earlier == Earlier::none) return error_at(place, fmt::format("{} is defined twice", name));
    if (!rule.defined && earlier != Earlier::none)
      return error_at(place, fmt::format("{} is not defined before this", name));
    rule.place = place;
    rule.defined = true;
    if (earlier == Earlier::extended) {
      std::vector<GrammarNode> options;
      options.push_back(std::move(rule.body));
      options.push_back(std::move(body));
      body = either_node(std::move(options));
    }
    rule.body = std::move(body);
    return {};
  }

  Status end_of_line(std::string_view what) {
    skip_space();
    if (!at_end() && peek() != '\n') return bad(fmt::format("this is no part of {}", what));
    return {};
  }

  /// "name: expansions", with marks and a priority that say nothing here.
  Status definition(Earlier earlier = Earlier::none) {
    while (peek() == '?' || peek() == '!') ++at_;
    const TextPlace place = here();
    MR_ASSIGN_OR_RETURN(const std::string word, name());
    if (peek() == '{') return template_definition(word, place);
    skip_space();
    if (eat(".")) {
      eat("-");
      MR_RETURN_IF_ERROR(count().status());
      skip_space();
    }
    if (!eat(":")) return bad("a : has to follow the name that is defined");
    in_terminal_ = is_terminal(word);
    MR_ASSIGN_OR_RETURN(GrammarNode body, alternatives(0));
    MR_RETURN_IF_ERROR(define(word, place, std::move(body), earlier));
    return end_of_line("a rule");
  }

  Status directive() {
    if (eat("%ignore")) {
      in_terminal_ = true;
      MR_ASSIGN_OR_RETURN(GrammarNode what, alternatives(0));
      ignored_.push_back(std::move(what));
      return end_of_line("%ignore");
    }
    if (eat("%import")) return import();
    for (const auto& [word, earlier] :
         {std::pair("%override", Earlier::replaced), std::pair("%extend", Earlier::extended)}) {
      if (!eat(word)) continue;
      skip_space();
      return definition(earlier);
    }
    if (peek(1) == 'd')
      return error_at(here(), "%declare names terminals that have no texts; define them", Code::unsupported);
    return cannot("directives other than %import, %ignore, %override and %extend");
  }

  Status import() {
    skip_space();
    if (!eat("common")) return cannot("imports of other libraries than common");
    skip_space();
    if (eat(".")) {
      MR_RETURN_IF_ERROR(import_one());
      return end_of_line("%import");
    }
    if (!eat("(")) return bad("a terminal of common is missing here");
    do {
      skip_space();
      MR_RETURN_IF_ERROR(import_one());
      skip_space();
    } while (eat(","));
    if (!eat(")")) return bad("a ( without its )");
    return end_of_line("%import");
  }

  /// A terminal of common, maybe under another name.
  Status import_one() {
    const TextPlace place = here();
    MR_ASSIGN_OR_RETURN(const std::string word, name());
    const std::optional<std::string_view> known = lark_common_terminal(word);
    if (!known) return error_at(place, fmt::format("common has no terminal {}", word));
    std::string as = word;
    skip_space();
    if (eat("->")) {
      skip_space();
      MR_ASSIGN_OR_RETURN(as, name());
    }
    GrammarNode body;
    body.kind = GrammarNode::Kind::pattern;
    body.pattern = *known;
    body.place = place;
    return define(as, place, std::move(body));
  }

  // --- Templates ---

  /// "name{a, b}: ...": its text is read for each use that differs, with what then stands for a and b.
  struct Template {
    std::vector<std::string> parameters;
    std::size_t begin = 0, end = 0;
  };
  struct Use {
    std::uint32_t rule = 0;  // that the use becomes
    std::string name;
    std::vector<std::uint32_t> arguments;  // rules
    TextPlace place;
  };

  Status template_definition(const std::string& word, TextPlace place) {
    Template made;
    ++at_;
    do {
      skip_space();
      MR_ASSIGN_OR_RETURN(const std::string parameter, name());
      made.parameters.push_back(parameter);
      skip_space();
    } while (eat(","));
    if (!eat("}")) return bad("a { without its }");
    skip_space();
    if (!eat(":")) return bad("a : has to follow the name that is defined");
    made.begin = at_;
    for (const std::string& parameter : made.parameters) meaning_[parameter] = kIgnored;
    in_terminal_ = is_terminal(word);
    in_template_ = true;
    MR_RETURN_IF_ERROR(alternatives(0).status());  // nothing but whether it can be read
    in_template_ = false;
    meaning_.clear();
    made.end = at_;
    if (!templates_.emplace(word, std::move(made)).second)
      return error_at(place, fmt::format("{} is defined twice", word));
    return end_of_line("a rule");
  }

  /// "name{x, y}": a rule, the same for the same arguments, so that templates may refer to themselves.
  Expected<GrammarNode> template_use(const std::string& word, TextPlace place, int depth) {
    Use use{0, word, {}, place};
    std::string key = word + "{";
    ++at_;
    do {
      skip_to_more(true);
      MR_ASSIGN_OR_RETURN(const std::uint32_t argument, this->argument(depth));
      use.arguments.push_back(argument);
      key += fmt::format("{},", argument);
      skip_to_more(true);
    } while (eat(","));
    if (!eat("}")) return bad("a { without its }");
    if (in_template_) return GrammarNode();
    use.rule = tree_.rule(key + "}", place);
    GrammarNode node = reference_node(use.rule);
    if (std::exchange(tree_.rules[use.rule].defined, true)) return node;
    uses_.push_back(std::move(use));
    return node;
  }

  /// What is no rule becomes one, the same for the same words.
  Expected<std::uint32_t> argument(int depth) {
    const TextPlace place = here();
    MR_ASSIGN_OR_RETURN(GrammarNode node, atom(depth + 1));
    MR_RETURN_IF_ERROR(repeats(node));
    if (in_template_) return kIgnored;
    if (node.kind == GrammarNode::Kind::reference) return node.rule;
    const std::uint32_t rule = tree_.rule(" " + words_of(node), place);
    tree_.rules[rule].defined = true;
    tree_.rules[rule].body = std::move(node);
    return rule;
  }

  /// Reads the templates' texts for their uses, and for those within them.
  Status write_out_templates() {
    for (std::size_t i = 0; i < uses_.size(); ++i) {
      const Use use = uses_[i];
      const auto found = templates_.find(use.name);
      if (found == templates_.end())
        return error_at(use.place, fmt::format("the template {} is not defined", use.name));
      const Template& made = found->second;
      if (made.parameters.size() != use.arguments.size())
        return error_at(use.place, fmt::format("the template {} takes {} arguments", use.name, made.parameters.size()));
      tree_.template_bytes += made.end - made.begin;
      if (tree_.template_bytes > kMostTemplateBytes)
        return error_at(use.place, fmt::format("templates come to more than {} bytes", kMostTemplateBytes));
      meaning_.clear();
      for (std::size_t each = 0; each < made.parameters.size(); ++each)
        meaning_[made.parameters[each]] = use.arguments[each];
      in_terminal_ = is_terminal(use.name);
      at_ = made.begin;
      MR_ASSIGN_OR_RETURN(GrammarNode body, alternatives(0));
      tree_.rules[use.rule].body = std::move(body);
    }
    meaning_.clear();
    return {};
  }

  // --- Expansions ---

  Expected<GrammarNode> alternatives(int depth) {
    if (depth > kMostGrammarDepth) return cannot("groups that deep");
    std::vector<GrammarNode> options;
    do {
      MR_ASSIGN_OR_RETURN(GrammarNode option, sequence(depth));
      options.push_back(std::move(option));
    } while (eat("|"));
    return either_node(std::move(options));
  }

  Expected<GrammarNode> sequence(int depth) {
    std::vector<GrammarNode> parts;
    for (;;) {
      skip_to_more(depth > 0);
      const char c = peek();
      if (at_end() || c == '|' || c == ')' || c == ']' || c == '\n') break;
      if (eat("->")) {  // what a parser calls this alternative
        skip_space();
        MR_RETURN_IF_ERROR(name().status());
        continue;
      }
      MR_ASSIGN_OR_RETURN(GrammarNode part, atom(depth));
      MR_RETURN_IF_ERROR(repeats(part));
      parts.push_back(std::move(part));
    }
    return sequence_node(std::move(parts));
  }

  Expected<GrammarNode> atom(int depth) {
    if (eat("(")) {
      MR_ASSIGN_OR_RETURN(GrammarNode inner, alternatives(depth + 1));
      if (!eat(")")) return bad("a ( without its )");
      return inner;
    }
    if (eat("[")) {
      MR_ASSIGN_OR_RETURN(GrammarNode inner, alternatives(depth + 1));
      if (!eat("]")) return bad("a [ without its ]");
      return repeat_node(std::move(inner), 0, 1);
    }
    if (peek() == '"') return literal();
    if (peek() == '/') return pattern();
    if (!is_word(peek()) || is_digit(peek())) return bad("this begins no part of a rule");
    const TextPlace place = here();
    MR_ASSIGN_OR_RETURN(const std::string word, name());
    if (peek() == '{') return template_use(word, place, depth);
    if (const auto meant = meaning_.find(word); meant != meaning_.end()) return reference_node(meant->second);
    if (in_terminal_ && !is_terminal(word))
      return error_at(place, fmt::format("a terminal cannot hold the rule {}", word));
    const std::uint32_t rule = tree_.rule(word, place);
    return is_terminal(word) ? token(reference_node(rule)) : reference_node(rule);
  }

  /// A terminal within a rule: what is ignored may follow it.
  GrammarNode token(GrammarNode terminal) const {
    if (in_terminal_) return terminal;
    std::vector<GrammarNode> parts;
    parts.push_back(std::move(terminal));
    parts.push_back(reference_node(kIgnored));
    return sequence_node(std::move(parts));
  }

  Expected<std::string> quoted() {
    if (!eat("\"")) return bad("a text in quotes is missing here");
    std::string text;
    while (!eat("\"")) {
      if (at_end() || peek() == '\n') return bad("a \" without its end");
      char32_t c = 0;
      if (eat("\\")) {
        MR_ASSIGN_OR_RETURN(c, escaped("\"/"));
      } else {
        MR_ASSIGN_OR_RETURN(c, character());
      }
      append_utf8(c, text);
    }
    return text;
  }

  Expected<GrammarNode> literal() {
    const TextPlace place = here();
    MR_ASSIGN_OR_RETURN(const std::string text, quoted());
    if (eat("..")) {
      MR_ASSIGN_OR_RETURN(const std::string last, quoted());
      const GrammarNode low = text_node(text), high = text_node(last);
      if (low.parts.size() != 1 || high.parts.size() != 1)
        return error_at(place, "a range has a character at each end");
      const char32_t from = low.parts[0].ranges[0].first, to = high.parts[0].ranges[0].first;
      if (to < from) return error_at(place, "a range upside down");
      return token(characters_node({{from, to}}));
    }
    const bool case_free = eat("i");
    return token(text_node(text, case_free));
  }

  Expected<GrammarNode> pattern() {
    GrammarNode node;
    node.kind = GrammarNode::Kind::pattern;
    node.place = here();
    ++at_;
    while (peek() != '/') {
      if (at_end() || peek() == '\n') return error_at(node.place, "a regular expression without its end");
      if (peek() == '\\') node.pattern += text_[at_++];
      if (!at_end()) node.pattern += text_[at_++];
    }
    ++at_;
    while (is_letter(peek())) {
      const char flag = peek();
      if (flag == 'i') node.any_case = true;
      if (flag == 's') node.dots = true;
      if (flag != 'i' && flag != 's' && flag != 'u')
        return cannot("flags of regular expressions other than i, s and u");
      ++at_;
    }
    return token(std::move(node));
  }

  Status repeats(GrammarNode& part) {
    skip_space();
    std::uint32_t least = 0, most = UINT32_MAX;
    if (eat("+")) {
      least = 1;
    } else if (eat("?")) {
      most = 1;
    } else if (eat("~")) {
      skip_space();
      MR_ASSIGN_OR_RETURN(least, count());
      most = least;
      if (eat("..")) {
        MR_ASSIGN_OR_RETURN(most, count());
      }
      if (most < least) return bad("a count upside down");
    } else if (!eat("*")) {
      return {};
    }
    part = repeat_node(std::move(part), least, most);
    return {};
  }

  // --- What is ignored ---

  /// Fills the rule that stands behind every terminal, and lets a text begin with what is ignored.
  void let_ignore() {
    tree_.rules[kIgnored].body = repeat_node(either_node(std::move(ignored_)), 0, UINT32_MAX);
    const std::uint32_t whole = tree_.rule(" whole", tree_.rules[tree_.root].place);
    std::vector<GrammarNode> parts;
    parts.push_back(reference_node(kIgnored));
    parts.push_back(reference_node(tree_.root));
    tree_.rules[whole].defined = true;
    tree_.rules[whole].body = sequence_node(std::move(parts));
    tree_.root = whole;
  }

  static GrammarTree with_ignored() {
    GrammarTree tree;
    tree.rules[tree.rule(" ignored", {})].defined = true;
    return tree;
  }

  static constexpr std::uint32_t kIgnored = 0;  // the first rule: empty where nothing is ignored
  GrammarTree tree_ = with_ignored();
  std::vector<GrammarNode> ignored_;
  std::map<std::string, Template> templates_;
  std::vector<Use> uses_;
  std::map<std::string, std::uint32_t> meaning_;  // of a template's parameters: rules
  bool in_terminal_ = false;
  bool in_template_ = false;  // its definition is looked at: parameters mean nothing yet
};

}  // namespace

Expected<GrammarTree> parse_lark(std::string_view text) { return LarkParser(text).parse(); }

}  // namespace millrace::text
