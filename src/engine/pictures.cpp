#include "engine/pictures.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <list>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread_pool.h"
#include "engine/options.h"
#include "exec/executor.h"
#include "kv/model_identity.h"
#include "model/model.h"
#include "model/tower.h"
#include "residency/weight_store.h"
#include "storage/storage.h"
#include "vision/beside.h"

namespace millrace::engine {

text::TokenId picture_token(const PictureKey& key, std::int64_t row) {
  const std::uint64_t hash = XXH3_64bits_withSeed(key.data(), key.size(), static_cast<std::uint64_t>(row));
  return static_cast<text::TokenId>(static_cast<std::uint32_t>(hash) | 0x80000000u);
}

void find_mmproj(ModelOptions& model) {
  model.mmproj_found = model.mmproj.empty();
  model.mmproj = vision::mmproj_for(model.path, model.mmproj);
}

storage::OpenOptions mmproj_storage(const EngineOptions& options) {
  storage::OpenOptions how;
  how.kind =
      options.storage.backend == storage::BackendKind::mmap ? storage::BackendKind::automatic : options.storage.backend;
  return how;
}

namespace {

constexpr std::uint64_t kTileBytes = 4 * kMiB;  // small beside a picture's activations
constexpr int kRingSlots = 8;
constexpr std::uint64_t kMostKept = 512 * kMiB;  // of results, an eighth of --ram at most

Status check_belongs(const model::Tower& tower, const model::Hyperparameters& hp) {
  MR_RETURN_IF_ERROR(vision::check_belongs(tower.spec.projector, hp.architecture));
  const std::int64_t wanted = hp.model_dim * (1 + hp.deepstack_layers);
  if (tower.cols == wanted) return {};
  return error(Code::unsupported,
               "it makes {} numbers of a picture's token and the model takes {}; give --mmproj the file that was "
               "published with the model",
               tower.cols, wanted);
}

/// All tiles come through a ring: a picture uses each once.
residency::Plan ring_plan(const residency::UnitTable& units) {
  residency::Plan plan;
  plan.homes.assign(units.units().size(), residency::Tier::disk);
  plan.resident_tiles.assign(units.tiles().size(), false);
  for (const residency::Tile& tile : units.tiles())
    plan.ring_slot_bytes = std::max(plan.ring_slot_bytes, tile.slot_bytes);
  plan.ring_slots = std::min(kRingSlots, static_cast<int>(units.tiles().size()));
  return plan;
}

/// All tiles stay from their first use on: each view of a picture uses them again.
residency::Plan keeping_plan(const residency::UnitTable& units) {
  residency::Plan plan;
  plan.homes.assign(units.units().size(), residency::Tier::ram);
  plan.resident_tiles.assign(units.tiles().size(), true);
  for (const residency::Tile& tile : units.tiles()) plan.resident_bytes += tile.slot_bytes;
  return plan;
}

/// What a pass of so many patches takes, beside its results and the weights: the picture's own and the tower's.
struct Needs {
  std::uint64_t input = 0, tower = 0;
  std::uint64_t all() const { return input + tower; }
};

class Encoder final : public PictureEncoder {
 public:
  Encoder(const EngineOptions& options, std::unique_ptr<GrantedBytes> header, modelfile::Model file, model::Tower tower,
          std::string identity, std::unique_ptr<storage::Backend> backend, residency::Budget& budget,
          TowerRunner* runner)
      : path_(options.model.mmproj),
        threads_(options.device.threads),
        isa_(options.device.cpu_isa()),
        header_(std::move(header)),
        file_(std::move(file)),
        tower_(std::move(tower)),
        identity_(std::move(identity)),
        backend_(std::move(backend)),
        budget_(budget),
        runner_(runner),
        most_kept_(std::min(kMostKept, budget.cap_bytes() / 8)) {}

  const std::string& path() const override { return path_; }
  const vision::Spec& spec() const override { return tower_.spec; }
  PictureKey key_of(const PictureKey& file) const override;
  std::shared_ptr<const EncodedPicture> find(const PictureKey& file) override;
  Expected<std::shared_ptr<const EncodedPicture>> encode(const PictureKey& file, std::span<const vision::Patches> views,
                                                         const std::function<bool()>& cancelled) override;
  std::int64_t encoded() const override {
    const MutexLock lock(mutex_);
    return encoded_;
  }
  std::int64_t run_views() const override {
    const MutexLock lock(mutex_);
    return run_views_;
  }
  std::uint64_t bytes_read() const override {
    const MutexLock lock(mutex_);
    return bytes_read_;
  }

