// Reads one architecture's metadata keys, each with the range in which its value may lie, so that nothing computed from
// them overflows or divides by zero. The first failure sticks, and later reads give harmless values: an architecture
// reads what it needs without an if a line and asks status() once. Source: the GGUF specification's standardized keys.
// Thread-safety: one thread calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// "<architecture>.<key>", as GGUF names its keys.
std::string arch_key(const modelfile::Model& file, std::string_view key);

class Keys {
 public:
  /// `file` outlives the object.
  explicit Keys(const modelfile::Model& file) : file_(file) {}

  bool has(std::string_view key) const { return file_.has(arch_key(file_, key)); }
  /// In [least, most]. Errors: not_found (required), corrupt (the key, named with its value).
  std::int64_t required(std::string_view key, std::int64_t least, std::int64_t most);
  std::int64_t optional(std::string_view key, std::int64_t fallback, std::int64_t least, std::int64_t most);
  /// One for each of `count` layers, from an array of at least so many or from a number that all have in common; where
  /// the key is absent, fallback.
  std::vector<std::int64_t> of_layers(std::string_view key, std::int64_t count, std::int64_t fallback,
                                      std::int64_t least, std::int64_t most);
  /// The same of real numbers, each in (above, most] and finite.
  std::vector<double> floats_of_layers(std::string_view key, std::int64_t count, double fallback, double above,
                                       double most);
  /// In (above, most], finite.
  double optional_float(std::string_view key, double fallback, double above, double most);
  bool optional_bool(std::string_view key, bool fallback);

  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& status() const { return status_; }

 private:
  double float_in_range(std::string_view key, double value, double fallback, double above, double most);
  std::int64_t in_range(std::string_view key, const Expected<std::int64_t>& value, std::int64_t least,
                        std::int64_t most);

  const modelfile::Model& file_;
  Status status_;
};

}  // namespace millrace::model
