// One rendering of a template: its variables, its output, its limits.
// Thread-safety: one thread.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/nodes.h"

namespace millrace::text::jinja {

/// Variables of a block; `parent` has those of the enclosing blocks.
struct Scope {
  explicit Scope(Meter& meter) : variables(meter) {}
  Held held;
  Vector<std::pair<Name, Value>> variables;
  std::shared_ptr<Scope> parent;
};

class Namespace final : public Object {
 public:
  explicit Namespace(Meter& meter) : attributes(meter) {}
  Entries attributes;  // by strings
  std::string describe() const override { return "namespace"; }
  std::optional<Value> attribute(Run& run, std::string_view name) override;
  void set(const Value& name, Value value);
};

class Run {
 public:
  /// All outlive the run.
  Run(Meter& meter, const std::vector<std::string>& names, Values inputs, std::time_t now);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Meter& meter() { return meter_; }
  std::time_t now() const { return now_; }
  Builder& out() { return *out_; }
  const std::string& name(Name name) const { return names_[static_cast<std::size_t>(name)]; }

  Value lookup(Name name) const;
  void assign(Name name, Value value);
  void assign(const Target& target, const Value& value);

  /// Opens a scope for its lifetime.
  class Inner {
   public:
    explicit Inner(Run& run) : Inner(run, run.scope_) {}
    Inner(Run& run, std::shared_ptr<Scope> parent);
    ~Inner() { run_.scope_ = std::move(before_); }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    Run& run_;
    std::shared_ptr<Scope> before_;
  };

  /// Redirects output to a string for its lifetime.
  class Capturing {
   public:
    explicit Capturing(Run& run) : run_(run), before_(run.out_), own_(run.meter_) { run.out_ = &own_; }
    ~Capturing() { run_.out_ = before_; }
    Capturing(const Capturing&) = delete;
    Capturing& operator=(const Capturing&) = delete;
    Value finish() { return own_.finish(); }

   private:
    Run& run_;
    Builder* before_;
    Builder own_;
  };

  /// The current scope, captured for a macro.
  const std::shared_ptr<Scope>& close_over();
  std::shared_ptr<Namespace> make_namespace();
  Value make_string(MarkedText text) { return Value::string(&meter_, std::move(text)); }
  Value make_string(std::string bytes) { return Value::string(&meter_, std::move(bytes)); }

  int line = 0;  // of the current statement
  MarkedText take_output() { return output_.take(); }

 private:
  Meter& meter_;
  const std::vector<std::string>& names_;
  Values inputs_;  // [names]
  std::time_t now_;
  Builder output_;
  Builder* out_ = &output_;
  std::shared_ptr<Scope> scope_;
  // Objects that may form reference cycles, which are broken at the end. This also prevents long chains of namespaces
  // from being freed by recursion.
  Vector<std::shared_ptr<Namespace>> namespaces_;
  Vector<std::shared_ptr<Scope>> closed_over_;
};

}  // namespace millrace::text::jinja
