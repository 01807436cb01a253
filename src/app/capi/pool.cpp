// The expert pool of the C API: pieces of a file as experts of a weight store, whose slots decide who stays. In device
// memory it is the same store, over addresses that are backed as slots are used, behind a backend that reads there.
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>

#include "app/capi/common.h"
#include "app/capi/loader.h"
#include "base/bytes.h"
#include "residency/weight_store.h"
#ifdef MILLRACE_HAS_GPU
#include "device/device.h"
#include "device/range.h"
#endif

using namespace millrace;  // NOLINT: the whole file is the border to C

struct millrace_pool {
  struct Held {
    residency::Lease lease;
    std::uint64_t acquired = 0;
#ifdef MILLRACE_HAS_GPU
    std::deque<device::Event> used;  // behind what still reads it, launched by those who have released it
#endif
  };

  residency::UnitTable units;
  std::unique_ptr<residency::Budget> budget;
  std::unique_ptr<residency::WeightStore> store;
  std::map<std::uint32_t, residency::Lease> ahead;  // prefetched, not acquired yet
  std::map<std::uint32_t, Held> held;
  std::map<std::uint32_t, Held> leaving;  // released, and still read on the device
  bool on_device = false;

  std::uint64_t slots() const { return static_cast<std::uint64_t>(store->expert_slots()); }
  /// Lets go of what nothing reads any more.
  void let_go() {
#ifdef MILLRACE_HAS_GPU
    const auto reached = [](const device::Event& event) {
      const Expected<bool> there = device::is_reached(event);
      return there.ok() && *there;
    };
    for (auto next = leaving.begin(); next != leaving.end();) {
      std::deque<device::Event>& used = next->second.used;
      while (!used.empty() && reached(used.front())) used.pop_front();
      next = used.empty() ? leaving.erase(next) : std::next(next);
    }
#endif
  }
  /// Waits until one more is let go of. REQUIRES: there is one.
  void wait_for_one() {
#ifdef MILLRACE_HAS_GPU
    for (device::Event& event : leaving.begin()->second.used) (void)device::wait(event);
#endif
    leaving.erase(leaving.begin());
  }

  ~millrace_pool() {
    ahead.clear();
    while (!leaving.empty()) wait_for_one();
    held.clear();
    if (store != nullptr) store->end_pass();
  }
};

