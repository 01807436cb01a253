// A new, empty folder below the system's for temporary files.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/os/process.h"

namespace millrace::test {

/// Whoever asks for it removes it.
inline std::string fresh_folder(const char* name) {
  static std::atomic<int> count{0};
  const auto path =
      std::filesystem::temp_directory_path() / fmt::format("millrace-{}-{}-{}", name, os::process_id(), count++);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path.string();
}

/// Removes a folder when it goes out of scope. It is declared before what has files open there, which Windows does not
/// remove.
struct RemovedLater {
  std::string path;

  explicit RemovedLater(std::string folder) : path(std::move(folder)) {}
  RemovedLater(const RemovedLater&) = delete;
  RemovedLater& operator=(const RemovedLater&) = delete;
  ~RemovedLater() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace millrace::test
