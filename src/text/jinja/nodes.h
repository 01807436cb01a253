// A parsed template: expressions have a value, statements produce output. Each node evaluates itself in a Run.
// Thread-safety: immutable once parsed; any number of Runs may share them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/library.h"
#include "text/jinja/value.h"

namespace millrace::text::jinja {

/// A variable's name, as an index into the template's list of names.
using Name = int;

struct Expr {
  int depth = 1;  // of the tree below; bounded by the parser
  Expr() = default;
  Expr(const Expr&) = delete;
  Expr& operator=(const Expr&) = delete;
  virtual ~Expr() = default;
  virtual Value eval(Run& run) const = 0;
};
using ExprPtr = std::unique_ptr<const Expr>;
using Exprs = std::vector<ExprPtr>;

struct Literal final : Expr {
  explicit Literal(Value v) : value(std::move(v)) {}
  Value value;
  Value eval(Run&) const override { return value; }
};

struct Variable final : Expr {
  explicit Variable(Name n) : name(n) {}
  Name name;
  Value eval(Run& run) const override;
};

struct ListDisplay final : Expr {
  Exprs items;
  bool tuple = false;
  Value eval(Run& run) const override;
};

struct DictDisplay final : Expr {
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
  Value eval(Run& run) const override;
};

enum class Operator { add, subtract, multiply, divide, floor_divide, modulo, power };
/// `a op b` with Python's semantics. Fails if Python does.
Value calculate(Run& run, Operator op, const Value& a, const Value& b);
struct Arithmetic final : Expr {
  Operator op = Operator::add;
  ExprPtr left, right;
  Value eval(Run& run) const override;
};

struct Sign final : Expr {
  bool negative = false;
  ExprPtr of;
  Value eval(Run& run) const override;
};

struct Concatenation final : Expr {
  Exprs parts;
  Value eval(Run& run) const override;
};

enum class Comparator { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };
struct Comparison final : Expr {
  ExprPtr first;
  std::vector<std::pair<Comparator, ExprPtr>> rest;  // a < b < c
  Value eval(Run& run) const override;
};

struct Logic final : Expr {  // `and`, `or`: the value that decided
  bool all = true;
  ExprPtr left, right;
  Value eval(Run& run) const override;
};

struct Negation final : Expr {
  ExprPtr of;
  Value eval(Run& run) const override;
};

struct Conditional final : Expr {
  ExprPtr condition, then, otherwise;  // otherwise may be null
  Value eval(Run& run) const override;
};

struct Attribute final : Expr {
  ExprPtr of;
  std::string name;
  Value eval(Run& run) const override;
};

struct Item final : Expr {
  ExprPtr of, index;
  Value eval(Run& run) const override;
};

struct Slice final : Expr {
  ExprPtr of, start, stop, step;  // all but `of` may be null
  Value eval(Run& run) const override;
};

struct CallArguments {
  Exprs positional;
  std::vector<std::pair<Value, ExprPtr>> named;  // by strings
  ExprPtr more_positional, more_named;           // *list, **dict; may be null
  Arguments eval(Run& run) const;
};

struct Call final : Expr {
  ExprPtr callee;
  CallArguments arguments;
  Value eval(Run& run) const override;
};

struct FilterCall final : Expr {
  std::string name;
  Filter filter = nullptr;  // null: unknown, an error when it is used
  ExprPtr input;            // null: the body of the filter block
  CallArguments arguments;
  Value eval(Run& run) const override { return apply(run, input->eval(run)); }
  Value apply(Run& run, const Value& input) const;
};

struct TestCall final : Expr {
  std::string name;
  Test test = nullptr;
  ExprPtr input;
  CallArguments arguments;
  bool negated = false;
  Value eval(Run& run) const override;
};

enum class Flow { on, break_loop, next_round };

struct Statement {
  int line = 0;
  Statement() = default;
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  virtual ~Statement() = default;
  virtual Flow exec(Run& run) const = 0;
};
using Body = std::vector<std::unique_ptr<const Statement>>;

struct Text final : Statement {
  std::string text;
  Flow exec(Run& run) const override;
};

struct Output final : Statement {
  ExprPtr value;
  Flow exec(Run& run) const override;
};

struct If final : Statement {
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
  Flow exec(Run& run) const override;
};

/// The target of an assignment: a name, an attribute of a namespace, or several of these.
struct Target {
  Name name = -1;
  Value attribute;  // a string: of the namespace `name`
  std::vector<Target> parts;
};

struct For final : Statement {
  Target target;
  ExprPtr over, condition;  // condition may be null
  Body body, otherwise;
  Name loop = -1;
  Flow exec(Run& run) const override;
};

struct Set final : Statement {
  Target target;
  ExprPtr value;
  Flow exec(Run& run) const override;
};

/// {% set %}, {% filter %}: the text of a body, filtered, then stored or written.
struct Capture final : Statement {
  Target target;
  bool writes = false;
  std::vector<std::unique_ptr<const FilterCall>> filters;
  Body body;
  Flow exec(Run& run) const override;
};

struct MacroBody {
  std::string name;
  std::vector<std::pair<Name, std::string>> parameters;
  Exprs defaults;  // of the last parameters
  bool takes_more_positional = false, takes_more_named = false, takes_caller = false;
  Name varargs = -1, kwargs = -1, caller = -1;
  Body body;
};

struct MacroDefinition final : Statement {
  Name name = -1;
  MacroBody macro;
  Flow exec(Run& run) const override;
};

struct CallBlock final : Statement {
  std::unique_ptr<const Call> call;
  MacroBody caller;
  Flow exec(Run& run) const override;
};

/// {% with %}, {% block %}, {% generation %}: names set inside are removed afterwards.
struct Scoped final : Statement {
  std::vector<std::pair<Target, ExprPtr>> assignments;
  Body body;
  Flow exec(Run& run) const override;
};

struct Jump final : Statement {
  Flow to = Flow::break_loop;
  Flow exec(Run&) const override { return to; }
};

Flow exec_all(Run& run, const Body& body);

}  // namespace millrace::text::jinja
