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

/// What millrace may take on a host, shared by the ranks there.
struct HostMemory {
  std::uint64_t ram_bytes = 0;
  std::uint64_t vram_bytes = 0;  // of each of its GPUs
  std::int32_t gpus = 0;
};
/// Of this one.
HostMemory host_memory();

/// All ranks call it when they have measured themselves (`own`). Where each of them has a GPU, the file says so.
/// Errors: those of a rank, which is named; of the link.
Expected<MeasuredCluster> gather_cluster(link::Link& link, const Expected<residency::Rates>& own,
                                         const HostMemory& memory);

/// What there is to see of it: a line for each host, the network, the slowest of which a pass waits for.
void print_cluster(const ClusterFile& file);

}  // namespace millrace::cli
