#include "engine/draft_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/drafter.h"
#include "residency/predict.h"

namespace millrace::engine {
namespace {

// A pass of a small model on a GPU beside its weights and launches: rows go up, logits come down, the host picks.
constexpr double kTurnSeconds = 0.15e-3;
constexpr std::int64_t kCheapRows = 64;  // of a GPU that computes alone

constexpr double kSupposedPart = 1.0 / 16;
constexpr std::int64_t kSupposedLayers = 16;
constexpr double kWeightsOfByte = 1.7;  // as the Q4_K_M mixture has them

/// Tokens of a pass: those of its guesses that come true, and one more.
double tokens_of(std::int64_t drafts, double acceptance) {
  double tokens = 1, all_right = 1;
  for (std::int64_t i = 0; i < drafts; ++i) tokens += all_right *= acceptance;
  return tokens;
}

/// The plan with so much less room in fast memory: what every token reads stays before experts, of which a token needs
/// few.
residency::Plan without_room(residency::Plan plan, double bytes) {
  residency::PassCost& cost = plan.cost;
  if (cost.expert_bytes > 0) {
    double& met = cost.gpu ? cost.experts_in_vram : plan.predicted_hit_rate;
    met = std::max(0.0, met - bytes / cost.expert_bytes);
    return plan;
  }
  const double moved = std::min(bytes, cost.home);
  cost.home -= moved;
  if (cost.gpu) cost.crossing += moved;
  // Beside a GPU what RAM has no room for, once it has taken that in, is read.
  if (!cost.gpu || cost.read > 0) cost.read += moved;
  return plan;
}

/// Of guesses, from and to: those that are asked for, or all up to `most`.
std::pair<std::int64_t, std::int64_t> numbers_tried(const DraftHabits& habits, std::int64_t most) {
  if (habits.drafts <= 0) return {1, most};
  const std::int64_t asked = std::min(habits.drafts, most);
  return {asked, asked};
}

std::string_view place_name(DraftPlace place) {
  switch (place) {
    case DraftPlace::cpu:
      return "on the CPU";
    case DraftPlace::gpu:
      return "on the GPU";
    case DraftPlace::none:
      return "without";
  }
  return "";
}

std::string forecast_words(DraftPlace place, const DraftForecast& forecast) {
  const double speed = forecast.tokens_per_second;
  std::string words = fmt::format("{} {:.{}f} tok/s", place_name(place), speed, speed < 10 ? 2 : 1);
  if (forecast.drafts > 0)
    words += fmt::format(" with {} guess{} a pass", forecast.drafts, forecast.drafts == 1 ? "" : "es");
  return words;
}

}  // namespace

std::int64_t cheap_rows(const residency::Plan& target) {
  if (target.cpu_permille > 0) return residency::kSplitRows;
  return target.cost.experts_in_vram < 1 ? residency::kExpertShareRows : kCheapRows;
}

std::vector<double> predicted_passes(const residency::Plan& target, const residency::Rates& rates, std::int64_t most) {
  std::vector<double> seconds;
  double scale = 1;
  for (std::int64_t rows = 1; rows <= most; ++rows) {
    const double pass = residency::predict_pass(target, rates, {}, static_cast<double>(rows)).seconds;
    if (pass <= 0) break;
    // The planner's own figure of a single row knows more of the CPU's passes.
    if (const double predicted = target.predicted_decode_tokens_per_second; rows == 1 && predicted > 0)
      scale = 1 / (predicted * pass);
    seconds.push_back(scale * pass);
  }
  return seconds;
}

DraftForecast forecast_drafts(const residency::Plan& target, const residency::Rates& rates, double guess_seconds,
                              const DraftHabits& habits) {
  DraftForecast best;
  if (guess_seconds <= 0) return best;
  const auto [first, last] = numbers_tried(habits, std::min(kMostDrafts, cheap_rows(target) - 1));
  const std::vector<double> passes = predicted_passes(target, rates, last + 1);
  for (std::int64_t drafts = first; drafts <= last && drafts < std::ssize(passes); ++drafts) {
    const double pass = passes[static_cast<std::size_t>(drafts)];
    const double speed = tokens_of(drafts, habits.acceptance) / (pass + static_cast<double>(drafts) * guess_seconds);
    if (speed > best.tokens_per_second) best = {speed, drafts};
  }
  return best;
}

PlannedGuesses plan_guesses(const DraftForecast& without, const DraftHabits& habits,
                            const std::function<DraftForecast(std::int64_t guesses)>& plan) {
  PlannedGuesses best = {0, without};
  const auto [first, last] = numbers_tried(habits, residency::kSplitRows - 1);
  for (std::int64_t guesses = first; guesses <= last; ++guesses) {
    const DraftForecast forecast = plan(guesses);
    if (forecast.tokens_per_second > best.forecast.tokens_per_second) best = {guesses, forecast};
  }
  return best;
}

double guess_seconds(const residency::Plan& draft, const residency::Rates& rates) {
  const double pass = residency::predict_pass(draft, rates, {}, 1).seconds;
  return pass <= 0 ? 0 : pass + (draft.cost.gpu ? kTurnSeconds : 0);
}

SupposedDraft suppose_draft(const residency::Plan& target, const residency::Rates& rates, double acceptance) {
  const residency::PassCost& cost = target.cost;
  const double used =
      cost.home + cost.shared + cost.crossing + (cost.gpu ? 0 : cost.read) + cost.expert_bytes * cost.expert_share;
  const double bytes = used * kSupposedPart;
  residency::Plan draft;
  draft.cost.gpu = cost.gpu;
  draft.cost.layers = kSupposedLayers;
  draft.cost.home = bytes;
  draft.cost.macs = bytes * kWeightsOfByte;
  residency::Plan crowded = without_room(target, bytes);
  const double before = residency::predict_pass(target, rates, {}, 1).seconds,
               after = residency::predict_pass(crowded, rates, {}, 1).seconds;
  if (after > 0) crowded.predicted_decode_tokens_per_second *= before / after;
  return {static_cast<std::uint64_t>(bytes),
          forecast_drafts(crowded, rates, guess_seconds(draft, rates), {.acceptance = acceptance, .drafts = 0})};
}

DraftPlace choose_draft_place(const DraftWays& ways, bool must_guess) {
  const auto way = [&](DraftPlace place) -> const DraftWay& { return ways[static_cast<std::size_t>(place)]; };
  std::array<DraftPlace, 3> order = {DraftPlace::gpu, DraftPlace::cpu, DraftPlace::none};
  const auto possible = [&](DraftPlace place) {
    return way(place).refusal.empty() && (place != DraftPlace::none || !must_guess);
  };
  const auto end = std::stable_partition(order.begin(), order.end(), possible);
  if (end == order.begin()) return DraftPlace::none;
  const bool known =
      std::all_of(order.begin(), end, [&](DraftPlace place) { return way(place).forecast.tokens_per_second > 0; });
  if (!known) return order.front();
  return *std::max_element(order.begin(), end, [&](DraftPlace a, DraftPlace b) {
    return way(a).forecast.tokens_per_second < way(b).forecast.tokens_per_second;
  });
}

std::string describe_seat(const DraftSeat& seat, const DraftWays& ways, const DraftHabits& habits) {
  std::vector<std::string> words;
  if (seat.place != DraftPlace::none)
    words.push_back(fmt::format("{}, {}{} of RAM", place_name(seat.place),
                                seat.vram_bytes > 0 ? format_bytes(seat.vram_bytes) + " of VRAM and " : "",
                                format_bytes(seat.ram_bytes)));
  std::vector<std::string> forecasts;
  for (const DraftPlace place : {DraftPlace::gpu, DraftPlace::cpu, DraftPlace::none}) {
    const DraftWay& way = ways[static_cast<std::size_t>(place)];
    if (way.refusal.empty() && way.forecast.tokens_per_second > 0)
      forecasts.push_back(forecast_words(place, way.forecast));
  }
  if (!forecasts.empty())
    words.push_back(fmt::format("predicted, if {:.0f} % of guesses are right: {}", habits.acceptance * 100,
                                fmt::join(forecasts, ", ")));
  for (const DraftPlace place : {DraftPlace::gpu, DraftPlace::cpu}) {
    const DraftWay& way = ways[static_cast<std::size_t>(place)];
    if (!way.refusal.empty()) words.push_back(fmt::format("not {}: {}", place_name(place), way.refusal));
  }
  return fmt::format("{}", fmt::join(words, "; "));
}

}  // namespace millrace::engine
