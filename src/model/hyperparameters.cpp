#include "model/hyperparameters.h"

#include <algorithm>
#include <cmath>

#include "model/gemma4_assistant.h"

namespace millrace::model {
namespace {

// Far above any model there is, far below what could overflow a product of two of them in 64 bits.
constexpr std::int64_t kMostLayers = 10'000, kMostDim = 1 << 20, kMostHeads = 1 << 14, kMostHeadDim = 512;
constexpr std::int64_t kMostLatentDim = kernels::kMostLatentDim;
constexpr std::int64_t kMostContext = 1 << 28, kMostVocab = 1 << 24, kMostExperts = 1 << 14;

Status check_relations(const Hyperparameters& hp) {
  if (hp.top_k > hp.experts)
    return error(Code::corrupt, "{} experts a token out of {} cannot be", hp.top_k, hp.experts);
  if (hp.heads == 0) return {};
  if (hp.heads % hp.kv_heads != 0)
    return error(Code::corrupt, "{} attention heads cannot share {} KV heads evenly", hp.heads, hp.kv_heads);
  for (const std::int64_t dim : {hp.head_dim, hp.value_dim})
    if (dim % 8 != 0) return error(Code::unsupported, "heads of {} channels (this version wants a multiple of 8)", dim);
  if (hp.rotary % 2 != 0 || hp.rotary > hp.head_dim)
    return error(Code::corrupt, "RoPE over {} of {} channels cannot be", hp.rotary, hp.head_dim);
  return {};
}

/// Whether a model of this name is causal only where its file says so.
bool is_encoder(std::string_view architecture) {
  constexpr std::string_view kEncoders[] = {"bert",         "eurobert",    "gemma-embedding", "jina-bert-v2",
                                            "jina-bert-v3", "modern-bert", "nomic-bert",      "nomic-bert-moe"};
  return std::find(std::begin(kEncoders), std::end(kEncoders), architecture) != std::end(kEncoders);
}

/// Of the layers that attend, of which there is one at least.
void read_heads(Keys& keys, const modelfile::Model& file, Hyperparameters& hp) {
  const auto heads = keys.has("attention.head_count")
                         ? keys.of_layers("attention.head_count", hp.layers, 0, 1, kMostHeads)
                         : std::vector{keys.required("attention.head_count", 1, kMostHeads)};
  hp.heads = *std::max_element(heads.begin(), heads.end());
  // Layers that do not attend have no KV heads.
  const bool keeps_states = keys.has("shortconv.l_cache") || keys.has("ssm.state_size") || keys.has("kda.head_dim");
  const std::int64_t least_kv_heads = keeps_states ? 0 : 1;
  const auto kv_heads = keys.of_layers("attention.head_count_kv", hp.layers, hp.heads, least_kv_heads, kMostHeads);
  hp.kv_heads = *std::max_element(kv_heads.begin(), kv_heads.end());
  if (hp.kv_heads == 0)
    keys.fail(error(Code::unsupported, "{}: no layer attends (this version has no such models)",
                    arch_key(file, "attention.head_count_kv")));
  hp.head_dim = keys.optional("attention.key_length", hp.model_dim / hp.heads, 1, kMostLatentDim);
  // Files with a latent say there how wide that is, and here how wide heads are.
  const bool latent = keys.has("attention.kv_lora_rank");
  if (latent) hp.head_dim = keys.optional("attention.key_length_mla", hp.head_dim, 1, kMostLatentDim);
  if (hp.head_dim > kMostHeadDim)
    keys.fail(error(Code::corrupt, "heads of {} channels ({}), which cannot be", hp.head_dim,
                    arch_key(file, "attention.key_length")));
  hp.rotary = keys.optional("rope.dimension_count", hp.head_dim, 2, kMostHeadDim);
  const std::int64_t value_dim = keys.optional("attention.value_length", hp.head_dim, 1, kMostHeadDim);
  hp.value_dim = latent ? hp.head_dim : value_dim;
}

}  // namespace

AttentionSpec plain_attention(const Hyperparameters& hp) {
  AttentionSpec attention;
  attention.heads = hp.heads;
  attention.kv_heads = hp.kv_heads;
  attention.head_dim = hp.head_dim;
  attention.value_dim = hp.value_dim;
  attention.causal = hp.causal;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(hp.head_dim));
  return attention;
}

