#include "engine/gpu/tower.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/options.h"
#include "exec/gpu/blocks.h"
#include "exec/gpu/executor.h"
#include "kernels/gpu/gates.h"
#include "model/tower.h"
#include "modelfile/gguf.h"
#include "residency/gpu/weights.h"
#include "storage/storage.h"

namespace millrace::engine {
namespace {

using kernels::gpu::kTileHeadDims;

constexpr vision::Size kScreen{1080, 1920};
constexpr std::int64_t kWorkRows = 2048;         // that go through a block of the tower at once
constexpr std::uint64_t kHostBytes = 16 * kMiB;  // of RAM: tables, angles
constexpr int kRingUnits = 2;                    // of a tower that streams: one is computed, the next comes
constexpr double kSlower = 0.98;                 // of the decoder's speed, which it keeps at least

/// The tower with keys and values in as many channels a head as the GPU's attention takes.
Status pad_heads(model::Tower& tower) {
  for (const exec::Step& step : tower.program.steps) {
    if (step.kind != exec::Step::Kind::attention) continue;
    const exec::Attention& attention = step.attention;
    const auto* const fits = std::find_if(std::begin(kTileHeadDims), std::end(kTileHeadDims),
                                          [&](std::int64_t dim) { return dim >= attention.head_dim; });
    if (fits == std::end(kTileHeadDims))
      return error(Code::unsupported, "its heads have {} channels", attention.head_dim);
    const kv::LayerKv kept{kv::Keeps::attention, attention.heads, *fits, *fits};
    tower.program.layout = kv::Layout(std::span(&kept, 1));
    return {};
  }
  return {};  // it has no layers
}

struct OpenedTower {
  std::vector<std::string> paths;
  model::Tower tower;
};

Expected<OpenedTower> open_tower(const std::string& path) {
  GrantedBytes header(kMostMmprojHeader, nullptr);
  modelfile::OpenOptions bounded;
  bounded.memory = &header;
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(path, bounded));
  OpenedTower opened;
  opened.paths = file.paths();
  MR_ASSIGN_OR_RETURN(opened.tower, model::load_tower(file, kGpuTileBytes));
  MR_RETURN_IF_ERROR(pad_heads(opened.tower));
  return opened;
}

/// Rows of a pass for the largest view of a screen; of a model whose pictures are smaller, theirs.
std::int64_t rows_of_screen(const model::Tower& tower) {
  const auto cut = vision::cut(tower.spec, kScreen);
  if (!cut.ok()) return 0;
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < cut->views(); ++i) {
    const vision::Size size = cut->view(i);
    vision::Patches view;
    view.rows = size.height / tower.spec.patch;
    view.cols = size.width / tower.spec.patch;
    most = std::max(most, tower.rows(view));
  }
  return most;
}

/// Attention and products are on the tensor cores, over keys in f16; exact for those who ask for that of the decoder.
DType kv_of(const EngineOptions& options) { return options.kv.dtype == DType::f32 ? DType::f32 : DType::f16; }

exec::PassLimits limits_of(std::int64_t rows, DType kv) {
  exec::PassLimits limits;
  limits.kv_dtype = kv;
  limits.max_rows = limits.max_positions = rows;
  limits.work_rows = kWorkRows;
  return limits;
}

residency::DevicePlacement placement_of(const model::Tower& tower, bool resident) {
  residency::DevicePlacement placement = residency::homes_in_vram(tower.units).placement;
  if (resident) return placement;
  std::fill(placement.homes.begin(), placement.homes.end(), residency::Tier::disk);
  placement.ring_units = kRingUnits;
  return placement;
}

exec::DeviceBlocksShape blocks_of(const kv::Group& group, std::int64_t rows) {
  const std::int64_t blocks = kv::blocks_for(rows);
  return {blocks, blocks, static_cast<std::uint64_t>(group.block_bytes())};
}

TakenMemory taken_by(const model::Tower& tower, std::int64_t rows, DType kv, bool resident) {
  const residency::DevicePlacement placement = placement_of(tower, resident);
  const auto shape = exec::gpu_pass_shape(tower.program, tower.units, limits_of(rows, kv));
  TakenMemory taken;
  taken.vram_bytes = residency::device_weight_bytes(tower.units, placement) + exec::gpu_activation_bytes(shape);
  const kv::Layout layout = tower.program.layout.with(kv, 0);
  for (const kv::Group& group : layout.groups()) taken.vram_bytes += blocks_of(group, rows).most_bytes();
  taken.ram_bytes = kHostBytes + residency::pinned_weight_bytes(tower.units, placement) +
                    static_cast<std::uint64_t>(rows * tower.given_cols()) * sizeof(float);
  return taken;
}

