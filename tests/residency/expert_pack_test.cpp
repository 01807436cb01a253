#include "residency/expert_pack.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "residency/store_fixture.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;
using test::expert_tiles;
using test::make_test_plan;
using test::Model;
using test::WeightFile;

constexpr std::string_view kModel = "0123456789abcdef0123456789abcdef";
constexpr std::uint64_t kTile = 64 << 10;

class ExpertPacks : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("millrace-pack-{}", getpid());
    fs::create_directories(folder_ / "other disk");
    path_ = (folder_ / "model.pack").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  Status write(const PackWriting& writing = {}) {
    return write_pack(path_, model_.units, {model_.file->path()}, kModel, writing);
  }
  PackWriting striped() const { return {{(folder_ / "other disk").string()}, {}}; }

  /// All experts through a store over the model and the pack: the first failure, or ok.
  Status read_all(ExpertPack& pack) {
    const UnitTable moved = pack.moved(model_.units, kTile, 1);
    std::vector<std::string> paths{model_.file->path()};
    paths.insert(paths.end(), pack.paths().begin(), pack.paths().end());
    MR_ASSIGN_OR_RETURN(const auto backend,
                        storage::open_backend(paths, {.kind = storage::BackendKind::pread_buffered}));
    StoreOptions options;
    options.check = [&](std::int32_t tile, const std::byte* slot) { return pack.check(moved, tile, slot); };
    MR_ASSIGN_OR_RETURN(const auto store,
                        WeightStore::create(moved, make_test_plan(moved, 2, 3, 0), *backend, model_.budget, options));
    Status first;
    const auto tiles = expert_tiles(moved);
    EXPECT_EQ(tiles, expert_tiles(model_.units));
    for (const std::int32_t tile : tiles) {
      const Tile& what = moved.tiles()[static_cast<std::size_t>(tile)];
      const Tile& was = model_.units.tiles()[static_cast<std::size_t>(tile)];
      EXPECT_EQ(what.spans.size(), 1u);
      EXPECT_GE(was.spans.size(), 2u);
      MR_ASSIGN_OR_RETURN(Lease lease, store->lease(tile));
      if (const Status status = lease.wait(); !status.ok()) {
        if (first.ok()) first = status;
        continue;
      }
      std::uint64_t wrong = 0;
      for (std::size_t i = 0; i < what.segments.size(); ++i)
        for (std::uint64_t b = 0; b < what.segments[i].bytes; ++b)
          wrong +=
              std::to_integer<std::uint8_t>(lease.segment(i)[b]) != WeightFile::byte_at(was.segments[i].file_offset + b)
                  ? 1
                  : 0;
      EXPECT_EQ(wrong, 0u) << tile;
    }
    return first;
  }
  std::string bytes_of(const std::string& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void put(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  Model model_{{.layers = 3, .experts = 5, .tile_bytes = kTile}};
  fs::path folder_;
  std::string path_;
};

TEST_F(ExpertPacks, EachExpertComesInOneRead) {
  for (const bool stripes : {false, true}) {
    const Status written = write(stripes ? striped() : PackWriting());
    ASSERT_TRUE(written.ok()) << written.message();
    auto pack = ExpertPack::open(path_, model_.units, kModel);
    ASSERT_TRUE(pack.ok()) << pack.status().message();
    EXPECT_EQ((*pack)->paths().size(), stripes ? 2u : 1u);
    const Status read = read_all(**pack);
    EXPECT_TRUE(read.ok()) << read.message();
  }
  EXPECT_FALSE(fs::exists(path_ + ".part"));
}

TEST_F(ExpertPacks, AStaleOneIsRefusedByName) {
  ASSERT_TRUE(write().ok());
  const std::string other(32, 'f');
  const Status stale = ExpertPack::open(path_, model_.units, other).status();
  EXPECT_EQ(stale.code(), Code::invalid_argument);
  EXPECT_NE(stale.message().find("model.pack is stale"), std::string::npos) << stale.message();
  const Model larger({.layers = 3, .experts = 6, .tile_bytes = kTile});
  EXPECT_EQ(ExpertPack::open(path_, larger.units, kModel).status().code(), Code::corrupt);
  const Model wider({.layers = 3, .experts = 5, .expert_rows = 44, .tile_bytes = kTile});
  EXPECT_EQ(ExpertPack::open(path_, wider.units, kModel).status().code(), Code::corrupt);
  EXPECT_EQ(ExpertPack::open(path_ + "x", model_.units, kModel).status().code(), Code::not_found);
}

TEST_F(ExpertPacks, NoDamagedHeaderIsTaken) {
  ASSERT_TRUE(write(striped()).ok());
  for (const std::string& path : {path_, (folder_ / "other disk" / "model.pack.1").string()}) {
    const std::string whole = bytes_of(path);
    const std::size_t used = whole.substr(0, 4096).find_last_not_of('\0') + 1;
    ASSERT_GT(used, 70u);
    for (std::size_t at = 0; at < used; ++at) {
      std::string broken = whole;
      broken[at] = static_cast<char>(broken[at] ^ (1 << (at % 8)));
      put(path, broken);
      EXPECT_FALSE(ExpertPack::open(path_, model_.units, kModel).ok()) << path << " byte " << at;
    }
    for (std::size_t size = 0; size < whole.size(); size += size < 300 ? 1 : 1237) {
      put(path, std::string_view(whole).substr(0, size));
      EXPECT_FALSE(ExpertPack::open(path_, model_.units, kModel).ok()) << path << " cut to " << size;
    }
    put(path, whole);
  }
  EXPECT_TRUE(ExpertPack::open(path_, model_.units, kModel).ok());
}

TEST_F(ExpertPacks, DamagedWeightsFailTheirReadAndNoOther) {
  ASSERT_TRUE(write().ok());
  const std::string whole = bytes_of(path_);
  const std::uint64_t each = round_up(3 * 40 * 96 * sizeof(float), 4096);
  for (const std::uint64_t at : {std::uint64_t{4096}, 4096 + 7 * each + 20'000, 4096 + 14 * each + 3}) {
    std::string broken = whole;
    broken[at] = static_cast<char>(broken[at] ^ 0x10);
    put(path_, broken);
    auto pack = ExpertPack::open(path_, model_.units, kModel);
    ASSERT_TRUE(pack.ok());
    const Status read = read_all(**pack);
    EXPECT_EQ(read.code(), Code::corrupt);
    const std::uint64_t number = (at - 4096) / each;
    EXPECT_NE(read.message().find(fmt::format("expert {} of layer {}", number % 5, number / 5)), std::string::npos)
        << read.message();
    EXPECT_NE(read.message().find("model.pack is damaged"), std::string::npos) << read.message();
  }
}

TEST_F(ExpertPacks, StripesOfTwoPacksAreNotMixed) {
  ASSERT_TRUE(write(striped()).ok());
  const std::string mine = bytes_of((folder_ / "other disk" / "model.pack.1").string());
  ASSERT_TRUE(write_pack(path_, model_.units, {model_.file->path()}, std::string(32, 'e'), striped()).ok());
  put((folder_ / "other disk" / "model.pack.1").string(), mine);
  EXPECT_EQ(ExpertPack::open(path_, model_.units, std::string(32, 'e')).status().code(), Code::corrupt);
}

TEST_F(ExpertPacks, WritingCanBeStoppedAndHarmsNoModel) {
  PackWriting stopped;
  stopped.progress = [](std::uint64_t done, std::uint64_t total) { return done < total / 2; };
  EXPECT_EQ(write(stopped).code(), Code::cancelled);
  EXPECT_TRUE(fs::is_empty(folder_) || !fs::exists(path_));
  EXPECT_FALSE(fs::exists(path_ + ".part"));
  path_ = model_.file->path();
  EXPECT_EQ(write().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace millrace::residency
