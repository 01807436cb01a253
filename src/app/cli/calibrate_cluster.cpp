#include "app/cli/calibrate_cluster.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/json.h"
#include "device/gpu.h"
#include "engine/setup.h"
#include "link/measure.h"
#include "link/message.h"

namespace millrace::cli {
namespace {

using Json = nlohmann::ordered_json;
using link::MessageKind;

constexpr std::uint64_t kPercentOfVram = 92;  // others have some, and the driver

/// What a rank says of itself.
struct OwnMeasure {
  Status status;
  HostMemory memory;
  std::string rates;

  void write(std::vector<std::byte>& message) const {
    link::Writer writer(message, MessageKind::measured);
    writer.number(link::kProtocol);
    writer.number(status.code());
    writer.text(status.message());
    writer.number(memory.ram_bytes);
    writer.number(memory.vram_bytes);
    writer.number(memory.gpus);
    writer.text(rates);
  }
  static Expected<OwnMeasure> read(std::span<const std::byte> message) {
    link::Reader reader(message);
    if (reader.kind() != MessageKind::measured || reader.number<std::uint32_t>() != link::kProtocol)
      return link::other_version();
    OwnMeasure own;
    const auto code = reader.number<Code>();
    own.status = Status(code, reader.text());
    own.memory.ram_bytes = reader.number<std::uint64_t>();
    own.memory.vram_bytes = reader.number<std::uint64_t>();
    own.memory.gpus = reader.number<std::int32_t>();
    own.rates = reader.text();
    MR_RETURN_IF_ERROR(reader.status());
    return own;
  }
};

/// What all ranks say, by rank. Errors: the first failure; then every rank knows that there is nothing more to do.
Expected<std::vector<OwnMeasure>> collect(link::Link& link, OwnMeasure own) {
  std::vector<OwnMeasure> all(static_cast<std::size_t>(link.size()));
  Status failed = own.status.with_context(link.name(0));
  all[0] = std::move(own);
  std::vector<std::byte> message;
  for (int answers = 1; answers < link.size(); ++answers) {
    MR_ASSIGN_OR_RETURN(const int from, link.receive(message));
    Expected<OwnMeasure> said = OwnMeasure::read(message);
    const Status status = said.ok() ? said->status : said.status();
    if (failed.ok()) failed = status.with_context(link.name(from));
    if (said.ok()) all[static_cast<std::size_t>(from)] = std::move(*said);
  }
  const link::Writer go(message, failed.ok() ? MessageKind::measure : MessageKind::end);
  MR_RETURN_IF_ERROR(link.send_others(message));
  if (!failed.ok()) return failed;
  return all;
}

engine::ClusterNetwork slowest(const std::vector<link::WaySpeed>& ways) {
  engine::ClusterNetwork network{ways.at(0).seconds, ways.at(0).bytes_per_second};
  for (const link::WaySpeed& way : ways) {
    network.seconds = std::max(network.seconds, way.seconds);
    network.bytes_per_second = std::min(network.bytes_per_second, way.bytes_per_second);
  }
  return network;
}

/// Three digits, which is more than a measurement is worth.
double rounded(double value) { return std::strtod(fmt::format("{:.3g}", value).c_str(), nullptr); }

Expected<MeasuredCluster> describe(const link::Link& link, const std::vector<OwnMeasure>& all,
                                   const std::vector<link::WaySpeed>& ways) {
  MeasuredCluster cluster;
  cluster.file.network = slowest(ways);
  Json json = {{"latency_ms", rounded(cluster.file.network.seconds * 1e3)},
               {"gbit_per_second", rounded(cluster.file.network.bytes_per_second * 8e-9)},
               {"hosts", Json::array()}};
  const bool on_gpus = std::all_of(all.begin(), all.end(), [](const OwnMeasure& own) { return own.memory.gpus > 0; });
  for (int rank = 0; rank < link.size(); ++rank) {
    const OwnMeasure& own = all[static_cast<std::size_t>(rank)];
    std::uint64_t there = 0;
    for (int other = 0; other < link.size(); ++other) there += link.host(other) == link.host(rank) ? 1 : 0;
    MR_ASSIGN_OR_RETURN(residency::Rates rates, residency::parse_rates_json(own.rates));
    const auto megabytes = [](std::uint64_t bytes) { return fmt::format("{}M", bytes / 1'000'000); };
    engine::ClusterHost host{link.host(rank), own.memory.ram_bytes / there, std::move(rates)};
    Json described = {{"name", host.name}, {"ram", megabytes(host.ram_bytes)}};
    if (on_gpus) {  // ranks of a host take its GPUs in turn
      const auto gpus = static_cast<std::uint64_t>(own.memory.gpus);
      host.vram_bytes = own.memory.vram_bytes / ((there + gpus - 1) / gpus);
      described["vram"] = megabytes(host.vram_bytes);
    }
    described["rates"] = Json::parse(own.rates, nullptr, false);
    cluster.file.hosts.push_back(std::move(host));
    json["hosts"].push_back(std::move(described));
  }
  cluster.json = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return cluster;
}

std::string rate(double bytes_per_second) { return format_bytes(static_cast<std::uint64_t>(bytes_per_second)) + "/s"; }

}  // namespace

HostMemory host_memory() {
  HostMemory memory{engine::ram_of({})};
  const auto gpus = device::gpus();
  if (!device::gpus_are_for_auto() || !gpus.ok() || gpus->empty()) return memory;
  memory.gpus = static_cast<std::int32_t>(gpus->size());
  memory.vram_bytes = gpus->front().total_bytes;
  for (const device::Gpu& gpu : *gpus) memory.vram_bytes = std::min(memory.vram_bytes, gpu.total_bytes);
  memory.vram_bytes = memory.vram_bytes / 100 * kPercentOfVram;
  return memory;
}

Expected<MeasuredCluster> gather_cluster(link::Link& link, const Expected<residency::Rates>& own,
                                         const HostMemory& memory) {
  OwnMeasure said{own.status(), memory, own.ok() ? residency::rates_to_json(*own) : std::string()};
  if (link.rank() == 0) {
    MR_ASSIGN_OR_RETURN(const std::vector<OwnMeasure> all, collect(link, std::move(said)));
    MR_ASSIGN_OR_RETURN(const std::vector<link::WaySpeed> ways, link::measure_ways(link));
    return describe(link, all, ways);
  }
  std::vector<std::byte> message;
  said.write(message);
  MR_RETURN_IF_ERROR(link.send(0, message));
  MR_RETURN_IF_ERROR(link.receive(message).status());
  if (link::Reader(message).kind() != MessageKind::measure) return MeasuredCluster();  // rank 0 says why
  MR_RETURN_IF_ERROR(link::measure_ways(link).status());
  return MeasuredCluster();
}

void print_cluster(const ClusterFile& file) {
  fmt::print("{:<16} {:>10} {:>10} {:>12} {:>12}\n", "host", "VRAM", "RAM", "disk", "decode");
  for (const engine::ClusterHost& host : file.hosts)
    fmt::print("{:<16} {:>10} {:>10} {:>12} {:>12}\n", host.name,
               host.vram_bytes > 0 ? format_bytes(host.vram_bytes) : "-", format_bytes(host.ram_bytes),
               rate(host.rates.disk), rate(host.rates.cpu_decode));
  fmt::print("network: {:.3g} ms one way, {:.3g} Gbit/s (the slowest way between neighbours)\n",
             file.network.seconds * 1e3, file.network.bytes_per_second * 8e-9);
}

}  // namespace millrace::cli
