#include "residency/store.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"

namespace millrace::residency {
namespace {

// How much may be prefetched: enough to keep the disk busy, but if experts are chosen late, their reads must not wait
// in a long queue.
constexpr std::uint64_t kOrderedInFlight = 256 * kMiB;
constexpr std::uint64_t kOrderedInFlightBesideExperts = 16 * kMiB;
constexpr std::uint64_t kWarmUpInFlight = 32 * kMiB;
constexpr std::uint64_t kLearnedInFlight = 8 * kMiB;  // a read that is needed now waits behind at most this much
constexpr std::uint32_t kPassNumbers = 2;             // of a pass: its beginning and its end
constexpr std::size_t kLoadsForDemand = 64;           // kept free of prefetch

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace

void Store::begin_pass() {
  take_back();
  const MutexLock lock(mutex_);
  ++counters_.passes;
  ring_->start_pass(++pass_);
  meter_.begin_pass();
  experts_->turn();
  if (choice_ != nullptr) {
    choice_->turn();
    experts_->set_rule(choice_->best());
  }
  advance();
}

void Store::end_pass() {
  const MutexLock lock(mutex_);
  // From here on every tile's next use is in the next pass.
  ring_->start_pass(++pass_);
  advance();
}

bool Store::available(const TileState& state) const {
  return state.status == TileStatus::ready || state.status == TileStatus::loading;
}

/// A table on the disk has no memory here, nor has a unit that another store holds.
bool Store::by_rows_only(std::int32_t tile) const {
  return tiles_[tile].place == Place::elsewhere || (tiles_[tile].place == Place::ring && tiles_[tile].position < 0);
}

Expected<Lease> Store::lease(std::int32_t tile) {
  const MutexLock lock(mutex_);
  if (by_rows_only(tile)) return error(Code::internal, "{} is not resident; read its rows one by one", describe(tile));
  finish_loads();
  TileState& state = tiles_[tile];
  const bool was_ready = state.status == TileStatus::ready;
  bool started = false;
  while (!available(state)) {
    started = start(tile, true);
    if (started) break;
    const std::int32_t load = load_to_wait_for(state.place);
    if (load < 0 && experts_->live_slots() == 0 && !refused_.ok())
      return refused_.with_context(fmt::format("no memory for {}", describe(tile)));
    if (load < 0)
      return error(Code::internal, "no memory for {}: every slot is leased; drop a lease before taking another",
                   describe(tile));
    block_on(load);
  }
  grant(tile, was_ready, started);
  return make_lease(tile);
}

std::optional<Lease> Store::try_lease(std::int32_t tile) {
  const MutexLock lock(mutex_);
  if (by_rows_only(tile)) return std::nullopt;
  finish_loads();
  const bool was_ready = tiles_[tile].status == TileStatus::ready;
  bool started = false;
  if (!available(tiles_[tile])) {
    started = start(tile, true);
    if (!started) return std::nullopt;
  }
  grant(tile, was_ready, started);
  return make_lease(tile);
}

std::optional<Lease> Store::borrow(std::int32_t tile) {
  const MutexLock lock(mutex_);
  finish_loads();
  if (tiles_[tile].status != TileStatus::ready) return std::nullopt;
  ++tiles_[tile].pins;
  return make_lease(tile);
}

/// Whether every read in flight is the prefetch of an expert that was not requested.
bool Store::disk_idles() const {
  const auto& active = loader_->active();
  return std::all_of(active.begin(), active.end(), [this](std::int32_t load) MR_NO_THREAD_SAFETY_ANALYSIS {
    const TileState& state = tiles_[loader_->tile_of(load)];
    return (state.ahead || state.learned) && state.pins == 0;
  });
}

/// Whether a slot is free for an expert of `layer`. Evicts an expert of another layer if necessary, but only one that
/// neither this pass nor the last one used.
bool Store::room_ahead(int layer) {
  if (experts_->free_slots() > 0) return true;
  const std::int32_t victim = experts_->least_worth([&](std::int32_t tile) MR_NO_THREAD_SAFETY_ANALYSIS {
    const TileState& state = tiles_[tile];
    return state.used_pass + kPassNumbers < pass_ && state.pins == 0 && state.status == TileStatus::ready &&
           units_.units()[units_.tiles()[tile].unit].layer != layer;
  });
  if (victim < 0) return false;
  evict(victim);
  return true;
}

bool Store::prefetch(std::int32_t tile) {
  const MutexLock lock(mutex_);
  finish_loads();
  TileState& state = tiles_[tile];
  if (state.place != Place::expert || state.status != TileStatus::absent) return true;
  if (givers_ > 0 || loader_->free_loads() <= kLoadsForDemand || !disk_idles()) return false;
  if (!room_ahead(units_.units()[units_.tiles()[tile].unit].layer) || !start(tile, false)) return false;
  state.ahead = true;
  ++counters_.guesses.read_ahead;
  return true;
}

void Store::count_guess(Guess guess, const GuessCounters& counted) {
  const MutexLock lock(mutex_);
  counters_.guesses.by_kind[static_cast<std::size_t>(guess)] += counted;
}

void Store::grant(std::int32_t tile, bool was_ready, bool started) {
  const Tile& what = units_.tiles()[tile];
  const Unit& unit = units_.units()[what.unit];
  TileState& state = tiles_[tile];
  ++state.pins;
  counters_.bytes_used += what.bytes;
  if (unit.kind == UnitKind::expert) {
    if (state.ahead) ++counters_.guesses.read_ahead_used;
    state.ahead = false;
    state.used_pass = pass_;
    ++(started ? counters_.misses : counters_.hits);
    if (state.place == Place::expert) experts_->use(tile);
    if (state.place == Place::expert && choice_ != nullptr) choice_->use(tile);
    if (const std::int32_t expert = expert_of(tile); expert >= 0) {
      meter_.used(expert, started);
      if (state.learned) meter_.used_learned();
    }
    state.learned = false;
  } else {
    ++(was_ready ? counters_.ordered_hits : counters_.ordered_misses);
    // A tied embedding is at the end of the order; looking up rows at the start of a pass is not that use.
    const bool early = unit.kind == UnitKind::embedding && !ring_->comes_now(tile);
    if (!early) {
      state.used_pass = pass_;
      ring_->reach(tile);
    }
  }
  if (!mapped_) advance();
}

bool Store::start(std::int32_t tile, bool demand) {
  if (loader_->free_loads() == 0) return false;
  TileState& state = tiles_[tile];
  std::byte* memory = nullptr;
  if (state.place == Place::resident) {
    memory = memory_.data(homes_[tile]);
  } else if (state.place == Place::expert) {
    if (!slot_for_expert(tile, demand)) return false;
    memory = memory_.data(expert_piece(state.slot));
  } else {
    state.slot = ring_slot_for(demand);
    if (state.slot < 0) return false;
    ring_->put(state.slot, tile);
    memory = memory_.data(ring_piece(state.slot));
  }
  if (state.status == TileStatus::failed) failures_.erase(tile);
  if (const std::int32_t expert = expert_of(tile); expert >= 0) meter_.came(expert);
  state.status = TileStatus::loading;
  state.memory = memory;
  state.load = loader_->start(tile, memory);
  return true;
}

/// Whether a slot for an expert is free; evicts one if necessary.
bool Store::room_for_expert(bool demand) {
  if (experts_->free_slots() > 0 || !demand) return experts_->free_slots() > 0;
  const std::int32_t victim = experts_->least_worth([this](std::int32_t tile) MR_NO_THREAD_SAFETY_ANALYSIS {
    return tiles_[tile].pins == 0 && tiles_[tile].status == TileStatus::ready;
  });
  if (victim < 0) return false;
  evict(victim);
  return true;
}

/// Gives the tile a slot that is backed by memory. Slots that a range cannot back stay unused until grow().
bool Store::slot_for_expert(std::int32_t tile, bool demand) {
  while (room_for_expert(demand)) {
    const std::int32_t slot = experts_->put(tile);
    const Status backed = memory_.back(expert_piece(static_cast<std::size_t>(slot)));
    if (backed.ok()) {
      tiles_[tile].slot = slot;
      return true;
    }
    experts_->remove(tile);
    experts_->set_live(slot, false);
    memory_.drop(expert_piece(static_cast<std::size_t>(slot)));
    memory_.settle();
    if (refused_.ok())
      log::warn("slots end at {} of {}: {}", experts_->live_slots(), experts_->slots(), backed.message());
    refused_ = backed;
  }
  return false;
}

/// A slot of the ring, evicting a tile if necessary; -1 if there is none now.
std::int32_t Store::ring_slot_for(bool demand) {
  const std::int32_t slot = ring_->free_slot();
  if (slot >= 0) return slot;
  const std::int32_t victim = demand ? ring_->victim_for_demand() : ring_->victim_for_fetch();
  if (victim >= 0) evict(ring_->slots()[victim].tile);
  return victim;
}

void Store::evict(std::int32_t tile) {
  TileState& state = tiles_[tile];
  MR_ASSERT(state.pins == 0 && state.status == TileStatus::ready);
  ++counters_.evictions;
  leave_slot(tile, true);
  state.status = TileStatus::absent;
}

void Store::leave_slot(std::int32_t tile, bool fetch_again) {
  TileState& state = tiles_[tile];
  if (state.slot >= 0) {
    if (state.place == Place::expert) {
      experts_->remove(tile);
    } else {
      ring_->clear(state.slot, fetch_again);
    }
  }
  if (const std::int32_t expert = expert_of(tile); expert >= 0) meter_.left(expert);
  state.slot = -1;
  state.ahead = state.learned = false;
  state.memory = nullptr;
}

void Store::finish_loads() {
  // Called only in this function, with the mutex held.
  loader_->finish([this](std::int32_t tile, const Status& status)
                      MR_NO_THREAD_SAFETY_ANALYSIS { finished(tile, status); });
}

void Store::finished(std::int32_t tile, const Status& read) {
  TileState& state = tiles_[tile];
  state.load = -1;
  const Status status = read.ok() && options_.check ? options_.check(tile, state.memory) : read;
  if (status.ok()) {
    state.status = TileStatus::ready;
    counters_.bytes_from_disk += units_.tiles()[tile].bytes;
    if (options_.check && expert_of(tile) >= 0) counters_.bytes_from_pack += units_.tiles()[tile].bytes;
    return;
  }
  leave_slot(tile, false);
  state.status = TileStatus::absent;
  if (state.pins > 0) {
    state.status = TileStatus::failed;
    failures_[tile] = status.with_context(fmt::format("reading {}", describe(tile)));
  }
}

/// Starts the next reads in pass order, as far as slots and the disk's queue allow.
void Store::advance() {
  finish_loads();
  take_rows();
  if (givers_ > 0) return;
  const std::uint64_t limit = has_experts_ ? kOrderedInFlightBesideExperts : kOrderedInFlight;
  while (loader_->bytes_in_flight() < limit && loader_->free_loads() > kLoadsForDemand) {
    const std::int32_t tile = ring_->next_to_fetch();
    if (tile < 0 || !start(tile, false)) break;
    ring_->fetched();
  }
  warm_up();
}

/// Loads resident tiles when the ring is full, so that the disk does not idle in the first pass.
void Store::warm_up() {
  while (warm_next_ < warm_.size() && loader_->bytes_in_flight() < kWarmUpInFlight &&
         loader_->free_loads() > kLoadsForDemand) {
    const std::int32_t tile = warm_[warm_next_++];
    if (tiles_[tile].status != TileStatus::absent || tiles_[tile].place == Place::ring) continue;
    if (!start(tile, false)) break;
  }
  read_learned();
}

/// Reads experts that earlier traffic used into free slots while the disk has no urgent reads.
void Store::read_learned() {
  while (learned_next_ < learned_.size() && experts_->free_slots() > 0 &&
         loader_->bytes_in_flight() < kLearnedInFlight && loader_->free_loads() > kLoadsForDemand && disk_idles()) {
    const std::int32_t tile = learned_[learned_next_++];
    if (tiles_[tile].status != TileStatus::absent || !start(tile, false)) continue;
    tiles_[tile].learned = true;
    if (expert_of(tile) >= 0) meter_.read_learned();
  }
}

/// The load whose end may free a slot for a tile of this place; -1: no slot will become free by itself.
std::int32_t Store::load_to_wait_for(Place place) const {
  if (loader_->active().empty()) return -1;
  if (loader_->free_loads() == 0) return loader_->active().front();
  for (const std::int32_t load : loader_->active()) {
    const TileState& other = tiles_[loader_->tile_of(load)];
    if (other.place == place && other.pins == 0) return load;
  }
  return -1;
}

void Store::block_on(std::int32_t load) {
  if (!loader_->done(load)) {
    std::uint64_t waited = 0;
    {
      const MutexUnlock unlocked(mutex_);
      const std::uint64_t begin = now_ns();
      loader_->wait_for(load);
      waited = now_ns() - begin;
    }
    counters_.stall_ns += waited;
  }
  finish_loads();
}

Status Store::wait(std::int32_t tile) {
  const MutexLock lock(mutex_);
  TileState& state = tiles_[tile];
  if (state.status == TileStatus::loading) {
    advance();
    if (state.status == TileStatus::loading) block_on(state.load);
  }
  if (state.status == TileStatus::ready) return {};
  const auto failure = failures_.find(tile);
  if (failure != failures_.end()) return failure->second;
  return error(Code::internal, "{} was waited for without a lease", describe(tile));
}

bool Store::ready(std::int32_t tile) const {
  const MutexLock lock(mutex_);
  const TileState& state = tiles_[tile];
  return state.status != TileStatus::loading || loader_->done(state.load);
}

bool Store::present(std::int32_t tile) const {
  const MutexLock lock(mutex_);
  return tiles_[tile].status == TileStatus::ready;
}

const std::byte* Store::segment(std::int32_t tile, std::size_t i) const {
  const Tile& what = units_.tiles()[tile];
  const Segment& segment = what.segments[i];
  if (!mapped_) return tiles_[tile].memory + segment.slot_offset;
  return backend_.in_place(units_.units()[what.unit].parts[segment.part].file, segment.file_offset, segment.bytes);
}

void Store::unpin(std::int32_t tile) {
  const MutexLock lock(mutex_);
  TileState& state = tiles_[tile];
  MR_ASSERT(state.pins > 0);
  if (--state.pins > 0 || mapped_) return;
  if (state.status == TileStatus::failed) {
    state.status = TileStatus::absent;
    failures_.erase(tile);
  }
  if (state.place == Place::ring) advance();
}

int Store::expert_slots() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(experts_->live_slots());
}

bool Store::all_experts_fit() const {
  const MutexLock lock(mutex_);
  return experts_->live_slots() >= slotted_experts_;
}

StoreCounters Store::counters() const {
  const MutexLock lock(mutex_);
  StoreCounters counters = counters_;
  counters.experts = meter_.figures();
  return counters;
}

ExpertUsage Store::expert_usage() const {
  const MutexLock lock(mutex_);
  return meter_.usage();
}

std::string Store::describe(std::int32_t tile) const {
  const Tile& what = units_.tiles()[tile];
  if (what.segments.empty()) return fmt::format("tile {}", tile);
  const Segment& segment = what.segments.front();
  const Unit& unit = units_.units()[what.unit];
  std::string text = unit.parts[segment.part].name;
  if (unit.expert >= 0) text += fmt::format(" of expert {}", unit.expert);
  if (segment.row_end - segment.row_begin < unit.parts[segment.part].rows)
    text += fmt::format(" rows {} to {}", segment.row_begin, segment.row_end - 1);
  if (what.segments.size() > 1) text += fmt::format(" and {} more", what.segments.size() - 1);
  return text;
}

}  // namespace millrace::residency
