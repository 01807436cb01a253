#include "residency/weight_memory.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace millrace::residency {

Expected<WeightMemory> WeightMemory::create(std::uint64_t bytes, device::Pages pages) {
  WeightMemory memory;
  MR_ASSIGN_OR_RETURN(memory.buffer_, device::HostBuffer::reserve(bytes, pages));
  memory.set_granules(pages == device::Pages::huge ? device::kHugePageBytes : device::kPageBytes);
  return memory;
}

WeightMemory WeightMemory::over(std::unique_ptr<device::Range> range) {
  WeightMemory memory;
  memory.range_ = std::move(range);
  memory.set_granules(memory.range_->granule_bytes());
  return memory;
}

void WeightMemory::set_granules(std::uint64_t granule) {
  granule_ = granule;
  users_.resize((bytes() + granule_ - 1) / granule_);
}

WeightMemory WeightMemory::at(std::byte* data) {
  WeightMemory memory;
  memory.fixed_ = data;
  return memory;
}

std::uint64_t WeightMemory::granule_bytes_at(std::size_t granule) const {
  return std::min<std::uint64_t>(granule_, bytes() - granule * granule_);
}

void WeightMemory::use(const Piece& piece) {
  if (piece.bytes == 0 || fixed()) return;
  const std::size_t last = (piece.offset + piece.bytes - 1) / granule_;
  for (std::size_t g = piece.offset / granule_; g <= last; ++g) {
    if (users_[g]++ == 0) used_ += granule_bytes_at(g);
  }
}

void WeightMemory::drop(const Piece& piece) {
  if (piece.bytes == 0 || fixed()) return;
  const std::size_t last = (piece.offset + piece.bytes - 1) / granule_;
  for (std::size_t g = piece.offset / granule_; g <= last; ++g) {
    MR_ASSERT(users_[g] > 0);
    if (--users_[g] > 0) continue;
    used_ -= granule_bytes_at(g);
    if (range_ != nullptr)
      range_->release(g * granule_, granule_);
    else
      buffer_.release(g * granule_, granule_bytes_at(g));
  }
}

bool WeightMemory::settle() {
  if (fixed()) return true;
  const std::uint64_t paid = reservation_.bytes();
  if (used_ > paid) return reservation_.try_grow(used_ - paid);
  return reservation_.resize(used_).ok();
}

Status WeightMemory::reserve(Budget& budget) {
  if (fixed()) return {};
  MR_ASSIGN_OR_RETURN(reservation_, budget.reserve("weights", used_));
  return {};
}

}  // namespace millrace::residency
