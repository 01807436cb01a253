// Files on several disks: a queue for each, so that none waits for another's.
#include "storage/disk_queues.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "storage/storage_fixture.h"

namespace millrace::storage {
namespace {

constexpr const char* kElsewhere = "/dev/shm";

class DiskQueuesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::is_directory(kElsewhere)) GTEST_SKIP() << kElsewhere << " is not there";
    auto files = FileSet::open({here_.path(), also_here_.path(), elsewhere_.path()}, FileSet::Access::buffered);
    ASSERT_TRUE(files.ok()) << files.status().message();
    files_ = std::move(*files);
    if (files_.disks() == 1) GTEST_SKIP() << "the build folder lies in memory, too";
  }
  Request request(int file, std::uint64_t bytes) const {
    Request request;
    request.file = file;
    request.bytes = bytes;
    return request;
  }
  std::size_t add(DiskQueues& queues, const std::vector<Request>& requests) const {
    return queues.add([&](Fifo<Request>& out) {
      for (const Request& request : requests) out.push(request);
    });
  }

  const TestFile here_{100'000}, also_here_{100'000}, elsewhere_{100'000, kElsewhere};
  FileSet files_;
};

TEST_F(DiskQueuesTest, FilesKnowTheirDisks) {
  EXPECT_EQ(files_.disks(), 2);
  EXPECT_EQ(files_.disk(0), 0);
  EXPECT_EQ(files_.disk(1), 0);
  EXPECT_EQ(files_.disk(2), 1);
}

TEST_F(DiskQueuesTest, ADiskThatHasEnoughDoesNotKeepAnotherWaiting) {
  DiskQueues queues(files_, 8, 100);
  EXPECT_EQ(add(queues, {request(0, 80), request(0, 60), request(1, 50), request(2, 70)}), 4u);
  const Request first = queues.take();
  EXPECT_EQ(first.bytes, 80u);
  EXPECT_EQ(queues.take().bytes, 70u);  // in turns
  EXPECT_EQ(queues.take().bytes, 60u);  // the first disk had less than its bound, and now has more
  EXPECT_FALSE(queues.ready());
  EXPECT_FALSE(queues.empty());
  add(queues, {request(2, 10)});
  ASSERT_TRUE(queues.ready());
  EXPECT_EQ(queues.take().bytes, 10u);
  queues.ended(first);
  ASSERT_TRUE(queues.ready());
  EXPECT_EQ(queues.take().bytes, 50u);
  EXPECT_TRUE(queues.empty());
}

TEST_F(DiskQueuesTest, WhatIsLeftCanBeRemovedWhateverIsUnderWay) {
  DiskQueues queues(files_, 1, UINT64_MAX);
  add(queues, {request(0, 1), request(1, 2), request(2, 3), request(2, 4)});
  (void)queues.take();
  (void)queues.take();
  EXPECT_FALSE(queues.ready());
  std::uint64_t bytes = 0;
  while (!queues.empty()) bytes += queues.remove().bytes;
  EXPECT_EQ(bytes, 2u + 4u);
}

TEST_F(DiskQueuesTest, ReadsFromSeveralDisksAreTheFiles) {
  OpenOptions options;
  options.kind = BackendKind::pread_buffered;
  options.threads = 1;
  options.request_bytes = 4096;
  const auto backend = open_backend({here_.path(), elsewhere_.path()}, options);
  ASSERT_TRUE(backend.ok()) << backend.status().message();
  std::vector<Destination> destinations;
  std::vector<Read> reads;
  for (std::uint64_t i = 0; i < 20; ++i) {
    destinations.emplace_back(i * 4'001, 20'000);
    reads.push_back(destinations.back().read(static_cast<int>(i % 2)));
  }
  Completion completion;
  (*backend)->submit(reads, completion);
  EXPECT_TRUE(completion.wait().ok());
  for (const Destination& destination : destinations) EXPECT_EQ(destination.first_wrong(), 20'000u);
}

}  // namespace
}  // namespace millrace::storage
