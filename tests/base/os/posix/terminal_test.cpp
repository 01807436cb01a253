#include "base/os/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
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

TEST(SingleKeys, ComeWithoutTheLinesEndAndAreNotShown) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(master, 0);
  ASSERT_EQ(::grantpt(master), 0);
  ASSERT_EQ(::unlockpt(master), 0);
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  const int before = ::dup(STDIN_FILENO);
  ASSERT_EQ(::dup2(terminal, STDIN_FILENO), STDIN_FILENO);
  pollfd echo{master, POLLIN, 0};
  char byte = 0;
  {
    const SingleKeys keys;
    ASSERT_EQ(::write(master, "a", 1), 1);
    ASSERT_TRUE(input_is_ready(std::chrono::seconds(2)));
    const auto got = read_input({&byte, 1});
    EXPECT_TRUE(got.ok() && *got == 1 && byte == 'a');
    EXPECT_EQ(::poll(&echo, 1, 50), 0) << "the terminal shows the key by itself";
  }
  ASSERT_EQ(::write(master, "b", 1), 1);
  EXPECT_EQ(::poll(&echo, 1, 2000), 1) << "lines are as they were";
  EXPECT_FALSE(input_is_ready(std::chrono::milliseconds(50))) << "and come whole";
  ::dup2(before, STDIN_FILENO);
  for (const int handle : {before, terminal, master}) ::close(handle);
}

}  // namespace
}  // namespace millrace::os
