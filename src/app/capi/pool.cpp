// The expert pool of the C API: pieces of a file as experts of a weight store, whose slots decide who stays.
#include <map>
#include <memory>

#include "app/capi/common.h"
#include "app/capi/loader.h"
#include "residency/weight_store.h"

using namespace millrace;  // NOLINT: the whole file is the border to C

struct millrace_pool {
  struct Held {
    residency::Lease lease;
    std::uint64_t acquired = 0;
  };

  residency::UnitTable units;
  std::unique_ptr<residency::Budget> budget;
  std::unique_ptr<residency::WeightStore> store;
  std::map<std::uint32_t, residency::Lease> ahead;  // prefetched, not acquired yet
  std::map<std::uint32_t, Held> held;
  std::uint64_t slots = 0;

  ~millrace_pool() {
    ahead.clear();
    held.clear();
    if (store != nullptr) store->end_pass();
  }
};

namespace {

constexpr std::uint64_t kMostPieceBytes = std::uint64_t{1} << 40;

millrace_pool_options default_options() {
  millrace_pool_options options{};
  options.struct_size = sizeof(options);
  options.policy = "lru";
  return options;
}

/// Each piece a unit of one tile.
Status add_units(const millrace_loader& loader, const millrace_piece* pieces, std::size_t count,
                 residency::UnitTable& units) {
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto [offset, bytes] = pieces[i];
    if (bytes == 0 || bytes > kMostPieceBytes || offset > loader.file_bytes || bytes > loader.file_bytes - offset)
      return error(Code::invalid_argument, "piece {}: {} bytes at {} do not lie in the file of {} bytes", i, bytes,
                   offset, loader.file_bytes);
    residency::Unit unit;
    unit.kind = residency::UnitKind::expert;
    unit.layer = 0;
    unit.expert = static_cast<int>(i);
    unit.parts.push_back({fmt::format("piece {}", i), DType::i8, 1, static_cast<std::int64_t>(bytes), 0, offset});
    units.add(std::move(unit));
    largest = std::max(largest, bytes);
  }
  units.cut(2 * largest + 2 * storage::kMaxAlignment);
  return {};
}

/// As many slots as the memory holds. Errors: out_of_budget.
Expected<residency::Plan> plan_slots(const residency::UnitTable& units, std::uint64_t memory_bytes) {
  residency::Plan plan;
  plan.homes.resize(units.units().size());
  plan.resident_tiles.assign(units.tiles().size(), false);
  for (const residency::Tile& tile : units.tiles())
    plan.expert_slot_bytes = std::max(plan.expert_slot_bytes, tile.slot_bytes);
  const auto most = std::min<std::uint64_t>(units.tiles().size(), memory_bytes / plan.expert_slot_bytes);
  plan.expert_slots = static_cast<int>(most);
  while (plan.expert_slots > 0 && plan.weight_memory_bytes() > memory_bytes) --plan.expert_slots;
  if (plan.expert_slots > 0) return plan;
  plan.expert_slots = 1;
  return error(Code::out_of_budget, "options.memory_bytes: {} hold no piece; the least is {}", memory_bytes,
               plan.weight_memory_bytes());
}

Status open_pool(millrace_loader& loader, const millrace_piece* pieces, std::size_t count,
                 const millrace_pool_options* given, millrace_pool** out) {
  MR_ASSIGN_OR_RETURN(const millrace_pool_options options, capi::read_struct(given, default_options(), "options"));
  if (count == 0 || count > INT32_MAX) return error(Code::invalid_argument, "count: there are no pieces, or too many");
  if (loader.backend->in_place(0, 0, 1) != nullptr)
    return error(Code::unsupported, "a pool over mmap would hold nothing back: open the loader with another backend");
  residency::StoreOptions store_options;
  const auto policy = residency::policy_from_name(options.policy == nullptr ? "lru" : options.policy);
  if (!policy.ok()) return policy.status().with_context("options.policy");
  store_options.policy = *policy;
  auto pool = std::make_unique<millrace_pool>();
  MR_RETURN_IF_ERROR(add_units(loader, pieces, count, pool->units));
  MR_ASSIGN_OR_RETURN(const residency::Plan plan, plan_slots(pool->units, options.memory_bytes));
  pool->slots = static_cast<std::uint64_t>(plan.expert_slots);
  pool->budget = std::make_unique<residency::Budget>(options.memory_bytes);
  MR_ASSIGN_OR_RETURN(pool->store,
                      residency::WeightStore::create(pool->units, plan, *loader.backend, *pool->budget, store_options));
  pool->store->begin_pass();
  *out = pool.release();
  return {};
}

Status check_piece(const millrace_pool& pool, std::uint32_t piece) {
  if (piece < pool.units.units().size()) return {};
  return error(Code::invalid_argument, "there is no piece {}: they are named from 0 to {}", piece,
               pool.units.units().size() - 1);
}

