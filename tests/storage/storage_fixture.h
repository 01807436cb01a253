// What the storage tests share: files with known bytes, and destinations as the contract asks for them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "device/host_memory.h"
#include "storage/storage.h"

namespace millrace::storage {

/// The byte at `offset` of every test file: a hash of the place, so that a read from a wrong place shows.
inline std::byte byte_at(std::uint64_t offset) {
  std::uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return static_cast<std::byte>(x >> (offset % 8 * 8) ^ x >> 32);
}

/// A file of `bytes` known bytes, gone when the test ends.
class TestFile {
 public:
  explicit TestFile(std::uint64_t bytes, const std::string& directory = MILLRACE_BINARY_DIR)
      : path_(directory + "/millrace_storage_test_" + std::to_string(getpid()) + "_" + std::to_string(next_++)) {
    std::vector<char> content(bytes);
    for (std::uint64_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(byte_at(i));
    std::ofstream(path_, std::ios::binary).write(content.data(), static_cast<std::streamsize>(bytes));
  }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  ~TestFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  static inline int next_ = 0;
  std::string path_;
};

/// Memory for one read, congruent to its offset, with a guard block on either side that no backend may touch.
class Destination {
 public:
  Destination(std::uint64_t offset, std::uint64_t bytes) : offset_(offset), bytes_(bytes) {
    const Widened wide = widened(offset, bytes, kMaxAlignment);
    auto memory = device::HostBuffer::reserve(wide.bytes + 2 * kMaxAlignment, device::Pages::normal);
    EXPECT_TRUE(memory.ok());
    memory_ = std::move(*memory);
    std::fill_n(memory_.data(), memory_.bytes(), kGuard);
    data_ = memory_.data() + kMaxAlignment + wide.lead;
  }
  Read read(int file = 0) const { return {.file = file, .offset = offset_, .bytes = bytes_, .destination = data_}; }

  /// The first asked byte that is wrong, or the count of bytes; and whether the guards stand.
  std::uint64_t first_wrong() const {
    std::uint64_t i = 0;
    while (i < bytes_ && data_[i] == byte_at(offset_ + i)) ++i;
    return i;
  }
  bool guards_stand() const {
    for (std::uint64_t i = 0; i < kMaxAlignment; ++i) {
      if (memory_.data()[i] != kGuard || memory_.data()[memory_.bytes() - 1 - i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr std::byte kGuard{0xc3};
  std::uint64_t offset_, bytes_;
  device::HostBuffer memory_;
  std::byte* data_ = nullptr;
};

/// Opens `path` with a forced kind; where this machine does not offer it, an empty pointer (the test skips).
inline std::unique_ptr<Backend> open_or_none(const std::vector<std::string>& paths, BackendKind kind,
                                             OpenOptions options = {}) {
  options.kind = kind;
  auto opened = open_backend(paths, options);
  if (!opened.ok() && opened.status().code() == Code::unsupported) return nullptr;
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return opened.ok() ? std::move(*opened) : nullptr;
}

inline Status read_now(Backend& backend, const Read& read) {
  Completion completion;
  backend.submit({&read, 1}, completion);
  return completion.wait();
}

}  // namespace millrace::storage
