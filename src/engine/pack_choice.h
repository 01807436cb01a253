// Decides, when a model is opened, whether experts are read from a pack (residency/expert_pack.h).
// Thread-safety: one thread.
#pragma once

#include <string>
#include <vector>

#include "engine/setup.h"

namespace millrace::engine {

/// options.pack: "off"; a file: that pack; "auto": MODEL.pack beside the model's file, where there is one and some
/// experts read from both come from it in less time. Not used where experts that came to memory stay there (all_stay),
/// or an expert is more than a tile: then nothing is gained. Where it is used, parts.model has its experts there, and
/// `paths` its files. The log says what was chosen and why. Errors: those of a pack that was named; one beside the
/// model is refused with a warning.
Status choose_pack(const EngineOptions& options, bool all_stay, Parts& parts, std::vector<std::string>& paths);

/// A function that verifies experts against the checksums of the pack in use; empty without a pack. For
/// StoreOptions::check.
residency::TileCheck pack_check(const Parts& parts);

}  // namespace millrace::engine
