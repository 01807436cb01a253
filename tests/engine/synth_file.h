// A model of random weights in a file of its own, which goes with the object.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "synth-model/write.h"

namespace millrace::engine::test {

class SynthFile {
 public:
  /// hollow: without weights, for plans alone.
  SynthFile(const synth::Shape& shape, const synth::Types& types, bool hollow = false)
      : path_((std::filesystem::temp_directory_path() / fmt::format("millrace-synth-{}.gguf", getpid())).string()) {
    synth::WriteOptions options;
    options.types = types;
    options.hollow = hollow;
    const auto written = synth::write(path_, shape, options);
    EXPECT_TRUE(written.ok()) << written.status().message();
  }
  ~SynthFile() { std::filesystem::remove(path_); }
  SynthFile(const SynthFile&) = delete;
  SynthFile& operator=(const SynthFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

}  // namespace millrace::engine::test
