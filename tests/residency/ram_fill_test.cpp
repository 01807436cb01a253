#include "residency/ram_fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <future>
#include <thread>

#include "residency/store_fixture.h"
#include "storage/fault_injection.h"

namespace millrace::residency {
namespace {

using test::WeightFile;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint64_t kChunk = 8 << 10;

/// Parts of a file in groups of several reads each, every third group empty, as one on the disk is; and their memory,
/// where every read lies as in the file modulo the block size.
struct Work {
  explicit Work(const WeightFile& file, std::size_t groups = 30, std::uint64_t group_bytes = 5 * kChunk - 100)
      : memory(groups * (group_bytes + 2 * storage::kMaxAlignment)) {
    auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    std::byte* next = memory.data() + (round_up(at, storage::kMaxAlignment) - at);
    std::uint64_t offset = 4096 + 32 * 7;
    for (std::size_t g = 0; g < groups; ++g) {
      if (g % 3 != 0) {
        std::byte* const base = next + offset % storage::kMaxAlignment;
        const std::uint64_t end = offset + group_bytes;
        for (std::uint64_t from = offset, to = 0; from < end; from = to) {
          to = std::min(round_down(from, kChunk) + kChunk, end);
          reads.push_back({0, from, to - from, base + (from - offset)});
        }
        next += round_up(offset % storage::kMaxAlignment + group_bytes, storage::kMaxAlignment);
        offset = round_up(end, 32);
      }
      ends.push_back(reads.size());
    }
    EXPECT_LE(offset, file.bytes());
    EXPECT_LE(next, memory.data() + memory.size());
  }
  std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const storage::Read& read : reads) bytes += read.bytes;
    return bytes;
  }
  /// Bytes of the group that are not the file's.
  std::uint64_t wrong(std::size_t group) const {
    std::uint64_t wrong = 0;
    for (std::size_t r = group == 0 ? 0 : ends[group - 1]; r < ends[group]; ++r)
      for (std::uint64_t b = 0; b < reads[r].bytes; ++b)
        wrong += std::to_integer<std::uint8_t>(reads[r].destination[b]) != WeightFile::byte_at(reads[r].offset + b);
    return wrong;
  }
  std::unique_ptr<RamFill> start(storage::Backend& backend) const {
    auto fill = RamFill::start(reads, ends, backend, ram);
    EXPECT_TRUE(fill.ok()) << fill.status().message();
    return fill.ok() ? std::move(*fill) : nullptr;
  }
  std::vector<std::byte> memory;
  mutable Budget ram{kChunkRingBytes};
  std::vector<storage::Read> reads;
  std::vector<std::size_t> ends;
};

/// Null where this machine does not have that kind.
std::unique_ptr<storage::Backend> open(const WeightFile& file, storage::BackendKind kind,
                                       const std::vector<std::string>& faults = {}) {
  storage::OpenOptions options;
  options.kind = kind;
  auto opened = storage::open_backend({file.path()}, options);
  if (!opened.ok()) return nullptr;
  std::vector<storage::Fault> parsed;
  for (const std::string& fault : faults) parsed.push_back(*storage::parse_fault(fault));
  return parsed.empty() ? std::move(*opened) : storage::inject_faults(std::move(*opened), parsed);
}
constexpr auto kPlain = storage::BackendKind::pread_buffered;

Status nothing() { return {}; }

/// Holds reads until they are let go, in the order the test likes. Thread-safe.
class SteppedBackend final : public storage::Backend {
 public:
  explicit SteppedBackend(std::unique_ptr<storage::Backend> inner) : inner_(std::move(inner)) {}
  const storage::BackendTraits& traits() const override { return inner_->traits(); }
  Status health() const override { return {}; }
  storage::Counters counters() const override { return inner_->counters(); }
  void submit(std::span<const storage::Read> reads, storage::Completion& completion) override {
    const std::lock_guard lock(mutex_);
    for (const storage::Read& read : reads) {
      completion.expect(1);
      held_.push_back({read, &completion});
      destinations_.push_back(read.destination);
    }
  }
  /// Lets the read that has waited longest but `at` others end. Waits until there is one.
  void let_go(std::size_t at = 0, const Status& status = {}) {
    while (held() <= at) std::this_thread::sleep_for(milliseconds(1));
    Held one;
    {
      const std::lock_guard lock(mutex_);
      one = held_[at];
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(at));
    }
    storage::Completion completion;
    inner_->submit({&one.read, 1}, completion);
    EXPECT_TRUE(completion.wait().ok());
    one.completion->finish_one(status);
  }
  std::size_t held() const {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  std::size_t submitted() const {
    const std::lock_guard lock(mutex_);
    return destinations_.size();
  }
  std::vector<const std::byte*> destinations() const {
    const std::lock_guard lock(mutex_);
    return destinations_;
  }

 private:
  struct Held {
    storage::Read read;
    storage::Completion* completion = nullptr;
  };
  std::unique_ptr<storage::Backend> inner_;
  mutable std::mutex mutex_;
  std::deque<Held> held_;                       // GUARDED_BY mutex_
  std::vector<const std::byte*> destinations_;  // GUARDED_BY mutex_: of all reads
};

