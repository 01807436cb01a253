#include "residency/refine.h"

#include <algorithm>

#include "residency/predict.h"
#include "residency/type_rates.h"

namespace millrace::residency {
namespace {

// Fewer passes, or shorter ones, are a moment of the machine.
constexpr std::int64_t kLeastPasses = 16;
constexpr double kLeastSeconds = 0.5;
// One run changes a rate by so much at most: what else slowed it down may be over when the next one begins.
constexpr double kMostChange = 3;
// Passes that wait for less of their time do not show what the disk can do.
constexpr double kWaitsForDisk = 0.1;

double bounded(double factor) { return std::clamp(factor, 1 / kMostChange, kMostChange); }

void refine_processor(const Plan& plan, const DecodePasses& passes, Rates& rates) {
  const double computing = (passes.seconds - passes.wait_seconds) / static_cast<double>(passes.passes);
  if (computing <= 0) return;
  const PassCost& cost = plan.cost;
  if (rates.cpu_decode <= 0) {
    rates.cpu_decode = (cost.home + cost.read + cost.expert_bytes * cost.expert_share) / computing;
    rates.ram = std::max(rates.ram, rates.cpu_decode);
    return;
  }
  Rates without_disk = rates;
  without_disk.disk = 1e18;  // as if nothing had to be read
  without_disk.disk_latency = 0;
  const double predicted = predict_pass(plan, without_disk, {}, 1).seconds;
  if (predicted <= 0) return;
  const double factor = bounded(predicted / computing);
  rates.cpu_decode *= factor;
  rates.cpu_product /= factor;
  for (TypeRates& type : rates.types) type.decode *= factor;
  rates.ram = std::max(rates.ram, rates.cpu_decode);
}

void refine_disk(const Plan& plan, const DecodePasses& passes, Rates& rates) {
  const bool in_order = plan.cost.read > 0 && plan.cost.experts == 0 && plan.ring_slots > 1;
  if (!in_order || passes.disk_busy_seconds <= 0 || passes.wait_seconds < kWaitsForDisk * passes.seconds) return;
  const double seen = passes.disk_bytes / passes.disk_busy_seconds;
  if (rates.disk <= 0) {
    rates.disk = seen;
    return;
  }
  const double in_flight = static_cast<double>(plan.ring_slot_bytes) * (plan.ring_slots - 1);
  rates.disk *= bounded(seen * bytes_in_order(1, in_flight, rates) / rates.disk);
}

void refine_beside_gpu(const Plan& plan, const DecodePasses& passes, Rates& rates) {
  const double known = rates_for(plan.cost.weights, rates).shared_decode();
  if (plan.cost.shared <= 0 || passes.host_seconds <= 0 || passes.host_bytes <= 0 || known <= 0) return;
  rates.cpu_decode_busy = rates.shared_decode() * bounded(passes.host_bytes / passes.host_seconds / known);
}

}  // namespace

Rates refined(const Rates& rates, const Plan& plan, const DecodePasses& passes) {
  if (passes.passes < kLeastPasses || passes.seconds < kLeastSeconds) return rates;
  Rates better = rates;
  better.brief = true;
  if (plan.cost.gpu) {
    refine_beside_gpu(plan, passes, better);
  } else {
    refine_processor(plan, passes, better);
    refine_disk(plan, passes, better);
  }
  return better;
}

}  // namespace millrace::residency
