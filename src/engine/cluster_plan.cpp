#include "engine/cluster_plan.h"

#include <algorithm>

#include "engine/cluster.h"
#include "engine/cluster_terms.h"
#include "engine/setup.h"
#include "engine/share_layers.h"
#include "residency/type_rates.h"

namespace millrace::engine {
namespace {

constexpr double kFloat = sizeof(float);

/// Seconds that a row takes from one host to the next, and its logits from the last one back.
struct RowTimes {
  double border = 0, logits = 0;
};

RowTimes row_times(const model::Hyperparameters& hp, const ClusterNetwork& network) {
  return {network.seconds + static_cast<double>(hp.model_dim) * kFloat / network.bytes_per_second,
          network.seconds + static_cast<double>(hp.vocab) * kFloat / network.bytes_per_second};
}

Expected<ClusterStage> plan_stage(EngineOptions options, const ClusterHost& host, const model::Stage& layers, int ranks,
                                  std::int64_t rows, std::int64_t& context) {
  options.part.stage = layers;
  options.part.ranks = ranks;
  options.memory.ram_bytes = host.ram_bytes;
  options.planning.rates = host.rates;
  options.planning.find_rates = false;  // this machine's would be another's
  options.device.choice = host.vram_bytes > 0 ? DeviceChoice::cuda : DeviceChoice::cpu;
  options.memory.vram_bytes = host.vram_bytes;
  Expected<Parts> planned = host.vram_bytes > 0 ? assemble_gpu_on_paper(options) : assemble_plan(options);
  if (!planned.ok()) return planned.status().with_context(host.name);
  ClusterStage stage;
  stage.layers = layers;
  stage.plan = std::move(planned->plan);
  stage.one = residency::predict_pass(stage.plan, host.rates, {}, 1);
  residency::Work several;
  several.sequences = rows;
  stage.group = residency::predict_pass(stage.plan, host.rates, several, static_cast<double>(rows));
  if (stage.one.seconds <= 0 || stage.group.seconds <= 0)
    return error(Code::invalid_argument, "{}: its rates lack something; measure them anew with 'millrace calibrate'",
                 host.name);
  const std::int64_t own = planned->limits.context_tokens;
  context = context == 0 ? own : std::min(context, own);
  return stage;
}

/// Errors: invalid_argument.
Expected<RankSpeed> speed_of(const ClusterHost& host, const ClusterHost& first, const model::Model& whole) {
  const residency::Rates rates = rates_for(
      residency::weights_by_type(whole.units(), static_cast<int>(whole.hyperparameters().top_k), host.vram_bytes > 0),
      host.rates);
  if (rates.cpu_decode <= 0 || rates.disk <= 0)
    return error(Code::invalid_argument, "{}: its rates lack that of decoding or of its disk", host.name);
  if ((host.vram_bytes > 0) != (first.vram_bytes > 0))
    return error(Code::invalid_argument, "{} has \"vram\" and {} has none: all hosts compute on a GPU, or none does",
                 host.vram_bytes > 0 ? host.name : first.name, host.vram_bytes > 0 ? first.name : host.name);
  const std::uint64_t ram = host.ram_bytes / 100 * kPercentForWeights;
  if (host.vram_bytes == 0) return RankSpeed{ram, rates.cpu_decode, rates.disk};
  if (rates.device_memory <= 0 || rates.host_to_device <= 0)
    return error(Code::invalid_argument,
                 "{}: its rates lack those of its GPU; measure them with 'millrace calibrate' where the GPU is",
                 host.name);
  // A GPU reads weights as fast as a copy reads and writes; of those in RAM the processor has its share.
  return RankSpeed{ram, rates.shared_link() + rates.shared_decode(), rates.disk,
                   host.vram_bytes / 100 * kPercentForWeights, rates.device_memory};
}

/// Of so many sequences, rows that one of the passes under way has.
std::int64_t rows_of_pass(std::int64_t sequences, std::size_t stages) {
  const auto passes = static_cast<std::int64_t>(stages);
  return (sequences + passes - 1) / passes;
}

void predict(ClusterPlan& plan, const RowTimes& row) {
  const auto borders = static_cast<double>(plan.stages.size() - 1);
  const auto rows = static_cast<double>(rows_of_pass(plan.sequences, plan.stages.size()));
  plan.border_seconds = borders == 0 ? 0 : borders * row.border + row.logits;
  double one = plan.border_seconds, group = plan.border_seconds * rows, longest = 0;
  for (const ClusterStage& stage : plan.stages) {
    one += stage.one.seconds;
    group += stage.group.seconds;
    longest = std::max(longest, stage.group.seconds);
  }
  plan.one_tokens_per_second = 1 / one;
  // As many passes as there are stages go round; each stage has one at a time.
  plan.tokens_per_second = std::min(static_cast<double>(plan.sequences) / group, rows / longest);
}

}  // namespace

std::string ClusterPlan::stages_flag() const {
  std::string flag;
  for (const ClusterStage& stage : stages)
    flag += fmt::format("{}{}-{}", flag.empty() ? "" : ",", stage.layers.first, stage.layers.last - 1);
  return flag;
}

Expected<ClusterPlan> plan_cluster(const EngineOptions& given, std::span<const ClusterHost> hosts,
                                   const ClusterNetwork& network) {
  if (hosts.empty()) return error(Code::invalid_argument, "a cluster has one host at least");
  if (network.bytes_per_second <= 0) return error(Code::invalid_argument, "the network's rate is not known");
  MR_RETURN_IF_ERROR(check_cluster_options(given));
  EngineOptions options = given;
  leave_out_what_is_off(options);
  options.kv.prompt_cache.clear();
  options.speculate = {};
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, open_file(options));
  MR_ASSIGN_OR_RETURN(const auto whole, model::load(file, {.context_tokens = options.demand.context_tokens}));
  const model::Hyperparameters& hp = whole->hyperparameters();
  const RowTimes row = row_times(hp, network);
  std::vector<RankSpeed> ranks;
  for (const ClusterHost& host : hosts) {
    MR_ASSIGN_OR_RETURN(const RankSpeed speed, speed_of(host, hosts.front(), *whole));
    ranks.push_back(speed);
  }
  const std::uint64_t table = table_bytes(*whole);
  ranks.front().room -= std::min(ranks.front().room, table);  // or its rows are read as they are needed
  const std::vector<LayerLoad> loads = layer_loads(*whole);
  ClusterPlan plan;
  plan.sequences = std::max<std::int64_t>(options.demand.max_sequences, 1);
  MR_ASSIGN_OR_RETURN(const std::vector<model::Stage> placed,
                      place_layers(loads, ranks, row.border, plan.sequences > 1 ? Shortest::longest : Shortest::sum));
  const auto used = static_cast<std::size_t>(
      std::count_if(placed.begin(), placed.end(), [](const model::Stage& stage) { return stage.first < stage.last; }));
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (placed[host].first == placed[host].last) continue;
    model::Stage layers = placed[host];
    if (layers.last == hp.layers) layers.last = 0;  // and the head
    MR_ASSIGN_OR_RETURN(ClusterStage stage, plan_stage(options, hosts[host], layers, static_cast<int>(used),
                                                       rows_of_pass(plan.sequences, used), plan.context_tokens));
    stage.host = host;
    stage.layers = placed[host];
    stage.weight_bytes = placed[host].first == 0 ? table : 0;
    for (std::int64_t layer = placed[host].first; layer < placed[host].last; ++layer)
      stage.weight_bytes += loads[static_cast<std::size_t>(layer)].bytes;
    plan.stages.push_back(std::move(stage));
  }
  predict(plan, row);
  return plan;
}

}  // namespace millrace::engine
