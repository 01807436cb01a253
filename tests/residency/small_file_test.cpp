#include "residency/small_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "file_limit.h"
#include "fresh_folder.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;

class SmallFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = millrace::test::fresh_folder("small");
    path_ = folder_ + "/x.json";
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::size_t files() const { return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  std::string folder_, path_;
};

TEST_F(SmallFile, IsReadWithABound) {
  ASSERT_TRUE(write_small_file(path_, "0123456789").ok());
  EXPECT_EQ(*read_small_file(path_, 10), "0123456789");
  EXPECT_EQ(read_small_file(path_, 9).status().code(), Code::invalid_argument);
  EXPECT_EQ(read_small_file("/dev/zero", 1 << 20).status().code(), Code::invalid_argument);
  EXPECT_EQ(read_small_file(folder_ + "/nothing", 9).status().code(), Code::not_found);
  EXPECT_EQ(read_small_file(folder_, 9).status().code(), Code::io_error);
}

TEST_F(SmallFile, KeepsTheOldTextWhereTheNewOneDoesNotFit) {
  ASSERT_TRUE(write_small_file(path_, "old").ok());
  if (!millrace::test::FileLimit::works) GTEST_SKIP() << "Windows limits no file";
  Status status;
  {
    const millrace::test::FileLimit limit(4);
    status = write_small_file(path_, std::string(100, 'x'));
  }
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_EQ(*read_small_file(path_, 100), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(SmallFile, FollowsALinkOnlyWhereItIsAskedTo) {
  ASSERT_TRUE(write_small_file(path_, "old").ok());
  const std::string link = folder_ + "/link";
  fs::create_symlink(path_, link);
  ASSERT_TRUE(write_small_file(link, "through").ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(*read_small_file(path_, 100), "through");
  ASSERT_TRUE(write_small_file(link, "1234", Links::replace).ok());
  EXPECT_FALSE(fs::is_symlink(link));
  EXPECT_EQ(*read_small_file(link, 100), "1234");
  EXPECT_EQ(*read_small_file(path_, 100), "through");
}

TEST_F(SmallFile, WritesADeviceWhereItIs) {
  EXPECT_TRUE(write_small_file("/dev/null", "x").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_FALSE(write_small_file("/dev/full", "x").ok());
}

}  // namespace
}  // namespace millrace::residency
