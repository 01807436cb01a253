// GGUF bytes put together by hand, field by field, so that a test can lie in any of them. Independent of the writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::modelfile {

class Raw {
 public:
  template <typename T>
  Raw& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Raw& u32(std::uint32_t value) { return number(value); }
  Raw& u64(std::uint64_t value) { return number(value); }
  Raw& string(std::string_view text) {
    u64(text.size());
    bytes_.append(text);
    return *this;
  }
  Raw& plain(std::string_view text) {
    bytes_.append(text);
    return *this;
  }
  Raw& head(std::uint64_t tensors, std::uint64_t pairs, std::uint32_t version = 3) {
    return plain("GGUF").u32(version).u64(tensors).u64(pairs);
  }
  Raw& text_pair(std::string_view key, std::string_view value) { return string(key).u32(8).string(value); }
  Raw& u32_pair(std::string_view key, std::uint32_t value) { return string(key).u32(4).u32(value); }
  Raw& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type, std::uint64_t offset) {
    string(name).u32(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) u64(dim);
    return u32(type).u64(offset);
  }
  Raw& pad(std::size_t alignment = 32) {
    while (bytes_.size() % alignment != 0) bytes_.push_back('\0');
    return *this;
  }
  Raw& zeros(std::size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

inline std::span<const std::byte> as_span(const std::string& bytes) { return std::as_bytes(std::span(bytes)); }

/// A small valid file with every kind of metadata and two tensors: a [4, 2] F32 and b [32] Q4_0.
inline Raw small_file() {
  Raw raw;
  raw.head(2, 6);
  raw.text_pair("general.architecture", "llama").u32_pair("llama.block_count", 2);
  raw.string("llama.rope.freq_base").u32(6).number(10000.0f);
  raw.string("flag").u32(7).number<std::uint8_t>(1);
  raw.string("words").u32(9).u32(8).u64(3).string("a").string("").string("\xC3\xA9t\xC3\xA9");
  raw.string("nested").u32(9).u32(9).u64(2).u32(5).u64(2).number<std::int32_t>(-1).number<std::int32_t>(7).u32(0).u64(
      1);
  raw.number<std::uint8_t>(255);
  raw.tensor("a", {4, 2}, 0, 0).tensor("b", {32}, 2, 32);
  return raw.pad().zeros(32 + 18);
}

}  // namespace millrace::modelfile
