#include "text/constraint/grammar_tree.h"

#include <algorithm>

#include "text/utf8.h"

namespace millrace::text {

TextPlace place_of(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte);
  const std::size_t line_begin = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  const std::string_view line = before.substr(line_begin);
  const auto characters = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
  return {static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')) + 1,
          static_cast<std::size_t>(characters) + 1};
}

Status error_at(TextPlace place, std::string_view what, Code code) {
  return error(code, "line {}, column {}: {}", place.line, place.column, what);
}

std::uint32_t GrammarTree::rule(const std::string& name, TextPlace place) {
  const auto [known, fresh] = names_.try_emplace(name, static_cast<std::uint32_t>(rules.size()));
  if (fresh) {
    rules.emplace_back();
    rules.back().name = name;
    rules.back().place = place;
  }
  return known->second;
}

Status GrammarTree::check(const std::string& root_name) {
  for (const GrammarRule& rule : rules)
    if (!rule.defined) return error_at(rule.place, fmt::format("the rule {} is not defined", rule.name));
  const auto found = names_.find(root_name);
  if (found == names_.end())
    return error_at({}, fmt::format("there is no rule {}, with which a text begins", root_name));
  root = found->second;
  return {};
}

namespace {

GrammarNode unfolded(GrammarNode body, std::uint32_t own) {
  const auto is_own = [&](const GrammarNode& node) {
    return node.kind == GrammarNode::Kind::reference && node.rule == own;
  };
  std::vector<GrammarNode> options, tails, firsts;
  if (body.kind == GrammarNode::Kind::either) {
    options = std::move(body.parts);
  } else {
    options.push_back(std::move(body));
  }
  for (GrammarNode& option : options) {
    const bool sequence = option.kind == GrammarNode::Kind::sequence && !option.parts.empty();
    if (is_own(option)) continue;  // says nothing
    if (sequence && is_own(option.parts[0])) {
      option.parts.erase(option.parts.begin());
      tails.push_back(std::move(option));
    } else {
      firsts.push_back(std::move(option));
    }
  }
  GrammarNode first = either_node(std::move(firsts));
  if (tails.empty()) return first;
  std::vector<GrammarNode> parts;
  parts.push_back(std::move(first));
  parts.push_back(repeat_node(either_node(std::move(tails)), 0, UINT32_MAX));
  return sequence_node(std::move(parts));
}

}  // namespace

void GrammarTree::unfold_left_recursion() {
  for (std::uint32_t i = 0; i < rules.size(); ++i) rules[i].body = unfolded(std::move(rules[i].body), i);
}

GrammarNode characters_node(CharacterRanges ranges) {
  GrammarNode node;
  node.kind = GrammarNode::Kind::characters;
  node.ranges = tidy(std::move(ranges));
  return node;
}

GrammarNode text_node(std::string_view utf8, bool case_free) {
  GrammarNode node;
  for (std::size_t at = 0; at < utf8.size();) {
    const Utf8Step step = next_utf8(utf8.substr(at));
    const char32_t c = decode_utf8(utf8.substr(at, step.bytes));
    const CharacterRanges one = {{c, c}};
    node.parts.push_back(characters_node(case_free ? any_case(one) : one));
    at += step.bytes;
  }
  return node;
}

GrammarNode reference_node(std::uint32_t rule) {
  GrammarNode node;
  node.kind = GrammarNode::Kind::reference;
  node.rule = rule;
  return node;
}

GrammarNode repeat_node(GrammarNode part, std::uint32_t least, std::uint32_t most) {
  GrammarNode node;
  node.kind = GrammarNode::Kind::repeat;
  node.least = least;
  node.most = most;
  node.parts.push_back(std::move(part));
  return node;
}

GrammarNode either_node(std::vector<GrammarNode> options) {
  if (options.size() == 1) return std::move(options[0]);
  GrammarNode node;
  node.kind = GrammarNode::Kind::either;
  node.parts = std::move(options);
  return node;
}

GrammarNode sequence_node(std::vector<GrammarNode> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  GrammarNode node;
  node.parts = std::move(parts);
  return node;
}

std::string words_of(const GrammarNode& node) {
  std::string words = fmt::format("{}[", static_cast<int>(node.kind));
  for (const auto& [first, last] : node.ranges)
    words += fmt::format("{}-{} ", static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last));
  words += fmt::format("{}:{} {}{} #{} {},{} ", node.pattern.size(), node.pattern, node.any_case, node.dots, node.rule,
                       node.least, node.most);
  for (const GrammarNode& part : node.parts) words += words_of(part);
  return words + "]";
}

}  // namespace millrace::text
