#include "residency/gpu/expert_slots.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"

namespace millrace::residency {
namespace {

constexpr std::uint64_t kLeastEdge = 16;  // of addresses that kernels read wide

}  // namespace

ExpertIndex::ExpertIndex(const UnitTable& units) : key_of_(units.units().size(), -1) {
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const Unit& unit = units.units()[u];
    if (unit.kind != UnitKind::expert) continue;
    if (unit.expert == 0) layers_.push_back({static_cast<std::int32_t>(u), 0});
    ++layers_.back().count;
    key_of_[u] = static_cast<std::int32_t>(unit_of_.size());
    unit_of_.push_back(static_cast<std::int32_t>(u));
    layer_of_.push_back(layers_.size() - 1);
    parts_ = std::max(parts_, unit.parts.size());
  }
}

ExpertSlots::ExpertSlots(const UnitTable& whole, const ExpertIndex& index, const ExpertTiers& tiers,
                         const ExpertGpu& gpu)
    : whole_(whole),
      index_(index),
      tiers_(tiers),
      gpu_(gpu),
      part_offset_(expert_part_offsets(gpu.units)),
      slot_bytes_(device_slot_bytes(gpu.units)),
      dirty_(index.layers().size(), true) {}

std::uint64_t ExpertSlots::table_bytes(const ExpertIndex& index, const ExpertTiers& tiers) {
  return 2 * index.addresses() * sizeof(std::byte*) + kExpertRooms * wave_table_bytes(tiers, index.parts());
}

ExpertSlots::~ExpertSlots() {
  const device::OnGpu on(gpu_.device);
  copies_.reset();
  await_copies();  // they still read what is leased
}

Expected<std::unique_ptr<ExpertSlots>> ExpertSlots::create(const UnitTable& whole, const ExpertIndex& index,
                                                           const ExpertTiers& tiers, const ExpertGpu& gpu) {
  const device::OnGpu on(gpu.device);
  std::unique_ptr<ExpertSlots> slots(new ExpertSlots(whole, index, tiers, gpu));
  MR_RETURN_IF_ERROR(slots->open());
  return slots;
}

Status ExpertSlots::open() {
  as_in_ram_ = &whole_ == &gpu_.units;
  for (const std::int32_t unit : index_.units()) {
    const auto range = whole_.tiles_of(unit);
    if (range.last - range.first != 1)
      return error(Code::internal, "unit {} is an expert of {} tiles", unit, range.last - range.first);
    const auto u = static_cast<std::size_t>(unit);
    if (u >= gpu_.units.units().size() || gpu_.units.units()[u].kind != UnitKind::expert ||
        gpu_.units.units()[u].parts.size() != whole_.units()[u].parts.size())
      return error(Code::internal, "unit {} is not the same expert on GPU {}", unit, gpu_.device);
    for (const Segment& segment : tile(unit).segments) as_in_ram_ = as_in_ram_ && segment.slot_offset % kLeastEdge == 0;
  }
  MR_ASSIGN_OR_RETURN(reservation_, gpu_.vram.reserve("experts", device_expert_bytes(gpu_.units, tiers_)));
  MR_RETURN_IF_ERROR(lay_out());
  if (tiers_.spare_slots == 0) return {};
  auto spare = SpareSlots::create(tiers_.spare_slots, slot_bytes_, gpu_.vram, tiers_.spare_margin);
  if (!spare.ok())
    log::info("experts have no slots in spare VRAM: {}", spare.status().message());
  else
    spare_ = std::move(*spare);
  return {};
}

Status ExpertSlots::lay_out() {
  const std::uint64_t bytes = device_expert_bytes(gpu_.units, tiers_),
                      room_table = wave_table_bytes(tiers_, index_.parts());
  MR_ASSIGN_OR_RETURN(arena_, device::DeviceBuffer::allocate(bytes));
  MR_RETURN_IF_ERROR(device::clear_device(arena_));
  const std::uint64_t all = index_.addresses() * sizeof(std::byte*);
  MR_ASSIGN_OR_RETURN(tables_, device::PinnedBuffer::allocate(table_bytes(index_, tiers_)));
  MR_ASSIGN_OR_RETURN(copy_, device::Stream::create());
  MR_ASSIGN_OR_RETURN(copies_, CopyQueue::create(copy_));
  slots_memory_ = arena_.data() + slot_bytes_;
  std::byte* at = slots_memory_ + static_cast<std::uint64_t>(tiers_.vram_slots) * slot_bytes_;
  in_ram_ = reinterpret_cast<const std::byte**>(tables_.data() + all);
  std::byte* host = tables_.data() + 2 * all;
  for (Room& room : rooms_) {
    room.memory = at;
    at += static_cast<std::uint64_t>(tiers_.wave_experts) * slot_bytes_;
    MR_ASSIGN_OR_RETURN(room.filled, device::Event::create());
    MR_ASSIGN_OR_RETURN(room.used, device::Event::create());
  }
  for (Room& room : rooms_) {
    room.device_table = reinterpret_cast<const std::byte**>(at);
    room.host_table = reinterpret_cast<const std::byte**>(host);
    at += room_table;
    host += room_table;
  }
  device_in_ram_ = reinterpret_cast<const std::byte**>(at);
  claimed_ = device_in_ram_ + index_.addresses();
  for (const std::int32_t unit : index_.units()) set(unit, nullptr);
  return {};
}

