#include "residency/gpu/weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "residency/chunk_ring.h"
#include "residency/gpu/stream.h"

namespace millrace::residency {
namespace {

constexpr std::uint64_t kStraightChunk = 32u << 20;   // cuFile cuts by itself
constexpr std::chrono::milliseconds kTellAfter{100};  // how often a pass that waits says how far RAM is

/// Tells what has been read of all there is to read; false cancels.
class Progress {
 public:
  Progress(std::uint64_t total, const std::function<bool(std::uint64_t, std::uint64_t)>& tell)
      : total_(total), tell_(tell) {}
  Status add(std::uint64_t bytes) {
    done_ += bytes;
    if (tell_ && !tell_(done_, total_)) return error(Code::cancelled, "stopped while the weights were loading");
    return {};
  }

 private:
  const std::uint64_t total_;
  const std::function<bool(std::uint64_t, std::uint64_t)>& tell_;
  std::uint64_t done_ = 0;
};

/// Reads to where the backend reads.
Status read_straight(storage::Backend& backend, const std::vector<storage::Read>& reads, Progress& progress) {
  return read_in_order(backend, reads, [&](std::size_t index) { return progress.add(reads[index].bytes); });
}

/// Copies what of the chunks has come before, one at a time, and leaves the others.
class CopiesAhead {
 public:
  /// `ahead` may be null, and is told to end.
  CopiesAhead(HeadStart* ahead, std::vector<storage::Read>& chunks, const device::Stream& stream, Progress& progress)
      : stream_(stream), progress_(progress) {
    if (ahead == nullptr) return;
    ahead->end();
    const auto has_come = [&](const storage::Read& chunk) {
      const std::byte* const bytes = ahead->find(chunk);
      if (bytes != nullptr) copies_.push_back({chunk, bytes});
      return bytes != nullptr;
    };
    std::erase_if(chunks, has_come);
  }
  bool left() const { return next_ < copies_.size(); }
  /// REQUIRES: left().
  Status copy_one() {
    const auto& [chunk, bytes] = copies_[next_++];
    MR_RETURN_IF_ERROR(device::copy_to_device(chunk.destination, bytes, chunk.bytes, stream_));
    return progress_.add(chunk.bytes);
  }

