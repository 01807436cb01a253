// One answer of a Job: what it asks of the engine, and how what the engine says becomes events.
// Thread-safety: `on_event` and `on_end` are called on the engine's thread, in order, the latter once and last.
#pragma once

#include <functional>

#include "app/generate/run.h"
#include "app/generate/sight.h"
#include "base/work_grant.h"
#include "engine/service.h"

namespace millrace::generate {

/// How an answer ended. `result` is without text, and without tokens unless the job wants them kept.
struct Ended {
  Finished finished;
  engine::Result result;
  std::int64_t completion_tokens = 0, reasoning_tokens = 0;
};

/// For Service::submit().
struct Prepared {
  engine::Request request;
  engine::Service::Done on_done;
};

/// `choice`: from 0 to job.n - 1; each draws with a seed of its own. Only the first reports the prompt's progress.
/// `pictures`: see_pictures()'s. `engine` outlives the request. Errors: those of make_constraint.
Expected<Prepared> prepare(const engine::Engine& engine, const Job& job, const text::Prompt& prompt,
                           std::vector<engine::PlacedPicture> pictures, int choice, std::function<void(Event)> on_event,
                           std::function<void(Ended)> on_end, WorkGrant* grant = nullptr);

}  // namespace millrace::generate
