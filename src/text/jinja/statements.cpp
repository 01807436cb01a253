#include <algorithm>

#include "text/jinja/nodes.h"
#include "text/jinja/run.h"
#include "text/jinja/write.h"

namespace millrace::text::jinja {

namespace {

/// A macro, or the body of a call block, with the scope it was defined in.
class Macro final : public Object {
 public:
  Macro(const MacroBody& body, std::shared_ptr<Scope> scope) : body_(body), scope_(std::move(scope)) {}
  std::string describe() const override { return fmt::format("<macro {}>", body_.name); }
  bool callable() const override { return true; }

  std::optional<Value> attribute(Run& run, std::string_view name) override {
    if (name == "name") return run.make_string(body_.name);
    if (name == "caller") return Value::boolean(body_.takes_caller);
    if (name != "arguments") return std::nullopt;
    Values names(run.meter());
    for (const auto& parameter : body_.parameters) names.push_back(run.make_string(parameter.second));
    return Value::list(std::move(names), true);
  }

  Value call(Run& run, const Arguments& arguments) override {
    const Meter::Level level(run.meter());
    const Run::Inner inner(run, scope_);
    bind(run, arguments);
    Run::Capturing capturing(run);
    (void)exec_all(run, body_.body);
    return capturing.finish();
  }

 private:
  void bind(Run& run, const Arguments& arguments) const {
    const auto& parameters = body_.parameters;
    Entries more_named(run.meter());
    std::vector<const Value*> given(parameters.size(), nullptr);
    for (std::size_t i = 0; i < std::min(parameters.size(), arguments.positional.size()); ++i) {
      given[i] = &arguments.positional[i];
    }
    Value caller = Value::undefined(run.meter(), "no caller is defined");
    for (const auto& [name, value] : arguments.named) {
      const auto own = std::find_if(parameters.begin(), parameters.end(), [&, &wanted = name](const auto& parameter) {
        return parameter.second == wanted.bytes();
      });
      if (own != parameters.end()) {
        const Value*& place = given[static_cast<std::size_t>(own - parameters.begin())];
        if (place != nullptr) fail("macro '{}' gets '{}' twice", body_.name, own->second);
        place = &value;
      } else if (name.bytes() == "caller" && body_.takes_caller) {
        caller = value;
      } else if (body_.takes_more_named) {
        more_named.emplace_back(name, value);
      } else {
        fail("macro '{}' takes no argument '{}'", body_.name, name.bytes().substr(0, 80));
      }
    }
    const std::size_t first_default = parameters.size() - body_.defaults.size();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (given[i] != nullptr) {
        run.assign(parameters[i].first, *given[i]);
      } else if (i >= first_default) {
        run.assign(parameters[i].first, body_.defaults[i - first_default]->eval(run));
      } else {
        run.assign(parameters[i].first,
                   Value::undefined(run.meter(), fmt::format("parameter '{}' was not provided", parameters[i].second)));
      }
    }
    if (body_.takes_caller) run.assign(body_.caller, std::move(caller));
    if (body_.takes_more_named) run.assign(body_.kwargs, Value::dict(std::move(more_named)));
    if (!body_.takes_more_positional) {
      if (arguments.positional.size() > parameters.size()) {
        fail("macro '{}' takes not more than {} arguments", body_.name, parameters.size());
      }
      return;
    }
    Values rest(run.meter());
    for (std::size_t i = parameters.size(); i < arguments.positional.size(); ++i) {
      rest.push_back(arguments.positional[i]);
    }
    run.assign(body_.varargs, Value::list(std::move(rest), true));
  }

  const MacroBody& body_;
  std::shared_ptr<Scope> scope_;
};

/// What `loop` is inside of a for.
class Loop final : public Object {
 public:
  Loop(Value items, std::size_t depth) : items_(std::move(items)), depth_(depth) {}
  std::string describe() const override { return "<loop>"; }
  void go_to(std::size_t index) { index_ = index; }

  std::optional<Value> attribute(Run& run, std::string_view name) override {
    const Values& items = items_.list().items;
    const auto number = [](std::size_t value) { return Value::integer(static_cast<std::int64_t>(value)); };
    if (name == "index") return number(index_ + 1);
    if (name == "index0") return number(index_);
    if (name == "revindex") return number(items.size() - index_);
    if (name == "revindex0") return number(items.size() - index_ - 1);
    if (name == "first") return Value::boolean(index_ == 0);
    if (name == "last") return Value::boolean(index_ + 1 == items.size());
    if (name == "length") return number(items.size());
    if (name == "depth") return number(depth_ + 1);
    if (name == "depth0") return number(depth_);
    if (name == "previtem") {
      return index_ > 0 ? items[index_ - 1] : Value::undefined(run.meter(), "there is no previous item");
    }
    if (name == "nextitem") {
      return index_ + 1 < items.size() ? items[index_ + 1] : Value::undefined(run.meter(), "there is no next item");
    }
    return std::nullopt;
  }

