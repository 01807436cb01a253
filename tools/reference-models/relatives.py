"""Reference checkpoints of architectures that differ from others in names and a few points: part of zoo.py.

Each says itself which keys its file has (shapes.Model.keys) and which of its parameters have names of their own.
"""

from shapes import TIED_STD, VOCABULARY, Model, config, rope, small, without

LOCAL, GLOBAL = "sliding_attention", "full_attention"
SOFTMAX, SIGMOID = 1, 2  # expert_gating_func
LLAMAS_KEYS = {"vocab_size": VOCABULARY, "rope.dimension_count": 64}
VISION = {"depth": 1, "embed_dim": 8, "hidden_size": 8, "out_hidden_size": 32, "num_heads": 1, "intermediate_size": 8,
          "patch_size": 2, "num_position_embeddings": 4, "deepstack_visual_indexes": [0]}

# --- Qwen's -----------------------------------------------------------------------------------------------------------


def mrope(theta=1e6, **more):
    return rope(theta, mrope_section=[8, 12, 12], **more)


QWEN2VL = Model(
    "qwen2vl", "qwen2vl", "qwen2_vl", "Qwen2VLConfig", "Qwen2VLForConditionalGeneration",
    without(small(tie_word_embeddings=True, hidden_size=64, num_attention_heads=1, rope_parameters=mrope()),
            "head_dim"),
    variants={"theta": {"rope_parameters": mrope(1e4)}},
    embedding_std=TIED_STD, vision=VISION | {"hidden_size": 64}, keys={"rope.dimension_sections": [8, 12, 12, 0]},
)

QWEN3VL = Model(
    "qwen3vl", "qwen3vl", "qwen3_vl", "Qwen3VLConfig", "Qwen3VLForConditionalGeneration",
    small(tie_word_embeddings=True, rope_parameters=mrope(mrope_interleaved=True)),
    variants={"theta": {"rope_parameters": mrope(1e4, mrope_interleaved=True)}},
    embedding_std=TIED_STD, vision=VISION,
    keys={"rope.dimension_sections": [8, 12, 12, 0], "n_deepstack_layers": 1},
)

QWEN3VLMOE = Model(
    "qwen3vlmoe", "qwen3vlmoe", "qwen3_vl_moe", "Qwen3VLMoeConfig", "Qwen3VLMoeForConditionalGeneration",
    small(moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1,
          rope_parameters=mrope(mrope_interleaved=True)),
    variants={"one expert": {"num_experts_per_tok": 1}}, vision=VISION,
    keys={"rope.dimension_sections": [8, 12, 12, 0], "n_deepstack_layers": 1,
          "expert_feed_forward_length": "moe_intermediate_size"},
)

# The shared expert is wider than the others and has a gate.
QWEN2MOE = Model(
    "qwen2moe", "qwen2moe", "qwen2_moe", "Qwen2MoeConfig", "Qwen2MoeForCausalLM",
    small(moe_intermediate_size=32, shared_expert_intermediate_size=64, num_experts=4, num_experts_per_tok=2,
          norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[], rope_parameters=rope(1e6)),
    variants={"weights renormalised": {"norm_topk_prob": True}, "one expert": {"num_experts_per_tok": 1}},
    keys={"expert_feed_forward_length": "moe_intermediate_size",
          "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    names={"mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
           "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"},
)

SEED_OSS = Model(
    "seed-oss", "seed_oss", "seed_oss", "SeedOssConfig", "SeedOssForCausalLM",
    small(attention_bias=True, attention_out_bias=False, mlp_bias=False, rope_parameters=rope(1e6)),
    variants={"theta": {"rope_parameters": rope()}},
    names={"post_attention_layernorm": "post_attention_norm"},
)

# --- Llama's ----------------------------------------------------------------------------------------------------------

