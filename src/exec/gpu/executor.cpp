// The pass of the GPU's executor: recording, upload, graph, read-back.
#include "exec/gpu/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/bytes.h"
#include "device/gpu.h"
#include "exec/gpu/executor_impl.h"
#include "exec/routing.h"
#include "kernels/gpu/delta_chunks.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/indexer.h"
#include "kernels/gpu/latent.h"
#include "kernels/gpu/launches.h"
#include "kernels/gpu/offer.h"

namespace millrace::exec {
namespace {

namespace gpu = kernels::gpu;

constexpr std::size_t kMostGraphs = 64;
// Kernels of more rows than that fill the device, so that nothing is won by placing blocks of the next one early, and
// much is lost (launches.h): prompts of Qwen3.6-35B came at 17,300 instead of 21,300 tokens a second.
// Of dense layers a few dozen rows still gain (8B Q4_K on an H100: 16 sequences 3,248 and 3,487 tokens a second, 32
// 4,849 and 5,052, 64 5,722 and 5,599), of mixtures they do not (30B-A3B, 32: 1,627 and 1,527).
constexpr std::int64_t kOverlappedRows = 32, kOverlappedRowsOfMixtures = 4;

std::string numerics_of(gpu::PromptProducts prompts) {
  const std::string own(gpu::offer().numerics);
  switch (prompts) {
    case gpu::PromptProducts::bf16:
      return own + ", prompts bf16";
    case gpu::PromptProducts::int8:
      return own + ", prompts int8";
    case gpu::PromptProducts::none:
      break;
  }
  return own;
}

}  // namespace

static std::int64_t kept_channels(std::int64_t own) {
  using gpu::kTileHeadDims;
  const auto* const fits =
      std::find_if(std::begin(kTileHeadDims), std::end(kTileHeadDims), [own](std::int64_t dim) { return dim >= own; });
  return fits == std::end(kTileHeadDims) ? own : *fits;
}

kv::Layout gpu_kv_layout(const Program& program) {
  std::vector<kv::LayerKv> layers;
  for (std::int64_t index = 0; index < program.layout.layers(); ++index) {
    kv::LayerKv& layer = layers.emplace_back();
    layer.keeps = kv::Keeps::nothing;
    if (!program.layout.keeps(index)) continue;
    const kv::Group& group = program.layout.group_of(index);
    layer = {group.keeps,  group.kv_heads, group.k_dim,     group.v_dim, group.window,
             /*reads=*/-1, group.state,    group.index_dim, group.ratio};
    for (std::int64_t before = 0; before < index && layer.reads < 0; ++before)
      if (program.layout.place(before) == program.layout.place(index)) layer.reads = before;
    const std::int64_t kept = kept_channels(std::max(group.k_dim, group.v_dim));
    if (group.keeps == kv::Keeps::attention && kept >= std::max(group.k_dim, group.v_dim))
      layer.k_dim = layer.v_dim = kept;
  }
  return kv::Layout(layers);
}

/// The program with what a GPU keeps of its layers.
static Program on_gpu(const Program& program) {
  Program own = program;
  own.layout = gpu_kv_layout(program);
  return own;
}

PassShape gpu_pass_shape(const Program& program, const residency::UnitTable& units, const PassLimits& limits) {
  PassShape shape = pass_shape(on_gpu(program), units, limits);
  if (shape.padded_heads > 0) shape.head_dim = std::max(shape.head_dim, kept_channels(shape.head_dim));
  return shape;
}

std::uint64_t gpu_activation_bytes(const PassShape& shape) { return make_gpu_layout(shape).bytes; }

Expected<std::unique_ptr<Executor>> make_gpu_executor(const residency::UnitTable& units,
                                                      residency::DeviceWeights& weights, residency::Budget& vram,
                                                      const GpuOptions& options) {
  const device::OnGpu on(options.device);
  MR_ASSIGN_OR_RETURN(device::Stream stream, device::Stream::create());
  MR_ASSIGN_OR_RETURN(device::Gpu found, device::gpu(options.device));
  return std::unique_ptr<Executor>(std::make_unique<GpuExecutor>(units, weights, vram, options,
                                                                 GpuTraits{options.kv_dtype, found.block_shared_bytes},
                                                                 std::move(stream), std::move(found.name)));
}

GpuExecutor::GpuExecutor(const residency::UnitTable& units, residency::DeviceWeights& weights, residency::Budget& vram,
                         const GpuOptions& options, const GpuTraits& traits, device::Stream stream, std::string name)
    : units_(units),
      weights_(weights),
      vram_(vram),
      options_(options),
      traits_(traits),
      stream_(std::move(stream)),
      name_(std::move(name)),
      prompt_products_(options.prompt_products ? gpu::prompt_products() : gpu::PromptProducts::none),
      delta_chunks_(prompt_products_ == gpu::PromptProducts::bf16 && gpu::has_delta_chunks()),
      numerics_(numerics_of(prompt_products_)) {}

GpuExecutor::~GpuExecutor() {
  (void)stream_.synchronise();  // nothing may still use the memory
}

std::string GpuExecutor::describe() const {
  return fmt::format("{}:{} {}", device::gpu_kind(), options_.device, name_);
}

/// Has the GPU attention for heads of so many channels?
static Status check_heads(std::int64_t head_dim, const GpuTraits& traits) {
  using gpu::kTileHeadDims;
  const bool wide = head_dim == gpu::kWideHeadDim;
  if (!wide && std::find(std::begin(kTileHeadDims), std::end(kTileHeadDims), head_dim) == std::end(kTileHeadDims))
    return error(
        Code::unsupported,
        "the GPU's attention takes heads of up to {} channels, and of {}, and this model's have {}; use --device cpu",
        gpu::kMostTileHeadDim, gpu::kWideHeadDim, head_dim);
  if (wide && traits.kv_dtype != DType::f16)
    return error(
        Code::unsupported,
        "the GPU's attention takes heads of {} channels, as this model's, over KV in f16 alone, not in {}; use "
        "--kv f16, or --device cpu",
        head_dim, info(traits.kv_dtype).name);
  const std::uint64_t takes = gpu::attention_shared_bytes(head_dim, traits.kv_dtype);
  if (traits.block_shared_bytes >= takes) return {};
  const auto fits = [&](DType dtype) {
    return traits.block_shared_bytes >= gpu::attention_shared_bytes(head_dim, dtype);
  };
  return error(Code::unsupported,
               "the GPU's attention for heads of {} channels, as this model's, over KV in {} takes {} KiB of shared "
               "memory, and this GPU gives {} KiB; use {}--device cpu",
               head_dim, info(traits.kv_dtype).name, takes / kKiB, traits.block_shared_bytes / kKiB,
               wide               ? ""
               : fits(DType::f16) ? "--kv f16, or "
                                  : "--kv q8_0, or ");
}

/// Rows that all see each other: only where they are handed to the pass (vision towers), over keys in as many channels
/// as the cache keeps.
static Status check_whole_rows(const Program& program, const Step& step, const GpuTraits& traits) {
  if (!program.has_whole_rows() || step.attention.latent_values > 0 ||
      step.attention.v_dim() != step.attention.head_dim)
    return error(Code::unsupported, "the GPU part has causal attention alone; use --device cpu");
  const std::int64_t kept = program.layout.group_of(step.layer).v_dim;
  if (kept > gpu::kMostTileHeadDim || kept < step.attention.head_dim)
    return error(
        Code::unsupported,
        "the GPU's attention among a picture's rows takes heads of up to {} channels, and this model's have {}; "
        "use --device cpu",
        gpu::kMostTileHeadDim, step.attention.head_dim);
  return check_heads(kept, traits);
}

/// Has it attention over such latents?
static Status check_latents(const Attention& attention) {
  if (attention.window == 0 && attention.sinks.none() && attention.head_dim % 32 == 0 && attention.v_dim() % 4 == 0 &&
      attention.head_dim <= gpu::kMostLatentDim && attention.v_dim() <= gpu::kMostLatentValues)
    return {};
  return error(
      Code::unsupported,
      "the GPU's attention over latents takes multiples of 32 channels up to {}, of which {} are values, without "
      "windows and sinks, and this model's have {} and {}; use --device cpu",
      gpu::kMostLatentDim, gpu::kMostLatentValues, attention.head_dim, attention.v_dim());
}

/// Has it an indexer of such keys?
static Status check_indexer(const Indexer& indexer) {
  if (indexer.ratio != 1)
    return error(Code::unsupported, "the GPU part has no compressed attention yet; use --device cpu");
  if (indexer.block > 0)
    return error(Code::unsupported, "the GPU part has no indexer that chooses blocks yet; use --device cpu");
  if (indexer.head_dim % gpu::kIndexDimStep == 0 && indexer.head_dim <= gpu::kMostIndexDim &&
      indexer.heads <= gpu::kMostIndexHeads)
    return {};
  return error(Code::unsupported,
               "the GPU's indexer takes up to {} heads and keys of multiples of {} channels up to {}, and this model's "
               "have {} heads of {}; use --device cpu",
               gpu::kMostIndexHeads, gpu::kIndexDimStep, gpu::kMostIndexDim, indexer.heads, indexer.head_dim);
}

/// Queries of a rotated cache are rotated by the launch that stores their keys, or that turns them: is there one? In
/// q8_0 a cache may lie as it is.
static Status check_queries(const Program& program, const GpuTraits& traits) {
  if (!kv_is_rotated(traits.kv_dtype) || traits.kv_dtype == DType::q8_0 || program.turns_queries()) return {};
  return error(
      Code::unsupported,
      "the GPU's attention over KV in less than 8 bits takes queries behind RoPE or the store of their keys; use "
      "--kv q8_0");
}

/// Has it states with so many keys?
static Status check_states(const Step& step) {
  const std::int64_t keys = step.kind == Step::Kind::scan ? step.scan.keys : step.delta_rule.key_dim;
  if (keys <= gpu::kMostStateKeys) return {};
  return error(Code::unsupported, "the GPU part takes states of up to {} keys, not of {}; use --device cpu",
               gpu::kMostStateKeys, keys);
}

std::int64_t gpu_prompt_chunk(const Program& program) {
  static_assert(gpu::kChunkRows == kv::kBlockTokens);  // a run is a chunk (state_runs.h)
  const bool chunks = std::any_of(program.steps.begin(), program.steps.end(), [&program](const Step& step) {
    return step.kind == Step::Kind::delta_rule && has_chunks(step.delta_rule, program.buffer(step.c).cols);
  });
  return chunks ? gpu::kChunkRows : 1;
}

Status GpuExecutor::takes_pictures(bool sees_ahead) const {
  if (!sees_ahead || peers_.devices.size() > 1 || options_.blocks.layout)
    return sees_ahead
               ? error(Code::unsupported,
                       "several GPUs have no pictures whose rows see each other, as this model's do; use one, or "
                       "--device cpu")
               : Status();
  for (const Attention& attention : programs_[0].sights()) {
    if (attention.head_dim > gpu::kMostTileHeadDim)
      return error(Code::unsupported,
                   "the GPU part has no pictures whose rows see each other with heads of {} channels; use --device cpu",
                   attention.head_dim);
    if (!gpu::has_attention_tiles(attention.head_dim, traits_.kv_dtype, traits_.block_shared_bytes))
      return error(Code::unsupported,
                   "pictures whose rows see each other, with heads of {} channels over KV in {}, take {} KiB of shared "
                   "memory, and this GPU gives {} KiB; use {}--device cpu",
                   attention.head_dim, info(traits_.kv_dtype).name, gpu::kLeastBlockShared / kKiB,
                   traits_.block_shared_bytes / kKiB, attention.head_dim <= 128 ? "--kv f16, or " : "");
  }
  return {};
}

std::int64_t GpuExecutor::prompt_chunk() const { return delta_chunks_ ? gpu_prompt_chunk(programs_[0]) : 1; }

/// Experts with a gate of their up's type, and without scales.
static bool is_plain(const Experts& experts, const residency::UnitTable& units) {
  const auto dtype = [&](std::int32_t part) { return units.part({experts.first_unit, part}).dtype; };
  if (experts.gated() && dtype(experts.gate_part) != dtype(experts.up_part)) return false;
  return experts.inner_scale.none() && experts.up_scale.none() && experts.down_scale.none();
}

/// Whether scores are bent, or keys seen by chunks.
static bool is_rare(const Attention& attention) {
  return attention.cap > 0 || !attention.slopes.empty() || attention.chunks;
}

/// SiLU with limits.
static bool has_limits(kernels::Activation activation) {
  return activation == kernels::Activation::limited || activation == kernels::Activation::bounded;
}

/// What a step would need that this kind of GPU has no kernels for; empty: nothing.
static std::string_view lacked_by(const Program& program, const residency::UnitTable& units, const Step& step) {
  using Kind = Step::Kind;
  const gpu::Offer& offer = gpu::offer();
  switch (step.kind) {
    case Kind::moe:
      if (step.experts.gating == Gating::sparse_mixer && !offer.rare_layers) return "routers with SparseMixer";
      if (has_limits(step.experts.activation) && !offer.rare_layers) return "SiLU with limits";
      return offer.mixed_products || is_plain(step.experts, units) ? "" : "such mixtures of experts";
    case Kind::store_latent:
    case Kind::matmul_heads:
    case Kind::store_index:
    case Kind::select:
      return offer.latents ? "" : "attention over latents";
    case Kind::gather:
      return offer.several ? "" : "several GPUs";
    case Kind::delta_rule:
      return offer.channel_decays || !step.delta_rule.has_channel_decays(program.buffer(step.c).cols)
                 ? ""
                 : "states with a decay for each channel";
    case Kind::attention:
      if (step.attention.head_dim % offer.head_step != 0) return "attention with heads of so many channels";
      return offer.rare_layers || !is_rare(step.attention) ? "" : "attention with caps, slopes or chunks";
    case Kind::gated:
    case Kind::gate:
      return offer.rare_layers || !has_limits(step.activation) ? "" : "SiLU with limits";
    case Kind::activate:
      return offer.rare_layers || (!step.xielu && step.activation != kernels::Activation::gelu_erf)
                 ? ""
                 : "GELU by erf and xIELU";
    case Kind::temper:
      return offer.rare_layers || step.temperature.offset == 0 ? "" : "temperatures of positions from others than 0";
    default:
      return offer.whole_rows || !program.has_whole_rows() ? "" : "rows that all see each other";
  }
}

/// Kinds of GPUs differ in the ops and the types that they have kernels for.
static Status check_offer(const Program& program, const residency::UnitTable& units, const GpuTraits& traits) {
  const gpu::Offer& offer = gpu::offer();
  if (!offer.keeps(traits.kv_dtype))
    return error(Code::unsupported, "{} has no KV in {} yet; use --kv f16, q8_0, q4_0 or f32, or --device cpu",
                 offer.name, info(traits.kv_dtype).name);
  for (const Step& step : program.steps)
    if (const std::string_view lacked = lacked_by(program, units, step); !lacked.empty())
      return error(Code::unsupported, "{} has no kernels for {} yet, which this model has; use --device cpu",
                   offer.name, lacked);
  for (const WeightRef weight : program.weights())
    if (const DType dtype = units.part(weight).dtype; !offer.reads(dtype))
      return error(Code::unsupported, "{} does not read weights in {} yet, such as {}; use --device cpu", offer.name,
                   info(dtype).name, units.part(weight).name);
  return {};
}

/// Of the first attention whose scores fall with distance; empty: there is none.
static std::vector<float> slopes_of(const Program& program) {
  for (const Step& step : program.steps)
    if (!step.attention.slopes.empty()) return step.attention.slopes;
  return {};
}

/// Scores are bent where keys and values lie apart, by slopes that all layers share.
static Status check_scores(const Attention& attention, const std::vector<float>& slopes, const GpuTraits& traits) {
  if (is_rare(attention) && kv_has_few_bits(traits.kv_dtype))
    return error(
        Code::unsupported,
        "the GPU's attention over KV in less than 4 bits has no caps, slopes and chunks, which this model has; "
        "use --kv q4_0");
  if (attention.latent_values > 0 && (attention.cap > 0 || !attention.slopes.empty()))
    return error(Code::unsupported,
                 "the GPU's attention over latents has no caps and slopes of scores; use --device cpu");
  if (!attention.slopes.empty() && attention.slopes != slopes)
    return error(
        Code::unsupported,
        "the GPU's attention takes scores that fall with distance (ALiBi) alike in all layers; use --device cpu");
  return {};
}

/// Which launches this kind of GPU has no kernels for.
static Status check_launches(const Launches& launches) {
  using Kind = Launch::Kind;
  const gpu::Offer& offer = gpu::offer();
  const auto lacked = [&](const Launch& launch) {
    switch (launch.kind) {
      case Kind::layer_norm:
      case Kind::turn:
      case Kind::merge_rows:
      case Kind::mean_rows:
      case Kind::clamp:
      case Kind::standardize:
        return !offer.whole_rows;
      case Kind::largest:
        return !offer.rare_layers;
      default:
        return false;
    }
  };
  for (const std::vector<Launch>& block : launches)
    for (const Launch& launch : block)
      if (lacked(launch))
        return error(Code::unsupported,
                     "{} has no kernels for this step yet, which this model has: {}; use --device cpu", offer.name,
                     name(launch.kind));
  return {};
}

Status check_gpu(const Program& program, const residency::UnitTable& units, const GpuTraits& traits) {
  using kernels::Activation;
  MR_RETURN_IF_ERROR(check_offer(program, units, traits));
  const std::vector<float> slopes = slopes_of(program);
  const std::int32_t most_vocab = gpu::most_vocab(traits.block_shared_bytes);
  for (const Step& step : program.steps) {
    if (step.kind == Step::Kind::logits && units.part(step.weight).rows > most_vocab)
      return error(Code::unsupported, "the GPU part takes vocabularies of up to {} tokens, not of {}; use --device cpu",
                   most_vocab, units.part(step.weight).rows);
    if (step.kind == Step::Kind::logits && !step.weight2.none() && step.vocab > 0)
      return error(Code::unsupported, "several GPUs have no heads with a bias; use one, or --device cpu");
    if (step.kind == Step::Kind::gated && step.activation != Activation::silu && step.activation != Activation::gelu &&
        !has_limits(step.activation))
      return error(Code::unsupported, "the GPU part has dense layers with SiLU and GELU alone; use --device cpu");
    if (step.kind == Step::Kind::delta_rule || step.kind == Step::Kind::scan) MR_RETURN_IF_ERROR(check_states(step));
    if (step.kind == Step::Kind::scan && step.scan.selective)
      return error(Code::unsupported,
                   "the GPU part has no scans with a step for each channel yet (Mamba's first); use "
                   "--device cpu");
    if (step.kind == Step::Kind::select) MR_RETURN_IF_ERROR(check_indexer(step.indexer));
    if (step.kind == Step::Kind::add_streams || step.kind == Step::Kind::statistical_top_k ||
        step.kind == Step::Kind::match_rms || step.kind == Step::Kind::cap || step.kind == Step::Kind::weigh_streams ||
        step.kind == Step::Kind::gate_streams)
      return error(Code::unsupported, "the GPU part has no layers with several residual streams yet; use --device cpu");
    if (step.kind == Step::Kind::compress || (step.kind == Step::Kind::attention && step.attention.rows >= 0))
      return error(Code::unsupported, "the GPU part has no compressed attention yet; use --device cpu");
    if (step.kind == Step::Kind::softplus_gate)
      return error(Code::unsupported,
                   "the GPU part has no attention whose gates go through a softplus yet; use --device cpu");
    if (step.kind == Step::Kind::embed_ngrams)
      return error(Code::unsupported, "the GPU part has no embeddings of n-grams yet; use --device cpu");
    if (step.kind == Step::Kind::convolve && step.convolution.dilation > 1)
      return error(Code::unsupported, "the GPU part has no dilated convolutions yet; use --device cpu");
    if (step.kind == Step::Kind::rope && step.back)
      return error(Code::unsupported, "the GPU part turns no heads back yet; use --device cpu");
    if (step.kind == Step::Kind::moe && has_limits(step.experts.activation) && !step.experts.gated())
      return error(Code::unsupported, "the GPU part has no limits of experts without a gate; use --device cpu");
    const bool by_erf = step.activation == Activation::gelu_erf && step.kind != Step::Kind::activate;
    if (by_erf || step.experts.activation == Activation::gelu_erf)
      return error(Code::unsupported, "the GPU part has gates of GELU in its tanh form alone; use --device cpu");
    if (step.kind == Step::Kind::scale && step.weight.none() && !step.weight2.none())
      return error(Code::unsupported, "the GPU part adds no vector alone to rows yet; use --device cpu");
    if (step.row_of == RowOf::type)
      return error(Code::unsupported, "the GPU part has no embeddings of types yet; use --device cpu");
    if (step.kind == Step::Kind::moe && step.experts.groups > 1 && step.experts.group_best != 2)
      return error(Code::unsupported, "the GPU part ranks groups of experts by their two best alone; use --device cpu");
    if (step.kind == Step::Kind::moe && step.experts.gating == Gating::sqrt_softplus)
      return error(Code::unsupported,
                   "the GPU part has no routers with the square root of a softplus yet; use --device cpu");
    if (step.kind == Step::Kind::moe && !step.experts.of_tokens.none())
      return error(Code::unsupported,
                   "the GPU part has no layers whose experts follow from the token yet; use --device cpu");
    if (step.kind != Step::Kind::attention) continue;
    MR_RETURN_IF_ERROR(check_scores(step.attention, slopes, traits));
    if (!step.attention.causal) {
      MR_RETURN_IF_ERROR(check_whole_rows(program, step, traits));
      continue;
    }
    const std::int64_t kept = kept_channels(std::max(step.attention.head_dim, step.attention.v_dim()));
    MR_RETURN_IF_ERROR(step.attention.latent_values > 0 ? check_latents(step.attention) : check_heads(kept, traits));
  }
  if (!program.has_whole_rows()) MR_RETURN_IF_ERROR(check_queries(program, traits));
  MR_ASSIGN_OR_RETURN(const Launches launches, fuse(on_gpu(program), units, {}));
  return check_launches(launches);
}

Status GpuExecutor::prepare(const Program& program, const PassLimits& limits) {
  const device::OnGpu on(options_.device);
  MR_RETURN_IF_ERROR(check_gpu(program, units_, traits_));
  if (limits.routed_layers > 0 && options_.rows.routing == nullptr)
    return error(Code::internal,
                 "the rows of {} layers need experts outside VRAM, but the executor has no source for them",
                 limits.routed_layers);
  if (options_.aside)
    for (const WeightRef weight : program.weights())
      if (weights_.moves(weight))
        return error(Code::internal, "{} moves, and these passes come between others", part(weight).name);
  for (const bool hidden : {false, true}) programs_[hidden ? 1 : 0] = on_gpu(program.of_passes(hidden));
  PassShape shape = gpu_pass_shape(program, units_, limits);
  for (const Step& step : program.steps)
    if (step.kind == Step::Kind::gated && !options_.fuse)
      shape.separate_gate = std::max(shape.separate_gate, program.buffer(step.out).cols);
  shape_ = shape;
  layout_ = make_gpu_layout(shape);
  sights_ = program.sights();
  cos_sin_.assign(program.ropes.size(), {});
  MR_ASSIGN_OR_RETURN(reservation_, vram_.reserve("activations", layout_.bytes));
  MR_ASSIGN_OR_RETURN(memory_, device::DeviceBuffer::allocate(layout_.bytes));
  MR_RETURN_IF_ERROR(device::clear_device(memory_));
  for (const Step& step : program.steps)
    if (step.kind == Step::Kind::embed && step.row_of == RowOf::position)
      known_positions_ = std::min(known_positions_, part(step.weight).rows);
  slopes_ = slopes_of(program);
  if (!slopes_.empty()) {
    MR_RETURN_IF_ERROR(
        device::copy_to_device(at(layout_.slopes), slopes_.data(), slopes_.size() * sizeof(float), stream_));
    MR_RETURN_IF_ERROR(stream_.synchronise());
  }
  const PassRows rows = make_pass_rows(shape, shape.max_rows, shape.max_logit_rows, shape.max_sequences, true, true,
                                       most_states(shape, shape.max_rows));
  MR_ASSIGN_OR_RETURN(rows_host_, device::PinnedBuffer::allocate(rows.bytes));
  results_bytes_ = static_cast<std::uint64_t>(shape.max_logit_rows) *
                   std::max<std::uint64_t>(sizeof(gpu::Candidates) + sizeof(std::int32_t),
                                           static_cast<std::uint64_t>(shape.vocab) * 4);
  results_bytes_ = std::max<std::uint64_t>(results_bytes_, 1);  // of a program without logits
  MR_ASSIGN_OR_RETURN(results_host_, device::PinnedBuffer::allocate(results_bytes_));
  MR_RETURN_IF_ERROR(prepare_given());
  picture_cols_ = 0;
  for (const Step& step : programs_[0].steps)
    if (step.by_picture || step.kind == Step::Kind::add_picture)
      picture_cols_ = std::max(picture_cols_, step.first + programs_[0].buffer(step.out).cols);
  MR_RETURN_IF_ERROR(prepare_adapters());
  MR_RETURN_IF_ERROR(prepare_share());
  MR_RETURN_IF_ERROR(prepare_experts());
  return prepare_launches();
}

/// Page-locked, so that a captured pass may copy from it.
Status GpuExecutor::prepare_given() {
  given_cols_ = 0;
  for (const Step& step : programs_[0].steps)
    if (step.kind == Step::Kind::given) given_cols_ = programs_[0].buffer(step.out).cols;
  if (given_cols_ == 0) return {};
  const auto bytes = static_cast<std::uint64_t>(shape_.max_rows * given_cols_) * sizeof(float);
  MR_ASSIGN_OR_RETURN(given_host_, device::PinnedBuffer::allocate(bytes));
  return {};
}

Status GpuExecutor::prepare_launches() {
  for (const bool hidden : {false, true}) {
    for (const Adapted way : {Adapted::no, Adapted::behind, Adapted::before})
      for (const Class of : {kGenerated, kShared, kPrompt}) {
        const bool adapts = way != Adapted::no, before = way == Adapted::before;
        if ((of == kShared && share_ == nullptr) || (adapts && options_.rows.adapters == nullptr)) continue;
        if (before && of != kGenerated) continue;
        FuseOptions options;
        if (adapts) options.adapted = [this, before](WeightRef ref) { return adapted(ref, before); };
        options.neighbours = options_.fuse;
        options.prompt = of == kPrompt;
        options.prompt_dtypes = [this](DType dtype) { return gpu::has_prompt_product(prompt_products_, dtype); };
        options.experts_from_host = options_.experts.slots != nullptr;
        if (of == kShared)
          options.host_rows = [this](WeightRef ref) { return part(ref).rows - weights_.device_rows(ref); };
        MR_ASSIGN_OR_RETURN(launches_[hidden ? 1 : 0][static_cast<std::size_t>(way)][of],
                            fuse(programs_[hidden ? 1 : 0], units_, options));
      }
  }
  return {};
}

Status GpuExecutor::prepare_share() {
  if (!weights_.splits() || options_.processor.pool == nullptr) return {};
  std::int64_t most_rows = 0;
  for (std::size_t u = 0; u < units_.units().size(); ++u) {
    const auto& parts = units_.units()[u].parts;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const WeightRef ref{static_cast<std::int32_t>(u), static_cast<std::int32_t>(p)};
      most_rows = std::max(most_rows, parts[p].rows - weights_.device_rows(ref));
    }
  }
  const auto products = static_cast<std::int64_t>(Step().products.size());
  const HostShare::Sizes sizes{std::min(kSplitRows, shape_.max_rows), shape_.widest_input, products * most_rows};
  MR_ASSIGN_OR_RETURN(share_, HostShare::create(sizes, *options_.processor.pool, *options_.processor.kernels,
                                                *options_.processor.ram, options_.trace));
  return {};
}

