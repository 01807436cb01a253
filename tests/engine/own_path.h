// Where tests write files: several of their processes run side by side.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <system_error>

namespace millrace::engine::test {

/// A path that no other process writes to; what lies there goes when this one ends.
inline std::string own_path(const std::string& name) {
  struct Paths {
    std::set<std::string> all;
    ~Paths() {
      std::error_code ignored;
      for (const std::string& path : all) std::filesystem::remove_all(path, ignored);
    }
  };
  static Paths paths;
  return *paths.all.insert(testing::TempDir() + "/millrace-" + std::to_string(getpid()) + "-" + name).first;
}

}  // namespace millrace::engine::test
