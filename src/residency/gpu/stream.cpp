#include "residency/gpu/stream.h"

#include "base/log.h"

namespace millrace::residency {

Expected<std::unique_ptr<DeviceStream>> DeviceStream::create(std::vector<Group> groups, std::byte* ring,
                                                             std::uint64_t ring_bytes, const std::byte** table,
                                                             std::byte* disk_ring, storage::Backend& backend,
                                                             const RamFill* fill, std::unique_ptr<SpareUnits> spare) {
  std::unique_ptr<DeviceStream> stream(new DeviceStream(backend, disk_ring));
  stream->groups_ = std::move(groups);
  for (const Group& group : stream->groups_) stream->splits_ = stream->splits_ || group.split_bytes < group.bytes;
  stream->ring_ = ring;
  stream->ring_bytes_ = ring_bytes;
  stream->table_ = table;
  stream->fill_ = fill;
  stream->spare_ = std::move(spare);
  MR_ASSIGN_OR_RETURN(stream->from_ram_, device::Stream::create());
  MR_ASSIGN_OR_RETURN(stream->from_disk_, device::Stream::create());
  for (Flight& flight : stream->flights_) {
    MR_ASSIGN_OR_RETURN(flight.filled, device::Event::create());
    MR_ASSIGN_OR_RETURN(flight.used, device::Event::create());
    flight.read = std::make_unique<storage::Completion>();
  }
  for (device::Event& event : stream->emptied_) {
    MR_ASSIGN_OR_RETURN(event, device::Event::create());
  }

  std::size_t addresses = 0;
  for (const Group& group : stream->groups_) {
    stream->first_address_.push_back(addresses);
    addresses += group.pieces.size() * kGenerations;
  }
  MR_ASSIGN_OR_RETURN(stream->addresses_, device::PinnedBuffer::allocate(addresses * sizeof(std::byte*)));
  stream->list_chunks();
  while (stream->disk_copy_ < stream->groups_.size() && !stream->from_disk(stream->disk_copy_)) ++stream->disk_copy_;
  MR_RETURN_IF_ERROR(stream->read_ahead());
  return stream;
}

void DeviceStream::list_chunks() {
  chunks_.clear();
  first_chunk_.clear();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    first_chunk_.push_back(chunks_.size());
    if (!from_disk(g) || straight()) continue;
    for (const Piece& piece : group.pieces)
      for (std::uint64_t at = piece.file_offset, end = at + piece.bytes, next = 0; at < end; at = next) {
        next = chunk_end(at, end);
        chunks_.push_back({g, piece.file, at, next - at, piece.group_offset + (at - piece.file_offset),
                           next == end && &piece == &group.pieces.back()});
      }
  }
}

DeviceStream::~DeviceStream() {
  drain();
  (void)from_ram_.synchronise();
  (void)from_disk_.synchronise();
}

/// Waits for the reads under way: they write into one of the rings.
void DeviceStream::drain() {
  disk_.drain();
  for (Flight& flight : flights_) {
    if (flight.reading != 0) (void)flight.read->wait();
    flight.reading = 0;
  }
}

/// Keeps the disk busy: reads into every place of the ring that has been copied out.
Status DeviceStream::read_ahead() {
  if (chunks_.empty()) return {};
  while (disk_.under_way() < kChunks) {
    const std::size_t at = disk_.next_slot();
    if (disk_.started() >= kChunks) {
      MR_ASSIGN_OR_RETURN(const bool empty, device::is_reached(emptied_[at]));
      if (!empty) {
        // The last chunk landed a moment ago: there are enough reads under way to leave it for later.
        if (disk_.under_way() > 0) return {};
        MR_RETURN_IF_ERROR(device::wait(emptied_[at]));
      }
    }
    const Chunk& next = chunk(disk_.started());
    disk_.start({next.file, next.offset, next.bytes, nullptr});
  }
  return {};
}

/// Where the addresses of copy n's parts lie until they are copied into the table.
const std::byte** DeviceStream::addresses_of(std::uint64_t n) const {
  return reinterpret_cast<const std::byte**>(addresses_.data()) + first_address_[n % groups_.size()] +
         n / groups_.size() % kGenerations * group_of(n).pieces.size();
}

/// Finds room for copy n, behind the one before it or at the ring's beginning. False: launches to come still use it.
bool DeviceStream::place(std::uint64_t n) {
  const std::uint64_t bytes = room_of(n);
  // A part has one entry in the table: launches still to come must not need the one of the pass before, although the
  // ring has room for both copies where some units lie in spare memory.
  const std::uint64_t most = std::min<std::uint64_t>(groups_.size(), kFlights);
  for (; oldest_ + most <= n; ++oldest_)
    if (oldest_ >= held_) return false;
  std::uint64_t offset = ring_end_;
  while (bytes > 0) {
    std::uint64_t taken = oldest_;  // the first that takes room
    while (taken < placed_ && flight_of(taken).bytes == 0) ++taken;
    if (taken == placed_) {
      offset = 0;
      break;
    }
    const std::uint64_t begin = flight_of(taken).offset;  // of what is taken; it ends at ring_end_
    if (begin < ring_end_) {
      if (ring_end_ + bytes <= ring_bytes_) {
        offset = ring_end_;
        break;
      }
      if (bytes <= begin) {
        offset = 0;
        break;
      }
    } else if (ring_end_ + bytes <= begin) {
      offset = ring_end_;
      break;
    }
    if (oldest_ >= held_) return false;
    ++oldest_;
  }
  Flight& flight = flight_of(n);
  flight.offset = offset;
  flight.bytes = bytes;
  flight.behind = oldest_ == 0 ? kNone : oldest_ - 1;
  ring_end_ = offset + bytes;
  placed_ = n + 1;

  const std::byte** address = addresses_of(n);
  for (const Piece& piece : group_of(n).pieces) *address++ = place_of(n) + piece.group_offset;
  return true;
}