exec::Temperature read_temperature(Keys& keys) {
  exec::Temperature temperature;
  temperature.scale = static_cast<float>(keys.optional_float("attention.temperature_scale", 0, -1e-9, 100));
  if (temperature.scale == 0) return temperature;
  temperature.period = keys.has("attention.temperature_length")
                           ? keys.required("attention.temperature_length", 1, 1 << 28)
                           : keys.required("rope.scaling.original_context_length", 1, 1 << 28);
  return temperature;
}

Expected<std::vector<std::int64_t>> read_kv_heads(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  const auto kv_heads = keys.of_layers("attention.head_count_kv", hp.layers, hp.kv_heads, 0, hp.kv_heads);
  MR_RETURN_IF_ERROR(keys.status());
  for (const std::int64_t heads : kv_heads)
    if (heads > 0 && hp.heads % heads != 0)
      return error(Code::corrupt, "{}: {} attention heads cannot share {} KV heads evenly",
                   arch_key(file, "attention.head_count_kv"), hp.heads, heads);
  return kv_heads;
}

Expected<std::vector<std::int64_t>> read_windows(const modelfile::Model& file, const Hyperparameters& hp,
                                                 std::int64_t period, SeesAll sees_all) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  Keys keys(file);
  std::vector<std::int64_t> windows(static_cast<std::size_t>(hp.layers), 0);
  const std::int64_t window = keys.optional("attention.sliding_window", 0, 0, 1 << 28);
  const auto pattern = keys.of_layers(kPattern, hp.layers, period, 0, 1 << 16);
  MR_RETURN_IF_ERROR(keys.status());
  // A period is longer than 1, a flag is not.
  const auto is_flag = [](std::int64_t each) { return each <= 1; };
  const bool flags = std::all_of(pattern.begin(), pattern.end(), is_flag);
  if (!flags && std::any_of(pattern.begin(), pattern.end(), is_flag))
    return error(Code::corrupt, "{} has both flags (0 and 1) and periods", arch_key(file, kPattern));
  for (std::size_t index = 0; index < windows.size(); ++index) {
    const std::int64_t length = pattern[index], all = sees_all == SeesAll::first ? 0 : length - 1;
    const bool local = flags ? length == 1 : static_cast<std::int64_t>(index) % length != all;
    windows[index] = local ? window : 0;
  }
  return windows;
}

void leave_unrotated_where_all_is_seen(DecoderSpec& spec) {
  const bool any = std::any_of(spec.layers.begin(), spec.layers.end(),
                               [](const LayerSpec& layer) { return layer.attention.window > 0; });
  for (LayerSpec& layer : spec.layers)
    if (any && layer.attention.window == 0) layer.attention.rope = kNoRope;
}

Expected<std::int64_t> read_ff_dim(const modelfile::Model& file, const Hyperparameters& hp) {
  if (hp.ff_dim == 0) return error(Code::corrupt, "{} is missing or 0", arch_key(file, "feed_forward_length"));
  return hp.ff_dim;
}

Expected<MixtureSpec> read_mixture(const modelfile::Model& file, const Hyperparameters& hp, MixtureSpec defaults) {
  if (hp.experts == 0 || hp.expert_ff == 0)
    return error(Code::corrupt, "{} or {} is missing or 0", arch_key(file, "expert_count"),
                 arch_key(file, "expert_feed_forward_length"));
  Keys keys(file);
  // Some converters write 0 for "not scaled".
  const double scale = keys.optional_float("expert_weights_scale", 1, -1e-30, 1e6);
  const std::int64_t gating = keys.optional("expert_gating_func", static_cast<std::int64_t>(defaults.gating), 0, 255);
  const std::int64_t groups = keys.optional("expert_group_count", 1, 0, exec::kMostGroups);
  const std::int64_t groups_used = keys.optional("expert_group_used_count", 1, 0, exec::kMostGroups);
  const std::int64_t shared = keys.optional("expert_shared_count", 0, 0, 64);
  if (gating < 1 || gating > 4)
    keys.fail(error(Code::unsupported,
                    "{} is {}: this version knows 1 (softmax), 2 (sigmoid), 3 (softmax of those chosen) and 4 (square "
                    "root of a softplus)",
                    arch_key(file, "expert_gating_func"), gating));
  MR_RETURN_IF_ERROR(keys.status());
  MixtureSpec mixture = defaults;
  mixture.experts = hp.experts;
  mixture.top_k = hp.top_k;
  mixture.ff_dim = hp.expert_ff;
  mixture.scale = scale == 0 ? 1.0f : static_cast<float>(scale);
  mixture.normalize = keys.optional_bool("expert_weights_norm", defaults.normalize);
  mixture.gating = static_cast<exec::Gating>(gating);
  mixture.groups = std::max<std::int64_t>(1, groups);
  mixture.groups_used = std::max<std::int64_t>(1, groups_used);
  mixture.shared_ff_dim = keys.optional("expert_shared_feed_forward_length", hp.expert_ff * shared, 0, kMostDim);
  MR_RETURN_IF_ERROR(keys.status());
  if (mixture.experts % mixture.groups != 0 || mixture.groups_used > mixture.groups ||
      mixture.top_k > mixture.experts / mixture.groups * mixture.groups_used)
    return error(Code::corrupt, "{} experts a token from {} of {} groups of {} experts cannot be", mixture.top_k,
                 mixture.groups_used, mixture.groups, mixture.experts);
  return mixture;
}

