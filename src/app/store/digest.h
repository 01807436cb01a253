// SHA-256 as people write it: 64 lower-case hexadecimal digits; and git's SHA-1 of small files. Thread-safety: a Sha256
// belongs to one thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::store {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(std::span<const std::byte> bytes);
  std::string hex();  // REQUIRES: called once, last

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string sha256_of(std::string_view text);

/// Of a whole file. `on_bytes` (may be empty) hears how many bytes are done. Errors: io_error, cancelled.
Expected<std::string> sha256_of_file(const std::string& path, const std::function<void(std::uint64_t)>& on_bytes,
                                     const std::atomic<bool>* cancel);

/// Git's hash of a file's contents. Errors: io_error.
Expected<std::string> git_sha1_of_file(const std::string& path);

/// 40 lower-case hexadecimal digits.
bool is_sha1(std::string_view text);
/// 64 lower-case hexadecimal digits.
bool is_sha256(std::string_view text);

}  // namespace millrace::store