/// The place is this copy's from here on: what is put on `stream` waits until the launches before are over.
Status DeviceStream::begin_copy(std::uint64_t n, const device::Stream& stream) {
  const std::uint64_t behind = flight_of(n).behind;
  if (behind != kNone) MR_RETURN_IF_ERROR(device::wait_on_device(stream, flight_of(behind).used));
  const Group& group = group_of(n);
  return device::copy_to_device(reinterpret_cast<std::byte*>(table_ + group.first_entry), addresses_of(n),
                                group.pieces.size() * sizeof(std::byte*), stream);
}

Status DeviceStream::finish_copy(std::uint64_t n, const device::Stream& stream) {
  Flight& flight = flight_of(n);
  MR_RETURN_IF_ERROR(device::record(flight.filled, stream));
  flight.issued = n + 1;
  return {};
}

Status DeviceStream::copy_from_ram(std::uint64_t n) {
  MR_RETURN_IF_ERROR(begin_copy(n, from_ram_));
  for (const Piece& piece : group_of(n).pieces) {
    const std::uint64_t bytes = whole_ ? piece.bytes : piece.device_bytes;
    if (bytes == 0) continue;
    MR_RETURN_IF_ERROR(device::copy_to_device(place_of(n) + piece.group_offset, piece.host, bytes, from_ram_));
    copied_bytes_ += bytes;
  }
  return finish_copy(n, from_ram_);
}

/// Copies what has been read of group n, and all of it if `wait`. REQUIRES: groups on the disk before it are copied.
Status DeviceStream::copy_from_disk(std::uint64_t n, bool wait) {
  if (!disk_copy_begun_) MR_RETURN_IF_ERROR(begin_copy(n, from_disk_));
  disk_copy_begun_ = true;
  while (true) {
    MR_RETURN_IF_ERROR(read_ahead());
    if (!wait && !disk_.ready()) return {};
    const std::size_t at = disk_.oldest_slot();
    const Chunk& landing = chunk(disk_.taken());
    MR_ASSIGN_OR_RETURN(const std::byte* const from, disk_.take());
    MR_RETURN_IF_ERROR(device::copy_to_device(place_of(n) + landing.group_offset, from, landing.bytes, from_disk_));
    MR_RETURN_IF_ERROR(device::record(emptied_[at], from_disk_));
    copied_bytes_ += landing.bytes;
    disk_bytes_ += landing.bytes;
    if (!landing.last) continue;
    MR_RETURN_IF_ERROR(finish_copy(n, from_disk_));
    disk_copy_begun_ = false;
    do ++disk_copy_;
    while (!from_disk(disk_copy_));
    return read_ahead();
  }
}

/// Sends the reads of group n straight into its place, once nothing on the device uses what lies there; without `wait`
/// only if that is so now.
Status DeviceStream::start_read(std::uint64_t n, bool wait) {
  Flight& flight = flight_of(n);
  if (flight.behind != kNone) {
    device::Event& used = flight_of(flight.behind).used;
    if (wait) {
      MR_RETURN_IF_ERROR(device::wait(used));
    } else {
      MR_ASSIGN_OR_RETURN(const bool free, device::is_reached(used));
      if (!free) return {};
    }
  }
  reads_.clear();
  for (const Piece& piece : group_of(n).pieces)
    reads_.push_back({piece.file, piece.file_offset, piece.bytes, place_of(n) + piece.group_offset});
  flight.reading = n + 1;
  backend_.submit(reads_, *flight.read);
  return {};
}

/// As copy_from_disk, by a backend that reads to device memory; in any order.
Status DeviceStream::read_into_place(std::uint64_t n, bool wait) {
  Flight& flight = flight_of(n);
  if (flight.reading != n + 1) MR_RETURN_IF_ERROR(start_read(n, wait));
  if (flight.reading != n + 1 || (!wait && !flight.read->done())) return {};
  flight.reading = 0;
  MR_RETURN_IF_ERROR(flight.read->wait());
  MR_RETURN_IF_ERROR(begin_copy(n, from_disk_));  // the addresses
  for (const Piece& piece : group_of(n).pieces) disk_bytes_ += piece.bytes;
  return finish_copy(n, from_disk_);
}