  Value cycle(const Values& values) const {
    if (values.empty()) fail("loop.cycle needs something to cycle through");
    return values[index_ % values.size()];
  }
  Value changed(Run& run, const Values& values) {
    Value now = Value::list(Values(values, run.meter()), true);
    const bool same = !last_.is_undefined() && equal(run.meter(), last_, now);
    last_ = std::move(now);
    return Value::boolean(!same);
  }

 private:
  Value items_;
  std::size_t depth_, index_ = 0;
  Value last_;
};

Loop& loop_of(const Value& self) { return dynamic_cast<Loop&>(self.object()); }

Value capture(Run& run, const Body& body, Flow& flow) {
  const Run::Inner inner(run);
  Run::Capturing capturing(run);
  flow = exec_all(run, body);
  return capturing.finish();
}

}  // namespace

Method find_loop_method(const Value& self, std::string_view name) {
  if (dynamic_cast<Loop*>(&self.object()) == nullptr) return nullptr;
  if (name == "cycle") {
    return [](Run&, const Value& of, const Arguments& given) { return loop_of(of).cycle(given.positional); };
  }
  if (name == "changed") {
    return [](Run& run, const Value& of, const Arguments& given) { return loop_of(of).changed(run, given.positional); };
  }
  return nullptr;
}

Flow exec_all(Run& run, const Body& body) {
  const Meter::Level level(run.meter());
  for (const auto& statement : body) {
    run.meter().step();
    run.line = statement->line;
    if (const Flow flow = statement->exec(run); flow != Flow::on) return flow;
  }
  return Flow::on;
}

Flow Text::exec(Run& run) const {
  run.out().append(text, true);
  return Flow::on;
}

Flow Output::exec(Run& run) const {
  write_str(run.out(), value->eval(run));
  if (run.out().text().size() > run.meter().limits().output_bytes) {
    fail("it writes more than {} MiB", run.meter().limits().output_bytes >> 20);
  }
  return Flow::on;
}

Flow If::exec(Run& run) const {
  for (const auto& [condition, body] : branches) {
    if (condition->eval(run).truth()) return exec_all(run, body);
  }
  return exec_all(run, otherwise);
}

Flow For::exec(Run& run) const {
  Value items = elements(run.meter(), over->eval(run));
  if (condition) {
    Values kept(run.meter());
    for (const Value& item : items.list().items) {
      const Run::Inner inner(run);
      run.assign(target, item);
      if (condition->eval(run).truth()) kept.push_back(item);
    }
    items = Value::list(std::move(kept));
  }
  const std::size_t count = items.list().items.size();
  const auto object = make_object<Loop>(run.meter(), items, 0);
  // Jinja's `else` is for loops of which no round came to its end, be it by `break` or `continue`.
  bool completed = false;
  for (std::size_t i = 0; i < count; ++i) {
    run.meter().step();
    const Run::Inner inner(run);
    object->go_to(i);
    run.assign(loop, Value::object(object));
    run.assign(target, items.list().items[i]);
    const Flow flow = exec_all(run, body);
    if (flow == Flow::break_loop) break;
    completed = completed || flow == Flow::on;
  }
  if (completed) return Flow::on;
  const Run::Inner inner(run);
  return exec_all(run, otherwise);
}

Flow Set::exec(Run& run) const {
  run.assign(target, value->eval(run));
  return Flow::on;
}

Flow Capture::exec(Run& run) const {
  Flow flow = Flow::on;
  Value text = capture(run, body, flow);
  if (flow != Flow::on) return flow;
  for (const auto& filter : filters) text = filter->apply(run, text);
  if (writes) {
    write_str(run.out(), text);
  } else {
    run.assign(target, to_str(run.meter(), text));
  }
  return Flow::on;
}

Flow MacroDefinition::exec(Run& run) const {
  run.assign(name, Value::object(make_object<Macro>(run.meter(), macro, run.close_over())));
  return Flow::on;
}

Flow CallBlock::exec(Run& run) const {
  const Meter::Level level(run.meter());
  const Value function = call->callee->eval(run);
  require_defined(function);
  if (function.kind() != Kind::object) fail("a {} cannot be called", function.type_name());
  Arguments arguments = call->arguments.eval(run);
  arguments.named.emplace_back(run.make_string("caller"),
                               Value::object(make_object<Macro>(run.meter(), caller, run.close_over())));
  write_str(run.out(), function.object().call(run, arguments));
  return Flow::on;
}

Flow Scoped::exec(Run& run) const {
  Values values(run.meter());
  for (const auto& [target, expr] : assignments) values.push_back(expr->eval(run));
  const Run::Inner inner(run);
  for (std::size_t i = 0; i < assignments.size(); ++i) run.assign(assignments[i].first, values[i]);
  return exec_all(run, body);
}

}  // namespace millrace::text::jinja
