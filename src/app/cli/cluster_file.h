// Files that describe machines (docs/reference/machine-files.md): a cluster, which is its hosts, the memory that each
// may take, their rates and the network; or one machine, which has the form of a host.
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
/// Errors: the same.
Expected<engine::Machine> read_machine_file(const std::string& path);

}  // namespace millrace::cli
