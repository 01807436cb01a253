// What a verb does where an MPI launcher started it as one of several processes: rank 0 is the command line as ever,
// the others compute their layers until it ends.
#pragma once

#include <memory>
#include <optional>

#include "app/cli/command.h"
#include "base/status.h"
#include "engine/cluster.h"
#include "link/link.h"

namespace millrace::cli {

/// "--stages", "--cluster".
void add_cluster_flags(CLI::App& command, ModelFlags& flags);

/// Errors: invalid_argument (flags that the file of --cluster stands for).
Status check_beside_cluster(const ModelFlags& flags);

/// With --cluster FILE: becomes mpirun, which starts this command anew on the hosts that have layers by the plan for so
/// many sequences, each with its memory. Returns where the flag is not given, or in a process that mpirun started.
/// Errors: those of the file and the plan; invalid_argument (flags that the file stands for); not_found (no mpirun).
Status launch_cluster(const ModelFlags& flags, const Program& program, std::int64_t sequences);

/// The process's place among others; it is alone where nobody started others. Outlives every engine.
class Ranks {
 public:
  /// Errors: unsupported (no MPI, see link::join_mpi()), invalid_argument (flags that only several processes, or only
  /// one, can heed).
  static Expected<Ranks> join(const ModelFlags& flags);
  Ranks(Ranks&&) = default;
  /// Rank 0: the others end.
  ~Ranks();

  bool alone() const { return link_ == nullptr; }
  /// Not rank 0: the verb is to call follow() and nothing else.
  bool follows() const { return !alone() && link_->rank() > 0; }
  /// 0 where it is alone.
  int rank() const { return alone() ? 0 : link_->rank(); }
  /// Until rank 0 ends; the exit code. What is wrong with the options is for rank 0 to say.
  int follow(const Expected<engine::EngineOptions>& options) const;
  /// For engine::PartOptions::cluster.
  engine::Cluster* cluster() const { return cluster_.get(); }

 private:
  Ranks() = default;

  std::unique_ptr<link::Link> link_;
  std::unique_ptr<engine::Cluster> cluster_;  // rank 0's
};

}  // namespace millrace::cli