SMOLLM3 = Model(
    "smollm3", "smollm3", "smollm3", "SmolLM3Config", "SmolLM3ForCausalLM",
    small(num_hidden_layers=4, tie_word_embeddings=True, no_rope_layer_interval=4, use_sliding_window=False,
          rope_parameters=rope(1e6)),
    variants={"all layers rotated": {"no_rope_layers": [1, 1, 1, 1]}},
    embedding_std=TIED_STD, keys=LLAMAS_KEYS, neighbours=True,
)

INTERNLM2 = Model(
    "internlm2", "internlm2", "llama", "LlamaConfig", "LlamaForCausalLM", small(rope_parameters=rope(1e6)),
    variants={"theta": {"rope_parameters": rope()}}, keys=LLAMAS_KEYS, neighbours=True, without_class=True,
)

EXAONE = Model(
    "exaone", "exaone", "llama", "LlamaConfig", "LlamaForCausalLM",
    small(rope_parameters=rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                               original_max_position_embeddings=128)),
    variants={"no factors": {"rope_parameters": rope()}}, keys=LLAMAS_KEYS, without_class=True,
)

ARCEE = Model(
    "arcee", "arcee", "arcee", "ArceeConfig", "ArceeForCausalLM", small(intermediate_size=64, hidden_act="relu2"),
    variants={"another activation": {"hidden_act": "relu"}}, keys=LLAMAS_KEYS, neighbours=True,
)

# MiniCPM computes as Granite does, by other names. Its older files have no key for the factors.
MINICPM = Model(
    "minicpm", "minicpm", "granite", "GraniteConfig", "GraniteForCausalLM",
    small(tie_word_embeddings=True, embedding_multiplier=12.0, logits_scaling=32 / 256,
          residual_multiplier=1.4 / 2**0.5, attention_multiplier=64**-0.5),
    variants={
        "embeddings not scaled": {"embedding_multiplier": 1.0}, "logits not scaled": {"logits_scaling": 1.0},
        "residuals not scaled": {"residual_multiplier": 0.3},
    },
    embedding_std=0.04, keys=LLAMAS_KEYS, neighbours=True, without_class=True,
)

GRANITEMOE = Model(
    "granitemoe", "granitemoe", "granitemoeshared", "GraniteMoeSharedConfig", "GraniteMoeSharedForCausalLM",
    small(tie_word_embeddings=True, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=32,
          embedding_multiplier=6.0, logits_scaling=4.0, residual_multiplier=0.4, attention_multiplier=0.07),
    variants={
        "residuals not scaled": {"residual_multiplier": 1.0}, "one expert": {"num_experts_per_tok": 1},
        "scores scaled as usual": {"attention_multiplier": 64**-0.5},
    },
    embedding_std=0.08, neighbours=True,
    keys=LLAMAS_KEYS | {
        "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
        "expert_shared_feed_forward_length": "shared_intermediate_size"},
    names={"block_sparse_moe.router": "ffn_gate_inp", "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
           "shared_mlp.output_linear": "ffn_down_shexp"},
)

ERNIE = Model(
    "ernie4-5", "ernie4_5", "ernie4_5", "Ernie4_5Config", "Ernie4_5ForCausalLM",
    small(tie_word_embeddings=True, rope_parameters=rope(5e5), use_bias=False),
    variants={"theta": {"rope_parameters": rope()}}, embedding_std=TIED_STD, keys=LLAMAS_KEYS,
)

GLM4 = Model(
    "glm4", "glm4", "glm4", "Glm4Config", "Glm4ForCausalLM",
    small(attention_bias=True, rope_parameters=rope(partial_rotary_factor=0.5)),
    variants={"all channels rotated": {"rope_parameters": rope(partial_rotary_factor=1.0)}},
    keys={"rope.dimension_count": 32},
    names={"post_self_attn_layernorm": "post_attention_norm", "post_attention_layernorm": "ffn_norm",
           "post_mlp_layernorm": "post_ffw_norm"},
)

