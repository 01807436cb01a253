// DeepSeek-V4: residual streams that are mixed before and behind each part of a layer; heads that share one key, which
// is their value, and see a window and rows that each stand for several tokens; mixtures whose router takes the root of
// a softplus, and in the first layers knows the experts by the token. The blocks behind the layers, which guess a
// token, are not read. Source: DeepSeek-V4 (2026).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {
namespace {

constexpr std::int64_t kChoosingRatio = 4;  // tokens to a row where rows overlap and an indexer chooses among them
constexpr std::int64_t kMostRatio = 128;    // of layers that see all of them
constexpr int kPlainRope = 0, kCompressedRope = 1;

/// What layers have in common of their attention, the indexer that some have among it.
Expected<CompressedAttentionSpec> read_attention(Keys& keys, const modelfile::Model& file, const Hyperparameters& hp) {
  CompressedAttentionSpec read;
  read.heads = hp.heads;
  read.head_dim = hp.head_dim;
  read.q_rank = keys.required("attention.q_lora_rank", 1, 1 << 20);
  read.window = keys.required("attention.sliding_window", 1, 1 << 20);
  read.out_groups = keys.required("attention.output_group_count", 1, hp.heads);
  read.out_rank = keys.required("attention.output_lora_rank", 1, 1 << 20);
  read.indexer.heads = keys.required("attention.indexer.head_count", 1, 1024);
  read.indexer.head_dim = keys.required("attention.indexer.key_length", hp.rotary,
                                        std::min<std::int64_t>(hp.head_dim, kernels::kMostIndexDim));
  read.indexer.top_k = keys.required("attention.indexer.top_k", 1, 1 << 20);
  MR_RETURN_IF_ERROR(keys.status());
  if (hp.kv_heads != 1)
    return error(Code::unsupported, "{} is {}: this version has such attention with one key for all heads alone",
                 arch_key(file, "attention.head_count_kv"), hp.kv_heads);
  if (hp.heads % read.out_groups != 0)
    return error(Code::corrupt, "{} heads in {} groups ({}) cannot be", hp.heads, read.out_groups,
                 arch_key(file, "attention.output_group_count"));
  return read;
}

/// Tokens to a row of each layer; 0: it has none.
Expected<std::vector<std::int64_t>> read_ratios(Keys& keys, const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::string_view kKey = "attention.compress_ratios";
  if (!keys.has(kKey))
    return error(Code::not_found, "the file has no {}, by which layers of {} attend", arch_key(file, kKey),
                 hp.architecture);
  const std::vector<std::int64_t> ratios = keys.of_layers(kKey, hp.layers, 0, 0, 1 << 20);
  MR_RETURN_IF_ERROR(keys.status());
  for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
    const std::int64_t ratio = ratios[layer];
    const bool known = ratio == 0 || (ratio >= kChoosingRatio && ratio <= kMostRatio && kv::is_ratio(ratio));
    if (!known)
      return error(
          Code::unsupported,
          "{} is {} in layer {}: this version knows 0, {} and powers of two up to {} (published models have 0, "
          "4 and 128)",
          arch_key(file, kKey), ratio, layer, kChoosingRatio, kMostRatio);
  }
  return ratios;
}

Status read_streams(Keys& keys, DecoderSpec& spec) {
  spec.stream_kind = Streams::connected;
  spec.streams = spec.weighing.streams = keys.required("hyper_connection.count", 2, exec::kMostStreams);
  spec.weighing.iterations = keys.required("hyper_connection.sinkhorn_iterations", 1, 1000);
  spec.weighing.eps = static_cast<float>(keys.optional_float("hyper_connection.epsilon", 1e-6, 0, 1));
  return keys.status();
}

/// The mixture of layers behind those whose experts follow from the token.
Expected<MixtureSpec> read_experts(const modelfile::Model& file, const Hyperparameters& hp) {
  MixtureSpec mixture;
  mixture.gating = exec::Gating::sqrt_softplus;
  MR_ASSIGN_OR_RETURN(mixture, read_mixture(file, hp, mixture));
  if (mixture.gating != exec::Gating::sqrt_softplus)
    return error(Code::unsupported, "{} is {}: routers of {} have 4 (square root of a softplus) in this version",
                 arch_key(file, "expert_gating_func"), static_cast<int>(mixture.gating), hp.architecture);
  mixture.selection_bias = true;
  return mixture;
}

/// Without rows positions are turned as they are, with rows by a base and a scaling of their own.
Status read_ropes(Keys& keys, const modelfile::Model& file, const Hyperparameters& hp, DecoderSpec& spec) {
  Hyperparameters compressed = hp;
  compressed.rope_theta = keys.optional_float("attention.compress_rope_freq_base", 160000, 0, 1e12);
  MR_RETURN_IF_ERROR(keys.status());
  spec.ropes.push_back(plain_rope(hp.rope_theta, hp.rotary));
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, compressed));
  spec.ropes.back().magnitude = 1;  // models are trained without YaRN's
  for (RopeSpec& rope : spec.ropes) rope.last = true;
  return {};
}

}  // namespace

Expected<DecoderSpec> deepseek4_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  DecoderSpec spec;
  MR_RETURN_IF_ERROR(read_streams(keys, spec));
  MR_RETURN_IF_ERROR(read_ropes(keys, file, hp, spec));
  LayerSpec common;
  common.mixer = Mixer::compressed_attention;
  common.limits = kernels::Activation::bounded;
  MR_ASSIGN_OR_RETURN(common.compressed, read_attention(keys, file, hp));
  MR_ASSIGN_OR_RETURN(common.mixture, read_experts(file, hp));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> ratios, read_ratios(keys, file, hp));
  const std::int64_t of_tokens = keys.optional("hash_layer_count", 0, 0, hp.layers);
  const std::vector<double> limits = keys.floats_of_layers("swiglu_clamp_exp", hp.layers, 0, -1e-30, 1e6);
  const std::vector<double> shared_limits =
      keys.has("swiglu_clamp_shexp") ? keys.floats_of_layers("swiglu_clamp_shexp", hp.layers, 0, -1e-30, 1e6) : limits;
  MR_RETURN_IF_ERROR(keys.status());
  const exec::Indexer indexer = common.compressed.indexer;
  for (std::int64_t index = 0; index < hp.layers; ++index) {
    const auto at = static_cast<std::size_t>(index);
    LayerSpec& layer = spec.layers.emplace_back(common);
    const bool chooses = ratios[at] == kChoosingRatio;
    layer.compressed.ratio = ratios[at];
    layer.compressed.overlaps = chooses;
    layer.compressed.rope = ratios[at] == 0 ? kPlainRope : kCompressedRope;
    layer.compressed.indexer = chooses ? indexer : exec::Indexer();
    layer.compressed.indexer.ratio = chooses ? ratios[at] : 1;
    layer.mixture.of_tokens = index < of_tokens;
    layer.mixture.selection_bias = !layer.mixture.of_tokens;
    layer.mixture.limit = static_cast<float>(limits[at]);
    layer.limit = static_cast<float>(shared_limits[at]);
  }
  spec.guesses = false;
  return spec;
}

}  // namespace millrace::model