// --- Launch ---

Status GpuExecutor::run(const kv::Batch& batch, const std::function<bool()>& cancelled) {
  const device::OnGpu on(options_.device);  // the thread may be another than the one that loaded
  cancelled_ = cancelled;
  may_guess_ = guessing_ = false;
  status_ = begin_pass(batch);
  if (status_.ok() && cancelled_ && cancelled_()) status_ = error(Code::cancelled, "stopped");
  if (status_.ok() && rows_ > 0) status_ = launch_all();
  if (meanwhile_) std::exchange(meanwhile_, {})();
  batch_ = nullptr;
  ++counters_.passes;
  counters_.rows += static_cast<std::uint64_t>(rows_);
  counters_.weight_bytes += pass_weight_bytes_;
  const std::uint64_t pass_ns = Trace::now_ns() - pass_begin_ns_;
  counters_.pass_ns += pass_ns;
  if (may_guess_ && status_.ok()) trial_.passed(static_cast<double>(pass_ns) * 1e-9 / static_cast<double>(rows_));
  if (share_ != nullptr) {
    counters_.host_bytes = share_->weight_bytes();
    counters_.host_ns = share_->compute_ns();
  }
  if (expert_share_ != nullptr) {
    counters_.host_bytes = expert_share_->weight_bytes();
    counters_.host_ns = expert_share_->compute_ns();
  }
  return status_;
}