# The text of GLM-4.1V and 4.6V Flash, whose rotations have three places.
GLM4V = Model(
    "glm4v", "glm4", "glm4v", "Glm4vConfig", "Glm4vForConditionalGeneration",
    without(small(hidden_size=64, num_attention_heads=1, rope_parameters=rope(mrope_section=[4, 6, 6], partial_rotary_factor=0.5)), "head_dim"),
    variants={"theta": {"rope_parameters": rope(1e6, mrope_section=[4, 6, 6], partial_rotary_factor=0.5)}},
    keys={"rope.dimension_count": 32, "rope.dimension_sections": [4, 6, 6, 0]}, names=GLM4.names, halves=32,
    vision=VISION | {"image_size": 4, "out_hidden_size": 64},
)

GEMMA = Model(
    "gemma", "gemma", "gemma", "GemmaConfig", "GemmaForCausalLM",
    small(tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-6),
    variants={"SiLU": {"hidden_act": "silu"}}, norm_shift=1.0, embedding_std=0.15, keys={"vocab_size": VOCABULARY},
)

# --- mixtures ---------------------------------------------------------------------------------------------------------

OLMOE = Model(
    "olmoe", "olmoe", "olmoe", "OlmoeConfig", "OlmoeForCausalLM",
    without(small(hidden_size=128, num_hidden_layers=1, num_experts=3, num_experts_per_tok=2, norm_topk_prob=False,
                  clip_qkv=None, tie_word_embeddings=True), "head_dim"),
    variants={"weights renormalised": {"norm_topk_prob": True}, "one expert": {"num_experts_per_tok": 1}},
    embedding_std=TIED_STD, keys={"expert_feed_forward_length": "intermediate_size"},
)

# Experts stand in every second layer after the first.
ERNIE_MOE = Model(
    "ernie4-5-moe", "ernie4_5-moe", "ernie4_5_moe", "Ernie4_5_MoeConfig", "Ernie4_5_MoeForCausalLM",
    small(tie_word_embeddings=True, num_hidden_layers=4, moe_intermediate_size=32, moe_k=2, moe_num_experts=4,
          moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=2, use_bias=False,
          rope_parameters=rope(5e5)),
    variants={"one expert": {"moe_k": 1}, "theta": {"rope_parameters": rope()}},
    embedding_std=TIED_STD,
    keys=LLAMAS_KEYS | {
        "expert_count": "moe_num_experts", "expert_used_count": "moe_k",
        "expert_feed_forward_length": "moe_intermediate_size", "expert_shared_count": "moe_num_shared_experts",
        "expert_shared_feed_forward_length": 64, "leading_dense_block_count": "moe_layer_start_index",
        "interleave_moe_layer_step": "moe_layer_interval"},
    names={"mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias"},
)


def composed(norm_topk_prob, **changes):
    return small(moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, n_shared_experts=2,
                 norm_topk_prob=norm_topk_prob, **changes)


DEEPSEEK = Model(
    "deepseek", "deepseek", "composed", "LlamaWithExpertsConfig", "LlamaWithExpertsForCausalLM",
    composed(False, first_k_dense_replace=1),
    variants={"weights renormalised": {"norm_topk_prob": True}, "one expert": {"num_experts_per_tok": 1}},
    keys=LLAMAS_KEYS | {
        "expert_feed_forward_length": "moe_intermediate_size", "expert_shared_count": "n_shared_experts",
        "leading_dense_block_count": "first_k_dense_replace", "expert_weights_scale": 1.0},
    neighbours=True, without_class=True,
)

BAILINGMOE = Model(
    "bailingmoe", "bailingmoe", "composed", "LlamaWithExpertsConfig", "LlamaWithExpertsForCausalLM",
    composed(True, first_k_dense_replace=0),
    variants={"weights not renormalised": {"norm_topk_prob": False}, "one expert": {"num_experts_per_tok": 1}},
    keys=LLAMAS_KEYS | {
        "expert_feed_forward_length": "moe_intermediate_size", "expert_shared_count": "n_shared_experts",
        "leading_dense_block_count": "first_k_dense_replace", "expert_weights_scale": 1.0,
        "expert_weights_norm": "norm_topk_prob"},
    neighbours=True, without_class=True,
)


