#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "text/jinja/write.h"

namespace millrace::text::jinja {

namespace {

constexpr int kMaxNesting = 100;  // of the parser's own recursion
constexpr int kMaxDepth = 250;    // of a tree of expressions

/// The depth of a node over these; fails for a tree that no honest template has.
template <typename... Below>
int over(const Below&... below) {
  int depth = 0;
  ((depth = std::max(depth, below ? below->depth : 0)), ...);
  if (depth >= kMaxDepth) fail("an expression nests deeper than {} levels", kMaxDepth);
  return depth + 1;
}

int over_all(int depth, const Exprs& more) {
  for (const ExprPtr& expr : more) depth = std::max(depth, over(expr));
  return depth;
}

int over_call(const CallArguments& arguments) {
  int depth = over_all(over(arguments.more_positional, arguments.more_named), arguments.positional);
  for (const auto& named : arguments.named) depth = std::max(depth, over(named.second));
  return depth;
}

ExprPtr literal(Value value) { return std::make_unique<Literal>(std::move(value)); }

ExprPtr arithmetic(Operator op, ExprPtr left, ExprPtr right) {
  auto node = std::make_unique<Arithmetic>();
  node->depth = over(left, right);
  node->op = op;
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

ExprPtr logic(bool all, ExprPtr left, ExprPtr right) {
  auto node = std::make_unique<Logic>();
  node->depth = over(left, right);
  node->all = all;
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

}  // namespace

ExpressionParser::Nested::Nested(ExpressionParser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kMaxNesting) fail("it nests deeper than {} levels", kMaxNesting);
  ++parser_.nesting_;
}

bool ExpressionParser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected(op);
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) unexpected(name);
}

std::string ExpressionParser::take_name() {
  if (now().kind != TokenKind::name) unexpected("a name");
  std::string name = now().text;
  next();
  return name;
}

void ExpressionParser::unexpected(std::string_view wanted) const {
  switch (now().kind) {
    case TokenKind::end:
      fail("the template ends where '{}' should stand", wanted);
    case TokenKind::variable_end:
    case TokenKind::block_end:
      fail("a tag ends where '{}' should stand", wanted);
    default:
      fail("'{}' stands where '{}' should", now().text.substr(0, 40), wanted);
  }
}

bool ExpressionParser::mentions(std::size_t begin, std::string_view name) const {
  return std::any_of(tokens_.begin() + static_cast<std::ptrdiff_t>(begin),
                     tokens_.begin() + static_cast<std::ptrdiff_t>(at_),
                     [&](const Token& token) { return token.kind == TokenKind::name && token.text == name; });
}

Name ExpressionParser::intern(const std::string& name) {
  const auto [place, is_new] = interned_.try_emplace(name, static_cast<Name>(names_.size()));
  if (is_new) names_.push_back(name);
  return place->second;
}

ExprPtr ExpressionParser::expression() {
  const Nested nested(*this);
  ExprPtr value = logical_or();
  while (skip_name("if")) {
    auto node = std::make_unique<Conditional>();
    node->condition = logical_or();
    if (skip_name("else")) node->otherwise = expression();
    node->depth = over(value, node->condition, node->otherwise);
    node->then = std::move(value);
    value = std::move(node);
  }
  return value;
}

ExprPtr ExpressionParser::tuple(bool conditional) {
  const auto one = [&] { return conditional ? expression() : logical_or(); };
  ExprPtr first = one();
  if (!is_op(",")) return first;
  auto node = std::make_unique<ListDisplay>();
  node->tuple = true;
  node->items.push_back(std::move(first));
  while (skip_op(",")) {
    const bool over_now = now().kind == TokenKind::variable_end || now().kind == TokenKind::block_end || is_op(")");
    if (over_now || is_name("in")) break;
    node->items.push_back(one());
  }
  node->depth = over_all(1, node->items);
  return node;
}

ExprPtr ExpressionParser::logical_or() {
  ExprPtr left = logical_and();
  while (skip_name("or")) left = logic(false, std::move(left), logical_and());
  return left;
}

ExprPtr ExpressionParser::logical_and() {
  ExprPtr left = logical_not();
  while (skip_name("and")) left = logic(true, std::move(left), logical_not());
  return left;
}

ExprPtr ExpressionParser::logical_not() {
  if (!skip_name("not")) return comparison();
  const Nested nested(*this);
  auto node = std::make_unique<Negation>();
  node->of = logical_not();
  node->depth = over(node->of);
  return node;
}