/// The pass on the stream, and its end.
Status GpuExecutor::launch_all() {
  const device::ProfilerRange range(few_rows() ? "decode pass" : "prompt pass");
  const gpu::PlainLaunches launches(rows_ > (shape_.top_k > 0 ? kOverlappedRowsOfMixtures : kOverlappedRows));
  Status status = upload_rows();
  if (status.ok() && !options_.aside) status = weights_.begin_pass(split(), cancelled_);
  if (status.ok()) status = begin_experts();
  if (status.ok()) status = launch_pass();
  if (!options_.aside) weights_.pass_launched();
  if (share_ != nullptr && !status.ok()) share_->abandon();  // or the stream would wait for ever
  if (expert_share_ != nullptr && !status.ok()) expert_share_->abandon();
  if (meanwhile_) std::exchange(meanwhile_, {})();
  // The rows' buffer is written again by the next pass, so this one must have ended, also when it failed half-way.
  Status ended = stream_.synchronise();
  if (has_all_experts()) options_.experts.slots->end_pass();
  if (status.ok()) status = std::move(ended);
  if (status.ok() && peers_.failed != nullptr && std::atomic_ref(*peers_.failed).load() != 0)
    status = error(Code::io_error, "another GPU has given the pass up, or did not answer for five minutes");
  if (status.ok()) status = tell_trace();
  return status;
}

