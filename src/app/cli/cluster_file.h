// The file that describes a cluster (docs/guide/clusters.md): its hosts, what each may take and how fast it is, and the
// network.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/cluster_plan.h"

namespace millrace::cli {

struct ClusterFile {
  std::vector<engine::ClusterHost> hosts;
  engine::ClusterNetwork network{0.0002, 1.25e9};
};

/// Files of rates that it names lie beside it. Errors: not_found, io_error; invalid_argument, which names what is
/// wrong.
Expected<ClusterFile> read_cluster_file(const std::string& path);

}  // namespace millrace::cli
