#include "app/cli/plan_cluster.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/cli/command.h"
#include "base/bytes.h"
#include "engine/cluster_plan.h"
#include "residency/calibrate.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostFileBytes = 1u << 20;
constexpr std::int64_t kMostHosts = 1024;

struct ClusterFile {
  std::vector<engine::ClusterHost> hosts;
  engine::ClusterNetwork network{0.0002, 1.25e9};
};

/// Reads one description of a cluster.
class ClusterReader {
 public:
  explicit ClusterReader(std::filesystem::path path) : path_(std::move(path)) {}

  Expected<ClusterFile> read() {
    MR_ASSIGN_OR_RETURN(const std::string text, residency::read_small_file(path_.string(), kMostFileBytes));
    const Json all = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!all.is_object()) return error(Code::invalid_argument, "{}: it is not a JSON object", path_.string());
    ClusterFile file;
    Status status = read_all(all, file);
    if (status.ok() && file.hosts.empty()) status = error(Code::invalid_argument, "it names no \"hosts\"");
    if (!status.ok()) return status.with_context(path_.string());
    return file;
  }

 private:
  Status read_all(const Json& all, ClusterFile& file) const {
    for (const auto& [key, value] : all.items()) {
      if (key == "hosts" && value.is_array()) {
        for (const Json& host : value) MR_RETURN_IF_ERROR(read_host(host, file.hosts));
      } else if (key == "gbit_per_second" && positive(value)) {
        file.network.bytes_per_second = value.get<double>() * 1e9 / 8;
      } else if (key == "latency_ms" && value.is_number() && value.get<double>() >= 0) {
        file.network.seconds = value.get<double>() * 1e-3;
      } else {
        return wrong(key, "\"hosts\" (a list), \"gbit_per_second\" and \"latency_ms\" (numbers) are known");
      }
    }
    return {};
  }

  Status read_host(const Json& host, std::vector<engine::ClusterHost>& hosts) const {
    if (!host.is_object()) return error(Code::invalid_argument, "a host is an object");
    engine::ClusterHost read;
    std::int64_t count = 1;
    for (const auto& [key, value] : host.items()) {
      if (key == "name" && value.is_string()) {
        read.name = value.get<std::string>();
      } else if (key == "ram" && value.is_string()) {
        MR_ASSIGN_OR_RETURN(read.ram_bytes, parse_bytes(value.get<std::string>()));
      } else if (key == "count" && value.is_number_integer() && value.get<std::int64_t>() > 0) {
        count = value.get<std::int64_t>();
      } else if (key == "rates" && value.is_string()) {
        const std::filesystem::path rates = path_.parent_path() / value.get<std::string>();
        MR_ASSIGN_OR_RETURN(read.rates, read_rates(rates.string()));
      } else if (key == "rates" && value.is_object()) {
        MR_ASSIGN_OR_RETURN(read.rates, residency::parse_rates_json(
                                            value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
      } else {
        return wrong(key,
                     "a host has \"name\", \"ram\" (\"48G\"), \"rates\" (a file of 'millrace calibrate --out', or what "
                     "stands in one), and \"count\"");
      }
    }
    if (read.name.empty() || read.ram_bytes == 0)
      return error(Code::invalid_argument, "a host has a \"name\" and \"ram\"");
    if (count > kMostHosts - std::ssize(hosts))
      return error(Code::invalid_argument, "there are more than {} hosts", kMostHosts);
    for (std::int64_t i = 0; i < count; ++i) {
      hosts.push_back(read);
      if (count > 1) hosts.back().name = fmt::format("{}-{}", read.name, i + 1);
    }
    return {};
  }

  static bool positive(const Json& value) { return value.is_number() && value.get<double>() > 0; }
  static Status wrong(const std::string& key, std::string_view known) {
    return error(Code::invalid_argument, "\"{}\" is unknown or has a value of another kind; {}", key, known);
  }

  std::filesystem::path path_;
};

std::string share_of(double bytes, double all) { return all > 0 ? fmt::format("{:.0f} %", bytes / all * 100) : "-"; }

void print_stage(const ClusterFile& file, const engine::ClusterStage& stage) {
  const residency::Plan& plan = stage.plan;
  const auto all = static_cast<double>(stage.weight_bytes);
  const auto in_ram = static_cast<double>(plan.resident_bytes) +
                      static_cast<double>(plan.expert_slot_bytes) * static_cast<double>(plan.expert_slots);
  double read = 0;
  for (const residency::Plan::Row& row : plan.rows)
    if (row.tier == residency::tier_name(residency::Tier::disk)) read += row.bytes_per_token;
  fmt::print("{:<16} {:>9} {:>10} {:>8} {:>12}   {:.3g} ms, bound by {}\n", file.hosts[stage.host].name,
             fmt::format("{}-{}", stage.layers.first, stage.layers.last - 1), format_bytes(stage.weight_bytes),
             share_of(std::min(all, in_ram), all), format_bytes(static_cast<std::uint64_t>(read)),
             stage.one.seconds * 1e3, stage.one.bound);
}

void print_plan(const ClusterFile& file, const engine::ClusterPlan& plan) {
  fmt::print("{:<16} {:>9} {:>10} {:>8} {:>12}   {}\n", "host", "layers", "weights", "in RAM", "disk/token", "a token");
  for (const engine::ClusterStage& stage : plan.stages) print_stage(file, stage);
  const std::size_t idle = file.hosts.size() - plan.stages.size();
  if (idle > 0)
    fmt::print("{} of {} hosts have no layers: with them it would not be faster\n", idle, file.hosts.size());
  fmt::print("network: {:.3g} ms of a token's time\n", plan.border_seconds * 1e3);
  fmt::print("context: up to {} tokens\n", plan.context_tokens);
  fmt::print("one sequence: {:.3g} tok/s\n", plan.one_tokens_per_second);
  if (plan.sequences > 1) fmt::print("{} sequences: {:.3g} tok/s together\n", plan.sequences, plan.tokens_per_second);
}

}  // namespace

int print_cluster_plan(const engine::EngineOptions& options, const std::string& path) {
  const Expected<ClusterFile> file = ClusterReader(path).read();
  if (!file.ok()) return fail(file.status());
  const Expected<engine::ClusterPlan> plan = engine::plan_cluster(options, file->hosts, file->network);
  if (!plan.ok()) return fail(plan.status());
  print_plan(*file, *plan);
  return 0;
}

}  // namespace millrace::cli
