#include "engine/sharing.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/limits.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kTokenBytes = 131'072;

/// Layers that keep all tokens.
auto all_kept(std::uint64_t token_bytes) {
  return [=](std::int64_t tokens, std::int64_t) { return static_cast<std::uint64_t>(tokens) * token_bytes; };
}

SharingInput machine() {
  SharingInput input;
  input.cap_bytes = 16'000'000'000;
  input.taken_bytes = 6'000'000'000;
  input.weights_give_way = true;
  input.kv_bytes = all_kept(kTokenBytes);
  input.vocab = 128'256;
  input.context_tokens = 4096;
  return input;
}

TEST(Sharing, KvTakesWhatTheWeightsLeave) {
  const Sharing sharing = choose_sharing(machine());
  EXPECT_EQ(sharing.sequences, 64);
  EXPECT_EQ(sharing.kv_tokens, 10'000'000'000 / 8 * 7 / 131'072);
}

TEST(Sharing, AQuarterWhereTheWeightsStream) {
  SharingInput input = machine();
  input.cap_bytes = 4'000'000'000;
  EXPECT_EQ(choose_sharing(input).kv_tokens, 1'000'000'000 / 131'072);
  EXPECT_EQ(choose_sharing(input).sequences, 1'000'000'000 / 131'072 / 256);
  input.weights_give_way = false;
  EXPECT_EQ(choose_sharing(input).sequences, 1);
}

TEST(Sharing, StaysBelowCeilings) {
  SharingInput input = machine();
  input.most_sequences = 16;
  input.most_kv_tokens = 4 * 4096;
  EXPECT_EQ(choose_sharing(input).sequences, 16);
  EXPECT_EQ(choose_sharing(input).kv_tokens, 4 * 4096);
  input.cap_bytes = 4'000'000'000;
  EXPECT_EQ(choose_sharing(input).sequences, 16);
  EXPECT_EQ(choose_sharing(input).kv_tokens, 1'000'000'000 / 131'072);
  input.most_sequences = 200;
  input.cap_bytes = 64'000'000'000;
  EXPECT_EQ(choose_sharing(input).sequences, 200);
}

/// Five layers of six keep 64 tokens of each sequence: more sequences have room, and many more tokens.
TEST(Sharing, AWindowCountsOnceASequence) {
  SharingInput input = machine();
  input.cap_bytes = 8'000'000'000;
  const std::int64_t tokens = 2'000'000'000 / kTokenBytes;
  EXPECT_EQ(choose_sharing(input).sequences, tokens / 256);
  EXPECT_EQ(choose_sharing(input).kv_tokens, tokens);
  input.kv_bytes = [](std::int64_t all, std::int64_t sequences) {
    return static_cast<std::uint64_t>((all + 5 * std::min(all, 64 * sequences)) * kTokenBytes / 6);
  };
  const Sharing windowed = choose_sharing(input);
  EXPECT_EQ(windowed.sequences, 64);
  EXPECT_NEAR(static_cast<double>(windowed.kv_tokens), static_cast<double>(6 * tokens - 5 * 64 * 64), 6);
}

TEST(Sharing, RowsOfLogitsCountToo) {
  SharingInput input = machine();
  input.kv_bytes = all_kept(1);
  input.cap_bytes = 100'000'000;
  EXPECT_EQ(choose_sharing(input).sequences, 100'000'000 / 16 / (12 * 128'256));
}

TEST(Sharing, KeepsNoMoreThanRequestsCanUse) {
  SharingInput input = machine();
  input.kv_bytes = all_kept(1);
  input.context_tokens = 512;
  EXPECT_EQ(choose_sharing(input).kv_tokens, 64 * 512);
  input.cap_bytes = 0;
  EXPECT_EQ(choose_sharing(input).sequences, 1);
  EXPECT_GE(choose_sharing(input).kv_tokens, 1);
}

class Context : public ::testing::Test {
 protected:
  Context() {
    hp_.context_length = 131'072;
    hp_.vocab = 1000;
    options_.demand.max_sequences = 1;
  }

  SharedMemory left(std::uint64_t bytes) const {
    return {.cap_bytes = 6'000'000'000 + bytes,
            .taken_bytes = 6'000'000'000,
            .weights_give_way = true,
            .kv_bytes = all_kept(kTokenBytes)};
  }
  /// Chosen where so much is left for KV.
  std::int64_t chosen(std::uint64_t bytes) {
    Demand demand(options_);
    choose_context(hp_, left(bytes), demand);
    return wanted_context(demand, hp_);
  }

  model::Hyperparameters hp_;
  EngineOptions options_;
};

TEST_F(Context, IsWhatFitsIntoHalfOfWhatTheWeightsLeave) {
  EXPECT_EQ(chosen(1'000'000'000'000), 65'536);
  EXPECT_EQ(chosen(2 * 65'536 * kTokenBytes), 65'536);
  EXPECT_EQ(chosen(2 * 65'536 * kTokenBytes - 2), 32'768);
  EXPECT_EQ(chosen(0), 4096);
  hp_.context_length = 40'960;
  EXPECT_EQ(chosen(1'000'000'000'000), 40'960);
  hp_.context_length = 2048;
  EXPECT_EQ(chosen(0), 2048);
}

TEST_F(Context, CountsThoseThatHaveRoomForAWholeOne) {
  options_.demand.max_sequences = 4;
  EXPECT_EQ(chosen(2 * 65'536 * kTokenBytes), 16'384);
  options_.demand.kv_tokens = 65'536;
  EXPECT_EQ(chosen(2 * 65'536 * kTokenBytes), 65'536);
}

TEST_F(Context, IsSaidByWhoeverSaysIt) {
  options_.demand.context_tokens = 5000;
  EXPECT_EQ(chosen(1'000'000'000'000), 5000);
  options_.demand.context_tokens = 0;
  options_.part.ranks = 2;
  EXPECT_EQ(chosen(1'000'000'000'000), 4096);
}

/// Each of a server's requests may fill its own, where all of them take no more than half of what is left.
TEST_F(Context, HasItsKvWhereRequestsShare) {
  const auto kv_tokens = [&](std::uint64_t bytes) {
    options_ = {};
    options_.demand.max_sequences = 16;
    options_.demand.fewer_sequences = true;
    Demand demand(options_);
    choose_context(hp_, left(bytes), demand);
    EXPECT_GE(wanted_context(demand, hp_), 4096);
    share_out(hp_, left(bytes), demand);
    return demand.kv_tokens;
  };
  EXPECT_EQ(kv_tokens(1'000'000'000'000), 16 * 65'536);
  EXPECT_EQ(kv_tokens(2 * 5 * 65'536 * kTokenBytes), 4 * 65'536);
  EXPECT_EQ(kv_tokens(2 * 65'536 * kTokenBytes), 65'536);
  EXPECT_EQ(kv_tokens(2 * 16'384 * kTokenBytes), 4 * 4096);
  EXPECT_LE(kv_tokens(0), 1'500'000'000 / kTokenBytes);  // a quarter, weights give way
}

}  // namespace
}  // namespace millrace::engine