/// What the decoder must keep.
struct Kept {
  std::int64_t context = 0, sequences = 0, movers = 0;
  double speed = 0;
  Kept(const GpuPlanner& planner, const Parts& parts)
      : context(parts.limits.context_tokens),
        sequences(parts.limits.sequences),
        movers(planner.homes().movers),
        speed(parts.plan.predicted_decode_tokens_per_second) {}
  bool keeps(const Kept& before, double least) const {
    return context >= before.context && sequences >= before.sequences && speed >= least * before.speed &&
           (movers == before.movers || before.speed > 0);
  }
};

struct GpuTower final : TowerRunner {
  ~GpuTower() override {
    blocks.reset();
    executor.reset();
  }
  model::Tower tower;  // the weights' and the executor's units, and the program
  std::unique_ptr<storage::Backend> backend;
  std::unique_ptr<residency::DeviceWeights> weights;
  residency::Reservation host;
};

}  // namespace

void seat_tower(const EngineOptions& options, const device::Gpu& gpu, GpuPlanner& planner, Parts& parts) {
  TowerSeat& seat = parts.tower_seat;
  seat = {};
  if (options.model.mmproj.empty()) return;
  const auto opened = open_tower(options.model.mmproj);
  const auto refuse = [&](std::string why) {
    planner.seat_tower({});
    seat = {.words = std::move(why)};
  };
  if (!opened.ok()) return refuse(opened.status().message());
  const model::Tower& tower = opened->tower;
  const Status able = exec::check_gpu(tower.program, tower.units, {kv_of(options), gpu.block_shared_bytes});
  if (!able.ok()) return refuse(able.message());
  const std::int64_t rows = rows_of_screen(tower);
  if (rows == 0) return refuse("a screen's picture is none of this model's");
  if (const Status without = planner.plan(); !without.ok()) return refuse(without.message());
  const Kept before(planner, parts);
  std::uint64_t least = 0;
  for (const bool resident : {true, false}) {
    const TakenMemory taken = taken_by(tower, rows, kv_of(options), resident);
    least = taken.vram_bytes;
    planner.seat_tower(taken);
    // A ring takes little; what it costs the decoder is worth it.
    if (!planner.plan().ok() || !Kept(planner, parts).keeps(before, resident ? kSlower : kSlower * kSlower)) continue;
    seat = {rows, resident, taken.ram_bytes, {}};
    return;
  }
  refuse(fmt::format("the GPU has no room for {} of it beside the model", format_bytes(least)));
}

Expected<std::unique_ptr<TowerRunner>> load_tower_on_gpu(const EngineOptions& options, Parts& parts) {
  const TowerSeat& seat = parts.tower_seat;
  MR_ASSIGN_OR_RETURN(OpenedTower opened, open_tower(options.model.mmproj));
  auto loaded = std::make_unique<GpuTower>();
  loaded->rows = seat.rows;
  loaded->tower = std::move(opened.tower);
  const exec::PassLimits limits = limits_of(seat.rows, kv_of(options));
  const residency::DevicePlacement placement = placement_of(loaded->tower, seat.resident);
  // What streams reserves its ring itself.
  MR_ASSIGN_OR_RETURN(loaded->host,
                      parts.budget->reserve("vision tower", seat.ram_bytes - residency::pinned_weight_bytes(
                                                                                 loaded->tower.units, placement)));
  MR_ASSIGN_OR_RETURN(loaded->backend, storage::open_backend(opened.paths, mmproj_storage(options)));
  MR_ASSIGN_OR_RETURN(loaded->weights, residency::DeviceWeights::load(loaded->tower.units, placement, *loaded->backend,
                                                                      nullptr, *parts.vram, *parts.budget, {}));
  exec::GpuOptions ops;
  ops.device = options.device.gpu;
  ops.graphs = false;
  ops.kv_dtype = kv_of(options);
  ops.prompt_products = ops.kv_dtype != DType::f32;
  MR_ASSIGN_OR_RETURN(loaded->executor,
                      exec::make_gpu_executor(loaded->tower.units, *loaded->weights, *parts.vram, ops));
  MR_RETURN_IF_ERROR(loaded->executor->prepare(loaded->tower.program, limits));
  const kv::Layout layout = loaded->tower.program.layout.with(kv_of(options), options.device.gpu);
  std::vector<std::unique_ptr<kv::BlockMemory>> blocks;
  for (const kv::Group& group : layout.groups()) {
    MR_ASSIGN_OR_RETURN(blocks.emplace_back(),
                        exec::DeviceBlocks::create(blocks_of(group, seat.rows), {{options.device.gpu, *parts.vram}}));
  }
  loaded->blocks = std::make_shared<kv::BlockPool>(layout, std::move(blocks));
  loaded->words = fmt::format("on GPU {}, its weights {}", options.device.gpu,
                              seat.resident ? "in VRAM" : "streamed from the disk for each picture");
  return std::unique_ptr<TowerRunner>(std::move(loaded));
}

}  // namespace millrace::engine
