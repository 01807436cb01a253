#include "engine/text_stream.h"

#include <gtest/gtest.h>

namespace millrace::engine {
namespace {

TEST(StopMatcher, WithoutStopsEverythingPasses) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("any"), "any");
  EXPECT_EQ(matcher.flush(), "");
  StopMatcher empty({""});
  EXPECT_EQ(empty.push("any"), "any");
  EXPECT_FALSE(empty.matched());
}

TEST(StopMatcher, CutsAtTheStopInsideAPiece) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.push("before END after"), "before ");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, HoldsBackWhatCouldBeginAStop) {
  StopMatcher matcher({"</s>"});
  EXPECT_EQ(matcher.push("x <"), "x ");
  EXPECT_EQ(matcher.push("/"), "");
  EXPECT_EQ(matcher.push("b>"), "</b>");
  EXPECT_EQ(matcher.push("</"), "");
  EXPECT_EQ(matcher.push("s>tail"), "");
  EXPECT_TRUE(matcher.matched());
}

TEST(StopMatcher, WaitsForNoMoreThanItMust) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.push("aaa"), "a") << "the last two may begin the stop";
  EXPECT_EQ(matcher.push("b"), "");
  EXPECT_TRUE(matcher.matched());
}

TEST(StopMatcher, WhatWaitedComesOutAtTheEnd) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("non-st"), "non-");
  EXPECT_EQ(matcher.flush(), "st");
}

TEST(StopMatcher, TheFirstOfSeveralStopsCounts) {
  StopMatcher matcher({"world", "lo"});
  EXPECT_EQ(matcher.push("hello world"), "hel");
  EXPECT_TRUE(matcher.matched());
}

TEST(StopMatcher, TellsWhichOneItWas) {
  StopMatcher stops({"later", "now"});
  stops.push("so no");
  EXPECT_EQ(stops.match(), "");
  stops.push("w and later");
  EXPECT_EQ(stops.match(), "now");
}

TEST(StopMatcher, EveryWayOfCuttingTheTextGivesTheSame) {
  const std::string text = "one\n\ntwo\nthree\n\n\nfour###five";
  const std::vector<std::string> stops = {"\n\n\n", "###", "fours"};
  for (std::size_t a = 0; a <= text.size(); ++a)
    for (std::size_t b = a; b <= text.size(); ++b) {
      StopMatcher matcher(stops);
      std::string shown = matcher.push(text.substr(0, a));
      shown += matcher.push(text.substr(a, b - a));
      shown += matcher.push(text.substr(b));
      shown += matcher.flush();
      ASSERT_EQ(shown, "one\n\ntwo\nthree") << a << " " << b;
      ASSERT_TRUE(matcher.matched());
    }
}

}  // namespace
}  // namespace millrace::engine
