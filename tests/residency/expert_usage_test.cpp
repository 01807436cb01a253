// What is learned of experts, on paper and in a file: exact there and back, faded with time, and refused when damaged.
#include "residency/expert_usage.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "residency/small_file.h"
#include "residency/store_fixture.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;

class UsageFile : public testing::Test {
 protected:
  void SetUp() override {
    static int count = 0;
    folder_ = fs::temp_directory_path() / fmt::format("millrace-usage-{}-{}", getpid(), count++);
    std::uint64_t bytes = 0;
    units_ = test::make_units({.layers = 2, .experts = 3, .tile_bytes = 64 << 10}, &bytes);
    usage_ = no_usage(units_);
    usage_.passes = 100;
    usage_.uses = {{100, 3, 0}, {1, 50, 99}};
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "experts" / "abc.json").string(); }
  Expected<ExpertUsage> read(std::string_view model = "abc") const {
    return read_usage(path(), model, no_usage(units_));
  }

  fs::path folder_;
  UnitTable units_;
  ExpertUsage usage_;
};

TEST_F(UsageFile, GivesBackWhatWasWritten) {
  EXPECT_EQ(read().status().code(), Code::not_found);
  ASSERT_TRUE(write_usage(path(), "abc", usage_).ok());
  const auto back = read();
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, usage_);
  EXPECT_EQ(fs::status(folder_ / "experts").permissions(), fs::perms::owner_all)
      << "what somebody's traffic calls for is theirs to know";
}

TEST_F(UsageFile, EveryDamageIsSeen) {
  ASSERT_TRUE(write_usage(path(), "abc", usage_).ok());
  const std::string whole = *read_small_file(path(), 1 << 20);
  for (std::size_t at = 0; at + 1 < whole.size(); ++at) {
    std::string text = whole;
    text[at] = text[at] == '7' ? '8' : '7';
    ASSERT_TRUE(write_small_file(path(), text).ok());
    EXPECT_FALSE(read().ok()) << at << ": " << text;
    ASSERT_TRUE(write_small_file(path(), whole.substr(0, at)).ok());
    EXPECT_EQ(read().status().code(), Code::corrupt) << at;
  }
}

TEST_F(UsageFile, OthersAreRefusedByName) {
  ASSERT_TRUE(write_usage(path(), "abc", usage_).ok());
  EXPECT_EQ(read("abd").status().code(), Code::invalid_argument);
  std::string text = *read_small_file(path(), 1 << 20);
  text.replace(text.find("\"version\":1"), 11, "\"version\":2");
  ASSERT_TRUE(write_small_file(path(), text).ok());
  EXPECT_EQ(read().status().code(), Code::unsupported);
  ExpertUsage other = usage_;
  other.uses[1].pop_back();
  ASSERT_TRUE(write_usage(path(), "abc", other).ok());
  EXPECT_EQ(read().status().code(), Code::corrupt) << "it has fewer experts";
  other = usage_;
  other.uses[0][1] = 101;
  ASSERT_TRUE(write_usage(path(), "abc", other).ok());
  EXPECT_EQ(read().status().code(), Code::corrupt) << "an expert in more passes than there were";
  ASSERT_TRUE(write_small_file(path(), std::string(5 << 20, ' ')).ok());
  EXPECT_EQ(read().status().code(), Code::invalid_argument) << "too long";
}

TEST_F(UsageFile, WhatCannotBeWrittenIsAnError) {
  ASSERT_TRUE(write_small_file(folder_.string(), "a file in the folder's place").ok());
  EXPECT_EQ(write_usage(path(), "abc", usage_).code(), Code::io_error);
}

TEST_F(UsageFile, LaterTrafficOutweighsWhatIsLongAgo) {
  ExpertUsage usage = no_usage(units_), old = usage, late = usage;
  old.passes = late.passes = ExpertUsage::kMostPasses;
  old.uses[0] = {old.passes, 0, 0};
  late.uses[0] = {0, late.passes, 0};
  add_usage(old, usage);
  EXPECT_EQ(usage, old);
  add_usage(late, usage);
  EXPECT_EQ(usage.passes, ExpertUsage::kMostPasses);
  EXPECT_EQ(usage.uses[0][0], usage.passes / 2);
  add_usage(late, usage);
  EXPECT_EQ(usage.uses[0][0], usage.passes / 4);
  EXPECT_EQ(usage.uses[0][1], usage.passes / 4 * 3);
}

TEST_F(UsageFile, WhatHasComeSinceIsWhatIsAdded) {
  ExpertUsage now = usage_;
  now.passes += 7;
  now.uses[1][0] += 5;
  ExpertUsage since = usage_since(usage_, now);
  EXPECT_EQ(since.passes, 7);
  EXPECT_EQ(since.uses, (std::vector<std::vector<std::int64_t>>{{0, 0, 0}, {5, 0, 0}}));
  add_usage(since, usage_);
  EXPECT_EQ(usage_, now);
}

TEST_F(UsageFile, AFileThatNestsDeeplyIsDamaged) {
  const std::string deep(100'000, '['), end(100'000, ']');
  const std::string text =
      fmt::format(R"({{"version":1,"model":"m","passes":1,"uses":{}{},"checksum":"0123456789abcdef"}})", deep, end);
  EXPECT_EQ(parse_usage(text, "deep.json", "m", no_usage(units_)).status().code(), Code::corrupt);
}

TEST_F(UsageFile, FewPassesTellNothing) {
  const std::vector<float> rates = usage_by_unit(units_, usage_);
  ASSERT_EQ(rates.size(), units_.units().size());
  for (std::size_t u = 0; u < rates.size(); ++u) {
    const Unit& unit = units_.units()[u];
    const float expected =
        unit.kind != UnitKind::expert
            ? 0
            : static_cast<float>(
                  usage_.uses[static_cast<std::size_t>(unit.layer)][static_cast<std::size_t>(unit.expert)]) /
                  100;
    EXPECT_EQ(rates[u], expected) << u;
  }
  usage_.passes = 3;
  EXPECT_TRUE(usage_by_unit(units_, usage_).empty());
}

}  // namespace
}  // namespace millrace::residency
