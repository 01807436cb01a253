// Keys of a checkpoint's config.json, each with the range in which its value may lie. The first failure sticks, and
// later reads give harmless values: a family reads what it needs without an if a line and asks status() once.
// Thread-safety: one thread calls.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "convert/config_fields.h"

namespace millrace::convert {

/// The longest JSON file that is read (the largest vocabularies have 35 MB).
constexpr std::uint64_t kMostJsonBytes = 64'000'000;

enum class JsonKind : std::uint8_t { object, list };

/// Errors: not_found, corrupt (none of that kind, or too long), io_error; each names the path.
Expected<nlohmann::json> read_json(const std::string& path, JsonKind kind = JsonKind::object);

class Config {
 public:
  /// `json`: an object. `known`: its class in transformers, whose default a key that is left out takes; nullptr: none.
  explicit Config(nlohmann::json json, const ConfigClass* known = nullptr);

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
  /// Replaces a value, or takes it out: what a family makes of a key before the others are read.
  void set(std::string_view key, nlohmann::json value);
  void drop(std::string_view key);
  /// These have no effect in this configuration.
  void disregard(std::initializer_list<std::string_view> keys);
  /// Whether the class rotates a part of each head where config.json names no scaling.
  bool partial_by_default() const { return known_ != nullptr && known_->partial_by_default; }
  /// Fails with `unsupported` for each field that changes what the model computes, is not transformers' default and was
  /// not asked for until now. Call it when everything has been read.
  void refuse_the_rest();

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
  const ConfigClass* known_ = nullptr;
  mutable std::set<std::string, std::less<>> read_;
  Status status_;
};

}  // namespace millrace::convert
