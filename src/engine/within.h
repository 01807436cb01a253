// Drafters that are part of the model: what they take, whether they can guess, and their seat in the plan. The one
// place that knows which there are. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/draft_place.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "modelfile/gguf.h"

namespace millrace::engine {

struct Parts;

/// The same options; Within::eagle3 or assistant where what they name as a draft model is such a head or assistant.
EngineOptions with_head(EngineOptions options);
/// Whether part of the model is to guess for it.
bool drafts_within(const EngineOptions& options);
/// "self-speculation": for messages.
const char* name_of(Within within);
/// Whether the model is to be loaded with the block or the head that guesses (model::LoadOptions::draft_block).
bool wants_draft_block(const EngineOptions& options);

/// Where the units of what guesses go, if it is no part of the model's passes.
enum class DraftUnits : std::uint8_t {
  none,
  aside,  // in the model's table
  apart,  // in one of their own, for the CPU beside a GPU (engine/host_draft.h)
};

/// Loads the model with the block or the head that guesses, under `how`; a head's files go behind `paths`, which are
/// the model's. REQUIRES: wants_draft_block(). Errors: as model::load and Model::open; invalid_argument (the head is of
/// another vocabulary).
Expected<std::unique_ptr<model::Model>> load_with_drafter(const EngineOptions& options, const modelfile::Model& file,
                                                          model::LoadOptions how, DraftUnits place,
                                                          std::vector<std::string>& paths);

/// Why it cannot guess, whatever the plan. Errors: unsupported, invalid_argument.
Status check_within(const EngineOptions& options, const Parts& parts);
/// residency::PlanOptions::front_layers; 0 where it cannot guess.
int front_of(const EngineOptions& options, const Parts& parts);
/// What it takes of RAM beside weights where the CPU computes, under the parts' limits; 0 where it cannot guess.
std::uint64_t within_bytes(const EngineOptions& options, const Parts& parts);
/// Of the CPU's passes through the block or the head that guesses: activations, waiting states and KV.
/// REQUIRES: draft_passes().
std::uint64_t draft_pass_bytes(const EngineOptions& options, const Parts& parts, int threads, kernels::Isa isa);
/// What its guesses are predicted to bring, once there is a plan in which it has a seat.
DraftForecast forecast_within(const EngineOptions& options, const Parts& parts);
/// Its seat, once there is a plan.
DraftSeat seat_within(const EngineOptions& options, const Parts& parts);
/// REQUIRES: it has a seat. Errors: out_of_budget.
Expected<std::shared_ptr<Drafter>> make_within(const EngineOptions& options, Parts& parts);

}  // namespace millrace::engine
