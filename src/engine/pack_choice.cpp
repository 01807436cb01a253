#include "engine/pack_choice.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/median.h"
#include "device/host_memory.h"
#include "kv/model_identity.h"
#include "modelfile/escape.h"

namespace millrace::engine {
namespace {

constexpr std::size_t kMostSamples = 24;
constexpr std::uint64_t kMostSampleBytes = 64 * kMiB;
constexpr double kGain = 0.97;  // of the time that the model's own file takes

std::vector<std::int32_t> expert_tiles(const residency::UnitTable& units) {
  std::vector<std::int32_t> tiles;
  for (std::size_t t = 0; t < units.tiles().size(); ++t)
    if (units.units()[static_cast<std::size_t>(units.tiles()[t].unit)].kind == residency::UnitKind::expert)
      tiles.push_back(static_cast<std::int32_t>(t));
  return tiles;
}

/// Seconds until a tile is read into `memory`.
Expected<double> time_of(storage::Backend& backend, const residency::Tile& tile, std::byte* memory) {
  std::vector<storage::Read> reads;
  for (const residency::Span& span : tile.spans)
    reads.push_back({span.file, span.file_offset, span.bytes, memory + span.slot_offset});
  storage::Completion completion;
  const auto begin = std::chrono::steady_clock::now();
  backend.submit(reads, completion);
  MR_RETURN_IF_ERROR(completion.wait());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Times {
  double model = 0, pack = 0;  // seconds an expert
};

/// Some experts of all layers, from both by turns.
Expected<Times> compare(const EngineOptions& options, const std::vector<std::string>& paths,
                        const residency::UnitTable& model, const residency::UnitTable& pack) {
  storage::OpenOptions open;
  open.kind = options.storage.backend;
  MR_ASSIGN_OR_RETURN(const auto backend, storage::open_backend(paths, open));
  const std::vector<std::int32_t> tiles = expert_tiles(model);  // numbered alike in both
  std::uint64_t slot = 0;
  for (const std::int32_t tile : tiles)
    for (const residency::UnitTable* units : {&model, &pack})
      slot = std::max(slot, units->tiles()[static_cast<std::size_t>(tile)].slot_bytes);
  MR_ASSIGN_OR_RETURN(const device::HostBuffer memory, device::HostBuffer::reserve(slot, device::Pages::normal));
  const std::size_t most = std::clamp<std::size_t>(kMostSampleBytes / slot, 1, kMostSamples);
  const std::size_t step = std::max<std::size_t>(1, tiles.size() / most);
  std::vector<double> of_model, of_pack;
  for (std::size_t i = 0; i < tiles.size(); i += step) {
    const auto tile = static_cast<std::size_t>(tiles[i]);
    const bool pack_first = of_pack.size() % 2 == 1;
    for (const bool from_pack : {pack_first, !pack_first}) {
      const residency::UnitTable& units = from_pack ? pack : model;
      MR_ASSIGN_OR_RETURN(const double seconds, time_of(*backend, units.tiles()[tile], memory.data()));
      (from_pack ? of_pack : of_model).push_back(seconds);
    }
  }
  return Times{median_of(of_model), median_of(of_pack)};
}

/// The units with their experts in the pack; nothing: the log says why it is not used.
Expected<std::optional<residency::UnitTable>> units_in(const residency::ExpertPack& pack, const EngineOptions& options,
                                                       bool measure, std::string_view name, const Parts& parts,
                                                       const std::vector<std::string>& paths) {
  const residency::UnitTable& units = parts.model->units();
  residency::UnitTable moved = pack.moved(units, parts.limits.tile_bytes, static_cast<int>(paths.size()));
  if (std::ssize(expert_tiles(moved)) != units.experts() || moved.tiles().size() != units.tiles().size()) {
    log::info("{} is not used: an expert is larger than a tile of {}, and read in pieces anyway", name,
              format_bytes(parts.limits.tile_bytes));
    return std::optional<residency::UnitTable>();
  }
  if (!measure) {
    log::info("experts are read from {}, as was asked for", name);
    return std::optional(std::move(moved));
  }
  std::vector<std::string> all = paths;
  all.insert(all.end(), pack.paths().begin(), pack.paths().end());
  MR_ASSIGN_OR_RETURN(const Times times, compare(options, all, units, moved));
  const bool faster = times.pack < kGain * times.model;
  log::info("experts are read from {}: {:.0f} us each from the pack, {:.0f} from the model",
            faster ? name : "the model", times.pack * 1e6, times.model * 1e6);
  return faster ? std::optional(std::move(moved)) : std::optional<residency::UnitTable>();
}

}  // namespace

Status choose_pack(const EngineOptions& options, bool all_stay, Parts& parts, std::vector<std::string>& paths) {
  const residency::UnitTable& units = parts.model->units();
  if (options.experts.pack == "off" || units.experts() == 0) return {};
  const bool named = options.experts.pack != "auto";
  const std::string path = named ? options.experts.pack : paths.front() + ".pack";
  std::error_code ignored;
  if (!named && !std::filesystem::exists(path, ignored)) return {};
  const std::string name = modelfile::escape(path);
  if (parts.model->draft_passes() != nullptr) {
    if (named) return error(Code::unsupported, "--pack has no weights of what guesses; leave it or --draft out");
    log::info("{} is not used: it has no weights of what guesses", name);
    return {};
  }
  const bool needless = options.storage.backend == storage::BackendKind::mmap || all_stay;
  if (needless && !named) {
    log::info("{} is not used: all weights are in memory", name);
    return {};
  }
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, open_file(options, {.skip_vocabulary = true}));
  MR_ASSIGN_OR_RETURN(const std::string identity, kv::model_identity(file));
  auto pack = residency::ExpertPack::open(path, units, identity);
  if (!pack.ok()) {
    if (named) return pack.status();
    log::warn("{}; experts are read from the model", pack.status().message());
    return {};
  }
  if (needless) {
    log::warn("{} is not used: all weights are in memory", name);
    return {};
  }
  auto moved = units_in(**pack, options, !named, name, parts, paths);
  if (!moved.ok()) {
    if (named) return moved.status();
    log::warn("{} is not used: {}", name, moved.status().message());
    return {};
  }
  if (!*moved) return {};
  const model::Model& old = *parts.model;
  parts.model = old.with(std::move(**moved));
  paths.insert(paths.end(), (*pack)->paths().begin(), (*pack)->paths().end());
  parts.pack = std::move(*pack);
  return {};
}

residency::TileCheck pack_check(const Parts& parts) {
  if (parts.pack == nullptr) return {};
  return [pack = parts.pack.get(), units = &parts.model->units()](std::int32_t tile, const std::byte* slot) {
    return pack->check(*units, tile, slot);
  };
}

}  // namespace millrace::engine