 private:
  exec::CpuOptions cpu_options() const {
    exec::CpuOptions options;
    options.isa = isa_;
    return options;
  }
  bool runs_elsewhere(const vision::Patches& patches) const {
    return runner_ != nullptr && tower_.rows(patches) <= runner_->rows;
  }
  Needs needs_of(const vision::Patches& patches, int threads) const;
  Status compute(const vision::Patches& patches, residency::WeightStore* weights, ThreadPool& pool,
                 const std::function<bool()>& cancelled, float* states);
  Status compute_all(std::span<const vision::Patches> views, const residency::Plan& plan, ThreadPool& pool,
                     const std::function<bool()>& cancelled, float* states);
  Status run_pass(const vision::Patches& patches, exec::Executor& executor, std::shared_ptr<kv::BlockPool> blocks,
                  const std::vector<float>& input, const std::function<bool()>& cancelled, float* states);
  Expected<residency::Reservation> reserve(std::uint64_t bytes);
  Expected<residency::Reservation> reserve_for(std::span<const vision::Patches> views, std::uint64_t bytes,
                                               residency::Plan& plan);
  void keep(std::shared_ptr<const EncodedPicture> picture);
  bool forget_oldest();

  const std::string path_;
  const int threads_;
  const kernels::Isa isa_;
  const std::unique_ptr<GrantedBytes> header_;  // of file_
  const modelfile::Model file_;
  const model::Tower tower_;
  const std::string identity_;
  const std::unique_ptr<storage::Backend> backend_;
  residency::Budget& budget_;
  TowerRunner* const runner_;  // may be null
  const std::uint64_t most_kept_;

  Mutex computing_;  // held while a picture is computed; taken before mutex_
  mutable Mutex mutex_;
  std::list<std::shared_ptr<const EncodedPicture>> kept_ MR_GUARDED_BY(mutex_);  // the one used last first
  std::uint64_t kept_bytes_ MR_GUARDED_BY(mutex_) = 0;
  std::int64_t encoded_ MR_GUARDED_BY(mutex_) = 0;
  std::int64_t run_views_ MR_GUARDED_BY(mutex_) = 0;
  std::uint64_t bytes_read_ MR_GUARDED_BY(mutex_) = 0;
};

std::uint64_t bytes_of(const EncodedPicture& picture) { return picture.states.size() * sizeof(float); }

PictureKey Encoder::key_of(const PictureKey& file) const {
  std::string named(reinterpret_cast<const char*>(file.data()), file.size());
  named += identity_;
  PictureKey key;
  for (std::uint64_t half = 0; half < 2; ++half) {
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_withSeed(named.data(), named.size(), half));
    std::memcpy(key.data() + half * sizeof(bytes.digest), bytes.digest, sizeof(bytes.digest));
  }
  return key;
}

std::shared_ptr<const EncodedPicture> Encoder::find(const PictureKey& file) {
  const PictureKey key = key_of(file);
  const MutexLock lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& picture) { return picture->key == key; });
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return kept_.front();
}

bool Encoder::forget_oldest() {
  const MutexLock lock(mutex_);
  if (kept_.empty()) return false;
  kept_bytes_ -= bytes_of(*kept_.back());
  kept_.pop_back();
  return true;
}

void Encoder::keep(std::shared_ptr<const EncodedPicture> picture) {
  const std::uint64_t bytes = bytes_of(*picture);
  const auto is_full = [&] {
    const MutexLock lock(mutex_);
    return kept_bytes_ + bytes > most_kept_;
  };
  while (is_full() && forget_oldest()) {
  }
  const MutexLock lock(mutex_);
  ++encoded_;
  if (bytes > most_kept_) return;
  kept_bytes_ += bytes;
  kept_.push_front(std::move(picture));
}

/// What is only kept for later gives way first.
Expected<residency::Reservation> Encoder::reserve(std::uint64_t bytes) {
  for (;;) {
    auto memory = budget_.reserve("pictures", bytes);
    if (memory.ok() || !forget_oldest()) return memory;
  }
}

exec::PassLimits limits_of(std::int64_t rows) {
  exec::PassLimits limits;
  limits.max_rows = limits.max_positions = rows;
  limits.kv_dtype = DType::f32;
  return limits;
}

Needs needs_of(const model::Tower& tower, std::int64_t rows, int threads, const exec::CpuOptions& options) {
  const auto shape = exec::pass_shape(tower.program, tower.units, limits_of(rows));
  const kv::Layout layout = tower.program.layout.with(DType::f32, kv::kOnHost);
  const std::uint64_t block =
      round_up(static_cast<std::uint64_t>(layout.bytes_per_token() * kv::kBlockTokens), device::kPageBytes);
  return {
      static_cast<std::uint64_t>(rows * tower.given_cols() + tower.table_numbers(rows)) * sizeof(float),
      exec::cpu_activation_bytes(shape, threads, options) + block * static_cast<std::uint64_t>(kv::blocks_for(rows))};
}

