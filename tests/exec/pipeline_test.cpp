// Ranks that are threads: a pipeline's bits are the whole model's, and what goes wrong on one rank is told and over.
#include "exec/pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "exec/follower.h"
#include "exec/stages.h"
#include "kv/prefix_cache.h"
#include "link/local_link.h"

namespace millrace::exec::test {
namespace {

constexpr std::int64_t kMostRows = StageParts::kMostRows;

/// A pipeline of as many ranks as stages, each but the first on a thread.
class Ranks {
 public:
  explicit Ranks(const std::vector<model::Stage>& stages, bool shares = false)
      : links_(link::make_local_links(static_cast<int>(stages.size()))) {
    for (const model::Stage& stage : stages) parts_.push_back(std::make_unique<StageParts>(stage));
    StageParts& first = *parts_[0];
    shape_ = {first.model->hyperparameters().model_dim, first.model->hyperparameters().vocab};
    pipeline_ = std::make_unique<PipelineExecutor>(
        PipelineParts{*links_[0], std::move(first.executor), first.kv, first.budget, shape_, true, shares, nullptr});
    EXPECT_TRUE(pipeline_->prepare(first.model->program(), StageParts::limits()).ok());
    for (std::size_t rank = 1; rank < stages.size(); ++rank)
      threads_.emplace_back([this, rank] { follow(*links_[rank], *parts_[rank]); });
  }
  ~Ranks() {
    pipeline_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  Executor& executor() { return *pipeline_; }
  const std::shared_ptr<kv::BlockPool>& pool() const { return parts_[0]->kv; }
  StageParts& parts(std::size_t rank) { return *parts_[rank]; }
  /// The other ranks do not begin what comes until they are let go.
  void hold() { held_ = true; }
  void let_go() {
    held_ = false;
    held_.notify_all();
  }

 private:
  void follow(link::Link& link, StageParts& parts) {
    link::Inbox inbox(link);
    Follower follower(
        {link, inbox, *parts.executor, parts.kv, parts.budget, [&] { return parts.backend->health(); }, shape_});
    EXPECT_TRUE(follower.prepare(StageParts::limits()).ok());
    std::vector<std::byte> message;
    for (;;) {
      EXPECT_TRUE(inbox.next(message).ok());
      link::Reader reader(message);
      if (reader.kind() == link::MessageKind::close) return;
      held_.wait(true);
      if (reader.kind() == link::MessageKind::cancel)
        follower.cancel(reader.number<std::uint64_t>());
      else
        EXPECT_TRUE(follower.take(message).ok());
    }
  }

  std::vector<std::unique_ptr<link::Link>> links_;
  std::vector<std::unique_ptr<StageParts>> parts_;
  StageShape shape_;
  std::unique_ptr<PipelineExecutor> pipeline_;
  std::atomic<bool> held_{false};
  std::vector<std::thread> threads_;
};

/// One pass: rows [length, length + rows) of a text; logits of all of them.
Status pass(Executor& executor, kv::SequenceState& sequence, const std::vector<std::int32_t>& text, std::int64_t rows,
            std::vector<float>& logits, const std::function<bool()>& cancelled = {}, bool wants_hidden = false) {
  kv::Batch batch;
  batch.wants_hidden = wants_hidden;
  batch.sequences = {&sequence};
  MR_RETURN_IF_ERROR(sequence.reserve(sequence.length() + rows));
  for (std::int64_t p = sequence.length(); p < sequence.length() + rows; ++p)
    batch.rows.push_back({text[static_cast<std::size_t>(p)], 0, static_cast<std::int32_t>(p), true, true});
  MR_RETURN_IF_ERROR(executor.run(batch, cancelled));
  const Logits made = executor.last_logits();
  EXPECT_EQ(made.rows, rows);
  logits.assign(made.data, made.data + made.rows * made.vocab);
  return {};
}

/// Logits of two texts in turns, with guesses that were wrong between them, and a way back.
std::vector<float> play(Executor& executor, const std::shared_ptr<kv::BlockPool>& pool) {
  const auto one = some_tokens(200, 3), other = some_tokens(200, 4), wrong = some_tokens(200, 5);
  kv::SequenceState first(pool), second(pool);
  std::vector<float> all, logits;
  const auto go_on = [&](kv::SequenceState& sequence, const std::vector<std::int32_t>& text, std::int64_t rows,
                         bool believed = true) {
    const Status status = pass(executor, sequence, text, rows, logits, {}, true);
    EXPECT_TRUE(status.ok()) << status.message();
    if (believed) all.insert(all.end(), logits.begin(), logits.end());
    if (believed) sequence.set_length(sequence.length() + rows);
  };
  for (int turn = 0; turn < 3; ++turn) {
    go_on(first, one, 30);
    go_on(second, other, 17);
    go_on(first, wrong, 5, false);
  }
  first.rewind(64);
  go_on(first, one, 20);
  return all;
}

TEST(Pipeline, GivesTheBitsOfTheWholeModel) {
  StageParts whole({});
  const std::vector<float> expected = play(*whole.executor, whole.kv);
  ASSERT_FALSE(expected.empty());
  for (const std::vector<model::Stage>& stages :
       {std::vector<model::Stage>{{0, 3}, {3, 0}}, std::vector<model::Stage>{{0, 1}, {1, 2}, {2, 0}}}) {
    Ranks ranks(stages);
    const std::vector<float> logits = play(ranks.executor(), ranks.pool());
    ASSERT_EQ(logits.size(), expected.size());
    EXPECT_EQ(std::memcmp(logits.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << stages.size() << " ranks";
  }
}

TEST(Pipeline, FinalStatesComeFromTheLastRank) {
  StageParts whole({});
  Ranks ranks({{0, 2}, {2, 0}});
  const std::int64_t dim = whole.model->hyperparameters().model_dim;
  const auto text = some_tokens(20, 6);
  const auto states_of = [&](Executor& executor, const std::shared_ptr<kv::BlockPool>& pool) {
    kv::SequenceState sequence(pool);
    std::vector<float> logits, states(static_cast<std::size_t>(7 * dim));
    EXPECT_TRUE(pass(executor, sequence, text, 10, logits, {}, true).ok());
    EXPECT_TRUE(executor.read_hidden(3, 7, states.data()).ok());
    EXPECT_FALSE(executor.read_hidden(4, 7, states.data()).ok()) << "there are 10 rows";
    return states;
  };
  EXPECT_EQ(states_of(*whole.executor, whole.kv), states_of(ranks.executor(), ranks.pool()));
}

TEST(Pipeline, SequencesThatEndedAreGoneElsewhereToo) {
  Ranks ranks({{0, 2}, {2, 0}});
  const auto text = some_tokens(200, 7);
  std::vector<float> logits;
  auto first = std::make_unique<kv::SequenceState>(ranks.pool());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(pass(ranks.executor(), *first, text, kMostRows, logits).ok());
    first->set_length(first->length() + kMostRows);
  }
  EXPECT_EQ(ranks.parts(1).kv->blocks_in_use(), 3);
  kv::SequenceState second(ranks.pool());
  first.reset();
  ASSERT_TRUE(pass(ranks.executor(), second, text, 5, logits).ok());
  EXPECT_EQ(ranks.parts(1).kv->blocks_in_use(), 1);
}

TEST(Pipeline, AFailureElsewhereIsThePassesAndNamesTheRank) {
  Ranks ranks({{0, 2}, {2, 3}, {3, 0}});
  const auto text = some_tokens(200, 8);
  std::vector<float> logits, expected;
  kv::SequenceState sequence(ranks.pool());
  ranks.parts(1).kv->set_bound(0, 1);
  ASSERT_TRUE(pass(ranks.executor(), sequence, text, 40, expected).ok());
  sequence.set_length(40);
  const Status status = pass(ranks.executor(), sequence, text, 40, logits);
  EXPECT_EQ(status.code(), Code::out_of_budget) << status.message();
  EXPECT_NE(status.message().find("rank 1 (this process)"), std::string::npos) << status.message();
  sequence.rewind(0);  // the ranks go on
  ASSERT_TRUE(pass(ranks.executor(), sequence, text, 40, logits).ok());
  EXPECT_EQ(logits, expected);
}

/// A part of a text, as a pass that is begun. The sequence's length is where the pass will leave it.
Status begin(Executor& executor, kv::SequenceState& sequence, const std::vector<std::int32_t>& text, std::int64_t rows,
             const std::function<bool()>& cancelled = {}) {
  kv::Batch batch;
  batch.sequences = {&sequence};
  const std::int64_t first = sequence.length();
  MR_RETURN_IF_ERROR(sequence.reserve(first + rows));
  for (std::int64_t p = first; p < first + rows; ++p)
    batch.rows.push_back({text[static_cast<std::size_t>(p)], 0, static_cast<std::int32_t>(p), true, true});
  MR_RETURN_IF_ERROR(executor.begin(batch, cancelled));
  sequence.set_length(first + rows);
  return {};
}

std::vector<float> logits_of(const Executor& executor) {
  const Logits made = executor.last_logits();
  return {made.data, made.data + made.rows * made.vocab};
}

TEST(Pipeline, SeveralPassesAreUnderWay) {
  StageParts whole({});
  const auto one = some_tokens(200, 10), other = some_tokens(200, 11);
  std::vector<std::vector<float>> expected(4);
  {
    kv::SequenceState first(whole.kv), second(whole.kv);
    for (std::size_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(pass(*whole.executor, first, one, 20, expected[i]).ok());
      first.set_length(first.length() + 20);
    }
    ASSERT_TRUE(pass(*whole.executor, second, other, 7, expected[3]).ok());
  }
  Ranks ranks({{0, 2}, {2, 3}, {3, 0}});
  Executor& executor = ranks.executor();
  EXPECT_EQ(executor.passes(), 3);
  kv::SequenceState first(ranks.pool()), second(ranks.pool());
  EXPECT_FALSE(executor.finish({}).ok()) << "nothing is under way";
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(begin(executor, first, one, 20).ok());
    ASSERT_TRUE(begin(executor, second, other, 7).ok());
    ASSERT_TRUE(begin(executor, first, one, 20).ok());
    ASSERT_TRUE(executor.finish({}).ok());
    EXPECT_EQ(logits_of(executor), expected[0]);
    second.rewind(0);  // its request ended while its pass is under way
    ASSERT_TRUE(begin(executor, first, one, 20).ok());
    ASSERT_TRUE(executor.finish({}).ok());
    EXPECT_EQ(logits_of(executor), expected[3]);
    ASSERT_TRUE(executor.finish({}).ok());
    EXPECT_EQ(logits_of(executor), expected[1]);
    ASSERT_TRUE(executor.finish({}).ok());
    EXPECT_EQ(logits_of(executor), expected[2]);
    first.rewind(0);
  }
  // Guesses that are under way are not taken for wrong by a pass behind them.
  kv::SequenceState guessed(ranks.pool());
  ASSERT_TRUE(begin(executor, guessed, one, 20).ok());
  guessed.rewind(17);  // of the last three nobody knows
  ASSERT_TRUE(begin(executor, second, other, 7).ok());
  ASSERT_TRUE(executor.finish({}).ok());
  ASSERT_TRUE(guessed.reserve(20).ok());
  guessed.set_length(20);  // they were right
  ASSERT_TRUE(begin(executor, guessed, one, 20).ok());
  ASSERT_TRUE(executor.finish({}).ok());
  ASSERT_TRUE(executor.finish({}).ok());
  EXPECT_EQ(logits_of(executor), expected[1]);
  ASSERT_TRUE(begin(executor, guessed, one, 20).ok());  // left under way when the model is closed
}

TEST(Pipeline, APassBehindOneThatFailedFailsLikewise) {
  Ranks ranks({{0, 2}, {2, 3}, {3, 0}});
  const auto text = some_tokens(200, 12);
  ranks.parts(1).kv->set_bound(0, 1);
  kv::SequenceState sequence(ranks.pool()), other(ranks.pool());
  ASSERT_TRUE(begin(ranks.executor(), sequence, text, 48).ok());
  ASSERT_TRUE(begin(ranks.executor(), sequence, text, 48).ok());
  ASSERT_TRUE(begin(ranks.executor(), sequence, text, 20).ok());
  EXPECT_TRUE(ranks.executor().finish({}).ok());
  EXPECT_EQ(ranks.executor().finish({}).code(), Code::out_of_budget);
  EXPECT_EQ(ranks.executor().finish({}).code(), Code::out_of_budget);
  sequence.rewind(0);
  ASSERT_TRUE(begin(ranks.executor(), sequence, text, 48).ok());
  EXPECT_TRUE(ranks.executor().finish({}).ok());
}

/// 6 rows of one sequence and 9 of another, in one pass; two of three of the former want logits, and all of the latter.
kv::Batch shared_pass(kv::SequenceState& one, kv::SequenceState& other, bool one_first) {
  const auto text = some_tokens(200, 14), other_text = some_tokens(200, 15);
  kv::Batch batch;
  batch.wants_hidden = true;
  batch.sequences = {&one, &other};
  EXPECT_TRUE(one.reserve(one.length() + 6).ok() && other.reserve(other.length() + 9).ok());
  const auto add_one = [&] {
    for (std::int64_t p = one.length(); p < one.length() + 6; ++p)
      batch.rows.push_back({text[static_cast<std::size_t>(p)], 0, static_cast<std::int32_t>(p), p % 3 > 0, true});
  };
  const auto add_other = [&](std::int64_t first, std::int64_t rows) {
    for (std::int64_t p = first; p < first + rows; ++p)
      batch.rows.push_back({other_text[static_cast<std::size_t>(p)], 1, static_cast<std::int32_t>(p), true, true});
  };
  if (one_first) add_one();
  add_other(other.length(), 4);
  if (!one_first) add_one();
  add_other(other.length() + 4, 5);
  return batch;
}

/// Of such a pass that has ended: logits, then final states, of the second sequence's rows.
std::vector<float> results_of_other(const Executor& executor, const kv::Batch& batch, std::int64_t dim) {
  const Logits logits = executor.last_logits();
  EXPECT_EQ(logits.rows, 9 + 4);
  std::vector<float> states(batch.rows.size() * static_cast<std::size_t>(dim)), found;
  EXPECT_TRUE(executor.read_hidden(0, std::ssize(batch.rows), states.data()).ok());
  const float *logit = logits.data, *state = states.data();
  for (const kv::BatchRow& row : batch.rows) {
    if (row.sequence == 1) found.insert(found.end(), logit, logit + logits.vocab);
    if (row.sequence == 1) found.insert(found.end(), state, state + dim);
    logit += row.wants_logits ? logits.vocab : 0;
    state += dim;
  }
  return found;
}

TEST(Pipeline, OthersInAPassBehindOneThatFailedDoNotNotice) {
  const auto one = some_tokens(200, 14), other = some_tokens(200, 15);
  for (const std::size_t failing : {1u, 2u}) {  // the rank
    Ranks ranks({{0, 2}, {2, 3}, {3, 0}});
    Executor& executor = ranks.executor();
    const std::int64_t dim = ranks.parts(0).model->hyperparameters().model_dim;
    const bool failed_first = failing == 1;
    std::vector<float> expected;
    {
      kv::SequenceState first(ranks.pool()), second(ranks.pool());
      const kv::Batch batch = shared_pass(first, second, failed_first);
      ASSERT_TRUE(executor.run(batch, {}).ok());
      expected = results_of_other(executor, batch, dim);
    }
    ranks.parts(failing).kv->set_bound(0, 2);
    kv::SequenceState first(ranks.pool()), second(ranks.pool()), third(ranks.pool());
    ASSERT_TRUE(begin(executor, third, one, 20).ok());
    ASSERT_TRUE(begin(executor, first, one, 48).ok());
    ASSERT_TRUE(executor.finish({}).ok());
    ASSERT_TRUE(begin(executor, first, one, 40).ok());  // no room for its second block
    third.rewind(0);
    const kv::Batch batch = shared_pass(first, second, failed_first);
    ASSERT_TRUE(executor.begin(batch, {}).ok());
    ASSERT_TRUE(executor.finish({}).ok());
    EXPECT_EQ(executor.finish({}).code(), Code::out_of_budget);
    const Status status = executor.finish({});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(results_of_other(executor, batch, dim), expected);
    second.set_length(9);
    first.rewind(48);  // what was believed is there yet
    ASSERT_TRUE(begin(executor, second, other, 5).ok());
    EXPECT_TRUE(executor.finish({}).ok());
    ASSERT_TRUE(begin(executor, first, one, 10).ok());
    EXPECT_TRUE(executor.finish({}).ok());
  }
}

TEST(Pipeline, AllThatIsUnderWayIsGivenUp) {
  Ranks ranks({{0, 2}, {2, 3}, {3, 0}});
  const auto text = some_tokens(200, 13);
  std::vector<float> logits, expected;
  kv::SequenceState sequence(ranks.pool());
  ASSERT_TRUE(pass(ranks.executor(), sequence, text, 20, expected).ok());
  for (int turn = 0; turn < 5; ++turn) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(begin(ranks.executor(), sequence, text, 40).ok());
    for (int i = 0; i < 3; ++i) {
      const Status status = ranks.executor().finish([] { return true; });
      EXPECT_TRUE(status.ok() || status.code() == Code::cancelled) << status.message();
    }
    sequence.rewind(0);
    ASSERT_TRUE(pass(ranks.executor(), sequence, text, 20, logits).ok());
    EXPECT_EQ(logits, expected);
  }
}

/// The logits behind `text`, in passes of 40 rows from where the sequence stands.
std::vector<float> read_text(Executor& executor, kv::SequenceState& sequence, const std::vector<std::int32_t>& text) {
  std::vector<float> logits;
  std::int64_t rows = 0;
  while (sequence.length() < std::ssize(text)) {
    rows = std::min<std::int64_t>(40, std::ssize(text) - sequence.length());
    const Status status = pass(executor, sequence, text, rows, logits);
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) return {};
    sequence.set_length(sequence.length() + rows);
  }
  return {logits.begin() + std::ssize(logits) / rows * (rows - 1), logits.end()};
}

TEST(Pipeline, WhatRequestsBeginWithIsSharedOnAllRanks) {
  StageParts whole({});
  Ranks ranks({{0, 2}, {2, 3}, {3, 0}}, true);
  constexpr std::int64_t kBound = 9;  // blocks, so that beginnings have to leave
  for (std::size_t group = 0; group < ranks.pool()->groups(); ++group) {
    ranks.pool()->set_bound(group, kBound);
    for (const std::size_t rank : {1, 2}) ranks.parts(rank).kv->set_bound(group, kBound);
  }
  auto tree = std::make_unique<kv::PrefixCache>(ranks.pool());
  std::mt19937 random(11);
  const auto any = [&](std::int64_t most) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(most)); };
  std::vector<std::unique_ptr<kv::SequenceState>> living(3);
  for (int turn = 0; turn < 14; ++turn) {
    // Three beginnings, of which a text has a part that ends anywhere, and then its own.
    std::vector<std::int32_t> text = some_tokens(70 + any(100), static_cast<std::int32_t>(any(3)));
    const std::vector<std::int32_t> own = some_tokens(10 + any(20), 100 + turn);
    text.insert(text.end(), own.begin(), own.end());
    auto& sequence = living[static_cast<std::size_t>(any(3))];
    if (sequence == nullptr || any(2) == 0) sequence = std::make_unique<kv::SequenceState>(ranks.pool());
    sequence->rewind(0);
    const std::int64_t known = tree->extend(*sequence, text, std::ssize(text) - 1);
    if (any(4) == 0) sequence->rewind(any(known + 1));  // into what is shared
    kv::SequenceState alone(whole.kv);
    const std::vector<float> logits = read_text(ranks.executor(), *sequence, text);
    EXPECT_EQ(logits, read_text(*whole.executor, alone, text)) << "turn " << turn << ", " << known << " were known";
    tree->enter(*sequence, text);
    if (any(4) == 0) {  // a request that goes back, and on in another way
      const std::int64_t back = any(std::ssize(text));
      sequence->rewind(back);
      text.resize(static_cast<std::size_t>(back));
      const std::vector<std::int32_t> other = some_tokens(30, 200 + turn);
      text.insert(text.end(), other.begin(), other.end());
      alone.rewind(back);
      EXPECT_EQ(read_text(ranks.executor(), *sequence, text), read_text(*whole.executor, alone, text)) << back;
      tree->enter(*sequence, text);
    }
    for (const std::size_t rank : {1, 2})
      EXPECT_LE(ranks.parts(rank).kv->blocks_in_use(), ranks.pool()->blocks_in_use());
    if (any(3) == 0) living[static_cast<std::size_t>(any(3))].reset();
  }
  EXPECT_GT(tree->shared_tokens(), 300);
  living.clear();
  tree.reset();
  kv::SequenceState last(ranks.pool());
  std::vector<float> logits;
  ASSERT_TRUE(pass(ranks.executor(), last, some_tokens(5, 1), 5, logits).ok());
  EXPECT_EQ(ranks.parts(1).kv->blocks_in_use(), 1);
}

