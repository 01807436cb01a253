// Reads the keys of a checkpoint's config.json and checks the range of each value. The first failure is kept, and later
// reads return harmless values, so a family reads every key that it needs and checks status() once. Thread-safety: one
// thread calls.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "convert/config_fields.h"

namespace millrace::convert {

/// The largest JSON file that is read. The largest published vocabularies have 35 MB.
constexpr std::uint64_t kMostJsonBytes = 64'000'000;

enum class JsonKind : std::uint8_t { object, list };

/// Errors: not_found, corrupt (not JSON of that kind, or too large), io_error; each names the path.
Expected<nlohmann::json> read_json(const std::string& path, JsonKind kind = JsonKind::object);

class Config {
 public:
  /// `json`: an object. `known`: the transformers class that gives the defaults of missing keys; nullptr: no defaults.
  explicit Config(nlohmann::json json, const ConfigClass* known = nullptr);

  /// True if the key is present and not null.
  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// An integer in [least, most]. Errors: not_found, corrupt (names the key and its value).
  std::int64_t required(std::string_view key, std::int64_t least, std::int64_t most);
  std::int64_t optional(std::string_view key, std::int64_t fallback, std::int64_t least, std::int64_t most);
  /// A finite number.
  double number(std::string_view key, double fallback);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  /// The elements of a list; empty if the key is absent.
  std::vector<double> numbers(std::string_view key);
  std::vector<std::string> texts(std::string_view key);
  /// Replace or remove a value, for a family that normalises a key before the others are read.
  void set(std::string_view key, nlohmann::json value);
  void drop(std::string_view key);
  /// Marks keys as read because they have no effect in this configuration.
  void disregard(std::initializer_list<std::string_view> keys);
  /// True if the class applies RoPE to a part of each head even where config.json names no scaling.
  bool partial_by_default() const { return known_ != nullptr && known_->partial_by_default; }
  /// Fails with `unsupported` for each field that changes what the model computes, differs from transformers' default
  /// and was not read. Call it after all reads.
  void refuse_the_rest();

  /// The object or list at `key`; an empty config if it is absent or has another type.
  Config within(std::string_view key) const;

  const nlohmann::json* find(std::string_view key) const&;       // nullptr: absent or null
  const nlohmann::json* find(std::string_view key) && = delete;  // it would outlive what it points into
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  /// Fails with `unsupported` unless the key is absent or has this value.
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
