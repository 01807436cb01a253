"""What sees in a checkpoint becomes an mmproj file. Each tower of tests/data/vision, whose rows are held to transformers', is written
as its checkpoint has it, by a table that is other code than Millrace's, and converted again."""
import json
import pathlib
import re
import tempfile
import unittest

import checkpoints
from harness import ROOT, Case, run
from hub import Hub

TOWERS = ROOT / "tests/data/vision"
WIDTH, HEADS, FF, LAYERS, PATCH = 48, 2, 64, 2, 8
BOTH = "(weight|bias)"

# Of GGUF's names those of the checkpoint: a pattern, what stands for it, and how the numbers lie there.
QWEN3 = [
    (r"v\.patch_embd\.weight", "model.visual.patch_embed.proj.weight", "frames"), (r"v\.patch_embd\.bias", "model.visual.patch_embed.proj.bias", None),
    (r"v\.position_embd\.weight", "model.visual.pos_embed.weight", None),
    (rf"v\.blk\.(\d)\.ln(\d)\.{BOTH}", r"model.visual.blocks.\1.norm\2.\3", None),
    (rf"v\.blk\.(\d)\.attn_qkv\.{BOTH}", r"model.visual.blocks.\1.attn.qkv.\2", None),
    (rf"v\.blk\.(\d)\.attn_out\.{BOTH}", r"model.visual.blocks.\1.attn.proj.\2", None),
    (rf"v\.blk\.(\d)\.ffn_up\.{BOTH}", r"model.visual.blocks.\1.mlp.linear_fc1.\2", None),
    (rf"v\.blk\.(\d)\.ffn_down\.{BOTH}", r"model.visual.blocks.\1.mlp.linear_fc2.\2", None),
    (rf"v\.deepstack\.1\.norm\.{BOTH}", r"model.visual.deepstack_merger_list.0.norm.\1", None),
    (rf"v\.deepstack\.1\.fc(\d)\.{BOTH}", r"model.visual.deepstack_merger_list.0.linear_fc\1.\2", None),
    (rf"v\.post_ln\.{BOTH}", r"model.visual.merger.norm.\1", None),
    (rf"mm\.0\.{BOTH}", r"model.visual.merger.linear_fc1.\1", None), (rf"mm\.2\.{BOTH}", r"model.visual.merger.linear_fc2.\1", None),
]
QWEN2 = [
    (r"v\.patch_embd\.weight", "visual.patch_embed.proj.weight", "frames"),
    (rf"v\.blk\.(\d)\.ln(\d)\.{BOTH}", r"visual.blocks.\1.norm\2.\3", None),
    (rf"v\.blk\.(\d)\.attn_q\.{BOTH}", r"visual.blocks.\1.attn.qkv.\2", "thirds"),
    (rf"v\.blk\.(\d)\.attn_out\.{BOTH}", r"visual.blocks.\1.attn.proj.\2", None),
    (rf"v\.blk\.(\d)\.ffn_(gate|up|down)\.{BOTH}", r"visual.blocks.\1.mlp.\2_proj.\3", None),
    (rf"v\.post_ln\.{BOTH}", r"visual.merger.ln_q.\1", None), (rf"mm\.(\d)\.{BOTH}", r"visual.merger.mlp.\1.\2", None),
]
# Its file has ffn_up and ffn_down the other way round.
QWEN2_QUICK = [(rf"v\.blk\.(\d)\.ffn_up\.{BOTH}", r"visual.blocks.\1.mlp.fc2.\2", None),
               (rf"v\.blk\.(\d)\.ffn_down\.{BOTH}", r"visual.blocks.\1.mlp.fc1.\2", None)] + QWEN2
