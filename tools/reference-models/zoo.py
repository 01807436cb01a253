"""The reference checkpoints: one tiny configuration for each way in which a model may differ. Needs Python alone.

Each has what tells its architecture apart: windows that 80 tokens pass, scaled and partial rotations that 80 positions
feel, shared and absent matrices, biases that change which expert is chosen. `variants` are the same checkpoint read
wrongly, one point at a time; make.py holds each of them to another answer.
"""

from older import MODELS as OLDER
from relatives import MODELS as RELATIVES
from shapes import ANSWER, PROMPT, TIED_STD, VOCABULARY, Model, Reference, config, rope, without  # noqa: F401

LLAMA = Model(
    "llama", "llama", "llama", "LlamaConfig", "LlamaForCausalLM",
    without(config(hidden_size=128, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1), "head_dim"),
    variants={"theta": {"rope_parameters": rope(5e5)}},
)

# Llama 3.1 and later: rope_freqs.weight. Wavelengths of 6 to 20,000 positions around a context of 128.
LLAMA3_ROPE = rope(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128
)
LLAMA3 = Model(
    "llama3", "llama", "llama", "LlamaConfig", "LlamaForCausalLM",
    config(tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    variants={"no factors": {"rope_parameters": rope()}},
    embedding_std=TIED_STD,
)

MIXTRAL = Model(
    "mixtral", "llama", "mixtral", "MixtralConfig", "MixtralForCausalLM",
    config(intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, rope_parameters=rope(1e6)),
    variants={"one expert": {"num_experts_per_tok": 1}},
)

# Mistral Nemo: heads wider than width / heads.
NEMO = Model(
    "mistral-nemo", "llama", "mistral", "MistralConfig", "MistralForCausalLM",
    config(sliding_window=None, rope_parameters=rope(1e6)),
    variants={"theta": {"rope_parameters": rope()}},
)

QWEN2 = Model(
    "qwen2", "qwen2", "qwen2", "Qwen2Config", "Qwen2ForCausalLM",
    without(config(tie_word_embeddings=True, hidden_size=128, num_attention_heads=2, num_key_value_heads=1,
                   rope_parameters=rope(1e6)), "head_dim"),
    variants={"theta": {"rope_parameters": rope()}},
    embedding_std=TIED_STD,
)

QWEN3 = Model(
    "qwen3", "qwen3", "qwen3", "Qwen3Config", "Qwen3ForCausalLM",
    config(tie_word_embeddings=True, rope_parameters=rope(1e6)),
    variants={"theta": {"rope_parameters": rope()}},
    embedding_std=TIED_STD,
)

QWEN3MOE = Model(
    "qwen3moe", "qwen3moe", "qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM",
    config(moe_intermediate_size=32, num_experts=6, num_experts_per_tok=3, norm_topk_prob=True,
           decoder_sparse_step=1, mlp_only_layers=[], rope_parameters=rope(1e6)),
    variants={"weights not renormalised": {"norm_topk_prob": False}, "two experts": {"num_experts_per_tok": 2}},
)

# Llama 4: three layers that rotate and see their chunk of positions, then one that does neither; the second of two
# layers is a mixture. Its temperature grows from position 7 on.
LLAMA4 = Model(
    "llama4", "llama4", "llama4", "Llama4TextConfig", "Llama4ForCausalLM",
    config(num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
           intermediate_size_mlp=48, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
           use_qk_norm=True, attention_chunk_size=24, attn_temperature_tuning=True, floor_scale=8, attn_scale=1.0,
           no_rope_layer_interval=4, rope_parameters=rope(5e5)),
    variants={"chunks of 25": {"attention_chunk_size": 25}, "no chunks": {"attention_chunk_size": 512},
              "no norms of heads": {"use_qk_norm": False}, "no temperature": {"attn_temperature_tuning": False},
              "temperature of periods of 9": {"floor_scale": 9}, "all layers rotated": {"no_rope_layer_interval": 5}},
    keys={"feed_forward_length": "intermediate_size_mlp", "expert_feed_forward_length": "intermediate_size",
          "interleave_moe_layer_step": "interleave_moe_layer_step", "attention.sliding_window": "attention_chunk_size",
          "attention.temperature_scale": "attn_scale", "attention.temperature_length": "floor_scale",
          "vocab_size": "vocab_size"},
    names={"feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
           "feed_forward.router": "ffn_gate_inp", "feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
           "feed_forward.shared_expert.up_proj": "ffn_up_shexp", "feed_forward.shared_expert.down_proj": "ffn_down_shexp"},
)

LOCAL, GLOBAL = "sliding_attention", "full_attention"


def gemma3_rope(local=rope(1e4), factor=8.0):
    return {LOCAL: local, GLOBAL: rope(1e6, rope_type="linear", factor=factor)}


GEMMA3 = Model(
    "gemma3", "gemma3", "gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM",
    config(num_hidden_layers=7, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
           tie_word_embeddings=True, layer_types=[LOCAL] * 5 + [GLOBAL, LOCAL], sliding_window=16,
           query_pre_attn_scalar=64, rope_parameters=gemma3_rope(), hidden_activation="gelu_pytorch_tanh",
           attn_logit_softcapping=None, final_logit_softcapping=None, rms_norm_eps=1e-6),
    variants={
        "no window": {"sliding_window": 512}, "window of 17": {"sliding_window": 17},
        "one theta": {"rope_parameters": gemma3_rope(local=rope(1e6))},
        "no linear factor": {"rope_parameters": gemma3_rope(factor=1.0)},
        "local layers elsewhere": {"layer_types": [LOCAL] * 4 + [GLOBAL, LOCAL, LOCAL]},
    },
    norm_shift=1.0, embedding_std=0.15,
)


def gemma4_rope(partial=0.25, theta=1e6):
    return {LOCAL: rope(1e4), GLOBAL: rope(theta, rope_type="proportional", partial_rotary_factor=partial)}


# Gemma 4 E2B and E4B: per-layer embeddings, the last layers without keys and values of their own, wider for it.
GEMMA4 = Model(
    "gemma4", "gemma4", "gemma4", "Gemma4TextConfig", "Gemma4ForCausalLM",
    config(num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
           tie_word_embeddings=True, layer_types=[LOCAL, LOCAL, GLOBAL] * 2, sliding_window=16, global_head_dim=128,
           num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=8,
           vocab_size_per_layer_input=VOCABULARY, attention_k_eq_v=False, final_logit_softcapping=30.0,
           rope_parameters=gemma4_rope(), hidden_activation="gelu_pytorch_tanh", enable_moe_block=False,
           rms_norm_eps=1e-6),
    variants={
        "no window": {"sliding_window": 512}, "no soft cap": {"final_logit_softcapping": None},
        "all channels rotated": {"rope_parameters": gemma4_rope(partial=1.0)},
        "theta": {"rope_parameters": gemma4_rope(theta=1e4)},
    },
    embedding_std=0.15, logit_std=8.0, gains={"q_norm": 0.4},  # scores are not divided by the root of a head's width
)

# Gemma 3n: several residual streams, a learned residual beside attention, gates that keep a few channels in the first
# layers. Their multiple of the deviation is that of 70 %.
GEMMA3N = Model(
    "gemma3n", "gemma3n", "gemma3n", "Gemma3nTextConfig", "Gemma3nForCausalLM",
    config(num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1, intermediate_size=[32, 32, 48, 32, 32, 48],
           tie_word_embeddings=True, layer_types=[LOCAL, LOCAL, GLOBAL] * 2, sliding_window=16, num_kv_shared_layers=3,
           hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCABULARY, altup_num_inputs=4, altup_active_idx=0,
           laurel_rank=8, activation_sparsity_pattern=[0.7, 0.7, 0.0, 0.0, 0.0, 0.0], final_logit_softcapping=30.0,
           rope_parameters={LOCAL: rope(1e4), GLOBAL: rope(1e6)}, hidden_activation="gelu_pytorch_tanh",
           rms_norm_eps=1e-6),
    variants={
        "no window": {"sliding_window": 512}, "no soft cap": {"final_logit_softcapping": 1e4},
        "one theta": {"rope_parameters": {LOCAL: rope(1e6), GLOBAL: rope(1e6)}},
        "gates keep all": {"activation_sparsity_pattern": [0.0] * 6},
        "gates keep half": {"activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]},
        "another stream is worked on": {"altup_active_idx": 1}, "no scale": {"altup_correct_scale": False},
    },
    embedding_std=0.15, logit_std=8.0, gains={"q_norm": 0.4, "modality_router": 16.0, "correct_output_scale": 4.0},
    keys={"attention.sliding_window": "sliding_window", "attention.sliding_window_pattern": [True, True, False] * 2,
          "attention.shared_kv_layers": "num_kv_shared_layers", "altup.num_inputs": "altup_num_inputs",
          "altup.active_idx": "altup_active_idx", "final_logit_softcapping": "final_logit_softcapping",
          "embedding_length_per_layer_input": "hidden_size_per_layer_input",
          "activation_sparsity_scale": [0.52440047, 0.52440047] + [float("-inf")] * 4},
    names={"altup.router_norm": "altup_router_norm", "altup.modality_router": "altup_router",
           "altup.prediction_coefs": "altup_predict_coef", "altup.correction_coefs": "altup_correct_coef",
           "altup.correct_output_scale": "altup_correct_scale.weight", "laurel.linear_left": "laurel_l",
           "laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm"},
)

# Gemma 4 26B-A4B: experts beside the dense feed-forward; values of global layers are their keys.
GEMMA4_MOE = Model(
    "gemma4-moe", "gemma4", "gemma4", "Gemma4TextConfig", "Gemma4ForCausalLM",
    config(num_attention_heads=2, num_key_value_heads=2, intermediate_size=32,
           tie_word_embeddings=True, layer_types=[LOCAL, GLOBAL], sliding_window=16, global_head_dim=128,
           num_global_key_value_heads=1, attention_k_eq_v=True, num_kv_shared_layers=0, use_double_wide_mlp=False,
           hidden_size_per_layer_input=0, vocab_size_per_layer_input=VOCABULARY, final_logit_softcapping=None,
           enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32,
           rope_parameters=gemma4_rope(), hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6),
    variants={"no window": {"sliding_window": 512}, "one expert": {"top_k_experts": 1}},
    embedding_std=0.15, gains={"q_norm": 0.4, "router.proj": 32**0.5},  # the router's input is divided by that
)


# gpt-oss computes YaRN's ramp from bounds that are not rounded. Those of 64 channels, a base of 150,000, a context of
# 509 and betas of 36 and 1 are 2.18 and 11.80: so near to 2 and 12 that a program that rounds them may still give the
# same greedy tokens.
def gpt_oss_rope(**changes):
    return rope(1.5e5, rope_type="yarn", factor=32.0, beta_fast=36.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=509) | changes


GPT_OSS = Model(
    "gpt-oss", "gpt-oss", "gpt_oss", "GptOssConfig", "GptOssForCausalLM",
    config(head_dim=64, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
           sliding_window=12, layer_types=[LOCAL, GLOBAL], attention_bias=True, max_position_embeddings=32 * 509,
           rope_parameters=gpt_oss_rope()),
    variants={
        "no window": {"sliding_window": 512}, "odd layers local": {"layer_types": [GLOBAL, LOCAL]},
        "no YaRN": {"rope_parameters": rope(1.5e5)},
        "bounds of YaRN's ramp rounded": {"rope_parameters": gpt_oss_rope(truncate=True)},
        "YaRN without its factor on the scores": {"rope_parameters": gpt_oss_rope(attention_factor=1.0)},
    },
    gains={"gate_up_proj": 2.5, "experts.down_proj": 0.3}, mxfp4=True,  # so that gates reach their clamp of 7
)

GLM4MOE = Model(
    "glm4moe", "glm4moe", "glm4_moe", "Glm4MoeConfig", "Glm4MoeForCausalLM",
    config(moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
           first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, n_group=1, topk_group=1,
           attention_bias=True, use_qk_norm=True, num_mtp_layers=0, num_nextn_predict_layers=0,
           partial_rotary_factor=0.5,
           rope_parameters=rope(1e6, partial_rotary_factor=0.5)),
    variants={
        "all channels rotated": {"partial_rotary_factor": 1.0,
                                 "rope_parameters": rope(1e6, partial_rotary_factor=1.0)},
        "experts not scaled": {"routed_scaling_factor": 1.0}, "weights not renormalised": {"norm_topk_prob": False},
    },
)


# Ministral 3: YaRN's bounds are 3.77 and 14.44, rounded to 3 and 15; queries grow at positions 32 and 64.
def ministral3_rope(**changes):
    return rope(1e6, rope_type="yarn", type="yarn", factor=16.0, beta_fast=1.0, beta_slow=0.01, mscale=1.0,
                mscale_all_dim=1.0, llama_4_scaling_beta=0.5,
                original_max_position_embeddings=32) | changes


MISTRAL3 = Model(
    "mistral3", "mistral3", "ministral3", "Ministral3Config", "Ministral3ForCausalLM",
    config(sliding_window=None, rope_parameters=ministral3_rope()),
    variants={
        "one temperature": {"rope_parameters": ministral3_rope(llama_4_scaling_beta=0.0)},
        "YaRN with its factor on the scores": {"rope_parameters": ministral3_rope(mscale=0.0, mscale_all_dim=0.0)},
        "other bounds": {"rope_parameters": ministral3_rope(beta_fast=32.0, beta_slow=1.0)},
    },
)


# Phi-4 mini: 48 of 64 channels rotated. Up to a context of 256 the short factors hold, in a longer one the long ones.
PHI3_SHORT = [1 + i * i / 529 for i in range(24)]
PHI3_LONG = [1.5 + i * 6.5 / 23 for i in range(24)]


def phi3_rope(short=PHI3_SHORT, **changes):
    return rope(rope_type="longrope", short_factor=list(short), long_factor=PHI3_LONG,
                partial_rotary_factor=0.75) | changes


PHI3 = Model(
    "phi3", "phi3", "phi3", "Phi3Config", "Phi3ForCausalLM",
    without(config(hidden_size=128, num_attention_heads=2, num_key_value_heads=1, sliding_window=None, max_position_embeddings=1024,
                   original_max_position_embeddings=256, rope_parameters=phi3_rope()), "head_dim"),
    references=[Reference("phi3"), Reference("phi3-long", context=512, positions=300)],
    variants={
        "no short factors": {"rope_parameters": phi3_rope(short=[1.0] * 24)},
        "no factor on the scores": {"rope_parameters": phi3_rope(attention_factor=1.0)},
    },
)

GRANITE = Model(
    "granite", "granite", "granite", "GraniteConfig", "GraniteForCausalLM",
    without(config(tie_word_embeddings=True, hidden_size=128, num_attention_heads=2, num_key_value_heads=1,
                   embedding_multiplier=6.0, logits_scaling=4.0, residual_multiplier=0.4,
                   attention_multiplier=0.07), "head_dim"),
    variants={
        "embeddings not scaled": {"embedding_multiplier": 1.0}, "logits not scaled": {"logits_scaling": 1.0},
        "residuals not scaled": {"residual_multiplier": 1.0},
        "scores scaled as usual": {"attention_multiplier": 64**-0.5},
    },
    embedding_std=0.08,
)

MINIMAX_M2 = Model(
    "minimax-m2", "minimax-m2", "minimax_m2", "MiniMaxM2Config", "MiniMaxM2ForCausalLM",
    config(intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, rotary_dim=32,
           rope_parameters=rope(5e6, partial_rotary_factor=0.5)),
    variants={"all channels rotated": {"rotary_dim": 64, "rope_parameters": rope(5e6, partial_rotary_factor=1.0)}},
)

# MiniMax-M3: behind a dense layer, each KV head sees its own blocks of 64 tokens, of which the nearest is always one.
SPARSE = "minimax_m3_sparse"
MINIMAX_M3 = Model(
    "minimax-m3", "minimax-m3", "minimax_m3_vl", "MiniMaxM3VLTextConfig", "MiniMaxM3VLForCausalLM",
    config(intermediate_size=32, dense_intermediate_size=48, shared_intermediate_size=32,
           num_local_experts=4, num_experts_per_tok=2, routed_scaling_factor=2.0, rotary_dim=32, rms_norm_eps=1e-6,
           layer_types=[GLOBAL, SPARSE], mlp_layer_types=["dense", "sparse"], swiglu_alpha=1.702,
           swiglu_limit=7.0, index_n_heads=2, index_head_dim=64, index_block_size=64, index_topk_blocks=2,
           index_local_blocks=1, rope_parameters=rope(5e6, partial_rotary_factor=0.5)),
    references=[Reference("minimax-m3", prompt=200)],
    variants={
        "all blocks": {"index_topk_blocks": 8}, "the nearest block": {"index_topk_blocks": 1},
        "two nearest blocks": {"index_local_blocks": 2}, "no nearest block": {"index_local_blocks": 0},
        "blocks of 48": {"index_block_size": 48}, "all channels rotated": {"rotary_dim": 64, "rope_parameters": rope(5e6)},
        "experts not scaled": {"routed_scaling_factor": 1.0}, "SwiGLU": {"swiglu_alpha": 1.0},
        "no limit": {"swiglu_limit": 100.0}, "one expert": {"num_experts_per_tok": 1},
    },
    norm_shift=1.0, gains={"gate_up_proj": 2.5},
    keys={"feed_forward_length": "dense_intermediate_size", "expert_feed_forward_length": "intermediate_size",
          "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_gating_func": 2, "expert_weights_norm": True,
          "expert_weights_scale": "routed_scaling_factor", "attention.indexer.head_count": "index_n_heads",
          "attention.indexer.key_length": "index_head_dim", "attention.indexer.top_k": "index_topk_blocks",
          "attention.indexer.block_size": "index_block_size", "attention.indexer.local_blocks": "index_local_blocks",
          "vocab_size": "vocab_size"},
    names={f"self_attn.indexer.{part}": f"indexer.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm")},
)


def latent(**changes):
    """Latent attention: a dense layer, then a mixture. Rotated are pairs of neighbours, as in the files."""
    return without(
        config(**{**dict(moe_intermediate_size=32, first_k_dense_replace=1, mlp_layer_types=["dense", "sparse"],
                         num_experts_per_tok=2, rms_norm_eps=1e-6), **changes}),
        "head_dim",
    )


# DeepSeek V2 Lite: queries of one matrix, softmax over the experts, whose weights are not renormalised.
DEEPSEEK_V2_LITE = Model(
    "deepseek-v2-lite", "deepseek2", "deepseek_v2", "DeepseekV2Config", "DeepseekV2ForCausalLM",
    latent(num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32,
           v_head_dim=32, n_routed_experts=4, n_shared_experts=2, n_group=None, topk_group=None, topk_method="greedy",
           norm_topk_prob=False, routed_scaling_factor=1.5),
    variants={
        "theta": {"rope_parameters": rope(5e5)}, "experts not scaled": {"routed_scaling_factor": 1.0},
        "one expert": {"num_experts_per_tok": 1},
    },
    unsplit=True,
)


# DeepSeek V3, R1, Kimi K2: YaRN's factor is on the scores alone, squared. Its bounds are 1.62 and 7.64, rounded to 1 and
# 8. llama.cpp takes 32 and 1 for the betas of this architecture, whatever the file says.
def deepseek_rope(mscale=0.707, **changes):
    return rope(rope_type="yarn", factor=16.0, beta_fast=32.0, beta_slow=1.0, mscale=mscale, mscale_all_dim=mscale,
                original_max_position_embeddings=512) | changes


DEEPSEEK_V3 = Model(
    "deepseek-v3", "deepseek2", "deepseek_v3", "DeepseekV3Config", "DeepseekV3ForCausalLM",
    latent(num_attention_heads=3, num_key_value_heads=3, q_lora_rank=48, kv_lora_rank=64, qk_nope_head_dim=32,
           qk_rope_head_dim=32, v_head_dim=64, n_routed_experts=8, n_shared_experts=1, n_group=4, topk_group=2,
           norm_topk_prob=True, routed_scaling_factor=2.5, max_position_embeddings=16 * 512,
           rope_parameters=deepseek_rope()),
    variants={
        "no YaRN": {"rope_parameters": rope()}, "mscale": {"rope_parameters": deepseek_rope(mscale=1.0)},
        "no mscale": {"rope_parameters": deepseek_rope(mscale=0.0, attention_factor=1.0)},
        "halves rotated": {"rope_interleave": False}, "no groups": {"n_group": 1, "topk_group": 1},
        "experts not scaled": {"routed_scaling_factor": 1.0}, "weights not renormalised": {"norm_topk_prob": False},
    },
)

# GLM-4.7-Flash: values wider than the rotated part of a key, a draft block behind the layers.
GLM4_MOE_LITE = Model(
    "glm-4.7-flash", "deepseek2", "glm4_moe_lite", "Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM",
    latent(num_attention_heads=2, num_key_value_heads=2, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=64,
           qk_rope_head_dim=64, v_head_dim=96, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1,
           norm_topk_prob=True, routed_scaling_factor=1.8, num_nextn_predict_layers=1, rope_parameters=rope(1e6)),
    variants={
        "theta": {"rope_parameters": rope()}, "halves rotated": {"rope_interleave": False},
        "experts not scaled": {"routed_scaling_factor": 1.0}, "weights not renormalised": {"norm_topk_prob": False},
    },
)



# Mistral Small 4: YaRN's factor is on the scores, squared, as DeepSeek V3 has it; queries grow at positions 32 and 64.
def mistral4_rope(**changes):
    return ministral3_rope(rope_theta=1e4, partial_rotary_factor=0.5) | changes


MISTRAL4 = Model(
    "mistral4", "mistral4", "mistral4", "Mistral4Config", "Mistral4ForCausalLM",
    latent(num_attention_heads=3, num_key_value_heads=3, q_lora_rank=48, kv_lora_rank=64, qk_nope_head_dim=32,
           qk_rope_head_dim=32, v_head_dim=64, n_routed_experts=8, n_shared_experts=1, n_group=1, topk_group=1,
           norm_topk_prob=True, routed_scaling_factor=1.0, rope_parameters=mistral4_rope()),
    variants={
        "one temperature": {"rope_parameters": mistral4_rope(llama_4_scaling_beta=0.0)},
        "no mscale": {"rope_parameters": mistral4_rope(mscale=0.0, mscale_all_dim=0.0, attention_factor=1.0)},
        "halves rotated": {"rope_interleave": False}, "weights not renormalised": {"norm_topk_prob": False},
        "one expert": {"num_experts_per_tok": 1},
    },
)



def indexed(**changes):
    """Latent attention over the keys that an indexer scores most, 24 of 80."""
    return latent(**{**dict(
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=48, kv_lora_rank=64, qk_nope_head_dim=32,
        qk_rope_head_dim=32, v_head_dim=64, n_routed_experts=8, n_shared_experts=1, n_group=4, topk_group=2,
        norm_topk_prob=True, routed_scaling_factor=2.5, index_topk=24, index_n_heads=8, index_head_dim=64), **changes})


DEEPSEEK_V32 = Model(
    "deepseek-v3.2", "deepseek32", "deepseek_v32", "DeepseekV32Config", "DeepseekV32ForCausalLM",
    indexed(max_position_embeddings=16 * 512, rope_parameters=deepseek_rope(), index_topk=48),
    variants={
        "all keys": {"index_topk": 512}, "one key less": {"index_topk": 47}, "no YaRN": {"rope_parameters": rope()},
        "no groups": {"n_group": 1, "topk_group": 1}, "experts not scaled": {"routed_scaling_factor": 1.0},
        "weights not renormalised": {"norm_topk_prob": False},
    },
)

# GLM-5.2: the second layer sees what the first one chose; the indexer rotates neighbours.
GLM_DSA = Model(
    "glm-dsa", "glm-dsa", "glm_moe_dsa", "GlmMoeDsaConfig", "GlmMoeDsaForCausalLM",
    indexed(num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=3, v_head_dim=96, rms_norm_eps=1e-5,
            n_routed_experts=4, n_group=1, topk_group=1, mlp_layer_types=["dense", "sparse", "sparse"],
            indexer_types=["full", "shared", "full"], rope_parameters=rope(1e6)),
    variants={
        "all keys": {"index_topk": 512}, "one key less": {"index_topk": 23}, "theta": {"rope_parameters": rope()},
        "experts not scaled": {"routed_scaling_factor": 1.0},
    },
)


# Kimi Linear: of three layers two keep a state with a decay for each key channel; latents without a rotation.
KIMI_LINEAR = Model(
    "kimi-linear", "kimi-linear", "kimi_linear", "KimiLinearConfig", "KimiLinearForCausalLM",
    without(latent(num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=3, intermediate_size=32,
                   layer_types=["linear_attention", "full_attention", "linear_attention"],
                   mlp_layer_types=["dense", "sparse", "sparse"], q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=32,
                   qk_rope_head_dim=32, v_head_dim=64, num_local_experts=4, n_shared_experts=1, n_group=1, topk_group=1,
                   norm_topk_prob=True, routed_scaling_factor=2.446, rms_norm_eps=1e-5, moe_intermediate_size=16,
                   linear_head_dim=32, linear_num_heads=3, linear_conv_kernel_dim=4),
            "rope_parameters"),
    variants={
        "experts not scaled": {"routed_scaling_factor": 1.0}, "weights not renormalised": {"norm_topk_prob": False},
        "one expert": {"num_experts_per_tok": 1}, "eps of norms": {"rms_norm_eps": 1e-1},
    },
)

# Ling 3: decays with a bound, gates of one matrix, latents with a rotation, heads with a gate, groups of experts.
LING3 = Model(
    "bailingmoe3", "bailingmoe3", "bailing_hybrid", "BailingHybridConfig", "BailingHybridForCausalLM",
    latent(num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=3, intermediate_size=32, head_dim=32,
           layer_types=["linear_attention", "full_attention", "linear_attention"],
           mlp_layer_types=["dense", "sparse", "sparse"], q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=32,
           qk_rope_head_dim=32, v_head_dim=64, num_local_experts=4, n_shared_experts=1, n_group=2, topk_group=1,
           norm_topk_prob=True, routed_scaling_factor=2.5, rms_norm_eps=1e-6, moe_intermediate_size=16,
           short_conv_kernel_size=4, kda_lower_bound=-5.0, num_mtp_layers=0, rope_theta=1e4,
           rope_parameters=rope())
    | {"head_dim": 32},
    variants={
        "experts not scaled": {"routed_scaling_factor": 1.0}, "weights not renormalised": {"norm_topk_prob": False},
        "no groups": {"n_group": 1, "topk_group": 1}, "theta": {"rope_parameters": rope(5e5)},
        "another bound": {"kda_lower_bound": -3.0}, "no bound": {"kda_safe_gate": False},
    },
)


def deepseek4_rope(base=1.6e5, **changes):
    partial = {"partial_rotary_factor": 0.5}
    yarn = rope(base, rope_type="yarn", factor=16.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=64,
                attention_factor=1.0) | partial
    return {"main": rope() | partial, "compress": yarn | changes}


SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"

# DeepSeek-V4: a layer with its window alone, whose experts follow from the token; one that sees 8 of up to 20 rows of 4
# tokens; one that sees all rows of 16 tokens, where published models have 128. Limits that gates and ups reach. Eight
# index heads: with fewer, rows have a score of exactly 0 in all of them, and which of these are chosen is any one's guess.
DEEPSEEK_V4 = Model(
    "deepseek-v4", "deepseek4", "deepseek_v4", "DeepseekV4Config", "DeepseekV4ForCausalLM",
    without(config(num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=3, q_lora_rank=16, o_groups=2,
                   o_lora_rank=8, sliding_window=16, layer_types=[SLIDING, SPARSE, HEAVY],
                   compress_rates={SPARSE: 4, HEAVY: 16}, mlp_layer_types=["hash_moe", "moe", "moe"],
                   moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
                   routed_scaling_factor=1.5, swiglu_limit=0.5, index_n_heads=8, index_head_dim=32, index_topk=8,
                   hc_mult=3, hc_sinkhorn_iters=20, hc_eps=1e-6, num_nextn_predict_layers=0,
                   rope_parameters=deepseek4_rope()), "intermediate_size"),
    variants={
        "no window": {"sliding_window": 512}, "window of 17": {"sliding_window": 17},
        "all rows": {"index_topk": 512}, "one row less": {"index_topk": 7},
        "no YaRN": {"rope_parameters": deepseek4_rope() | {"compress": rope(1.6e5, partial_rotary_factor=0.5)}},
        "YaRN's magnitude": {"rope_parameters": deepseek4_rope(attention_factor=1.277)},
        "one theta": {"rope_parameters": deepseek4_rope(base=1e4)},
        "experts not scaled": {"routed_scaling_factor": 1.0}, "no limits": {"swiglu_limit": 512.0},
        "two iterations": {"hc_sinkhorn_iters": 2}, "sigmoids": {"scoring_func": "sigmoid"},
    },
    gains={"position_bias": 8.0, "compressor.gate_proj": 2.0, "compressor.indexer.gate_proj": 2.0},
    names={
        "self_attn.q_a_norm": "attn_q_a_norm", "self_attn.kv_proj": "attn_kv", "self_attn.kv_norm": "attn_kv_a_norm",
        "self_attn.o_a_proj": "attn_output_a", "self_attn.o_b_proj": "attn_output_b",
        "self_attn.compressor.kv_proj": "attn_compressor_kv", "self_attn.compressor.gate_proj": "attn_compressor_gate",
        "self_attn.compressor.kv_norm": "attn_compressor_norm",
        "self_attn.compressor.position_bias": "attn_compressor_ape.weight",
        "self_attn.compressor.indexer.kv_proj": "indexer_compressor_kv",
        "self_attn.compressor.indexer.gate_proj": "indexer_compressor_gate",
        "self_attn.compressor.indexer.kv_norm": "indexer_compressor_norm",
        "self_attn.compressor.indexer.position_bias": "indexer_compressor_ape.weight",
        "self_attn.compressor.indexer.q_b_proj": "indexer.attn_q_b",
        "self_attn.compressor.indexer.scorer.weights_proj": "indexer.proj",
        "mlp.gate.tid2eid": "ffn_gate_tid2eid.weight",
        "attn_hc.fn": "hc_attn_fn.weight", "attn_hc.base": "hc_attn_base.weight", "attn_hc.scale": "hc_attn_scale.weight",
        "ffn_hc.fn": "hc_ffn_fn.weight", "ffn_hc.base": "hc_ffn_base.weight", "ffn_hc.scale": "hc_ffn_scale.weight",
    },
)


# --- heads that differ from layer to layer ----------------------------------------------------------------------------


def step35_rope(local=rope(1e4), partial=0.5, **changes):
    return {GLOBAL: LLAMA3_ROPE | {"rope_theta": 1e6, "partial_rotary_factor": partial} | changes,
            LOCAL: local | {"partial_rotary_factor": 1.0}}


# Step-3.5 Flash: local layers have more heads and rotate all channels, global ones half; a dense layer, the shared
# expert and the experts each reach a limit of their own in some layer.
STEP35 = Model(
    "step35", "step35", "step3p7", "Step3p7TextConfig", "Step3p7TextModel",
    config(num_hidden_layers=4, num_attention_heads=2, num_sliding_attention_heads=4, layer_types=[GLOBAL, LOCAL, LOCAL, GLOBAL],
           mlp_layer_types=["dense"] + ["sparse"] * 3, sliding_window=16, n_routed_experts=4, num_experts_per_tok=2,
           moe_intermediate_size=32, share_expert_dim=32, moe_router_scaling_factor=3.0,
           swiglu_limits=[0.0, 0.0, 0.4, 0.0], swiglu_limits_shared=[0.5, 0.0, 0.0, 0.4], rope_parameters=step35_rope()),
    variants={
        "no window": {"sliding_window": 512}, "one theta": {"rope_parameters": step35_rope(local=rope(1e6))},
        "all channels rotated": {"rope_parameters": step35_rope(partial=1.0)},
        "no factors": {"rope_parameters": step35_rope(rope_type="default")},
        "experts without a limit": {"swiglu_limits": None},
        "dense layers and shared experts without a limit": {"swiglu_limits_shared": None},
        "experts not scaled": {"moe_router_scaling_factor": 1.0},
    },
    norm_shift=1.0,
)


def mimo2_rope(local=1e4, partial=0.334):
    return {GLOBAL: rope(5e6, partial_rotary_factor=partial), LOCAL: rope(local, partial_rotary_factor=partial)}


# MiMo-V2-Flash: values of 64 channels for keys of 96, local layers with twice the KV heads and with sinks.
MIMO2 = Model(
    "mimo2", "mimo2", "mimo_v2_flash", "MiMoV2FlashConfig", "MiMoV2FlashForCausalLM",
    config(num_hidden_layers=4, num_key_value_heads=1, head_dim=96, v_head_dim=64, sliding_window=16,
           layer_types=[GLOBAL, LOCAL, LOCAL, GLOBAL], mlp_layer_types=["dense"] + ["sparse"] * 3, n_routed_experts=4,
           num_experts_per_tok=2, moe_intermediate_size=32, attention_value_scale=0.707, rope_parameters=mimo2_rope()),
    variants={
        "no window": {"sliding_window": 512}, "window of 17": {"sliding_window": 17},
        "values not scaled": {"attention_value_scale": 1.0}, "one theta": {"rope_parameters": mimo2_rope(local=5e6)},
        "other channels rotated": {"rope_parameters": mimo2_rope(partial=0.667)},
        "weights not renormalised": {"norm_topk_prob": False},
    },
)


# --- layers that keep a state instead of keys and values --------------------------------------------------------------

LINEAR = "linear_attention"


def delta_net(interval, layers, key_heads=2, value_heads=4, **changes):
    """Gated delta nets but for each `interval`-th layer, which attends with half of its channels rotated."""
    return config(
        num_hidden_layers=layers, layer_types=[GLOBAL if (i + 1) % interval == 0 else LINEAR for i in range(layers)],
        linear_num_key_heads=key_heads, linear_num_value_heads=value_heads, linear_key_head_dim=32,
        linear_value_head_dim=32, linear_conv_kernel_dim=4, num_attention_heads=2, num_key_value_heads=1,
        rms_norm_eps=1e-6, attention_bias=False, partial_rotary_factor=0.5) | changes


def delta_net_rope(theta=1e6, partial=0.5, **more):
    return rope(theta, partial_rotary_factor=partial, **more)


def qwen35_rope(**changes):
    return delta_net_rope(**changes, mrope_section=[6, 5, 5], mrope_interleaved=True)


SHARED_MIXTURE = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4,
                  "num_experts_per_tok": 2}