Needs Encoder::needs_of(const vision::Patches& patches, int threads) const {
  Needs needs = engine::needs_of(tower_, tower_.rows(patches), threads, cpu_options());
  if (runs_elsewhere(patches)) needs.tower = 0;
  return needs;
}

/// One pass through the tower, whose needs are granted. weights: null where it runs elsewhere. states: [tokens, cols].
/// The tower's parts have a budget of their own, so that the model's weights give way once, for all views.
Status Encoder::compute(const vision::Patches& patches, residency::WeightStore* weights, ThreadPool& pool,
                        const std::function<bool()>& cancelled, float* states) {
  const std::int64_t rows = tower_.rows(patches);
  MR_ASSIGN_OR_RETURN(const std::vector<float> input, model::tower_input(file_, tower_, patches, &pool));
  if (runs_elsewhere(patches)) {
    MR_RETURN_IF_ERROR(run_pass(patches, *runner_->executor, runner_->blocks, input, cancelled, states));
    const MutexLock lock(mutex_);
    ++run_views_;
    return {};
  }
  const exec::CpuOptions options = cpu_options();
  residency::Budget own(engine::needs_of(tower_, rows, pool.threads(), options).tower);
  const auto executor = exec::make_cpu_executor(*weights, pool, own, options);
  MR_RETURN_IF_ERROR(executor->prepare(tower_.program, limits_of(rows)));
  const auto blocks = std::make_shared<kv::BlockPool>(tower_.program.layout.with(DType::f32, kv::kOnHost), own);
  MR_RETURN_IF_ERROR(run_pass(patches, *executor, blocks, input, cancelled, states));
  return backend_->health();
}

Status Encoder::run_pass(const vision::Patches& patches, exec::Executor& executor,
                         std::shared_ptr<kv::BlockPool> blocks, const std::vector<float>& input,
                         const std::function<bool()>& cancelled, float* states) {
  const std::int64_t rows = tower_.rows(patches);
  kv::SequenceState sequence(std::move(blocks));
  MR_RETURN_IF_ERROR(sequence.reserve(rows));
  kv::Batch batch;
  batch.sequences = {&sequence};
  batch.pictures = model::tower_places(tower_, patches);
  batch.given = input.data();
  batch.wants_hidden = true;
  for (std::int64_t i = 0; i < rows; ++i) batch.rows.push_back({0, 0, static_cast<std::int32_t>(i), false, true});
  MR_RETURN_IF_ERROR(executor.run(batch, cancelled));
  const std::vector<std::int64_t> order = model::tower_order(tower_, patches);
  if (std::is_sorted(order.begin(), order.end())) return executor.read_hidden(0, std::ssize(order), states);
  std::int64_t place = 0;
  for (const std::int64_t token : order)
    MR_RETURN_IF_ERROR(executor.read_hidden(place++, 1, states + token * tower_.cols));
  return {};
}

/// View after view, those that do not run elsewhere over the same weights.
Status Encoder::compute_all(std::span<const vision::Patches> views, const residency::Plan& plan, ThreadPool& pool,
                            const std::function<bool()>& cancelled, float* states) {
  residency::Budget own(plan.weight_memory_bytes());
  std::unique_ptr<residency::WeightStore> weights;
  Status computed;
  for (const vision::Patches& view : views) {
    if (weights == nullptr && !runs_elsewhere(view)) {
      MR_ASSIGN_OR_RETURN(weights, residency::WeightStore::create(tower_.units, plan, *backend_, own, {}));
    }
    computed = compute(view, weights.get(), pool, cancelled, states);
    if (!computed.ok()) break;
    states += tower_.tokens(view.rows * view.cols) * tower_.cols;
  }
  const MutexLock lock(mutex_);
  if (weights != nullptr) bytes_read_ += weights->counters().bytes_from_disk;
  return computed;
}

/// Grants `bytes` and the weights that views take which do not run elsewhere. One view uses each weight once; for
/// several they stay, and the model's own give way, if there is room at all.
Expected<residency::Reservation> Encoder::reserve_for(std::span<const vision::Patches> views, std::uint64_t bytes,
                                                      residency::Plan& plan) {
  const auto here = std::count_if(views.begin(), views.end(), [&](const auto& view) { return !runs_elsewhere(view); });
  if (here == 0) return reserve(bytes);
  plan = keeping_plan(tower_.units);
  if (here > 1) {
    auto held = budget_.reserve("pictures", bytes + plan.weight_memory_bytes());
    if (held.ok()) return held;
  }
  plan = ring_plan(tower_.units);
  return reserve(bytes + plan.weight_memory_bytes());
}

