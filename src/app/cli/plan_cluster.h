// `millrace plan MODEL --cluster FILE`: which host of a cluster would have which layers, and how fast that is.
#pragma once

#include <string>

#include "engine/engine.h"

namespace millrace::cli {

/// Prints the plan for the hosts that the file names (docs/guide/clusters.md); the exit code.
int print_cluster_plan(const engine::EngineOptions& options, const std::string& path);

}  // namespace millrace::cli
