// The half of the parser that reads expressions; see parser.h.
// Thread-safety: one thread.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/nodes.h"

namespace millrace::text::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead(std::size_t count = 1) const { return tokens_[std::min(at_ + count, tokens_.size() - 1)]; }
  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool is_op(std::string_view op) const { return now().kind == TokenKind::op && now().text == op; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::name && now().text == name; }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  std::string take_name();  // any; fails for what is no name
  std::size_t position() const { return at_; }
  /// Whether the tokens from `begin` to here hold this name.
  bool mentions(std::size_t begin, std::string_view name) const;
  [[noreturn]] void unexpected(std::string_view wanted) const;
  Name intern(const std::string& name);

  ExprPtr expression();
  ExprPtr tuple(bool conditional = true);  // an expression, or several with commas
  ExprPtr logical_or();                    // an expression without an inline `if`
  std::unique_ptr<const FilterCall> filter(ExprPtr input);
  CallArguments call_arguments();  // from the '(' on
  Target target(bool with_namespace);

  std::vector<std::string> names_;

  /// Bounds the recursion of parsing.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser);
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  ExprPtr logical_and();
  ExprPtr logical_not();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr postfix(ExprPtr of);
  ExprPtr filters(ExprPtr of);
  ExprPtr subscript(ExprPtr of);
  ExprPtr call(ExprPtr of);
  ExprPtr test(ExprPtr of);
  ExprPtr list_display();
  ExprPtr dict_display();
  ExprPtr parenthesis();
  ExprPtr number();

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  std::unordered_map<std::string, Name> interned_;
};

}  // namespace millrace::text::jinja