// --- Addresses ---

void ExpertSlots::write_addresses(std::int32_t unit, const std::byte* first, const std::byte** to) const {
  for (const Segment& segment : tile(unit).segments) to[segment.part] = first + offset_in_slot(segment);
}

void ExpertSlots::set(std::int32_t unit, const std::byte* first) {
  dirty_[index_.layer_of(unit)] = true;
  auto* const addresses = reinterpret_cast<const std::byte**>(tables_.data()) + index_.address_of(unit);
  for (std::size_t p = 0; p < index_.parts(); ++p) addresses[p] = absent() + part_offset_[p];
  if (first != nullptr) write_addresses(unit, first, addresses);
}

Status ExpertSlots::see_ram(std::byte* memory) {
  const device::OnGpu on(gpu_.device);
  MR_ASSIGN_OR_RETURN(device_ram_, device::seen_by_gpu(memory));
  ram_ = memory;
  return {};
}

bool ExpertSlots::find_in_ram(std::int32_t unit, const Lease& lease) {
  const std::vector<Segment>& segments = tile(unit).segments;
  const std::byte** const addresses = in_ram_ + index_.address_of(unit);
  in_ram_dirty_ = true;
  bool aligned = true;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const std::byte* const at = device_ram_ + (lease.segment(s) - ram_) + stretch(unit, segments[s]).first;
    aligned = aligned && reinterpret_cast<std::uintptr_t>(at) % kLeastEdge == 0;
    addresses[segments[s].part] = at;
  }
  return aligned;
}

void ExpertSlots::forget_in_ram(std::int32_t unit) {
  std::fill_n(in_ram_ + index_.address_of(unit), index_.parts(), nullptr);
}

Status ExpertSlots::publish(device::StreamRef compute) {
  const auto send = [compute](const void* to, const void* from, std::size_t bytes) {
    return device::copy_to_device(const_cast<void*>(to), from, bytes, compute);
  };
  if (std::exchange(in_ram_dirty_, false))
    MR_RETURN_IF_ERROR(send(device_in_ram_, in_ram_, index_.addresses() * sizeof(std::byte*)));
  for (std::size_t l = 0; l < dirty_.size(); ++l) {
    if (!dirty_[l]) continue;
    dirty_[l] = false;
    const ExpertIndex::Layer& layer = index_.layers()[l];
    MR_RETURN_IF_ERROR(send(gpu_.table.entry({layer.first_unit, 0}),
                            reinterpret_cast<const std::byte**>(tables_.data()) + index_.address_of(layer.first_unit),
                            static_cast<std::size_t>(layer.count) * index_.parts() * sizeof(std::byte*)));
  }
  return {};
}

// --- Copies ---

ExpertSlots::Stretch ExpertSlots::stretch(std::int32_t unit, const Segment& segment) const {
  if (&whole_ == &gpu_.units) return {0, segment.bytes};
  const WeightRef ref{unit, segment.part};
  const Part& own = gpu_.units.part(ref);
  return {own.offset - whole_.part(ref).offset, own.bytes()};
}

/// copy(to, from, bytes) for each stretch of the unit's bytes. With the few between segments where they lie as in RAM:
/// one long copy is a tenth faster than three.
template <typename Copy>
void ExpertSlots::for_each_stretch(const Lease& lease, std::int32_t unit, std::byte* to, Copy copy) {
  const std::vector<Segment>& segments = tile(unit).segments;
  copied_bytes_ += gpu_.units.units()[static_cast<std::size_t>(unit)].bytes();
  if (as_in_ram_) {
    std::uint64_t first = UINT64_MAX, end = 0;
    for (const Segment& segment : segments) {
      first = std::min(first, segment.slot_offset);
      end = std::max(end, segment.slot_offset + segment.bytes);
    }
    return copy(to + first, lease.segment(0) - segments[0].slot_offset + first, end - first);
  }
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Stretch own = stretch(unit, segments[s]);
    copy(to + offset_in_slot(segments[s]), lease.segment(s) + own.first, own.bytes);
  }
}

Status ExpertSlots::copy(const Lease& lease, std::int32_t unit, std::byte* to) {
  Status status;
  for_each_stretch(lease, unit, to, [&](std::byte* there, const std::byte* from, std::uint64_t bytes) {
    if (status.ok()) status = device::copy_to_device(there, from, bytes, copy_);
  });
  return status;
}

void ExpertSlots::order_copy(const Lease& lease, std::int32_t unit, std::byte* to) {
  for_each_stretch(lease, unit, to, [&](std::byte* there, const std::byte* from, std::uint64_t bytes) {
    copies_->copy(there, from, bytes);
  });
}

}  // namespace millrace::residency
