// Whether substitutes of layers guess (residency/substitutes.h): their file is found and held to the model, and the
// model is planned with them where that is predicted to pay. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace millrace::engine {

struct Parts;

/// Opens the file into the parts, and adds it to `paths`, where options ask for it. What is wrong with it goes to
/// parts.draft.words. beside_gpu: a GPU computes, so that there are none of a mixture, none of whose layers streams.
/// REQUIRES: the model's units are as its file has them.
void find_substitutes(const EngineOptions& options, bool beside_gpu, Parts& parts, std::vector<std::string>& paths);

/// Substitutes, where some were found, among the units of the parts' model, cut at `tile_bytes`.
void add_substitutes(std::uint64_t tile_bytes, Parts& parts);

/// Makes the plan by `plan`, without substitutes and, where weights stream, with them, and keeps the one with more
/// predicted tokens a second (with them where rates are missing). Why there are none goes to parts.draft.words, and
/// they leave the units. Errors: those of `plan` without them.
Status plan_substitutes(const EngineOptions& options, const std::function<Status()>& plan, Parts& parts);

}  // namespace millrace::engine
