"""Reference checkpoints of decoders with other names than Llama's: GPT-2's relatives, Falcon, BLOOM, MPT: part of zoo.py.

Also those that differ from them in a point: Jais 2, CodeShell, Apertus, Qwen 1, openPangu.
"""

from shapes import TIED_STD, VOCABULARY, Model, rope, small, without

FULL, LOCAL = "full_attention", "sliding_attention"
SHORT = [1.0 + 0.1 * i for i in range(16)]  # what rotations of 32 channels are divided by
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"hidden_size": 64, "num_attention_heads": 2, "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5} | TOKENS
GPT_KEYS = {"block_count": "n_layer", "context_length": "n_positions", "embedding_length": "n_embd",
            "feed_forward_length": "n_inner", "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon"}
GPT_NAMES = {"ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
             "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
MEGATRON_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
                  "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}


def gpt(**changes):
    return {"n_layer": 2, "n_positions": 256, "n_embd": 64, "n_inner": 64, "n_head": 2, "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": False} | TOKENS | changes


# The checkpoint's matrices are [inputs, outputs].
GPT2 = Model(
    "gpt2", "gpt2", "gpt2", "GPT2Config", "GPT2LMHeadModel", gpt(activation_function="gelu_new"),
    variants={"another activation": {"activation_function": "relu"}}, keys=GPT_KEYS,
    names=GPT_NAMES, transposed=True,
)

# All heads share one key and one value.
STARCODER = Model(
    "starcoder", "starcoder", "gpt_bigcode", "GPTBigCodeConfig", "GPTBigCodeForCausalLM",
    gpt(activation_function="gelu_pytorch_tanh", multi_query=True),
    variants={"another activation": {"activation_function": "relu"}},
    keys=GPT_KEYS | {"attention.head_count_kv": 1}, names=GPT_NAMES,
)


def neox(**changes):
    return without(small(hidden_size=64, layer_norm_eps=1e-5, hidden_act="gelu", use_parallel_residual=True,
                         rope_parameters=rope(partial_rotary_factor=0.25)),
                   "head_dim", "rms_norm_eps", "num_key_value_heads") | changes


NEOX_NAMES = MEGATRON_NAMES | {"attention.query_key_value": "attn_qkv", "attention.dense": "attn_output"}
NEOX_KEYS = {"attention.layer_norm_epsilon": "layer_norm_eps", "rope.dimension_count": 8,
             "use_parallel_residual": "use_parallel_residual"}

GPTNEOX = Model(
    "gptneox", "gptneox", "gpt_neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", neox(),
    variants={"all channels rotated": {"rope_parameters": rope(partial_rotary_factor=1.0)},
              "one after the other": {"use_parallel_residual": False}},
    keys=NEOX_KEYS, names=NEOX_NAMES, grouped=1,
)

GPTNEOX_SEQUENTIAL = Model(
    "gptneox-sequential", "gptneox", "gpt_neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", neox(use_parallel_residual=False),
    variants={"parallel": {"use_parallel_residual": True}}, keys=NEOX_KEYS, names=NEOX_NAMES, grouped=1,
)

FALCON_KEYS = {"attention.layer_norm_epsilon": "layer_norm_epsilon", "feed_forward_length": "ffn_hidden_size",
               "attention.head_count_kv": "num_kv_heads"}
FALCON_NAMES = MEGATRON_NAMES | {"self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
                                 "ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"}


def falcon(**changes):
    return HEADS | {"tie_word_embeddings": False, "num_hidden_layers": 2, "ffn_hidden_size": 64, "max_position_embeddings": 512, "alibi": False,
                    "bias": False, "parallel_attn": True, "rope_parameters": rope(), "activation": "gelu"} | changes


FALCON = Model(
    "falcon", "falcon", "falcon", "FalconConfig", "FalconForCausalLM",
    falcon(new_decoder_architecture=False, multi_query=True, num_kv_heads=1),
    variants={"theta": {"rope_parameters": rope(1e6)}}, keys=FALCON_KEYS, names=FALCON_NAMES,
    grouped=2,
)

# Groups of queries share a key and a value; attention and feed-forward have a norm each.
FALCON_40B = Model(
    "falcon-40b", "falcon", "falcon", "FalconConfig", "FalconForCausalLM",
    falcon(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=2, hidden_size=128, num_hidden_layers=1),
    variants={"theta": {"rope_parameters": rope(1e6)}}, keys=FALCON_KEYS, names=FALCON_NAMES,
    grouped=2,
)

BLOOM = Model(
    "bloom", "bloom", "bloom", "BloomConfig", "BloomForCausalLM",
    without(HEADS, "num_attention_heads") | {"n_layer": 2, "n_head": 2, "tie_word_embeddings": False},
    keys={"block_count": "n_layer", "context_length": 512, "feed_forward_length": 256, "attention.head_count": "n_head",
          "attention.layer_norm_epsilon": "layer_norm_epsilon"},
    names=MEGATRON_NAMES | {"self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output"},
    grouped=1,
)

# Three heads: the slopes of a number that is no power of 2.
MPT = Model(
    "mpt", "mpt", "mpt", "MptConfig", "MptForCausalLM",
    {"d_model": 96, "n_heads": 3, "n_layers": 1, "max_seq_len": 256, "expansion_ratio": 4, "layer_norm_epsilon": 1e-5,
     "attn_config": {"alibi": True, "alibi_bias_max": 8}, "no_bias": True, "tie_word_embeddings": False} | TOKENS,
    keys={"block_count": "n_layers", "context_length": "max_seq_len", "embedding_length": "d_model",
          "feed_forward_length": 384, "attention.head_count": "n_heads", "attention.max_alibi_bias": 8.0,
          "attention.layer_norm_epsilon": "layer_norm_epsilon"},
    names={"norm_1": "attn_norm", "norm_2": "ffn_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output",
           "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down"},
)

NORM_BIASES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}

