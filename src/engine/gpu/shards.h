// The parts of a run on several GPUs of one host, each with its rows of every matrix (exec/gpu/shards.h). The plan is
// one GPU's, made for its rows: as each has as many, and the same memory is asked of each, it is every one's.
// Thread-safety: one thread.
#pragma once

#include <functional>

#include "base/status.h"
#include "engine/setup.h"

namespace millrace::engine {

/// As assemble_gpu, with DeviceOptions::gpus_beside. RAM is shared out evenly. `drafts`: a draft model was asked for.
/// Errors: unsupported, too (what does not work over several GPUs, named; a model whose layers are not cut so).
Expected<Parts> assemble_shards(const EngineOptions& options, bool drafts, bool load,
                                const std::function<Status(const Parts&)>& accept);

}  // namespace millrace::engine