Status GpuExecutor::mark(const char* row, const char* name) {
  if (options_.trace == nullptr) return {};
  if (mark_count_ == marks_.size()) {
    MR_ASSIGN_OR_RETURN(device::Event event, device::Event::create(true));
    marks_.push_back({std::move(event)});
  }
  Mark& mark = marks_[mark_count_++];
  mark.row = row;
  mark.name = name;
  MR_RETURN_IF_ERROR(device::record(mark.end, stream_));
  return {};
}

bool GpuExecutor::waits() const {
  return options_.trace == nullptr && (options_.aside || !weights_.streams()) && options_.experts.slots == nullptr;
}

/// The marks' times, on the host's clock: the last one ended when the pass did.
Status GpuExecutor::tell_trace() {
  if (options_.trace == nullptr || mark_count_ == 0) return {};
  const std::uint64_t end = Trace::now_ns();
  const auto before_end = [&](const Mark& mark) { return device::milliseconds(mark.end, marks_[mark_count_ - 1].end); };
  MR_ASSIGN_OR_RETURN(float previous, before_end(marks_[0]));
  for (std::size_t i = 1; i < mark_count_; ++i) {
    MR_ASSIGN_OR_RETURN(const float ms, before_end(marks_[i]));
    options_.trace->add(marks_[i].row, marks_[i].name,
                        end - static_cast<std::uint64_t>(static_cast<double>(previous) * 1e6),
                        end - static_cast<std::uint64_t>(static_cast<double>(ms) * 1e6));
    previous = ms;
  }
  mark_count_ = 0;
  return {};
}