std::int32_t tile_of(const millrace_pool& pool, std::uint32_t piece) {
  return pool.units.tiles_of(static_cast<std::int32_t>(piece)).first;
}

Status prefetch(millrace_pool& pool, const std::uint32_t* pieces, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) MR_RETURN_IF_ERROR(check_piece(pool, pieces[i]));
  std::map<std::uint32_t, residency::Lease> ahead;
  for (std::size_t i = 0; i < count; ++i)
    if (auto kept = pool.ahead.extract(pieces[i]); !kept.empty()) ahead.insert(std::move(kept));
  pool.ahead = std::move(ahead);
  for (std::size_t i = 0; i < count; ++i) {
    if (pool.held.contains(pieces[i]) || pool.ahead.contains(pieces[i])) continue;
    std::optional<residency::Lease> lease = pool.store->try_lease(tile_of(pool, pieces[i]));
    if (!lease) return {};  // no slot is free now
    pool.ahead.emplace(pieces[i], std::move(*lease));
  }
  return {};
}

Status acquire(millrace_pool& pool, std::uint32_t piece, const void** data) {
  MR_RETURN_IF_ERROR(check_piece(pool, piece));
  auto found = pool.held.find(piece);
  if (found == pool.held.end()) {
    if (pool.held.size() >= pool.slots)
      return error(Code::unavailable, "all {} slots are acquired: release a piece first", pool.slots);
    residency::Lease lease;
    if (auto kept = pool.ahead.extract(piece); !kept.empty()) {
      lease = std::move(kept.mapped());
    } else {
      if (pool.held.size() + pool.ahead.size() >= pool.slots) pool.ahead.clear();  // its need is now
      MR_ASSIGN_OR_RETURN(lease, pool.store->lease(tile_of(pool, piece)));
    }
    MR_RETURN_IF_ERROR(lease.wait());
    found = pool.held.emplace(piece, millrace_pool::Held{std::move(lease)}).first;
  }
  ++found->second.acquired;
  *data = found->second.lease.segment(0);
  return {};
}

Status release(millrace_pool& pool, std::uint32_t piece) {
  const auto found = pool.held.find(piece);
  if (found == pool.held.end()) return error(Code::invalid_argument, "piece {} is not acquired", piece);
  if (--found->second.acquired == 0) pool.held.erase(found);
  return {};
}

}  // namespace

extern "C" {

void millrace_pool_options_init_sized(millrace_pool_options* options, size_t size) {
  capi::init_struct(options, size, default_options());
}

void millrace_pool_counters_init_sized(millrace_pool_counters* counters, size_t size) {
  capi::init_struct(counters, size, millrace_pool_counters{});
}

millrace_status millrace_pool_open(millrace_loader* loader, const millrace_piece* pieces, size_t count,
                                   const millrace_pool_options* options, millrace_pool** pool) {
  return capi::guarded([&]() -> Status {
    if (loader == nullptr || pieces == nullptr || options == nullptr || pool == nullptr)
      return capi::refuse_null("loader, pieces, options, pool");
    return open_pool(*loader, pieces, count, options, pool);
  });
}

void millrace_pool_close(millrace_pool* pool) { delete pool; }

millrace_status millrace_pool_prefetch(millrace_pool* pool, const uint32_t* pieces, size_t count) {
  return capi::guarded([&]() -> Status {
    if (pool == nullptr || (pieces == nullptr && count > 0)) return capi::refuse_null("pool and pieces");
    return prefetch(*pool, pieces, count);
  });
}

millrace_status millrace_pool_acquire(millrace_pool* pool, uint32_t piece, const void** data) {
  return capi::guarded([&]() -> Status {
    if (pool == nullptr || data == nullptr) return capi::refuse_null("pool and data");
    return acquire(*pool, piece, data);
  });
}

millrace_status millrace_pool_release(millrace_pool* pool, uint32_t piece) {
  return capi::guarded([&]() -> Status {
    if (pool == nullptr) return capi::refuse_null("pool");
    return release(*pool, piece);
  });
}

millrace_status millrace_pool_read_counters(millrace_pool* pool, millrace_pool_counters* counters) {
  return capi::guarded([&]() -> Status {
    if (pool == nullptr || counters == nullptr) return capi::refuse_null("pool and counters");
    const residency::StoreCounters read = pool->store->counters();
    millrace_pool_counters out{};
    out.hits = read.hits;
    out.misses = read.misses;
    out.evictions = read.evictions;
    out.bytes_from_disk = read.bytes_from_disk;
    out.stall_ns = read.stall_ns;
    out.slots = pool->slots;
    capi::write_struct(counters, out);
    return {};
  });
}

}  // extern "C"
