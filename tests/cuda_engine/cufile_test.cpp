// cuFile on a real GPU: what lands in device memory is what the file holds, byte for byte, and nothing around it
// changes. Where cuFile is not to be had, or does not take the disk of the build folder, every test says so and is
// skipped.
#include "storage/cufile.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "device/device.h"
#include "device/gpu.h"
#include "storage/storage_fixture.h"

namespace millrace::storage {
namespace {

constexpr std::uint64_t kFileBytes = 24 * kMiB + 777;  // ends inside a block
constexpr int kPoison = 0xc3;

/// Device memory that knows what should lie in it: poison, but for what was read.
class Slot {
 public:
  explicit Slot(std::uint64_t bytes) : expected_(bytes, std::byte{kPoison}) {
    auto memory = device::DeviceBuffer::allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    if (memory.ok()) memory_ = std::move(*memory);
    const std::vector<std::byte> poison(bytes, std::byte{kPoison});
    EXPECT_TRUE(device::write_device(memory_.data(), poison.data(), bytes).ok());
  }
  std::byte* data() const { return memory_.data(); }
  std::uint64_t bytes() const { return expected_.size(); }

  /// A read of the file's [offset, offset + bytes) to `place`.
  Read read(std::uint64_t offset, std::uint64_t bytes, std::uint64_t place) {
    for (std::uint64_t i = 0; i < bytes; ++i) expected_[place + i] = byte_at(offset + i);
    return {.file = 0, .offset = offset, .bytes = bytes, .destination = memory_.data() + place};
  }

  /// Compares every byte, by way of a stream that knows nothing of the reads.
  ::testing::AssertionResult right() const {
    auto stream = device::Stream::create();
    if (!stream.ok()) return ::testing::AssertionFailure() << stream.status().message();
    std::vector<std::byte> found(bytes());
    Status done = device::copy_to_host(found.data(), data(), bytes(), *stream);
    if (done.ok()) done = stream->synchronise();
    if (!done.ok()) return ::testing::AssertionFailure() << done.message();
    std::uint64_t wrong = 0, first = 0, poison = 0;
    for (std::uint64_t i = bytes(); i-- > 0;) {
      if (found[i] == expected_[i]) continue;
      ++wrong, first = i;
      if (found[i] == std::byte{kPoison}) ++poison;
    }
    if (wrong == 0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << wrong << " of " << bytes() << " bytes are wrong (" << poison
                                         << " of them never written), the first at " << first << ": "
                                         << std::to_integer<int>(found[first]) << " where "
                                         << std::to_integer<int>(expected_[first]) << " is wanted"
                                         << (expected_[first] == std::byte{kPoison} ? " (outside of what was asked?)"
                                                                                    : "");
  }

 private:
  std::vector<std::byte> expected_;
  device::DeviceBuffer memory_;
};

class CuFileOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto gpus = device::gpus(); !gpus.ok()) GTEST_SKIP() << gpus.status().message();
    file_ = std::make_unique<TestFile>(kFileBytes);
    open();
  }
  void open(const CuFileOptions& options = {}) {
    backend_.reset();
    auto opened = open_cufile({file_->path()}, options);
    if (!opened.ok() && opened.status().code() == Code::unsupported) GTEST_SKIP() << opened.status().message();
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    backend_ = std::move(*opened);
  }

  std::unique_ptr<TestFile> file_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(CuFileOnGpu, SaysWhichWayItGoes) {
  EXPECT_EQ(backend_->traits().memory, Memory::device);
  EXPECT_FALSE(backend_->traits().reason.empty());
  const auto way = cufile_available(file_->path());
  ASSERT_TRUE(way.ok()) << way.status().message();
  EXPECT_EQ(way->reason, backend_->traits().reason);
  std::printf("cuFile goes %s\n", way->reason.c_str());
}

TEST_F(CuFileOnGpu, ReadsAnyRangeExactlyToAnyAddress) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 40; ++i) {
    Slot slot(4 * kMiB);
    const std::uint64_t bytes = 1 + random() % (i % 2 == 0 ? 3 * kMiB : 90000);
    const std::uint64_t offset = random() % (kFileBytes - bytes), place = random() % (slot.bytes() - bytes);
    const Status status = read_now(*backend_, slot.read(offset, bytes, place));
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(slot.right()) << "read of " << bytes << " at " << offset << " to " << place;
  }
}

