// Which runs of rows go over which states: tables alone, no GPU needed.
#include "exec/gpu/state_runs.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/bytes.h"

namespace millrace::exec {
namespace {

using kernels::gpu::StateRun;

class StateRuns : public ::testing::Test {
 protected:
  /// A layer with keys and one with a state: group 1 has states.
  static kv::Layout layout() {
    kv::LayerKv keys, state;
    keys.kv_heads = 1;
    keys.k_dim = keys.v_dim = 8;
    state.keeps = kv::Keeps::state;
    state.state = {3, 8, 2, 4, 16};
    const kv::LayerKv layers[] = {keys, state};
    return kv::Layout(layers);
  }
  static constexpr std::size_t kStates = 1;

  /// One of `length` tokens, with room for `tokens`.
  kv::SequenceState& sequence(std::int64_t length, std::int64_t tokens, std::int64_t wanted = 0) {
    kv::SequenceState& made = *sequences_.emplace_back(std::make_unique<kv::SequenceState>(pool_));
    if (length > 0) {
      EXPECT_TRUE(made.reserve(length).ok());
      made.set_length(length);
    }
    if (wanted > 0) made.want_checkpoint(wanted);
    EXPECT_TRUE(made.reserve(tokens).ok());
    batch_.sequences.push_back(&made);
    return made;
  }
  void add_rows(std::int64_t count) {
    const auto number = static_cast<std::int32_t>(batch_.sequences.size() - 1);
    const auto length = static_cast<std::int32_t>(batch_.sequences.back()->length());
    for (std::int32_t r = 0; r < count; ++r) batch_.rows.push_back({1, number, length + r});
  }
  StateRunTables tables(const std::vector<RowSpan>& windows) {
    StateRunTables made;
    const Status status = make_state_runs(batch_, windows, made);
    EXPECT_TRUE(status.ok()) << status.message();
    return made;
  }
  static void expect_run(const StateRun& run, const std::byte* before, const std::byte* after, std::int32_t first_row,
                         std::int32_t rows, std::int32_t sequence_row, bool more) {
    EXPECT_EQ(run.before, before);
    EXPECT_EQ(run.after, after);
    EXPECT_EQ(run.first_row, first_row);
    EXPECT_EQ(run.rows, rows);
    EXPECT_EQ(run.sequence_row, sequence_row);
    EXPECT_EQ(run.sequence_has_more, more ? 1 : 0);
  }

