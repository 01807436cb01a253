// Every backend against the contract of storage.h, on real files.
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <thread>

#include "storage/storage_fixture.h"

namespace millrace::storage {
namespace {

constexpr std::uint64_t kFileBytes = 3 * kMiB + 777;  // ends inside a block

class EveryBackend : public testing::TestWithParam<BackendKind> {
 protected:
  void open(OpenOptions options = {}) {
    if (options.request_bytes == OpenOptions().request_bytes) options.request_bytes = 64 * kKiB;
    backend_ = open_or_none({file_.path(), second_.path()}, GetParam(), options);
    if (backend_ == nullptr) GTEST_SKIP() << backend_name(GetParam()) << " is not offered here";
  }
  TestFile file_{kFileBytes};
  TestFile second_{100 * kKiB};
  std::unique_ptr<Backend> backend_;
};

#define OPEN_OR_SKIP(...) \
  open(__VA_ARGS__);      \
  if (IsSkipped()) return

INSTANTIATE_TEST_SUITE_P(Kinds, EveryBackend, testing::ValuesIn(backend_kinds().begin() + 1, backend_kinds().end()),
                         [](const auto& info) {
                           std::string name(backend_name(info.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EveryBackend, ReadsUnalignedRangesExactly) {
  OPEN_OR_SKIP();
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t offset = random() % kFileBytes;
    const std::uint64_t bytes = 1 + random() % std::min(kFileBytes - offset, i % 4 == 0 ? kFileBytes : 9000);
    const Destination to(offset, bytes);
    const Status status = read_now(*backend_, to.read());
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(to.first_wrong(), bytes) << "read of " << bytes << " at " << offset;
    ASSERT_TRUE(to.guards_stand()) << "read of " << bytes << " at " << offset;
  }
}

TEST_P(EveryBackend, ReadsABatchLargerThanItsDepthFromTwoFiles) {
  OPEN_OR_SKIP(OpenOptions{.threads = 3, .queue_depth = 4, .request_bytes = 8 * kKiB});
  std::mt19937_64 random(2);
  std::vector<Destination> destinations;
  std::vector<Read> reads;
  std::uint64_t asked = 0;
  for (int i = 0; i < 300; ++i) {
    const int file = i % 2;
    const std::uint64_t size = file == 0 ? kFileBytes : 100 * kKiB;
    const std::uint64_t offset = random() % size;
    const std::uint64_t bytes = random() % std::min<std::uint64_t>(size - offset, 40000);
    destinations.emplace_back(offset, bytes);
    reads.push_back(destinations.back().read(file));
    asked += bytes;
  }
  Completion completion;
  backend_->submit(reads, completion);
  const Status status = completion.wait();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(completion.done());
  for (std::size_t i = 0; i < reads.size(); ++i) ASSERT_EQ(destinations[i].first_wrong(), reads[i].bytes) << i;
  const Counters counters = backend_->counters();
  EXPECT_EQ(counters.bytes, asked);
  EXPECT_GE(counters.reads, 290u);
  EXPECT_GT(counters.busy_ns, 0u);
}

TEST_P(EveryBackend, ReadsIntoRegisteredMemory) {
  OPEN_OR_SKIP();
  const Destination inside(12345, 2 * kMiB), outside(777, 1 * kMiB);
  backend_->register_memory({inside.read().destination, 2 * kMiB});
  for (const Destination* to : {&inside, &outside}) {
    ASSERT_TRUE(read_now(*backend_, to->read()).ok());
    EXPECT_EQ(to->first_wrong(), to->read().bytes);
  }
}

TEST_P(EveryBackend, ReadsUpToTheEndAndNotBeyond) {
  OPEN_OR_SKIP();
  const Destination last(kFileBytes - 100, 100), nothing(kFileBytes, 0);
  EXPECT_TRUE(read_now(*backend_, last.read()).ok());
  EXPECT_EQ(last.first_wrong(), 100u);
  EXPECT_TRUE(read_now(*backend_, nothing.read()).ok());

  for (const auto& [offset, bytes] :
       {std::pair{kFileBytes - 100, std::uint64_t{101}}, {kFileBytes + 5000, std::uint64_t{1}}, {~0ull - 10, 100ull}}) {
    const Destination beyond(offset % kMaxAlignment, 200);
    Read read = beyond.read();
    read.offset = offset;
    read.bytes = bytes;
    const Status status = read_now(*backend_, read);
    EXPECT_EQ(status.code(), Code::io_error);
    EXPECT_NE(status.message().find("the file ends at byte 3146505"), std::string::npos) << status.message();
  }
}

TEST_P(EveryBackend, OneBadReadFailsTheBatchAndTheNextBatchWorks) {
  OPEN_OR_SKIP();
  const Destination good(10, 1000), bad(kFileBytes - 10, 100);
  const Read reads[] = {good.read(), bad.read()};
  Completion completion;
  backend_->submit(reads, completion);
  EXPECT_EQ(completion.wait().code(), Code::io_error);
  EXPECT_EQ(completion.wait().code(), Code::io_error);  // told again, not forgotten
  backend_->submit({reads, 1}, completion);
  EXPECT_TRUE(completion.wait().ok());
  EXPECT_EQ(good.first_wrong(), 1000u);
}

TEST_P(EveryBackend, RefusesAWrongDestinationAndAWrongFile) {
  OPEN_OR_SKIP();
  const Destination to(100, 1000);
  Read off = to.read();
  off.offset += 1;
  EXPECT_EQ(read_now(*backend_, off).code(), Code::internal);
  for (const int file : {-1, 2}) EXPECT_EQ(read_now(*backend_, to.read(file)).code(), Code::internal);
}

TEST_P(EveryBackend, ServesThreadsThatComeAndGo) {
  OPEN_OR_SKIP(OpenOptions{.threads = 2, .queue_depth = 8, .request_bytes = 16 * kKiB});
  std::atomic<int> wrong{0};
  for (int round = 0; round < 5; ++round) {
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t, round] {
        std::mt19937_64 random(static_cast<std::uint64_t>(t * 10 + round));
        for (int i = 0; i < 20; ++i) {
          const std::uint64_t offset = random() % (kFileBytes - 70000);
          const Destination to(offset, 70000);
          if (!read_now(*backend_, to.read()).ok() || to.first_wrong() != 70000) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

// The thread that submits ends at once, and io_uring cancels what it has queued for such a thread.
TEST_P(EveryBackend, ReadsOutliveTheThreadThatAskedForThem) {
  OPEN_OR_SKIP(OpenOptions{.threads = 2, .queue_depth = 64, .request_bytes = 16 * kKiB});
  for (int round = 0; round < 10; ++round) {
    const Destination to(5, 2 * kMiB);
    Completion completion;
    const Read read = to.read();
    std::thread([&] { backend_->submit({&read, 1}, completion); }).join();
    const Status status = completion.wait();
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(to.first_wrong(), 2 * kMiB);
  }
}

TEST_P(EveryBackend, CompletionMayDieAsSoonAsItIsDone) {
  OPEN_OR_SKIP();
  const Destination to(0, 4096);
  const Read read = to.read();
  for (int i = 0; i < 2000; ++i) {
    auto completion = std::make_unique<Completion>();
    backend_->submit({&read, 1}, *completion);
    if (i % 2 == 0) {
      ASSERT_TRUE(completion->wait().ok());
    } else {
      while (!completion->done()) std::this_thread::yield();
    }
    std::memset(static_cast<void*>(completion.get()), 0xa5, sizeof(std::atomic<std::uint32_t>));
    completion.reset();
  }
}

// A bound below a request lets one at a time go.
TEST_P(EveryBackend, ReadsUnderABoundOnBytesInFlight) {
  for (const std::uint64_t bound : {std::uint64_t{1}, 24 * kKiB, 200 * kKiB}) {
    OPEN_OR_SKIP(OpenOptions{.threads = 2, .request_bytes = 16 * kKiB, .bytes_in_flight = bound});
    std::vector<Destination> destinations;
    std::vector<Read> reads;
    for (std::uint64_t i = 0; i < 20; ++i) {
      destinations.emplace_back(i * 100'001, 100'000 - i);
      reads.push_back(destinations.back().read());
    }
    Completion first, second;
    backend_->submit(std::span(reads).first(8), first);
    backend_->submit(std::span(reads).subspan(8), second);
    EXPECT_TRUE(first.wait().ok());
    EXPECT_TRUE(second.wait().ok());
    for (std::uint64_t i = 0; i < 20; ++i) EXPECT_EQ(destinations[i].first_wrong(), 100'000 - i);
  }
}

TEST_P(EveryBackend, ClosesWithReadsInFlight) {
  OPEN_OR_SKIP(OpenOptions{.threads = 1, .queue_depth = 2, .request_bytes = 4 * kKiB});
  const Destination to(0, 3 * kMiB);
  const Read read = to.read();
  Completion completion;
  backend_->submit({&read, 1}, completion);
  backend_.reset();
  ASSERT_TRUE(completion.done());
  const Status status = completion.wait();
  EXPECT_TRUE(status.ok() || status.code() == Code::cancelled) << status.message();
}

TEST_P(EveryBackend, NoticesAFileCutWhileOpen) {
  OPEN_OR_SKIP();
  ASSERT_TRUE(backend_->health().ok());
  std::error_code refused;
  std::filesystem::resize_file(file_.path(), 1 * kMiB + 100, refused);
  if (refused && GetParam() == BackendKind::mmap) GTEST_SKIP() << "this system cuts no file that is mapped";
  ASSERT_FALSE(refused) << refused.message();
  EXPECT_EQ(backend_->health().code(), Code::io_error);

  const Destination before(1000, 5000), across(1 * kMiB - 5000, 100000), behind(2 * kMiB, 5000);
  EXPECT_EQ(read_now(*backend_, across.read()).code(), Code::io_error);
  const Status status = read_now(*backend_, behind.read());
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  if (GetParam() != BackendKind::mmap) {
    EXPECT_NE(status.message().find("truncated?"), std::string::npos) << status.message();
    EXPECT_TRUE(read_now(*backend_, before.read()).ok());
    EXPECT_EQ(before.first_wrong(), 5000u);
  }
}

TEST_P(EveryBackend, NoticesAFileWrittenWhileOpen) {
  OPEN_OR_SKIP();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // file times move in ticks
  std::fstream file(second_.path(), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(50);
  file.put('x');
  file.close();
  ASSERT_TRUE(file);
  const Status status = backend_->health();
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_NE(status.message().find("changed while it was being read: start again"), std::string::npos);
}

TEST_P(EveryBackend, DoesNotMindARenamedFile) {
  OPEN_OR_SKIP();
  const std::string moved = second_.path() + "_moved";
  std::filesystem::rename(second_.path(), moved);
  EXPECT_TRUE(backend_->health().ok());
  std::filesystem::remove(moved);
  EXPECT_TRUE(backend_->health().ok());
  const Destination to(1, 10000);
  EXPECT_TRUE(read_now(*backend_, to.read(1)).ok());
  EXPECT_EQ(to.first_wrong(), 10000u);
}

TEST_P(EveryBackend, ReadsAnEmptyFilesNothing) {
  const TestFile empty(0);
  backend_ = open_or_none({empty.path()}, GetParam());
  if (backend_ == nullptr) GTEST_SKIP();
  const Destination to(0, 1);
  Read read = to.read();
  EXPECT_EQ(read_now(*backend_, read).code(), Code::io_error);
  read.bytes = 0;
  EXPECT_TRUE(read_now(*backend_, read).ok());
}

TEST(Mmap, OtherBackendsHaveNothingInPlace) {
  const TestFile file(4096);
  auto backend = open_or_none({file.path()}, BackendKind::pread_buffered);
  ASSERT_NE(backend, nullptr);
  EXPECT_EQ(backend->in_place(0, 0, 10), nullptr);
}

}  // namespace
}  // namespace millrace::storage
