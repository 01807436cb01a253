// From a Job to the tokens a model goes on with, and to the form its answer must keep.
// Thread-safety: functions of immutable parts of the engine; any thread.
#pragma once

#include <memory>
#include <vector>

#include "app/generate/job.h"
#include "engine/engine.h"
#include "text/answer_parser.h"

namespace millrace::generate {

/// What the answer goes on from. Errors: invalid_argument (does not fit the context, or the template refuses it),
/// unsupported (the model has no chat template we can render).
Expected<text::Prompt> make_prompt(const engine::Engine& engine, const Job& job);

/// Null where the job asks for no form. Each answer needs its own. A thought that the prompt has opened is free.
/// Errors: invalid_argument, unsupported (the schema).
Expected<std::shared_ptr<text::Constraint>> make_constraint(const engine::Engine& engine, const Job& job,
                                                            const text::Prompt& prompt);

/// How the answer is taken apart.
text::AnswerForm answer_form(const Job& job, const text::Prompt& prompt);

/// True where the answer is a tool call and nothing else (tool_choice required or named).
bool must_call_tool(const Job& job);

}  // namespace millrace::generate
