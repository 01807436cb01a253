#include "residency/weight_store.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "residency/store.h"

namespace millrace::residency {
namespace {

constexpr std::size_t kLoads = 192;  // the most reads of tiles in flight

}  // namespace

Lease::Lease(Lease&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), tile_(std::exchange(other.tile_, -1)) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    if (store_ != nullptr) store_->unpin(tile_);
    store_ = std::exchange(other.store_, nullptr);
    tile_ = std::exchange(other.tile_, -1);
  }
  return *this;
}

Lease::~Lease() {
  if (store_ != nullptr) store_->unpin(tile_);
}

Status Lease::wait() {
  if (store_ == nullptr) return error(Code::internal, "an empty lease cannot be waited for");
  return store_->wait(tile_);
}

bool Lease::ready() const { return store_ != nullptr && store_->ready(tile_); }

const std::byte* Lease::segment(std::size_t i) const { return store_->segment(tile_, i); }

Lease WeightStore::make_lease(std::int32_t tile) {
  Lease lease;
  lease.store_ = this;
  lease.tile_ = tile;
  return lease;
}

Expected<std::unique_ptr<WeightStore>> WeightStore::create(const UnitTable& units, const Plan& plan,
                                                           storage::Backend& backend, Budget& budget,
                                                           const StoreOptions& options) {
  auto store = std::make_unique<Store>(units, plan, backend, budget, options);
  MR_RETURN_IF_ERROR(store->open());
  if (!options.memory)
    budget.set_reclaimer(GivesWay::weights, [raw = store.get()](std::uint64_t bytes) { return raw->give_way(bytes); });
  return std::unique_ptr<WeightStore>(std::move(store));
}

Store::Store(const UnitTable& units, const Plan& plan, storage::Backend& backend, Budget& budget, StoreOptions options)
    : units_(units), plan_(plan), backend_(backend), budget_(budget), options_(std::move(options)), meter_(units) {}

Store::~Store() {
  (void)ahead_reads_.wait();
  if (!options_.memory) budget_.set_reclaimer(GivesWay::weights, nullptr);
}

std::uint64_t expert_slot_bytes(const UnitTable& units) {
  std::uint64_t bytes = 0;
  for (const Tile& tile : units.tiles())
    if (units.units()[static_cast<std::size_t>(tile.unit)].kind == UnitKind::expert)
      bytes = std::max(bytes, tile.slot_bytes);
  return bytes;
}

Plan expert_store_plan(const UnitTable& units, int slots) {
  Plan plan;
  plan.homes.assign(units.units().size(), Tier::disk);
  plan.resident_tiles.assign(units.tiles().size(), false);
  plan.expert_slots = slots;
  plan.expert_slot_bytes = expert_slot_bytes(units);
  return plan;
}

Status Store::open() {
  tiles_.resize(units_.tiles().size());
  MR_RETURN_IF_ERROR(check_plan());
  mapped_ = map_in_place();
  place_tiles();
  lay_out();
  const bool huge = plan_.weight_memory_bytes() >= kHugeWeightBytes;
  if (options_.memory) {
    MR_ASSIGN_OR_RETURN(std::byte* const memory, options_.memory(address_bytes_));
    memory_ = WeightMemory::at(memory);
  } else if (options_.range) {
    MR_ASSERT(!options_.poison_evicted && !options_.check);
    MR_ASSIGN_OR_RETURN(auto range, options_.range(address_bytes_));
    memory_ = WeightMemory::over(std::move(range));
  } else {
    MR_ASSIGN_OR_RETURN(memory_, WeightMemory::create(mapped_ ? 0 : address_bytes_,
                                                      huge ? device::Pages::huge : device::Pages::normal));
  }
  if (!mapped_) {
    for (const Piece& piece : {row_scratch_, ahead_scratch_, row_cache_memory_}) memory_.use(piece);
    for (const std::int32_t tile : home_order_) memory_.use(homes_[tile]);
    homes_live_ = home_order_.size();
    for (int i = 0; i < plan_.ring_slots; ++i) {
      memory_.use(ring_piece(i));
      ring_->set_live(i, true);
    }
    for (int i = 0; i < plan_.expert_slots; ++i) {
      memory_.use(expert_piece(i));
      experts_->set_live(i, true);
    }
    MR_RETURN_IF_ERROR(memory_.reserve(budget_));
  }
  set_up_counters();
  loader_ = std::make_unique<TileLoader>(units_, backend_, mapped_ ? 1 : kLoads, options_.poison_evicted);
  return {};
}

