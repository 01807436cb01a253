// Phi-3, 3.5 and 4: q, k and v in one matrix, gate and up in another.
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kPhi3Own[] = {
    {"model.layers.#.self_attn.qkv_proj.weight", "blk.#.attn_qkv.weight"},
    {"model.layers.#.mlp.gate_up_proj.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight"},
};
constexpr Names kPhi3Names[] = {kTopNames, kAttentionNames, kFfnNorm, kPhi3Own};

/// Readers of GGUF know of no window here.
void read_phi3(Config& config, Header& header) {
  header.set_integer("attention.sliding_window", 0);
  shorten_to_window(config, header);
  config.disregard({"original_max_position_embeddings"});  // of the rotation
}

Status write_phi3(const Header& header, nlohmann::json& config) {
  const std::int64_t window = header.integer("attention.sliding_window");
  config["sliding_window"] = window > 0 ? nlohmann::json(window) : nlohmann::json();
  return {};
}

}  // namespace

const Family kPhi3{.model_type = "phi3",
                   .model_class = "Phi3ForCausalLM",
                   .architecture = "phi3",
                   .names = kPhi3Names,
                   .read = read_phi3,
                   .write = write_phi3};

}  // namespace millrace::convert
