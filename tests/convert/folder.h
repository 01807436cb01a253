// What tests of conversions share: a folder that goes away, and the reference files.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace millrace::convert {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() /
              ("millrace-convert-" + std::to_string(::getpid()) + "-" + std::to_string(next()++))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  static int& next() {
    static int number = 0;
    return number;
  }
  fs::path path_;
};

inline std::string reference(const std::string& name) {
  return std::string(MILLRACE_TEST_DATA) + "/reference/" + name + ".gguf";
}

inline std::vector<std::string> all_references() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(std::string(MILLRACE_TEST_DATA) + "/reference"))
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace millrace::convert
