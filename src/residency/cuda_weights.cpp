#include "residency/cuda_weights.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"

namespace millrace::residency {
namespace {

constexpr std::uint64_t kPartAlignment = 256;
constexpr std::uint64_t kBehindPart = 256;  // readable bytes, for kernels' wide loads
constexpr std::uint64_t kChunk = 8u << 20;
constexpr std::uint64_t kSlotBytes = kChunk + 2 * storage::kMaxAlignment;
constexpr std::size_t kSlots = 12;
constexpr std::size_t kReadsAhead = 8;  // the other slots are being copied

std::uint64_t part_room(const Part& part) { return round_up(part.bytes() + kBehindPart, kPartAlignment); }

std::size_t count_parts(const UnitTable& units) {
  std::size_t parts = 0;
  for (const Unit& unit : units.units()) parts += unit.parts.size();
  return parts;
}

struct Chunk {
  int file;
  std::uint64_t offset, bytes;
  std::byte* destination;  // on the device
};

/// The ring: reads run kReadsAhead chunks ahead of the copies.
class Loader {
 public:
  Loader(storage::Backend& backend, std::vector<Chunk> chunks) : backend_(backend), chunks_(std::move(chunks)) {}
  ~Loader() {
    // Reads under way still write into the ring.
    for (std::size_t i = landed_; i < started_; ++i) (void)completions_[i % kSlots].wait();
  }

  Status run(std::uint64_t total, const std::function<bool(std::uint64_t, std::uint64_t)>& progress) {
    MR_ASSIGN_OR_RETURN(ring_, device::PinnedBuffer::allocate(kSlots * kSlotBytes));
    MR_ASSIGN_OR_RETURN(stream_, device::Stream::create());
    for (device::Event& event : copied_) {
      MR_ASSIGN_OR_RETURN(event, device::Event::create());
    }
    std::uint64_t done = 0;
    while (landed_ < chunks_.size()) {
      while (started_ < chunks_.size() && started_ < landed_ + kReadsAhead) MR_RETURN_IF_ERROR(start());
      done += chunks_[landed_].bytes;
      MR_RETURN_IF_ERROR(land());
      if (progress && !progress(done, total)) return error(Code::cancelled, "stopped while the weights were loading");
    }
    return stream_.synchronise();
  }

 private:
  std::byte* slot(std::size_t index) const {
    const Chunk& chunk = chunks_[index];
    return ring_.data() + (index % kSlots) * kSlotBytes + chunk.offset % storage::kMaxAlignment;
  }

  Status start() {
    const std::size_t at = started_ % kSlots;
    if (started_ >= kSlots) MR_CUDA(cudaEventSynchronize(copied_[at].get()));
    const Chunk& chunk = chunks_[started_];
    const storage::Read read{chunk.file, chunk.offset, chunk.bytes, slot(started_)};
    ++started_;
    backend_.submit({&read, 1}, completions_[at]);
    return {};
  }

  Status land() {
    const std::size_t index = landed_++;
    MR_RETURN_IF_ERROR(completions_[index % kSlots].wait());
    MR_RETURN_IF_ERROR(device::copy_to_device(chunks_[index].destination, slot(index), chunks_[index].bytes, stream_));
    MR_CUDA(cudaEventRecord(copied_[index % kSlots].get(), stream_.get()));
    return {};
  }

  storage::Backend& backend_;
  const std::vector<Chunk> chunks_;
  device::PinnedBuffer ring_;
  device::Stream stream_;
  std::array<device::Event, kSlots> copied_;
  std::array<storage::Completion, kSlots> completions_;
  std::size_t started_ = 0, landed_ = 0;
};

}  // namespace

std::uint64_t DeviceWeights::device_bytes(const UnitTable& units) {
  std::uint64_t bytes = round_up(count_parts(units) * sizeof(std::byte*), kPartAlignment);
  for (const Unit& unit : units.units())
    for (const Part& part : unit.parts) bytes += part_room(part);
  return bytes;
}

std::uint64_t DeviceWeights::staging_bytes() { return kSlots * kSlotBytes; }

Expected<std::unique_ptr<DeviceWeights>> DeviceWeights::load(
    const UnitTable& units, storage::Backend& backend, Budget& vram,
    const std::function<bool(std::uint64_t, std::uint64_t)>& progress) {
  std::unique_ptr<DeviceWeights> weights(new DeviceWeights);
  const std::uint64_t bytes = device_bytes(units);
  MR_ASSIGN_OR_RETURN(weights->reservation_, vram.reserve("weights", bytes));
  MR_ASSIGN_OR_RETURN(weights->arena_, device::DeviceBuffer::allocate(bytes));

  std::byte* next = weights->arena_.data();
  weights->table_ = reinterpret_cast<const std::byte* const*>(next);
  next += round_up(count_parts(units) * sizeof(std::byte*), kPartAlignment);
  std::vector<const std::byte*> addresses;
  std::vector<Chunk> chunks;
  for (const Unit& unit : units.units()) {
    weights->first_part_.push_back(addresses.size());
    for (const Part& part : unit.parts) {
      addresses.push_back(next);
      for (std::uint64_t at = 0; at < part.bytes(); at += kChunk)
        chunks.push_back({part.file, part.offset + at, std::min(kChunk, part.bytes() - at), next + at});
      next += part_room(part);
    }
  }
  MR_CUDA(cudaMemcpy(weights->arena_.data(), addresses.data(), addresses.size() * sizeof(std::byte*),
                     cudaMemcpyHostToDevice));
  MR_RETURN_IF_ERROR(Loader(backend, std::move(chunks)).run(units.total_bytes(), progress));
  MR_RETURN_IF_ERROR(backend.health());
  return weights;
}

}  // namespace millrace::residency
