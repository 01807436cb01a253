// A GGUF file's keys as families read and write them: without the architecture as a prefix.
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
  /// As int32, or as int64 where one of them is larger.
  void set_integers(std::string_view key, const std::vector<std::int64_t>& values);

  /// Return the fallback if the key is absent or has another type.
  std::int64_t integer(std::string_view key, std::int64_t fallback = 0) const;
  /// The shortest decimal number that rounds to the file's float.
  double number(std::string_view key, double fallback = 0) const;
  bool flag(std::string_view key, bool fallback = false) const;
  std::string text(std::string_view key, std::string_view fallback = "") const;
  /// One per layer of the file, from a list or from one number for all; empty if the key holds neither.
  std::vector<std::int64_t> of_layers(std::string_view key) const;
  /// A list of integers or booleans; empty if there is none.
  std::vector<std::int64_t> integers(std::string_view key) const;

  /// A list of floats; empty if there is none.
  std::vector<double> numbers(std::string_view key) const;

  /// The number of layers, without the MTP blocks after them.
  std::int64_t layers() const { return integer("block_count") - integer("nextn_predict_layers"); }

 private:
  const modelfile::Value* find(std::string_view key) const;
  Metadata* metadata_;
  std::string architecture_;
};

}  // namespace millrace::convert