ExprPtr ExpressionParser::comparison() {
  constexpr std::array<std::string_view, 6> kSpelled = {"==", "!=", "<", "<=", ">", ">="};
  ExprPtr first = sum();
  std::unique_ptr<Comparison> node;
  while (true) {
    Comparator comparator = Comparator::equal;
    const auto found =
        now().kind == TokenKind::op ? std::find(kSpelled.begin(), kSpelled.end(), now().text) : kSpelled.end();
    if (found != kSpelled.end()) {
      comparator = static_cast<Comparator>(found - kSpelled.begin());
      next();
    } else if (skip_name("in")) {
      comparator = Comparator::in;
    } else if (is_name("not") && ahead().kind == TokenKind::name && ahead().text == "in") {
      comparator = Comparator::not_in;
      next();
      next();
    } else {
      break;
    }
    if (!node) {
      node = std::make_unique<Comparison>();
      node->depth = over(first);
      node->first = std::move(first);
    }
    ExprPtr operand = sum();
    node->depth = std::max(node->depth, over(operand));
    node->rest.emplace_back(comparator, std::move(operand));
  }
  if (!node) return first;
  return node;
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concatenation();
  while (is_op("+") || is_op("-")) {
    const Operator op = is_op("+") ? Operator::add : Operator::subtract;
    next();
    left = arithmetic(op, std::move(left), concatenation());
  }
  return left;
}

ExprPtr ExpressionParser::concatenation() {
  ExprPtr first = product();
  if (!is_op("~")) return first;
  auto node = std::make_unique<Concatenation>();
  node->parts.push_back(std::move(first));
  while (skip_op("~")) node->parts.push_back(product());
  node->depth = over_all(1, node->parts);
  return node;
}

ExprPtr ExpressionParser::product() {
  ExprPtr left = power();
  while (true) {
    Operator op = Operator::multiply;
    if (is_op("/")) {
      op = Operator::divide;
    } else if (is_op("//")) {
      op = Operator::floor_divide;
    } else if (is_op("%")) {
      op = Operator::modulo;
    } else if (!is_op("*")) {
      return left;
    }
    next();
    left = arithmetic(op, std::move(left), power());
  }
}