Status GpuExecutor::launch_pass() {
  // Generated rows come first; where they do not, the pass is none that comes again.
  const bool in_order = windows_.size() == 1 || (windows_.size() == 2 && windows_.back().prompt);
  const bool graph = options_.graphs && few_rows() && waits() && in_order && states_.repeat && pictures_.empty();
  if (!graph) {
    MR_RETURN_IF_ERROR(mark("copy", "begin"));
    MR_RETURN_IF_ERROR(device::copy_to_device(at(layout_.rows), rows_host_.data(), pass_rows_.bytes, stream_));
    MR_RETURN_IF_ERROR(mark("copy", "rows to the GPU"));
    MR_RETURN_IF_ERROR(emit());
    MR_RETURN_IF_ERROR(bring_results());
    return mark("copy", "results to the host");
  }
  const std::int64_t generated = windows_.front().prompt ? 0 : windows_.front().rows;
  const GraphKey key{rows_,           generated, logit_rows_,    batch_->sequences.size(),
                     position_bound_, top_only_, draws_.empty(), batch_->wants_hidden,
                     mixed_};
  auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    if (graphs_.size() >= kMostGraphs) graphs_.clear();
    MR_RETURN_IF_ERROR(device::RecordedPass::begin(stream_));
    Status status = device::copy_to_device(at(layout_.rows), rows_host_.data(), pass_rows_.bytes, stream_);
    if (status.ok()) status = emit();
    if (status.ok()) status = bring_results();
    Expected<device::RecordedPass> captured = device::RecordedPass::end(stream_);
    MR_RETURN_IF_ERROR(status);
    if (!captured.ok()) return captured.status();
    found = graphs_.emplace(key, Captured{std::move(*captured), pass_weight_bytes_}).first;
  }
  pass_weight_bytes_ = found->second.weight_bytes;
  return found->second.graph.launch(stream_);
}

