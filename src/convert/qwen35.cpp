// Qwen3-Next, Qwen3.5 and 3.6, dense and with experts: gated delta nets but for each fourth layer. Norms' weights count
// from 1, but for those of the delta nets. The block that guesses further tokens stands apart, as "mtp.".
#include "convert/qwen35.h"

#include <algorithm>

#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kNet[] = {
    {"model.layers.#.linear_attn.conv1d.weight", "blk.#.ssm_conv1d.weight", Form::taps},
    {"model.layers.#.linear_attn.dt_bias", "blk.#.ssm_dt.bias"},
    {"model.layers.#.linear_attn.A_log", "blk.#.ssm_a", Form::decay},
    {"model.layers.#.linear_attn.norm.weight", "blk.#.ssm_norm.weight"},
    {"model.layers.#.linear_attn.out_proj.weight", "blk.#.ssm_out.weight"},
    {"model.layers.#.linear_attn.in_proj_qkvz.weight", "blk.#.attn_qkv.weight", Form::mixed_qkv},
    {"model.layers.#.linear_attn.in_proj_qkvz.weight", "blk.#.attn_gate.weight", Form::mixed_z},
    {"model.layers.#.linear_attn.in_proj_ba.weight", "blk.#.ssm_ba.weight"},
};
// "mtp.NAME" counts as "model.layers.N.mtp.NAME", "mtp.layers.0.NAME" as "model.layers.N.NAME".
constexpr NameRule kDraft[] = {
    {"model.layers.#.mtp.fc.weight", "blk.#.nextn.eh_proj.weight"},
    {"model.layers.#.mtp.pre_fc_norm_embedding.weight", "blk.#.nextn.enorm.weight", Form::norm},
    {"model.layers.#.mtp.pre_fc_norm_hidden.weight", "blk.#.nextn.hnorm.weight", Form::norm},
    {"model.layers.#.mtp.norm.weight", "blk.#.nextn.shared_head_norm.weight", Form::norm},
};
constexpr Names kNextNames[] = {kTopNames,          kAttentionNames, kPostAttentionNorm, kNet, kExpertNames,
                                kSharedExpertNames, kDraft};
constexpr Names kDenseNetNames[] = {kTopNames, kAttentionNames, kPostAttentionNorm, kTiledNet, kDenseNames, kDraft};
constexpr Names kMoeNetNames[] = {kTopNames,          kAttentionNames, kPostAttentionNorm, kTiledNet, kExpertNames,
                                  kSharedExpertNames, kDraft};

constexpr std::int64_t kUsualInterval = 4;

}  // namespace

void read_qwen35(Config& config, Header& header) {
  header.set_integer("ssm.inner_size", config.required("linear_num_value_heads", 1, 1 << 14) *
                                           config.required("linear_value_head_dim", 1, 1 << 12));
  const auto kinds = config.texts("layer_types");
  const auto first = std::find(kinds.begin(), kinds.end(), "full_attention") - kinds.begin();
  const std::int64_t interval = kinds.empty() ? header.integer("full_attention_interval", kUsualInterval) : first + 1;
  header.set_integer("full_attention_interval", interval);
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if ((kinds[i] == "full_attention") != (static_cast<std::int64_t>(i + 1) % interval == 0))
      config.fail(
          error(Code::unsupported, "layer_types in config.json: layer {} is out of the order of the others", i));
  if (config.required("linear_num_value_heads", 1, 1 << 14) % config.required("linear_num_key_heads", 1, 1 << 14) != 0)
    config.fail(error(Code::corrupt, "linear_num_value_heads in config.json is no multiple of linear_num_key_heads"));
  read_sections(config, header);
  config.expect("hidden_act", "silu");
  expect_mixtures_alone(config);
}

Status write_qwen35(const Header& header, nlohmann::json& config) {
  const std::int64_t interval = header.integer("full_attention_interval", kUsualInterval);
  config["layer_types"] = periodic_layer_types(header, interval, "linear_attention");
  config["linear_value_head_dim"] = header.integer("ssm.inner_size") / header.integer("ssm.time_step_rank");
  write_sections(header, true, config);
  if (header.integer("expert_count") > 0) write_mixtures_alone(header, config);
  if (const std::int64_t blocks = header.integer("nextn_predict_layers"); blocks > 0)
    config["mtp_num_hidden_layers"] = blocks;
  config["attn_output_gate"] = true;
  return {};
}

const Family kQwen3Next{.model_type = "qwen3_next",
                        .model_class = "Qwen3NextForCausalLM",
                        .architecture = "qwen3next",
                        .names = kNextNames,
                        .keys = {kQwen35Keys, kMixtureKeys, kQwen35MoeKeys},
                        .norm_shift = 1,
                        .draft_apart = true,
                        .read = read_qwen35,
                        .write = write_qwen35};
const Family kQwen35{.model_type = "qwen3_5_text",
                     .model_class = "Qwen3_5ForCausalLM",
                     .architecture = "qwen35",
                     .names = kDenseNetNames,
                     .keys = {kQwen35Keys},
                     .norm_shift = 1,
                     .draft_apart = true,
                     .pre = "qwen35",
                     .read = read_qwen35,
                     .write = write_qwen35};
const Family kQwen35Moe{.model_type = "qwen3_5_moe_text",
                        .model_class = "Qwen3_5MoeForCausalLM",
                        .architecture = "qwen35moe",
                        .names = kMoeNetNames,
                        .keys = {kQwen35Keys, kMixtureKeys, kQwen35MoeKeys},
                        .norm_shift = 1,
                        .draft_apart = true,
                        .pre = "qwen35",
                        .read = read_qwen35,
                        .write = write_qwen35};

}  // namespace millrace::convert