TEST_F(CuFileOnGpu, ReadsCongruentRangesAndTheWholeFile) {
  Slot slot(32 * kMiB);
  const Status status = read_now(*backend_, slot.read(0, kFileBytes, 0));
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(slot.right());
  for (const std::uint64_t offset : {std::uint64_t{4096}, 5 * kMiB, 5 * kMiB + 256}) {
    Slot again(12 * kMiB);
    const Status status = read_now(*backend_, again.read(offset, 9 * kMiB, kMiB + offset % 4096));
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(again.right()) << "at " << offset;
  }
}

TEST_F(CuFileOnGpu, ReadsABatchSideBySide) {
  open({.threads = 8, .request_bytes = 256 * kKiB});
  ASSERT_NE(backend_, nullptr);
  Slot slot(32 * kMiB);
  std::mt19937_64 random(2);
  std::vector<Read> reads;
  for (std::uint64_t i = 0; i < 64; ++i) {
    const std::uint64_t bytes = 1 + random() % (400 * kKiB);
    reads.push_back(slot.read(random() % (kFileBytes - bytes), bytes, i * 512 * kKiB + random() % 9000));
  }
  Completion completion;
  backend_->submit(reads, completion);
  const Status status = completion.wait();
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(slot.right());
}

TEST_F(CuFileOnGpu, ReadsIntoRegisteredMemoryAgainAndAgain) {
  Slot slot(16 * kMiB);
  auto buffer = CuFileBuffer::make({slot.data(), 8 * kMiB});
  if (!buffer.ok()) GTEST_SKIP() << buffer.status().message();
  std::mt19937_64 random(3);
  for (int i = 0; i < 12; ++i) {
    const std::uint64_t bytes = 1 + random() % (5 * kMiB), offset = random() % (kFileBytes - bytes);
    // Inside, across the end of, and outside of what is registered.
    const std::uint64_t place = i % 3 == 0   ? random() % (8 * kMiB - bytes)
                                : i % 3 == 1 ? 8 * kMiB - bytes / 2
                                             : 8 * kMiB + random() % (8 * kMiB - bytes);
    const Status status = read_now(*backend_, slot.read(offset, bytes, place));
    ASSERT_TRUE(status.ok()) << status.message() << " (read of " << bytes << " to " << place << ")";
    ASSERT_TRUE(slot.right()) << "read of " << bytes << " at " << offset << " to " << place;
  }
}

TEST_F(CuFileOnGpu, OpensAgainAfterEverythingWasClosed) {
  for (int i = 0; i < 3; ++i) {
    open({.threads = 2});
    ASSERT_NE(backend_, nullptr);
    Slot slot(2 * kMiB);
    const Status status = read_now(*backend_, slot.read(1000, kMiB, 5));
    ASSERT_TRUE(status.ok()) << status.message() << " (opened " << i << " times before)";
    ASSERT_TRUE(slot.right());
  }
}

TEST_F(CuFileOnGpu, AFileCutWhileOpenIsAnError) {
  ASSERT_EQ(truncate(file_->path().c_str(), 1 * kMiB + 100), 0);
  EXPECT_EQ(backend_->health().code(), Code::io_error);
  Slot slot(4 * kMiB);
  for (const auto& [offset, bytes] : {std::pair{kMiB - 5000, std::uint64_t{100000}}, {2 * kMiB, kMiB}}) {
    const Status status = read_now(*backend_, slot.read(offset, bytes, 0));
    EXPECT_EQ(status.code(), Code::io_error) << "a read of " << bytes << " at " << offset << " should fail";
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }
  Slot before(4 * kMiB);
  const Status status = read_now(*backend_, before.read(3000, 900000, 0));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(before.right());
}

