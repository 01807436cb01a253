// Mamba-2 and Codestral Mamba.
#include "convert/mamba2.h"

#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kMamba2Own[] = {
    MR_MAMBA2_NAMES("backbone.layers.#.mixer."),
};
constexpr NameRule kRenamed[] = {
    // as transformers names them in memory
    {"model.embeddings.weight", "token_embd.weight"},
    {"model.norm_f.weight", "output_norm.weight"},
    {"model.layers.#.norm.weight", "blk.#.attn_norm.weight"},
    MR_MAMBA2_NAMES("model.layers.#.mixer."),
};
constexpr Names kMamba2Names[] = {kBackboneNames, kMamba2Own, kRenamed};
constexpr KeyRule kMamba2Keys[] = {{"layer_norm_epsilon", "attention.layer_norm_rms_epsilon", KeyRule::Kind::number},
                                   {"conv_kernel", "ssm.conv_kernel"},
                                   {"state_size", "ssm.state_size"},
                                   {"n_groups", "ssm.group_count"}};

constexpr std::int64_t kUsualContext = 1 << 20;  // there is no bound

void read_mamba2(Config& config, Header& header) {
  const std::int64_t width = config.required("hidden_size", 1, 1 << 20);
  const std::int64_t inner = config.optional("expand", 2, 1, 64) * width,
                     dim = config.optional("head_dim", 64, 1, 1 << 12);
  header.set_integer("ssm.inner_size", inner);
  header.set_integer("ssm.time_step_rank", inner / dim);
  header.set_integer("context_length", config.optional("max_position_embeddings", kUsualContext, 1, 1 << 28));
  header.set_integer("feed_forward_length", 0);
  header.set_integer("attention.head_count", 0);
  if (config.has("num_heads") && config.required("num_heads", 1, 1 << 16) * dim != inner)
    config.fail(
        error(Code::corrupt, "num_heads and head_dim in config.json do not give the mixer's width of {}", inner));
  expect_endless_time_steps(config);
  config.disregard({"time_step_min", "time_step_rank"});  // they draw new weights
  config.expect("use_bias", false);
  config.expect("rms_norm", true);
}

Status write_mamba2(const Header& header, nlohmann::json& config) {
  const std::int64_t inner = header.integer("ssm.inner_size"), heads = header.integer("ssm.time_step_rank");
  config["expand"] = inner / header.integer("embedding_length");
  config["num_heads"] = heads;
  config["head_dim"] = inner / heads;
  config["max_position_embeddings"] = header.integer("context_length");
  config["use_bias"] = false;
  config["use_conv_bias"] = true;
  config["rms_norm"] = true;
  for (const char* none :
       {"num_attention_heads", "num_key_value_heads", "intermediate_size", "rope_theta", "rms_norm_eps"})
    config.erase(none);
  return {};
}

}  // namespace

void expect_endless_time_steps(Config& config) {
  const nlohmann::json infinite = nlohmann::json::object({{"__float__", "Infinity"}});
  const nlohmann::json* limit = config.find("time_step_limit");
  if (limit != nullptr && *limit != nlohmann::json::array({0.0, infinite}))
    config.fail(error(Code::unsupported,
                      "time_step_limit in config.json bounds the time steps of Mamba-2 layers; this version computes "
                      "with unbounded ones alone"));
}

const Family kMamba2{.model_type = "mamba2",
                     .model_class = "Mamba2ForCausalLM",
                     .architecture = "mamba2",
                     .names = kMamba2Names,
                     .keys = {kMamba2Keys},
                     .read = read_mamba2,
                     .write = write_mamba2};

}  // namespace millrace::convert
