#include "engine/machine_rates.h"

#include <chrono>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "residency/brief.h"
#include "residency/calibrate.h"
#include "residency/type_rates.h"

namespace millrace::engine {
namespace {

std::string per_second(double rate) { return format_bytes(static_cast<std::uint64_t>(rate)) + "/s"; }

/// What was measured, in the log: the seconds first.
void say(double seconds, const residency::Rates& rates) {
  std::string what;
  const auto add = [&](std::string_view name, double rate) {
    if (rate > 0) what += fmt::format("{}{} {}", what.empty() ? "" : ", ", name, per_second(rate));
  };
  add("disk", rates.disk);
  add("RAM", rates.ram);
  add("weights decoded at", rates.cpu_decode);
  add("link to the GPU", rates.host_to_device);
  add("both at once: decoded at", rates.cpu_decode_busy);
  add("link", rates.host_to_device_busy);
  log::info("rates measured briefly, {:.1f} s: {} (`millrace calibrate` takes longer and is more exact)", seconds,
            what.empty() ? "none" : what);
}

}  // namespace

EngineOptions with_kept_rates(EngineOptions options) {
  if (!options.planning.find_rates || options.planning.rates.known()) return options;
  auto kept = residency::load_rates(options.model.path);
  if (kept.ok())
    options.planning.rates = std::move(*kept);
  else if (kept.status().code() != Code::not_found)
    log::warn("the kept rates are left out: {}", kept.status().message());
  return options;
}

residency::Rates rates_beside(const std::string& gpu, residency::Rates rates) {
  if (rates.gpu.empty() || rates.gpu == gpu) return rates;
  log::info("the rates of {} say nothing about {}", rates.gpu, gpu);
  rates.host_to_device = rates.host_to_device_busy = rates.cpu_decode_busy = rates.device_memory = 0;
  rates.device_prefill_macs = rates.cpu_few_macs = 0;
  rates.gpu.clear();
  return rates;
}

bool measure_rates(const EngineOptions& options, const MeasuringRoom& room, Parts& parts) {
  const residency::UnitTable& units = parts.model->units();
  // Ranks that share a host would measure at once, and each other.
  const bool alone = options.part.cluster == nullptr && options.part.ranks <= 1 && options.part.stage.whole();
  if (!options.planning.find_rates || !alone || !options.storage.faults.empty()) return false;
  if (units.total_bytes() < residency::kLeastBriefBytes) return false;
  residency::BriefOptions brief;
  brief.gpu = room.gpu;
  brief.weights = residency::weights_by_type(units, static_cast<int>(parts.model->hyperparameters().top_k), room.gpu);
  brief.model_bytes = units.total_bytes();
  brief.paths = parts.model_paths;
  brief.storage = storage_options(options, false);
  brief.kernels = &kernels::table(options.device.cpu_isa());
  brief.threads = options.device.threads;
  brief.host_bytes = room.host_bytes;
  brief.device_bytes = room.device_bytes;
  if (!residency::lacks_rates(parts.rates, brief)) return false;
  const auto begin = std::chrono::steady_clock::now();
  Expected<residency::Rates> rates = residency::measure_briefly(parts.rates, brief);
  if (!rates.ok()) {
    log::warn("rates not measured: {}", rates.status().message());
    return false;
  }
  const bool more = residency::rates_to_json(*rates) != residency::rates_to_json(parts.rates);
  if (!more) return false;
  say(seconds_since(begin), *rates);
  parts.rates = std::move(*rates);
  if (keeps_rates(options)) keep_rates(options.model.path, parts.rates);
  return true;
}

void keep_rates(const std::string& model_path, const residency::Rates& rates) {
  const Status kept = residency::save_rates(model_path, rates);
  if (kept.code() == Code::not_found)  // a service has no home
    log::info("rates are not kept: {}", kept.message());
  else if (!kept.ok())
    log::warn("rates are not kept: {}", kept.message());
}

}  // namespace millrace::engine
