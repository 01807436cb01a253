// From a Job to the tokens a model goes on with.
// Thread-safety: functions of immutable parts of the engine; any thread.
#pragma once

#include <memory>
#include <vector>

#include "app/generate/job.h"
#include "app/generate/sight.h"
#include "base/work_grant.h"
#include "engine/engine.h"
#include "text/answer_parser.h"

namespace millrace::generate {

/// What the answer goes on from. Messages that do not fit are left out in a number of steps that grows with the
/// logarithm of theirs. `grant` (may be null) is asked for the work on the job's texts, for the memory of each step,
/// and before it whether the prompt is still wanted. Errors: invalid_argument (does not fit the context, or the
/// template refuses it), unsupported (the model has no chat template we can render, or fills in no gaps),
/// out_of_budget, cancelled. Pictures are not encoded yet: see_pictures().
Expected<Prompt> make_prompt(const engine::Engine& engine, const Job& job, WorkGrant* grant = nullptr);

/// What the assistant has said already, where its turn is the last one; empty: nothing.
std::string begun_answer(const Job& job);

/// How the answer is taken apart.
text::AnswerForm answer_form(const Job& job, const text::Prompt& prompt);

/// How an answer is taken apart that is of messages with headers, calls left alone.
text::AnswerForm message_form(const text::Prompt& prompt);

/// True where the answer is a tool call and nothing else (tool_choice required or named).
bool must_call_tool(const Job& job);

}  // namespace millrace::generate