 private:
  const device::Stream& stream_;
  Progress& progress_;
  std::vector<std::pair<storage::Read, const std::byte*>> copies_;
  std::size_t next_ = 0;
};

/// Reads chunks and copies them to the device: kChunks of them ahead of the copies. What has come before is copied
/// while the disk is waited for.
Status read_to_device(storage::Backend& backend, std::vector<storage::Read> chunks, HeadStart* head_start,
                      Progress& progress) {
  MR_ASSIGN_OR_RETURN(const device::PinnedBuffer memory, device::PinnedBuffer::allocate(kLoadingBytes));
  MR_ASSIGN_OR_RETURN(const device::Stream stream, device::Stream::create());
  CopiesAhead ahead(head_start, chunks, stream, progress);
  std::array<device::Event, kLoadingChunks> copied;
  for (device::Event& event : copied) {
    MR_ASSIGN_OR_RETURN(event, device::Event::create());
  }
  ChunkRing ring(backend, memory.data(), kLoadingChunks);
  for (const storage::Read& chunk : chunks) {
    while (ring.started() < chunks.size() && ring.under_way() < kChunks) {
      if (ring.started() >= kLoadingChunks) MR_RETURN_IF_ERROR(device::wait(copied[ring.next_slot()]));
      ring.start(chunks[ring.started()]);
    }
    while (ahead.left() && !ring.ready()) MR_RETURN_IF_ERROR(ahead.copy_one());
    const std::size_t slot = ring.oldest_slot();
    MR_ASSIGN_OR_RETURN(const std::byte* const bytes, ring.take());
    MR_RETURN_IF_ERROR(device::copy_to_device(chunk.destination, bytes, chunk.bytes, stream));
    MR_RETURN_IF_ERROR(device::record(copied[slot], stream));
    MR_RETURN_IF_ERROR(progress.add(chunk.bytes));
  }
  while (ahead.left()) MR_RETURN_IF_ERROR(ahead.copy_one());
  return stream.synchronise();
}

// The thread that fills RAM takes no more than loading has just given back.
static_assert(kChunkRingBytes <= kLoadingBytes);

}  // namespace

DeviceWeights::~DeviceWeights() {
  if (asks_ != nullptr) asks_->set_reclaimer(GivesWay::copies, nullptr);
}

Status DeviceWeights::begin_pass(bool split, std::function<bool()> cancelled) {
  cancelled_ = std::move(cancelled);
  return stream_ == nullptr ? Status() : stream_->begin_pass(!split);
}

void DeviceWeights::pass_launched() {
  cancelled_ = nullptr;
  if (fill_ == nullptr || told_all_) return;
  if (fill_->complete()) {
    told_all_ = tells_ = true;
    if (on_load_.progress) (void)on_load_.progress(total_bytes_, total_bytes_);
  }
  if (std::exchange(tells_, false) && on_load_.end) on_load_.end();
}

/// While a pass waits for a group on its way to RAM.
Status DeviceWeights::wait_a_moment() {
  if (cancelled_ && cancelled_()) return error(Code::cancelled, "stopped");
  const auto now = std::chrono::steady_clock::now();
  if (!on_load_.progress || now - told_at_ < kTellAfter) return {};
  told_at_ = now;
  tells_ = true;
  if (on_load_.progress(total_bytes_ - fill_->total_bytes() + fill_->read_bytes(), total_bytes_)) return {};
  return error(Code::cancelled, "stopped while the weights were loading");
}

std::uint64_t DeviceWeights::give_way(std::uint64_t bytes) {
  return stream_ == nullptr || stream_->spare() == nullptr ? 0 : stream_->spare()->give_way(bytes);
}

Status DeviceWeights::acquire(WeightRef ref, device::StreamRef compute) {
  if (stream_ == nullptr || group_of_[table_.index(ref)] < 0) return {};
  const auto group = static_cast<std::size_t>(group_of_[table_.index(ref)]);
  if (fill_ != nullptr && !fill_->has(group))
    MR_RETURN_IF_ERROR(fill_->wait(group, [this] { return wait_a_moment(); }));
  return stream_->acquire(group, compute);
}

Status DeviceWeights::let_go(device::StreamRef compute) {
  return stream_ == nullptr ? Status() : stream_->let_go(compute);
}

Status DeviceWeights::end_pass(device::StreamRef compute) {
  return stream_ == nullptr ? Status() : stream_->end_pass(compute);
}

void DeviceWeights::add_to(StoreCounters& counters) const {
  if (stream_ == nullptr) return;
  counters.bytes_to_device += stream_->copied_bytes();
  counters.bytes_from_disk += stream_->disk_bytes();
}

namespace {

/// Gives every part its place, in page-locked memory and in the arena, and lists what is to be read.
class Layout {
 public:
  Layout(const UnitTable& units, const DevicePlacement& placement, std::byte* arena, std::byte* host)
      : units_(units), placement_(placement), device_(arena), host_(host) {}

  /// Errors: io_error (page-locked memory that the device does not see).
  Status place_all() {
    for (std::size_t u = 0; u < units_.units().size(); ++u) {
      const Unit& unit = units_.units()[u];
      const bool moving = placement_.moves(units_, u);
      const std::vector<MovingCut> cuts = moving ? cut_for_moving(unit) : std::vector<MovingCut>();
      auto cut = cuts.begin();
      std::uint64_t in_unit = 0;
      for (std::size_t p = 0; p < unit.parts.size(); ++p) {
        if (cut != cuts.end() && cut->first_part == p) {
          groups.push_back(
              {static_cast<std::int32_t>(u), placement_.homes[u] == Tier::disk, addresses.size(), 0, 0, in_unit, {}});
          fill_ends.push_back(to_fill.size());
          ++cut;
        }
        in_unit += device_room(unit.parts[p]);
        group_of.push_back(moving ? static_cast<std::int32_t>(groups.size()) - 1 : -1);
        const WeightRef ref{static_cast<std::int32_t>(u), static_cast<std::int32_t>(p)};
        MR_RETURN_IF_ERROR(place(ref, placement_.homes[u], moving));
        if (moving) fill_ends.back() = to_fill.size();
      }
    }
    return {};
  }