namespace {

constexpr std::uint64_t kMostPieceBytes = std::uint64_t{1} << 40;
constexpr std::uint64_t kDeviceGranule = 2 * kMiB;  // of device memory that is backed on demand

millrace_pool_options default_options() {
  millrace_pool_options options{};
  options.struct_size = sizeof(options);
  options.policy = "lru";
  options.memory = "host";
  return options;
}

/// Each piece a unit of one tile.
Status add_units(const millrace_loader& loader, const millrace_piece* pieces, std::size_t count,
                 residency::UnitTable& units) {
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto [offset, bytes] = pieces[i];
    if (bytes == 0 || bytes > kMostPieceBytes || offset > loader.file_bytes || bytes > loader.file_bytes - offset)
      return error(Code::invalid_argument, "piece {}: {} bytes at {} exceed the file of {} bytes", i, bytes, offset,
                   loader.file_bytes);
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
Expected<residency::Plan> plan_slots(const residency::UnitTable& units, std::uint64_t memory_bytes, bool on_device) {
  residency::Plan plan;
  plan.homes.resize(units.units().size(), residency::Tier::disk);
  plan.resident_tiles.assign(units.tiles().size(), false);
  for (const residency::Tile& tile : units.tiles())
    plan.expert_slot_bytes = std::max(plan.expert_slot_bytes, tile.slot_bytes);
  const auto most = std::min<std::uint64_t>(units.tiles().size(), memory_bytes / plan.expert_slot_bytes);
  plan.expert_slots = static_cast<int>(most);
  const auto taken = [&] {
    return on_device ? round_up(plan.expert_slot_bytes * static_cast<std::uint64_t>(plan.expert_slots), kDeviceGranule)
                     : plan.weight_memory_bytes();
  };
  while (plan.expert_slots > 0 && taken() > memory_bytes) --plan.expert_slots;
  if (plan.expert_slots > 0) return plan;
  plan.expert_slots = 1;
  return error(Code::out_of_budget, "options.memory_bytes: {} hold no piece; the least is {}", memory_bytes, taken());
}

Expected<bool> is_on_device(const char* memory) {
  const std::string_view wanted = memory == nullptr ? "host" : memory;
  if (wanted == "host") return false;
  if (wanted == "device") return true;
  return error(Code::invalid_argument, "options.memory: use host or device");
}

/// What the store reads by; for a pool on a device also where to. Errors: unsupported (no GPU, mmap).
Expected<storage::Backend*> choose_backend(millrace_loader& loader, bool on_device, residency::StoreOptions& options) {
  if (on_device) {
#ifdef MILLRACE_HAS_GPU
    options.range = [](std::uint64_t bytes) { return device::reserve_device_range(bytes); };
#endif
    return loader.to_device();
  }
  (void)options;
  if (loader.backend->in_place(0, 0, 1) != nullptr)
    return error(Code::unsupported, "a pool over mmap would hold nothing back: open the loader with another backend");
  return loader.backend.get();
}

Status open_pool(millrace_loader& loader, const millrace_piece* pieces, std::size_t count,
                 const millrace_pool_options* given, millrace_pool** out) {
  MR_ASSIGN_OR_RETURN(const millrace_pool_options options, capi::read_struct(given, default_options(), "options"));
  if (count == 0 || count > INT32_MAX) return error(Code::invalid_argument, "count: there are no pieces, or too many");
  residency::StoreOptions store_options;
  const auto policy = residency::policy_from_name(options.policy == nullptr ? "lru" : options.policy);
  if (!policy.ok()) return policy.status().with_context("options.policy");
  store_options.policy = *policy;
  auto pool = std::make_unique<millrace_pool>();
  MR_RETURN_IF_ERROR(add_units(loader, pieces, count, pool->units));
  MR_ASSIGN_OR_RETURN(pool->on_device, is_on_device(options.memory));
  MR_ASSIGN_OR_RETURN(const residency::Plan plan, plan_slots(pool->units, options.memory_bytes, pool->on_device));
  MR_ASSIGN_OR_RETURN(storage::Backend* const backend, choose_backend(loader, pool->on_device, store_options));
  pool->budget = std::make_unique<residency::Budget>(options.memory_bytes);
  MR_ASSIGN_OR_RETURN(pool->store,
                      residency::WeightStore::create(pool->units, plan, *backend, *pool->budget, store_options));
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
  pool.let_go();
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
    const std::uint64_t slots = pool.slots();
    if (slots > 0 && pool.held.size() >= slots)
      return error(Code::unavailable, "all {} slots are acquired: release a piece first", slots);
    pool.let_go();
    millrace_pool::Held held;
    if (auto kept = pool.leaving.extract(piece); !kept.empty()) {
      held = std::move(kept.mapped());
    } else if (auto read = pool.ahead.extract(piece); !read.empty()) {
      held.lease = std::move(read.mapped());
    } else {
      const auto full = [&] { return pool.held.size() + pool.ahead.size() + pool.leaving.size() >= slots; };
      if (full()) pool.ahead.clear();  // its need is now
      while (full() && !pool.leaving.empty()) pool.wait_for_one();
      MR_ASSIGN_OR_RETURN(held.lease, pool.store->lease(tile_of(pool, piece)));
    }
    MR_RETURN_IF_ERROR(held.lease.wait());
    found = pool.held.emplace(piece, std::move(held)).first;
  }
  ++found->second.acquired;
  *data = found->second.lease.segment(0);
  return {};
}

Status release(millrace_pool& pool, std::uint32_t piece) {
  const auto found = pool.held.find(piece);
  if (found == pool.held.end()) return error(Code::invalid_argument, "piece {} is not acquired", piece);
  if (--found->second.acquired > 0) return {};
  // What others have launched may still read it.
  auto last = pool.held.extract(found);
#ifdef MILLRACE_HAS_GPU
  if (!last.mapped().used.empty()) pool.leaving.insert(std::move(last));
#endif
  pool.let_go();
  return {};
}

Status release_on(millrace_pool& pool, std::uint32_t piece, void* stream) {
  if (!pool.on_device) return error(Code::invalid_argument, "the pool is in host memory, which no stream reads");
#ifdef MILLRACE_HAS_GPU
  const auto found = pool.held.find(piece);
  if (found != pool.held.end()) {
    MR_ASSIGN_OR_RETURN(device::Event event, device::Event::create());
    MR_RETURN_IF_ERROR(device::record(event, {stream}));
    found->second.used.push_back(std::move(event));
  }
#else
  (void)stream;
#endif
  return release(pool, piece);
}

/// Slots that were never used have no memory to give: they go first, and count for nothing.
std::uint64_t unmap(millrace_pool& pool, std::uint64_t bytes) {
  const std::uint64_t before = pool.store->backed_bytes();
  std::uint64_t given = 0;
  while (given < bytes && pool.store->give_way(bytes - given) > 0) given = before - pool.store->backed_bytes();
  return given;
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

millrace_status millrace_pool_release_on(millrace_pool* pool, uint32_t piece, void* stream) {
  return capi::guarded([&]() -> Status {
    if (pool == nullptr) return capi::refuse_null("pool");
    return release_on(*pool, piece, stream);
  });
}

millrace_status millrace_pool_unmap(millrace_pool* pool, uint64_t bytes, uint64_t* unmapped) {
  return capi::guarded([&]() -> Status {
    if (pool == nullptr) return capi::refuse_null("pool");
    pool->let_go();
    const std::uint64_t given = unmap(*pool, bytes);
    if (unmapped != nullptr) *unmapped = given;
    return {};
  });
}

millrace_status millrace_pool_map(millrace_pool* pool, uint64_t bytes) {
  return capi::guarded([&]() -> Status {
    if (pool == nullptr) return capi::refuse_null("pool");
    return pool->store->grow(bytes);
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
    out.slots = pool->slots();
    out.mapped_bytes = pool->store->backed_bytes();
    capi::write_struct(counters, out);
    return {};
  });
}

}  // extern "C"
