#include "app/cli/plan_cluster.h"

#include <fmt/core.h>

#include "app/cli/cluster_file.h"
#include "app/cli/command.h"
#include "base/bytes.h"
#include "engine/cluster_plan.h"

namespace millrace::cli {
namespace {

std::string share_of(double bytes, double all) { return all > 0 ? fmt::format("{:.0f} %", bytes / all * 100) : "-"; }

void print_stage(const ClusterFile& file, const engine::ClusterStage& stage) {
  const residency::Plan& plan = stage.plan;
  const auto all = static_cast<double>(stage.weight_bytes);
  const bool on_gpu = file.hosts[stage.host].vram_bytes > 0;
  double read = 0, in_ram = 0;
  for (const residency::Plan::Row& row : plan.rows) {
    if (row.tier == residency::tier_name(residency::Tier::disk)) read += row.bytes_per_token;
    if (row.tier == residency::tier_name(residency::Tier::ram)) in_ram += static_cast<double>(row.bytes);
  }
  if (!on_gpu)
    in_ram = static_cast<double>(plan.resident_bytes) +
             static_cast<double>(plan.expert_slot_bytes) * static_cast<double>(plan.expert_slots);
  fmt::print("{:<16} {:>9} {:>10} {:>8} {:>8} {:>12}   {:.3g} ms, bound by {}\n", file.hosts[stage.host].name,
             fmt::format("{}-{}", stage.layers.first, stage.layers.last - 1), format_bytes(stage.weight_bytes),
             on_gpu ? share_of(static_cast<double>(plan.vram_weight_bytes), all) : "-",
             share_of(std::min(all, in_ram), all), format_bytes(static_cast<std::uint64_t>(read)),
             stage.one.seconds * 1e3, stage.one.bound);
}

void print_plan(const ClusterFile& file, const engine::ClusterPlan& plan) {
  fmt::print("{:<16} {:>9} {:>10} {:>8} {:>8} {:>12}   {}\n", "host", "layers", "weights", "in VRAM", "in RAM",
             "disk/token", "a token");
  for (const engine::ClusterStage& stage : plan.stages) print_stage(file, stage);
  const std::size_t idle = file.hosts.size() - plan.stages.size();
  if (idle > 0)
    fmt::print("{} of {} hosts have no layers: with them it would not be faster\n", idle, file.hosts.size());
  if (plan.stages.size() > 1) fmt::print("--stages {}\n", plan.stages_flag());
  fmt::print("network: {:.3g} ms of a token's time\n", plan.border_seconds * 1e3);
  fmt::print("context: up to {} tokens\n", plan.context_tokens);
  fmt::print("one sequence: {:.3g} tok/s\n", plan.one_tokens_per_second);
  if (plan.sequences > 1) fmt::print("{} sequences: {:.3g} tok/s together\n", plan.sequences, plan.tokens_per_second);
}

}  // namespace

int print_cluster_plan(const engine::EngineOptions& options, const std::string& path) {
  const Expected<ClusterFile> file = read_cluster_file(path);
  if (!file.ok()) return fail(file.status());
  const Expected<engine::ClusterPlan> plan = engine::plan_cluster(options, file->hosts, file->network);
  if (!plan.ok()) return fail(plan.status());
  print_plan(*file, *plan);
  return 0;
}

}  // namespace millrace::cli
