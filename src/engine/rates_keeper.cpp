#include "engine/rates_keeper.h"

#include <utility>

#include "engine/machine_rates.h"
#include "residency/brief.h"
#include "residency/calibrate.h"

namespace millrace::engine {
namespace {

constexpr double kNano = 1e-9;

}  // namespace

std::unique_ptr<RatesKeeper> RatesKeeper::open(const EngineOptions& options, const Parts& parts) {
  const bool calibrated = parts.rates.known() && !parts.rates.brief;
  if (!keeps_rates(options) || calibrated || !options.storage.faults.empty() || !options.device.gpus_beside.empty())
    return nullptr;
  if (parts.model->units().total_bytes() < residency::kLeastBriefBytes) return nullptr;
  return std::unique_ptr<RatesKeeper>(new RatesKeeper(options.model.path, parts));
}

void RatesKeeper::stepped() {
  const exec::ExecCounters now = parts_.executor->counters();
  if (now.passes == seen_.passes) return;
  const storage::Counters disk = parts_.backend->counters();
  // The first pass of a run, and prompts, say nothing about decoding.
  if (now.passes == seen_.passes + 1 && now.rows == seen_.rows + 1 && seen_.passes > 0) {
    ++passes_.passes;
    passes_.seconds += static_cast<double>(now.pass_ns - seen_.pass_ns) * kNano;
    passes_.wait_seconds += static_cast<double>(now.weight_wait_ns - seen_.weight_wait_ns) * kNano;
    passes_.host_bytes += static_cast<double>(now.host_bytes - seen_.host_bytes);
    passes_.host_seconds += static_cast<double>(now.host_ns - seen_.host_ns) * kNano;
    passes_.disk_bytes += static_cast<double>(disk.bytes - disk_seen_.bytes);
    passes_.disk_busy_seconds += static_cast<double>(disk.busy_ns - disk_seen_.busy_ns) * kNano;
  }
  seen_ = now;
  disk_seen_ = disk;
}

void RatesKeeper::save() const {
  residency::Rates rates = residency::refined(parts_.rates, parts_.plan, passes_);
  if (residency::rates_to_json(rates) == residency::rates_to_json(parts_.rates)) return;
  if (rates.machine.empty()) {
    auto machine = residency::machine_key(path_);
    if (machine.ok()) rates.machine = std::move(*machine);
  }
  keep_rates(path_, rates);
}

}  // namespace millrace::engine
