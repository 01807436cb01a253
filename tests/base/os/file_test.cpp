#include "base/os/file.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "base/os/folder.h"
#include "base/os/process.h"

namespace millrace::os {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() : folder_(fs::temp_directory_path() / fmt::format("millrace-os-{}", process_id())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~FileTest() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static std::string text_of(const std::string& path) {
    std::ifstream file(fs::path(path), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  File fresh(const std::string& name) const {
    auto file = File::open(at(name), {.access = File::Access::both, .create = File::Create::if_missing});
    EXPECT_TRUE(file.ok()) << file.status().message();
    return std::move(*file);
  }

  const fs::path folder_;
};

TEST_F(FileTest, WritesAndReadsAtAnyPlace) {
  const File file = fresh("a");
  ASSERT_TRUE(file.write("0123456789").ok());
  ASSERT_TRUE(file.write_at(2, std::as_bytes(std::span("AB", 2))).ok());
  std::array<std::byte, 16> bytes{};
  const auto got = file.read_at(1, bytes);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got, 9u) << "the file ends there";
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(bytes.data()), *got), "1AB456789");
  EXPECT_EQ(*file.read_at(10, bytes), 0u);
  ASSERT_TRUE(file.resize(4).ok());
  EXPECT_EQ(text_of(at("a")), "01AB");
  EXPECT_EQ(file.info()->bytes, 4u);
  EXPECT_TRUE(file.sync().ok() && file.sync_data().ok());
}

TEST_F(FileTest, ReadsOnWhereItStopped) {
  ASSERT_TRUE(fresh("a").write("abcdef").ok());
  const auto file = File::open(at("a"));
  std::array<std::byte, 4> bytes{};
  EXPECT_EQ(*file->read(bytes), 4u);
  EXPECT_EQ(*file->read(bytes), 2u);
  EXPECT_EQ(*file->read(bytes), 0u);
}

TEST_F(FileTest, SaysWhatIsThere) {
  ASSERT_TRUE(fresh("a").write("abc").ok());
  EXPECT_EQ(file_info(at("nothing")).status().code(), Code::not_found);
  EXPECT_EQ(file_info(folder_.string())->kind, FileKind::folder);
  EXPECT_EQ(file_info(at("a"))->kind, FileKind::regular);
  const FileInfo one = *file_info(at("a")), same = *file_info(at("../" + folder_.filename().string() + "/a"));
  EXPECT_TRUE(one.volume == same.volume && one.number == same.number);
  EXPECT_FALSE(volume_name(one.volume).empty());
  EXPECT_EQ(File::open(at("nothing")).status().code(), Code::not_found);
  EXPECT_EQ(File::open(at("a"), {.access = File::Access::write, .create = File::Create::always_new}).status().code(),
            Code::invalid_argument);
}

TEST_F(FileTest, ALinkIsToldFromWhatItLeadsTo) {
  ASSERT_TRUE(fresh("a").write("abc").ok());
  fs::create_symlink(at("a"), at("link"));
  EXPECT_EQ(file_info(at("link"))->kind, FileKind::regular);
  EXPECT_EQ(file_info(at("link"), Links::stay)->kind, FileKind::link);
  const FileInfo one = *file_info(at("a")), same = *file_info(at("link"));
  EXPECT_TRUE(one.volume == same.volume && one.number == same.number);
  EXPECT_EQ(File::open(at("link"), {.links = Links::stay}).status().code(), Code::invalid_argument);
}

TEST_F(FileTest, AFileIsGivenAnotherName) {
  fs::create_directories(at("models/one"));
  ASSERT_TRUE(fresh("a").write("abc").ok());
  for (const auto& [target, link] : {std::pair("../../a", "models/one/near"), {"a", "beside"}})
    ASSERT_TRUE(link_file(target, at(link)).ok()) << link;
  ASSERT_TRUE(link_file(at("a"), at("models/far")).ok());
  for (const char* link : {"models/one/near", "beside", "models/far"}) {
    EXPECT_EQ(text_of(at(link)), "abc");
    EXPECT_EQ(file_info(at(link))->number, file_info(at("a"))->number);
  }
  EXPECT_EQ(link_file(at("a"), at("beside")).code(), Code::invalid_argument);
  ASSERT_TRUE(fresh("b").write("b").ok());
  ASSERT_TRUE(replace_file(at("beside"), at("b")).ok());
  EXPECT_EQ(text_of(at("b")), "abc");
  EXPECT_TRUE(remove_file(at("b")).ok());
  EXPECT_EQ(text_of(at("a")), "abc");
}

TEST_F(FileTest, NamesAreUtf8AndLong) {
  const std::string name = "\xe6\xb0\xb4\xe8\xbb\x8a \xc3\xbc \xf0\x9f\x8c\x8a";
  ASSERT_TRUE(fresh(name).write("abc").ok());
  EXPECT_EQ(fs::file_size(fs::path(at(name))), 3u) << "the standard library reads the name alike";
  EXPECT_EQ(fs::directory_iterator(folder_)->path().filename().string(), name);
  const std::string longest(230, 'x');  // with its folder more than 260
  ASSERT_TRUE(fresh(longest).write("abc").ok());
  EXPECT_EQ(file_info(at(longest))->bytes, 3u);
  EXPECT_TRUE(remove_file(at(longest)).ok());
}

