// Layers over ranks: as even as it can be, within every rank's room where that is possible.
#include "engine/share_layers.h"

#include <gtest/gtest.h>

#include <numeric>

namespace millrace::engine {
namespace {

using Bytes = std::vector<std::uint64_t>;

/// Ranks that have such rooms for weights; `table`: of the first one's.
std::vector<std::int64_t> counts(const Bytes& layers, const Bytes& rooms, std::uint64_t table = 0) {
  Bytes bytes, ram;
  for (const std::uint64_t layer : layers) bytes.push_back(layer * kPercentForWeights);
  for (const std::uint64_t room : rooms) ram.push_back(room * 100);
  const auto stages = share_layers(bytes, ram, table * kPercentForWeights);
  EXPECT_TRUE(stages.ok()) << stages.status().message();
  std::vector<std::int64_t> counts;
  std::int64_t next = 0;
  for (const model::Stage& stage : *stages) {
    EXPECT_EQ(stage.first, next);
    counts.push_back(stage.last - stage.first);
    next = stage.last;
  }
  EXPECT_EQ(next, std::ssize(layers));
  return counts;
}

using Counts = std::vector<std::int64_t>;

TEST(ShareLayers, EvenlyWhereAllFits) {
  EXPECT_EQ(counts(Bytes(8, 10), {100, 100}), (Counts{4, 4}));
  EXPECT_EQ(counts(Bytes(9, 10), {100, 100, 100}), (Counts{3, 3, 3}));
  EXPECT_EQ(counts(Bytes(8, 10), {100}), (Counts{8}));
}

TEST(ShareLayers, ByBytesNotByNumber) {
  EXPECT_EQ(counts({10, 10, 10, 10, 40}, {100, 100}), (Counts{4, 1})) << "the last one has the head";
  EXPECT_EQ(counts({60, 10, 10, 10, 10, 10, 10}, {100, 100}), (Counts{1, 6}));
}

TEST(ShareLayers, NoRankHasMoreThanItsRoom) {
  EXPECT_EQ(counts(Bytes(10, 10), {100, 30}), (Counts{7, 3}));
  EXPECT_EQ(counts(Bytes(10, 10), {20, 100, 40}), (Counts{2, 4, 4}));
  EXPECT_EQ(counts(Bytes(10, 10), {100, 10, 100}), (Counts{5, 1, 4}));
}

TEST(ShareLayers, EvenlyWhereItDoesNotFitAnyway) {
  EXPECT_EQ(counts(Bytes(10, 10), {30, 60}), (Counts{5, 5}));
  EXPECT_EQ(counts(Bytes(4, 10), {0, 0}), (Counts{2, 2}));
}

TEST(ShareLayers, TheTableHasRoomBesideTheFirstRanksLayersWhereItCan) {
  EXPECT_EQ(counts(Bytes(10, 10), {60, 60}, 15), (Counts{4, 6}));
  EXPECT_EQ(counts(Bytes(10, 10), {60, 60}, 5), (Counts{5, 5}));
  EXPECT_EQ(counts(Bytes(10, 10), {60, 60}, 30), (Counts{5, 5})) << "its rows are read; no layer is";
}

/// 22 layers of 1.1B in F16, its head and its table, on two ranks of 1.2 GB.
TEST(ShareLayers, MoreOfMemoryIsTakenThanShouldBeBeforeLayersAreRead) {
  Bytes layers(22, 88'000'000);
  layers.back() += 131'000'000;
  const auto stages = share_layers(layers, Bytes{1'200'000'000, 1'200'000'000}, 131'000'000);
  ASSERT_TRUE(stages.ok()) << stages.status().message();
  EXPECT_EQ(*stages, (std::vector<model::Stage>{{0, 11}, {11, 22}}));
}

TEST(ShareLayers, FewerLayersThanRanksAreNone) {
  EXPECT_EQ(share_layers(Bytes(2, 10), Bytes(3, 100), 0).status().code(), Code::invalid_argument);
}

TEST(ParseStages, SaysWhatIsWrong) {
  const auto good = parse_stages("0-2,3-7", 8, 2);
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(*good, (std::vector<model::Stage>{{0, 3}, {3, 8}}));
  EXPECT_EQ(parse_stages("0-0,1-1,2-7", 8, 3)->back(), (model::Stage{2, 8}));
  for (const char* text : {"", "0-2", "0-2,4-7", "0-2,2-7", "0-2,3-8", "0-2,3-", "0-2 3-7", "0-2,3-5,6-7", "2-0,3-7",
                           "0-2,,3-7", "a-b", "0-99999999999999999999"}) {
    const Status status = parse_stages(text, 8, 2).status();
    EXPECT_EQ(status.code(), Code::invalid_argument) << text;
    EXPECT_NE(status.message().find("--stages"), std::string::npos) << text;
  }
}

/// Layers that each rank gets, of dense ones of 10 bytes.
Counts placed(std::int64_t layers, const std::vector<RankSpeed>& ranks, double border, Shortest shortest) {
  const std::vector<LayerLoad> loads(static_cast<std::size_t>(layers), {10, 10});
  const auto stages = place_layers(loads, ranks, border, shortest);
  EXPECT_TRUE(stages.ok()) << stages.status().message();
  Counts counts;
  std::int64_t next = 0;
  for (const model::Stage& stage : *stages) {
    EXPECT_EQ(stage.first, next);
    counts.push_back(stage.last - stage.first);
    next = stage.last;
  }
  EXPECT_EQ(next, layers);
  return counts;
}

TEST(PlaceLayers, ForOneSequenceARankIsUsedIfItSavesMoreThanItsBorder) {
  const RankSpeed roomy{1000, 100, 1}, small{50, 100, 1};
  EXPECT_EQ(placed(10, {roomy, roomy}, 0.1, Shortest::sum), (Counts{10, 0}));
  EXPECT_EQ(placed(10, {{50, 50, 1}, roomy}, 0.1, Shortest::sum), (Counts{1, 9})) << "the first one has some";
  EXPECT_EQ(placed(10, {small, small}, 0.1, Shortest::sum), (Counts{5, 5})) << "the disk is slower than the network";
  EXPECT_EQ(placed(10, {small, small}, 1e6, Shortest::sum), (Counts{10, 0}));
  EXPECT_EQ(placed(10, {small, {0, 100, 0.1}, small}, 0.1, Shortest::sum), (Counts{5, 0, 5}))
      << "a weak one is left out";
}

TEST(PlaceLayers, ForSeveralSequencesTheSlowestStageIsAsFastAsItCanBe) {
  EXPECT_EQ(placed(10, {{1000, 100, 1}, {1000, 100, 1}}, 0.001, Shortest::longest), (Counts{5, 5}));
  EXPECT_EQ(placed(9, {{1000, 100, 1}, {1000, 200, 1}}, 0.001, Shortest::longest), (Counts{3, 6}));
}

TEST(PlaceLayers, AGpusMemoryIsFilledFirst) {
  // 30 bytes in VRAM, 100 times as fast as RAM; then 30 in RAM.
  const RankSpeed gpu{30, 100, 1, 30, 10000};
  EXPECT_EQ(placed(6, {gpu, gpu}, 0.01, Shortest::sum), (Counts{3, 3})) << "all in VRAM of both";
  EXPECT_EQ(placed(3, {gpu, gpu}, 0.01, Shortest::sum), (Counts{3, 0}));
  EXPECT_EQ(placed(6, {gpu, gpu}, 10, Shortest::sum), (Counts{6, 0})) << "RAM is nearer than the other one";
  EXPECT_EQ(placed(12, {gpu, gpu}, 0.01, Shortest::sum), (Counts{6, 6})) << "and nearer than the disk";
  EXPECT_FALSE(
      place_layers(std::vector<LayerLoad>(4, {10, 10}), std::vector<RankSpeed>{{30, 100, 1, 30, 0}}, 0.1, Shortest::sum)
          .ok())
      << "a GPU without a rate";
}

TEST(PlaceLayers, OfAMixtureATokenReadsAPart) {
  const std::vector<LayerLoad> loads(8, {100, 5});
  const auto stages = place_layers(loads, std::vector<RankSpeed>{{400, 10, 1}, {400, 10, 1}}, 0.1, Shortest::sum);
  ASSERT_TRUE(stages.ok());
  EXPECT_EQ((*stages)[0].last, 4);
  EXPECT_FALSE(place_layers(loads, std::vector<RankSpeed>{{400, 0, 1}}, 0.1, Shortest::sum).ok());
}

}  // namespace
}  // namespace millrace::engine