/// Starts what the ring has room for, without waiting.
Status DeviceStream::copy_ahead() {
  for (std::uint64_t n = next_; n < placed_ || place(n); ++n) {
    if (issued(n)) continue;
    if (flight_of(n).bytes == 0) {
      flight_of(n).issued = n + 1;
    } else if (!from_disk(n)) {
      if (in_ram(n)) MR_RETURN_IF_ERROR(copy_from_ram(n));
    } else if (straight()) {
      MR_RETURN_IF_ERROR(read_into_place(n, false));
    } else if (n == disk_copy_) {
      MR_RETURN_IF_ERROR(copy_from_disk(n, false));
    }
  }
  return {};
}

/// Copies before n are not used by any later launch.
Status DeviceStream::release_before(std::uint64_t n, device::StreamRef compute) {
  for (; held_ < n; ++held_) MR_RETURN_IF_ERROR(device::record(flight_of(held_).used, compute));
  return {};
}

/// What is kept has changed: kernels find it from here on, and the ring begins anew without it.
Status DeviceStream::rebuild() {
  drain();
  MR_RETURN_IF_ERROR(from_ram_.synchronise());
  MR_RETURN_IF_ERROR(from_disk_.synchronise());
  list_chunks();
  std::vector<const std::byte*> entries;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::byte* const unit = kept(g);
    if (unit == nullptr) continue;
    entries.clear();
    for (const Piece& piece : groups_[g].pieces) entries.push_back(unit + groups_[g].unit_offset + piece.group_offset);
    MR_RETURN_IF_ERROR(
        device::write_device(table_ + groups_[g].first_entry, entries.data(), entries.size() * sizeof(std::byte*)));
  }
  log::info("{} of {} streamed layers are kept in VRAM that is free for now", spare_->kept_units(),
            spare_->candidates());
  broken_ = true;
  return {};
}

Status DeviceStream::begin_pass(bool whole) {
  if (splits_ && whole != whole_) broken_ = true;  // what was copied ahead is for passes of the other kind
  whole_ = whole;
  if (spare_ != nullptr && spare_->begin_pass()) MR_RETURN_IF_ERROR(rebuild());
  const std::uint64_t count = groups_.size();
  if (next_ % count != 0) broken_ = true;  // the pass before ended early
  pass_ = (next_ + count - 1) / count * count;
  return {};
}

/// After a pass that ended early: the ring begins anew at the present pass.
Status DeviceStream::restart() {
  drain();
  MR_RETURN_IF_ERROR(from_ram_.synchronise());
  MR_RETURN_IF_ERROR(from_disk_.synchronise());
  // Numbers only grow, so that nothing is taken for copied that is not; by more than there are flights, so that no
  // event of a copy before is waited for.
  pass_ += (kFlights / groups_.size() + 2) * groups_.size();
  oldest_ = held_ = next_ = placed_ = pass_;
  ring_end_ = 0;
  disk_copy_begun_ = false;
  broken_ = false;
  if (chunks_.empty()) return {};
  for (disk_copy_ = pass_; !from_disk(disk_copy_);) ++disk_copy_;
  chunk_base_ = first_chunk_[disk_copy_ % groups_.size()];
  disk_.renumber();
  return read_ahead();
}

Status DeviceStream::acquire_next(device::StreamRef compute) {
  const std::uint64_t n = next_;
  broken_ = true;  // unless all goes well
  MR_RETURN_IF_ERROR(copy_ahead());
  if (n >= placed_) return error(Code::internal, "the ring has no room for a group of {} bytes", group_of(n).bytes);
  if (!issued(n) && !from_disk(n)) return error(Code::internal, "group {} is used before it is in RAM", n);
  if (!issued(n)) MR_RETURN_IF_ERROR(straight() ? read_into_place(n, true) : copy_from_disk(n, true));
  if (flight_of(n).bytes > 0) {
    MR_RETURN_IF_ERROR(device::wait_on_device(compute, flight_of(n).filled));
    if (spare_ != nullptr)
      MR_RETURN_IF_ERROR(
          spare_->pass_by(n % groups_.size(), group_of(n).unit_offset, place_of(n), group_of(n).bytes, compute));
  }
  next_ = n + 1;
  broken_ = false;
  return {};
}

Status DeviceStream::acquire(std::size_t group, device::StreamRef compute) {
  if (broken_) MR_RETURN_IF_ERROR(restart());
  const std::uint64_t n = pass_ + group;
  if (n < held_) return error(Code::internal, "group {} is used again behind a later one", group);
  if (next_ <= n && next_ > held_ && group_of(next_ - 1).unit != groups_[group].unit)
    MR_RETURN_IF_ERROR(release_before(next_, compute));
  while (next_ <= n) MR_RETURN_IF_ERROR(acquire_next(compute));
  wanted_ = n;
  return {};
}

Status DeviceStream::let_go(device::StreamRef compute) { return release_before(std::min(wanted_, next_), compute); }

Status DeviceStream::end_pass(device::StreamRef compute) {
  MR_RETURN_IF_ERROR(release_before(next_, compute));
  broken_ = true;
  MR_RETURN_IF_ERROR(copy_ahead());
  broken_ = false;
  return {};
}

}  // namespace millrace::residency
