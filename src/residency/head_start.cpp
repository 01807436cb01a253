#include "residency/head_start.h"

#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "residency/chunk_ring.h"
#include "residency/placement.h"

namespace millrace::residency {

HeadStart::HeadStart(std::vector<storage::Read> reads, storage::Backend& backend)
    : backend_(backend), reads_(std::move(reads)) {}

Expected<std::unique_ptr<HeadStart>> HeadStart::begin(const UnitTable& units, storage::Backend& backend,
                                                      std::uint64_t most_bytes) {
  std::vector<storage::Read> reads;
  std::uint64_t bytes = 0;
  for (const Unit& unit : units.units()) {
    if (unit.aside) continue;
    for (const Part& part : unit.parts)
      each_chunk(part, kChunkBytes, [&](std::uint64_t at, std::uint64_t of_chunk) {
        if (bytes + of_chunk > most_bytes) return;
        reads.push_back({part.file, at, of_chunk, nullptr});
        bytes += of_chunk;
      });
  }
  std::unique_ptr<HeadStart> started(new HeadStart(std::move(reads), backend));
  MR_ASSIGN_OR_RETURN(started->ring_, device::HostBuffer::reserve(kChunkRingBytes, device::Pages::huge));
  MR_ASSIGN_OR_RETURN(started->memory_, device::HostBuffer::reserve(bytes, device::Pages::huge));
  std::byte* place = started->memory_.data();
  for (storage::Read& read : started->reads_) {
    read.destination = place;
    place += read.bytes;
  }
  MR_ASSIGN_OR_RETURN(started->thread_, os::Thread::start("millrace-ahead", [made = started.get()] { made->work(); }));
  return started;
}

void HeadStart::work() {
  ChunkRing ring(backend_, ring_.data(), kChunks);
  for (std::size_t next = 0, landed = 0; landed < reads_.size();) {
    for (; !ending_ && next < reads_.size() && ring.under_way() < kChunks; ++next) ring.start(reads_[next]);
    if (ring.under_way() == 0) return;
    const Expected<const std::byte*> bytes = ring.take();
    if (!bytes.ok()) return;
    std::memcpy(reads_[landed].destination, *bytes, reads_[landed].bytes);
    landed_.store(++landed, std::memory_order_release);
  }
}

std::uint64_t HeadStart::taken_bytes() const {
  const std::size_t landed = landed_.load(std::memory_order_acquire);
  if (landed == 0) return 0;
  const storage::Read& last = reads_[landed - 1];
  const auto bytes = static_cast<std::uint64_t>(last.destination + last.bytes - memory_.data());
  return ring_.bytes() + std::min<std::uint64_t>(round_up(bytes, device::kHugePageBytes), memory_.bytes());
}

void HeadStart::end() {
  ending_ = true;
  thread_ = os::Thread();
  if (!by_place_.empty()) return;
  for (std::size_t i = 0; i < landed_; ++i) by_place_.emplace(std::pair(reads_[i].file, reads_[i].offset), &reads_[i]);
  if (!by_place_.empty()) log::info("{} were read while the GPU's driver started", format_bytes(taken_bytes()));
}

const std::byte* HeadStart::find(const storage::Read& chunk) const {
  const auto found = by_place_.find({chunk.file, chunk.offset});
  return found != by_place_.end() && found->second->bytes == chunk.bytes ? found->second->destination : nullptr;
}

}  // namespace millrace::residency