  residency::Budget budget_{64 * kMiB};
  std::shared_ptr<kv::BlockPool> pool_ = std::make_shared<kv::BlockPool>(layout(), budget_);
  std::vector<std::unique_ptr<kv::SequenceState>> sequences_;
  kv::Batch batch_;
};

TEST_F(StateRuns, ARowOfEachSequenceIsOneRun) {
  for (const std::int64_t length : {0, 63, 64, 200}) {
    sequence(length, length + 1);
    add_rows(1);
  }
  const StateRunTables made = tables({{0, 4}});
  ASSERT_EQ(made.tables.size(), 1u);
  EXPECT_EQ(made.tables[0].runs, 4);
  EXPECT_EQ(made.tables[0].sequences, 4);
  EXPECT_FALSE(made.tables[0].borders);
  EXPECT_TRUE(made.repeat);
  EXPECT_EQ(made.first_runs, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  ASSERT_EQ(made.runs.size(), 4u);
  for (int s = 0; s < 4; ++s) {
    const kv::SequenceState& of = *sequences_[static_cast<std::size_t>(s)];
    EXPECT_EQ(of.state_block(kStates) == nullptr, s == 0) << "the first begins from zeros";
    expect_run(made.runs[static_cast<std::size_t>(s)], of.state_block(kStates), of.next_state_block(kStates), s, 1, s,
               false);
  }
}

/// As many rows as sequences, and not one of each.
TEST_F(StateRuns, ASequenceWithoutRowsLeavesOthersNoSingles) {
  sequence(10, 12);
  add_rows(2);
  sequence(5, 6);
  const StateRunTables made = tables({{0, 2}});
  EXPECT_TRUE(made.tables[0].borders);
  EXPECT_FALSE(made.repeat) << "the table is not that of a row of each";
}

TEST_F(StateRuns, RowsAreCutAtBordersAndLeaveCheckpoints) {
  const kv::SequenceState& of = sequence(30, 230, 128);
  add_rows(200);
  const StateRunTables made = tables({{0, 200}});
  EXPECT_TRUE(made.tables[0].borders);
  ASSERT_GE(made.tables[0].runs, 4);
  EXPECT_EQ(made.tables[0].runs, std::ssize(made.runs));
  EXPECT_EQ(made.first_runs, (std::vector<std::int32_t>{0, 4}));
  const std::byte* const before = of.state_block(kStates);
  ASSERT_NE(of.block(kStates, 1), nullptr);
  ASSERT_NE(of.block(kStates, 2), nullptr);
  expect_run(made.runs[0], before, nullptr, 0, 34, 0, true);
  expect_run(made.runs[1], before, of.block(kStates, 1), 34, 64, 0, true);
  expect_run(made.runs[2], before, of.block(kStates, 2), 98, 64, 0, true);
  expect_run(made.runs[3], before, of.next_state_block(kStates), 162, 38, 0, true);
  for (std::size_t i = 4; i < made.runs.size(); ++i) expect_run(made.runs[i], nullptr, nullptr, 0, 0, 0, false);
}

TEST_F(StateRuns, WindowsGoOnFromTheNextState) {
  sequence(10, 11);
  add_rows(1);
  const kv::SequenceState& of = sequence(0, 200);
  add_rows(200);
  const StateRunTables made = tables({{0, 1}, {1, 100}, {101, 100}});
  ASSERT_EQ(made.tables.size(), 3u);
  const std::byte* const next = of.next_state_block(kStates);
  const StateTable &first = made.tables[1], &second = made.tables[2];
  expect_run(made.runs[first.first_run], nullptr, nullptr, 0, 64, 0, true);
  expect_run(made.runs[first.first_run + 1], nullptr, next, 64, 36, 0, true);
  expect_run(made.runs[second.first_run], next, nullptr, 0, 28, 0, true);
  expect_run(made.runs[second.first_run + 1], next, of.block(kStates, 2), 28, 64, 0, true);
  expect_run(made.runs[second.first_run + 2], next, next, 92, 8, 0, true);
  EXPECT_EQ(made.first_runs[second.first_of_sequences], 0);
  EXPECT_EQ(made.first_runs[second.first_of_sequences + 1], 3);
  EXPECT_EQ(made.first_runs[second.first_of_sequences + 2], 3) << "the other sequence has no rows here";
}

/// Room was made for more rows than came: the checkpoint behind the last one is not the next state.
TEST_F(StateRuns, ACheckpointBehindTheLastRowIsOneMore) {
  const kv::SequenceState& of = sequence(63, 100);
  add_rows(1);
  ASSERT_NE(of.block(kStates, 0), nullptr);
  const StateRunTables made = tables({{0, 1}});
  EXPECT_FALSE(made.repeat);
  EXPECT_TRUE(made.tables[0].borders);
  ASSERT_EQ(made.runs.size(), 2u);
  expect_run(made.runs[0], of.state_block(kStates), of.block(kStates, 0), 0, 1, 0, true);
  expect_run(made.runs[1], of.state_block(kStates), of.next_state_block(kStates), 1, 0, 0, true);
}

TEST_F(StateRuns, RowsThatDoNotGoOnAreRefused) {
  sequence(10, 20);
  batch_.rows.push_back({1, 0, 12});
  StateRunTables made;
  const RowSpan window{0, 1};
  EXPECT_EQ(make_state_runs(batch_, {&window, 1}, made).code(), Code::internal);
}

}  // namespace
}  // namespace millrace::exec
