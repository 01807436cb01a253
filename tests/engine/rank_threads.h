// A cluster whose ranks are threads of the test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/cluster.h"
#include "link/local_link.h"
#include "link/message.h"

namespace millrace::engine::test {

/// Ranks, each but the first on a thread that follows with options of its own.
class RankThreads {
 public:
  explicit RankThreads(std::vector<EngineOptions> followers)
      : links_(link::make_local_links(static_cast<int>(followers.size()) + 1)), cluster_(*links_[0]) {
    for (std::size_t i = 0; i < followers.size(); ++i)
      threads_.emplace_back([this, i, options = std::move(followers[i])] {
        const Status status = follow(*links_[i + 1], options);
        EXPECT_TRUE(status.ok()) << status.message();
      });
  }
  ~RankThreads() {
    std::vector<std::byte> message;
    const link::Writer end(message, link::MessageKind::end);
    for (int rank = 1; rank < links_[0]->size(); ++rank) EXPECT_TRUE(links_[0]->send(rank, message).ok());
    for (std::thread& thread : threads_) thread.join();
  }

  Expected<std::unique_ptr<Engine>> create(EngineOptions options, const std::string& stages = "") {
    cluster_.stages = stages;
    options.part.cluster = &cluster_;
    return Engine::create(options);
  }

 private:
  std::vector<std::unique_ptr<link::Link>> links_;
  Cluster cluster_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::engine::test