PIXTRAL = [
    (r"v\.patch_embd\.weight", "vision_tower.patch_conv.weight", None), (r"v\.pre_ln\.weight", "vision_tower.ln_pre.weight", None),
    (r"v\.blk\.(\d)\.ln1\.weight", r"vision_tower.transformer.layers.\1.attention_norm.weight", None),
    (r"v\.blk\.(\d)\.ln2\.weight", r"vision_tower.transformer.layers.\1.ffn_norm.weight", None),
    (r"v\.blk\.(\d)\.attn_([qk])\.weight", r"vision_tower.transformer.layers.\1.attention.\2_proj.weight", "halves"),
    (r"v\.blk\.(\d)\.attn_v\.weight", r"vision_tower.transformer.layers.\1.attention.v_proj.weight", None),
    (r"v\.blk\.(\d)\.attn_out\.weight", r"vision_tower.transformer.layers.\1.attention.o_proj.weight", None),
    (r"v\.blk\.(\d)\.ffn_(gate|up|down)\.weight", r"vision_tower.transformer.layers.\1.feed_forward.\2_proj.weight", None),
    (r"mm\.input_norm\.weight", "multi_modal_projector.norm.weight", None),
    (r"mm\.patch_merger\.weight", "multi_modal_projector.patch_merger.merging_layer.weight", None),
    (r"mm\.(\d)\.weight", r"multi_modal_projector.linear_\1.weight", None),
]
GEMMA3 = [
    (rf"v\.patch_embd\.{BOTH}", r"vision_tower.vision_model.embeddings.patch_embedding.\1", None),
    (r"v\.position_embd\.weight", "vision_tower.vision_model.embeddings.position_embedding.weight", None),
    (rf"v\.post_ln\.{BOTH}", r"vision_tower.vision_model.post_layernorm.\1", None),
    (rf"v\.blk\.(\d)\.ln(\d)\.{BOTH}", r"vision_tower.vision_model.encoder.layers.\1.layer_norm\2.\3", None),
    (rf"v\.blk\.(\d)\.attn_([qkv]|out)\.{BOTH}", r"vision_tower.vision_model.encoder.layers.\1.self_attn.\2_proj.\3", None),
    (rf"v\.blk\.(\d)\.ffn_up\.{BOTH}", r"vision_tower.vision_model.encoder.layers.\1.mlp.fc1.\2", None),
    (rf"v\.blk\.(\d)\.ffn_down\.{BOTH}", r"vision_tower.vision_model.encoder.layers.\1.mlp.fc2.\2", None),
    (r"mm\.input_projection\.weight", "multi_modal_projector.mm_input_projection_weight", None),
    (r"mm\.soft_emb_norm\.weight", "multi_modal_projector.mm_soft_emb_norm.weight", "minus one"),
]
LAYER4 = r"model.vision_tower.encoder.layers.\1."
GEMMA4 = [
    (r"v\.patch_embd\.weight", "model.vision_tower.patch_embedder.input_proj.weight", "pixels"),
    (r"v\.position_embd\.weight", "model.vision_tower.patch_embedder.position_embedding_table", None),
    (r"v\.std_(bias|scale)", r"model.vision_tower.std_\1", None),
    (r"v\.blk\.(\d)\.ln1\.weight", LAYER4 + "input_layernorm.weight", None), (r"v\.blk\.(\d)\.ln2\.weight", LAYER4 + "pre_feedforward_layernorm.weight", None),
    (r"v\.blk\.(\d)\.attn_post_norm\.weight", LAYER4 + "post_attention_layernorm.weight", None),
    (r"v\.blk\.(\d)\.ffn_post_norm\.weight", LAYER4 + "post_feedforward_layernorm.weight", None),
    (r"v\.blk\.(\d)\.attn_([qk])_norm\.weight", LAYER4 + r"self_attn.\2_norm.weight", None),
    (r"v\.blk\.(\d)\.attn_out\.(.+)", LAYER4 + r"self_attn.o_proj.\2", "clippable"),
    (r"v\.blk\.(\d)\.attn_([qkv])\.(.+)", LAYER4 + r"self_attn.\2_proj.\3", "clippable"),
    (r"v\.blk\.(\d)\.ffn_(gate|up|down)\.(.+)", LAYER4 + r"mlp.\2_proj.\3", "clippable"),
    (r"mm\.input_projection\.weight", "model.embed_vision.embedding_projection.weight", None),
]
UNIFIED = [
    (rf"v\.patch_norm\.1\.{BOTH}", r"model.vision_embedder.patch_ln1.\1", "pixels"), (rf"v\.patch_norm\.2\.{BOTH}", r"model.vision_embedder.patch_ln2.\1", None),
    (rf"v\.patch_norm\.3\.{BOTH}", r"model.vision_embedder.pos_norm.\1", None), (r"v\.patch_embd\.weight", "model.vision_embedder.patch_dense.weight", "pixels"),
    (r"v\.patch_embd\.bias", "model.vision_embedder.patch_dense.bias", None), (r"v\.position_embd\.weight", "model.vision_embedder.pos_embedding", "tables"),
    (r"mm\.input_projection\.weight", "model.embed_vision.embedding_projection.weight", None),
]

