// The form that a Job's answer must keep (JSON, a schema, a grammar, the call of a tool), and its thinking budget.
// Thread-safety: functions of immutable parts of the engine; any thread.
#pragma once

#include <memory>

#include "app/generate/job.h"
#include "base/work_grant.h"
#include "engine/engine.h"
#include "text/conversation.h"

namespace millrace::generate {

/// The form and the thinking budget of a job; null if it asks for neither. Each answer needs its own. A thought that
/// the prompt has opened is outside the form.
/// Errors: invalid_argument, unsupported (the schema or the grammar), out_of_budget and cancelled (by the grant).
Expected<std::shared_ptr<text::Constraint>> make_constraint(const engine::Engine& engine, const Job& job,
                                                            const text::Prompt& prompt, WorkGrant* grant = nullptr);

}  // namespace millrace::generate
