// Chooses where the draft model of a model on a GPU runs: in VRAM, where it is fast but displaces layers or experts of
// the large model; on the CPU; or nowhere. Pure. Thread-safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "residency/plan.h"

namespace millrace::engine {

enum class DraftPlace : std::uint8_t { none, cpu, gpu };

/// The predicted effect of guesses for one sequence.
struct DraftForecast {
  double tokens_per_second = 0;  // 0: a rate is missing
  std::int64_t drafts = 0;       // a pass
};

/// The assumptions of a prediction about guesses.
struct DraftHabits {
  double acceptance = 0;    // assumed: that a guess is right where all before it are; 0 to 1
  std::int64_t drafts = 0;  // so many a pass; 0: as many as bring the most
};

/// Rows on which a row more costs little, as exec::Executor::cheap_rows will say of the plan.
std::int64_t cheap_rows(const residency::Plan& target);

/// Seconds of passes that decode 1, 2, ... `most` rows, one sequence's or several; they end where a rate is missing.
std::vector<double> predicted_passes(const residency::Plan& target, const residency::Rates& rates, std::int64_t most);

/// The large model's passes verify, and each guess takes `guess_seconds`, one after the other; 0: unknown.
DraftForecast forecast_drafts(const residency::Plan& target, const residency::Rates& rates, double guess_seconds,
                              const DraftHabits& habits);

/// For passes with so many guesses the processor's part beside a GPU is planned.
struct PlannedGuesses {
  std::int64_t guesses = 0;
  DraftForecast forecast;
};
/// How many bring the most follows from the plan, whose part was chosen for the rows of a pass: so each number that may
/// be is tried. without: planned for none. plan: makes the plan for so many, and what is forecast of it.
PlannedGuesses plan_guesses(const DraftForecast& without, const DraftHabits& habits,
                            const std::function<DraftForecast(std::int64_t guesses)>& plan);

/// Seconds of a draft model's pass for one guess, with what a pass takes beside the plan's bytes; 0 where a rate is
/// missing.
double guess_seconds(const residency::Plan& draft, const residency::Rates& rates);

/// A draft model that nobody has named yet: what one could bring a model that has none.
struct SupposedDraft {
  std::uint64_t bytes = 0;  // of its weights, all of them at home in fast memory
  DraftForecast forecast;
};
/// Of a sixteenth of the bytes that a token uses of the large model, whose weights make room for it.
SupposedDraft suppose_draft(const residency::Plan& target, const residency::Rates& rates, double acceptance);

/// One way to go, and why it cannot be gone.
struct DraftWay {
  std::string refusal;     // empty: it can
  DraftForecast forecast;  // of DraftPlace::none: without guesses
};
using DraftWays = std::array<DraftWay, 3>;  // by DraftPlace

/// The way with the most tokens a second. Where a prediction is missing: the GPU, then the CPU. `must_guess`: the user
/// asks for guesses whatever they bring, so that none is taken only where no other way is left.
DraftPlace choose_draft_place(const DraftWays& ways, bool must_guess);

/// The seat of a draft model, or of what part of the model guesses, once chosen.
struct DraftSeat {
  DraftPlace place = DraftPlace::none;
  std::uint64_t vram_bytes = 0, ram_bytes = 0;  // that it takes
  std::string words = {};                       // describe_seat(); empty: nobody asked
  std::string what = "draft model";             // or what part of the model: engine/within.h
};

/// "on the GPU, 812 MB of VRAM and 43.0 MB of RAM; predicted, if 70 % of guesses are right: ...", of the ways that
/// the seat was chosen from. Without a place: why there is none.
std::string describe_seat(const DraftSeat& seat, const DraftWays& ways, const DraftHabits& habits);

}  // namespace millrace::engine