INTERN = "model.vision_tower."
INTERNVL = [
    (r"v\.class_embd", INTERN + "embeddings.cls_token", None), (r"v\.position_embd\.weight", INTERN + "embeddings.position_embeddings", None),
    (rf"v\.patch_embd\.{BOTH}", INTERN + r"embeddings.patch_embeddings.projection.\1", None),
    (rf"v\.blk\.(\d)\.ln1\.{BOTH}", INTERN + r"encoder.layer.\1.layernorm_before.\2", None),
    (rf"v\.blk\.(\d)\.ln2\.{BOTH}", INTERN + r"encoder.layer.\1.layernorm_after.\2", None),
    (rf"v\.blk\.(\d)\.attn_([qkv])\.{BOTH}", INTERN + r"encoder.layer.\1.attention.\2_proj.\3", None),
    (rf"v\.blk\.(\d)\.attn_out\.{BOTH}", INTERN + r"encoder.layer.\1.attention.projection_layer.\2", None),
    (r"v\.blk\.(\d)\.ls(\d)\.weight", INTERN + r"encoder.layer.\1.lambda_\2", None),
    (rf"v\.blk\.(\d)\.ffn_up\.{BOTH}", INTERN + r"encoder.layer.\1.mlp.fc1.\2", None), (rf"v\.blk\.(\d)\.ffn_down\.{BOTH}", INTERN + r"encoder.layer.\1.mlp.fc2.\2", None),
    (rf"mm\.model\.mlp\.0\.{BOTH}", r"model.multi_modal_projector.layer_norm.\1", None), (rf"mm\.model\.mlp\.1\.{BOTH}", r"model.multi_modal_projector.linear_1.\1", None),
    (rf"mm\.model\.mlp\.3\.{BOTH}", r"model.multi_modal_projector.linear_2.\1", None),
]
# By the names of the models' own code, and with the tower of 6 billion weights.
INTERNVL_CHAT = [
    (r"v\.class_embd", "vision_model.embeddings.class_embedding", None), (r"v\.position_embd\.weight", "vision_model.embeddings.position_embedding", None),
    (rf"v\.patch_embd\.{BOTH}", r"vision_model.embeddings.patch_embedding.\1", None), (r"v\.blk\.(\d)\.ln(\d)\.weight", r"vision_model.encoder.layers.\1.norm\2.weight", None),
    (r"v\.blk\.(\d)\.attn_q\.weight", r"vision_model.encoder.layers.\1.attn.qkv.weight", "thirds"),
    (r"v\.blk\.(\d)\.attn_([qk])_norm\.weight", r"vision_model.encoder.layers.\1.attn.\2_norm.weight", None),
    (rf"v\.blk\.(\d)\.attn_out\.{BOTH}", r"vision_model.encoder.layers.\1.attn.proj.\2", None), (r"v\.blk\.(\d)\.ls(\d)\.weight", r"vision_model.encoder.layers.\1.ls\2", None),
    (rf"v\.blk\.(\d)\.ffn_up\.{BOTH}", r"vision_model.encoder.layers.\1.mlp.fc1.\2", None), (rf"v\.blk\.(\d)\.ffn_down\.{BOTH}", r"vision_model.encoder.layers.\1.mlp.fc2.\2", None),
    (rf"mm\.model\.mlp\.(\d)\.{BOTH}", r"mlp1.\1.\2", None),
]