def dots1(**changes):
    return small(moe_intermediate_size=32, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1,
                 topk_group=1, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5,
                 rope_parameters=rope(1e6), sliding_window=None) | changes


DOTS1_KEYS = {
    "expert_feed_forward_length": "moe_intermediate_size", "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace", "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob", "expert_gating_func": SIGMOID}
OF_SIGMOIDS = {"experts not scaled": {"routed_scaling_factor": 1.0}, "weights not renormalised": {"norm_topk_prob": False},
               "one expert": {"num_experts_per_tok": 1}}

DOTS1 = Model("dots1", "dots1", "dots1", "Dots1Config", "Dots1ForCausalLM", dots1(), variants=OF_SIGMOIDS,
              keys=DOTS1_KEYS)

# Ling 2 computes as dots.llm1 does, with experts in groups; its files have q, k and v in one.
BAILINGMOE2 = Model(
    "bailingmoe2", "bailingmoe2", "dots1", "Dots1Config", "Dots1ForCausalLM",
    dots1(n_routed_experts=8, n_group=4, topk_group=2),
    variants={"no groups": {"n_group": 1, "topk_group": 1}, "experts not scaled": {"routed_scaling_factor": 1.0}},
    keys=DOTS1_KEYS | {"expert_group_count": "n_group", "expert_group_used_count": "topk_group"}, without_class=True,
)

HUNYUAN_NORMS = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}

HUNYUAN_DENSE = Model(
    "hunyuan-dense", "hunyuan-dense", "hunyuan_v1_dense", "HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM",
    small(tie_word_embeddings=True), variants={"theta": {"rope_parameters": rope(1e6)}}, embedding_std=TIED_STD,
    keys={"vocab_size": VOCABULARY}, names=HUNYUAN_NORMS,
)

HUNYUAN_MOE = Model(
    "hunyuan-moe", "hunyuan-moe", "hunyuan_v1_moe", "HunYuanMoEV1Config", "HunYuanMoEV1ForCausalLM",
    small(num_experts=4, moe_topk=2), variants={"one expert": {"moe_topk": 1}},
    keys={"expert_used_count": "moe_topk", "expert_feed_forward_length": "intermediate_size",
          "expert_shared_feed_forward_length": "intermediate_size"},
    names=HUNYUAN_NORMS | {
        "mlp.gate.wg": "ffn_gate_inp", "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
        "mlp.shared_mlp.up_proj": "ffn_up_shexp", "mlp.shared_mlp.down_proj": "ffn_down_shexp"},
)

HY_V3 = Model(
    "hy-v3", "hy_v3", "hy_v3", "HYV3Config", "HYV3ForCausalLM",
    small(moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, num_shared_experts=1,
          router_scaling_factor=2.5, mlp_layer_types=["dense", "sparse"], rope_parameters=rope(1e6)),
    variants={"experts not scaled": {"router_scaling_factor": 1.0}, "one expert": {"num_experts_per_tok": 1}},
    keys={"expert_feed_forward_length": "moe_intermediate_size", "expert_shared_feed_forward_length": 32,
          "expert_gating_func": SIGMOID, "expert_weights_scale": "router_scaling_factor", "expert_weights_norm": True},
    names={"mlp.e_score_correction_bias": "exp_probs_b"},
)


def windows(period, layers):
    return [LOCAL if (i + 1) % period else GLOBAL for i in range(layers)]