JAIS2 = Model(
    "jais2", "jais2", "jais2", "Jais2Config", "Jais2ForCausalLM",
    without(small(layer_norm_eps=1e-5, hidden_act="relu2", attention_bias=True, mlp_bias=True,
                  rope_parameters=rope(5e5)), "rms_norm_eps"),
    variants={"theta": {"rope_parameters": rope()}, "another activation": {"hidden_act": "relu"}},
    keys={"attention.layer_norm_epsilon": "layer_norm_eps", "rope.dimension_count": 64}, names=NORM_BIASES,
)

# CodeShell computes as StarCoder 2 does; its files have q, k and v in one.
CODESHELL = Model(
    "codeshell", "codeshell", "starcoder2", "Starcoder2Config", "Starcoder2ForCausalLM",
    without(small(hidden_size=64, num_attention_heads=2, intermediate_size=64, use_bias=True, norm_epsilon=1e-5,
                  hidden_act="gelu_pytorch_tanh", sliding_window=None), "rms_norm_eps"),
    variants={"theta": {"rope_parameters": rope(1e6)}}, gains={"bias": 0.3},
    keys={"attention.layer_norm_epsilon": "norm_epsilon"},
    names=NORM_BIASES | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}, without_class=True, fused=True,
)

# Qwen 1 computes as Qwen 2 does; its files count gate and up together.
QWEN = Model(
    "qwen", "qwen", "qwen2", "Qwen2Config", "Qwen2ForCausalLM", without(small(hidden_size=64, num_attention_heads=1), "head_dim"),
    variants={"theta": {"rope_parameters": rope(1e6)}}, keys={"feed_forward_length": 64}, without_class=True, fused=True,
)

PANGU = Model(
    "pangu-embedded", "pangu-embedded", "llama", "LlamaConfig", "LlamaForCausalLM",
    small(attention_bias=True, rope_parameters=rope(4e6)), variants={"theta": {"rope_parameters": rope()}},
    keys={"rope.dimension_count": 64}, without_class=True,
)

APERTUS = Model(
    "apertus", "apertus", "apertus", "ApertusConfig", "ApertusForCausalLM",
    small(hidden_act="xielu", attention_bias=False, rope_parameters=rope(1e6)),
    variants={"theta": {"rope_parameters": rope()}}, keys={"rope.dimension_count": 64},
    names={"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"},
)