TEST_F(FileTest, AppendsWhereverTheEndIsByThen) {
  const File::Options options{.access = File::Access::write, .create = File::Create::if_missing, .append = true};
  const auto one = File::open(at("a"), options), other = File::open(at("a"), options);
  ASSERT_TRUE(one->write("ab").ok() && other->write("cd").ok() && one->write("ef").ok());
  EXPECT_EQ(text_of(at("a")), "abcdef");
  ASSERT_TRUE(File::open(at("a"), {.access = File::Access::write, .empty = true, .append = true})->write("x").ok());
  EXPECT_EQ(text_of(at("a")), "x");
}

TEST_F(FileTest, ATimeIsAsItWasSet) {
  constexpr std::int64_t kThen = 1'700'000'000'123'456'700;  // Windows counts by 100 ns
  const File file = fresh("a");
  ASSERT_TRUE(file.set_modified(kThen).ok());
  EXPECT_EQ(file.info()->modified_ns, kThen);
}

TEST_F(FileTest, PermissionsAreAsTheyWereSet) {
  const auto file =
      File::open(at("a"), {.access = File::Access::write, .create = File::Create::always_new, .owner_only = true});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(fs::status(at("a")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const File other = fresh("b");
  ASSERT_TRUE(other.set_permissions_like(at("a")).ok());
  EXPECT_EQ(fs::status(at("b")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(FileTest, OnlyOneHoldsTheLock) {
  File one = fresh("a");
  const File other = fresh("a");
  ASSERT_TRUE(one.lock(false).ok());
  EXPECT_EQ(other.lock(false).code(), Code::unavailable);
  ASSERT_TRUE(one.close().ok());
  EXPECT_TRUE(other.lock(true).ok());
}

TEST_F(FileTest, AFileIsReplacedInOneStep) {
  ASSERT_TRUE(fresh("old").write("old").ok());
  ASSERT_TRUE(fresh("new").write("new").ok());
  ASSERT_TRUE(replace_file(at("new"), at("old")).ok());
  EXPECT_TRUE(sync_folder(folder_.string()).ok());
  EXPECT_EQ(text_of(at("old")), "new");
  EXPECT_EQ(replace_file(at("new"), at("old")).code(), Code::not_found);
  EXPECT_TRUE(remove_file(at("old")).ok());
  EXPECT_EQ(remove_file(at("old")).code(), Code::not_found);
}

TEST_F(FileTest, WhoHadAReplacedFileOpenKeepsIt) {
  ASSERT_TRUE(fresh("old").write("old one").ok());
  ASSERT_TRUE(fresh("new").write("new").ok());
  const auto open = File::open(at("old"));
  const Status status = replace_file(at("new"), at("old"));
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(open->info()->bytes, 7u);
  EXPECT_EQ(text_of(at("old")), "new");
}

TEST_F(FileTest, AFullDiskIsToldFromAnyOther) {
  const auto full = File::open("/dev/full", {.access = File::Access::write});
  if (!full.ok()) GTEST_SKIP() << "no /dev/full here";
  EXPECT_EQ(full->write("x").code(), Code::out_of_budget);
  EXPECT_GT(*free_bytes(folder_.string()), 0u);
}

TEST_F(FileTest, AFolderNamesItsFiles) {
  ASSERT_TRUE(make_private_folder(at("own")).ok());
  EXPECT_TRUE(make_private_folder(at("own")).ok()) << "it stays as it is";
  const auto folder = Folder::open(at("own"));
  ASSERT_TRUE(folder.ok());
  EXPECT_TRUE(*folder->is_private());
  EXPECT_TRUE(folder->check_writable().ok());
  const File::Options options{.access = File::Access::write, .create = File::Create::always_new};
  ASSERT_TRUE(folder->open_file("a", options)->write("abc").ok());
  ASSERT_TRUE(folder->replace("a", "b").ok() && folder->set_modified("b", 500).ok());
  EXPECT_EQ(folder->info("b")->modified_ns, 500);
  EXPECT_EQ(text_of(at("own/b")), "abc");
  int files = 0;
  ASSERT_TRUE(folder->for_each([&](const std::string& name) { files += name == "b" ? 1 : 0; }).ok());
  EXPECT_EQ(files, 1);
  ASSERT_TRUE(folder->remove("b").ok());
  EXPECT_EQ(folder->info("b").status().code(), Code::not_found);
  EXPECT_GT(*folder->free_bytes(), 0u);
  EXPECT_EQ(Folder::open(at("nothing")).status().code(), Code::not_found);
}

TEST_F(FileTest, AFolderIsTheOneThatWasOpened) {
  ASSERT_TRUE(make_private_folder(at("own")).ok());
  const auto folder = Folder::open(at("own"));
  std::error_code failure;  // Windows keeps an open folder's name
  fs::rename(at("own"), at("elsewhere"), failure);
  const File::Options options{.access = File::Access::write, .create = File::Create::always_new};
  ASSERT_TRUE(folder->open_file("a", options)->write("abc").ok());
  EXPECT_EQ(text_of(at(failure ? "own/a" : "elsewhere/a")), "abc");
}

TEST_F(FileTest, AFolderThatAnybodyMayWriteToIsNotPrivate) {
  ASSERT_TRUE(make_private_folder(at("own")).ok());
  fs::permissions(at("own"), fs::perms::all);
  EXPECT_FALSE(*Folder::open(at("own"))->is_private());
}

}  // namespace
}  // namespace millrace::os
