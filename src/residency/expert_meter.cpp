#include "residency/expert_meter.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::residency {
namespace {

constexpr double kFade = 1.0 / 16;  // what a pass counts for in what is steady

}  // namespace

LayerCounters ExpertFigures::total() const {
  LayerCounters all;
  for (const LayerCounters& layer : layers) {
    all.hits += layer.hits;
    all.misses += layer.misses;
    all.evictions += layer.evictions;
    all.resident += layer.resident;
    all.working_set = std::max(all.working_set, layer.working_set);
    all.long_working_set = std::max(all.long_working_set, layer.long_working_set);
  }
  return all;
}

std::string ExpertFigures::describe() const {
  const LayerCounters all = total();
  std::string text = fmt::format(
      "{:.1f} misses a pass (cold {}, at most {}); a layer uses {} in a pass and {} in {} of them at most; {} in slots",
      steady_misses, cold_misses, most_misses, all.working_set, all.long_working_set, kManyPasses, all.resident);
  if (learned > 0) text += fmt::format("; {} of {} that were learned used", learned_used, learned);
  return text;
}

ExpertMeter::ExpertMeter(const UnitTable& units)
    : units_(units), last_pass_(units.units().size(), 0), usage_(no_usage(units)) {
  int layers = 0;
  for (const Unit& unit : units.units())
    if (unit.kind == UnitKind::expert) layers = std::max(layers, unit.layer + 1);
  figures_.layers.resize(static_cast<std::size_t>(layers));
  distinct_.assign(figures_.layers.size(), 0);
  distinct_long_ = distinct_;
}

void ExpertMeter::begin_pass() {
  end_pass();
  ++pass_;
  std::fill(distinct_.begin(), distinct_.end(), 0);
  if (pass_ % ExpertFigures::kManyPasses == 1) std::fill(distinct_long_.begin(), distinct_long_.end(), 0);
}

void ExpertMeter::end_pass() {
  if (!used_any_) return;
  if (was_cold_) {
    figures_.cold_misses = misses_;
  } else {
    figures_.most_misses = std::max(figures_.most_misses, misses_);
    figures_.steady_misses += (static_cast<double>(misses_) - figures_.steady_misses) * kFade;
  }
  was_cold_ = used_any_ = false;
  misses_ = 0;
}

void ExpertMeter::used(std::int32_t unit, bool missed) {
  usage_.passes += used_any_ ? 0 : 1;
  used_any_ = true;
  misses_ += missed ? 1 : 0;
  LayerCounters& layer = layer_of(unit);
  ++(missed ? layer.misses : layer.hits);
  std::uint32_t& last = last_pass_[static_cast<std::size_t>(unit)];
  if (last == pass_) return;
  const Unit& expert = units_.units()[static_cast<std::size_t>(unit)];
  const auto at = static_cast<std::size_t>(expert.layer);
  if (!expert.aside) ++usage_.uses[at][static_cast<std::size_t>(expert.expert)];
  const std::uint32_t window = (pass_ - 1) / ExpertFigures::kManyPasses * ExpertFigures::kManyPasses;  // begins behind
  layer.working_set = std::max(layer.working_set, ++distinct_[at]);
  if (last <= window) layer.long_working_set = std::max(layer.long_working_set, ++distinct_long_[at]);
  last = pass_;
}

void ExpertMeter::left(std::int32_t unit) {
  LayerCounters& layer = layer_of(unit);
  --layer.resident;
  ++layer.evictions;
}

}  // namespace millrace::residency
