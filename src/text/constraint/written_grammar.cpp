#include "text/constraint/written_grammar.h"

#include <optional>
#include <string>
#include <vector>

#include "text/constraint/grammar_tree.h"
#include "text/constraint/json_rules.h"
#include "text/constraint/pattern.h"
#include "text/constraint/shared_beginnings.h"
#include "text/utf8.h"

namespace millrace::text {
namespace {

constexpr std::size_t kMostGrammarBytes = 128 << 10;
constexpr std::uint64_t kBytesACharacter = 256;  // of a tree, about: a character may become a node

using NodeKind = GrammarNode::Kind;

/// A rule of the automaton that was a rule of the text.
struct Origin {
  RuleId id;
  std::string name;
  TextPlace place;
};
struct Written {
  Fragment whole;
  std::vector<Origin> origins;
};

/// Writes the rules of a tree, one rule of the automaton each.
class TreeWriter {
 public:
  TreeWriter(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets, const GrammarTree& tree)
      : builder_(builder), rules_(rules), sets_(sets), tree_(tree) {}

  Expected<Written> write() {
    Written written;
    for (const GrammarRule& rule : tree_.rules) {
      ids_.push_back(builder_.new_rule());
      written.origins.push_back({ids_.back(), rule.name, rule.place});
    }
    for (std::size_t i = 0; i < tree_.rules.size() && !builder_.full(); ++i) {
      MR_ASSIGN_OR_RETURN(const Fragment body, node(tree_.rules[i].body));
      builder_.define(ids_[i], body);
    }
    written.whole = builder_.rule(ids_[tree_.root]);
    return written;
  }

 private:
  Expected<Fragment> node(const GrammarNode& node) {
    if (builder_.full()) return builder_.empty();
    switch (node.kind) {
      case NodeKind::characters:
        return rules_.any_of(node.ranges);
      case NodeKind::pattern:
        return pattern(node);
      case NodeKind::reference:
        return builder_.rule(ids_[node.rule]);
      case NodeKind::either:
        return either_by_beginnings(builder_, rules_, node.parts,
                                    [&](const GrammarNode& part) { return this->node(part); });
      case NodeKind::repeat: {
        Status bad;
        const Fragment whole = builder_.repeat(node.least, node.most, [&] {
          auto copy = this->node(node.parts[0]);
          if (copy.ok()) return *copy;
          bad = copy.status();
          return builder_.empty();
        });
        MR_RETURN_IF_ERROR(bad);
        return whole;
      }
      case NodeKind::sequence:
        break;
    }
    Fragment whole = builder_.empty();
    for (const GrammarNode& part : node.parts) {
      MR_ASSIGN_OR_RETURN(const Fragment next, this->node(part));
      whole = builder_.sequence(whole, next);
    }
    return whole;
  }

  Expected<Fragment> pattern(const GrammarNode& node) {
    auto made = whole_pattern_fragment(builder_, rules_, sets_, node.pattern,
                                       {.any_case = node.any_case, .dot_is_all = node.dots, .dot_is_line = true});
    if (!made.ok()) {
      const Status status = made.status();
      return error_at(node.place, status.message(), status.code());
    }
    return made;
  }

  GrammarBuilder& builder_;
  CharacterRules& rules_;
  RegularSets& sets_;
  const GrammarTree& tree_;
  std::vector<RuleId> ids_;
};

Expected<Fragment> regex_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                  std::string_view text) {
  std::size_t failed_at = 0;
  auto made = whole_pattern_fragment(builder, rules, sets, text, {.dot_is_line = true, .failed_at = &failed_at});
  if (made.ok()) return made;
  const Status status = made.status();
  return error_at(place_of(text, failed_at), status.message(), status.code());
}

Status check_text(std::string_view text) {
  if (text.size() > kMostGrammarBytes)
    return error(Code::invalid_argument, "it has {} bytes; {} are the most", text.size(), kMostGrammarBytes);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (step.kind != Utf8Kind::character) return error_at(place_of(text, at), "bytes that are no UTF-8");
    at += step.bytes;
  }
  return {};
}

Status too_large() { return error(Code::invalid_argument, "it is too large; use fewer rules and smaller repeats"); }

Expected<Written> write(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets, GrammarSyntax syntax,
                        std::string_view text) {
  MR_RETURN_IF_ERROR(check_text(text));
  if (syntax == GrammarSyntax::regex) {
    MR_ASSIGN_OR_RETURN(const Fragment whole, regex_fragment(builder, rules, sets, text));
    return Written{whole, {}};
  }
  std::uint64_t tree_bytes = text.size() * kBytesACharacter;
  if (!builder.charge(tree_bytes)) return too_large();
  auto tree = syntax == GrammarSyntax::gbnf ? parse_gbnf(text) : parse_lark(text);
  if (tree.ok() && tree->template_bytes > 0) {
    if (!builder.charge(tree->template_bytes * kBytesACharacter)) return too_large();
    tree_bytes += tree->template_bytes * kBytesACharacter;
  }
  Expected<Written> written = tree.ok() ? TreeWriter(builder, rules, sets, *tree).write() : tree.status();
  builder.discharge(tree_bytes);
  return written;
}

}  // namespace

Expected<GrammarSyntax> grammar_syntax(std::string_view name) {
  if (name == "gbnf") return GrammarSyntax::gbnf;
  if (name == "lark") return GrammarSyntax::lark;
  if (name == "regex") return GrammarSyntax::regex;
  return error(Code::unsupported, "grammars of syntax {} are not supported; lark and regex are", name);
}

Expected<Fragment> written_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                    GrammarSyntax syntax, std::string_view text) {
  MR_ASSIGN_OR_RETURN(const Written written, write(builder, rules, sets, syntax, text));
  return written.whole;
}

Expected<std::shared_ptr<const Grammar>> written_grammar(GrammarSyntax syntax, std::string_view text,
                                                         const BuildLimits& limits, const GrammarPlace& place) {
  GrammarBuilder builder(limits);
  PlainRules plain(builder);
  std::optional<JsonRules> json;
  if (place.in_json) json.emplace(builder);
  CharacterRules& rules = json ? static_cast<CharacterRules&>(*json) : plain;
  RegularSets sets(builder);
  MR_ASSIGN_OR_RETURN(const Written written, write(builder, rules, sets, syntax, text));
  const RuleId root = builder.new_rule();
  const Fragment begin = builder.literal(place.begin), end = builder.literal(place.end);
  if (place.then_anything) builder.bytes(end.end, 0, 0xFF, end.end);
  builder.define(root, builder.sequence(builder.sequence(begin, written.whole), end));
  auto made = builder.finish(root);
  if (made.ok() || made.status().code() == Code::cancelled) return made;
  if (builder.full()) return too_large();
  for (const Origin& origin : written.origins)
    if (origin.id == builder.at_fault())
      return error_at(origin.place, fmt::format("the rule {} comes back to itself before a character", origin.name));
  return error_at({}, "no text of finite length keeps it");
}

}  // namespace millrace::text
