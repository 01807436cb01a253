#include "app/cli/cluster_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "app/cli/command.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/json_nesting.h"
#include "kernels/gpu/ops.h"
#include "residency/calibrate.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

using PlainJson = nlohmann::json;

constexpr std::size_t kMostFileBytes = 1u << 20;
constexpr std::int64_t kMostHosts = 1024, kMostProcessors = 1 << 16;

/// Reads one description of a cluster, or of a machine.
class ClusterReader {
 public:
  explicit ClusterReader(std::filesystem::path path) : path_(std::move(path)) {}

  Expected<engine::Machine> read_machine() {
    MR_ASSIGN_OR_RETURN(const PlainJson all, parse());
    std::vector<engine::Machine> machines;
    const Status status = read_host(all, machines);
    if (!status.ok()) return status.with_context(path_.string());
    if (machines.size() > 1)
      return error(Code::invalid_argument, "{}: a plan is for one machine; leave \"count\" out", path_.string());
    if (machines.front().rates.machine.empty()) machines.front().rates.machine = machines.front().name;
    return std::move(machines.front());
  }

  Expected<ClusterFile> read() {
    MR_ASSIGN_OR_RETURN(const PlainJson all, parse());
    ClusterFile file;
    Status status = read_all(all, file);
    if (status.ok() && file.hosts.empty()) status = error(Code::invalid_argument, "it names no \"hosts\"");
    for (const engine::ClusterHost& host : file.hosts)
      if (status.ok() && host.gpus > 1)
        status =
            error(Code::invalid_argument, "{}: each host of a cluster uses one GPU; leave \"gpus\" out", host.name);
    if (!status.ok()) return status.with_context(path_.string());
    return file;
  }

 private:
  Expected<PlainJson> parse() const {
    MR_ASSIGN_OR_RETURN(const std::string text, residency::read_small_file(path_.string(), kMostFileBytes));
    if (nests_too_deep(text)) return error(Code::invalid_argument, "{}: it nests too deep", path_.string());
    PlainJson all = PlainJson::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!all.is_object()) return error(Code::invalid_argument, "{}: it is not a JSON object", path_.string());
    return all;
  }

  Status read_all(const PlainJson& all, ClusterFile& file) const {
    for (const auto& [key, value] : all.items()) {
      if (key == "hosts" && value.is_array()) {
        for (const PlainJson& host : value) MR_RETURN_IF_ERROR(read_host(host, file.hosts));
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

  Status read_host(const PlainJson& host, std::vector<engine::ClusterHost>& hosts) const {
    if (!host.is_object()) return error(Code::invalid_argument, "a host is an object");
    engine::ClusterHost read;
    std::int64_t count = 1;
    for (const auto& [key, value] : host.items()) {
      if (key == "name" && value.is_string()) {
        read.name = value.get<std::string>();
      } else if (key == "ram" && value.is_string()) {
        MR_ASSIGN_OR_RETURN(read.ram_bytes, parse_bytes(value.get<std::string>()));
      } else if (key == "vram" && value.is_string()) {
        MR_ASSIGN_OR_RETURN(read.vram_bytes, parse_bytes(value.get<std::string>()));
      } else if (key == "gpus" && value.is_number_integer() && value > 0 && value <= kernels::gpu::kMostGpus) {
        read.gpus = value.get<int>();
      } else if (key == "count" && value.is_number_integer() && value.get<std::int64_t>() > 0) {
        count = value.get<std::int64_t>();
      } else if (key == "rates" && value.is_string()) {
        const std::filesystem::path rates = path_.parent_path() / value.get<std::string>();
        MR_ASSIGN_OR_RETURN(read.rates, read_rates(rates.string()));
      } else if (key == "rates" && value.is_object()) {
        MR_ASSIGN_OR_RETURN(read.rates, residency::parse_rates_json(
                                            value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
      } else if (key == "processors" && value.is_number_integer() && value.get<std::int64_t>() > 0) {
        read.processors = static_cast<int>(std::min<std::int64_t>(value.get<std::int64_t>(), kMostProcessors));
      } else {
        return wrong(key,
                     fmt::format("a host has \"name\", \"ram\" (\"48G\"), \"vram\" (of each GPU), \"gpus\" (1 to {}), "
                                 "\"processors\", \"rates\" (a file of 'millrace calibrate --out', or its "
                                 "contents), and \"count\"",
                                 kernels::gpu::kMostGpus));
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

  static bool positive(const PlainJson& value) { return value.is_number() && value.get<double>() > 0; }
  static Status wrong(const std::string& key, const std::string& known) {
    return error(Code::invalid_argument, "\"{}\" is unknown or has a value of another kind; {}", key, known);
  }

  std::filesystem::path path_;
};

}  // namespace

Expected<ClusterFile> read_cluster_file(const std::string& path) { return ClusterReader(path).read(); }
Expected<engine::Machine> read_machine_file(const std::string& path) { return ClusterReader(path).read_machine(); }

}  // namespace millrace::cli