  std::vector<const std::byte*> addresses;
  std::vector<std::int64_t> own_rows;  // of the device, by part
  std::vector<const std::byte*> in_ram;
  std::vector<storage::Read> to_device, to_host;  // what passes read where it lies
  std::vector<storage::Read> to_fill;             // what moves, from RAM
  std::vector<std::size_t> fill_ends;             // by group: of to_fill
  std::vector<DeviceStream::Group> groups;
  std::vector<std::int32_t> group_of;  // by part
  std::uint64_t bytes_to_read = 0;
  std::byte* next_host() const { return host_; }
  std::byte* next_device() const { return device_; }

 private:
  Status place(WeightRef ref, Tier home, bool moving) {
    const Part& part = units_.part(ref);
    std::byte* host = nullptr;
    const bool shared = moving && home == Tier::ram;
    own_rows.push_back(shared ? device_rows(part.rows, placement_.host_permille) : part.rows);
    in_ram.push_back(nullptr);
    if (placement_.flows(units_, static_cast<std::size_t>(ref.unit))) {
      addresses.push_back(nullptr);
      return {};
    }
    if (home != Tier::disk) bytes_to_read += part.bytes();
    if (home == Tier::vram) {
      addresses.push_back(device_);
      const std::uint64_t chunk = placement_.straight ? kStraightChunk : kChunkBytes;
      each_chunk(part, chunk, [&](std::uint64_t at, std::uint64_t bytes) {
        to_device.push_back({part.file, at, bytes, device_ + (at - part.offset)});
      });
      device_ += device_room(part);
      return {};
    }
    if (home == Tier::ram) {
      host = host_ + pinned_lead(part);
      each_chunk(part, kChunkBytes, [&](std::uint64_t at, std::uint64_t bytes) {  // whole blocks: neighbours share none
        (moving ? to_fill : to_host).push_back({part.file, at, bytes, host + (at - part.offset)});
      });
      host_ += pinned_room(part);
      in_ram.back() = host;
    }
    if (moving) {
      addresses.push_back(nullptr);  // written by each copy
      const auto device_bytes =
          static_cast<std::uint64_t>(own_rows.back() * millrace::row_bytes(part.dtype, part.cols));
      DeviceStream::Group& group = groups.back();
      group.pieces.push_back({host, part.file, part.offset, part.bytes(), device_bytes, group.bytes});
      if (device_bytes > 0) group.split_bytes = group.bytes + round_up(device_bytes + kBehindWeight, kDeviceEdge);
      group.bytes += device_room(part);
      return {};
    }
    MR_ASSIGN_OR_RETURN(const std::byte* const seen, device::seen_by_gpu(host));
    addresses.push_back(seen);
    return {};
  }

  const UnitTable& units_;
  const DevicePlacement& placement_;
  std::byte *device_, *host_;
};

/// Units at home in RAM whose rows the processor shares are none: it would go on computing its rows all the same.
std::unique_ptr<SpareUnits> spare_units(const std::vector<DeviceStream::Group>& groups, bool splits,
                                        const DevicePlacement& placement, Budget& vram) {
  std::vector<SpareUnits::Candidate> candidates;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].on_disk && splits) continue;
    if (groups[g].unit_offset == 0) candidates.push_back({g, 0, 0, groups[g].on_disk});
    ++candidates.back().groups;
    candidates.back().bytes += groups[g].bytes;
  }
  if (!placement.use_spare || candidates.empty()) return nullptr;
  return std::make_unique<SpareUnits>(std::move(candidates), vram, placement.spare_margin);
}

}  // namespace

