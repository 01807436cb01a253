// Anthropic's tools and the choice among them. Pure functions.
#pragma once

#include "app/generate/job.h"

namespace millrace::anthropic {

/// tools and tool_choice into the job's. Tools of Anthropic's own that the client runs (bash, the text editor, memory)
/// become functions with their schemas; those that Anthropic's servers run are left out with a warning.
/// Errors: invalid_argument, unsupported (a tool is demanded that nobody here runs).
Status parse_tools(const generate::Json& body, generate::Job& job);

}  // namespace millrace::anthropic
