#include "kv/prompt_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "file_limit.h"
#include "kv/small_layout.h"

namespace millrace::kv {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

const Group& kGroup = kSmall.groups()[0];
constexpr std::uint64_t kFileOnDisk = 8192;  // 128 + 256 + 4096 bytes in blocks of the disk

struct PromptFolder : testing::Test {
  fs::path home = fs::temp_directory_path() / ("prompts-" + std::to_string(getpid()));
  std::string folder = (home / "below" / "prompts").string();
  const PromptStore::Time now = std::chrono::system_clock::now();
  const PromptKey root = root_key("a model", kSmall);
  std::vector<std::byte> out{static_cast<std::size_t>(kGroup.block_bytes())};

  void SetUp() override { fs::remove_all(home); }
  void TearDown() override { fs::remove_all(home); }

  std::unique_ptr<PromptStore> open(std::uint64_t most_bytes = 1 << 20) const {
    auto store = PromptStore::open({folder, most_bytes, 0});
    EXPECT_TRUE(store.ok()) << store.status().message();
    return store.ok() ? std::move(*store) : nullptr;
  }

  /// The first block of a prompt that consists of one number.
  struct Made {
    std::vector<Token> tokens;
    PromptBlock block;
    std::vector<std::byte> payload;
  };
  Made made(Token number) const {
    Made it;
    it.tokens.assign(kBlockTokens, number);
    it.block = {kGroup, 0, root, next_key(root, it.tokens), it.tokens};
    it.payload.assign(static_cast<std::size_t>(kGroup.block_bytes()), static_cast<std::byte>(number));
    return it;
  }
  Status save(PromptStore& store, Token number, std::chrono::seconds ago = 0s) const {
    const Made it = made(number);
    return store.save(it.block, it.payload.data(), now - ago);
  }
  Code load(PromptStore& store, Token number) {
    const Made it = made(number);
    const Status status = store.load(it.block, out.data());
    EXPECT_TRUE(!status.ok() || out == it.payload);
    return status.code();
  }
  fs::path path(Token number) const { return folder + "/" + made(number).block.key.hex() + ".kv"; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
};

TEST_F(PromptFolder, GivesBackWhatItTookAlsoToTheNext) {
  {
    const auto store = open();
    EXPECT_EQ(load(*store, 1), Code::not_found);
    EXPECT_FALSE(store->refresh(made(1).block.key, now));
    ASSERT_TRUE(save(*store, 1).ok());
    EXPECT_EQ(load(*store, 1), Code::ok);
  }
  const auto next = open();
  EXPECT_EQ(load(*next, 1), Code::ok);
  EXPECT_EQ(load(*next, 2), Code::not_found);
  EXPECT_EQ(next->counters().read_bytes, made(1).block.file_bytes());
}

TEST_F(PromptFolder, IsForItsOwnerAlone) {
  const auto store = open();
  ASSERT_TRUE(save(*store, 1).ok());
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(path(1)).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(PromptFolder, RefusesAFolderWhereOthersMayWrite) {
  fs::create_directories(folder);
  fs::permissions(folder, fs::perms::all);
  EXPECT_EQ(PromptStore::open({folder, 1 << 20, 0}).status().code(), Code::invalid_argument);
  fs::remove_all(folder);
  std::ofstream(folder) << "a file";
  EXPECT_EQ(PromptStore::open({folder, 1 << 20, 0}).status().code(), Code::io_error);
}

TEST_F(PromptFolder, WhatIsDamagedIsRemovedAndSaysSo) {
  const auto store = open();
  const auto damage = [&](const char* what, auto change) {
    ASSERT_TRUE(save(*store, 1).ok());
    change(path(1));
    EXPECT_EQ(load(*store, 1), Code::corrupt) << what;
    EXPECT_FALSE(fs::exists(fs::symlink_status(path(1)))) << what;
    EXPECT_EQ(load(*store, 1), Code::not_found) << what;
  };
  const auto poke = [](std::streamoff at) {
    return [at](const fs::path& file) {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(at);
      const int byte = stream.get();
      stream.seekp(at);
      stream.put(static_cast<char>(byte ^ 1));
    };
  };
  damage("magic", poke(0));
  damage("version", poke(8));
  damage("tokens", poke(128 + 17));
  damage("payload", poke(4000));
  damage("checksum", poke(112));
  damage("cut", [](const fs::path& file) { fs::resize_file(file, 1000); });
  damage("empty", [](const fs::path& file) { fs::resize_file(file, 0); });
  damage("longer", [](const fs::path& file) { fs::resize_file(file, 100'000); });
  damage("another's", [&](const fs::path& file) {
    ASSERT_TRUE(save(*store, 2).ok());
    fs::rename(path(2), file);
  });
#if !defined(_WIN32)  // which has neither of the two
  damage("a link", [&](const fs::path& file) {
    fs::remove(file);
    fs::create_symlink("/etc/hostname", file);
  });
  damage("a pipe", [](const fs::path& file) {
    fs::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  });
  constexpr std::uint64_t kDamages = 11;
#else
  constexpr std::uint64_t kDamages = 9;
#endif
  EXPECT_EQ(store->counters().damaged_files, kDamages);
}

TEST_F(PromptFolder, TheLeastRecentlyUsedMakeRoom) {
  const auto store = open(4 * kFileOnDisk);
  for (Token i = 1; i <= 4; ++i) ASSERT_TRUE(save(*store, i, std::chrono::seconds(10 - i)).ok());
  ASSERT_TRUE(store->refresh(made(1).block.key, now));
  std::ofstream(folder + "/notes.txt") << "not ours";
  EXPECT_EQ(*store->make_room(2 * kFileOnDisk, now), 2 * kFileOnDisk);
  EXPECT_TRUE(fs::exists(path(1)));
  EXPECT_FALSE(fs::exists(path(2)));
  EXPECT_FALSE(fs::exists(path(3)));
  EXPECT_TRUE(fs::exists(path(4)));
  EXPECT_EQ(store->counters().files, 2u);
  EXPECT_EQ(store->counters().bytes, 2 * kFileOnDisk);
  EXPECT_EQ(*store->make_room(100 * kFileOnDisk, now - 1h), 2 * kFileOnDisk) << "what is in use stays";
  EXPECT_EQ(*store->make_room(100 * kFileOnDisk, now + 1h), 4 * kFileOnDisk);
  EXPECT_EQ(files(), 1u) << "what is not ours stays";
}

TEST_F(PromptFolder, AFolderOverItsCapIsCutDown) {
  for (Token i = 0; i < 10; ++i) ASSERT_TRUE(save(*open(), i, std::chrono::seconds(i)).ok());
  EXPECT_EQ(*open(3 * kFileOnDisk)->make_room(0, now + 1h), 0u);
  EXPECT_EQ(files(), 3u);
  EXPECT_TRUE(fs::exists(path(0)));
}

TEST_F(PromptFolder, ADiskThatIsNearlyFullIsLeftAlone) {
  auto store = PromptStore::open({folder, 1 << 20, UINT64_MAX});
  ASSERT_TRUE(store.ok());
  EXPECT_EQ(*(*store)->make_room(4096, now), 0u);
}

TEST_F(PromptFolder, WhatADeadWriterLeftIsRemoved) {
  const auto store = open();
  const std::string fresh = folder + "/" + root.hex() + ".1.0.new", old = folder + "/" + root.hex() + ".2.0.new";
  std::ofstream(fresh) << "half";
  std::ofstream(old) << "half";
  fs::last_write_time(old, fs::file_time_type::clock::now() - 2h);
  EXPECT_TRUE(store->make_room(1, now).ok());
  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_FALSE(fs::exists(old));
}

TEST_F(PromptFolder, TwoStoresShareAFolder) {
  const auto one = open(64 * kFileOnDisk), two = open(64 * kFileOnDisk);
  const auto work = [&](PromptStore& store, Token first) {
    for (int round = 0; round < 20; ++round) {
      for (Token i = 0; i < 8; ++i) {
        EXPECT_TRUE(save(store, (first + i) % 12).ok());
        const Made it = made(i);
        std::vector<std::byte> mine(it.payload.size());
        const Status status = store.load(it.block, mine.data());
        EXPECT_TRUE(status.ok() || status.code() == Code::not_found) << status.message();
        EXPECT_TRUE(!status.ok() || mine == it.payload);
      }
      EXPECT_TRUE(store.make_room(60 * kFileOnDisk, now + 1h).ok());
    }
  };
  std::thread other([&] { work(*two, 4); });
  work(*one, 0);
  other.join();
  EXPECT_EQ(one->counters().damaged_files + two->counters().damaged_files, 0u);
}

TEST_F(PromptFolder, AFullDiskIsAnErrorThatLeavesNothing) {
  const auto store = open();
  ASSERT_TRUE(save(*store, 1).ok());
  if (!millrace::test::FileLimit::works) GTEST_SKIP() << "Windows limits no file";
  Status status;
  {
    const millrace::test::FileLimit limit(1000);
    status = save(*store, 2);
  }
  EXPECT_EQ(status.code(), Code::out_of_budget) << status.message();
  EXPECT_EQ(files(), 1u);
  fs::remove_all(folder);
  EXPECT_EQ(save(*store, 2).code(), Code::io_error) << "the folder is gone";
}

}  // namespace
}  // namespace millrace::kv
