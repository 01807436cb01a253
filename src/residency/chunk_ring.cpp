#include "residency/chunk_ring.h"

namespace millrace::residency {

ChunkRing::ChunkRing(storage::Backend& backend, std::byte* memory, std::size_t slots)
    : backend_(backend),
      memory_(memory),
      slots_(slots),
      completions_(std::make_unique<storage::Completion[]>(slots)),
      data_(std::make_unique<std::byte*[]>(slots)) {}

void ChunkRing::start(const storage::Read& chunk) {
  MR_ASSERT(under_way() < slots_ && chunk.bytes <= kChunkBytes);
  const std::size_t slot = next_slot();
  data_[slot] = memory_ + slot * kChunkRoom + chunk.offset % storage::kMaxAlignment;
  const storage::Read read{chunk.file, chunk.offset, chunk.bytes, data_[slot]};
  ++started_;
  backend_.submit({&read, 1}, completions_[slot]);
}

Expected<const std::byte*> ChunkRing::take() {
  MR_ASSERT(under_way() > 0);
  const std::size_t slot = oldest_slot();
  ++taken_;
  MR_RETURN_IF_ERROR(completions_[slot].wait());
  return data_[slot];
}

void ChunkRing::drain() {
  for (; taken_ < started_; ++taken_) (void)completions_[oldest_slot()].wait();
}

}  // namespace millrace::residency