/// A plan for another table, or with slots that are too small, is our own bug; it must not cause an out-of-bounds
/// write.
Status Store::check_plan() const {
  const auto wrong = [](const char* what) {
    return error(Code::internal, "the plan does not fit the model: {}", what);
  };
  const auto& tiles = units_.tiles();
  if (plan_.resident_tiles.size() != tiles.size()) return wrong("it was made for other tiles");
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const Unit& unit = units_.units()[tiles[t].unit];
    if (plan_.resident_tiles[t] || unit.aside) continue;
    if (unit.kind == UnitKind::expert) {
      if (plan_.expert_slots < 1 || plan_.expert_slot_bytes < tiles[t].slot_bytes) return wrong("no slot for experts");
    } else if (options_.experts_only) {
      continue;
    } else if (!unit.by_rows) {
      if (plan_.ring_slots < kLeastRing || plan_.ring_slot_bytes < tiles[t].slot_bytes)
        return wrong("no ring for streamed tiles");
    }
  }
  return {};
}

bool Store::map_in_place() {
  if (units_.tiles().empty() || options_.memory || options_.range) return false;
  for (const Tile& tile : units_.tiles())
    for (const Span& span : tile.spans)
      if (backend_.in_place(span.file, span.file_offset, span.bytes) == nullptr) return false;
  return true;
}

void Store::place_tiles() {
  const auto& tiles = units_.tiles();
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const Unit& unit = units_.units()[tiles[t].unit];
    const bool expert = unit.kind == UnitKind::expert;
    has_experts_ = has_experts_ || expert;
    TileState& state = tiles_[t];
    state.place = mapped_                   ? Place::mapped
                  : plan_.resident_tiles[t] ? Place::resident
                  : unit.aside              ? Place::elsewhere
                  : expert                  ? Place::expert
                  : options_.experts_only   ? Place::elsewhere
                                            : Place::ring;
    if (mapped_) state.status = TileStatus::ready;
  }
}

std::vector<std::int32_t> Store::ordered_sequence() const {
  std::vector<std::int32_t> sequence;
  if (options_.experts_only) return sequence;
  const auto append = [&](bool tied_head) {
    for (std::size_t u = 0; u < units_.units().size(); ++u) {
      const Unit& unit = units_.units()[u];
      if (unit.kind == UnitKind::expert || unit.by_rows || unit.aside || unit.is_tied_head() != tied_head) continue;
      const auto range = units_.tiles_of(static_cast<std::int32_t>(u));
      for (std::int32_t t = range.first; t < range.last; ++t) sequence.push_back(t);
    }
  };
  append(false);
  append(true);  // the embedding's second use, at the end of the pass
  return sequence;
}

