// The C API's reads into device memory, and its pool there, on a real GPU: every byte is the file's, memory is taken as
// slots are used and given back, and nothing comes to a slot that a launch still reads. Skipped where there is no GPU.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <millrace.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "device/gpu.h"

namespace millrace {
namespace {

constexpr std::uint32_t kPieces = 24;
constexpr std::uint64_t kPieceBytes = 900'001;  // odd, so that none lies on a block

std::vector<unsigned char> pattern() {
  std::vector<unsigned char> bytes(kPieces * kPieceBytes + 777);
  std::uint32_t state = 12345;
  for (unsigned char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return bytes;
}

class DevicePool : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto gpus = device::gpus(); !gpus.ok()) GTEST_SKIP() << gpus.status().message();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    path_ = std::string(MILLRACE_BINARY_DIR) + "/device_pool." + std::to_string(getpid());
    std::FILE* file = std::fopen(path_.c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(std::fwrite(expected_.data(), 1, expected_.size(), file), expected_.size());
    ASSERT_EQ(std::fclose(file), 0);
  }
  void TearDown() override {
    millrace_pool_close(pool_);
    millrace_loader_close(loader_);
    unlink(path_.c_str());
  }

  void open_loader(const char* device_reads) {
    millrace_loader_options options;
    millrace_loader_options_init(&options);
    options.device_reads = device_reads;
    ASSERT_EQ(millrace_loader_open(path_.c_str(), &options, &loader_), MILLRACE_OK) << millrace_last_error();
  }
  void open_pool(std::uint64_t memory_bytes) {
    std::vector<millrace_piece> pieces;
    for (std::uint32_t i = 0; i < kPieces; ++i) pieces.push_back({77 + i * kPieceBytes, kPieceBytes - i});
    millrace_pool_options options;
    millrace_pool_options_init(&options);
    options.memory = "device";
    options.memory_bytes = memory_bytes;
    ASSERT_EQ(millrace_pool_open(loader_, pieces.data(), pieces.size(), &options, &pool_), MILLRACE_OK)
        << millrace_last_error();
  }
  millrace_pool_counters counters() {
    millrace_pool_counters out;
    millrace_pool_counters_init(&out);
    EXPECT_EQ(millrace_pool_read_counters(pool_, &out), MILLRACE_OK);
    return out;
  }
  ::testing::AssertionResult holds(const void* device, std::uint64_t offset, std::uint64_t bytes) {
    std::vector<unsigned char> found(bytes);
    if (cudaMemcpy(found.data(), device, bytes, cudaMemcpyDeviceToHost) != cudaSuccess)
      return ::testing::AssertionFailure() << "cannot be read";
    if (std::memcmp(found.data(), expected_.data() + offset, bytes) == 0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << bytes << " bytes at " << offset << " are not the file's";
  }
  ::testing::AssertionResult piece_holds(const void* device, std::uint32_t piece) {
    return holds(device, 77 + piece * kPieceBytes, kPieceBytes - piece);
  }

  const std::vector<unsigned char> expected_ = pattern();
  std::string path_;
  millrace_loader* loader_ = nullptr;
  millrace_pool* pool_ = nullptr;
};

TEST_F(DevicePool, LoaderReadsIntoDeviceMemoryEveryWay) {
  for (const char* way : {"ring", "auto", "cufile"}) {
    SCOPED_TRACE(way);
    open_loader(way);
    unsigned char* memory = nullptr;
    const std::uint64_t room = 4 * kMiB;
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), room), cudaSuccess);
    ASSERT_EQ(cudaMemset(memory, 0xc3, room), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::uint64_t offsets[] = {0, 1, 4095, 4096, 70001};
    const std::uint64_t bytes = 700'003;
    std::uint64_t reads[5];
    millrace_status planned = MILLRACE_OK;
    for (int i = 0; i < 5 && planned == MILLRACE_OK; ++i)
      planned = millrace_loader_enqueue_device(loader_, offsets[i], bytes, memory + 3 + i * (bytes + 5), &reads[i]);
    if (planned == MILLRACE_UNSUPPORTED && std::string(way) == "cufile") {
      std::printf("cuFile is not to be had here: %s\n", millrace_last_error());
    } else {
      ASSERT_EQ(planned, MILLRACE_OK) << millrace_last_error();
      EXPECT_STRNE(millrace_loader_device_backend(loader_), "");
      ASSERT_EQ(millrace_loader_submit(loader_), MILLRACE_OK);
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(millrace_loader_wait(loader_, reads[i]), MILLRACE_OK) << millrace_last_error();
        EXPECT_TRUE(holds(memory + 3 + i * (bytes + 5), offsets[i], bytes));
        unsigned char around[2];
        ASSERT_EQ(cudaMemcpy(around, memory + 2 + i * (bytes + 5), 1, cudaMemcpyDeviceToHost), cudaSuccess);
        ASSERT_EQ(cudaMemcpy(around + 1, memory + 3 + i * (bytes + 5) + bytes, 1, cudaMemcpyDeviceToHost), cudaSuccess);
        EXPECT_EQ(around[0], 0xc3);
        EXPECT_EQ(around[1], 0xc3);
      }
    }
    cudaFree(memory);
    millrace_loader_close(std::exchange(loader_, nullptr));
  }
}

