// What the tests of measuring share: the bundled models, the text, and a run.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "app/measure/quality.h"
#include "engine/support.h"

namespace millrace::measure::test {

using engine::EngineOptions;
using engine::test::draft_path;
using engine::test::make;
using engine::test::moe_path;
using engine::test::roomy;
using text::TokenId;

inline std::string stories() {
  Expected<std::string> text = read_text(MILLRACE_TEST_DATA "/stories.txt");
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? *text : std::string();
}

inline modelfile::Model opened(const std::string& path) {
  auto model = modelfile::Model::open(path, {.skip_vocabulary = true});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *model;
}

inline std::shared_ptr<const text::Tokenizer> tokenizer_of(const std::string& path) {
  const auto model = modelfile::Model::open(path);
  EXPECT_TRUE(model.ok()) << model.status().message();
  const auto tokenizer = text::Tokenizer::from_model(*model);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return *tokenizer;
}

inline TextWindows windows_of(const std::string& path, const WindowOptions& options) {
  Expected<TextWindows> windows = TextWindows::cut(*tokenizer_of(path), stories(), options);
  EXPECT_TRUE(windows.ok()) << windows.status().message();
  return *windows;
}

/// A run of all windows into `quality`.
inline void run(const EngineOptions& options, const TextWindows& windows, Quality& quality) {
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  const Status status = run_windows(
      *engine, windows,
      [&](std::int64_t row, TokenId target, std::span<const float> logits) { return quality.add(row, target, logits); },
      {});
  ASSERT_TRUE(status.ok()) << status.message();
}

/// The options with what the windows need.
inline EngineOptions prepared(EngineOptions options, const TextWindows& windows) {
  const Status status = prepare_engine(windows, options);
  EXPECT_TRUE(status.ok()) << status.message();
  return options;
}

/// A folder of its own that goes with the test.
struct Folder {
  std::filesystem::path path = std::filesystem::path(testing::TempDir()) / ("measure-" + std::to_string(getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

}  // namespace millrace::measure::test
