#include "kv/footprint.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "kv/sequence.h"
#include "kv/small_layout.h"

namespace millrace::kv {
namespace {

TEST(Footprint, WithoutAWindowItIsEveryToken) {
  const Group group = equal_layers(3, 2, 8).groups()[0];
  EXPECT_EQ(most_blocks(group, {.tokens = 4096, .sequences = 4, .pass_rows = 512}), 64);
}

TEST(Footprint, GemmaOf27BillionAt32K) {
  std::vector<LayerKv> layers;
  for (int i = 0; i < 62; ++i) layers.push_back({Keeps::attention, 16, 128, 128, i % 6 == 5 ? 0 : 1024});
  const Layout layout = Layout(layers).with(DType::f16, kOnHost);
  ASSERT_EQ(layout.groups().size(), 2u);
  const Load load{.tokens = 32768, .sequences = 1, .pass_rows = 2048};
  EXPECT_EQ(most_blocks(layout.groups()[0], load), 16 + 2 + 32);
  EXPECT_EQ(most_blocks(layout.groups()[1], load), 512);
  std::int64_t bytes = 0;
  for (const Group& group : layout.groups()) bytes += most_blocks(group, load) * group.block_bytes();
  EXPECT_LT(bytes, layout.bytes_per_token() * 32768 / 4) << "4 GB and not 16.6";
}

TEST(Footprint, IsWhatASequenceOf32KTakesOfTheBudget) {
  constexpr std::int64_t kContext = 32768, kRows = 2048;
  std::vector<LayerKv> layers;
  for (int i = 0; i < 12; ++i) layers.push_back({Keeps::attention, 1, 16, 16, i % 6 == 5 ? 0 : 1024});
  const Layout layout(layers);
  std::uint64_t planned = 0;
  for (const Group& group : layout.groups())
    planned += static_cast<std::uint64_t>(most_blocks(group, {kContext, 1, kRows}) * group.block_bytes());
  residency::Budget budget(planned);  // and not a byte more
  const auto pool = std::make_shared<BlockPool>(layout, budget);
  SequenceState state(pool);
  for (std::int64_t length = 700; state.length() < kContext; length = std::min(kContext, length + kRows)) {
    ASSERT_TRUE(state.reserve(length).ok()) << length;
    state.set_length(length);
    state.forget_behind_windows();
  }
  pool->trim();
  EXPECT_EQ(pool->blocks_in_use(0), 16);
  EXPECT_EQ(pool->blocks_in_use(1), 512);
  EXPECT_LT(planned, static_cast<std::uint64_t>(layout.bytes_per_token() * kContext) / 4);
}

/// Sequences of any length, with passes that share their rows out as they like, never need more.
TEST(Footprint, HoldsForAnyPasses) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    residency::Budget budget(std::uint64_t{1} << 30);
    const auto window = static_cast<std::int64_t>(1 + random() % 300);
    const auto pool = std::make_shared<BlockPool>(with_window(window), budget);
    const Load load{.tokens = 4096,
                    .sequences = 1 + static_cast<std::int64_t>(random() % 3),
                    .pass_rows = 3 + static_cast<std::int64_t>(random() % 400)};
    pool->set_bound(0, most_blocks(pool->layout().groups()[0], load));
    std::vector<SequenceState> states;
    for (std::int64_t i = 0; i < load.sequences; ++i) states.emplace_back(pool);
    for (int pass = 0; pass < 12; ++pass) {
      std::int64_t room = load.pass_rows;
      std::vector<std::int64_t> lengths;
      for (SequenceState& state : states) {
        const std::int64_t rows =
            std::min<std::int64_t>(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(room + 1)),
                                   load.tokens / load.sequences - state.length());
        room -= rows;
        lengths.push_back(state.length() + rows);
        ASSERT_TRUE(state.reserve(lengths.back()).ok()) << window;
      }
      for (std::size_t i = 0; i < states.size(); ++i) {
        states[i].set_length(lengths[i]);
        states[i].forget_behind_windows();
      }
    }
  }
}

/// Several passes are under way, and a sequence keeps what it had when each began until that one ends.
TEST(Footprint, HoldsForPassesUnderWay) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    residency::Budget budget(std::uint64_t{1} << 30);
    const auto window = static_cast<std::int64_t>(1 + random() % 100);
    const auto pool = std::make_shared<BlockPool>(with_window(window), budget);
    const std::size_t passes = 2 + random() % 3;
    const std::int64_t rows_of_pass = 64 + static_cast<std::int64_t>(random() % 200);
    const Load load{.tokens = 1 << 20,
                    .sequences = static_cast<std::int64_t>(passes),
                    .pass_rows = static_cast<std::int64_t>(passes) * rows_of_pass};
    pool->set_bound(0, most_blocks(pool->layout().groups()[0], load));
    std::vector<SequenceState> states;
    for (std::int64_t i = 0; i < load.sequences; ++i) states.emplace_back(pool);
    std::deque<std::size_t> under_way;  // whose pass it is
    for (int pass = 0; pass < 40; ++pass) {
      if (under_way.size() == passes) {
        states[under_way.front()].forget_behind_windows();
        under_way.pop_front();
      }
      SequenceState& state = states[under_way.emplace_back(random() % states.size())];
      const std::int64_t end = state.length() + rows_of_pass;
      ASSERT_TRUE(state.reserve(end).ok()) << window << ", " << passes << " passes";
      state.set_length(end);
    }
  }
}

}  // namespace
}  // namespace millrace::kv
