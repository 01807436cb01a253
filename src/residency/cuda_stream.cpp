#include "residency/cuda_stream.h"

namespace millrace::residency {

Expected<std::unique_ptr<DeviceStream>> DeviceStream::create(std::vector<Moving> moving, std::byte* slots, int count,
                                                             std::uint64_t slot_bytes, const std::byte** table,
                                                             std::byte* disk_ring, storage::Backend& backend) {
  std::unique_ptr<DeviceStream> stream(new DeviceStream(backend));
  stream->moving_ = std::move(moving);
  stream->table_ = table;
  stream->disk_ring_ = disk_ring;
  stream->slots_.resize(static_cast<std::size_t>(count));
  MR_ASSIGN_OR_RETURN(stream->from_ram_, device::Stream::create());
  MR_ASSIGN_OR_RETURN(stream->from_disk_, device::Stream::create());
  for (std::size_t s = 0; s < stream->slots_.size(); ++s) {
    Slot& slot = stream->slots_[s];
    slot.data = slots + s * slot_bytes;
    MR_ASSIGN_OR_RETURN(slot.filled, device::Event::create());
    MR_ASSIGN_OR_RETURN(slot.used, device::Event::create());
    slot.read = std::make_unique<storage::Completion>();
  }
  for (device::Event& event : stream->emptied_) {
    MR_ASSIGN_OR_RETURN(event, device::Event::create());
  }

  std::size_t addresses = 0;
  for (const Moving& unit : stream->moving_) {
    stream->first_address_.push_back(addresses);
    addresses += unit.pieces.size() * stream->slots_.size();
  }
  MR_ASSIGN_OR_RETURN(stream->addresses_, device::PinnedBuffer::allocate(addresses * sizeof(std::byte*)));
  auto* address = reinterpret_cast<const std::byte**>(stream->addresses_.data());
  for (std::size_t m = 0; m < stream->moving_.size(); ++m) {
    for (const Slot& slot : stream->slots_)
      for (const Piece& piece : stream->moving_[m].pieces) *address++ = slot.data + piece.slot_offset;
    stream->first_chunk_.push_back(stream->chunks_.size());
    if (!stream->moving_[m].on_disk || stream->straight()) continue;
    for (const Piece& piece : stream->moving_[m].pieces)
      for (std::uint64_t at = piece.file_offset, end = at + piece.bytes, next = 0; at < end; at = next) {
        next = chunk_end(at, end);
        stream->chunks_.push_back({m, piece.file, at, next - at, piece.slot_offset + (at - piece.file_offset),
                                   next == end && &piece == &stream->moving_[m].pieces.back()});
      }
  }
  while (stream->disk_copy_ < stream->moving_.size() && !stream->unit_of(stream->disk_copy_).on_disk)
    ++stream->disk_copy_;
  MR_RETURN_IF_ERROR(stream->read_ahead());
  return stream;
}

DeviceStream::~DeviceStream() {
  drain();
  (void)from_ram_.synchronise();
  (void)from_disk_.synchronise();
}

/// Waits for the reads under way: they write into the ring or the slots.
void DeviceStream::drain() {
  for (; land_next_ < read_next_; ++land_next_) (void)read_[land_next_ % kChunks].wait();
  for (Slot& slot : slots_) {
    if (slot.reading != 0) (void)slot.read->wait();
    slot.reading = 0;
  }
}

std::byte* DeviceStream::ring_slot(std::uint64_t chunk) const {
  const Chunk& of = chunks_[(chunk_base_ + chunk) % chunks_.size()];
  return disk_ring_ + chunk % kChunks * kChunkRoom + of.offset % storage::kMaxAlignment;
}

/// Keeps the disk busy: reads into every place of the ring that has been copied out.
Status DeviceStream::read_ahead() {
  if (chunks_.empty()) return {};
  for (; read_next_ < land_next_ + kChunks; ++read_next_) {
    const std::size_t at = read_next_ % kChunks;
    if (ever_emptied_[at]) {
      const cudaError_t code = cudaEventQuery(emptied_[at].get());
      if (code == cudaErrorNotReady) {
        // The last chunk landed a moment ago: there are enough reads under way to leave it for later.
        if (read_next_ > land_next_) return {};
        MR_CUDA(cudaEventSynchronize(emptied_[at].get()));
      } else {
        MR_CUDA(code);
      }
    }
    const Chunk& chunk = chunks_[(chunk_base_ + read_next_) % chunks_.size()];
    const storage::Read read{chunk.file, chunk.offset, chunk.bytes, ring_slot(read_next_)};
    backend_.submit({&read, 1}, read_[at]);
  }
  return {};
}

/// The slot is this copy's from here on: what is put on `stream` waits until the launches before are over.
Status DeviceStream::begin_copy(std::uint64_t n, const device::Stream& stream) {
  Slot& slot = slot_of(n);
  if (slot.ever_used) MR_CUDA(cudaStreamWaitEvent(stream.get(), slot.used.get(), 0));
  const std::size_t m = n % moving_.size();
  const std::uint64_t parts = moving_[m].pieces.size();
  const auto* addresses =
      reinterpret_cast<const std::byte* const*>(addresses_.data()) + first_address_[m] + n % slots_.size() * parts;
  return device::copy_to_device(reinterpret_cast<std::byte*>(table_ + moving_[m].first_entry), addresses,
                                parts * sizeof(std::byte*), stream);
}

Status DeviceStream::finish_copy(std::uint64_t n, const device::Stream& stream) {
  Slot& slot = slot_of(n);
  MR_CUDA(cudaEventRecord(slot.filled.get(), stream.get()));
  slot.issued = n + 1;
  return {};
}

Status DeviceStream::copy_from_ram(std::uint64_t n) {
  MR_RETURN_IF_ERROR(begin_copy(n, from_ram_));
  for (const Piece& piece : unit_of(n).pieces) {
    const std::uint64_t bytes = whole_ ? piece.bytes : piece.device_bytes;
    MR_RETURN_IF_ERROR(device::copy_to_device(slot_of(n).data + piece.slot_offset, piece.host, bytes, from_ram_));
    copied_bytes_ += bytes;
  }
  slot_of(n).whole = whole_;
  return finish_copy(n, from_ram_);
}

/// Copies the rows of unit n that a pass of the other kind had left out. REQUIRES: it was copied from RAM.
Status DeviceStream::complete(std::uint64_t n) {
  for (const Piece& piece : unit_of(n).pieces) {
    const std::uint64_t done = piece.device_bytes, rest = piece.bytes - done;
    if (rest == 0) continue;
    MR_RETURN_IF_ERROR(
        device::copy_to_device(slot_of(n).data + piece.slot_offset + done, piece.host + done, rest, from_ram_));
    copied_bytes_ += rest;
  }
  slot_of(n).whole = true;
  return finish_copy(n, from_ram_);
}

/// Copies what has been read of unit n, and all of it if `wait`. REQUIRES: units on the disk before it are copied.
Status DeviceStream::copy_from_disk(std::uint64_t n, bool wait) {
  if (!disk_copy_begun_) MR_RETURN_IF_ERROR(begin_copy(n, from_disk_));
  disk_copy_begun_ = true;
  while (true) {
    MR_RETURN_IF_ERROR(read_ahead());
    const std::size_t at = land_next_ % kChunks;
    if (!wait && !read_[at].done()) return {};
    const Chunk& chunk = chunks_[(chunk_base_ + land_next_) % chunks_.size()];
    const std::byte* from = ring_slot(land_next_);
    ++land_next_;
    MR_RETURN_IF_ERROR(read_[at].wait());
    MR_RETURN_IF_ERROR(device::copy_to_device(slot_of(n).data + chunk.slot_offset, from, chunk.bytes, from_disk_));
    MR_CUDA(cudaEventRecord(emptied_[at].get(), from_disk_.get()));
    ever_emptied_[at] = true;
    copied_bytes_ += chunk.bytes;
    disk_bytes_ += chunk.bytes;
    if (!chunk.last) continue;
    slot_of(n).whole = true;
    MR_RETURN_IF_ERROR(finish_copy(n, from_disk_));
    disk_copy_begun_ = false;
    do ++disk_copy_;
    while (!unit_of(disk_copy_).on_disk);
    return read_ahead();
  }
}

/// Sends the reads of unit n straight into its slot, once nothing on the device uses what lies there; without `wait`
/// only if that is so now.
Status DeviceStream::start_read(std::uint64_t n, bool wait) {
  Slot& slot = slot_of(n);
  if (slot.ever_used) {
    const cudaError_t code = wait ? cudaEventSynchronize(slot.used.get()) : cudaEventQuery(slot.used.get());
    if (code == cudaErrorNotReady) return {};
    MR_CUDA(code);
  }
  reads_.clear();
  for (const Piece& piece : unit_of(n).pieces)
    reads_.push_back({piece.file, piece.file_offset, piece.bytes, slot.data + piece.slot_offset});
  slot.reading = n + 1;
  backend_.submit(reads_, *slot.read);
  return {};
}

/// As copy_from_disk, by a backend that reads to device memory; in any order.
Status DeviceStream::read_into_slot(std::uint64_t n, bool wait) {
  Slot& slot = slot_of(n);
  if (slot.reading != n + 1) MR_RETURN_IF_ERROR(start_read(n, wait));
  if (slot.reading != n + 1 || (!wait && !slot.read->done())) return {};
  slot.reading = 0;
  MR_RETURN_IF_ERROR(slot.read->wait());
  MR_RETURN_IF_ERROR(begin_copy(n, from_disk_));  // the addresses
  for (const Piece& piece : unit_of(n).pieces) disk_bytes_ += piece.bytes;
  slot.whole = true;
  return finish_copy(n, from_disk_);
}

/// Starts what the ring has room for, without waiting: copy n may start once copy n - slots has been released.
Status DeviceStream::copy_ahead() {
  const std::uint64_t end = next_ + slots_.size();
  for (std::uint64_t n = next_; n < end; ++n) {
    if (issued(n)) continue;
    if (!unit_of(n).on_disk) {
      MR_RETURN_IF_ERROR(copy_from_ram(n));
    } else if (straight()) {
      MR_RETURN_IF_ERROR(read_into_slot(n, false));
    } else if (n == disk_copy_) {
      MR_RETURN_IF_ERROR(copy_from_disk(n, false));
    }
  }
  return {};
}

/// The unit acquired last is not used by any later launch.
Status DeviceStream::release(cudaStream_t compute) {
  if (!holding_) return {};
  holding_ = false;
  Slot& slot = slot_of(next_ - 1);
  slot.ever_used = true;
  MR_CUDA(cudaEventRecord(slot.used.get(), compute));
  return {};
}

/// After a pass that ended early: the ring begins anew at `unit`.
Status DeviceStream::restart(std::int32_t unit) {
  drain();
  MR_RETURN_IF_ERROR(from_ram_.synchronise());
  MR_RETURN_IF_ERROR(from_disk_.synchronise());
  const auto found = std::find_if(moving_.begin(), moving_.end(), [&](const Moving& m) { return m.unit == unit; });
  if (found == moving_.end()) return error(Code::internal, "unit {} does not move", unit);
  const auto index = static_cast<std::uint64_t>(found - moving_.begin());
  // Numbers only grow, so that no slot is taken for filled that is not.
  next_ = (next_ / moving_.size() + 2) * moving_.size() + index;
  holding_ = false;
  disk_copy_begun_ = false;
  if (chunks_.empty()) return {};
  for (disk_copy_ = next_; !unit_of(disk_copy_).on_disk;) ++disk_copy_;
  chunk_base_ = first_chunk_[disk_copy_ % moving_.size()];
  read_next_ = land_next_ = 0;
  return read_ahead();
}

Status DeviceStream::acquire(std::int32_t unit, cudaStream_t compute) {
  if (holding_ && unit_of(next_ - 1).unit == unit) return {};
  MR_RETURN_IF_ERROR(release(compute));
  if (broken_ || unit_of(next_).unit != unit) MR_RETURN_IF_ERROR(restart(unit));
  const std::uint64_t n = next_;
  broken_ = true;  // unless all goes well
  MR_RETURN_IF_ERROR(copy_ahead());
  if (!issued(n)) MR_RETURN_IF_ERROR(straight() ? read_into_slot(n, true) : copy_from_disk(n, true));
  if (whole_ && !slot_of(n).whole) MR_RETURN_IF_ERROR(complete(n));
  MR_CUDA(cudaStreamWaitEvent(compute, slot_of(n).filled.get(), 0));
  next_ = n + 1;
  holding_ = true;
  broken_ = false;
  return {};
}

Status DeviceStream::end_pass(cudaStream_t compute) {
  MR_RETURN_IF_ERROR(release(compute));
  broken_ = true;
  MR_RETURN_IF_ERROR(copy_ahead());
  broken_ = false;
  return {};
}

}  // namespace millrace::residency