/// Whether it comes true within some seconds.
template <typename Condition>
bool soon(const Condition& condition) {
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

TEST(RamFill, BringsEveryGroupInOrderFromEveryBackend) {
  const WeightFile file(2 << 20);
  for (const auto kind : {storage::BackendKind::pread_buffered, storage::BackendKind::pread_direct,
                          storage::BackendKind::io_uring, storage::BackendKind::mmap}) {
    SCOPED_TRACE(storage::backend_name(kind));
    const auto backend = open(file, kind);
    if (backend == nullptr) continue;  // this machine does not have it, and said so
    const Work work(file);
    const auto fill = work.start(*backend);
    ASSERT_NE(fill, nullptr);
    EXPECT_EQ(fill->total_bytes(), work.bytes());
    for (std::size_t g = 0; g < work.ends.size(); ++g) {
      const Status came = fill->wait(g, nothing);
      ASSERT_TRUE(came.ok()) << came.message();
      ASSERT_TRUE(fill->has(g));
      ASSERT_EQ(work.wrong(g), 0u) << "group " << g;
    }
    EXPECT_TRUE(fill->complete());
    EXPECT_EQ(fill->read_bytes(), work.bytes());
  }
}

TEST(RamFill, AGroupIsThereWhenItsReadsAndThoseBeforeHaveCome) {
  const WeightFile file(2 << 20);
  SteppedBackend backend(open(file, kPlain));
  const Work work(file, 12);
  const auto fill = work.start(backend);
  EXPECT_TRUE(fill->has(0)) << "it has no reads";
  EXPECT_FALSE(fill->has(1));
  ASSERT_TRUE(soon([&] { return backend.held() == kChunks; }));
  backend.let_go(1);  // the second before the first
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(fill->read_bytes(), 0u) << "read 0 is missing";
  EXPECT_EQ(backend.submitted(), kChunks) << "no more are under way than was said";
  for (std::size_t read = 0; read < work.ends[1] - 1; ++read) {
    EXPECT_FALSE(fill->has(1)) << "read " << read << " of " << work.ends[1] << " is missing";
    backend.let_go();
  }
  ASSERT_TRUE(soon([&] { return fill->has(1); }));
  EXPECT_EQ(work.wrong(1), 0u);
  EXPECT_FALSE(fill->has(2));
  EXPECT_FALSE(fill->has(3)) << "it has no reads, but group 2 before it has";
  for (std::size_t read = work.ends[1]; read < work.reads.size(); ++read) backend.let_go();
  EXPECT_TRUE(fill->wait(11, nothing).ok());
  EXPECT_TRUE(fill->complete());
  EXPECT_EQ(backend.submitted(), work.reads.size());
}

TEST(RamFill, AWaitAsksAndEndsWhenItIsToldAndTheReadingGoesOn) {
  const WeightFile file(2 << 20);
  SteppedBackend backend(open(file, kPlain));
  const Work work(file, 5);
  const auto fill = work.start(backend);
  int asked = 0;
  const auto begin = Clock::now();
  const Status status =
      fill->wait(4, [&] { return ++asked < 4 ? Status() : error(Code::cancelled, "asked {} times", asked); });
  EXPECT_EQ(status.code(), Code::cancelled);
  EXPECT_EQ(status.message(), "asked 4 times");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  std::thread reader([&] {
    for (std::size_t read = 0; read < work.reads.size(); ++read) backend.let_go();
  });
  EXPECT_TRUE(fill->wait(4, nothing).ok());
  reader.join();
  for (std::size_t g = 0; g < 5; ++g) EXPECT_EQ(work.wrong(g), 0u) << "group " << g;
}

TEST(RamFill, AnErrorIsToldOnceAndTheNextWaitReadsOn) {
  const WeightFile file(2 << 20);
  for (const char* fault : {"eio@23", "short@23", "eio@0x3"}) {
    SCOPED_TRACE(fault);
    const auto backend = open(file, kPlain, {fault});
    const Work work(file);
    const auto fill = work.start(*backend);
    const std::size_t last = work.ends.size() - 1;
    const Status told = fill->wait(last, nothing);
    ASSERT_EQ(told.code(), Code::io_error);
    EXPECT_NE(told.message().find("injected fault"), std::string::npos) << told.message();
    EXPECT_EQ(told.message().find('\n'), std::string::npos) << told.message();
    EXPECT_FALSE(fill->has(last));
    const std::uint64_t before = fill->read_bytes();
    for (std::size_t g = 0; g < work.ends.size(); ++g) {
      if (!fill->has(g)) break;
      EXPECT_TRUE(fill->wait(g, nothing).ok()) << "what is there stays there";
      EXPECT_EQ(work.wrong(g), 0u) << "group " << g;
    }
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(fill->read_bytes(), before) << "nobody asked for more";
    const Status again = fill->wait(last, nothing);
    EXPECT_TRUE(again.ok()) << again.message();
    for (std::size_t g = 0; g < work.ends.size(); ++g) EXPECT_EQ(work.wrong(g), 0u) << "group " << g;
    EXPECT_EQ(fill->read_bytes(), work.bytes()) << "nothing is counted twice";
  }
}

TEST(RamFill, AnErrorThatNobodyWaitedForIsToldToTheNextThatDoes) {
  const WeightFile file(2 << 20);
  const auto backend = open(file, kPlain, {"eio@30"});
  const Work work(file);
  const auto fill = work.start(*backend);
  EXPECT_TRUE(fill->wait(1, nothing).ok()) << "it was read before the error";
  ASSERT_TRUE(soon([&] { return fill->has(work.ends.size() / 4); }));
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_EQ(fill->wait(work.ends.size() - 1, nothing).code(), Code::io_error);
  EXPECT_TRUE(fill->wait(work.ends.size() - 1, nothing).ok());
}

TEST(RamFill, AnErrorThatLastsIsToldEveryTime) {
  const WeightFile file(2 << 20);
  const auto backend = open(file, kPlain, {"eio@23x1000000"});
  const Work work(file);
  const auto fill = work.start(*backend);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(fill->wait(work.ends.size() - 1, nothing).code(), Code::io_error) << i;
  EXPECT_TRUE(fill->has(3)) << "what came before it is there";
  EXPECT_FALSE(fill->complete());
}

TEST(RamFill, AFileThatWasCutIsAnError) {
  const WeightFile file(2 << 20);
  const auto backend = open(file, kPlain);
  const Work work(file);
  std::filesystem::resize_file(file.path(), work.reads[work.reads.size() / 2].offset);
  const auto fill = work.start(*backend);
  for (int i = 0; i < 2; ++i) {
    const Status status = fill->wait(work.ends.size() - 1, nothing);
    EXPECT_EQ(status.code(), Code::io_error);
    EXPECT_NE(status.message().find("truncated"), std::string::npos) << status.message();
  }
}

TEST(RamFill, ADiskThatIsSlowIsWaitedForWithProgress) {
  const WeightFile file(2 << 20);
  const auto backend = open(file, kPlain, {"stall:60@0x1000000"});
  const Work work(file);
  const auto fill = work.start(*backend);
  std::vector<std::uint64_t> seen;
  const Status status = fill->wait(work.ends.size() - 1, [&] {
    seen.push_back(fill->read_bytes());
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  ASSERT_GE(seen.size(), 3u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_LT(seen.front(), seen.back());
  for (std::size_t g = 0; g < work.ends.size(); ++g) EXPECT_EQ(work.wrong(g), 0u) << "group " << g;
}

TEST(RamFill, DestroyingWaitsForTheReadsUnderWayAndStartsNoMore) {
  const WeightFile file(2 << 20);
  SteppedBackend backend(open(file, kPlain));
  const Work work(file);
  auto fill = work.start(backend);
  for (int i = 0; i < 5; ++i) backend.let_go();
  ASSERT_TRUE(soon([&] { return backend.submitted() == kChunks + 5; }));
  auto gone = std::async(std::launch::async, [&] { fill.reset(); });
  EXPECT_EQ(gone.wait_for(milliseconds(50)), std::future_status::timeout) << "reads still write into the memory";
  while (backend.held() > 0) backend.let_go();
  EXPECT_EQ(gone.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(backend.submitted(), kChunks + 5);
  EXPECT_EQ(backend.held(), 0u);
}

TEST(RamFill, DestroyingEndsAThreadThatRestsAfterAnError) {
  const WeightFile file(2 << 20);
  const auto backend = open(file, kPlain, {"eio@3x1000000"});
  const Work work(file);
  for (const bool told : {false, true}) {
    auto fill = work.start(*backend);
    if (told) {
      EXPECT_EQ(fill->wait(work.ends.size() - 1, nothing).code(), Code::io_error);
    }
    const auto begin = Clock::now();
    fill.reset();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  }
}

TEST(RamFill, AnotherThreadReadsFromTheSameBackendMeanwhile) {
  const WeightFile file(2 << 20);
  for (const auto kind : {storage::BackendKind::pread_buffered, storage::BackendKind::pread_direct,
                          storage::BackendKind::io_uring, storage::BackendKind::mmap}) {
    SCOPED_TRACE(storage::backend_name(kind));
    const auto backend = open(file, kind, {"stall:2@5x20"});
    if (backend == nullptr) continue;
    const Work work(file);
    Work other(file);
    const auto fill = work.start(*backend);
    for (int round = 0; round < 3; ++round) {
      std::fill(other.memory.begin(), other.memory.end(), std::byte{0});
      const Status read = read_in_order(*backend, other.reads, [](std::size_t) { return Status(); });
      ASSERT_TRUE(read.ok()) << read.message();
      for (std::size_t g = 0; g < other.ends.size(); ++g) ASSERT_EQ(other.wrong(g), 0u) << "group " << g;
    }
    ASSERT_TRUE(fill->wait(work.ends.size() - 1, nothing).ok());
    for (std::size_t g = 0; g < work.ends.size(); ++g) ASSERT_EQ(work.wrong(g), 0u) << "group " << g;
  }
}

TEST(RamFill, ReadsLandInARingAsSmallAsStatedUntilAllIsThere) {
  const WeightFile file(2 << 20);
  SteppedBackend backend(open(file, kPlain));
  const Work work(file);
  const auto fill = work.start(backend);
  EXPECT_EQ(work.ram.reserved_bytes(), kChunkRingBytes);
  EXPECT_EQ(work.ram.entries().at(0).tag, "staging");
  EXPECT_LE(kChunkRingBytes, 9u << 20) << "it stays in the processor's cache";
  ASSERT_GT(work.reads.size(), 3 * kChunks);
  for (std::size_t read = 0; read + 1 < work.reads.size(); ++read) backend.let_go();
  ASSERT_TRUE(soon([&] { return fill->read_bytes() == work.bytes() - work.reads.back().bytes; }));
  EXPECT_EQ(work.ram.reserved_bytes(), kChunkRingBytes) << "a read is missing";
  backend.let_go();
  EXPECT_TRUE(fill->wait(work.ends.size() - 1, nothing).ok());
  EXPECT_EQ(work.ram.reserved_bytes(), 0u);

  const std::vector<const std::byte*> destinations = backend.destinations();
  ASSERT_EQ(destinations.size(), work.reads.size());
  std::uintptr_t first = UINTPTR_MAX, end = 0;
  for (std::size_t read = 0; read < destinations.size(); ++read) {
    const auto at = reinterpret_cast<std::uintptr_t>(destinations[read]);
    ASSERT_EQ(at % storage::kMaxAlignment, work.reads[read].offset % storage::kMaxAlignment) << "read " << read;
    const std::uintptr_t block = round_down(at, storage::kMaxAlignment);
    first = std::min(first, block);
    end = std::max(end, block + kChunkRoom);
    if (read >= kChunks) {
      EXPECT_EQ(block,
                round_down(reinterpret_cast<std::uintptr_t>(destinations[read - kChunks]), storage::kMaxAlignment))
          << "read " << read << " has a slot of its own";
    }
  }
  EXPECT_EQ(end - first, kChunkRingBytes);
}

TEST(RamFill, AnUnfinishedFillGivesItsRingBack) {
  const WeightFile file(2 << 20);
  const auto backend = open(file, kPlain, {"eio@23x1000000"});
  const Work work(file);
  auto fill = work.start(*backend);
  EXPECT_EQ(fill->wait(work.ends.size() - 1, nothing).code(), Code::io_error);
  EXPECT_EQ(work.ram.reserved_bytes(), kChunkRingBytes) << "the next wait() reads on";
  fill.reset();
  EXPECT_EQ(work.ram.reserved_bytes(), 0u);
}

TEST(RamFill, ABudgetWithoutRoomForTheRingRefuses) {
  const WeightFile file(2 << 20);
  SteppedBackend backend(open(file, kPlain));
  const Work work(file);
  Budget ram(kChunkRingBytes - 1);
  const auto fill = RamFill::start(work.reads, work.ends, backend, ram);
  EXPECT_EQ(fill.status().code(), Code::out_of_budget);
  EXPECT_EQ(backend.submitted(), 0u);
  EXPECT_EQ(ram.reserved_bytes(), 0u);
}

TEST(RamFill, NothingToReadNeedsNoRing) {
  const WeightFile file(1 << 16);
  const auto backend = open(file, kPlain);
  Budget ram(0);
  const auto fill = RamFill::start({}, {0, 0}, *backend, ram);
  ASSERT_TRUE(fill.ok()) << fill.status().message();
  EXPECT_TRUE((*fill)->complete());
}

TEST(RamFill, ReadsOfAnyOffsetAndSizeComeWhereverTheyBelongAndTouchNothingElse) {
  const WeightFile file(16 << 20);
  constexpr std::uint64_t kMost = kChunkBytes;
  constexpr std::uint64_t kSizes[] = {kMost, 1,  kMost - 1, 4095, 4096,      4097, 63, kMost,
                                      64,    65, kMost / 3, 32,   kMost - 7, 511,  7,  129};
  constexpr std::byte kUntouched{0xa5};
  for (const auto kind : {storage::BackendKind::pread_buffered, storage::BackendKind::pread_direct,
                          storage::BackendKind::io_uring, storage::BackendKind::mmap}) {
    SCOPED_TRACE(storage::backend_name(kind));
    const auto backend = open(file, kind, {"eio@41"});  // reads on in the middle of the ring
    if (backend == nullptr) continue;
    std::vector<std::byte> memory(file.bytes() + (1 << 20), kUntouched);
    std::vector<storage::Read> reads;
    std::uint64_t offset = 4095;  // the most that a slot has to give to the block before
    std::byte* next = memory.data() + 1;
    for (std::size_t i = 0;; ++i) {
      const std::uint64_t bytes = kSizes[i % std::size(kSizes)];
      if (offset + bytes > file.bytes()) break;
      reads.push_back({0, offset, bytes, next});
      next += bytes + 1 + i % 67;
      offset += bytes + (i % 5 == 0 ? 4097 : 3);
      if (i % 16 == 15) offset = round_up(offset, 4096) + 4095;
    }
    ASSERT_GT(reads.size(), 64u);
    ASSERT_LT(next, memory.data() + memory.size());
    Budget ram(kChunkRingBytes);
    auto fill = RamFill::start(reads, {reads.size()}, *backend, ram);
    ASSERT_TRUE(fill.ok()) << fill.status().message();
    EXPECT_EQ((*fill)->wait(0, nothing).code(), Code::io_error);
    ASSERT_TRUE((*fill)->wait(0, nothing).ok());
    const std::byte* at = memory.data();
    for (std::size_t r = 0; r < reads.size(); ++r) {
      for (; at < reads[r].destination; ++at) ASSERT_EQ(*at, kUntouched) << "before read " << r;
      std::uint64_t wrong = 0;
      for (std::uint64_t b = 0; b < reads[r].bytes; ++b, ++at)
        wrong += std::to_integer<std::uint8_t>(*at) != WeightFile::byte_at(reads[r].offset + b);
      ASSERT_EQ(wrong, 0u) << "of " << reads[r].bytes << " bytes at " << reads[r].offset;
    }
    for (; at < memory.data() + memory.size(); ++at) ASSERT_EQ(*at, kUntouched) << "behind the last read";
  }
}

TEST(ReadInOrder, EndsAsItIsToldWithNothingUnderWay) {
  const WeightFile file(2 << 20);
  SteppedBackend backend(open(file, kPlain));
  const Work work(file);
  std::thread reader([&] {
    for (std::size_t i = 0; i < kChunks + 2; ++i) backend.let_go();
  });
  std::size_t told = 0;
  const Status status = read_in_order(backend, work.reads, [&](std::size_t index) {
    EXPECT_EQ(index, told++);
    return index < 2 ? Status() : error(Code::cancelled, "enough");
  });
  EXPECT_EQ(status.message(), "enough");
  reader.join();
  EXPECT_EQ(told, 3u);
  EXPECT_EQ(backend.submitted(), kChunks + 2);
  EXPECT_EQ(backend.held(), 0u);
}

}  // namespace
}  // namespace millrace::residency