QWEN3NEXT = Model(
    "qwen3next", "qwen3next", "qwen3_next", "Qwen3NextConfig", "Qwen3NextForCausalLM",
    delta_net(2, 4, rope_parameters=delta_net_rope(), norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
              **SHARED_MIXTURE),
    variants={
        "all channels rotated": {"partial_rotary_factor": 1.0, "rope_parameters": delta_net_rope(partial=1.0)},
        "theta": {"rope_parameters": delta_net_rope(theta=1e4)},
        "weights not renormalised": {"norm_topk_prob": False}, "one expert": {"num_experts_per_tok": 1},
    },
    norm_shift=1.0,
)

# Value heads of published files stand in another order than the checkpoint's: here six of them share two key heads.
QWEN35 = Model(
    "qwen35", "qwen35", "qwen3_5", "Qwen3_5TextConfig", "Qwen3_5ForCausalLM",
    delta_net(4, 4, value_heads=6, rope_parameters=qwen35_rope()),
    variants={
        "all channels rotated": {"partial_rotary_factor": 1.0, "rope_parameters": qwen35_rope(partial=1.0)},
        "theta": {"rope_parameters": qwen35_rope(theta=1e4)},
    },
    norm_shift=1.0,
)

# A draft block stands behind the layers.
QWEN35MOE = Model(
    "qwen35moe", "qwen35moe", "qwen3_5_moe", "Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM",
    without(delta_net(3, 3, tie_word_embeddings=True, rope_parameters=qwen35_rope(), **SHARED_MIXTURE),
            "intermediate_size"),
    variants={"one expert": {"num_experts_per_tok": 1}},
    norm_shift=1.0, embedding_std=TIED_STD,
)