Expected<std::shared_ptr<const EncodedPicture>> Encoder::encode(const PictureKey& file,
                                                                std::span<const vision::Patches> views,
                                                                const std::function<bool()>& cancelled) {
  const MutexLock lock(computing_);
  if (auto found = find(file); found != nullptr) return found;
  const auto begin = std::chrono::steady_clock::now();
  const vision::Patches& first = views.front();
  const std::int64_t merge = tower_.spec.merge;
  std::int64_t tokens = 0;
  for (const vision::Patches& view : views) tokens += tower_.tokens(view.rows * view.cols);
  const auto words = [&] {
    return fmt::format("a picture of {} x {} patches{}", first.cols, first.rows,
                       views.size() > 1 ? fmt::format(" and {} further views", views.size() - 1) : std::string());
  };
  auto memory = reserve(static_cast<std::uint64_t>(tokens * tower_.cols) * sizeof(float));
  if (!memory.ok()) return memory.status().with_context(words());
  ThreadPool pool({.threads = threads_});
  std::uint64_t most = 0;
  for (const vision::Patches& view : views) most = std::max(most, needs_of(view, pool.threads()).all());
  residency::Plan plan;
  const auto held = reserve_for(views, most, plan);
  if (!held.ok()) return held.status().with_context(words());
  auto picture = std::make_shared<EncodedPicture>();
  picture->key = key_of(file);
  picture->grid = views.size() == 1 ? vision::Grid{first.rows / merge, first.cols / merge} : vision::Grid{1, tokens};
  picture->cols = tower_.cols;
  picture->states.resize(static_cast<std::size_t>(tokens * tower_.cols));
  const Status computed = compute_all(views, plan, pool, cancelled, picture->states.data());
  if (!computed.ok()) return computed.with_context(words());
  picture->memory = std::move(*memory);
  if (!std::all_of(picture->states.begin(), picture->states.end(), [](float x) { return std::isfinite(x); }))
    return error(Code::corrupt, "{}: the tower's results are not finite; its weights are damaged: fetch the file again",
                 path_);
  keep(picture);
  log::info("{}: {} tokens in {:.3f} s", words(), tokens,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return std::shared_ptr<const EncodedPicture>(std::move(picture));
}

}  // namespace

Expected<std::unique_ptr<PictureEncoder>> PictureEncoder::open(const EngineOptions& options,
                                                               const model::Hyperparameters& hp,
                                                               residency::Budget& budget, TowerRunner* runner) {
  auto header = std::make_unique<GrantedBytes>(kMostMmprojHeader, nullptr);
  modelfile::OpenOptions bounded;
  bounded.memory = header.get();
  MR_ASSIGN_OR_RETURN(modelfile::Model file, modelfile::Model::open(options.model.mmproj, bounded));
  MR_ASSIGN_OR_RETURN(model::Tower tower, model::load_tower(file, kTileBytes));
  MR_RETURN_IF_ERROR(check_belongs(tower, hp));
  MR_ASSIGN_OR_RETURN(std::string identity, kv::model_identity(file));
  const vision::Spec& spec = tower.spec;
  identity += fmt::format(" {} {} {} {} {} {} {} {} {} {}", spec.patch, spec.merge, static_cast<int>(spec.resize),
                          spec.least_pixels, spec.most_pixels, spec.image_size, spec.most_tokens,
                          static_cast<int>(spec.filter), fmt::join(spec.mean, " "), fmt::join(spec.deviation, " "));
  if (spec.tiling != vision::Tiling::none)
    identity += fmt::format(" {} {} {} {} {}", static_cast<int>(spec.tiling), spec.tile, spec.least_tiles,
                            spec.most_tiles, spec.longest_side);
  storage::OpenOptions how = mmproj_storage(options);
  how.bytes_in_flight = kTileBytes * kRingSlots;
  MR_ASSIGN_OR_RETURN(auto backend, storage::open_backend(file.paths(), how));
  log::info("pictures: {}, projector type {}, {} layers, computed {}", options.model.mmproj,
            vision::projector_name(tower.spec.projector), tower.layers,
            runner == nullptr ? "on the CPU" : runner->words);
  return std::unique_ptr<PictureEncoder>(std::make_unique<Encoder>(options, std::move(header), std::move(file),
                                                                   std::move(tower), std::move(identity),
                                                                   std::move(backend), budget, runner));
}

}  // namespace millrace::engine
