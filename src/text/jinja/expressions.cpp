#include <cmath>

#include "text/jinja/nodes.h"
#include "text/jinja/run.h"
#include "text/jinja/write.h"

namespace millrace::text::jinja {

namespace {

[[noreturn]] void refuse(Operator op, const Value& a, const Value& b) {
  constexpr const char* kSpelled[] = {"+", "-", "*", "/", "//", "%", "**"};
  fail("'{}' does not go with '{}' and '{}'", kSpelled[static_cast<int>(op)], a.type_name(), b.type_name());
}

constexpr Whole kLeast = static_cast<Whole>(1) << 127;

[[noreturn]] void too_large() { fail("a number is too large"); }

Value integer_arithmetic(Operator op, Whole a, Whole b) {
  Whole result = 0;
  switch (op) {
    case Operator::add:
      if (__builtin_add_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::subtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::multiply:
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      return Value::integer(result);
    case Operator::divide:
      if (b == 0) fail("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Operator::floor_divide:
    case Operator::modulo: {
      if (b == 0) fail("division by zero");
      if (b == -1) {
        if (a == kLeast) too_large();
        return Value::integer(op == Operator::modulo ? 0 : -a);
      }
      Whole quotient = a / b, remainder = a % b;
      if (remainder != 0 && (remainder < 0) != (b < 0)) {
        --quotient;
        remainder += b;
      }
      return Value::integer(op == Operator::modulo ? remainder : quotient);
    }
    case Operator::power: {
      if (b < 0) return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
      if (a == 0 || a == 1) return Value::integer(b == 0 ? 1 : a);
      if (a == -1) return Value::integer(b % 2 == 0 ? 1 : -1);
      result = 1;
      for (Whole i = 0; i < b; ++i) {
        if (__builtin_mul_overflow(result, a, &result)) too_large();
      }
      return Value::integer(result);
    }
  }
  return {};
}

Value real_arithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::add:
      return Value::real(a + b);
    case Operator::subtract:
      return Value::real(a - b);
    case Operator::multiply:
      return Value::real(a * b);
    case Operator::power:
      return Value::real(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) fail("division by zero");
  if (op == Operator::divide) return Value::real(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return Value::real(op == Operator::modulo ? remainder : std::floor(a / b));
}

Value repeat(Run& run, const Value& what, const Value& times) {
  Meter& meter = run.meter();
  const std::int64_t count = times.whole() < 0 ? 0 : times.integer();
  if (what.is_string()) {
    Builder out(meter);
    for (std::int64_t i = 0; i < count && !what.text().empty(); ++i) {
      meter.step();
      out.append(what.text());
    }
    return out.finish();
  }
  const Values& items = what.list().items;
  std::size_t size = 0;
  if (__builtin_mul_overflow(items.size(), static_cast<std::size_t>(count), &size)) too_large();
  Values all(meter);
  all.reserve(size);
  for (std::int64_t i = 0; i < count && !items.empty(); ++i) {
    meter.step(items.size());
    all.insert(all.end(), items.begin(), items.end());
  }
  return Value::list(std::move(all), what.is_tuple());
}

Value add_sequences(Run& run, const Value& a, const Value& b) {
  if (a.is_string()) {
    Builder out(run.meter());
    out.append(a.text());
    out.append(b.text());
    return out.finish();
  }
  run.meter().touch((a.list().items.size() + b.list().items.size()) * sizeof(Value));
  Values items(run.meter());
  items.reserve(a.list().items.size() + b.list().items.size());
  items.insert(items.end(), a.list().items.begin(), a.list().items.end());
  items.insert(items.end(), b.list().items.begin(), b.list().items.end());
  return Value::list(std::move(items), a.is_tuple());
}

Value printf_value(Run& run, const Value& format, const Value& values) {
  Builder out(run.meter());
  const Arguments& none = no_arguments();
  Values one(run.meter());
  if (!values.is_tuple() && values.kind() != Kind::dict) one.push_back(values);
  write_printf(out, format.text(), values.is_tuple() ? values.list().items : one,
               values.kind() == Kind::dict ? values.dict().entries : none.named);
  return out.finish();
}

bool holds(Run& run, Comparator comparator, const Value& a, const Value& b) {
  Meter& meter = run.meter();
  switch (comparator) {
    case Comparator::equal:
      return equal(meter, a, b);
    case Comparator::unequal:
      return !equal(meter, a, b);
    case Comparator::less:
      return compare(meter, a, b) < 0;
    case Comparator::less_equal:
      return compare(meter, a, b) <= 0;
    case Comparator::greater:
      return compare(meter, a, b) > 0;
    case Comparator::greater_equal:
      return compare(meter, a, b) >= 0;
    case Comparator::in:
      return contains(meter, b, a);
    case Comparator::not_in:
      return !contains(meter, b, a);
  }
  return false;
}

}  // namespace

Value Variable::eval(Run& run) const {
  run.meter().step();
  return run.lookup(name);
}

Value ListDisplay::eval(Run& run) const {
  const Meter::Level level(run.meter());
  Values values(run.meter());
  values.reserve(items.size());
  for (const ExprPtr& item : items) values.push_back(item->eval(run));
  return Value::list(std::move(values), tuple);
}

Value DictDisplay::eval(Run& run) const {
  const Meter::Level level(run.meter());
  Entries made(run.meter());
  for (const auto& [key, value] : entries) {
    Value own = key->eval(run);
    require_defined(own);
    if (!hashable(own)) fail("a {} cannot be a key", own.type_name());
    auto old = made.begin();
    while (old != made.end() && !equal(run.meter(), old->first, own)) ++old;
    Value item = value->eval(run);
    if (old != made.end()) {
      old->second = std::move(item);
    } else {
      made.emplace_back(std::move(own), std::move(item));
    }
  }
  return Value::dict(std::move(made));
}

Value calculate(Run& run, Operator op, const Value& a, const Value& b) {
  require_defined(a);
  if (op == Operator::modulo && a.is_string()) return printf_value(run, a, b);
  require_defined(b);
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(op, a.whole(), b.whole());
  if (a.is_number() && b.is_number()) return real_arithmetic(op, a.real(), b.real());
  const auto sequence = [](const Value& v) { return v.is_string() || v.kind() == Kind::list; };
  if (op == Operator::add && sequence(a) && a.kind() == b.kind() && a.is_tuple() == b.is_tuple()) {
    return add_sequences(run, a, b);
  }
  if (op == Operator::multiply && sequence(a) && b.is_integral()) return repeat(run, a, b);
  if (op == Operator::multiply && sequence(b) && a.is_integral()) return repeat(run, b, a);
  refuse(op, a, b);
}

Value Arithmetic::eval(Run& run) const {
  const Meter::Level level(run.meter());
  run.meter().step();
  const Value a = left->eval(run);
  return calculate(run, op, a, right->eval(run));
}

Value Sign::eval(Run& run) const {
  const Meter::Level level(run.meter());
  const Value value = of->eval(run);
  require_defined(value);
  if (!value.is_number()) fail("a {} has no sign", value.type_name());
  if (value.kind() == Kind::real) return Value::real(negative ? -value.real() : value.real());
  if (negative && value.whole() == kLeast) too_large();
  return Value::integer(negative ? -value.whole() : value.whole());
}

Value Concatenation::eval(Run& run) const {
  const Meter::Level level(run.meter());
  Builder out(run.meter());
  for (const ExprPtr& part : parts) write_str(out, part->eval(run));
  return out.finish();
}

Value Comparison::eval(Run& run) const {
  const Meter::Level level(run.meter());
  run.meter().step();
  Value a = first->eval(run);
  for (const auto& [comparator, next] : rest) {
    Value b = next->eval(run);
    if (!holds(run, comparator, a, b)) return Value::boolean(false);
    a = std::move(b);
  }
  return Value::boolean(true);
}

Value Logic::eval(Run& run) const {
  const Meter::Level level(run.meter());
  Value a = left->eval(run);
  return a.truth() == all ? right->eval(run) : a;
}

Value Negation::eval(Run& run) const {
  const Meter::Level level(run.meter());
  return Value::boolean(!of->eval(run).truth());
}

Value Conditional::eval(Run& run) const {
  const Meter::Level level(run.meter());
  if (condition->eval(run).truth()) return then->eval(run);
  if (otherwise) return otherwise->eval(run);
  return Value::undefined(run.meter(), "an inline 'if' has no 'else', and its condition is false");
}

Value Attribute::eval(Run& run) const {
  const Meter::Level level(run.meter());
  run.meter().step();
  return get_attribute(run, of->eval(run), name);
}

Value Item::eval(Run& run) const {
  const Meter::Level level(run.meter());
  run.meter().step();
  const Value object = of->eval(run);
  return get_item(run, object, index->eval(run));
}

Value Slice::eval(Run& run) const {
  const Meter::Level level(run.meter());
  run.meter().step();
  const auto bound = [&](const ExprPtr& expr) { return expr ? expr->eval(run) : Value::none(); };
  const Value object = of->eval(run), from = bound(start), to = bound(stop), by = bound(step);
  return get_slice(run.meter(), object, from, to, by);
}

Arguments CallArguments::eval(Run& run) const {
  Arguments made(&run.meter());
  for (const ExprPtr& expr : positional) made.positional.push_back(expr->eval(run));
  for (const auto& [name, expr] : named) made.named.emplace_back(name, expr->eval(run));
  if (more_positional) {
    const Value more = elements(run.meter(), more_positional->eval(run));
    made.positional.insert(made.positional.end(), more.list().items.begin(), more.list().items.end());
  }
  if (more_named) {
    const Value more = more_named->eval(run);
    if (more.kind() != Kind::dict) fail("what follows ** must be a dict, not a {}", more.type_name());
    for (const auto& [key, value] : more.dict().entries) {
      if (!key.is_string()) fail("an argument's name must be a string, not a {}", key.type_name());
      made.named.emplace_back(key, value);
    }
  }
  return made;
}

Value Call::eval(Run& run) const {
  const Meter::Level level(run.meter());
  run.meter().step();
  if (const auto* attribute = dynamic_cast<const Attribute*>(callee.get())) {
    // A method, called at once: no value that stands for it is made.
    const Value self = attribute->of->eval(run);
    if (const Method method = find_method(self, attribute->name); method != nullptr) {
      return method(run, self, arguments.eval(run));
    }
    const Value member = get_attribute(run, self, attribute->name);
    require_defined(member);
    if (member.kind() != Kind::object) fail("'{}' is a {} and cannot be called", attribute->name, member.type_name());
    return member.object().call(run, arguments.eval(run));
  }
  const Value function = callee->eval(run);
  require_defined(function);
  if (function.kind() != Kind::object) fail("a {} cannot be called", function.type_name());
  return function.object().call(run, arguments.eval(run));
}

Value FilterCall::apply(Run& run, const Value& value) const {
  const Meter::Level level(run.meter());
  run.meter().step();
  if (filter == nullptr) fail("there is no filter '{}'", name);
  return filter(run, value, arguments.eval(run));
}

Value TestCall::eval(Run& run) const {
  const Meter::Level level(run.meter());
  run.meter().step();
  if (test == nullptr) fail("there is no test '{}'", name);
  const Value value = input->eval(run);
  return Value::boolean(test(run, value, arguments.eval(run)) != negated);
}

}  // namespace millrace::text::jinja