# Qwen3.8-Flash-Next: three residual streams; before the second layer n-grams of a table of eight primes' rows, none of
# which reaches behind token 40; the third layer attends to 8 of up to 20 blocks of 4 tokens, and to those behind them.
# Eight index heads, as DeepSeek-V4 has them here.
QWEN4EXP = Model(
    "qwen4exp", "qwen4exp", "qwen4_exp", "Qwen4ExpTextConfig", "Qwen4ExpForCausalLM",
    without(delta_net(3, 3, rope_parameters=qwen35_rope(), num_attention_heads=4, num_key_value_heads=2, hc_count=3,
                      hc_lowrank=8, ple_layer_ids=[2], ple_embed_dim=64, ple_conv_kernel_size=4, ngram_size=3,
                      heads_per_ngram=4, ngram_vocab_size_base=24, make_ngram_vocab_size_divisible_by=8,
                      split_ngram_parts=1, indexer_n_heads=8, indexer_kv_heads=1, indexer_head_dim=64,
                      indexer_budget=32, indexer_compress_ratio=4, output_gate_type="sigmoid", eos_token_id=40,
                      **SHARED_MIXTURE | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
            "intermediate_size"),
    variants={
        "one expert": {"num_experts_per_tok": 1}, "all keys": {"indexer_budget": 512},
        "one block less": {"indexer_budget": 28}, "blocks of two": {"indexer_compress_ratio": 2},
        "SiLU as the gate": {"output_gate_type": "silu"}, "theta": {"rope_parameters": qwen35_rope(theta=1e4)},
        "no end": {"eos_token_id": 0},
    },
    norm_shift=1.0,
)

# transformers' norm behind the scan is one group, whatever n_groups is: so there is one.
MAMBA2 = Model(
    "mamba2", "mamba2", "mamba2", "Mamba2Config", "Mamba2ForCausalLM",
    {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 32, "expand": 2,
     "head_dim": 16, "num_heads": 4, "n_groups": 1, "conv_kernel": 4, "chunk_size": 16, "layer_norm_epsilon": 1e-5,
     "rms_norm": True, "use_bias": False, "use_conv_bias": True, "residual_in_fp32": True,
     "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
)

def mamba(**changes):
    return {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 16, "expand": 2,
            "conv_kernel": 4, "time_step_rank": 6, "layer_norm_epsilon": 1e-5, "use_bias": False, "use_conv_bias": True,
            "residual_in_fp32": True, "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            **changes}


MAMBA = Model("mamba", "mamba", "mamba", "MambaConfig", "MambaForCausalLM", mamba(),
              variants={"another eps": {"layer_norm_epsilon": 0.1}})

# What steps are made of, what writes and what reads are normalised, without weights.
FALCON_MAMBA = Model(
    "falcon-mamba", "mamba", "falcon_mamba", "FalconMambaConfig", "FalconMambaForCausalLM",
    mamba(state_size=8, mixer_rms_eps=1e-3), variants={"the model's eps": {"mixer_rms_eps": 0.3}},
)

# Mamba, but for the second of four layers, which attends without a rotation; a mixture in every second layer. Norms of
# what steps are made of, of what writes and of what reads have weights.
JAMBA = Model(
    "jamba", "jamba", "jamba", "JambaConfig", "JambaForCausalLM",
    without(config(num_hidden_layers=4, hidden_size=32, num_attention_heads=1, num_key_value_heads=1, num_experts=4, num_experts_per_tok=2,
                   intermediate_size=32, expert_layer_period=2, expert_layer_offset=1, attn_layer_period=4, attn_layer_offset=1,
                   mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=8, mamba_conv_bias=True, mamba_proj_bias=False),
            "head_dim", "rope_parameters"),
    variants={"one expert": {"num_experts_per_tok": 1}},
)

CONV = "conv"


def lfm2(**changes):
    return without(
        config(hidden_size=64, num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=3,
               layer_types=[CONV, GLOBAL, CONV], norm_eps=1e-5, conv_L_cache=3, conv_bias=False,
               tie_word_embeddings=True, rope_parameters=rope(1e6)),
        "head_dim", "rms_norm_eps") | changes


LFM2 = Model(
    "lfm2", "lfm2", "lfm2", "Lfm2Config", "Lfm2ForCausalLM",
    lfm2(block_auto_adjust_ff_dim=False, block_multiple_of=32, block_ffn_dim_multiplier=1.0),
    variants={"theta": {"rope_parameters": rope()}},
    embedding_std=TIED_STD,
)

LFM2_MOE = Model(
    "lfm2moe", "lfm2moe", "lfm2_moe", "Lfm2MoeConfig", "Lfm2MoeForCausalLM",
    lfm2(num_dense_layers=1, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, use_expert_bias=True,
         norm_topk_prob=True, routed_scaling_factor=1.0),
    variants={"one expert": {"num_experts_per_tok": 1}},
    embedding_std=TIED_STD,
)


def nemotron_h(pattern, **changes):
    """One mixer a block: M(amba), * attention without rotation, - dense feed-forward, E(xperts)."""
    return {
        "vocab_size": VOCABULARY, "hidden_size": 32, "hybrid_override_pattern": pattern, "intermediate_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 512,
        "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2, "conv_kernel": 4,
        "chunk_size": 16, "layer_norm_epsilon": 1e-5, "use_bias": False, "use_conv_bias": True, "mlp_bias": False,
        "attention_bias": False, "mlp_hidden_act": "relu2", "use_mamba_kernels": False, "tie_word_embeddings": False,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **changes,
    }


NEMOTRON_H = Model(
    "nemotron-h", "nemotron_h", "nemotron_h", "NemotronHConfig", "NemotronHForCausalLM", nemotron_h("M-*-M"),
)

NEMOTRON_H_MOE = Model(
    "nemotron-h-moe", "nemotron_h_moe", "nemotron_h", "NemotronHConfig", "NemotronHForCausalLM",
    nemotron_h("ME*EM", n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32,
               moe_shared_expert_intermediate_size=64, moe_latent_size=None, routed_scaling_factor=2.5,
               norm_topk_prob=True, n_group=1, topk_group=1),
    variants={"experts not scaled": {"routed_scaling_factor": 1.0},
              "weights not renormalised": {"norm_topk_prob": False}},
)

# Nemotron 3 Super: experts read and give a latent of half the width.
NEMOTRON_H_LATENT = Model(
    "nemotron-h-latent", "nemotron_h_moe", "nemotron_h", "NemotronHConfig", "NemotronHForCausalLM",
    nemotron_h("MEM*E", hidden_size=64, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
               moe_intermediate_size=32, moe_shared_expert_intermediate_size=64, moe_latent_size=32,
               routed_scaling_factor=2.5, norm_topk_prob=True, n_group=1, topk_group=1),
    variants={"experts not scaled": {"routed_scaling_factor": 1.0}, "one expert": {"num_experts_per_tok": 1}},
)

# Granite 4.0 H: no rotation.
GRANITE_HYBRID = Model(
    "granitehybrid", "granitehybrid", "granitemoehybrid", "GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM",
    without(config(tie_word_embeddings=True, hidden_size=64, intermediate_size=32, num_attention_heads=1,
                   num_key_value_heads=1, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"],
                   embedding_multiplier=6.0, logits_scaling=4.0, residual_multiplier=0.4, attention_multiplier=0.07,
                   num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=32,
                   position_embedding_type="nope", mamba_n_heads=4, mamba_n_groups=1, mamba_d_state=16,
                   mamba_d_head=32, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16, mamba_conv_bias=True,
                   mamba_proj_bias=False),
            "head_dim", "rope_parameters"),
    variants={
        "embeddings not scaled": {"embedding_multiplier": 1.0}, "logits not scaled": {"logits_scaling": 1.0},
        "residuals not scaled": {"residual_multiplier": 1.0},
        "scores scaled as usual": {"attention_multiplier": 64**-0.5}, "one expert": {"num_experts_per_tok": 1},
    },
    embedding_std=0.08,
)

# Attention and a scan read one norm, and both are added. What multiplies their products is in the file's weights.
def falcon_h1(**changes):
    return config(num_hidden_layers=2, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=32,
                  mamba_d_conv=4, mamba_chunk_size=16, mamba_conv_bias=True, mamba_proj_bias=False, mamba_rms_norm=False,
                  mamba_norm_before_gate=False, projectors_bias=False, attention_bias=False, mlp_bias=False, hidden_act="silu",
                  lm_head_multiplier=2.0, embedding_multiplier=2.0, mlp_multipliers=[4.0, 2.0], key_multiplier=2.0,
                  attention_in_multiplier=2.0, attention_out_multiplier=4.0, ssm_multipliers=[2.0, 4.0, 1.0, 8.0, 2.0],
                  ssm_in_multiplier=2.0, ssm_out_multiplier=2.0) | changes


FALCON_H1_GAINS = {"in_proj": 0.125, "out_proj": 0.5}

FALCON_H1 = Model(
    "falcon-h1", "falcon-h1", "falcon_h1", "FalconH1Config", "FalconH1ForCausalLM", falcon_h1(),
    variants={
        "embeddings not multiplied": {"embedding_multiplier": 0.5}, "keys not multiplied": {"key_multiplier": 1.0},
        "gates not multiplied": {"mlp_multipliers": [1.0, 2.0]}, "results not multiplied": {"mlp_multipliers": [4.0, 1.0]},
        "attention reads what is not multiplied": {"attention_in_multiplier": 1.0},
        "attention gives what is not multiplied": {"attention_out_multiplier": 1.0},
        "the scan reads what is not multiplied": {"ssm_in_multiplier": 1.0},
        "the scan gives what is not multiplied": {"ssm_out_multiplier": 1.0},
        **{f"part {part} of the scan's input not multiplied": {"ssm_multipliers": [
            0.5 if part == at else by for at, by in enumerate([2.0, 4.0, 1.0, 8.0, 2.0])]} for part in range(5)},
        "theta": {"rope_parameters": rope(1e6)},
    },
    embedding_std=0.25, gains=FALCON_H1_GAINS,
)

# The scan's result goes through its gate, then through a norm, as some published models have it.
FALCON_H1_NORM = Model(
    "falcon-h1-norm", "falcon-h1", "falcon_h1", "FalconH1Config", "FalconH1ForCausalLM",
    falcon_h1(mamba_rms_norm=True, tie_word_embeddings=True, lm_head_multiplier=1.0, embedding_multiplier=1.0),
    variants={"the norm first": {"mamba_norm_before_gate": True}},
    embedding_std=TIED_STD, gains=FALCON_H1_GAINS,
)


# PLaMo 3, of which transformers has no class: Gemma 3 with SiLU computes the same, but for its embeddings' scale, a power
# of 2 here, which the file's embeddings have as a factor.
PLAMO3 = Model(
    "plamo3", "plamo3", "gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM",
    config(num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32, hidden_size=64,
           layer_types=[LOCAL, LOCAL, GLOBAL], sliding_window=16, query_pre_attn_scalar=64,
           rope_parameters=gemma3_rope(factor=1.0), hidden_activation="silu", attn_logit_softcapping=None,
           final_logit_softcapping=None, rms_norm_eps=1e-6),
    variants={
        "no window": {"sliding_window": 512}, "window of 17": {"sliding_window": 17},
        "one theta": {"rope_parameters": gemma3_rope(local=rope(1e6), factor=1.0)},
        "local layers elsewhere": {"layer_types": [LOCAL, GLOBAL, LOCAL]},
        "GELU": {"hidden_activation": "gelu_pytorch_tanh"},
    },
    keys={"vocab_size": "vocab_size", "attention.sliding_window": "sliding_window",
          "attention.sliding_window_pattern": 3, "rope.freq_base_swa": 1e4},
    names={"post_attention_layernorm.weight": "post_attention_norm", "post_feedforward_layernorm.weight": "post_ffw_norm"},
    norm_shift=1.0, embedding_std=0.0625, fused=True, without_class=True,
)


MODELS = [LLAMA, LLAMA3, LLAMA4, MIXTRAL, NEMO, QWEN2, QWEN3, QWEN3MOE, GEMMA3, GEMMA3N, GEMMA4, GEMMA4_MOE, GPT_OSS, GLM4MOE, MISTRAL3,
          PHI3, GRANITE, MINIMAX_M2, MINIMAX_M3, DEEPSEEK_V2_LITE, DEEPSEEK_V3, GLM4_MOE_LITE, QWEN3NEXT, QWEN35, QWEN35MOE, QWEN4EXP, MAMBA, FALCON_MAMBA, JAMBA, MAMBA2,
          LFM2, LFM2_MOE, NEMOTRON_H, NEMOTRON_H_MOE, NEMOTRON_H_LATENT, GRANITE_HYBRID, FALCON_H1, FALCON_H1_NORM, PLAMO3, MISTRAL4, STEP35, MIMO2, DEEPSEEK_V32,
          GLM_DSA, KIMI_LINEAR, LING3, DEEPSEEK_V4, *RELATIVES, *OLDER]


def fixtures():
    """(GGUF file, reference file, context) of all that can be run."""
    for model in MODELS:
        for file in model.files():
            for reference in model.references:
                yield f"{file}.gguf", f"{reference.name}.bin", reference.context