Status GpuExecutor::bring_results() {
  if (logit_rows_ == 0 || !options_.brings_results) return {};
  const auto rows = static_cast<std::uint64_t>(logit_rows_);
  if (!top_only_)
    return device::copy_to_host(results_host_.data(), at(layout_.logits),
                                rows * static_cast<std::uint64_t>(shape_.vocab) * sizeof(float), stream_);
  const std::uint64_t found = rows * sizeof(gpu::Candidates);
  MR_RETURN_IF_ERROR(device::copy_to_host(results_host_.data(), at(layout_.candidates), found, stream_));
  if (draws_.empty()) return {};
  return device::copy_to_host(results_host_.data() + found, at(layout_.drawn), rows * sizeof(std::int32_t), stream_);
}

Logits GpuExecutor::last_logits() const {
  const auto* data = brought_top_only_ ? nullptr : reinterpret_cast<const float*>(results_host_.data());
  return {data, logit_rows_, shape_.vocab};
}

TopLogits GpuExecutor::last_top_logits(std::int64_t row) const {
  const auto* const rows = reinterpret_cast<const gpu::Candidates*>(results_host_.data());
  const gpu::Candidates& found = rows[row];
  const auto* const drawn = reinterpret_cast<const std::int32_t*>(rows + logit_rows_);
  const auto count = static_cast<std::size_t>(found.count);
  return {{found.logit, count}, {found.id, count}, found.finite != 0, draws_.empty() ? -1 : drawn[row]};
}

/// Once the pass has ended: the stream was waited for, and nothing writes the buffer before the next pass.
Status GpuExecutor::read_handed(std::int64_t number, std::int64_t first, std::int64_t rows, float* out) const {
  Act from;
  if (program_ != nullptr)
    for (const Step& step : program_->steps)
      if (step.kind == Step::Kind::hidden && step.first == number) from = step.a;
  const bool merged = from.buffer >= 0 && program_->buffer(from).rows == Rows::merged;
  if (failed() || from.buffer < 0 || first < 0 || rows < 0 || first + rows > rows_ / (merged ? shape_.merge : 1))
    return error(Code::internal, "rows {} to {} of a pass of {} have no states", first, first + rows, rows_);
  const auto buffer = static_cast<std::size_t>(from.buffer);
  const std::int64_t cols = shape_.buffers[buffer].cols;
  return device::read_device(out, at<float>(layout_.buffers[buffer]) + first * cols,
                             static_cast<std::size_t>(rows * cols) * sizeof(float));
}

}  // namespace millrace::exec
