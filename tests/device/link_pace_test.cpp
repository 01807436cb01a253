#include "device/link_pace.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace millrace::device {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr LinkPace::Time kStart{std::chrono::hours(1)};

microseconds after(LinkPace::Time time) { return duration_cast<microseconds>(time - kStart); }

TEST(LinkPace, ACopyTakesItsBytesOverTheRate) {
  LinkPace link(10e9);
  EXPECT_EQ(after(link.crossed(kStart, 10'000'000)), microseconds(1000));
}

TEST(LinkPace, CopiesOfSeveralStreamsShareTheLink) {
  LinkPace link(10e9);
  EXPECT_EQ(after(link.crossed(kStart, 10'000'000)), microseconds(1000));
  EXPECT_EQ(after(link.crossed(kStart, 5'000'000)), microseconds(1500));
  EXPECT_EQ(after(link.crossed(kStart + milliseconds(1), 5'000'000)), microseconds(2000));
}

TEST(LinkPace, AThreadThatWakesUpLateCostsNoRate) {
  LinkPace link(10e9);
  LinkPace::Time end = kStart;
  for (int i = 0; i < 100; ++i) end = link.crossed(i == 0 ? kStart : end + microseconds(90), 1'000'000);
  EXPECT_EQ(after(end), microseconds(10'000));
}

TEST(LinkPace, AnIdleLinkSavesNothingUp) {
  LinkPace link(10e9);
  link.crossed(kStart, 1'000'000);
  EXPECT_EQ(after(link.crossed(kStart + milliseconds(50), 10'000'000)), microseconds(51'000));
}

TEST(LinkPace, CallersOfSeveralThreadsGetEachByteOnce) {
  LinkPace link(1e9);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&link] {
      for (int i = 0; i < 250; ++i) link.crossed(kStart, 1000);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(after(link.crossed(kStart, 1000)), microseconds(1001));
}

TEST(LinkPace, TheRateIsReadInGigabytesPerSecond) {
  EXPECT_DOUBLE_EQ(asked_link_rate("13.7"), 13.7e9);
  for (const char* text : {"", "fast", "0", "-3", "nan", "inf"}) EXPECT_EQ(asked_link_rate(text), 0) << text;
  EXPECT_EQ(asked_link_rate(nullptr), 0);
}

}  // namespace
}  // namespace millrace::device
