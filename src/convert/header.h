// A GGUF file's keys as families read and write them: without the architecture before their names.
// Thread-safety: one thread calls.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "modelfile/gguf.h"

namespace millrace::convert {

using Metadata = std::map<std::string, modelfile::Value, std::less<>>;

class Header {
 public:
  /// `metadata` outlives the object.
  Header(Metadata& metadata, std::string architecture) : metadata_(&metadata), architecture_(std::move(architecture)) {}

  const std::string& architecture() const { return architecture_; }
  /// "<architecture>.<key>"
  std::string name(std::string_view key) const { return architecture_ + "." + std::string(key); }
  bool has(std::string_view key) const { return metadata_->find(name(key)) != metadata_->end(); }

  void set(std::string_view key, modelfile::Value value) { (*metadata_)[name(key)] = std::move(value); }
  void set_integer(std::string_view key, std::int64_t value) { set(key, static_cast<std::uint32_t>(value)); }
  void set_number(std::string_view key, double value) { set(key, static_cast<float>(value)); }
  void set_integers(std::string_view key, const std::vector<std::int64_t>& values);

  /// Where the key is absent or holds something else: the fallback.
  std::int64_t integer(std::string_view key, std::int64_t fallback = 0) const;
  /// The shortest decimal number that gives the file's float.
  double number(std::string_view key, double fallback = 0) const;
  bool flag(std::string_view key, bool fallback = false) const;
  std::string text(std::string_view key, std::string_view fallback = "") const;
  /// One for each of the file's layers, from a list or from a number that all have; empty where there is neither.
  std::vector<std::int64_t> of_layers(std::string_view key) const;
  /// A list of whole numbers or booleans; empty where there is none.
  std::vector<std::int64_t> integers(std::string_view key) const;

  /// A list of floats; empty where there is none.
  std::vector<double> numbers(std::string_view key) const;

  /// Layers, without the blocks behind them that guess.
  std::int64_t layers() const { return integer("block_count") - integer("nextn_predict_layers"); }

 private:
  const modelfile::Value* find(std::string_view key) const;
  Metadata* metadata_;
  std::string architecture_;
};

}  // namespace millrace::convert
