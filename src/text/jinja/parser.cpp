#include "text/jinja/parser.h"

#include <algorithm>
#include <array>

#include "text/jinja/expression_parser.h"

namespace millrace::text::jinja {

namespace {

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Parsed run() {
    try {
      Parsed parsed;
      parsed.body = body({});
      if (now().kind != TokenKind::end) fail("'{}' ends nothing", now().text);
      parsed.names = std::move(names_);
      return parsed;
    } catch (const Trouble& trouble) {
      fail("line {}: {}", now().line, trouble.message);
    }
  }

 private:
  using Ends = std::vector<std::string_view>;

  /// Statements up to {% END, the name is left to read; or up to the template's end where no end is wanted.
  Body body(const Ends& ends) {
    const Nested nested(*this);
    Body statements;
    while (now().kind != TokenKind::end) {
      const int line = now().line;
      std::unique_ptr<Statement> made;
      if (now().kind == TokenKind::data) {
        auto text = std::make_unique<Text>();
        text->text = now().text;
        next();
        made = std::move(text);
      } else if (now().kind == TokenKind::variable_begin) {
        next();
        auto output = std::make_unique<Output>();
        output->value = tuple();
        if (now().kind != TokenKind::variable_end) unexpected("}}");
        next();
        made = std::move(output);
      } else if (now().kind == TokenKind::block_begin) {
        if (std::find(ends.begin(), ends.end(), ahead().text) != ends.end()) {
          next();
          return statements;
        }
        next();
        made = statement();
      } else {
        unexpected("a tag");
      }
      made->line = line;
      statements.push_back(std::move(made));
    }
    if (!ends.empty()) fail("the template ends before '{}'", ends[0]);
    return statements;
  }

  void end_tag() {
    if (now().kind != TokenKind::block_end) unexpected("%}");
    next();
  }

  Body body_until(std::string_view end) {
    end_tag();
    Body inner = body({end});
    next();
    return inner;
  }

  std::unique_ptr<Statement> statement() {
    const std::string tag = take_name();
    if (tag == "if") return if_statement();
    if (tag == "for") return for_statement();
    if (tag == "set") return set_statement();
    if (tag == "macro") return macro_statement();
    if (tag == "call") return call_statement();
    if (tag == "filter") return filter_statement();
    if (tag == "with") return with_statement();
    if (tag == "generation") return scoped("endgeneration");
    if (tag == "autoescape") {
      (void)expression();
      return scoped("endautoescape");
    }
    if (tag == "block") return block_statement();
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail("'{}' stands outside of a loop", tag);
      auto jump = std::make_unique<Jump>();
      jump->to = tag == "break" ? Flow::break_loop : Flow::next_round;
      end_tag();
      return jump;
    }
    fail("the tag '{}' is not known", tag.substr(0, 40));
  }

  std::unique_ptr<Statement> scoped(std::string_view end) {
    auto node = std::make_unique<Scoped>();
    node->body = body_until(end);
    end_tag();
    return node;
  }

  std::unique_ptr<Statement> block_statement() {
    (void)take_name();
    while (is_name("scoped") || is_name("required")) next();
    auto node = std::make_unique<Scoped>();
    node->body = body_until("endblock");
    if (now().kind == TokenKind::name) next();  // the block's name again
    end_tag();
    return node;
  }

  std::unique_ptr<Statement> if_statement() {
    auto node = std::make_unique<If>();
    while (true) {
      ExprPtr condition = tuple(false);
      end_tag();
      node->branches.emplace_back(std::move(condition), body({"elif", "else", "endif"}));
      if (!skip_name("elif")) break;
    }
    if (skip_name("else")) {
      end_tag();
      node->otherwise = body({"endif"});
    }
    expect_name("endif");
    end_tag();
    return node;
  }