# Layers that see all are not rotated.
EXAONE_MOE = Model(
    "exaone-moe", "exaone-moe", "exaone_moe", "ExaoneMoeConfig", "ExaoneMoeForCausalLM",
    small(moe_intermediate_size=32, num_hidden_layers=3, num_experts=4, num_experts_per_tok=2, num_shared_experts=1,
          n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=2,
          sliding_window=16, layer_types=[LOCAL, GLOBAL, GLOBAL], rope_parameters=rope(1e6)),
    variants={"window of 17": {"sliding_window": 17}, "local layers elsewhere": {"layer_types": [GLOBAL, LOCAL, LOCAL]},
              "experts not scaled": {"routed_scaling_factor": 1.0}, "weights not renormalised": {"norm_topk_prob": False}},
    keys={"attention.sliding_window": "sliding_window", "attention.sliding_window_pattern": [True, False, False],
          "expert_feed_forward_length": "moe_intermediate_size", "expert_shared_count": "num_shared_experts",
          "leading_dense_block_count": "first_k_dense_replace", "expert_weights_scale": "routed_scaling_factor",
          "expert_weights_norm": "norm_topk_prob", "expert_gating_func": SIGMOID},
)

# --- norms of results alone -------------------------------------------------------------------------------------------

RESULT_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}

