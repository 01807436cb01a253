// Routings in place of routers: drawn ones have their distribution, recorded ones come back as they were.
#include "exec/routing.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace millrace::exec {
namespace {

constexpr RoutingShape kShape{3, 16, 4};

std::unique_ptr<Routing> make(std::string_view words, const RoutingShape& shape = kShape) {
  auto routing = Routing::make(words, shape);
  EXPECT_TRUE(routing.ok()) << routing.status().message();
  return routing.ok() ? std::move(*routing) : nullptr;
}

/// How often each expert of a layer comes, in a whole table, the most frequent first.
std::vector<std::int64_t> counts(const Routing& routing, std::int64_t layer) {
  std::vector<std::int64_t> of(static_cast<std::size_t>(routing.shape().experts));
  for (std::int64_t position = 0; position < Routing::kRows; ++position)
    for (const std::int32_t expert : routing.chosen(layer, position, 0)) ++of[static_cast<std::size_t>(expert)];
  std::sort(of.rbegin(), of.rend());
  return of;
}

TEST(Routing, ARowHasDistinctExpertsOfItsLayer) {
  for (const char* words : {"uniform", "zipf:1.2"}) {
    const auto routing = make(words);
    std::set<std::vector<std::int32_t>> rows;
    for (std::int64_t position = 0; position < 200; ++position) {
      for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
        const auto chosen = routing->chosen(layer, position, 0);
        const std::set<std::int32_t> distinct(chosen.begin(), chosen.end());
        ASSERT_EQ(distinct.size(), 4u);
        ASSERT_GE(*distinct.begin(), 0);
        ASSERT_LT(*distinct.rbegin(), 16);
        rows.emplace(chosen.begin(), chosen.end());
      }
    }
    EXPECT_GT(rows.size(), 300u) << words << ": rows differ by token and layer";
  }
}

TEST(Routing, UniformMeansAlikeAndZipfMeansFavourites) {
  const auto alike = counts(*make("uniform"), 1), favourites = counts(*make("zipf:1.5"), 1);
  EXPECT_LT(alike.front(), 1.15 * alike.back());
  EXPECT_GT(favourites.front(), 8 * favourites.back());
  EXPECT_GT(favourites.front(), favourites[2]);
}

TEST(Routing, KnowsHowUnevenItIs) {
  const RoutingShape shape{4, 64, 8};
  EXPECT_EQ(make("uniform", shape)->skew(), 0);
  EXPECT_EQ(make("zipf:0.7", shape)->skew(), 0.7);
  // A recorded one is measured: here what was drawn, so that the answer is known.
  for (const char* words : {"uniform", "zipf:0.4", "zipf:1.0"}) {
    const auto drawn = make(words, shape);
    std::string text = "millrace routing layers 4 experts 64 of 8\n";
    for (std::int64_t position = 0; position < Routing::kRows; ++position) {
      text += "7";
      for (std::int64_t layer = 0; layer < shape.layers; ++layer)
        for (const std::int32_t expert : drawn->chosen(layer, position, 0)) text += " " + std::to_string(expert);
      text += "\n";
    }
    const auto recorded = Routing::from_trace(text, "drawn", shape);
    ASSERT_TRUE(recorded.ok()) << recorded.status().message();
    EXPECT_NEAR((*recorded)->skew(), drawn->skew(), 0.06) << words;
  }
}

TEST(Routing, SequencesAndTextsGoByOtherRows) {
  const auto routing = make("uniform");
  const auto row = [&](std::int64_t position, std::int64_t sequence) {
    const auto chosen = routing->chosen(0, position, sequence);
    return std::vector(chosen.begin(), chosen.end());
  };
  const auto before = row(5, 0);
  EXPECT_EQ(before, row(5, 0));
  EXPECT_EQ(row(5 + Routing::kApart, 0), row(5, 1));
  routing->move_on();
  EXPECT_NE(before, row(5, 0));
}

class RoutingFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  /// Two passes, of two tokens and of one.
  void record(const RoutingShape& shape, const std::vector<std::vector<std::int32_t>>& layers) {
    auto record = RoutingRecord::create(path_, shape);
    ASSERT_TRUE(record.ok()) << record.status().message();
    std::size_t first = 0;
    for (const std::size_t rows : {2u, 1u}) {
      std::vector<kv::BatchRow> batch(rows);
      for (std::size_t r = 0; r < rows; ++r) batch[r].token = static_cast<std::int32_t>(100 + first + r);
      (*record)->begin_pass(batch);
      const auto each = static_cast<std::size_t>(shape.top_k);
      for (std::size_t layer = 0; layer < layers.size(); ++layer)
        if (!layers[layer].empty())
          (*record)->add(static_cast<std::int64_t>(layer), std::span(layers[layer]).subspan(first * each, rows * each));
      ASSERT_TRUE((*record)->end_pass().ok());
      first += rows;
    }
  }
  std::string text() const {
    std::ostringstream out;
    out << std::ifstream(path_).rdbuf();
    return out.str();
  }
  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("routing-" + std::to_string(::getpid()) + ".txt")).string();
};

TEST_F(RoutingFile, WhatWasRecordedComesBack) {
  const std::vector<std::vector<std::int32_t>> layers = {{}, {3, 1, 0, 2, 7, 5}, {6, 0, 1, 4, 2, 3}};
  record({3, 8, 2}, layers);
  EXPECT_EQ(text(),
            "millrace routing layers 3 experts 8 of 2\n100 -1 -1 3 1 6 0\n101 -1 -1 0 2 1 4\n102 -1 -1 7 5 2 3\n");
  const auto routing = make("trace:" + path_, {3, 8, 2});
  for (std::int64_t token = 0; token < 3; ++token)
    for (std::size_t layer = 1; layer < 3; ++layer) {
      const auto chosen = routing->chosen(static_cast<std::int64_t>(layer), token, 0);
      EXPECT_EQ(std::vector(chosen.begin(), chosen.end()),
                std::vector(layers[layer].begin() + 2 * token, layers[layer].begin() + 2 * token + 2));
    }
}

TEST_F(RoutingFile, AStretchedExpertIsOneOfItsHeirs) {
  record({2, 4, 2}, {{3, 1, 0, 2, 1, 3}, {2, 0, 1, 3, 2, 1}});
  const auto routing = make("trace:" + path_, {4, 18, 4});  // a row takes two tokens
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    const auto chosen = routing->chosen(layer, 0, 0);
    std::multiset<std::int32_t> fathers;
    for (const std::int32_t expert : chosen) fathers.insert(expert % 4);
    EXPECT_EQ(fathers, (std::multiset<std::int32_t>{0, 1, 2, 3})) << layer;
    EXPECT_EQ(std::set(chosen.begin(), chosen.end()).size(), 4u);
    EXPECT_LT(*std::ranges::max_element(chosen), 18);
  }
}

TEST_F(RoutingFile, DamagedAndForeignOnesAreRefused) {
  record({2, 4, 2}, {{3, 1, 0, 2, 1, 3}, {2, 0, 1, 3, 2, 1}});
  const std::string whole = text();
  EXPECT_EQ(Routing::from_trace(whole, "t", {2, 3, 2}).status().code(), Code::unsupported);
  for (const std::string& broken :
       {std::string(), std::string("millrace routing layers 2 experts 4 of 5\n"), whole.substr(0, whole.size() - 3),
        whole + "\n9 9 9 9", whole.substr(0, whole.find('\n') + 1), whole + "x"}) {
    const Status status = Routing::from_trace(broken, "t", {2, 4, 2}).status();
    EXPECT_EQ(status.code(), Code::corrupt) << broken;
    EXPECT_NE(status.message().find("at byte"), std::string::npos);
  }
  for (const char* words : {"zipf", "zipf:", "zipf:nan", "zipf:-1", "zipf:9", "uniform ", "model", "traces:x"})
    EXPECT_EQ(Routing::make(words, kShape).status().code(), Code::invalid_argument) << words;
  EXPECT_EQ(Routing::make("trace:/nowhere/at/all", kShape).status().code(), Code::not_found);
}

}  // namespace
}  // namespace millrace::exec