Expected<std::unique_ptr<DeviceWeights>> DeviceWeights::load(const UnitTable& units, const DevicePlacement& placement,
                                                             storage::Backend& backend, storage::Backend* straight,
                                                             Budget& vram, Budget& ram, const OnLoad& on_load,
                                                             std::unique_ptr<HeadStart> head_start) {
  std::unique_ptr<DeviceWeights> weights(new DeviceWeights);
  const std::uint64_t bytes = device_weight_bytes(units, placement), host = pinned_weight_bytes(units, placement);
  MR_ASSIGN_OR_RETURN(weights->reservation_, vram.reserve("weights", bytes));
  MR_ASSIGN_OR_RETURN(weights->host_reservation_, ram.reserve("page-locked weights", host));
  Expected<Reservation> begun = Reservation();
  if (head_start != nullptr) begun = ram.reserve("head start", head_start->most_bytes());
  if (!begun.ok()) head_start = nullptr;
  MR_ASSIGN_OR_RETURN(weights->arena_, device::DeviceBuffer::allocate(bytes));
  // Wide loads read what lies behind a weight, and make nothing of it; but it shall be something.
  MR_RETURN_IF_ERROR(device::clear_device(weights->arena_));
  if (host > 0) {
    MR_ASSIGN_OR_RETURN(weights->host_, device::PinnedBuffer::allocate(host));
  }
  weights->table_ = AddressTable(units, weights->arena_.data());
  Layout layout(units, placement, weights->arena_.data() + table_bytes(units), weights->host_.data());
  MR_RETURN_IF_ERROR(layout.place_all());
  weights->device_rows_ = std::move(layout.own_rows);
  weights->in_ram_ = std::move(layout.in_ram);
  MR_RETURN_IF_ERROR(weights->table_.begin(std::move(layout.addresses)));
  Progress told(layout.bytes_to_read, on_load.progress);
  {
    MR_ASSIGN_OR_RETURN(const Reservation staging, ram.reserve("staging", kLoadingBytes));
    MR_RETURN_IF_ERROR(placement.straight
                           ? read_straight(*straight, layout.to_device, told)
                           : read_to_device(backend, std::move(layout.to_device), head_start.get(), told));
  }
  head_start = nullptr;
  begun = Reservation();
  MR_RETURN_IF_ERROR(read_straight(backend, layout.to_host, told));
  MR_RETURN_IF_ERROR(backend.health());
  if (layout.groups.empty()) return weights;
  if (!layout.to_fill.empty()) {
    weights->total_bytes_ = layout.bytes_to_read;
    weights->on_load_ = on_load;
    MR_ASSIGN_OR_RETURN(weights->fill_,
                        RamFill::start(std::move(layout.to_fill), std::move(layout.fill_ends), backend, ram));
  }
  weights->group_of_ = std::move(layout.group_of);
  for (const DeviceStream::Group& group : layout.groups)
    for (const DeviceStream::Piece& piece : group.pieces)
      weights->splits_ = weights->splits_ || piece.device_bytes < piece.bytes;
  const std::uint64_t ring = ring_bytes(units, placement);
  if (placement.straight) {
    auto registered = storage::CuFileBuffer::make({layout.next_device(), static_cast<std::size_t>(ring)});
    if (registered.ok())
      weights->registered_ = std::move(*registered);
    else
      log::info("storage: {}; reads may go through a buffer of cuFile's", registered.status().message());
  }
  std::unique_ptr<SpareUnits> spare = spare_units(layout.groups, weights->splits_, placement, vram);
  MR_ASSIGN_OR_RETURN(weights->stream_, DeviceStream::create(std::move(layout.groups), layout.next_device(), ring,
                                                             weights->table_.entries(), layout.next_host(),
                                                             placement.straight ? *straight : backend,
                                                             weights->fill_.get(), std::move(spare)));
  if (weights->stream_->spare() != nullptr) {
    weights->asks_ = &vram;
    vram.set_reclaimer(GivesWay::copies,
                       [loaded = weights.get()](std::uint64_t wanted) { return loaded->give_way(wanted); });
  }
  return weights;
}

}  // namespace millrace::residency
