#include "app/cli/cluster.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "app/cli/cluster_file.h"
#include "base/log.h"
#include "base/os/process.h"
#include "base/os/signals.h"
#include "engine/cluster_plan.h"
#include "link/message.h"
#include "link/mpi_link.h"

namespace millrace::cli {

void add_cluster_flags(CLI::App& command, ModelFlags& flags) {
  CLI::Option* const option = command.add_option(
      "--stages", flags.stages,
      "Under mpirun or srun: the layers of each process, for example 0-10,11-21 (default: by the memory of each)");
  flags.options.push_back(option);
  flags.options.push_back(command.add_flag(
      "--fetch-share", flags.fetch_share,
      "Fetch the model from its hub, each process what its layers need of it (MODEL is hf.co/user/repo:QUANT)"));
  flags.options.push_back(command.add_option(
      "--cluster", flags.cluster, "Start on the hosts in this file, by ssh and mpirun (see plan --cluster)"));
}

namespace {

/// This process's words; those of --cluster are left out, and `place` is where they stood.
Expected<std::vector<std::string>> own_words(std::size_t& place) {
  MR_ASSIGN_OR_RETURN(std::vector<std::string> words, os::command_line());
  place = words.size();
  for (std::size_t i = 1; i < words.size(); ++i) {
    const bool joined = words[i].starts_with("--cluster=");
    if (words[i] != "--cluster" && !joined) continue;
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(i);
    words.erase(first, first + (joined ? 1 : 2));
    place = i;
    break;
  }
  return words;
}

/// What mpirun is told: a part for each host.
std::vector<std::string> launch_words(const std::vector<std::string>& own, std::size_t place, const ClusterFile& file,
                                      const engine::ClusterPlan& plan) {
  std::vector<std::string> words = {"mpirun", "--bind-to", "none", "--oversubscribe"};
  for (const engine::ClusterStage& stage : plan.stages) {
    const engine::ClusterHost& host = file.hosts[stage.host];
    if (&stage != &plan.stages.front()) words.emplace_back(":");
    words.insert(words.end(), {"-np", "1", "--host", host.name});
    const auto middle = own.begin() + static_cast<std::ptrdiff_t>(place);
    words.insert(words.end(), own.begin(), middle);
    words.insert(words.end(), {"--ram", std::to_string(host.ram_bytes)});
    if (host.vram_bytes > 0) words.insert(words.end(), {"--device", "cuda", "--vram", std::to_string(host.vram_bytes)});
    if (plan.stages.size() > 1) words.insert(words.end(), {"--stages", plan.stages_flag()});
    words.insert(words.end(), middle, own.end());
  }
  return words;
}

}  // namespace

Status check_beside_cluster(const ModelFlags& flags) {
  if (flags.ram.empty() && flags.vram.empty() && flags.stages.empty() && flags.rates.empty() && flags.plan.empty() &&
      flags.device == "auto")
    return {};
  return error(Code::invalid_argument,
               "--cluster sets what --ram, --vram, --device, --stages, --rates and --plan would; leave them out");
}

Status launch_cluster(const ModelFlags& flags, const Program& program, std::int64_t sequences) {
  if (flags.cluster.empty() || link::started_by_mpi()) return {};
  MR_RETURN_IF_ERROR(check_beside_cluster(flags));
  MR_ASSIGN_OR_RETURN(engine::EngineOptions options, engine_options(flags, program));
  options.demand.max_sequences = sequences;
  MR_ASSIGN_OR_RETURN(const ClusterFile file, read_cluster_file(flags.cluster));
  MR_ASSIGN_OR_RETURN(const engine::ClusterPlan plan, engine::plan_cluster(options, file.hosts, file.network));
  std::size_t place = 0;
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> own, own_words(place));
  if (std::find(own.begin(), own.end(), ":") != own.end())
    return error(Code::invalid_argument, "mpirun takes a word ':' for its own; write it otherwise");
  const std::vector<std::string> words = launch_words(own, place, file, plan);
  log::info("{}", fmt::join(words, " "));
  std::fflush(nullptr);
  link::prepare_mpirun();
  return error(Code::not_found, "mpirun cannot be started ({}); install Open MPI (Debian: openmpi-bin)",
               os::replace_process(words).message());
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
  os::ignore_stop_requests();
  const Status status = engine::follow(*link_, options);
  return status.ok() ? 0 : fail(status);
}

}  // namespace millrace::cli