def siglip(front):
    return [(rf"v\.post_ln\.{BOTH}", front + r"post_layernorm.\1", None), (r"v\.position_embd\.weight", front + "embeddings.position_embedding.weight", None),
            (rf"v\.blk\.(\d)\.ln(\d)\.{BOTH}", front + r"encoder.layers.\1.layer_norm\2.\3", None),
            (rf"v\.blk\.(\d)\.attn_([qkv]|out)\.{BOTH}", front + r"encoder.layers.\1.self_attn.\2_proj.\3", None),
            (rf"v\.blk\.(\d)\.ffn_up\.{BOTH}", front + r"encoder.layers.\1.mlp.fc1.\2", None), (rf"v\.blk\.(\d)\.ffn_down\.{BOTH}", front + r"encoder.layers.\1.mlp.fc2.\2", None)]


IDEFICS3 = siglip("model.vision_model.") + [(rf"v\.patch_embd\.{BOTH}", r"model.vision_model.embeddings.patch_embedding.\1", None),
                                            (r"mm\.model\.fc\.weight", "model.connector.modality_projection.proj.weight", None)]
LFM2_FRONT = "model.vision_tower.vision_model."
LFM2 = siglip(LFM2_FRONT) + [(r"v\.patch_embd\.weight", LFM2_FRONT + "embeddings.patch_embedding.weight", "pixels"), (r"v\.patch_embd\.bias", LFM2_FRONT + "embeddings.patch_embedding.bias", None),
                             (rf"mm\.input_norm\.{BOTH}", r"model.multi_modal_projector.layer_norm.\1", None), (rf"mm\.([12])\.{BOTH}", r"model.multi_modal_projector.linear_\1.\2", None)]

GLM4V = [
    (r"v\.patch_embd\.weight", "model.visual.patch_embed.proj.weight", "frames"), (r"v\.patch_embd\.bias", "model.visual.patch_embed.proj.bias", None),
    (r"v\.position_embd\.weight", "model.visual.embeddings.position_embedding.weight", None), (r"v\.norm_embd\.weight", "model.visual.post_conv_layernorm.weight", None),
    (r"v\.blk\.(\d)\.ln(\d)\.weight", r"model.visual.blocks.\1.norm\2.weight", None), (r"v\.blk\.(\d)\.attn_qkv\.weight", r"model.visual.blocks.\1.attn.qkv.weight", None),
    (r"v\.blk\.(\d)\.attn_out\.weight", r"model.visual.blocks.\1.attn.proj.weight", None),
    (r"v\.blk\.(\d)\.ffn_(gate|up|down)\.weight", r"model.visual.blocks.\1.mlp.\2_proj.weight", None), (r"v\.post_ln\.weight", "model.visual.post_layernorm.weight", None),
    (rf"mm\.patch_merger\.{BOTH}", r"model.visual.downsample.\1", None), (r"mm\.model\.fc\.weight", "model.visual.merger.proj.weight", None),
    (rf"mm\.post_norm\.{BOTH}", r"model.visual.merger.post_projection_norm.\1", None), (r"mm\.(gate|up|down)\.weight", r"model.visual.merger.\1_proj.weight", None),
]
KIMI_BLOCK = r"vision_tower.encoder.blocks.\1."
KIMI = [
    (rf"v\.patch_embd\.{BOTH}", r"vision_tower.patch_embed.proj.\1", None), (r"v\.position_embd\.weight", "vision_tower.patch_embed.pos_emb.weight", "square"),
    (rf"v\.blk\.(\d)\.ln1\.{BOTH}", KIMI_BLOCK + r"norm0.\2", None), (rf"v\.blk\.(\d)\.ln2\.{BOTH}", KIMI_BLOCK + r"norm1.\2", None),
    (rf"v\.blk\.(\d)\.attn_q\.{BOTH}", KIMI_BLOCK + r"wqkv.\2", "thirds"), (rf"v\.blk\.(\d)\.attn_out\.{BOTH}", KIMI_BLOCK + r"wo.\2", None),
    (rf"v\.blk\.(\d)\.ffn_up\.{BOTH}", KIMI_BLOCK + r"mlp.fc0.\2", None), (rf"v\.blk\.(\d)\.ffn_down\.{BOTH}", KIMI_BLOCK + r"mlp.fc1.\2", None),
    (rf"v\.post_ln\.{BOTH}", r"vision_tower.encoder.final_layernorm.\1", None), (rf"mm\.input_norm\.{BOTH}", r"multi_modal_projector.pre_norm.\1", None),
    (rf"mm\.([12])\.{BOTH}", r"multi_modal_projector.linear_\1.\2", None),
]