/// The order of addresses: memory for single rows, resident tiles, ring, experts. A plan without a ring still gets
/// addresses for the smallest one, in case resident tiles are evicted.
void Store::lay_out() {
  const auto& tiles = units_.tiles();
  auto sequence = ordered_sequence();
  std::uint64_t at = 0;
  row_scratch_ = {0, round_up(plan_.row_scratch_bytes, storage::kMaxAlignment)};
  at += row_scratch_.bytes;
  ahead_scratch_ = {at, round_up(plan_.rows_ahead_bytes, storage::kMaxAlignment)};
  at += ahead_scratch_.bytes;
  row_cache_memory_ = {at, round_up(plan_.row_cache_bytes, storage::kMaxAlignment)};
  at += row_cache_memory_.bytes;

  homes_.resize(tiles.size());
  // Resident experts cannot stream through the ring, so they stay, like all tiles that a drafter uses. Resident tables
  // are evicted first.
  const auto rank_of = [&](std::size_t t) {
    const Unit& unit = units_.units()[tiles[t].unit];
    const bool in_front = !plan_.front.empty() && plan_.front[static_cast<std::size_t>(tiles[t].unit)];
    const bool stays = unit.kind == UnitKind::expert || in_front;
    return stays ? 0 : unit.by_rows ? 2 : 1;
  };
  for (int rank = 0; rank < 3; ++rank) {
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      if (tiles_[t].place != Place::resident || rank_of(t) != rank) continue;
      homes_[t] = {at, tiles[t].slot_bytes};
      at += tiles[t].slot_bytes;
      home_order_.push_back(static_cast<std::int32_t>(t));
    }
    if (rank == 0) homes_fixed_ = home_order_.size();
    if (rank == 1) homes_ordered_ = home_order_.size();
  }

  ring_slot_bytes_ = plan_.ring_slot_bytes;
  for (const std::int32_t t : sequence) ring_slot_bytes_ = std::max(ring_slot_bytes_, tiles[t].slot_bytes);
  const std::size_t ring_slots =
      sequence.empty() ? 0 : static_cast<std::size_t>(std::max(plan_.ring_slots, kLeastRing));
  const std::uint64_t ring_bytes = ring_slots * ring_slot_bytes_;
  const std::uint64_t expert_bytes = plan_.expert_slot_bytes * static_cast<std::uint64_t>(plan_.expert_slots);
  // Memory that is used from the start is contiguous, so that the plan's count is exact.
  ring_offset_ = plan_.ring_slots > 0 ? at : at + expert_bytes;
  expert_offset_ = plan_.ring_slots > 0 ? at + ring_bytes : at;
  address_bytes_ = at + ring_bytes + expert_bytes;
  ring_ = std::make_unique<OrderedRing>(tiles_, std::move(sequence), ring_slots);
  const auto slots = static_cast<std::size_t>(plan_.expert_slots);
  const bool chooses = options_.policy == CachePolicy::automatic;
  experts_ = std::make_unique<SlotTable>(slots == 0 ? 0 : tiles.size(), slots,
                                         CacheRule{chooses ? CachePolicy::lru : options_.policy}, false);
  if (chooses && slots > 0) choice_ = std::make_unique<PolicyChoice>(tiles.size(), slots);

  for (const TileState& state : tiles_) slotted_experts_ += state.place == Place::expert ? 1 : 0;
  const bool experts_fit = slotted_experts_ <= experts_->slots();
  for (const bool embedding : {false, true}) {
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      if ((units_.units()[tiles[t].unit].kind == UnitKind::embedding) != embedding) continue;
      const Place place = tiles_[t].place;
      if (place == Place::resident || (place == Place::expert && experts_fit))
        warm_.push_back(static_cast<std::int32_t>(t));
    }
  }
  if (!experts_fit && !options_.expected.empty()) expect_experts();
}

/// Experts that earlier traffic used count as if this run had used them, and the most used ones are read ahead.
void Store::expect_experts() {
  const auto& tiles = units_.tiles();
  std::vector<float> rates(tiles.size(), 0.0f);
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    if (tiles_[t].place != Place::expert) continue;
    rates[t] = options_.expected[static_cast<std::size_t>(tiles[t].unit)];
    if (rates[t] > 0) learned_.push_back(static_cast<std::int32_t>(t));
  }
  if (choice_ != nullptr) {
    choice_->expect(rates);
    experts_->set_rule(choice_->best());
  }
  experts_->expect(rates);
  const auto rate = [&](std::int32_t tile) { return rates[static_cast<std::size_t>(tile)]; };
  std::stable_sort(learned_.begin(), learned_.end(), [&](auto one, auto other) { return rate(one) > rate(other); });
  learned_.resize(std::min(learned_.size(), experts_->slots()));
}

void Store::set_up_counters() {
  row_batch_.reserve(row_scratch_.bytes / storage::kMaxAlignment);
  missing_rows_.reserve(row_batch_.capacity());
  ahead_.reads.reserve(ahead_scratch_.bytes / storage::kMaxAlignment);
  ahead_.places.reserve(ahead_.reads.capacity());
}

}  // namespace millrace::residency
