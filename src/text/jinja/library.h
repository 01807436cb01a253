// Everything that templates use by name: filters, tests, methods of values, global functions.
// Source: the Jinja 3.1 documentation, the Python library reference and what transformers adds for chat templates.
// Thread-safety: pure functions.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace millrace::text::jinja {

using Filter = Value (*)(Run& run, const Value& input, const Arguments& arguments);
using Test = bool (*)(Run& run, const Value& input, const Arguments& arguments);
using Method = Value (*)(Run& run, const Value& self, const Arguments& arguments);
using Function = Value (*)(Run& run, const Arguments& arguments);

Filter find_filter(std::string_view name);  // nullptr: unknown
Test find_test(std::string_view name);
Method find_method(const Value& self, std::string_view name);
Function find_function(std::string_view name);

// Their tables, one per file.
Filter find_text_filter(std::string_view name);
Filter find_list_filter(std::string_view name);
Method find_loop_method(const Value& self, std::string_view name);

/// Applies a filter, test or call named by a value: map('upper'), select('defined').
Value apply_filter(Run& run, std::string_view name, const Value& input, const Arguments& arguments);
bool apply_test(Run& run, std::string_view name, const Value& input, const Arguments& arguments);

/// The value of obj.name or obj[key]; undefined if there is none.
Value get_attribute(Run& run, const Value& of, std::string_view name);
Value get_item(Run& run, const Value& of, const Value& index);
/// of[start:stop:step]; each bound may be None.
Value get_slice(Meter& meter, const Value& of, const Value& start, const Value& stop, const Value& step);

/// Arguments by position or name, at most those in `names`. Fails for others.
class Parameters {
 public:
  Parameters(std::string_view of, const Arguments& arguments, std::initializer_list<const char*> names);
  /// nullptr: not given.
  const Value* operator[](std::size_t index) const { return given_[index]; }
  const Value& required(std::size_t index) const;
  /// None and absent are nullptr.
  const Value* set(std::size_t index) const;
  bool flag(std::size_t index, bool otherwise = false) const;
  std::int64_t integer(std::size_t index, std::int64_t otherwise) const;
  std::optional<std::string_view> string(std::size_t index) const;  // of a string; None and absent are nullopt

 private:
  std::string_view of_;
  std::vector<const char*> names_;
  std::vector<const Value*> given_;
};

}  // namespace millrace::text::jinja