# Keys and values are made of a latent; files have neither the factors nor the name of the scaling.
MINICPM3 = Model(
    "minicpm3", "minicpm3", "minicpm3", "MiniCPM3Config", "MiniCPM3ForCausalLM",
    without(small(hidden_size=64, num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=64, q_lora_rank=32,
                  qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=32, scale_emb=12, scale_depth=1.4,
                  dim_model_base=256, tie_word_embeddings=True,
                  rope_parameters=rope(rope_type="longrope", short_factor=SHORT, long_factor=SHORT,
                                       original_max_position_embeddings=512)), "head_dim"),
    variants={"embeddings not scaled": {"scale_emb": 1}, "residuals not scaled": {"scale_depth": 0.5},
              "logits not scaled": {"dim_model_base": 128}, "no factors": {"rope_parameters": rope()}},
    embedding_std=0.04,
    keys={"attention.kv_lora_rank": "kv_lora_rank", "attention.q_lora_rank": "q_lora_rank", "attention.key_length": 64,
          "rope.dimension_count": 32, "vocab_size": VOCABULARY}, unsplit_only=True,
)

# Dense layers first, which are rotated whatever they see; then experts beside a shared one.
COHERE2MOE = Model(
    "cohere2moe", "cohere2moe", "cohere2_moe", "Cohere2MoeConfig", "Cohere2MoeForCausalLM",
    without(small(layer_norm_eps=1e-5, tie_word_embeddings=True, num_hidden_layers=4, logit_scale=0.25, sliding_window=16,
                  layer_types=[FULL, LOCAL, LOCAL, FULL], mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
                  prefix_dense_intermediate_size=64, prefix_dense_sliding_window_pattern=1, num_experts=4,
                  num_experts_per_tok=2, num_shared_experts=1, expert_selection_fn="sigmoid", norm_topk_prob=True,
                  shared_expert_combination_strategy="average"), "rms_norm_eps"),
    variants={"weights not renormalised": {"norm_topk_prob": False}, "not halved":
              {"shared_expert_combination_strategy": "sum"}, "one expert": {"num_experts_per_tok": 1},
              "dense layers not rotated": {"prefix_dense_sliding_window_pattern": 2}, "window of 17": {"sliding_window": 17}},
    embedding_std=TIED_STD,
    keys={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale",
          "attention.sliding_window": "sliding_window", "rope.dimension_count": 64,
          "attention.sliding_window_pattern": [False, True, True, False], "leading_dense_block_count": 1,
          "feed_forward_length": 64, "expert_feed_forward_length": "intermediate_size", "expert_shared_count": 1,
          "expert_shared_feed_forward_length": "intermediate_size", "expert_gating_func": 2, "expert_weights_norm": True},
)

PHIMOE_SHORT = [1 + i * i / 961 for i in range(32)]


def phimoe_rope(short=PHIMOE_SHORT, magnitude=1.2):
    return rope(rope_type="longrope", short_factor=short, long_factor=[1.5 + i / 5 for i in range(32)],
                short_mscale=magnitude, long_mscale=magnitude, original_max_position_embeddings=256)


# Phi-3.5-MoE: LayerNorm, biases, and weights of experts by SparseMixer. transformers takes the short factors in longer
# contexts, too, so there is no reference for the long ones: they are read as Phi-3's.
PHIMOE = Model(
    "phimoe", "phimoe", "phimoe", "PhimoeConfig", "PhimoeForCausalLM",
    small(max_position_embeddings=1024, attention_bias=True, lm_head_bias=True, num_local_experts=6,
          num_experts_per_tok=2, router_jitter_noise=0.01, sliding_window=None, rope_parameters=phimoe_rope()),
    variants={"none comes near": {"router_jitter_noise": 1e-9}, "all come near": {"router_jitter_noise": 1e9},
              "no short factors": {"rope_parameters": phimoe_rope(short=[1.0] * 32)},
              "no magnitude": {"rope_parameters": phimoe_rope(magnitude=1.0)}},
    keys={"rope.dimension_count": 64, "vocab_size": VOCABULARY},
    names={"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
)

MODELS = [GPT2, STARCODER, GPTNEOX, GPTNEOX_SEQUENTIAL, FALCON, FALCON_40B, BLOOM, MPT, JAIS2, CODESHELL, QWEN, PANGU,
          APERTUS, MINICPM3, COHERE2MOE, PHIMOE]
