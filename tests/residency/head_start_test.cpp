// What is read before anybody can take it: the units' bytes in their order, as far as the room or the time goes.
#include "residency/head_start.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "residency/placement.h"
#include "residency/store_fixture.h"
#include "storage/fault_injection.h"

namespace millrace::residency {
namespace {

using test::make_units;
using test::WeightFile;

std::unique_ptr<storage::Backend> open(const WeightFile& file, std::string_view fault = {}) {
  storage::OpenOptions options;
  options.kind = storage::BackendKind::pread_buffered;
  auto opened = storage::open_backend({file.path()}, options);
  EXPECT_TRUE(opened.ok());
  if (fault.empty()) return std::move(*opened);
  return storage::inject_faults(std::move(*opened), {*storage::parse_fault(fault)});
}

/// Layers of two and a half chunks a matrix.
struct Model {
  std::uint64_t bytes = 0;
  UnitTable units = make_units({.layers = 3, .trunk_rows = 3400}, &bytes);
  WeightFile file{bytes};

  std::vector<storage::Read> chunks() const {
    std::vector<storage::Read> all;
    for (const Unit& unit : units.units())
      for (const Part& part : unit.parts)
        each_chunk(part, kChunkBytes, [&](std::uint64_t at, std::uint64_t of_chunk) {
          all.push_back({part.file, at, of_chunk, nullptr});
        });
    return all;
  }
};

/// Of the chunks, how many are there, all of them the first ones; and every byte is the file's.
std::size_t right_chunks(const HeadStart& started, const std::vector<storage::Read>& chunks) {
  std::size_t there = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::byte* const bytes = started.find(chunks[i]);
    if (bytes == nullptr) continue;
    EXPECT_EQ(there, i) << "one before it is not there";
    ++there;
    std::uint64_t wrong = 0;
    for (std::uint64_t b = 0; b < chunks[i].bytes; ++b)
      wrong += std::to_integer<std::uint8_t>(bytes[b]) != WeightFile::byte_at(chunks[i].offset + b);
    EXPECT_EQ(wrong, 0u) << i;
  }
  return there;
}

void wait_for(const storage::Backend& backend, std::uint64_t reads) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (backend.counters().reads < reads && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(HeadStart, ReadsAllThatThereIs) {
  const Model model;
  const auto backend = open(model.file);
  const auto started = std::move(HeadStart::begin(model.units, *backend, 1 << 30)).value();
  const std::vector<storage::Read> chunks = model.chunks();
  ASSERT_GT(chunks.size(), 2 * kChunks);
  wait_for(*backend, chunks.size());
  started->end();
  EXPECT_EQ(right_chunks(*started, chunks), chunks.size());
  EXPECT_LE(started->taken_bytes(), started->most_bytes());
  EXPECT_GE(started->taken_bytes(), model.units.total_bytes());
  EXPECT_EQ(started->find({0, chunks[0].offset + 32, chunks[0].bytes - 32, nullptr}), nullptr);
  EXPECT_EQ(started->find({0, chunks[0].offset, chunks[0].bytes - 32, nullptr}), nullptr);
  EXPECT_EQ(started->find({1, chunks[0].offset, chunks[0].bytes, nullptr}), nullptr);
}

TEST(HeadStart, TakesNoMoreThanItMay) {
  const Model model;
  const auto backend = open(model.file);
  constexpr std::uint64_t kMost = 3 << 20;
  const auto started = std::move(HeadStart::begin(model.units, *backend, kMost)).value();
  EXPECT_LE(started->most_bytes(), kMost + kChunkRingBytes + 2 * device::kHugePageBytes);
  const std::vector<storage::Read> chunks = model.chunks();
  std::size_t fit = 0;
  for (std::uint64_t bytes = 0; bytes + chunks[fit].bytes <= kMost; ++fit) bytes += chunks[fit].bytes;
  wait_for(*backend, fit);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  started->end();
  EXPECT_EQ(right_chunks(*started, {chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(fit)}), fit);
}

TEST(HeadStart, EndsAtAnyTime) {
  const Model model;
  const auto backend = open(model.file);
  for (int i = 0; i < 20; ++i) {
    const auto started = std::move(HeadStart::begin(model.units, *backend, 1 << 30)).value();
    std::this_thread::sleep_for(std::chrono::microseconds(i * 100));
    started->end();
    started->end();
    (void)right_chunks(*started, model.chunks());
  }
}

/// What a failed read was to bring, and what comes behind it, is left to whoever loads.
TEST(HeadStart, LeavesWhatFailsToOthers) {
  const Model model;
  const auto backend = open(model.file, "eio@5x1000");
  const auto started = std::move(HeadStart::begin(model.units, *backend, 1 << 30)).value();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  started->end();
  EXPECT_EQ(right_chunks(*started, model.chunks()), 5u);
}

}  // namespace
}  // namespace millrace::residency
