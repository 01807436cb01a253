#include "text/jinja/run.h"

#include <algorithm>

namespace millrace::text::jinja {

namespace {

/// A global function as a value.
class GlobalFunction final : public Object {
 public:
  GlobalFunction(std::string name, Function function) : name_(std::move(name)), function_(function) {}
  std::string describe() const override { return fmt::format("<function {}>", name_); }
  bool callable() const override { return true; }
  Value call(Run& run, const Arguments& arguments) override { return function_(run, arguments); }

 private:
  std::string name_;
  Function function_;
};

}  // namespace

std::optional<Value> Namespace::attribute(Run&, std::string_view name) {
  for (const auto& [own, value] : attributes) {
    if (own.bytes() == name) return value;
  }
  return std::nullopt;
}

void Namespace::set(const Value& name, Value value) {
  for (auto& [own, old] : attributes) {
    if (own.bytes() == name.bytes()) {
      old = std::move(value);
      return;
    }
  }
  attributes.emplace_back(name, std::move(value));
}

Run::Run(Meter& meter, const std::vector<std::string>& names, Values inputs, std::time_t now)
    : meter_(meter),
      names_(names),
      inputs_(std::move(inputs)),
      now_(now),
      output_(meter),
      scope_(make_object<Scope>(meter, meter)),
      namespaces_(meter),
      closed_over_(meter) {}

Run::~Run() {
  for (const auto& space : namespaces_) space->attributes.clear();
  for (const auto& scope : closed_over_) scope->variables.clear();
}

Value Run::lookup(Name name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [own, value] : scope->variables) {
      if (own == name) return value;
    }
  }
  const Value& input = inputs_[static_cast<std::size_t>(name)];
  if (!input.is_undefined()) return input;
  const std::string& spelled = names_[static_cast<std::size_t>(name)];
  if (const Function function = find_function(spelled); function != nullptr) {
    return Value::object(make_object<GlobalFunction>(meter_, spelled, function));
  }
  return Value::undefined(meter_, fmt::format("'{}' is undefined", spelled));
}

void Run::assign(Name name, Value value) {
  for (auto& [own, old] : scope_->variables) {
    if (own == name) {
      old = std::move(value);
      return;
    }
  }
  scope_->variables.emplace_back(name, std::move(value));
}

void Run::assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    const Value items = elements(meter_, value);
    if (items.list().items.size() != target.parts.size()) {
      fail("{} names cannot take {} values", target.parts.size(), items.list().items.size());
    }
    for (std::size_t i = 0; i < target.parts.size(); ++i) assign(target.parts[i], items.list().items[i]);
    return;
  }
  if (target.attribute.is_undefined()) return assign(target.name, value);
  const Value space = lookup(target.name);
  auto* made = space.kind() == Kind::object ? dynamic_cast<Namespace*>(&space.object()) : nullptr;
  if (made == nullptr) fail("'{}' is no namespace: its attributes cannot be set", name(target.name));
  made->set(target.attribute, value);
}

Run::Inner::Inner(Run& run, std::shared_ptr<Scope> parent) : run_(run), before_(run.scope_) {
  auto scope = make_object<Scope>(run.meter_, run.meter_);
  scope->parent = std::move(parent);
  run.scope_ = std::move(scope);
}

const std::shared_ptr<Scope>& Run::close_over() {
  if (closed_over_.empty() || closed_over_.back() != scope_) {
    meter_.step(16);
    closed_over_.push_back(scope_);
  }
  return scope_;
}

std::shared_ptr<Namespace> Run::make_namespace() {
  meter_.step(16);
  namespaces_.push_back(make_object<Namespace>(meter_, meter_));
  return namespaces_.back();
}

}  // namespace millrace::text::jinja
