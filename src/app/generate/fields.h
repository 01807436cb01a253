// Typed fields of a client's JSON, with errors that name the field. A field that is absent or null keeps its default.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "app/generate/job.h"
#include "app/generate/request_fields.h"

namespace millrace::generate {

/// Reads fields one after the other; the first error stays.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}
  /// The same, with what check_fields says of the whole request.
  Fields(RequestKind kind, const Json& object) : object_(object), status_(check_fields(kind, object)) {}

  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const char* name) const { return find(name) != nullptr; }

  void text(const char* name, std::string& out) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (value->is_string())
      out = value->get<std::string>();
    else
      fail(name, "must be a string");
  }
  void flag(const char* name, bool& out) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (value->is_boolean())
      out = value->get<bool>();
    else
      fail(name, "must be true or false");
  }
  template <typename T>
  void integer(const char* name, T& out, double least, double most) {
    const Json* value = find(name);
    if (value == nullptr) return;
    const double number = value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(number >= least && number <= most) || std::floor(number) != number)
      fail(name, fmt::format("must be a whole number from {:.0f} to {:.0f}", least, most));
    else
      out = static_cast<T>(number);
  }
  void number(const char* name, float& out, double least, double most) {
    const Json* value = find(name);
    if (value == nullptr) return;
    const double number = value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(number >= least && number <= most))
      fail(name, fmt::format("must be a number from {} to {}", least, most));
    else
      out = static_cast<float>(number);
  }
  /// A string or a list of them.
  void texts(const char* name, std::vector<std::string>& out) {
    const Json* value = find(name);
    if (value == nullptr) return;
    out.clear();
    if (value->is_string()) {
      out.push_back(value->get<std::string>());
      return;
    }
    bool good = value->is_array();
    if (good)
      for (const Json& one : *value) good = good && one.is_string();
    if (!good) return fail(name, "must be a string or a list of strings");
    for (const Json& one : *value) out.push_back(one.get<std::string>());
  }

  void fail(std::string_view name, std::string_view what) {
    if (status_.ok()) status_ = error(Code::invalid_argument, "{}: {}", name, what);
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& status() const { return status_; }

 private:
  const Json& object_;
  Status status_;
};

}  // namespace millrace::generate
