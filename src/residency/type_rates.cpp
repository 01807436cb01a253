#include "residency/type_rates.h"

#include <algorithm>
#include <map>

#include "residency/placement.h"

namespace millrace::residency {
namespace {

/// How much all of it takes, in the unit of `amount` over `rate`; a type whose rate is not known goes at `usual`.
double seconds_of(const std::vector<TypeWeights>& weights, const std::vector<TypeRates>& types,
                  double TypeWeights::*amount, double TypeRates::*rate, double usual) {
  double seconds = 0;
  for (const TypeWeights& part : weights) {
    const auto of_type =
        std::find_if(types.begin(), types.end(), [&](const TypeRates& known) { return known.dtype == part.dtype; });
    const double known = of_type != types.end() ? (*of_type).*rate : 0;
    seconds += part.*amount / (known > 0 ? known : usual);
  }
  return seconds;
}

}  // namespace

std::vector<TypeWeights> weights_by_type(const UnitTable& units, int top_k, bool gpu) {
  const std::size_t experts = most_experts_of_a_layer(units);
  const UnitKind beside_gpu = experts > 0 ? UnitKind::expert : UnitKind::trunk;
  std::map<DType, TypeWeights> found;
  for (const Unit& unit : units.units()) {
    if (unit.aside || unit.by_rows || (gpu && unit.kind != beside_gpu)) continue;
    const bool chosen = unit.kind == UnitKind::expert && top_k > 0;
    const double used = chosen ? std::min(1.0, static_cast<double>(top_k) / static_cast<double>(experts)) : 1;
    for (const Part& part : unit.parts) {
      TypeWeights& of_type = found[part.dtype];
      of_type.dtype = part.dtype;
      of_type.bytes += used * static_cast<double>(part.bytes());
      of_type.macs += used * static_cast<double>(part.rows) * static_cast<double>(part.cols);
    }
  }
  std::vector<TypeWeights> weights;
  for (const auto& [dtype, of_type] : found) weights.push_back(of_type);
  return weights;
}

Rates rates_for(const std::vector<TypeWeights>& weights, const Rates& rates) {
  Rates own = rates;
  own.types.clear();
  double bytes = 0, macs = 0;
  for (const TypeWeights& part : weights) bytes += part.bytes, macs += part.macs;
  if (rates.types.empty() || bytes <= 0) return own;
  const auto mixed = [&](double amount, double TypeWeights::*of_part, double TypeRates::*rate, double usual) {
    return usual > 0 ? amount / seconds_of(weights, rates.types, of_part, rate, usual) : 0;
  };
  own.cpu_decode = mixed(bytes, &TypeWeights::bytes, &TypeRates::decode, rates.cpu_decode);
  own.cpu_prefill_macs = mixed(macs, &TypeWeights::macs, &TypeRates::prefill_macs, rates.cpu_prefill_macs);
  own.cpu_rows_macs = mixed(macs, &TypeWeights::macs, &TypeRates::rows_macs, rates.cpu_rows_macs);
  // Beside a GPU one type was measured; the others are as much faster or slower there as they are alone.
  if (rates.cpu_decode > 0) own.cpu_decode_busy *= own.cpu_decode / rates.cpu_decode;
  if (rates.cpu_rows_macs > 0) own.cpu_few_macs *= own.cpu_rows_macs / rates.cpu_rows_macs;
  return own;
}

}  // namespace millrace::residency