  std::unique_ptr<Statement> for_statement() {
    auto node = std::make_unique<For>();
    node->target = target(false);
    node->loop = intern("loop");
    expect_name("in");
    node->over = tuple(false);
    if (skip_name("if")) node->condition = expression();
    if (is_name("recursive")) fail("recursive loops are not supported");
    end_tag();
    ++loops_;
    node->body = body({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      end_tag();
      node->otherwise = body({"endfor"});
    }
    expect_name("endfor");
    end_tag();
    return node;
  }

  std::unique_ptr<Statement> set_statement() {
    Target to = target(true);
    if (skip_op("=")) {
      auto node = std::make_unique<Set>();
      node->target = std::move(to);
      node->value = tuple();
      end_tag();
      return node;
    }
    auto node = std::make_unique<Capture>();
    node->target = std::move(to);
    while (skip_op("|")) node->filters.push_back(filter(nullptr));
    node->body = body_until("endset");
    end_tag();
    return node;
  }

  std::unique_ptr<Statement> filter_statement() {
    auto node = std::make_unique<Capture>();
    node->writes = true;
    do {
      node->filters.push_back(filter(nullptr));
    } while (skip_op("|"));
    node->body = body_until("endfilter");
    end_tag();
    return node;
  }

  std::unique_ptr<Statement> with_statement() {
    auto node = std::make_unique<Scoped>();
    while (now().kind != TokenKind::block_end) {
      if (!node->assignments.empty()) expect_op(",");
      Target to = target(false);
      expect_op("=");
      node->assignments.emplace_back(std::move(to), expression());
    }
    node->body = body_until("endwith");
    end_tag();
    return node;
  }

  /// The parameters from '(' on, and the body.
  void macro_rest(MacroBody& macro, std::string_view end, bool parameters) {
    if (parameters) expect_op("(");
    while (parameters && !skip_op(")")) {
      if (!macro.parameters.empty()) {
        expect_op(",");
        if (skip_op(")")) break;
      }
      const std::string name = take_name();
      macro.parameters.emplace_back(intern(name), name);
      if (skip_op("=")) {
        macro.defaults.push_back(expression());
      } else if (!macro.defaults.empty()) {
        fail("a parameter without a default follows one with a default");
      }
    }
    macro.varargs = intern("varargs");
    macro.kwargs = intern("kwargs");
    macro.caller = intern("caller");
    const int loops = std::exchange(loops_, 0);
    const std::size_t begin = position();
    macro.body = body_until(end);
    loops_ = loops;
    macro.takes_more_positional = mentions(begin, "varargs");
    macro.takes_more_named = mentions(begin, "kwargs");
    macro.takes_caller = mentions(begin, "caller");
  }

  std::unique_ptr<Statement> macro_statement() {
    auto node = std::make_unique<MacroDefinition>();
    node->macro.name = take_name();
    node->name = intern(node->macro.name);
    macro_rest(node->macro, "endmacro", true);
    if (now().kind == TokenKind::name) next();  // the macro's name again
    end_tag();
    return node;
  }

  std::unique_ptr<Statement> call_statement() {
    auto node = std::make_unique<CallBlock>();
    node->caller.name = "caller";
    // {% call(parameters) macro(arguments) %}: the parameters' tokens come first, the body last.
    std::vector<std::pair<Name, std::string>> parameters;
    Exprs defaults;
    if (skip_op("(")) {
      while (!skip_op(")")) {
        if (!parameters.empty()) expect_op(",");
        const std::string name = take_name();
        parameters.emplace_back(intern(name), name);
        if (skip_op("=")) defaults.push_back(expression());
      }
    }
    ExprPtr called = expression();
    const auto* call = dynamic_cast<const Call*>(called.get());
    if (call == nullptr) fail("what 'call' calls must be a macro with its arguments");
    (void)called.release();
    node->call.reset(call);
    node->caller.parameters = std::move(parameters);
    node->caller.defaults = std::move(defaults);
    macro_rest(node->caller, "endcall", false);
    end_tag();
    return node;
  }

  int loops_ = 0;
};

}  // namespace

Parsed parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace millrace::text::jinja