TEST(Pipeline, ACancelledPassLeavesTheRanksUsable) {
  Ranks ranks({{0, 2}, {2, 3}, {3, 0}});
  const auto text = some_tokens(200, 9);
  std::vector<float> logits, expected;
  kv::SequenceState sequence(ranks.pool());
  ASSERT_TRUE(pass(ranks.executor(), sequence, text, 20, expected).ok());
  int here = 0;  // how often the first rank asks while it computes; behind that it waits for the others
  const auto count = [&] {
    ++here;
    return false;
  };
  ASSERT_TRUE(begin(ranks.executor(), sequence, text, 48, count).ok());
  ASSERT_TRUE(ranks.executor().finish({}).ok());
  sequence.rewind(0);
  ASSERT_GT(here, 10);
  for (const int asked : {1, here / 2, here, here + 1, here + 2, here + 5}) {
    if (asked > here) ranks.hold();  // or they would have answered before the first rank asks
    int asks = 0;
    const Status status = pass(ranks.executor(), sequence, text, 48, logits, [&] {
      if (++asks < asked) return false;
      ranks.let_go();
      return true;
    });
    EXPECT_EQ(status.code(), Code::cancelled) << asked << " of " << here << ": " << status.message();
    ASSERT_TRUE(pass(ranks.executor(), sequence, text, 20, logits).ok());
    EXPECT_EQ(logits, expected);
  }
}

}  // namespace
}  // namespace millrace::exec::test