TEST_F(CuFileOnGpu, ReadsUpToTheEndAndNotBeyond) {
  Slot slot(kMiB);
  EXPECT_TRUE(read_now(*backend_, slot.read(kFileBytes - 100, 100, 0)).ok());
  EXPECT_TRUE(slot.right());
  Read beyond = slot.read(kFileBytes - 100, 100, 0);
  ++beyond.bytes;
  const Status status = read_now(*backend_, beyond);
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_NE(status.message().find("the file ends at byte"), std::string::npos) << status.message();
}

/// Not a test but a measurement: cuFile to the GPU beside O_DIRECT to the host, on one file.
/// --gtest_also_run_disabled_tests runs it.
class CuFileRate : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 2 * kGiB, kPiece = 64 * kMiB, kInFlight = 3;

  void SetUp() override {
    if (const auto gpus = device::gpus(); !gpus.ok()) GTEST_SKIP() << gpus.status().message();
    path_ = std::string(MILLRACE_BINARY_DIR "/millrace_cufile_rate_") + std::to_string(getpid());
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    std::vector<std::uint64_t> words(kPiece / sizeof(std::uint64_t));
    std::mt19937_64 random(1);
    for (std::uint64_t& word : words) word = random();
    bool written = true;
    for (std::uint64_t at = 0; at < kBytes && written; at += kPiece)
      written = write(fd, words.data(), kPiece) == static_cast<ssize_t>(kPiece);
    written = written && fsync(fd) == 0;
    close(fd);
    if (!written) GTEST_SKIP() << "no room for a file of 2 GiB in the build folder";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  /// GB/s over the whole file, in pieces into kInFlight slots at `slots`.
  double rate(Backend& backend, std::byte* slots) const {
    std::array<Completion, kInFlight> completions;
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < kBytes / kPiece; ++i) {
      const std::uint64_t slot = i % kInFlight;
      const Status status = completions[slot].wait();
      EXPECT_TRUE(status.ok()) << status.message();
      const Read read{.file = 0, .offset = i * kPiece, .bytes = kPiece, .destination = slots + slot * kPiece};
      backend.submit({&read, 1}, completions[slot]);
    }
    for (Completion& completion : completions) {
      const Status status = completion.wait();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return static_cast<double>(kBytes) / seconds.count() * 1e-9;
  }

  std::string path_;
};

TEST_F(CuFileRate, DISABLED_BesideReadsToTheHost) {
  auto host = device::HostBuffer::reserve(kInFlight * kPiece, device::Pages::huge);
  ASSERT_TRUE(host.ok()) << host.status().message();
  std::fill_n(host->data(), host->bytes(), std::byte{1});
  const auto host_rate = [&] {
    for (const BackendKind kind : {BackendKind::io_uring, BackendKind::pread_direct}) {
      const auto backend = open_or_none({path_}, kind);
      if (backend != nullptr)
        std::printf("%-34s %6.2f GB/s\n", backend->traits().name.c_str(), rate(*backend, host->data()));
    }
  };
  host_rate();
  for (const bool registered : {false, true}) {
    auto device_memory = device::DeviceBuffer::allocate(kInFlight * kPiece);
    ASSERT_TRUE(device_memory.ok()) << device_memory.status().message();
    CuFileBuffer buffer;
    if (registered) {
      auto made = CuFileBuffer::make({device_memory->data(), device_memory->bytes()});
      if (!made.ok()) {
        std::printf("not registered: %s\n", made.status().message().c_str());
        break;
      }
      buffer = std::move(*made);
    }
    for (const int threads : {1, 4, 8, 16}) {
      for (const std::uint64_t request : {kMiB, 4 * kMiB, 16 * kMiB}) {
        auto backend = open_cufile({path_}, {.threads = threads, .request_bytes = request});
        if (!backend.ok()) GTEST_SKIP() << backend.status().message();
        std::printf("cuFile, %2d threads of %2d MiB%-7s %6.2f GB/s\n", threads, static_cast<int>(request / kMiB),
                    registered ? ", reg." : "", rate(**backend, device_memory->data()));
      }
    }
  }
  host_rate();
}

}  // namespace
}  // namespace millrace::storage