TEST_F(DevicePool, PiecesComeAndGoAndAreTheFiles) {
  open_loader("ring");
  open_pool(8 * kMiB);
  const millrace_pool_counters fresh = counters();
  EXPECT_EQ(fresh.mapped_bytes, 0u);  // nothing is taken before it is used
  EXPECT_GE(fresh.slots, 8u);
  EXPECT_LT(fresh.slots, kPieces);
  const void* data = nullptr;
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < kPieces; i += 2) {
      const std::uint32_t next[2] = {(i * 7) % kPieces, (i * 7 + 1) % kPieces};
      ASSERT_EQ(millrace_pool_prefetch(pool_, next, 2), MILLRACE_OK);
      for (const std::uint32_t piece : next) {
        ASSERT_EQ(millrace_pool_acquire(pool_, piece, &data), MILLRACE_OK) << millrace_last_error();
        EXPECT_TRUE(piece_holds(data, piece)) << piece;
      }
      for (const std::uint32_t piece : next) ASSERT_EQ(millrace_pool_release(pool_, piece), MILLRACE_OK);
    }
  }
  const millrace_pool_counters used = counters();
  EXPECT_GT(used.evictions, 0u);
  EXPECT_GT(used.misses, kPieces);
  EXPECT_GT(used.mapped_bytes, 0u);
  EXPECT_LE(used.mapped_bytes, 8 * kMiB);
}

TEST_F(DevicePool, MemoryIsGivenBackAndComesAgain) {
  open_loader("ring");
  open_pool(16 * kMiB);
  std::size_t free_before = 0, free_mapped = 0, free_after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  ASSERT_EQ(millrace_pool_map(pool_, 16 * kMiB), MILLRACE_OK) << millrace_last_error();
  const std::uint64_t mapped = counters().mapped_bytes;
  ASSERT_EQ(cudaMemGetInfo(&free_mapped, &total), cudaSuccess);
  EXPECT_GE(mapped, 14 * kMiB);
  EXPECT_GE(free_before, free_mapped + mapped);
  const void *kept = nullptr, *data = nullptr;
  ASSERT_EQ(millrace_pool_acquire(pool_, 3, &kept), MILLRACE_OK);
  std::uint64_t unmapped = 0;
  ASSERT_EQ(millrace_pool_unmap(pool_, 8 * kMiB, &unmapped), MILLRACE_OK);
  EXPECT_GE(unmapped, 8 * kMiB);
  EXPECT_EQ(counters().mapped_bytes, mapped - unmapped);
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_GE(free_after, free_mapped + unmapped);
  EXPECT_TRUE(piece_holds(kept, 3));  // it has not moved
  const std::uint64_t fewer = counters().slots;
  ASSERT_EQ(millrace_pool_map(pool_, 0), MILLRACE_OK);
  EXPECT_GT(counters().slots, fewer);
  EXPECT_EQ(counters().mapped_bytes, mapped - unmapped);  // as it is used
  for (std::uint32_t piece = 0; piece < kPieces; ++piece) {
    ASSERT_EQ(millrace_pool_acquire(pool_, piece, &data), MILLRACE_OK);
    EXPECT_TRUE(piece_holds(data, piece));
    ASSERT_EQ(millrace_pool_release(pool_, piece), MILLRACE_OK);
  }
}

TEST_F(DevicePool, NothingComesToASlotThatIsStillRead) {
  open_loader("ring");
  open_pool(2 * kMiB);  // two slots
  ASSERT_EQ(counters().slots, 2u);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  unsigned char *busy = nullptr, *copies = nullptr;
  constexpr std::size_t kBusy = 256 * kMiB;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&busy), kBusy), cudaSuccess);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&copies), kPieces * kPieceBytes), cudaSuccess);
  // Behind some milliseconds of work, each piece is copied from its slot; its slot is wanted by the next but one.
  for (std::uint32_t piece = 0; piece < kPieces; ++piece) {
    const void* data = nullptr;
    ASSERT_EQ(millrace_pool_acquire(pool_, piece, &data), MILLRACE_OK) << millrace_last_error();
    for (int i = 0; i < 8; ++i) ASSERT_EQ(cudaMemsetAsync(busy, i, kBusy, stream), cudaSuccess);
    ASSERT_EQ(
        cudaMemcpyAsync(copies + piece * kPieceBytes, data, kPieceBytes - piece, cudaMemcpyDeviceToDevice, stream),
        cudaSuccess);
    ASSERT_EQ(millrace_pool_release_on(pool_, piece, stream), MILLRACE_OK) << millrace_last_error();
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (std::uint32_t piece = 0; piece < kPieces; ++piece)
    EXPECT_TRUE(piece_holds(copies + piece * kPieceBytes, piece)) << piece;
  cudaFree(busy);
  cudaFree(copies);
  cudaStreamDestroy(stream);
}

TEST_F(DevicePool, ATruncatedFileFailsThePieceAlone) {
  open_loader("ring");
  open_pool(8 * kMiB);
  const void* data = nullptr;
  ASSERT_EQ(millrace_pool_acquire(pool_, 0, &data), MILLRACE_OK);
  ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(5 * kPieceBytes)), 0);
  EXPECT_NE(millrace_pool_acquire(pool_, kPieces - 1, &data), MILLRACE_OK);
  EXPECT_STRNE(millrace_last_error(), "");
  ASSERT_EQ(millrace_pool_acquire(pool_, 1, &data), MILLRACE_OK) << millrace_last_error();
  EXPECT_TRUE(piece_holds(data, 1));
}

}  // namespace
}  // namespace millrace
