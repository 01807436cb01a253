#include "base/os/scratch_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "base/os/disk.h"
#include "base/os/file_info.h"
#include "base/os/process.h"
#include "base/os/terminal.h"

namespace millrace::os {
namespace {

namespace fs = std::filesystem;

TEST(ScratchFileTest, HasNoNameAndCanBeOpened) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("millrace-scratch-{}", process_id());
  fs::create_directories(folder);
  std::string path;
  {
    const auto file = ScratchFile::make(folder.string());
    ASSERT_TRUE(file.ok()) << file.status().message();
    const std::string_view text = "some bytes";
    ASSERT_TRUE(file->write(std::as_bytes(std::span(text))).ok());
    ASSERT_TRUE(file->write(std::as_bytes(std::span(text))).ok());
    ASSERT_TRUE(file->flush_to_disk().ok());
    EXPECT_TRUE(fs::is_empty(folder));
    path = file->path();
    std::ifstream again(path);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(again), {}), "some bytessome bytes");
  }
  EXPECT_FALSE(fs::exists(path));
  fs::remove_all(folder);
  EXPECT_EQ(ScratchFile::make(folder.string()).status().code(), Code::not_found);
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
