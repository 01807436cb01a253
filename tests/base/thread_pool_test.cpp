#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "base/os/processors.h"

namespace millrace {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsOnceOnEachThread) {
  ThreadPool pool({.threads = GetParam()});
  ASSERT_EQ(pool.threads(), GetParam());
  std::vector<int> calls(static_cast<std::size_t>(GetParam()), 0);  // no atomics: each thread writes its own
  for (int round = 0; round < 500; ++round) pool.run([&](int thread) { ++calls[static_cast<std::size_t>(thread)]; });
  for (const int count : calls) EXPECT_EQ(count, 500);
}

TEST_P(ThreadPoolTest, ThreadZeroIsTheCaller) {
  ThreadPool pool({.threads = GetParam()});
  std::thread::id zero;
  pool.run([&](int thread) {
    if (thread == 0) zero = std::this_thread::get_id();
  });
  EXPECT_EQ(zero, std::this_thread::get_id());
}

TEST_P(ThreadPoolTest, ParallelForCoversEachIndexOnce) {
  ThreadPool pool({.threads = GetParam()});
  for (const std::int64_t n : {0, 1, 2, 7, 64, 1000, 4097}) {
    for (const std::int64_t grain : {1, 3, 64, 5000}) {
      std::vector<int> visits(static_cast<std::size_t>(n), 0);
      pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
        EXPECT_LT(begin, end);
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, pool.threads());
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      for (const int count : visits) ASSERT_EQ(count, 1) << "n " << n << " grain " << grain;
    }
  }
}

TEST_P(ThreadPoolTest, ParallelRunsCoversEachPieceOfEachStageOnce) {
  ThreadPool pool({.threads = GetParam()});
  for (const std::int64_t n : {0, 1, 2, 7, 64, 4097}) {
    for (const std::int64_t m : {0, 1, 5, 300}) {
      const std::array pieces{n, m};
      std::array<std::vector<int>, 2> visits;
      for (std::size_t stage = 0; stage < 2; ++stage) visits[stage].assign(static_cast<std::size_t>(pieces[stage]), 0);
      pool.parallel_runs(pieces, 4, [&](std::size_t stage, std::int64_t begin, std::int64_t end, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, pool.threads());
        EXPECT_LT(begin, end);
        EXPECT_LE(end, begin + 4);
        for (std::int64_t i = begin; i < end; ++i) ++visits[stage][static_cast<std::size_t>(i)];
      });
      for (const std::vector<int>& of : visits)
        for (const int count : of) ASSERT_EQ(count, 1) << "pieces " << n << " and " << m;
    }
  }
}

TEST_P(ThreadPoolTest, WhoWaitsInTheSecondStageWaitsForThreadsAtWork) {
  ThreadPool pool({.threads = GetParam()});
  for (int round = 0; round < 100; ++round) {
    const std::array<std::int64_t, 2> pieces{13, 13};
    std::atomic<int> made{0};
    pool.parallel_runs(pieces, 4, [&](std::size_t stage, std::int64_t begin, std::int64_t end, int) {
      if (stage == 0) made.fetch_add(static_cast<int>(end - begin));
      while (stage == 1 && made.load() != 13) std::this_thread::yield();
    });
    ASSERT_EQ(made.load(), 13);
  }
}

TEST_P(ThreadPoolTest, PiecesOfARunLieSideBySide) {
  ThreadPool pool({.threads = GetParam()});
  const std::int64_t pieces = 10000;
  std::vector<std::int64_t> last(static_cast<std::size_t>(GetParam()), -2);
  std::atomic<int> runs{0};
  pool.parallel_runs(std::span(&pieces, 1), 1, [&](std::size_t, std::int64_t begin, std::int64_t end, int thread) {
    std::int64_t& before = last[static_cast<std::size_t>(thread)];
    if (begin != before) runs.fetch_add(1);
    before = end;
  });
  // Each has its own, and takes from the others by halves: of 10,000 there are no more than 14 (of each).
  EXPECT_LE(runs.load(), GetParam() * (1 + 14 * (GetParam() - 1)));
}

TEST_P(ThreadPoolTest, BarrierSeparatesPhases) {
  ThreadPool pool({.threads = GetParam()});
  constexpr int kPhases = 200;
  std::vector<int> seen(static_cast<std::size_t>(GetParam()), 0);
  bool all_together = true;
  pool.run([&](int thread) {
    for (int phase = 1; phase <= kPhases; ++phase) {
      seen[static_cast<std::size_t>(thread)] = phase;
      pool.barrier();
      if (thread == phase % pool.threads()) {  // reads what every thread wrote before the barrier
        for (const int value : seen) all_together = all_together && value == phase;
      }
      pool.barrier();
    }
  });
  EXPECT_TRUE(all_together);
}

TEST_P(ThreadPoolTest, ResultsComeBackAfterWorkersSlept) {
  ThreadPool pool({.threads = GetParam()});
  std::vector<std::int64_t> sums(static_cast<std::size_t>(GetParam()));
  for (int round = 1; round <= 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // far longer than workers spin
    pool.run([&](int thread) { sums[static_cast<std::size_t>(thread)] += round; });
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}), 15 * GetParam());
}

// Eight threads are more than a small machine has processors: nothing may depend on all running at once.
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

TEST(ThreadPool, DefaultsToTheUsableProcessors) {
  ThreadPool pool({});
  EXPECT_EQ(pool.threads(), ThreadPool::usable_processors());
}

TEST(ThreadPool, LeavesTheCallerUnbound) {
  const std::vector<int> before = os::allowed_processors();
  ThreadPool pool({.threads = 2});
  pool.run([](int) {});
  EXPECT_EQ(os::allowed_processors(), before);
}

TEST(ThreadPool, DestroysIdleAndSleepingPools) {
  for (int round = 0; round < 20; ++round) ThreadPool pool({.threads = 4});
  ThreadPool pool({.threads = 4});
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace
}  // namespace millrace