ExprPtr ExpressionParser::power() {
  ExprPtr left = unary(true);
  while (skip_op("**")) left = arithmetic(Operator::power, std::move(left), unary(true));
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  ExprPtr value;
  if (is_op("-") || is_op("+")) {
    const Nested nested(*this);
    auto node = std::make_unique<Sign>();
    node->negative = is_op("-");
    next();
    node->of = unary(false);
    node->depth = over(node->of);
    value = std::move(node);
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::primary() {
  const Token& token = now();
  switch (token.kind) {
    case TokenKind::name: {
      const std::string name = take_name();
      if (name == "true" || name == "True") return literal(Value::boolean(true));
      if (name == "false" || name == "False") return literal(Value::boolean(false));
      if (name == "none" || name == "None") return literal(Value::none());
      return std::make_unique<Variable>(intern(name));
    }
    case TokenKind::string: {
      std::string text;
      for (; now().kind == TokenKind::string; next()) text += now().text;
      return literal(Value::string(nullptr, std::move(text), true));
    }
    case TokenKind::integer:
    case TokenKind::real:
      return number();
    case TokenKind::op:
      if (token.text == "(") return parenthesis();
      if (token.text == "[") return list_display();
      if (token.text == "{") return dict_display();
      break;
    default:
      break;
  }
  unexpected("a value");
}

ExprPtr ExpressionParser::number() {
  const std::string text = now().text;
  const bool whole = now().kind == TokenKind::integer;
  next();
  if (!whole) return literal(Value::real(std::strtod(text.c_str(), nullptr)));
  const std::optional<Whole> value = read_whole(text, 10);
  if (!value) fail("'{}' is no number", text.substr(0, 40));
  return literal(Value::integer(*value));
}

ExprPtr ExpressionParser::parenthesis() {
  expect_op("(");
  if (skip_op(")")) {
    auto empty = std::make_unique<ListDisplay>();
    empty->tuple = true;
    return empty;
  }
  ExprPtr inner = tuple();
  expect_op(")");
  return inner;
}

ExprPtr ExpressionParser::list_display() {
  auto node = std::make_unique<ListDisplay>();
  expect_op("[");
  while (!skip_op("]")) {
    if (!node->items.empty()) {
      expect_op(",");
      if (skip_op("]")) break;
    }
    node->items.push_back(expression());
  }
  node->depth = over_all(1, node->items);
  return node;
}

ExprPtr ExpressionParser::dict_display() {
  auto node = std::make_unique<DictDisplay>();
  expect_op("{");
  while (!skip_op("}")) {
    if (!node->entries.empty()) {
      expect_op(",");
      if (skip_op("}")) break;
    }
    ExprPtr key = expression();
    expect_op(":");
    ExprPtr value = expression();
    node->depth = std::max(node->depth, over(key, value));
    node->entries.emplace_back(std::move(key), std::move(value));
  }
  return node;
}

ExprPtr ExpressionParser::postfix(ExprPtr of) {
  while (true) {
    if (is_op(".") || is_op("[")) {
      of = subscript(std::move(of));
    } else if (is_op("(")) {
      of = call(std::move(of));
    } else {
      return of;
    }
  }
}

ExprPtr ExpressionParser::filters(ExprPtr of) {
  while (true) {
    if (skip_op("|")) {
      of = filter(std::move(of));
    } else if (skip_name("is")) {
      of = test(std::move(of));
    } else if (is_op("(")) {
      of = call(std::move(of));
    } else {
      return of;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr of) {
  if (skip_op(".")) {
    if (now().kind == TokenKind::integer) {
      auto item = std::make_unique<Item>();
      item->depth = over(of);
      item->of = std::move(of);
      item->index = number();
      return item;
    }
    auto attribute = std::make_unique<Attribute>();
    attribute->depth = over(of);
    attribute->of = std::move(of);
    attribute->name = take_name();
    return attribute;
  }
  expect_op("[");
  ExprPtr start;
  if (!is_op(":")) {
    start = tuple();
    if (skip_op("]")) {
      auto item = std::make_unique<Item>();
      item->depth = over(of, start);
      item->of = std::move(of);
      item->index = std::move(start);
      return item;
    }
  }
  auto slice = std::make_unique<Slice>();
  slice->start = std::move(start);
  expect_op(":");
  if (!is_op(":") && !is_op("]")) slice->stop = expression();
  if (skip_op(":") && !is_op("]")) slice->step = expression();
  expect_op("]");
  slice->depth = std::max(over(of, slice->start), over(slice->stop, slice->step));
  slice->of = std::move(of);
  return slice;
}

CallArguments ExpressionParser::call_arguments() {
  CallArguments arguments;
  expect_op("(");
  bool first = true;
  while (!skip_op(")")) {
    if (!std::exchange(first, false)) {
      expect_op(",");
      if (skip_op(")")) break;
    }
    if (skip_op("*")) {
      arguments.more_positional = expression();
    } else if (skip_op("**")) {
      arguments.more_named = expression();
    } else if (now().kind == TokenKind::name && ahead().kind == TokenKind::op && ahead().text == "=") {
      Value name = Value::string(nullptr, take_name(), true);
      next();
      arguments.named.emplace_back(std::move(name), expression());
    } else {
      if (!arguments.named.empty()) fail("an argument without a name follows one with a name");
      arguments.positional.push_back(expression());
    }
  }
  return arguments;
}

ExprPtr ExpressionParser::call(ExprPtr of) {
  auto node = std::make_unique<Call>();
  node->arguments = call_arguments();
  node->depth = std::max(over(of), over_call(node->arguments));
  node->callee = std::move(of);
  return node;
}

std::unique_ptr<const FilterCall> ExpressionParser::filter(ExprPtr input) {
  auto node = std::make_unique<FilterCall>();
  node->name = take_name();
  while (skip_op(".")) node->name.append(".").append(take_name());
  node->filter = find_filter(node->name);
  if (is_op("(")) node->arguments = call_arguments();
  node->depth = std::max(over(input), over_call(node->arguments));
  node->input = std::move(input);
  return node;
}

ExprPtr ExpressionParser::test(ExprPtr of) {
  auto node = std::make_unique<TestCall>();
  node->negated = skip_name("not");
  node->name = take_name();
  while (skip_op(".")) node->name.append(".").append(take_name());
  node->test = find_test(node->name);
  if (is_op("(")) {
    node->arguments = call_arguments();
  } else {
    constexpr std::array<std::string_view, 7> kNoValues = {"else", "or", "and", "is", "if", "in", "not"};
    const Token& token = now();
    const bool value = token.kind == TokenKind::name
                           ? std::find(kNoValues.begin(), kNoValues.end(), token.text) == kNoValues.end()
                           : token.kind == TokenKind::string || token.kind == TokenKind::integer ||
                                 token.kind == TokenKind::real ||
                                 (token.kind == TokenKind::op && (token.text == "[" || token.text == "{"));
    if (value) node->arguments.positional.push_back(postfix(primary()));
  }
  node->depth = std::max(over(of), over_call(node->arguments));
  node->input = std::move(of);
  return node;
}

Target ExpressionParser::target(bool with_namespace) {
  const Nested nested(*this);
  const auto one = [&] {
    Target single;
    if (skip_op("(")) {
      single = target(false);
      expect_op(")");
      return single;
    }
    single.name = intern(take_name());
    if (with_namespace && skip_op(".")) single.attribute = Value::string(nullptr, take_name(), true);
    return single;
  };
  Target first = one();
  if (!is_op(",")) return first;
  Target several;
  several.parts.push_back(std::move(first));
  while (skip_op(",")) {
    if (is_name("in") || is_op("=") || is_op(")")) break;
    several.parts.push_back(one());
  }
  return several;
}

}  // namespace millrace::text::jinja
