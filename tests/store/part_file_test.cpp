#include "app/store/part_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "app/store/digest.h"
#include "fresh_folder.h"

namespace millrace::store {
namespace {

constexpr std::uint64_t kBytes = 1'000'000;

class PartFileTest : public testing::Test {
 protected:
  void SetUp() override { folder_ = test::fresh_folder("part"); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<PartFile> open(const std::string& identity = "abc", std::uint64_t bytes = kBytes) const {
    auto part = PartFile::open(folder_ + "/x.gguf", bytes, identity);
    EXPECT_TRUE(part.ok()) << part.status().message();
    return std::move(*part);
  }
  static void fill(PartFile& part, std::size_t chunk) {
    const std::vector<std::byte> bytes(part.chunk_end(chunk) - part.chunk_begin(chunk), std::byte{7});
    ASSERT_TRUE(part.write(part.chunk_begin(chunk), bytes).ok());
    ASSERT_TRUE(part.mark_done(chunk).ok());
  }
  void append(const std::string& text) const { std::ofstream(folder_ + "/x.gguf.journal", std::ios::app) << text; }
  std::string folder_;
};

TEST_F(PartFileTest, GoesOnWhereItWas) {
  {
    const auto part = open();
    ASSERT_GT(part->chunks(), 4u);
    EXPECT_EQ(part->chunk_end(part->chunks() - 1), kBytes);
    fill(*part, 0);
    fill(*part, 3);
  }
  append("2");  // torn: it might have become 25
  {
    const auto part = open();
    EXPECT_TRUE(part->done(0) && part->done(3) && !part->done(2));
    fill(*part, 4);
  }
  const auto part = open();
  EXPECT_TRUE(part->done(4) && !part->done(2));
  EXPECT_EQ(part->done_bytes(), 3 * (part->chunk_end(0) - part->chunk_begin(0)));
  for (std::size_t chunk = 0; chunk < part->chunks(); ++chunk) fill(*part, chunk);
  EXPECT_TRUE(part->complete());
  ASSERT_TRUE(part->move_to(folder_ + "/whole").ok());
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/whole"), kBytes);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/x.gguf.journal"));
}

TEST_F(PartFileTest, BeginsAnewForAnotherFile) {
  fill(*open(), 1);
  EXPECT_TRUE(open()->done(1));
  EXPECT_EQ(open("other")->done_bytes(), 0u);
  fill(*open("other"), 1);
  EXPECT_EQ(open("other", kBytes + 1)->done_bytes(), 0u);
  fill(*open(), 1);
  std::filesystem::resize_file(folder_ + "/x.gguf", 10);
  EXPECT_EQ(open()->done_bytes(), 0u);
}

TEST_F(PartFileTest, BelievesNoJournalThatLies) {
  for (const char* line : {"999999\n", "-1\n", "1x\n", "\n", "18446744073709551616\n"}) {
    open()->discard();
    fill(*open(), 2);
    append(line);
    const auto part = open();
    EXPECT_TRUE(part->done(2)) << line;
    EXPECT_EQ(part->done_bytes(), part->chunk_end(2) - part->chunk_begin(2)) << line;
  }
}

TEST(Sha256, KnowsItsVectors) {  // FIPS 180-2, appendix B
  EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace millrace::store
