#include "link/measure.h"

#include <gtest/gtest.h>

#include <thread>

#include "link/local_link.h"

namespace millrace::link {
namespace {

/// Messages that leave so much later than they were sent, and longer ones later still.
class SlowLink final : public Link {
 public:
  SlowLink(std::unique_ptr<Link> link, std::chrono::microseconds delay, double bytes_per_second)
      : link_(std::move(link)), delay_(delay), bytes_per_second_(bytes_per_second) {}

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  std::string host(int rank) const override { return link_->host(rank); }
  Status send(int to, std::span<const std::byte> message) override {
    std::this_thread::sleep_for(delay_ +
                                std::chrono::duration<double>(static_cast<double>(message.size()) / bytes_per_second_));
    return link_->send(to, message);
  }
  Expected<std::optional<int>> try_receive(std::vector<std::byte>& message) override {
    return link_->try_receive(message);
  }

 private:
  const std::unique_ptr<Link> link_;
  const std::chrono::microseconds delay_;
  const double bytes_per_second_;
};

/// What rank 0 finds, the ways out of rank `slow` being slower than the others.
std::vector<WaySpeed> ways_of(int size, int slow) {
  std::vector<std::thread> threads;
  std::vector<WaySpeed> found;
  auto links = make_local_links(size);
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank, own = std::move(links[static_cast<std::size_t>(rank)])]() mutable {
      SlowLink link(std::move(own), std::chrono::milliseconds(rank == slow ? 20 : 2), 1e9);
      const auto ways = measure_ways(link, {.short_messages = 5, .long_messages = 3, .long_bytes = 100'000'000});
      ASSERT_TRUE(ways.ok()) << ways.status().message();
      if (rank == 0)
        found = *ways;
      else
        EXPECT_TRUE(ways->empty());
    });
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(MeasureWays, FindsLatencyAndRate) {
  const std::vector<WaySpeed> ways = ways_of(2, -1);
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_EQ(ways[0].from, 0);
  EXPECT_EQ(ways[0].to, 1);
  EXPECT_GE(ways[0].seconds, 2e-3);
  EXPECT_LT(ways[0].seconds, 8e-3);
  EXPECT_LT(ways[0].bytes_per_second, 1.1e9);
  EXPECT_GT(ways[0].bytes_per_second, 0.05e9);  // beside copies in memory, on a machine that has other work
}

TEST(MeasureWays, TellsWhichWayIsSlow) {
  const std::vector<WaySpeed> ways = ways_of(4, 2);
  ASSERT_EQ(ways.size(), 4u);
  for (int from = 0; from < 4; ++from) {
    const WaySpeed& way = ways[static_cast<std::size_t>(from)];
    EXPECT_EQ(way.from, from);
    EXPECT_EQ(way.to, (from + 1) % 4);
    // There and back over the slow rank's way out, halved.
    if (from == 1 || from == 2)
      EXPECT_GE(way.seconds, 10e-3);
    else
      EXPECT_LT(way.seconds, 10e-3);
  }
}

}  // namespace
}  // namespace millrace::link
