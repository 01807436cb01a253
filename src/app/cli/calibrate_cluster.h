// `mpirun ... millrace calibrate`: each host measures itself, the ways between them are measured, and rank 0 makes the
// file of it that --cluster takes.
#pragma once

#include <string>
#include <vector>

#include "app/cli/cluster_file.h"
#include "base/status.h"
#include "link/link.h"
#include "residency/plan.h"

namespace millrace::cli {

struct MeasuredCluster {
  ClusterFile file;  // on rank 0; elsewhere empty. The network: the slowest way's rate, the longest latency
  std::string json;  // as --cluster reads it
};

/// All ranks call it when they have measured themselves (`own`). `ram_bytes`: that millrace may take on this host,
/// shared by the ranks there. Errors: those of a rank, which is named; of the link.
Expected<MeasuredCluster> gather_cluster(link::Link& link, const Expected<residency::Rates>& own,
                                         std::uint64_t ram_bytes);

/// What there is to see of it: a line for each host, the network, the slowest of which a pass waits for.
void print_cluster(const ClusterFile& file);

}  // namespace millrace::cli
