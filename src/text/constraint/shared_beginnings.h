// Alternatives that begin with texts, as one tree of their beginnings: a matcher then stands at a few places, however
// many there are. For the trees of written grammars and of patterns. Inside of text/constraint/ only.
// Thread-safety: as GrammarBuilder.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/constraint/character_rules.h"
#include "text/utf8.h"

namespace millrace::text {

/// Appends what a node says where that is one text. False: it is not, and nothing was appended.
template <typename Node>
bool append_text(const Node& node, std::string& text) {
  const std::size_t before = text.size();
  if (node.kind == Node::Kind::characters) {
    const bool one = node.ranges.size() == 1 && node.ranges[0].first == node.ranges[0].second;
    if (one) append_utf8(node.ranges[0].first, text);
    return one;
  }
  if (node.kind != Node::Kind::sequence) return false;
  for (const Node& part : node.parts)
    if (!append_text(part, text)) {
      text.resize(before);
      return false;
    }
  return true;
}

/// Appends the text that a node begins with, and writes what follows it.
template <typename Node, typename Make>
Expected<Fragment> take_beginning(GrammarBuilder& builder, const Node& node, std::string& text, Make make) {
  if (append_text(node, text)) return builder.empty();
  if (node.kind != Node::Kind::sequence) return make(node);
  std::size_t taken = 0;
  while (append_text(node.parts[taken], text)) ++taken;  // not all of them, or the node would be a text
  MR_ASSIGN_OR_RETURN(Fragment rest, take_beginning(builder, node.parts[taken], text, make));
  for (const Node& part : std::span(node.parts).subspan(taken + 1)) {
    MR_ASSIGN_OR_RETURN(const Fragment next, make(part));
    rest = builder.sequence(rest, next);
  }
  return rest;
}

/// One of the options. `make` writes a node: Expected<Fragment>(const Node&). Errors: its own.
template <typename Node, typename Make>
Expected<Fragment> either_by_beginnings(GrammarBuilder& builder, const CharacterRules& rules,
                                        const std::vector<Node>& options, Make make) {
  std::vector<Fragment> others;
  std::vector<std::pair<std::string, Fragment>> texts;
  for (const Node& option : options) {
    std::string text;
    MR_ASSIGN_OR_RETURN(const Fragment rest, take_beginning(builder, option, text, make));
    if (text.empty()) {
      others.push_back(rest);
    } else {
      texts.emplace_back(rules.spelled(text), rest);
    }
  }
  if (!texts.empty()) others.push_back(builder.either_behind(texts));
  return others.size() == 1 ? others[0] : builder.either(others);
}

}  // namespace millrace::text
