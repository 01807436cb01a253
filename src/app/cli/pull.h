// Fetching a model from the command line, for verbs that need one.
#pragma once

#include <string>

#include "app/cli/command.h"

namespace millrace::cli {

/// With bars and messages, as `millrace pull` does it. The exit code; what failed was told.
int pull_model(const std::string& name, const Program& program);

}  // namespace millrace::cli