QWEN_SHAPE = {"depth": LAYERS, "hidden_size": WIDTH, "intermediate_size": FF, "num_heads": HEADS, "patch_size": PATCH, "spatial_merge_size": 2,
              "temporal_patch_size": 2}
SIGLIP = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "intermediate_size": FF, "num_attention_heads": HEADS}
GEMMA4_SHAPE = SIGLIP | {"head_dim": WIDTH // HEADS, "patch_size": 4, "pooling_kernel_size": 3}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
# Of a fixture: its decoder, model_type, vision_config, more of config.json, preprocessor_config.json, the table.
FAMILIES = {
    "qwen35": ("qwen35", "qwen3_5", QWEN_SHAPE | {"out_hidden_size": 32, "num_position_embeddings": 25, "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []},
               {}, HALF | {"size": {"shortest_edge": 1024, "longest_edge": 8192}}, QWEN3),
    "qwen3vl": ("qwen3vl", "qwen3_vl", QWEN_SHAPE | {"num_position_embeddings": 25, "deepstack_visual_indexes": [1]}, {}, HALF, QWEN3),
    "qwen2vl": ("qwen2vl", "qwen2_5_vl", QWEN_SHAPE | {"depth": 3, "window_size": 32, "fullatt_block_indexes": [1]}, {}, HALF | {"min_pixels": 256, "max_pixels": 4096}, QWEN2),
    "qwen2vl-quick": ("qwen2vl", "qwen2_vl", {key: value for key, value in QWEN_SHAPE.items() if key not in ("intermediate_size", "hidden_size")}
                      | {"embed_dim": WIDTH, "mlp_ratio": 2}, {}, HALF, QWEN2_QUICK),
    "mistral-nemo": ("mistral-nemo", "mistral3", SIGLIP | {"model_type": "pixtral", "head_dim": WIDTH // HEADS, "patch_size": PATCH, "image_size": 16 * PATCH, "hidden_act": "silu",
                                                           "rope_theta": 10000.0}, {"spatial_merge_size": 2, "projector_hidden_act": "gelu", "vision_feature_layer": -1}, HALF, PIXTRAL),
    "gemma3": ("gemma3", "gemma3", SIGLIP | {"patch_size": PATCH, "image_size": 8 * PATCH}, {"mm_tokens_per_image": 4}, HALF, GEMMA3),
    "gemma4": ("gemma4", "gemma4", GEMMA4_SHAPE | {"use_clipped_linears": True}, {"audio_config": None}, None, GEMMA4),
    "gemma4-moe": ("gemma4-moe", "gemma4", GEMMA4_SHAPE | {"standardize": True, "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}, {}, None, GEMMA4),
    "qwen2-internvl": ("qwen2", "internvl", SIGLIP | {"patch_size": [PATCH] * 2, "image_size": [6 * PATCH] * 2, "hidden_act": "gelu"},
                       {"downsample_ratio": 0.5, "vision_feature_layer": -1}, HALF | {"min_patches": 1, "max_patches": 6}, INTERNVL),
    "qwen3-internvl": ("qwen3", "internvl_chat", SIGLIP | {"patch_size": PATCH, "image_size": 6 * PATCH, "hidden_act": "gelu", "norm_type": "rms_norm", "qk_normalization": True},
                       {"downsample_ratio": 0.5, "min_dynamic_patch": 1, "max_dynamic_patch": 12, "ps_version": "v2", "select_layer": -1, "use_thumbnail": True}, HALF, INTERNVL_CHAT),
    "llama-idefics3": ("llama", "smolvlm", SIGLIP | {"patch_size": PATCH, "image_size": 8 * PATCH + 3}, {"scale_factor": 4},
                       HALF | {"size": {"longest_edge": 16 * PATCH}, "max_image_size": {"longest_edge": 8 * PATCH + 3}, "do_image_splitting": True}, IDEFICS3),
    "lfm2": ("lfm2", "lfm2_vl", SIGLIP | {"patch_size": PATCH, "num_patches": 25}, {"downsample_factor": 2, "projector_hidden_act": "gelu"},
             HALF | {"min_tiles": 2, "max_tiles": 10, "tile_size": 512, "max_pixels_tolerance": 2.0}, LFM2),
    "glm4v": ("glm4v", "glm4v", QWEN_SHAPE | {"out_hidden_size": 64, "image_size": 5 * PATCH, "hidden_act": "silu"}, {},
              HALF | {"size": {"shortest_edge": 2048, "longest_edge": 65536}}, GLM4V),
    "deepseek-v3-kimivl": ("deepseek-v3", "kimi_vl", SIGLIP | {"patch_size": PATCH, "init_pos_emb_height": 5, "init_pos_emb_width": 5, "merge_kernel_size": [2, 2]}, {},
                           HALF | {"in_token_limit": 4096, "pad_input": True}, KIMI),
    "gemma4-moe-unified": ("gemma4-moe", "gemma4_unified", {"patch_size": 4, "pooling_kernel_size": 3, "mm_embed_dim": 32}, {}, None, UNIFIED),
}


def by_pixel(numbers, rows):
    """[rows, channel, y, x] as [rows, y, x, channel]."""
    cols = len(numbers) // rows
    each = cols // 3
    return [numbers[row * cols + channel * each + at] for row in range(rows) for at in range(each) for channel in range(3)]


def theirs(tensors, table):
    """{name: (shape, numbers)} of the checkpoint."""
    made = {}
    for name, (kind, ours, values) in tensors.items():
        numbers, shape = checkpoints.floats_of(kind, values), ours[::-1]
        if re.fullmatch(r"v\.patch_embd\.weight\.1|v\.blk\.\d\.attn_[kv]\..+", name) and any(form in ("frames", "thirds") for _, _, form in table):
            continue  # with the first
        pattern, to, form = next((pattern, to, form) for pattern, to, form in table if re.fullmatch(pattern, name))
        named = re.sub(pattern, to, name)
        if form == "frames":
            _, _, values = tensors[name + ".1"]
            second, each = checkpoints.floats_of(kind, values), shape[2] * shape[3]
            numbers = sum((numbers[at:at + each] + second[at:at + each] for at in range(0, len(numbers), each)), [])
            shape = [shape[0], shape[1], 2, *shape[2:]]
        elif form == "thirds":
            for part in "kv":
                numbers = numbers + checkpoints.floats_of(*tensors[name.replace("attn_q", f"attn_{part}")][::2])
            shape = [3 * shape[0], *shape[1:]]
        elif form == "halves":
            dim, cols = WIDTH // HEADS, shape[1]
            rows = [numbers[at:at + cols] for at in range(0, len(numbers), cols)]
            numbers = sum((rows[head * dim + 2 * (i % (dim // 2)) + i // (dim // 2)] for head in range(HEADS) for i in range(dim)), [])
        elif form == "minus one":
            numbers = [number - 1 for number in numbers]
        elif form == "pixels":
            rows = shape[0] if len(shape) > 1 else 1
            numbers, shape = by_pixel(numbers, rows), [rows, len(numbers) // rows] if len(shape) > 1 else shape
        elif form == "tables":
            axes, places, cols = shape
            numbers = sum((numbers[(axis * places + place) * cols:][:cols] for place in range(places) for axis in range(axes)), [])
            shape = [places, axes, cols]
        elif form == "square":
            side = round(shape[0] ** 0.5)
            shape = [side, side, shape[1]]
        elif form == "clippable":
            is_weight = named.endswith(".weight")
            named, shape = (named.replace(".weight", ".linear.weight"), shape) if is_weight else (named, [])
        made[named] = (shape, numbers)
    return made


class Towers(Case):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.folder = pathlib.Path(self.room.name)

    def checkpoint(self, name):
        decoder, model_type, vision, more, pixels, table = FAMILIES[name]
        source = self.folder / name
        self.ok("export", ROOT / f"tests/data/reference/{decoder}.gguf", source)
        text = json.loads((source / "config.json").read_text())
        config = {"model_type": model_type, "llm_config" if model_type == "internvl_chat" else "text_config": text, "vision_config": vision, **more}
        (source / "config.json").write_text(json.dumps(config))
        if pixels:
            (source / "preprocessor_config.json").write_text(json.dumps(pixels))
        tensors = checkpoints.read_safetensors(source / "model.safetensors")
        for named, (shape, numbers) in theirs(checkpoints.Gguf(TOWERS / f"{name}-mmproj.gguf").tensors, table).items():
            tensors[named] = ("F32", shape, checkpoints.f32(numbers))
        checkpoints.write_safetensors(source / "model.safetensors", tensors)
        return source

    def test_towers_come_back(self):
        for name in FAMILIES:
            with self.subTest(name):
                source, out = self.checkpoint(name), self.folder / f"{name}.gguf"
                outcome = self.ok("convert", source, "-o", out, "--dtype", "f16")
                made, given = checkpoints.Gguf(self.folder / f"mmproj-{name}-F16.gguf"), checkpoints.Gguf(TOWERS / f"{name}-mmproj.gguf")
                self.assertNotIn("left out", outcome.err)
                swapped = lambda one: one.replace("ffn_up", "ffn_?").replace("ffn_down", "ffn_up").replace("ffn_?", "ffn_down") if name == "qwen2vl-quick" else one
                self.assertEqual({swapped(one) for one in made.tensors}, set(given.tensors))
                for one, (kind, shape, values) in made.tensors.items():
                    known = given.tensors[swapped(one)]
                    self.assertEqual((shape, checkpoints.floats_of(kind, values)), (known[1], checkpoints.floats_of(known[0], known[2])), one)
                    is_float = len(shape) == 1 or one in ("v.position_embd.weight", "v.class_embd")
                    self.assertEqual(kind, checkpoints.F32 if is_float else checkpoints.F16, one)
                for key, value in given.keys.items():
                    if key != "general.name" and not (key == "clip.vision.image_size" and name.startswith("qwen2vl")):
                        self.assertEqual(made.keys.get(key), value, key)
                self.assertIn("vision", self.ok("show", out).out)  # found beside the model, and its own
                for file in self.folder.glob("*.gguf"):
                    file.unlink()

    def test_pull_of_a_checkpoint_takes_what_sees_along(self):
        source = self.checkpoint("qwen35")
        hub = Hub({path.name: path.read_bytes() for path in source.iterdir()}, "someone/sees")
        self.addCleanup(hub.close)
        env = {"MILLRACE_MODELS": str(self.folder / "models"), "HF_ENDPOINT": hub.url, "HF_TOKEN": "", "http_proxy": "", "HTTP_PROXY": ""}
        outcome = self.ok("pull", "someone/sees", "--no-fit", env=env)
        self.assertIn("with mmproj-sees-F", outcome.err)
        self.assertIn("vision (", self.ok("show", "someone/sees", env=env).out)
        self.ok("rm", "someone/sees", env=env)
        self.assertFalse(list((self.folder / "models/blobs").iterdir()))
        self.ok("pull", "someone/sees", "--no-fit", "--no-mmproj", env=env)
        self.assertNotIn("vision (", self.ok("show", "someone/sees", env=env).out)

    def change(self, source, change):
        tensors = checkpoints.read_safetensors(source / "model.safetensors")
        change(tensors)
        checkpoints.write_safetensors(source / "model.safetensors", tensors)

    def mmprojs(self):
        return sorted(file.name for file in self.folder.glob("mmproj-*"))

    def test_types(self):
        source, out = self.checkpoint("gemma4"), self.folder / "model.gguf"
        for dtype, name in (("keep", "F32"), ("bf16", "BF16"), ("q8_0", "F16"), ("q4_k_m", "F16")):  # no row is whole blocks of 32
            self.ok("convert", source, "-o", out, "--dtype", dtype)
            self.assertEqual(self.mmprojs(), [f"mmproj-model-{name}.gguf"], dtype)
            (self.folder / f"mmproj-model-{name}.gguf").unlink()
        self.ok("convert", source, "-o", out, "--no-mmproj")
        self.assertEqual(self.mmprojs(), [])

    def test_bounds_that_bound_nothing_are_left_out(self):
        source, bound = self.checkpoint("gemma4"), "model.vision_tower.encoder.layers.0.self_attn.q_proj.input_min"
        self.change(source, lambda tensors: tensors.update({bound: ("F32", [], checkpoints.f32([float("-inf")]))}))
        self.ok("convert", source, "-o", self.folder / "model.gguf", "--dtype", "f16")
        made = checkpoints.Gguf(self.folder / "mmproj-model-F16.gguf").tensors
        self.assertNotIn("v.blk.0.attn_q.input_min", made)
        self.assertIn("v.blk.0.attn_q.input_max", made)

    def test_what_is_not_converted_is_named(self):
        source, out = self.checkpoint("gemma3"), self.folder / "model.gguf"
        config = json.loads((source / "config.json").read_text())

        def left_out(says, code=0):
            out.unlink(missing_ok=True)
            outcome = run("convert", source, "-o", out)
            self.assertEqual((outcome.code, out.exists(), self.mmprojs()), (code, True, []), outcome.err)
            self.assertIn(says, outcome.err)

        (source / "config.json").write_text(json.dumps(config | {"model_type": "paligemma"}))
        left_out("tensors of the vision tower: this version converts no tower of models of type paligemma")
        (source / "config.json").write_text(json.dumps(config | {"vision_config": config["vision_config"] | {"hidden_act": "relu"}}))
        left_out("hidden_act")
        (source / "config.json").write_text(json.dumps(config))
        extra = "vision_tower.vision_model.head.probe"
        self.change(source, lambda tensors: tensors.update({extra: ("F32", [4], checkpoints.f32([1, 2, 3, 4]))}))
        left_out(f"tensor '{extra}' is unknown for models of type")
        self.change(source, lambda tensors: tensors.pop(extra))
        norm = "multi_modal_projector.mm_soft_emb_norm.weight"
        self.change(source, lambda tensors: tensors.update({norm: ("F32", [4], checkpoints.f32([1, 2, 3, 4]))}))
        left_out("mm.soft_emb_norm.weight", code=1)


if __name__ == "__main__":
    unittest.main()
