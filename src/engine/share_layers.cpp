#include "engine/share_layers.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace millrace::engine {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

/// from[r][n]: where rank r's layers begin, if those of ranks 0 to r are the first n.
std::vector<model::Stage> stages_from(const std::vector<std::vector<std::size_t>>& from, std::size_t layers) {
  std::vector<model::Stage> stages(from.size());
  std::size_t end = layers;
  for (std::size_t rank = from.size(); rank-- > 0;) {
    const std::size_t first = from[rank][end];
    stages[rank] = {static_cast<std::int64_t>(first), static_cast<std::int64_t>(end)};
    end = first;
  }
  return stages;
}

/// The stages of the smallest largest one, none of them beyond its rank's room; empty: there is no such way.
/// least[r][n]: the largest stage of ranks 0 to r where they have the first n layers; from[r][n]: where r's begin.
std::vector<model::Stage> cut(std::span<const std::uint64_t> layer_bytes, std::span<const std::uint64_t> rooms) {
  const std::size_t layers = layer_bytes.size(), ranks = rooms.size();
  std::vector<std::vector<std::uint64_t>> least(ranks, std::vector<std::uint64_t>(layers + 1, kNever));
  std::vector<std::vector<std::size_t>> from(ranks, std::vector<std::size_t>(layers + 1, 0));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t end = rank + 1; end <= layers; ++end) {
      std::uint64_t bytes = 0;
      for (std::size_t first = end; first-- > rank && bytes <= rooms[rank];) {
        bytes += layer_bytes[first];
        if (bytes > rooms[rank]) break;
        if (rank == 0 && first > 0) continue;
        const std::uint64_t before = rank == 0 ? 0 : least[rank - 1][first];
        if (before == kNever || std::max(before, bytes) >= least[rank][end]) continue;
        least[rank][end] = std::max(before, bytes);
        from[rank][end] = first;
      }
    }
  }
  if (least.back()[layers] == kNever) return {};
  return stages_from(from, layers);
}

/// What a token takes on such a rank, of each tier each layer having its part. Processors and disk work side by side
/// only as far as the plan of the stage can foresee; here the one waits for the other, so that RAM elsewhere is
/// preferred to a disk.
double seconds_of(std::uint64_t bytes, double read, const RankSpeed& rank) {
  const auto part_beyond = [&](std::uint64_t room) {
    return bytes <= room ? 0 : static_cast<double>(bytes - room) / static_cast<double>(bytes) * read;
  };
  const double outside = part_beyond(rank.vram_room), missing = part_beyond(rank.vram_room + rank.room);
  const double inside = rank.vram_room > 0 ? (read - outside) / rank.vram : 0;
  return inside + outside / rank.decode + missing / rank.disk;
}

}  // namespace

std::vector<LayerLoad> layer_loads(const model::Model& model) {
  const model::Hyperparameters& hp = model.hyperparameters();
  std::vector<LayerLoad> loads(static_cast<std::size_t>(hp.layers));
  for (const residency::Unit& unit : model.units().units()) {
    if (unit.by_rows || unit.aside) continue;
    LayerLoad& load = unit.layer >= 0 ? loads[static_cast<std::size_t>(unit.layer)] : loads.back();
    const double used = unit.expert < 0 ? 1 : static_cast<double>(hp.top_k) / static_cast<double>(hp.experts);
    load.bytes += unit.bytes();
    load.read += static_cast<double>(unit.bytes()) * used;
  }
  return loads;
}

/// least[r][n]: of ranks 0 to r and the first n layers; from[r][n]: where r's begin, n if it has none.
Expected<std::vector<model::Stage>> place_layers(std::span<const LayerLoad> layers, std::span<const RankSpeed> ranks,
                                                 double border, Shortest shortest) {
  for (const RankSpeed& rank : ranks)
    if (!(rank.decode > 0 && rank.disk > 0) || (rank.vram_room > 0 && !(rank.vram > 0)))
      return error(Code::invalid_argument, "a rank's rate of decoding or of its disk is not known");
  constexpr double never = std::numeric_limits<double>::infinity();
  const std::size_t count = layers.size();
  std::vector<std::vector<double>> least(ranks.size(), std::vector<double>(count + 1, never));
  std::vector<std::vector<std::size_t>> from(ranks.size(), std::vector<std::size_t>(count + 1, 0));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t end = 1; end <= count; ++end) {
      double& best = least[rank][end];
      if (rank > 0) {
        best = least[rank - 1][end];
        from[rank][end] = end;
      }
      std::uint64_t bytes = 0;
      double read = 0;
      for (std::size_t first = end; first-- > 0;) {
        bytes += layers[first].bytes;
        read += layers[first].read;
        if (rank == 0 && first > 0) continue;
        const double before = rank == 0 ? 0 : least[rank - 1][first];
        const double own = seconds_of(bytes, read, ranks[rank]) + (rank == 0 ? 0 : border);
        const double all = shortest == Shortest::sum ? before + own : std::max(before, own);
        if (all >= best) continue;
        best = all;
        from[rank][end] = first;
      }
    }
  }
  return stages_from(from, count);
}

std::uint64_t table_bytes(const model::Model& model) {
  std::uint64_t bytes = 0;
  for (const residency::Unit& unit : model.units().units())
    if (unit.by_rows) bytes += unit.bytes();
  return bytes;
}

Expected<std::vector<model::Stage>> share_layers(std::span<const std::uint64_t> layer_bytes,
                                                 std::span<const std::uint64_t> ram_bytes, std::uint64_t table_bytes) {
  if (layer_bytes.size() < ram_bytes.size())
    return error(Code::invalid_argument, "{} ranks cannot share {} layers; start fewer", ram_bytes.size(),
                 layer_bytes.size());
  for (const std::uint64_t percent : {kPercentForWeights, kMostPercentForWeights}) {
    for (const std::uint64_t beside : {table_bytes, std::uint64_t{0}}) {
      std::vector<std::uint64_t> rooms(ram_bytes.begin(), ram_bytes.end());
      for (std::uint64_t& room : rooms) room = room / 100 * percent;
      rooms[0] -= std::min(rooms[0], beside);
      if (std::vector<model::Stage> stages = cut(layer_bytes, rooms); !stages.empty()) return stages;
    }
  }
  return cut(layer_bytes, std::vector<std::uint64_t>(ram_bytes.size(), kNever - 1));
}

Expected<std::vector<model::Stage>> parse_stages(std::string_view text, std::int64_t layers, int ranks) {
  const auto wrong = [&](std::string_view why) {
    return error(Code::invalid_argument,
                 "--stages {}: {}; give the layers of {} ranks, all of 0-{} in order, for example 0-{},{}-{}", text,
                 why, ranks, layers - 1, layers / 2 - 1, layers / 2, layers - 1);
  };
  std::vector<model::Stage> stages;
  const char *at = text.data(), *const end = text.data() + text.size();
  std::int64_t next = 0;
  while (at != end) {
    std::int64_t first = 0, last = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc() || read.ptr == end || *read.ptr != '-') return wrong("a stage is written FIRST-LAST");
    read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc() || (read.ptr != end && *read.ptr != ',')) return wrong("a stage is written FIRST-LAST");
    if (first != next || last < first || last >= layers)
      return wrong("the layers do not go from the first to the last one by one");
    stages.push_back({first, last + 1});
    next = last + 1;
    at = read.ptr == end ? end : read.ptr + 1;
  }
  if (next != layers) return wrong("the last layers are missing");
  if (std::ssize(stages) != ranks) return wrong("there are as many stages as ranks");
  return stages;
}

}  // namespace millrace::engine
