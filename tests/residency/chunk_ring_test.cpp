// The ring in front of a disk: chunks come in order wherever their reads end, lie as in the file modulo the block size,
// and a failed one is told once.
#include "residency/chunk_ring.h"

#include <gtest/gtest.h>

#include "residency/store_fixture.h"
#include "storage/fault_injection.h"

namespace millrace::residency {
namespace {

using test::WeightFile;

struct Ring {
  explicit Ring(const WeightFile& file, std::size_t slots = kChunks) : memory(slots * kChunkRoom + kChunkRoom) {
    storage::OpenOptions options;
    options.kind = storage::BackendKind::pread_buffered;
    backend = std::move(storage::open_backend({file.path()}, options)).value();
    auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    at = round_up(at, storage::kMaxAlignment);
    begin = reinterpret_cast<std::byte*>(at);
  }
  std::vector<std::byte> memory;
  std::byte* begin = nullptr;
  std::unique_ptr<storage::Backend> backend;
};

/// Chunks of the file from `offset` on, of odd sizes.
std::vector<storage::Read> chunks_of(const WeightFile& file, std::uint64_t offset) {
  std::vector<storage::Read> chunks;
  for (std::uint64_t at = offset, i = 0; at < file.bytes(); ++i) {
    const std::uint64_t bytes = std::min<std::uint64_t>({kChunkBytes, 1 + i * 77'777 % kChunkBytes, file.bytes() - at});
    chunks.push_back({0, at, bytes, nullptr});
    at += bytes;
  }
  return chunks;
}

TEST(ChunkRing, ChunksComeInOrderThroughItsPlaces) {
  const WeightFile file(9'000'001);
  for (const std::size_t slots : {std::size_t{1}, std::size_t{3}, kChunks}) {
    Ring work(file, slots);
    ChunkRing ring(*work.backend, work.begin, slots);
    const std::vector<storage::Read> chunks = chunks_of(file, 333);
    ASSERT_GT(chunks.size(), kChunks + 4);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      while (ring.started() < chunks.size() && ring.under_way() < slots) ring.start(chunks[ring.started()]);
      EXPECT_EQ(ring.taken(), i);
      const std::size_t slot = ring.oldest_slot();
      const auto bytes = ring.take();
      ASSERT_TRUE(bytes.ok()) << bytes.status().message();
      EXPECT_EQ(*bytes - work.begin - static_cast<std::ptrdiff_t>(slot * kChunkRoom),
                static_cast<std::ptrdiff_t>(chunks[i].offset % storage::kMaxAlignment));
      for (const std::uint64_t at : {std::uint64_t{0}, chunks[i].bytes / 2, chunks[i].bytes - 1})
        ASSERT_EQ((*bytes)[at], std::byte{WeightFile::byte_at(chunks[i].offset + at)}) << i << " " << at;
    }
    EXPECT_EQ(ring.under_way(), 0u);
  }
}

TEST(ChunkRing, AFailedReadIsToldOnceAndTheNextOnesCome) {
  const WeightFile file(6'000'000);
  Ring work(file);
  const auto backend = storage::inject_faults(std::move(work.backend), {{.after_reads = 2}});
  ChunkRing ring(*backend, work.begin, kChunks);
  const std::vector<storage::Read> chunks = chunks_of(file, 0);
  for (std::size_t i = 0; i < 6; ++i) ring.start(chunks[i]);
  int failed = 0;
  for (std::size_t i = 0; i < 6; ++i) failed += ring.take().ok() ? 0 : 1;
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(ring.under_way(), 0u);
}

TEST(ChunkRing, WhatIsUnderWayIsWaitedFor) {
  const WeightFile file(6'000'000);
  Ring work(file);
  const std::vector<storage::Read> chunks = chunks_of(file, 0);
  {
    ChunkRing ring(*work.backend, work.begin, kChunks);
    for (std::size_t i = 0; i < 5; ++i) ring.start(chunks[i]);
    ring.drain();
    EXPECT_EQ(ring.taken(), 5u);
    ring.renumber();
    EXPECT_EQ(ring.next_slot(), 0u);
    ring.start(chunks[7]);
  }  // destroyed with a read under way
  EXPECT_EQ(work.begin[chunks[7].offset % storage::kMaxAlignment], std::byte{WeightFile::byte_at(chunks[7].offset)});
}

}  // namespace
}  // namespace millrace::residency
