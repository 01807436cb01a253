#include "engine/decode_meter.h"

namespace millrace::engine {
namespace {

constexpr double kNano = 1e-9;

double gained(std::uint64_t before, std::uint64_t after) { return static_cast<double>(after - before); }

}  // namespace

DecodeMeter::Reading DecodeMeter::now() const {
  return {std::chrono::steady_clock::now(), engine_.store_counters(), engine_.storage().counters()};
}

void DecodeMeter::end() {
  const Reading &a = begin_, &b = reached_;
  if (tokens_ <= 0) return;
  cost_.tokens += tokens_;
  cost_.passes += static_cast<std::int64_t>(b.store.passes - a.store.passes);
  cost_.seconds += std::chrono::duration<double>(b.time - a.time).count();
  cost_.stall_seconds += gained(a.store.stall_ns, b.store.stall_ns) * kNano;
  cost_.weight_bytes += gained(a.store.bytes_used, b.store.bytes_used);
  cost_.device_bytes += gained(a.store.bytes_to_device, b.store.bytes_to_device);
  cost_.host_bytes += gained(a.store.host_bytes, b.store.host_bytes);
  cost_.host_seconds += gained(a.store.host_ns, b.store.host_ns) * kNano;
  cost_.disk_bytes += gained(a.disk.bytes, b.disk.bytes);
  cost_.disk_busy_seconds += gained(a.disk.busy_ns, b.disk.busy_ns) * kNano;
  cost_.expert_hits += b.store.hits - a.store.hits;
  cost_.expert_misses += b.store.misses - a.store.misses;
  tokens_ = 0;
}

}  // namespace millrace::engine
