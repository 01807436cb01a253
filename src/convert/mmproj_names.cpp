#include "convert/mmproj_names.h"

#include <cmath>
#include <vector>

#include "modelfile/gguf_writer.h"

namespace millrace::convert {
namespace {

using nlohmann::json;
using vision::Projector;

constexpr std::int64_t kMostTower = 1 << 20;

// --- Qwen ---

constexpr TowerRule kQwen3Tower[] = {
    {"visual.patch_embed.proj.weight", "v.patch_embd.weight", TowerForm::frames},
    {"visual.patch_embed.proj", "v.patch_embd"},
    {"visual.pos_embed", "v.position_embd"},
    {"visual.blocks.#.norm1", "v.blk.#.ln1"},
    {"visual.blocks.#.norm2", "v.blk.#.ln2"},
    {"visual.blocks.#.attn.qkv", "v.blk.#.attn_qkv"},
    {"visual.blocks.#.attn.proj", "v.blk.#.attn_out"},
    {"visual.blocks.#.mlp.linear_fc1", "v.blk.#.ffn_up"},
    {"visual.blocks.#.mlp.linear_fc2", "v.blk.#.ffn_down"},
    {"visual.merger.norm", "v.post_ln"},
    {"visual.merger.linear_fc1", "mm.0"},
    {"visual.merger.linear_fc2", "mm.2"},
    {"visual.deepstack_merger_list.#.norm", "v.deepstack.#.norm"},
    {"visual.deepstack_merger_list.#.linear_fc1", "v.deepstack.#.fc1"},
    {"visual.deepstack_merger_list.#.linear_fc2", "v.deepstack.#.fc2"},
};

constexpr TowerRule kQwen2Tower[] = {
    {"visual.patch_embed.proj.weight", "v.patch_embd.weight", TowerForm::frames},
    {"visual.blocks.#.norm1", "v.blk.#.ln1"},
    {"visual.blocks.#.norm2", "v.blk.#.ln2"},
    {"visual.blocks.#.attn.qkv", "v.blk.#.attn_", TowerForm::thirds},
    {"visual.blocks.#.attn.proj", "v.blk.#.attn_out"},
    {"visual.blocks.#.mlp.fc1", "v.blk.#.ffn_up"},
    {"visual.blocks.#.mlp.fc2", "v.blk.#.ffn_down"},
    {"visual.blocks.#.mlp.gate_proj", "v.blk.#.ffn_gate"},
    {"visual.blocks.#.mlp.up_proj", "v.blk.#.ffn_up"},
    {"visual.blocks.#.mlp.down_proj", "v.blk.#.ffn_down"},
    {"visual.merger.ln_q", "v.post_ln"},
    {"visual.merger.mlp.0", "mm.0"},
    {"visual.merger.mlp.2", "mm.2"},
};

void read_qwen(TowerConfig& config, Header& header) {
  Config& vision = config.vision;
  header.set_integer("vision.block_count", vision.optional("depth", 32, 1, kMostTower));
  header.set_integer("vision.attention.head_count", vision.optional("num_heads", 16, 1, kMostTower));
  header.set_integer("vision.patch_size", vision.optional("patch_size", 14, 1, 256));
  header.set_integer("vision.spatial_merge_size", vision.optional("spatial_merge_size", 2, 1, 16));
  header.set_number("vision.attention.layer_norm_epsilon", 1e-6);
  vision.expect("temporal_patch_size", 2);
}

void read_qwen3(TowerConfig& config, Header& header) {
  Config& vision = config.vision;
  read_qwen(config, header);
  header.set_integer("vision.embedding_length", vision.required("hidden_size", 8, kMostTower));
  header.set_integer("vision.feed_forward_length", vision.required("intermediate_size", 1, kMostTower));
  header.set_integer("vision.projection_dim", vision.optional("out_hidden_size", config.text_width, 1, kMostTower));
  const double places = static_cast<double>(vision.required("num_position_embeddings", 1, kMostTower));
  header.set_integer("vision.image_size", std::llround(std::sqrt(places)) * header.integer("vision.patch_size"));
  header.set("use_gelu", true);
  vision.expect("hidden_act", "gelu_pytorch_tanh");
  const auto taken = vision.numbers("deepstack_visual_indexes");
  std::vector<bool> gives(static_cast<std::size_t>(header.integer("vision.block_count")));
  for (const double layer : taken)
    if (layer >= 0 && layer < static_cast<double>(gives.size())) gives[static_cast<std::size_t>(layer)] = true;
  if (!taken.empty()) header.set("vision.is_deepstack_layers", modelfile::array_value(gives));
}

void read_qwen25(TowerConfig& config, Header& header) {
  Config& vision = config.vision;
  read_qwen(config, header);
  header.set_integer("vision.embedding_length", vision.required("hidden_size", 8, kMostTower));
  header.set_integer("vision.feed_forward_length", vision.required("intermediate_size", 1, kMostTower));
  header.set_integer("vision.projection_dim", vision.optional("out_hidden_size", config.text_width, 1, kMostTower));
  header.set_integer("vision.image_size", 40 * header.integer("vision.patch_size"));
  header.set_integer("vision.window_size", vision.optional("window_size", 112, 1, kMostTower));
  header.set("use_silu", true);
  vision.expect("hidden_act", "silu");
  const auto full = vision.numbers("fullatt_block_indexes");
  const std::int64_t period = full.empty() ? 8 : static_cast<std::int64_t>(full.front()) + 1;
  for (std::size_t i = 0; i < full.size(); ++i)
    if (static_cast<std::int64_t>(full[i]) + 1 != static_cast<std::int64_t>(i + 1) * period)
      vision.fail(error(Code::unsupported, "fullatt_block_indexes in vision_config are no multiples of {}", period));
  header.set_integer("vision.n_wa_pattern", period);
}

void read_qwen2(TowerConfig& config, Header& header) {
  Config& vision = config.vision;
  read_qwen(config, header);
  const std::int64_t width = vision.required("embed_dim", 8, kMostTower);
  header.set_integer("vision.embedding_length", width);
  header.set_integer("vision.feed_forward_length",
                     std::llround(static_cast<double>(width) * vision.number("mlp_ratio", 4)));
  header.set_integer("vision.projection_dim", vision.optional("hidden_size", config.text_width, 1, kMostTower));
  header.set_integer("vision.image_size", 40 * header.integer("vision.patch_size"));
  vision.expect("hidden_act", "quick_gelu");
}

// --- Pixtral ---

constexpr TowerRule kPixtral[] = {
    {"vision_tower.patch_conv", "v.patch_embd"},
    {"vision_tower.ln_pre", "v.pre_ln"},
    {"vision_tower.transformer.layers.#.attention_norm", "v.blk.#.ln1"},
    {"vision_tower.transformer.layers.#.ffn_norm", "v.blk.#.ln2"},
    {"vision_tower.transformer.layers.#.attention.q_proj", "v.blk.#.attn_q", TowerForm::neighbours},
    {"vision_tower.transformer.layers.#.attention.k_proj", "v.blk.#.attn_k", TowerForm::neighbours},
    {"vision_tower.transformer.layers.#.attention.v_proj", "v.blk.#.attn_v"},
    {"vision_tower.transformer.layers.#.attention.o_proj", "v.blk.#.attn_out"},
    {"vision_tower.transformer.layers.#.feed_forward.gate_proj", "v.blk.#.ffn_gate"},
    {"vision_tower.transformer.layers.#.feed_forward.up_proj", "v.blk.#.ffn_up"},
    {"vision_tower.transformer.layers.#.feed_forward.down_proj", "v.blk.#.ffn_down"},
    {"multi_modal_projector.norm", "mm.input_norm"},
    {"multi_modal_projector.patch_merger.merging_layer", "mm.patch_merger"},
    {"multi_modal_projector.linear_1", "mm.1"},
    {"multi_modal_projector.linear_2", "mm.2"},
};

/// Rotations of the default kind and this base, which no key of the file has.
void expect_theta(Config& vision, double theta) {
  Config rope = vision.within("rope_parameters");
  const double found = vision.number("rope_theta", rope.number("rope_theta", theta));
  if (found != theta)
    vision.fail(error(Code::unsupported, "rope_theta in vision_config is {}; such towers have {}", found, theta));
}

void read_pixtral(TowerConfig& config, Header& header) {
  Config& vision = config.vision;
  const std::int64_t heads = vision.optional("num_attention_heads", 16, 1, kMostTower),
                     width = vision.optional("hidden_size", 1024, 8, kMostTower);
  header.set_integer("vision.block_count", vision.optional("num_hidden_layers", 24, 1, kMostTower));
  header.set_integer("vision.embedding_length", width);
  header.set_integer("vision.feed_forward_length", vision.optional("intermediate_size", 4096, 1, kMostTower));
  header.set_integer("vision.attention.head_count", heads);
  header.set_integer("vision.attention.head_dim", vision.optional("head_dim", width / heads, 1, kMostTower));
  header.set_integer("vision.patch_size", vision.optional("patch_size", 16, 1, 256));
  header.set_integer("vision.image_size", vision.optional("image_size", 1024, 1, kMostTower));
  header.set_integer("vision.spatial_merge_size", config.whole.optional("spatial_merge_size", 1, 1, 16));
  header.set_integer("vision.projection_dim", config.text_width);
  header.set_number("vision.attention.layer_norm_epsilon", 1e-5);
  header.set("use_silu", true);
  vision.expect("model_type", "pixtral");
  vision.expect("hidden_act", "silu");
  config.whole.expect("projector_hidden_act", "gelu");
  config.whole.expect("vision_feature_layer", -1);
  expect_theta(vision, 10000);
}

// --- Gemma ---

constexpr TowerRule kGemma3Tower[] = {
    {"vision_tower.embeddings.patch_embedding", "v.patch_embd"},
    {"vision_tower.embeddings.position_embedding", "v.position_embd"},
    {"vision_tower.post_layernorm", "v.post_ln"},
    {"vision_tower.encoder.layers.#.layer_norm1", "v.blk.#.ln1"},
    {"vision_tower.encoder.layers.#.layer_norm2", "v.blk.#.ln2"},
    {"vision_tower.encoder.layers.#.self_attn.q_proj", "v.blk.#.attn_q"},
    {"vision_tower.encoder.layers.#.self_attn.k_proj", "v.blk.#.attn_k"},
    {"vision_tower.encoder.layers.#.self_attn.v_proj", "v.blk.#.attn_v"},
    {"vision_tower.encoder.layers.#.self_attn.out_proj", "v.blk.#.attn_out"},
    {"vision_tower.encoder.layers.#.mlp.fc1", "v.blk.#.ffn_up"},
    {"vision_tower.encoder.layers.#.mlp.fc2", "v.blk.#.ffn_down"},
    {"multi_modal_projector.mm_input_projection_weight", "mm.input_projection.weight"},
    {"multi_modal_projector.mm_soft_emb_norm", "mm.soft_emb_norm", TowerForm::plus_one},
};

void read_siglip(TowerConfig& config, Header& header) {
  Config& vision = config.vision;
  header.set_integer("vision.block_count", vision.required("num_hidden_layers", 1, kMostTower));
  header.set_integer("vision.embedding_length", vision.required("hidden_size", 8, kMostTower));
  header.set_integer("vision.feed_forward_length", vision.required("intermediate_size", 1, kMostTower));
  header.set_integer("vision.attention.head_count", vision.required("num_attention_heads", 1, kMostTower));
  header.set_integer("vision.projection_dim", config.text_width);
}

void read_gemma3(TowerConfig& config, Header& header) {
  Config& vision = config.vision;
  read_siglip(config, header);
  const std::int64_t patch = vision.required("patch_size", 1, 256), size = vision.required("image_size", 1, kMostTower);
  const std::int64_t tokens = config.whole.optional("mm_tokens_per_image", 256, 1, kMostTower);
  const auto side = std::max<std::int64_t>(1, std::llround(std::sqrt(static_cast<double>(tokens))));
  header.set_integer("vision.patch_size", patch);
  header.set_integer("vision.image_size", size);
  header.set_integer("vision.projector.scale_factor", size / patch / side);
  header.set_number("vision.attention.layer_norm_epsilon", vision.number("layer_norm_eps", 1e-6));
  header.set("use_gelu", true);
  vision.expect("hidden_act", "gelu_pytorch_tanh");
}

constexpr TowerRule kGemma4Tower[] = {
    {"vision_tower.patch_embedder.input_proj", "v.patch_embd", TowerForm::pixels},
    {"vision_tower.patch_embedder.position_embedding_table", "v.position_embd.weight"},
    {"vision_tower.std_bias", "v.std_bias"},
    {"vision_tower.std_scale", "v.std_scale"},
    {"vision_tower.encoder.layers.#.input_layernorm", "v.blk.#.ln1"},
    {"vision_tower.encoder.layers.#.post_attention_layernorm", "v.blk.#.attn_post_norm"},
    {"vision_tower.encoder.layers.#.pre_feedforward_layernorm", "v.blk.#.ln2"},
    {"vision_tower.encoder.layers.#.post_feedforward_layernorm", "v.blk.#.ffn_post_norm"},
    {"vision_tower.encoder.layers.#.self_attn.q_proj", "v.blk.#.attn_q"},
    {"vision_tower.encoder.layers.#.self_attn.k_proj", "v.blk.#.attn_k"},
    {"vision_tower.encoder.layers.#.self_attn.v_proj", "v.blk.#.attn_v"},
    {"vision_tower.encoder.layers.#.self_attn.o_proj", "v.blk.#.attn_out"},
    {"vision_tower.encoder.layers.#.self_attn.q_norm", "v.blk.#.attn_q_norm"},
    {"vision_tower.encoder.layers.#.self_attn.k_norm", "v.blk.#.attn_k_norm"},
    {"vision_tower.encoder.layers.#.mlp.gate_proj", "v.blk.#.ffn_gate"},
    {"vision_tower.encoder.layers.#.mlp.up_proj", "v.blk.#.ffn_up"},
    {"vision_tower.encoder.layers.#.mlp.down_proj", "v.blk.#.ffn_down"},
    {"embed_vision.embedding_projection", "mm.input_projection"},
};

void read_gemma4(TowerConfig& config, Header& header) {
  Config& vision = config.vision;
  read_siglip(config, header);
  header.set_integer("vision.attention.head_dim", vision.optional("head_dim", 64, 1, kMostTower));
  header.set_integer("vision.patch_size", vision.optional("patch_size", 16, 1, 256));
  header.set_integer("vision.projector.scale_factor", vision.optional("pooling_kernel_size", 3, 1, 16));
  header.set_integer("vision.image_size", 224);  // readers want one
  header.set_number("vision.attention.layer_norm_epsilon", vision.number("rms_norm_eps", 1e-6));
  vision.expect("hidden_activation", "gelu_pytorch_tanh");
  if (vision.has("num_key_value_heads"))
    vision.expect("num_key_value_heads", header.integer("vision.attention.head_count"));
  expect_theta(vision, 100);
}

constexpr TowerRule kGemma4Unified[] = {
    {"vision_embedder.patch_ln1", "v.patch_norm.1", TowerForm::pixels},
    {"vision_embedder.patch_dense.weight", "v.patch_embd.weight", TowerForm::pixels},
    {"vision_embedder.patch_dense.bias", "v.patch_embd.bias"},
    {"vision_embedder.patch_ln2", "v.patch_norm.2"},
    {"vision_embedder.pos_norm", "v.patch_norm.3"},
    {"vision_embedder.pos_embedding", "v.position_embd.weight", TowerForm::tables},
    {"embed_vision.embedding_projection", "mm.input_projection"},
};

void read_gemma4_unified(TowerConfig& config, Header& header) {
  Config& vision = config.vision;
  for (const char* none : {"vision.block_count", "vision.feed_forward_length", "vision.attention.head_count"})
    header.set_integer(none, 0);
  header.set_integer("vision.embedding_length", vision.required("mm_embed_dim", 8, kMostTower));
  header.set_integer("vision.projection_dim", config.text_width);
  header.set_integer("vision.patch_size", vision.optional("patch_size", 16, 1, 256));
  header.set_integer("vision.projector.scale_factor", vision.optional("pooling_kernel_size", 3, 1, 16));
  header.set_integer("vision.image_size", 224);
  header.set_number("vision.attention.layer_norm_epsilon", vision.number("rms_norm_eps", 1e-6));
}

// --- Towers that see tiles ---

/// Both transformers' names and those of the models' own code.
constexpr TowerRule kInternVl[] = {
    {"vision_tower.embeddings.cls_token", "v.class_embd"},
    {"vision_tower.embeddings.position_embeddings", "v.position_embd.weight"},
    {"vision_tower.embeddings.patch_embeddings.projection", "v.patch_embd"},
    {"vision_tower.encoder.layer.#.layernorm_before", "v.blk.#.ln1"},
    {"vision_tower.encoder.layer.#.layernorm_after", "v.blk.#.ln2"},
    {"vision_tower.encoder.layer.#.attention.q_proj", "v.blk.#.attn_q"},
    {"vision_tower.encoder.layer.#.attention.k_proj", "v.blk.#.attn_k"},
    {"vision_tower.encoder.layer.#.attention.v_proj", "v.blk.#.attn_v"},
    {"vision_tower.encoder.layer.#.attention.q_norm", "v.blk.#.attn_q_norm"},
    {"vision_tower.encoder.layer.#.attention.k_norm", "v.blk.#.attn_k_norm"},
    {"vision_tower.encoder.layer.#.attention.projection_layer", "v.blk.#.attn_out"},
    {"vision_tower.encoder.layer.#.lambda_1", "v.blk.#.ls1.weight"},
    {"vision_tower.encoder.layer.#.lambda_2", "v.blk.#.ls2.weight"},
    {"vision_tower.encoder.layer.#.mlp.fc1", "v.blk.#.ffn_up"},
    {"vision_tower.encoder.layer.#.mlp.fc2", "v.blk.#.ffn_down"},
    {"multi_modal_projector.layer_norm", "mm.model.mlp.0"},
    {"multi_modal_projector.linear_1", "mm.model.mlp.1"},
    {"multi_modal_projector.linear_2", "mm.model.mlp.3"},
    {"vision_model.embeddings.class_embedding", "v.class_embd"},
    {"vision_model.embeddings.position_embedding", "v.position_embd.weight"},
    {"vision_model.embeddings.patch_embedding", "v.patch_embd"},
    {"vision_model.encoder.layers.#.norm1", "v.blk.#.ln1"},
    {"vision_model.encoder.layers.#.norm2", "v.blk.#.ln2"},
    {"vision_model.encoder.layers.#.attn.qkv", "v.blk.#.attn_", TowerForm::thirds},
    {"vision_model.encoder.layers.#.attn.q_norm", "v.blk.#.attn_q_norm"},
    {"vision_model.encoder.layers.#.attn.k_norm", "v.blk.#.attn_k_norm"},
    {"vision_model.encoder.layers.#.attn.proj", "v.blk.#.attn_out"},
    {"vision_model.encoder.layers.#.ls1", "v.blk.#.ls1.weight"},
    {"vision_model.encoder.layers.#.ls2", "v.blk.#.ls2.weight"},
    {"vision_model.encoder.layers.#.mlp.fc1", "v.blk.#.ffn_up"},
    {"vision_model.encoder.layers.#.mlp.fc2", "v.blk.#.ffn_down"},
    {"mlp1.0", "mm.model.mlp.0"},
    {"mlp1.1", "mm.model.mlp.1"},
    {"mlp1.3", "mm.model.mlp.3"},
};

/// A number, or the first of a list of equal ones.
std::int64_t side_of(Config& vision, std::string_view key, std::int64_t fallback) {
  const json* const value = vision.find(key);
  if (value == nullptr || !value->is_array()) return vision.optional(key, fallback, 1, kMostTower);
  const std::vector<double> sides = vision.numbers(key);
  if (sides.size() == 2 && sides[0] == sides[1] && sides[0] >= 1 && sides[0] <= kMostTower)
    return std::llround(sides[0]);
  vision.fail(error(Code::unsupported, "{} in vision_config is no square's", key));
  return fallback;
}

/// The dimensions of a transformer, with those of its class where the file leaves them out.
struct TowerShape {
  std::int64_t layers, width, ff, heads;
};
void read_shape(TowerConfig& config, Header& header, const TowerShape& usual) {
  Config& vision = config.vision;
  header.set_integer("vision.block_count", vision.optional("num_hidden_layers", usual.layers, 1, kMostTower));
  header.set_integer("vision.embedding_length", vision.optional("hidden_size", usual.width, 8, kMostTower));
  header.set_integer("vision.feed_forward_length", vision.optional("intermediate_size", usual.ff, 1, kMostTower));
  header.set_integer("vision.attention.head_count", vision.optional("num_attention_heads", usual.heads, 1, kMostTower));
  header.set_integer("vision.projection_dim", config.text_width);
}

void read_internvl(TowerConfig& config, Header& header) {
  Config &vision = config.vision, &whole = config.whole, &pixels = config.pixels;
  read_shape(config, header, {.layers = 24, .width = 1024, .ff = 4096, .heads = 16});
  header.set_integer("vision.patch_size", side_of(vision, "patch_size", 14));
  header.set_integer("vision.image_size", side_of(vision, "image_size", 448));
  const double ratio = whole.number("downsample_ratio", 0.5);
  if (ratio <= 0 || ratio > 1)
    whole.fail(error(Code::corrupt, "downsample_ratio in config.json is {}, by which nothing is merged", ratio));
  else
    header.set_integer("vision.projector.scale_factor", std::llround(1 / ratio));
  // transformers' files have the numbers of tiles beside the pixels' mean, those of the models' own code here.
  header.set_integer("vision.preproc_min_tiles",
                     pixels.optional("min_patches", whole.optional("min_dynamic_patch", 1, 1, 64), 1, 64));
  header.set_integer("vision.preproc_max_tiles",
                     pixels.optional("max_patches", whole.optional("max_dynamic_patch", 12, 1, 64), 1, 64));
  header.set_number("vision.attention.layer_norm_epsilon", vision.number("layer_norm_eps", 1e-6));
  header.set("use_gelu", true);
  vision.expect("hidden_act", "gelu");
  vision.expect("use_mean_pooling", true);
  vision.expect("use_absolute_position_embeddings", true);
  whole.expect("projector_hidden_act", "gelu");
  whole.expect("vision_feature_layer", -1);
  whole.expect("vision_feature_select_strategy", "default");
  whole.expect("select_layer", -1);
  whole.expect("ps_version", "v2");
  whole.expect("use_thumbnail", true);
}

constexpr TowerRule kIdefics3[] = {
    {"vision_model.embeddings.patch_embedding", "v.patch_embd"},
    {"vision_model.embeddings.position_embedding", "v.position_embd"},
    {"vision_model.post_layernorm", "v.post_ln"},
    {"vision_model.encoder.layers.#.layer_norm1", "v.blk.#.ln1"},
    {"vision_model.encoder.layers.#.layer_norm2", "v.blk.#.ln2"},
    {"vision_model.encoder.layers.#.self_attn.q_proj", "v.blk.#.attn_q"},
    {"vision_model.encoder.layers.#.self_attn.k_proj", "v.blk.#.attn_k"},
    {"vision_model.encoder.layers.#.self_attn.v_proj", "v.blk.#.attn_v"},
    {"vision_model.encoder.layers.#.self_attn.out_proj", "v.blk.#.attn_out"},
    {"vision_model.encoder.layers.#.mlp.fc1", "v.blk.#.ffn_up"},
    {"vision_model.encoder.layers.#.mlp.fc2", "v.blk.#.ffn_down"},
    {"connector.modality_projection.proj", "mm.model.fc"},
};

void read_idefics3(TowerConfig& config, Header& header) {
  Config &vision = config.vision, &pixels = config.pixels;
  read_shape(config, header, {.layers = 12, .width = 1152, .ff = 3072, .heads = 16});
  const std::int64_t side = side_of(vision, "image_size", 224);
  header.set_integer("vision.patch_size", side_of(vision, "patch_size", 32));
  header.set_integer("vision.image_size", side);
  header.set_integer("vision.projector.scale_factor", config.whole.optional("scale_factor", 2, 1, 16));
  Config size = pixels.within("size"), tile = pixels.within("max_image_size");
  header.set_integer("vision.preproc_image_size", size.optional("longest_edge", 4 * side, 1, kMostTower));
  if (const std::int64_t cut = tile.optional("longest_edge", side, 1, kMostTower); cut != side)
    pixels.fail(
        error(Code::unsupported, "max_image_size of the processor is {}, and the tower's image_size {}", cut, side));
  pixels.fail(size.status());
  pixels.fail(tile.status());
  pixels.expect("do_image_splitting", true);
  header.set_number("vision.attention.layer_norm_epsilon", vision.number("layer_norm_eps", 1e-6));
  header.set("use_gelu", true);
  vision.expect("hidden_act", "gelu_pytorch_tanh");
}

constexpr TowerRule kLfm2Tower[] = {
    {"vision_tower.embeddings.patch_embedding.weight", "v.patch_embd.weight", TowerForm::pixels},
    {"vision_tower.embeddings.patch_embedding.bias", "v.patch_embd.bias"},
    {"vision_tower.embeddings.position_embedding", "v.position_embd"},
    {"vision_tower.post_layernorm", "v.post_ln"},
    {"vision_tower.encoder.layers.#.layer_norm1", "v.blk.#.ln1"},
    {"vision_tower.encoder.layers.#.layer_norm2", "v.blk.#.ln2"},
    {"vision_tower.encoder.layers.#.self_attn.q_proj", "v.blk.#.attn_q"},
    {"vision_tower.encoder.layers.#.self_attn.k_proj", "v.blk.#.attn_k"},
    {"vision_tower.encoder.layers.#.self_attn.v_proj", "v.blk.#.attn_v"},
    {"vision_tower.encoder.layers.#.self_attn.out_proj", "v.blk.#.attn_out"},
    {"vision_tower.encoder.layers.#.mlp.fc1", "v.blk.#.ffn_up"},
    {"vision_tower.encoder.layers.#.mlp.fc2", "v.blk.#.ffn_down"},
    {"multi_modal_projector.layer_norm", "mm.input_norm"},
    {"multi_modal_projector.linear_1", "mm.1"},
    {"multi_modal_projector.linear_2", "mm.2"},
};

void read_lfm2_tower(TowerConfig& config, Header& header) {
  Config &vision = config.vision, &whole = config.whole, &pixels = config.pixels;
  read_shape(config, header, {.layers = 12, .width = 768, .ff = 3072, .heads = 12});
  const std::int64_t patch = vision.optional("patch_size", 16, 1, 256),
                     merge = whole.optional("downsample_factor", 2, 1, 16), area = patch * patch * merge * merge;
  header.set_integer("vision.patch_size", patch);
  header.set_integer("vision.image_size", 256);  // readers want one
  header.set_integer("vision.projector.scale_factor", merge);
  header.set_integer("vision.image_min_pixels", pixels.optional("min_image_tokens", 64, 1, 1 << 16) * area);
  header.set_integer("vision.image_max_pixels", pixels.optional("max_image_tokens", 256, 1, 1 << 16) * area);
  header.set_number("vision.attention.layer_norm_epsilon", vision.number("layer_norm_eps", 1e-6));
  header.set("use_gelu", true);
  vision.expect("hidden_act", "gelu_pytorch_tanh");
  whole.expect("projector_hidden_act", "gelu");
  whole.expect("vision_feature_layer", -1);
  // No key has these, so that readers take those of the published models.
  pixels.expect("do_image_splitting", true);
  pixels.expect("use_thumbnail", true);
  pixels.expect("min_tiles", 2);
  pixels.expect("max_tiles", 10);
  pixels.expect("tile_size", 512);
  pixels.expect("max_pixels_tolerance", 2.0);
}

// --- GLM, Kimi ---

constexpr TowerRule kGlm4vTower[] = {
    {"visual.patch_embed.proj.weight", "v.patch_embd.weight", TowerForm::frames},
    {"visual.patch_embed.proj", "v.patch_embd"},
    {"visual.embeddings.position_embedding", "v.position_embd"},
    {"visual.post_conv_layernorm", "v.norm_embd"},
    {"visual.blocks.#.norm1", "v.blk.#.ln1"},
    {"visual.blocks.#.norm2", "v.blk.#.ln2"},
    {"visual.blocks.#.attn.qkv", "v.blk.#.attn_qkv"},
    {"visual.blocks.#.attn.proj", "v.blk.#.attn_out"},
    {"visual.blocks.#.mlp.gate_proj", "v.blk.#.ffn_gate"},
    {"visual.blocks.#.mlp.up_proj", "v.blk.#.ffn_up"},
    {"visual.blocks.#.mlp.down_proj", "v.blk.#.ffn_down"},
    {"visual.post_layernorm", "v.post_ln"},
    {"visual.downsample", "mm.patch_merger"},
    {"visual.merger.proj", "mm.model.fc"},
    {"visual.merger.post_projection_norm", "mm.post_norm"},
    {"visual.merger.gate_proj", "mm.gate"},
    {"visual.merger.up_proj", "mm.up"},
    {"visual.merger.down_proj", "mm.down"},
};

void read_glm4v_tower(TowerConfig& config, Header& header) {
  Config &vision = config.vision, &pixels = config.pixels;
  const std::int64_t out = vision.optional("out_hidden_size", 4096, 1, kMostTower);
  header.set_integer("vision.block_count", vision.optional("depth", 24, 1, kMostTower));
  header.set_integer("vision.embedding_length", vision.optional("hidden_size", 1536, 8, kMostTower));
  // That of the projector, which others write here, too; a block's is as wide as what it gives.
  header.set_integer("vision.feed_forward_length", vision.optional("intermediate_size", 13696, 1, kMostTower));
  header.set_integer("vision.attention.head_count", vision.optional("num_heads", 12, 1, kMostTower));
  header.set_integer("vision.projection_dim", out);
  header.set_integer("vision.patch_size", side_of(vision, "patch_size", 14));
  header.set_integer("vision.image_size", side_of(vision, "image_size", 336));
  header.set_integer("vision.spatial_merge_size", vision.optional("spatial_merge_size", 2, 1, 16));
  header.set_number("vision.attention.layer_norm_epsilon", vision.number("rms_norm_eps", 1e-5));
  header.set("use_silu", true);
  vision.expect("hidden_act", "silu");
  vision.expect("temporal_patch_size", 2);
  // The processor's limits are of two frames, of which a picture is one.
  Config size = pixels.within("size");
  header.set_integer("vision.image_min_pixels", size.optional("shortest_edge", 12'544, 2, 1 << 28) / 2);
  header.set_integer("vision.image_max_pixels", size.optional("longest_edge", 9'633'792, 2, 1 << 28) / 2);
  pixels.fail(size.status());
}

constexpr TowerRule kKimiVl[] = {
    {"vision_tower.patch_embed.proj", "v.patch_embd"},
    {"vision_tower.patch_embed.pos_emb.weight", "v.position_embd.weight", TowerForm::square},
    {"vision_tower.encoder.blocks.#.norm0", "v.blk.#.ln1"},
    {"vision_tower.encoder.blocks.#.norm1", "v.blk.#.ln2"},
    {"vision_tower.encoder.blocks.#.wqkv", "v.blk.#.attn_", TowerForm::thirds},
    {"vision_tower.encoder.blocks.#.wo", "v.blk.#.attn_out"},
    {"vision_tower.encoder.blocks.#.mlp.fc0", "v.blk.#.ffn_up"},
    {"vision_tower.encoder.blocks.#.mlp.fc1", "v.blk.#.ffn_down"},
    {"vision_tower.encoder.final_layernorm", "v.post_ln"},
    {"multi_modal_projector.pre_norm", "mm.input_norm"},
    {"multi_modal_projector.linear_1", "mm.1"},
    {"multi_modal_projector.linear_2", "mm.2"},
};

void read_kimi_vl(TowerConfig& config, Header& header) {
  Config &vision = config.vision, &pixels = config.pixels;
  read_shape(config, header, {.layers = 27, .width = 1152, .ff = 4304, .heads = 16});
  const std::int64_t patch = vision.optional("patch_size", 14, 1, 256),
                     side = vision.optional("init_pos_emb_height", 64, 1, 1024);
  vision.expect("init_pos_emb_width", side);
  vision.expect("merge_kernel_size", json::array({2, 2}));
  header.set_integer("vision.patch_size", patch);
  header.set_integer("vision.image_size", side * patch);
  header.set_integer("vision.projector.scale_factor", 2);
  header.set_integer("vision.image_max_pixels", pixels.optional("in_token_limit", 4096, 4, 1 << 18) * patch * patch);
  pixels.expect("pad_input", true);
  header.set_number("vision.attention.layer_norm_epsilon", 1e-5);
  header.set("use_gelu", true);
}

constexpr TowerFamily kTowerFamilies[] = {
    {"qwen3_5", Projector::qwen3vl, kQwen3Tower, read_qwen3},
    {"qwen3_5_moe", Projector::qwen3vl, kQwen3Tower, read_qwen3},
    {"qwen4_exp", Projector::qwen3vl, kQwen3Tower, read_qwen3},
    {"qwen3_vl", Projector::qwen3vl, kQwen3Tower, read_qwen3},
    {"qwen3_vl_moe", Projector::qwen3vl, kQwen3Tower, read_qwen3},
    {"qwen2_5_vl", Projector::qwen25vl, kQwen2Tower, read_qwen25},
    {"qwen2_vl", Projector::qwen2vl, kQwen2Tower, read_qwen2},
    {"mistral3", Projector::pixtral, kPixtral, read_pixtral},
    {"llava", Projector::pixtral, kPixtral, read_pixtral},
    {"gemma3", Projector::gemma3, kGemma3Tower, read_gemma3},
    {"gemma4", Projector::gemma4, kGemma4Tower, read_gemma4},
    {"gemma4_unified", Projector::gemma4u, kGemma4Unified, read_gemma4_unified},
    {"internvl", Projector::internvl, kInternVl, read_internvl},
    {"internvl_chat", Projector::internvl, kInternVl, read_internvl},
    {"idefics3", Projector::idefics3, kIdefics3, read_idefics3},
    {"smolvlm", Projector::idefics3, kIdefics3, read_idefics3},
    {"lfm2_vl", Projector::lfm2, kLfm2Tower, read_lfm2_tower},
    {"glm4v", Projector::glm4v, kGlm4vTower, read_glm4v_tower},
    {"glm4v_moe", Projector::glm4v, kGlm4vTower, read_glm4v_tower},
    {"glm46v", Projector::glm4v, kGlm4vTower, read_glm4v_tower},
    {"kimi_vl", Projector::kimivl, kKimiVl, read_kimi_vl},
};

}  // namespace

const TowerFamily* tower_family(std::string_view model_type) {
  for (const TowerFamily& family : kTowerFamilies)
    if (family.model_type == model_type) return &family;
  return nullptr;
}

}  // namespace millrace::convert
