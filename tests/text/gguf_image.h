// Builds the bytes of a GGUF file that holds only metadata, for tests and fuzzing of what reads it.
// Kept apart from the engine's own writer, so that it can also write what no honest writer would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::test {

class GgufImage {
 public:
  GgufImage& text(std::string_view key, std::string_view value) {
    begin(key, 8);
    put_text(value);
    return *this;
  }
  GgufImage& number(std::string_view key, std::uint32_t value) {
    begin(key, 4);
    put(value);
    return *this;
  }
  GgufImage& flag(std::string_view key, bool value) {
    begin(key, 7);
    put(static_cast<std::uint8_t>(value));
    return *this;
  }
  GgufImage& texts(std::string_view key, const std::vector<std::string>& values) {
    begin_array(key, 8, values.size());
    for (const std::string& value : values) put_text(value);
    return *this;
  }
  GgufImage& integers(std::string_view key, const std::vector<std::int32_t>& values) {
    begin_array(key, 5, values.size());
    for (const std::int32_t value : values) put(value);
    return *this;
  }
  GgufImage& floats(std::string_view key, const std::vector<float>& values) {
    begin_array(key, 6, values.size());
    for (const float value : values) put(value);
    return *this;
  }

  std::vector<std::byte> bytes() const {
    GgufImage file;
    file.body_ = {std::byte{'G'}, std::byte{'G'}, std::byte{'U'}, std::byte{'F'}};
    file.put(std::uint32_t{3});
    file.put(std::uint64_t{0});  // tensors
    file.put(count_);
    file.body_.insert(file.body_.end(), body_.begin(), body_.end());
    return file.body_;
  }
  Expected<modelfile::Model> model() const { return modelfile::Model::parse(bytes(), "image.gguf"); }

 private:
  template <typename T>
  void put(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    body_.insert(body_.end(), from, from + sizeof(T));
  }
  void put_text(std::string_view value) {
    put(static_cast<std::uint64_t>(value.size()));
    const auto* from = reinterpret_cast<const std::byte*>(value.data());
    body_.insert(body_.end(), from, from + value.size());
  }
  void begin(std::string_view key, std::uint32_t type) {
    put_text(key);
    put(type);
    ++count_;
  }
  void begin_array(std::string_view key, std::uint32_t type, std::size_t size) {
    begin(key, 9);
    put(type);
    put(static_cast<std::uint64_t>(size));
  }

  std::vector<std::byte> body_;
  std::uint64_t count_ = 0;
};

}  // namespace millrace::test
