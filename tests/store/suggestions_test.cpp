#include "app/store/suggestions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "app/store/aliases.h"

namespace millrace::store {
namespace {

TEST(Suggestions, AreFiveNamesThatCanBePulled) {
  for (const double ram : {2e9, 8e9, 16e9, 64e9, 512e9})
    for (const double rate : {0.0, 20e9}) {
      const auto models = suggest_models({.ram_bytes = ram, .ram_rate = rate, .disk_rate = rate / 10});
      ASSERT_EQ(models.size(), kSuggestions) << ram;
      std::set<std::string_view> names;
      for (const Suggestion& one : models) {
        EXPECT_TRUE(names.insert(one.name).second) << one.name;
        EXPECT_FALSE(alias_of(one.name, "/nowhere").empty()) << one.name;
        EXPECT_EQ(one.tokens_per_second > 0, rate > 0);
        EXPECT_TRUE(one.tier == "disk" || one.file_bytes < ram) << one.name;
      }
    }
}

TEST(Suggestions, BeginWithTheLargestThatIsComfortable) {
  // 20 GB/s: dense models of up to 4 GB make five tokens a second, mixtures far more.
  const auto models = suggest_models({.ram_bytes = 30e9, .ram_rate = 20e9, .disk_rate = 2e9});
  EXPECT_EQ(models[0].name, "qwen3:30b");
  EXPECT_NEAR(models[0].tokens_per_second, 10, 0.1);
  EXPECT_EQ(models[1].name, "gpt-oss:20b");
  EXPECT_EQ(models.back().name, "qwen3:0.6b") << "a small one for a quick first try";
}

TEST(Suggestions, CountWhatEachMemoryHolds) {
  const auto gpu =
      suggest_models({.ram_bytes = 50e9, .vram_bytes = 10e9, .ram_rate = 40e9, .vram_rate = 800e9, .disk_rate = 2e9});
  const auto find = [&](std::string_view name) {
    for (const Suggestion& one : gpu)
      if (one.name == name) return one;
    return Suggestion{};
  };
  EXPECT_EQ(gpu[0].name, "qwen3:30b") << "gpt-oss:120b needs more than both";
  EXPECT_EQ(find("qwen3:30b").tier, "ram");
  EXPECT_EQ(find("qwen3:0.6b").tier, "vram");
  // Half of it in VRAM at 70 % of 800 GB/s, half in RAM at 40 GB/s.
  const double share = 10.0 / (18.6 * 1.1);
  EXPECT_NEAR(find("qwen3:30b").tokens_per_second, 1 / (2e9 * share / 560e9 + 2e9 * (1 - share) / 40e9), 0.1);
}

/// Every model of the table, by asking for machines of all sizes.
std::map<std::string_view, Suggestion> every_model() {
  std::map<std::string_view, Suggestion> models;
  for (double vram = 0.25e9; vram < 200e9; vram *= 1.2)
    for (const Suggestion& one : suggest_models({.vram_bytes = vram, .vram_rate = 1e15, .disk_rate = 1}))
      if (one.tier == "vram") models.emplace(one.name, one);
  return models;
}

TEST(Suggestions, HaveSizesThatFitTheirNames) {
  const auto models = every_model();
  EXPECT_EQ(models.size(), 12U);
  double largest = 0;
  for (const auto& [name, model] : models) {
    // "qwen3:30b": thirty billion weights, published with 4 to 8.5 bits each. The name rounds: llama3.2:1b has 1.24.
    std::string_view digits = name.substr(name.find(':') + 1);
    if (digits.ends_with("b") && name.find(':') != std::string_view::npos) {
      const double weights = std::stod(std::string(digits)) * 1e9;
      EXPECT_GT(model.file_bytes, 0.5 * weights) << name;
      EXPECT_LT(model.file_bytes, 1.1 * weights) << name;
    }
    // What a token reads: all of a dense model, and of a mixture no less than a twentieth.
    const double read = 0.7 * 1e15 / model.tokens_per_second;
    EXPECT_LE(read, model.file_bytes * 1.001) << name;
    EXPECT_GE(read, model.file_bytes / 20) << name;
    EXPECT_GT(model.file_bytes, 0.3e9) << name;
    largest = std::max(largest, model.file_bytes);
  }
  EXPECT_LT(largest, 70e9);
}

}  // namespace
}  // namespace millrace::store
