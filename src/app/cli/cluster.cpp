#include "app/cli/cluster.h"

#include <csignal>
#include <vector>

#include "base/log.h"
#include "link/message.h"
#include "link/mpi_link.h"

namespace millrace::cli {

void add_stages_flag(CLI::App& command, ModelFlags& flags) {
  CLI::Option* const option = command.add_option(
      "--stages", flags.stages,
      "Under mpirun or srun: the layers of each process, for example 0-10,11-21 (default: by the memory of each)");
  flags.options.push_back(option);
}

Expected<Ranks> Ranks::join(const ModelFlags& flags) {
  Ranks ranks;
  if (!link::started_by_mpi()) {
    if (flags.stages.empty()) return ranks;
    return error(Code::invalid_argument, "--stages is for several processes; start them with mpirun or srun");
  }
  if (!flags.plan.empty())
    return error(Code::invalid_argument, "--plan is for one process; leave it out under mpirun or srun");
  MR_ASSIGN_OR_RETURN(ranks.link_, link::join_mpi());
  log::info("{} of {}", ranks.link_->name(ranks.link_->rank()), ranks.link_->size());
  if (ranks.link_->rank() == 0) ranks.cluster_ = std::make_unique<engine::Cluster>(*ranks.link_, flags.stages);
  return ranks;
}

Ranks::~Ranks() {
  if (alone() || follows()) return;
  std::vector<std::byte> message;
  const link::Writer end(message, link::MessageKind::end);
  if (const Status sent = link_->send_others(message); !sent.ok()) log::warn("{}", sent.message());
}

int Ranks::follow(const Expected<engine::EngineOptions>& options) const {
  // A signal to the whole job is rank 0's to heed: requests under way need their other layers until they are done.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  const Status status = engine::follow(*link_, options);
  return status.ok() ? 0 : fail(status);
}

}  // namespace millrace::cli
