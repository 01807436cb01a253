// Ranks that an MPI launcher started (mpirun, srun), on one machine or several. MPI is in a plugin of its own
// (link/mpi_plugin.h), which is loaded here. Each rank but 0 tells rank 0 twice a second that it lives, and rank 0
// tells all; who has not been heard of for 6 s is taken for dead, waits end with io_error, and 2 s later the whole job,
// with kExitGone. Thread-safety: as Link.
#pragma once

#include <memory>

#include "base/status.h"
#include "link/link.h"

namespace millrace::link {

/// The job's exit code where a rank is gone.
constexpr int kExitGone = 3;

/// Whether the environment says that this is one of several processes of an MPI launcher.
bool started_by_mpi();

/// Before this process becomes mpirun: has it miss a host that is cut off, unless the environment says otherwise.
/// Without that a job whose network is cut ends everywhere but in mpirun itself, which waits for the host.
void prepare_mpirun();

/// Joins them; leaving them is the destructor's, which waits for the others to do the same. Errors: unsupported (no
/// plugin, or MPI cannot begin: says why and what to do).
Expected<std::unique_ptr<Link>> join_mpi();

}  // namespace millrace::link
