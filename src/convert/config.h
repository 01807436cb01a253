// Keys of a checkpoint's config.json, each with the range in which its value may lie. The first failure sticks, and
// later reads give harmless values: a family reads what it needs without an if a line and asks status() once.
// Thread-safety: one thread calls.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::convert {

/// The longest JSON file that is read (the largest vocabularies have 35 MB).
constexpr std::uint64_t kMostJsonBytes = 64'000'000;

/// Errors: not_found, corrupt (no JSON object, or too long), io_error; each names the path.
Expected<nlohmann::json> read_json(const std::string& path);

class Config {
 public:
  /// `json`: an object. `defaults`: what it means where it lacks a key, as JSON; empty: nothing.
  Config(nlohmann::json json, std::string_view defaults);

  /// Present, and not null.
  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// In [least, most]. Errors: not_found, corrupt (the key, named with its value).
  std::int64_t required(std::string_view key, std::int64_t least, std::int64_t most);
  std::int64_t optional(std::string_view key, std::int64_t fallback, std::int64_t least, std::int64_t most);
  /// Finite.
  double number(std::string_view key, double fallback);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  /// Numbers or texts of a list; empty where it is absent.
  std::vector<double> numbers(std::string_view key);
  std::vector<std::string> texts(std::string_view key);
  /// An object or a list within; an empty config where it is absent or something else.
  Config within(std::string_view key) const;

  const nlohmann::json* find(std::string_view key) const;  // nullptr: absent or null
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  /// Fails with `unsupported` unless the key is absent or of this value.
  void expect(std::string_view key, const nlohmann::json& wanted);
  const Status& status() const { return status_; }

 private:
  void wrong(std::string_view key, std::string_view wanted);
  nlohmann::json json_;
  Status status_;
};

}  // namespace millrace::convert
