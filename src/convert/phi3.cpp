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
  config.disregard({"original_max_position_embeddings"});  // of the rotation
}

Status write(const Header& header, nlohmann::json& config) {
  const std::int64_t window = header.integer("attention.sliding_window");
  config["sliding_window"] = window > 0 ? nlohmann::json(window) : nlohmann::json();
  return {};
}

}  // namespace

const Family kPhi3{.model_type = "phi3",
                   .model_class = "Phi3ForCausalLM",
                   .architecture = "phi3",
                   .names = kNames,
                   .read = read,
                   .write = write};

}  // namespace millrace::convert