Expected<Hyperparameters> read_hyperparameters(const modelfile::Model& file, std::int64_t context_tokens) {
  Hyperparameters hp;
  MR_ASSIGN_OR_RETURN(hp.architecture, file.get_string("general.architecture"));
  if (const Expected<std::string> name = file.get_string("general.name"); name.ok()) hp.name = *name;

  Keys keys(file);
  hp.layers = keys.required("block_count", 1, kMostLayers);
  // All layers of an assistant guess, as the key says there.
  if (hp.architecture != kGemma4Assistant) hp.draft_blocks = keys.optional("nextn_predict_layers", 0, 0, hp.layers - 1);
  hp.layers -= hp.draft_blocks;
  hp.model_dim = keys.required("embedding_length", 1, kMostDim);
  hp.context_length = keys.required("context_length", 1, kMostContext);
  const Expected<std::string> scaling = file.get_string(arch_key(file, "rope.scaling.type"));
  if (scaling.ok() && *scaling == "longrope") {
    const std::int64_t original =
        keys.optional("rope.scaling.original_context_length", hp.context_length, 1, hp.context_length);
    hp.beyond_original = context_tokens > original;
    if (!hp.beyond_original) hp.context_length = original;  // nobody gets a longer one without its factors
  }
  const double eps = keys.optional_float("attention.layer_norm_epsilon", 1e-5, 0, 1);  // of LayerNorm
  hp.rms_eps = keys.optional_float("attention.layer_norm_rms_epsilon", eps, 0, 1);
  hp.rope_theta = keys.optional_float("rope.freq_base", 10000, 0, 1e12);
  hp.experts = keys.optional("expert_count", 0, 0, kMostExperts);
  hp.top_k = hp.experts == 0 ? 0 : keys.required("expert_used_count", 1, kMostExperts);
  const auto ff_dims = keys.of_layers("feed_forward_length", hp.layers, 0, 0, kMostDim);
  hp.ff_dim = *std::max_element(ff_dims.begin(), ff_dims.end());
  hp.expert_ff = hp.experts == 0 ? 0 : keys.optional("expert_feed_forward_length", hp.ff_dim, 1, kMostDim);
  if (hp.architecture != "mamba" && hp.architecture != "mamba2") read_heads(keys, file, hp);
  hp.pooling = static_cast<Pooling>(std::min<std::int64_t>(keys.optional("pooling_type", 0, 0, 255), 5));
  hp.deepstack_layers = keys.optional("n_deepstack_layers", 0, 0, hp.layers);
  // No key says so: Gemma 4's models with embeddings of each layer were trained without it.
  hp.pictures_see_ahead =
      hp.architecture == "gemma3" ||
      (hp.architecture == "gemma4" && keys.optional("embedding_length_per_layer_input", 0, 0, kMostDim) == 0);
  hp.causal = keys.optional_bool("attention.causal", !is_encoder(hp.architecture));
  if (const modelfile::TensorInfo* const positions = file.find("position_embd.weight");
      positions != nullptr && !hp.causal) {
    hp.most_positions = positions->rows();
    hp.context_length = std::min(hp.context_length, hp.most_positions);
  }

  const modelfile::TensorInfo* table = file.find("token_embd.weight");
  hp.vocab = keys.optional("vocab_size", table == nullptr ? 1 : table->rows(), 1, kMostVocab);
  MR_RETURN_IF_ERROR(keys.status());
  MR_RETURN_IF_ERROR(check_relations(hp));
  return hp;
}

}  // namespace millrace::model
