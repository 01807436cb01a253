// How much a model is to think, by the names that each API has for it.
// Thread-safety: pure.
#pragma once

#include "app/generate/job.h"
#include "base/status.h"

namespace millrace::generate {

/// think, enable_thinking, reasoning_effort, reasoning, thinking, output_config.effort, thinking_budget and
/// chat_template_kwargs, whichever API the body is of. Errors: invalid_argument (a value that is none of theirs).
Status take_thinking(const Json& body, Job& job);

}  // namespace millrace::generate
