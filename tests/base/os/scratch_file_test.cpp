#include "base/os/scratch_file.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "base/os/file.h"
#include "base/os/process.h"

namespace millrace::os {
namespace {

namespace fs = std::filesystem;

TEST(ScratchFileTest, CanBeOpenedAndLeavesNothing) {
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
    path = file->path();
    const auto again = File::open(path);
    ASSERT_TRUE(again.ok()) << again.status().message();
    std::array<std::byte, 32> bytes{};
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), *again->read(bytes)), "some bytessome bytes");
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove_all(folder);
  EXPECT_EQ(ScratchFile::make(folder.string()).status().code(), Code::not_found);
}

}  // namespace
}  // namespace millrace::os
