#include "base/os/terminal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "base/os/disk.h"
#include "base/os/file_info.h"
#include "base/os/process.h"
#include "base/os/scratch_file.h"

namespace millrace::os {
namespace {

namespace fs = std::filesystem;

TEST(ScratchFileTest, HasNoName) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("millrace-nameless-{}", process_id());
  fs::create_directories(folder);
  const auto file = ScratchFile::make(folder.string());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove_all(folder);
}

TEST(Disk, IsNoneBehindWhatIsNoDisk) { EXPECT_FALSE(find_disk(file_info("/proc")->volume).has_value()); }

TEST(Terminal, TellsWhatTheInputIs) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int before = ::dup(STDIN_FILENO);
  ::dup2(ends[0], STDIN_FILENO);
  EXPECT_TRUE(input_is_fed());
  EXPECT_FALSE(is_terminal(Stream::input));
  EXPECT_FALSE(input_is_ready(std::chrono::milliseconds(1)));
  ASSERT_EQ(::write(ends[1], "ab", 2), 2);
  EXPECT_TRUE(input_is_ready(std::chrono::milliseconds(1000)));
  std::array<char, 8> bytes{};
  EXPECT_EQ(*read_input({bytes.data(), 1}), 1u);
  EXPECT_EQ(*read_input(bytes), 1u);
  ::close(ends[1]);
  EXPECT_TRUE(input_is_ready(std::chrono::milliseconds(1000)));
  EXPECT_EQ(*read_input(bytes), 0u);
  ::dup2(before, STDIN_FILENO);
  ::close(before);
  ::close(ends[0]);
}

TEST(Terminal, NoticesThatNobodyReadsTheOutput) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int before = ::dup(STDOUT_FILENO);
  ::dup2(ends[1], STDOUT_FILENO);
  const bool with_reader = output_has_no_reader();
  ::close(ends[0]);
  const bool without = output_has_no_reader();
  ::dup2(before, STDOUT_FILENO);
  EXPECT_FALSE(with_reader);
  EXPECT_TRUE(without);
  ::close(before);
  ::close(ends[1]);
}

}  // namespace
}  // namespace millrace::os
