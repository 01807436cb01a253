// Phi-3, 3.5 and 4: q, k and v in one matrix, gate and up in another.
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kOwn[] = {
    {"model.layers.#.self_attn.qkv_proj.weight", "blk.#.attn_qkv.weight"},
    {"model.layers.#.mlp.gate_up_proj.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight"},
};
constexpr Names kNames[] = {kTopNames, kAttentionNames, kFfnNorm, kOwn};

/// Readers of GGUF know of no window here.
void read(Config& config, Header& header) {
  header.set_integer("attention.sliding_window", 0);
  shorten_to_window(config, header);
  config.expect("hidden_act", "silu");
}

Status write(const Header&, nlohmann::json& config) {
  config["sliding_window"] = nullptr;
  return {};
}

}  // namespace

const Family kPhi3{.model_type = "phi3",
                   .model_class = "Phi3ForCausalLM",
                   .architecture = "phi3",
                   .names = kNames,
                   .defaults = R"({"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "rope_theta": 10000.0,
                     "original_max_position_embeddings": 4096})",
                   .read = read,
                   .write = write};

}  // namespace millrace::convert