EXAONE4 = Model(
    "exaone4", "exaone4", "exaone4", "Exaone4Config", "Exaone4ForCausalLM",
    small(num_hidden_layers=4, sliding_window=16, sliding_window_pattern=4, layer_types=windows(4, 4),
          rope_parameters=rope(1e6)),
    variants={"window of 17": {"sliding_window": 17},
              "local layers elsewhere": {"layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL]}},
    keys={"attention.sliding_window": "sliding_window", "attention.sliding_window_pattern": 4}, names=RESULT_NORMS,
)

OLMO2 = Model(
    "olmo2", "olmo2", "olmo2", "Olmo2Config", "Olmo2ForCausalLM",
    without(small(hidden_size=128, tie_word_embeddings=True, rope_parameters=rope(5e5)), "head_dim"),
    variants={"theta": {"rope_parameters": rope()}}, embedding_std=TIED_STD, keys={"vocab_size": VOCABULARY},
    names=RESULT_NORMS,
)


def olmo3_rope(**changes):
    stretched = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 8.0, "beta_slow": 0.5,
                 "original_max_position_embeddings": 64} | changes
    return {LOCAL: rope(1e4), GLOBAL: rope(1e4, **stretched)}


# OLMo 3 goes by the same name. Only layers that see all have their rotation stretched.
OLMO3 = Model(
    "olmo3", "olmo2", "olmo3", "Olmo3Config", "Olmo3ForCausalLM",
    without(small(hidden_size=64, num_attention_heads=1, num_hidden_layers=4, sliding_window=16,
                  layer_types=windows(4, 4), rope_parameters=olmo3_rope()), "head_dim"),
    variants={"no YaRN": {"rope_parameters": {LOCAL: rope(1e4), GLOBAL: rope(1e4)}},
              "window of 17": {"sliding_window": 17},
              "local layers elsewhere": {"layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL]}},
    keys={"vocab_size": VOCABULARY, "attention.sliding_window": "sliding_window",
          "attention.sliding_window_pattern": 4},
    names=RESULT_NORMS,
)

# --- LayerNorm --------------------------------------------------------------------------------------------------------

NORM_BIASES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def layer_norm(**changes):
    return without(small(layer_norm_eps=1e-5, **changes), "rms_norm_eps")


# Attention and feed-forward read the same norm, and both results are added.
COMMAND_R = Model(
    "command-r", "command-r", "cohere", "CohereConfig", "CohereForCausalLM",
    layer_norm(tie_word_embeddings=True, logit_scale=0.25, use_qk_norm=False, rope_parameters=rope(1e6)),
    variants={"logits not scaled": {"logit_scale": 1.0}, "theta": {"rope_parameters": rope()}}, embedding_std=TIED_STD,
    keys={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
)

COHERE2 = Model(
    "cohere2", "cohere2", "cohere2", "Cohere2Config", "Cohere2ForCausalLM",
    layer_norm(tie_word_embeddings=True, num_hidden_layers=4, logit_scale=0.25, sliding_window=16,
               layer_types=windows(4, 4)),
    variants={"logits not scaled": {"logit_scale": 1.0}, "window of 17": {"sliding_window": 17},
              "local layers elsewhere": {"layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL]}},
    embedding_std=TIED_STD,
    keys={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale",
          "attention.sliding_window": "sliding_window", "rope.dimension_count": 64},
)


def stablelm(**changes):
    return without(layer_norm(hidden_size=64, num_attention_heads=1, use_qkv_bias=True, qk_layernorm=False,
                              use_parallel_residual=False, rope_parameters=rope(partial_rotary_factor=0.25)),
                   "head_dim") | changes


STABLELM_KEYS = {"attention.layer_norm_epsilon": "layer_norm_eps", "rope.dimension_count": 16,
                 "use_parallel_residual": "use_parallel_residual"}

STABLELM = Model(
    "stablelm", "stablelm", "stablelm", "StableLmConfig", "StableLmForCausalLM", stablelm(),
    variants={"all channels rotated": {"rope_parameters": rope(partial_rotary_factor=1.0)}}, keys=STABLELM_KEYS,
    names=NORM_BIASES,
)

STABLELM_PARALLEL = Model(
    "stablelm-parallel", "stablelm", "stablelm", "StableLmConfig", "StableLmForCausalLM",
    stablelm(use_parallel_residual=True, use_qkv_bias=False),
    variants={"all channels rotated": {"rope_parameters": rope(partial_rotary_factor=1.0)}}, keys=STABLELM_KEYS,
    names=NORM_BIASES,
)

STARCODER2 = Model(
    "starcoder2", "starcoder2", "starcoder2", "Starcoder2Config", "Starcoder2ForCausalLM",
    without(small(hidden_size=64, num_attention_heads=2, intermediate_size=64, tie_word_embeddings=False, use_bias=True,
                  norm_epsilon=1e-5, hidden_act="gelu_pytorch_tanh", sliding_window=None, rope_parameters=rope(1e5)),
            "rms_norm_eps"),
    variants={"theta": {"rope_parameters": rope()}}, gains={"bias": 0.3},
    keys={"attention.layer_norm_epsilon": "norm_epsilon"},
    names=NORM_BIASES | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
)

# Norms' weights count from 1, their biases from 0.
NEMOTRON = Model(
    "nemotron", "nemotron", "nemotron", "NemotronConfig", "NemotronForCausalLM",
    without(small(norm_eps=1e-5, hidden_act="relu2", rope_parameters=rope(partial_rotary_factor=0.5)), "rms_norm_eps"),
    variants={"all channels rotated": {"rope_parameters": rope(partial_rotary_factor=1.0)}}, norm_shift=1.0,
    keys={"attention.layer_norm_epsilon": "norm_eps", "rope.dimension_count": 32, "vocab_size": VOCABULARY},
    names=NORM_BIASES,
)

# --- others -----------------------------------------------------------------------------------------------------------

# The first layer has a window.
GEMMA2 = Model(
    "gemma2", "gemma2", "gemma2", "Gemma2Config", "Gemma2ForCausalLM",
    small(num_hidden_layers=3, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
          sliding_window=16, layer_types=[LOCAL, GLOBAL, LOCAL], query_pre_attn_scalar=64, attn_logit_softcapping=3.0,
          final_logit_softcapping=30.0),
    variants={"scores not capped": {"attn_logit_softcapping": None}, "logits not capped": {"final_logit_softcapping": None},
              "window of 17": {"sliding_window": 17}, "local layers elsewhere": {"layer_types": [GLOBAL, LOCAL, GLOBAL]}},
    norm_shift=1.0, embedding_std=0.15, logit_std=8.0,
    keys={"attention.sliding_window": "sliding_window", "attn_logit_softcapping": "attn_logit_softcapping",
          "final_logit_softcapping": "final_logit_softcapping"},
    names={"post_attention_layernorm": "post_attention_norm"},
)

CHATGLM = Model(
    "chatglm", "chatglm", "glm", "GlmConfig", "GlmForCausalLM",
    small(attention_bias=True, rope_parameters=rope(partial_rotary_factor=0.5)),
    variants={"all channels rotated": {"rope_parameters": rope(partial_rotary_factor=1.0)}},
    keys={"rope.dimension_count": 32},
)


# The head has a bias, too.
PHI2 = Model(
    "phi2", "phi2", "phi", "PhiConfig", "PhiForCausalLM",
    without(layer_norm(hidden_size=128, num_hidden_layers=1, hidden_act="gelu_new", qk_layernorm=False,
                       rope_parameters=rope(partial_rotary_factor=0.5)), "head_dim"),
    variants={"all channels rotated": {"rope_parameters": rope(partial_rotary_factor=1.0)},
              "another activation": {"hidden_act": "relu"}},
    keys={"attention.layer_norm_epsilon": "layer_norm_eps", "rope.dimension_count": 32},
    names={"input_layernorm": "attn_norm", "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
)

# Orion computes as StableLM does, with all channels rotated.
ORION = Model(
    "orion", "orion", "stablelm", "StableLmConfig", "StableLmForCausalLM",
    stablelm(use_qkv_bias=False, rope_parameters=rope(partial_rotary_factor=1.0)),
    variants={"half of the channels rotated": {"rope_parameters": rope(partial_rotary_factor=0.5)}},
    keys={"attention.layer_norm_epsilon": "layer_norm_eps"}, names=NORM_BIASES, without_class=True,
)

XVERSE = Model(
    "xverse", "xverse", "llama", "LlamaConfig", "LlamaForCausalLM", small(rope_parameters=rope(1e5)),
    variants={"theta": {"rope_parameters": rope()}}, keys=LLAMAS_KEYS, neighbours=True, without_class=True,
)

BAICHUAN = Model(
    "baichuan", "baichuan", "llama", "LlamaConfig", "LlamaForCausalLM", small(rope_parameters=rope(1e4)),
    variants={"theta": {"rope_parameters": rope(1e6)}}, keys=LLAMAS_KEYS, neighbours=True, without_class=True,
)

# Layers that see all are not rotated; a gate from a matrix of its own multiplies what attention gives.
AFMOE = Model(
    "afmoe", "afmoe", "afmoe", "AfmoeConfig", "AfmoeForCausalLM",
    small(num_hidden_layers=4, moe_intermediate_size=32, num_experts=3, num_experts_per_tok=2, num_shared_experts=1,
          num_dense_layers=1, route_scale=2.5, mup_enabled=True, sliding_window=16, layer_types=windows(4, 4),
          global_attn_every_n_layers=4),
    variants={"experts not scaled": {"route_scale": 1.0}, "one expert": {"num_experts_per_tok": 1},
              "window of 17": {"sliding_window": 17}, "embeddings not scaled": {"mup_enabled": False},
              "local layers elsewhere": {"layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL]}},
    embedding_std=0.15,
    keys={"attention.sliding_window": "sliding_window", "leading_dense_block_count": "num_dense_layers",
          "expert_feed_forward_length": "moe_intermediate_size", "expert_shared_count": "num_shared_experts",
          "expert_weights_scale": "route_scale", "expert_weights_norm": True, "expert_gating_func": SIGMOID,
          "vocab_size": VOCABULARY},
    names={"self_attn.gate_proj": "attn_gate", "post_attention_layernorm": "post_attention_norm",
           "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm", "mlp.router.gate": "ffn_gate_inp",
           "mlp.expert_bias": "exp_probs_b.bias"},
)


def laguna_rope(local=rope(1e4), partial=0.5, **changes):
    whole = rope(1e6, rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=16.0, beta_slow=1.0)
    return {GLOBAL: whole | {"partial_rotary_factor": partial} | changes, LOCAL: local | {"partial_rotary_factor": 1.0}}


LAGUNA_KEYS = {"leading_dense_block_count": 1, "expert_feed_forward_length": "moe_intermediate_size",
               "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
               "expert_weights_scale": "moe_routed_scaling_factor", "expert_weights_norm": True,
               "expert_gating_func": SIGMOID, "vocab_size": VOCABULARY}


def laguna(**changes):
    layers = changes.get("num_hidden_layers", 4)
    return small(**({"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "num_experts": 3,
                     "num_experts_per_tok": 2, "moe_routed_scaling_factor": 2.5, "sliding_window": 16,
                     "mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1)} | changes))


# A number for each head, through a softplus, multiplies what attention gives. The first layer of four sees all, with
# fewer heads, half of whose channels rotate by YaRN. The file does not say which layers do, as published ones.
LAGUNA = Model(
    "laguna", "laguna", "laguna", "LagunaConfig", "LagunaForCausalLM",
    laguna(num_hidden_layers=5, layer_types=[GLOBAL, LOCAL, LOCAL, LOCAL, GLOBAL], gating=True,
           num_attention_heads_per_layer=[1, 2, 2, 2, 1], rope_parameters=laguna_rope()),
    variants={"experts not scaled": {"moe_routed_scaling_factor": 1.0}, "one expert": {"num_experts_per_tok": 1},
              "window of 17": {"sliding_window": 17}, "no YaRN": {"rope_parameters": laguna_rope(rope_type="default")},
              "all channels rotated": {"rope_parameters": laguna_rope(partial=1.0)},
              "one theta": {"rope_parameters": laguna_rope(local=rope(1e6))},
              "local layers elsewhere": {"layer_types": [GLOBAL, LOCAL, LOCAL, GLOBAL, LOCAL],
                                         "num_attention_heads_per_layer": [1, 2, 2, 2, 1]}},
    keys=LAGUNA_KEYS | {"attention.head_count": "num_attention_heads_per_layer", "attention.sliding_window": "sliding_window",
                        "rope.dimension_count": 32, "rope.dimension_count_swa": 64},
)

# M.1: a gate for each channel, and no windows.
LAGUNA_CHANNELS = Model(
    "laguna-channels", "laguna", "laguna", "LagunaConfig", "LagunaForCausalLM",
    laguna(num_hidden_layers=2, gating="per-element", rope_parameters=laguna_rope(partial=1.0)),
    variants={"experts not scaled": {"moe_routed_scaling_factor": 1.0},
              "no YaRN": {"rope_parameters": laguna_rope(partial=1.0, rope_type="default")}},
    keys=LAGUNA_KEYS | {"rope.dimension_count": 64, "attention.gate_per_head": False},
)


MODELS = [QWEN2VL, QWEN3VL, QWEN3VLMOE, QWEN2MOE, SEED_OSS, SMOLLM3, INTERNLM2, EXAONE, ARCEE, MINICPM, GRANITEMOE, ERNIE,
          GLM4, GLM4V, GEMMA, OLMOE, ERNIE_MOE, DEEPSEEK, BAILINGMOE, DOTS1, BAILINGMOE2, HUNYUAN_DENSE, HUNYUAN_MOE, HY_V3,
          EXAONE_MOE, EXAONE4, OLMO2, OLMO3, COMMAND_R, COHERE2, STABLELM, STABLELM_PARALLEL, STARCODER2, NEMOTRON, GEMMA2,
          CHATGLM, PHI2, ORION, XVERSE, BAICHUAN, AFMOE,
          LAGUNA, LAGUNA_CHANNELS]
