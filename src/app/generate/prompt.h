// From a Job to the tokens a model goes on with, and to the form its answer must keep.
// Thread-safety: functions of immutable parts of the engine; any thread.
#pragma once

#include <memory>
#include <vector>

#include "app/generate/job.h"
#include "engine/engine.h"
#include "text/answer_parser.h"
#include "text/work_grant.h"

namespace millrace::generate {

/// What the answer goes on from. Messages that do not fit are left out in a number of steps that grows with the
/// logarithm of theirs. `grant` (may be null) is asked for the memory of each step, and before it whether the prompt is
/// still wanted. Errors: invalid_argument (does not fit the context, or the template refuses it), unsupported (the
/// model has no chat template we can render), out_of_budget, cancelled.
Expected<text::Prompt> make_prompt(const engine::Engine& engine, const Job& job, text::WorkGrant* grant = nullptr);

/// Null where the job asks for no form. Each answer needs its own. A thought that the prompt has opened is free.
/// Errors: invalid_argument, unsupported (the schema), out_of_budget and cancelled (by the grant).
Expected<std::shared_ptr<text::Constraint>> make_constraint(const engine::Engine& engine, const Job& job,
                                                            const text::Prompt& prompt,
                                                            text::WorkGrant* grant = nullptr);

/// How the answer is taken apart.
text::AnswerForm answer_form(const Job& job, const text::Prompt& prompt);

/// True where the answer is a tool call and nothing else (tool_choice required or named).
bool must_call_tool(const Job& job);

}  // namespace millrace::generate
