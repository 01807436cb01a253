// A limit on the size of files, which stands in for a full disk.
#pragma once

#if !defined(_WIN32)
#include <sys/resource.h>

#include <csignal>
#endif

#include <cstdint>

namespace millrace::test {

/// No file of this process grows beyond the limit while the object lives.
class FileLimit {
 public:
#if defined(_WIN32)
  static constexpr bool works = false;  // Windows has no such limit
  explicit FileLimit(std::uint64_t) {}
#else
  static constexpr bool works = true;
  explicit FileLimit(std::uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
#endif
};

}  // namespace millrace::test
