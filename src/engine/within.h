// Drafters that are part of the model: what they take, whether they can guess, and their seat in the plan. The one
// place that knows which there are. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/draft_place.h"
#include "engine/drafter.h"
#include "engine/engine.h"

namespace millrace::engine {

struct Parts;

/// Whether part of the model is to guess for it.
bool drafts_within(const EngineOptions& options);
/// "self-speculation": for messages.
const char* name_of(Within within);
/// Whether the model is to be loaded with the block that guesses (model::LoadOptions::draft_block).
bool wants_draft_block(const EngineOptions& options);

/// Why it cannot guess, whatever the plan. Errors: unsupported, invalid_argument.
Status check_within(const EngineOptions& options, const Parts& parts);
/// residency::PlanOptions::front_layers; 0 where it cannot guess.
int front_of(const EngineOptions& options, const Parts& parts);
/// What it takes of RAM beside weights where the CPU computes, under the parts' limits; 0 where it cannot guess.
std::uint64_t within_bytes(const EngineOptions& options, const Parts& parts);
/// What its guesses are predicted to bring, once there is a plan in which it has a seat.
DraftForecast forecast_within(const EngineOptions& options, const Parts& parts);
/// Its seat, once there is a plan.
DraftSeat seat_within(const EngineOptions& options, const Parts& parts);
/// REQUIRES: it has a seat. Errors: out_of_budget.
Expected<std::shared_ptr<Drafter>> make_within(const EngineOptions& options, Parts& parts);

}  // namespace millrace::engine
