// Mamba, Falcon-Mamba, and Jamba, with attention in some layers and mixtures in others.
#include <algorithm>

#include "convert/mamba2.h"
#include "convert/names.h"

namespace millrace::convert {
namespace {

using nlohmann::json;

// NameRules of a mixer's tensors; `prefix` is a literal such as "model.layers.#.mamba.".
#define MR_MAMBA_NAMES(prefix)                                                                                       \
  {prefix "in_proj.weight", "blk.#.ssm_in.weight"}, {prefix "conv1d.weight", "blk.#.ssm_conv1d.weight", Form::taps}, \
      {prefix "conv1d.bias", "blk.#.ssm_conv1d.bias"}, {prefix "x_proj.weight", "blk.#.ssm_x.weight"},               \
      {prefix "dt_proj.weight", "blk.#.ssm_dt.weight"}, {prefix "dt_proj.bias", "blk.#.ssm_dt.bias"},                \
      {prefix "A_log", "blk.#.ssm_a", Form::decay}, {prefix "D", "blk.#.ssm_d"}, {                                   \
    prefix "out_proj.weight", "blk.#.ssm_out.weight"                                                                 \
  }

constexpr NameRule kMambaOwn[] = {MR_MAMBA_NAMES("backbone.layers.#.mixer.")};
constexpr NameRule kRenamed[] = {
    // as transformers names them in memory
    {"model.embeddings.weight", "token_embd.weight"},
    {"model.norm_f.weight", "output_norm.weight"},
    {"model.layers.#.norm.weight", "blk.#.attn_norm.weight"},
    MR_MAMBA_NAMES("model.layers.#.mixer."),
};
constexpr Names kMambaNames[] = {kBackboneNames, kMambaOwn, kRenamed};
constexpr KeyRule kMambaKeys[] = {{"layer_norm_epsilon", "attention.layer_norm_rms_epsilon", KeyRule::Kind::number},
                                  {"conv_kernel", "ssm.conv_kernel"},
                                  {"state_size", "ssm.state_size"}};

constexpr NameRule kJambaOwn[] = {
    MR_MAMBA_NAMES("model.layers.#.mamba."),
    {"model.layers.#.mamba.dt_layernorm.weight", "blk.#.ssm_dt_norm.weight"},
    {"model.layers.#.mamba.b_layernorm.weight", "blk.#.ssm_b_norm.weight"},
    {"model.layers.#.mamba.c_layernorm.weight", "blk.#.ssm_c_norm.weight"},
    {"model.final_layernorm.weight", "output_norm.weight"},
    {"model.layers.#.pre_ff_layernorm.weight", "blk.#.ffn_norm.weight"},
    {"model.layers.#.feed_forward.gate_proj.weight", "blk.#.ffn_gate.weight"},
    {"model.layers.#.feed_forward.up_proj.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.feed_forward.down_proj.weight", "blk.#.ffn_down.weight"},
    {"model.layers.#.feed_forward.router.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.feed_forward.experts.*.gate_proj.weight", "blk.#.ffn_gate_exps.weight", Form::experts},
    {"model.layers.#.feed_forward.experts.*.up_proj.weight", "blk.#.ffn_up_exps.weight", Form::experts},
    {"model.layers.#.feed_forward.experts.*.down_proj.weight", "blk.#.ffn_down_exps.weight", Form::experts},
    {"model.layers.#.feed_forward.experts.gate_up_proj", "blk.#.ffn_gate_exps.weight", Form::first_half},
    {"model.layers.#.feed_forward.experts.gate_up_proj", "blk.#.ffn_up_exps.weight", Form::second_half},
    {"model.layers.#.feed_forward.experts.down_proj", "blk.#.ffn_down_exps.weight"},
};
constexpr Names kJambaNames[] = {kJambaOwn, kTopNames, kAttentionNames};
constexpr KeyRule kJambaKeys[] = {{"num_experts", "expert_count"},
                                  {"num_experts_per_tok", "expert_used_count"},
                                  {"mamba_d_conv", "ssm.conv_kernel"},
                                  {"mamba_d_state", "ssm.state_size"}};

constexpr std::int64_t kUsualContext = 1 << 20;  // there is no bound

/// A number, or a sixteenth of the model's width where it is "auto".
void set_rank(Config& config, Header& header, std::string_view key) {
  const std::int64_t width = header.integer("embedding_length");
  const json* const rank = config.find(key);
  const bool given = rank != nullptr && *rank != "auto";
  header.set_integer("ssm.time_step_rank", given ? config.required(key, 1, 1 << 16) : (width + 15) / 16);
}

void read_mamba(Config& config, Header& header) {
  set_rank(config, header, "time_step_rank");
  header.set_integer(
      "ssm.inner_size",
      config.optional("intermediate_size", config.optional("expand", 2, 1, 64) * header.integer("embedding_length"), 1,
                      1 << 20));
  header.set_integer("context_length", config.optional("max_position_embeddings", kUsualContext, 1, 1 << 28));
  header.set_integer("feed_forward_length", 0);
  header.set_integer("attention.head_count", 0);
  header.set("ssm.dt_b_c_rms", false);
  for (const char* const drawn : {"time_step_min", "time_step_scale", "time_step_init_scheme"})
    config.disregard({drawn});
  config.disregard({"use_mambapy", "use_associative_scan", "use_falcon_mambapy", "mixer_rms_eps"});
  config.expect("use_bias", false);
  config.expect("use_bcdt_rms", false);
  config.expect("hidden_act", "silu");
}

/// Norms of what steps are made of, of what writes and of what reads have no weights; GGUF has a key for their epsilon
/// where it is not the model's.
void read_falcon_mamba(Config& config, Header& header) {
  read_mamba(config, header);
  header.set("ssm.dt_b_c_rms", true);
  const double eps = config.number("mixer_rms_eps", 1e-6);
  if (eps != header.number("attention.layer_norm_rms_epsilon")) header.set_number("ssm.dt_b_c_rms_epsilon", eps);
}

Status write_mamba(const Header& header, json& config) {
  config["expand"] = header.integer("ssm.inner_size") / std::max<std::int64_t>(1, header.integer("embedding_length"));
  config["intermediate_size"] = header.integer("ssm.inner_size");
  config["time_step_rank"] = header.integer("ssm.time_step_rank");
  config["use_bias"] = false;
  config["use_conv_bias"] = true;
  config["max_position_embeddings"] = header.integer("context_length");
  for (const char* none :
       {"num_attention_heads", "num_key_value_heads", "rope_theta", "rms_norm_eps", "rope_parameters", "rope_scaling"})
    config.erase(none);
  return {};
}

Status write_falcon_mamba(const Header& header, json& config) {
  config["mixer_rms_eps"] = header.number("ssm.dt_b_c_rms_epsilon", header.number("attention.layer_norm_rms_epsilon"));
  return write_mamba(header, config);
}

bool normalizes(const Header& header) { return header.flag("ssm.dt_b_c_rms"); }
bool does_not_normalize(const Header& header) { return !normalizes(header); }

void read_jamba(Config& config, Header& header) {
  const std::int64_t period = config.optional("attn_layer_period", 8, 1, 1 << 16),
                     offset = config.optional("attn_layer_offset", 4, 0, 1 << 16),
                     expert_period = config.optional("expert_layer_period", 2, 1, 1 << 16),
                     expert_offset = config.optional("expert_layer_offset", 1, 0, 1 << 16);
  std::vector<std::int64_t> kv_heads;
  for (std::int64_t i = 0; i < header.layers(); ++i)
    kv_heads.push_back(i % period == offset ? header.integer("attention.head_count_kv") : 0);
  header.set_integers("attention.head_count_kv", kv_heads);
  if (header.integer("expert_count") < 2 || expert_offset >= expert_period)
    for (const char* key : {"expert_count", "expert_used_count"}) header.set_integer(key, 0);
  set_rank(config, header, "mamba_dt_rank");
  header.set_integer("ssm.inner_size", config.optional("mamba_expand", 2, 1, 64) * header.integer("embedding_length"));
  config.disregard({"sliding_window", "use_mamba_kernels", "num_logits_to_keep", "layers_block_type", "use_mambapy",
                    "use_associative_scan"});
  config.expect("mamba_proj_bias", false);
  config.expect("hidden_act", "silu");
}

/// The first of a period, and its length: of the layers for which `has` is true. Fails where they are no such layers.
Status set_period(json& config, const char* kind, std::int64_t layers, const std::vector<std::int64_t>& has) {
  std::int64_t first = 0, period = std::max<std::int64_t>(1, layers);
  while (first < layers && has[static_cast<std::size_t>(first)] == 0) ++first;
  for (std::int64_t i = first + 1; i < layers; ++i)
    if (has[static_cast<std::size_t>(i)] != 0) {
      period = i - first;
      break;
    }
  if (first >= period && first < layers) period = first + 1;
  for (std::int64_t i = 0; i < layers; ++i)
    if ((has[static_cast<std::size_t>(i)] != 0) != (i % period == first))
      return error(Code::unsupported,
                   "layer {} is out of the order of the others, which a checkpoint of Jamba cannot say", i);
  config[std::string(kind) + "_layer_period"] = period;
  config[std::string(kind) + "_layer_offset"] = std::min(first, period - 1);
  return {};
}

Status write_jamba(const Header& header, json& config) {
  std::vector<std::int64_t> kv_heads = header.of_layers("attention.head_count_kv");
  // Where there is no such key, all layers attend.
  kv_heads.resize(static_cast<std::size_t>(header.layers()), header.integer("attention.head_count"));
  MR_RETURN_IF_ERROR(set_period(config, "attn", header.layers(), kv_heads));
  config["num_key_value_heads"] = kv_heads.empty() ? 0 : *std::max_element(kv_heads.begin(), kv_heads.end());
  config["mamba_dt_rank"] = header.integer("ssm.time_step_rank");
  config["mamba_expand"] =
      header.integer("ssm.inner_size") / std::max<std::int64_t>(1, header.integer("embedding_length"));
  config["mamba_conv_bias"] = true;
  config["mamba_proj_bias"] = false;
  if (header.integer("expert_count") == 0) config["num_experts"] = config["num_experts_per_tok"] = 1;
  for (const char* none : {"rope_theta", "rope_parameters", "rope_scaling"}) config.erase(none);
  return {};
}

}  // namespace

const Family kMamba{.model_type = "mamba",
                    .model_class = "MambaForCausalLM",
                    .architecture = "mamba",
                    .names = kMambaNames,
                    .keys = {kMambaKeys},
                    .read = read_mamba,
                    .write = write_mamba,
                    .matches = does_not_normalize};
const Family kFalconMamba{.model_type = "falcon_mamba",
                          .model_class = "FalconMambaForCausalLM",
                          .architecture = "mamba",
                          .names = kMambaNames,
                          .keys = {kMambaKeys},
                          .read = read_falcon_mamba,
                          .write = write_falcon_mamba,
                          .matches = normalizes};
const Family kJamba{.model_type = "jamba",
                    .model_class = "JambaForCausalLM",
                    .architecture = "jamba",
                    .names = kJambaNames,
                    .keys = {kJambaKeys},
                    .read = read_jamba,
                    .write = write_jamba};

}  // namespace millrace::convert
