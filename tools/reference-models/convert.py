"""Turns a checkpoint with transformers' names into GGUF, as llama.cpp's converters do it. Needs numpy.

What is not a change of name: rows of q and k in the order of GGUF's "normal" rotation (pairs of neighbours instead of
halves), experts' gate and up in two tensors (interleaved and transposed in gpt-oss, fused in Gemma 4), the 1 that Gemma
3 adds to the weights of its norms, factors of scaled rotations as tensors, DeepSeek's attn_kv_b in two (the half for
keys transposed). Layers with a state are recurrent.py's.
"""

import math
import re

import numpy as np

import gguf
import recurrent
from zoo import GLOBAL, LOCAL

# Architectures whose files have q and k for rotations of neighbours.
NORMAL_ROPE = {"llama", "mistral3", "granite"}
# Those whose norm before the feed-forward is called after the attention before it.
POST_ATTENTION = {"gpt-oss", "glm4moe", "gemma3", "gemma3n", "gemma4"}
SOFTMAX, SIGMOID, SQRT_SOFTPLUS = 1, 2, 4  # expert_gating_func

TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "model.embeddings.weight": "token_embd.weight",
    "model.norm.bias": "output_norm.bias",
    "model.final_layernorm.weight": "output_norm.weight",
    "model.final_layernorm.bias": "output_norm.bias",
    "lm_head.bias": "output.bias",
    "model.norm_f.weight": "output_norm.weight",
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "transformer.wte.weight": "token_embd.weight",
    "transformer.wpe.weight": "position_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight",
    "transformer.ln_f.bias": "output_norm.bias",
    "transformer.norm_f.weight": "output_norm.weight",
    "transformer.word_embeddings.weight": "token_embd.weight",
    "transformer.word_embeddings_layernorm.weight": "token_embd_norm.weight",
    "transformer.word_embeddings_layernorm.bias": "token_embd_norm.bias",
    "model.hc_head.hc_fn": "output_hc_fn.weight",
    "model.hc_head.hc_base": "output_hc_base.weight",
    "model.hc_head.hc_scale": "output_hc_scale.weight",
    "model.hyper_connection_mixer.hc_norm.weight": "output_hc_norm.weight",
    "model.hyper_connection_mixer.input_mix_weight_down.weight": "output_hc_down.weight",
    "model.hyper_connection_mixer.input_mix_weight_up.weight": "output_hc_up.weight",
    "gpt_neox.embed_in.weight": "token_embd.weight",
    "gpt_neox.final_layer_norm.weight": "output_norm.weight",
    "gpt_neox.final_layer_norm.bias": "output_norm.bias",
}
SHIFTED = {"model.norm.weight", "model.hyper_connection_mixer.hc_norm.weight"}  # by Model.norm_shift
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.g_proj": "attn_gate",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",  # Phi-3 leaves the two in one
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale.weight",
}

# --- words ------------------------------------------------------------------------------------------------------------

CONTROL, NORMAL = 3, 1  # token types
SPECIALS = ["<pad>", "<s>", "</s>"]
CHARACTERS = list("abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"-()") + ["Ġ", "Ċ"]
MERGES = ["t h", "th e", "i n", "a n", "e r", "o n", "Ġ the", "Ġ a", "an d", "Ġ and", "r e", "o r", "in g", "o u",
          "Ġ t", "Ġ s", "e n", "l l", "i s", "i t", "a t", "e s", "a r", "e d", "o f", "o m", "Ġ w", "Ġ i"]


def tokenizer_keys():
    """A byte-level BPE without most of the bytes: small letters, digits, some signs, space and line feed."""
    words = SPECIALS + CHARACTERS + [merge.replace(" ", "") for merge in MERGES]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [CONTROL] * len(SPECIALS) + [NORMAL] * (len(words) - len(SPECIALS)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


# --- keys -------------------------------------------------------------------------------------------------------------


def head_dim(config):
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


def rope_keys(config):
    rope = config.get("rope_parameters")
    if rope is None:
        return {}
    whole = rope.get(GLOBAL, rope.get("compress", rope))  # DeepSeek-V4 has the base of other layers in own_keys()
    keys = {"rope.freq_base": whole["rope_theta"]}
    if LOCAL in rope:
        keys["rope.freq_base_swa"] = rope[LOCAL]["rope_theta"]
    if whole["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": whole["rope_type"], "rope.scaling.factor": whole["factor"]}
    if whole["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.original_context_length": whole["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": whole["beta_fast"],
            "rope.scaling.yarn_beta_slow": whole["beta_slow"],
        }
    original = config.get("original_max_position_embeddings", whole.get("original_max_position_embeddings"))
    if whole["rope_type"] == "longrope" and original:
        stretch = config["max_position_embeddings"] / original
        keys |= {
            "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": whole.get("short_mscale", math.sqrt(1 + math.log(stretch) / math.log(original))),
        }
    if "partial_rotary_factor" in rope:
        keys["rope.dimension_count"] = int(head_dim(config) * rope["partial_rotary_factor"])
    return keys


def expert_keys(config):
    """Nothing where there are none."""
    experts = [config[name] for name in ("num_experts", "num_local_experts", "n_routed_experts") if name in config]
    if not experts:
        return {}
    return {
        "expert_count": experts[0],
        "expert_used_count": config.get("top_k_experts", config.get("num_experts_per_tok")),
    }


def own_keys(model):
    """What one architecture has and others have not."""
    config, rope, architecture = model.config, model.config.get("rope_parameters"), model.architecture
    if model.keys:
        return {key: config[value] if isinstance(value, str) else value for key, value in model.keys.items()}
    if architecture in recurrent.ARCHITECTURES:
        return recurrent.own_keys(model)
    if architecture in ("llama", "mistral3", "granite"):
        keys = {"vocab_size": config["vocab_size"], "rope.dimension_count": head_dim(config)}
        if architecture == "mistral3":
            keys["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"]
            keys["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
        if architecture == "granite":
            keys["attention.scale"] = config["attention_multiplier"]
            keys["embedding_scale"] = config["embedding_multiplier"]
            keys["residual_scale"] = config["residual_multiplier"]
            keys["logit_scale"] = config["logits_scaling"]
        return keys
    if architecture == "qwen3moe":
        return {"expert_feed_forward_length": config["moe_intermediate_size"]}
    if architecture == "gemma3":
        return {"attention.sliding_window": config["sliding_window"]}
    if architecture == "gpt-oss":
        return {
            "attention.sliding_window": config["sliding_window"],
            "expert_feed_forward_length": config["intermediate_size"],
        }
    if architecture == "minimax-m2":
        return {"expert_feed_forward_length": config["intermediate_size"], "expert_gating_func": SIGMOID}
    if architecture == "phi3":
        return {"attention.sliding_window": 0}
    if architecture == "glm4moe":
        return {
            "block_count": config["num_hidden_layers"] + 1,  # the draft block that follows the layers
            "nextn_predict_layers": 1,
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_count": config["n_shared_experts"],
            "leading_dense_block_count": config["first_k_dense_replace"],
            "expert_gating_func": SIGMOID,
            "expert_weights_scale": config["routed_scaling_factor"],
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
        }
    if architecture == "gemma4":
        return gemma4_keys(config)
    if architecture == "deepseek2":
        return deepseek2_keys(config, rope)
    if architecture in ("deepseek32", "glm-dsa"):
        keys = {
            "attention.indexer.head_count": config["index_n_heads"],
            "attention.indexer.key_length": config["index_head_dim"],
            "attention.indexer.top_k": config["index_topk"],
        }
        if "indexer_types" in config:
            keys["attention.indexer.types"] = [kind == "full" for kind in config["indexer_types"]]
        return deepseek2_keys(config, rope) | keys
    if architecture == "deepseek4":
        return deepseek4_keys(config, rope)
    if architecture == "mistral4":
        return deepseek2_keys(config, rope) | {
            "expert_gating_func": SOFTMAX,
            "attention.temperature_scale": rope["llama_4_scaling_beta"],
            "attention.temperature_length": rope["original_max_position_embeddings"],
        }
    if architecture in recurrent.KIMI:
        return deepseek2_keys(config, rope or {}) | recurrent.kimi_keys(config)
    if architecture in ("step35", "mimo2"):
        return local_keys(architecture, config)
    return {}


def local_keys(architecture, config):
    """Local layers have other heads."""
    local = [kind == LOCAL for kind in config["layer_types"]]

    def of_layers(whole, own):
        return [own if is_local else whole for is_local in local]

    keys = {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": local,
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_gating_func": SIGMOID,
    }
    if architecture == "mimo2":
        kv_heads = config["num_key_value_heads"]
        return keys | {
            "attention.head_count_kv": of_layers(kv_heads, 2 * kv_heads),
            "attention.value_length": config["v_head_dim"],
            "attention.value_scale": config["attention_value_scale"],
            "rope.dimension_count": int(config["head_dim"] * config["rope_parameters"][GLOBAL]["partial_rotary_factor"]),
        }
    return keys | {
        "attention.head_count": of_layers(config["num_attention_heads"], config["num_sliding_attention_heads"]),
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "expert_shared_feed_forward_length": config["share_expert_dim"],
        "expert_weights_scale": config["moe_router_scaling_factor"],
        "swiglu_clamp_exp": config["swiglu_limits"],
        "swiglu_clamp_shexp": config["swiglu_limits_shared"],
    }


def deepseek2_keys(config, rope):
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    keys = {
        "vocab_size": config["vocab_size"],
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.kv_lora_rank": rank,
        # Published files of V2 Lite have no such key. Without it llama.cpp knows V2 Lite by its 27 layers.
        "attention.q_lora_rank": config["q_lora_rank"] or 0,
        "rope.dimension_count": rotated,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
    }
    if config["norm_topk_prob"]:  # all but V2
        keys |= {"expert_weights_norm": True, "expert_gating_func": SIGMOID, "expert_group_count": config["n_group"],
                 "expert_group_used_count": config["topk_group"]}
    if "mscale_all_dim" in rope:
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]  # of other architectures: without 0.1
    if "num_nextn_predict_layers" in config:
        keys |= {"block_count": config["num_hidden_layers"] + 1, "nextn_predict_layers": 1}
    return keys


def deepseek4_keys(config, rope):
    rates = {"sliding_attention": 0, **config["compress_rates"]}
    layers = config["num_hidden_layers"]
    return {
        "rope.freq_base": rope["main"]["rope_theta"],
        "rope.dimension_count": int(config["head_dim"] * rope["main"]["partial_rotary_factor"]),
        "attention.compress_rope_freq_base": rope["compress"]["rope_theta"],
        "attention.compress_ratios": [rates[kind] for kind in config["layer_types"]],
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.sliding_window": config["sliding_window"],
        "attention.output_group_count": config["o_groups"],
        "attention.output_lora_rank": config["o_lora_rank"],
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
        "hyper_connection.count": config["hc_mult"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
        "hyper_connection.epsilon": config["hc_eps"],
        "hash_layer_count": config["mlp_layer_types"].count("hash_moe"),
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_gating_func": SQRT_SOFTPLUS,
        "expert_weights_norm": True,
        "expert_weights_scale": config["routed_scaling_factor"],
        "swiglu_clamp_exp": [config["swiglu_limit"]] * layers,
        "swiglu_clamp_shexp": [config["swiglu_limit"]] * layers,
        "embedding_length_out": config["hc_mult"] * config["hidden_size"],
    }


def unsplit_keys(config):
    """What files with attn_kv_b say otherwise: heads as they are without the latent."""
    return {
        "attention.head_count_kv": config["num_attention_heads"],
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": config["v_head_dim"],
        "attention.key_length_mla": None,
        "attention.value_length_mla": None,
    }


def gemma4_keys(config):
    layers, local = config["num_hidden_layers"], [kind == LOCAL for kind in config["layer_types"]]
    keys = {
        "attention.key_length": config["global_head_dim"],
        "attention.value_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "rope.dimension_count": config["global_head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": local,
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
    }
    # Written where there is none, too: llama.cpp takes an absent key for 30.
    keys["final_logit_softcapping"] = config["final_logit_softcapping"] or 0.0
    if config["use_double_wide_mlp"]:
        first_shared, width = layers - config["num_kv_shared_layers"], config["intermediate_size"]
        keys["feed_forward_length"] = [width if layer < first_shared else 2 * width for layer in range(layers)]
    if "num_global_key_value_heads" in config:
        keys["attention.head_count_kv"] = [
            config["num_key_value_heads"] if is_local else config["num_global_key_value_heads"] for is_local in local
        ]
    if config["enable_moe_block"]:
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    return keys


NAMES = {  # of what nearly all architectures have; Mamba-2 has no heads, for one
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
    "norm_eps": "attention.layer_norm_rms_epsilon",
}


def weight_keys(model, weights):
    """What a checkpoint has as tensors and GGUF as keys: the shape of Apertus's activations, of each layer."""
    keys = {}
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        tensors = [f"model.layers.{layer}.mlp.act_fn.{name}" for layer in range(model.config.get("num_hidden_layers", 0))]
        if tensors and tensors[0] in weights:
            keys[f"{model.architecture}.xielu.{name}"] = [float(weights[tensor].reshape(-1)[0]) for tensor in tensors]
    hashes = {"layer_multipliers": "layer_multipliers", "ngram_heads_vocab_sizes": "head_vocab_sizes",
              "ngram_heads_offsets": "head_offsets"}
    for name, values in weights.items():
        if (key := hashes.get(name.rpartition(".")[2])) is not None:
            keys[f"{model.architecture}.ple.{key}"] = [int(value) for value in values]
    return keys


def all_keys(model, unsplit):
    config = model.config
    names = {name: key for name, key in NAMES.items() if name not in model.keys.values()}
    keys = {key: config[name] for name, key in names.items() if name in config}
    if "head_dim" in config and "num_attention_heads" in config:
        keys |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    keys |= rope_keys(config) | expert_keys(config) | own_keys(model)
    if unsplit and not model.unsplit_only:
        keys = {name: value for name, value in (keys | unsplit_keys(config)).items() if value is not None}
    return {
        "general.architecture": model.architecture,
        "general.name": "tiny random checkpoint",  # llama.cpp treats some models by their names
        "general.file_type": 1,  # mostly F16
        **{f"{model.architecture}.{key}": value for key, value in keys.items()},
        **tokenizer_keys(),
    }


# --- tensors ----------------------------------------------------------------------------------------------------------


def neighbours(rows, heads):
    """Rows of q or k (or their biases): what rotates with half a head's distance comes to stand side by side."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def halves(rows, heads, rotary):
    """What rotates side by side, in the first `rotary` channels of each head, comes to stand half of these apart."""
    apart = rows.reshape(heads, rows.shape[0] // heads, *rows.shape[1:])
    turned = apart[:, :rotary].reshape(heads, rotary // 2, 2, *rows.shape[1:]).swapaxes(1, 2)
    return np.concatenate([turned.reshape(apart[:, :rotary].shape), apart[:, rotary:]], axis=1).reshape(rows.shape)


def layer_name(model, part):
    own_stem, _, own_ending = part.rpartition(".")
    if own_stem in model.names:
        return f"{model.names[own_stem]}.{own_ending}"
    if part in model.names:
        return model.names[part]
    if part == "post_attention_layernorm.weight":
        return "post_attention_norm.weight" if model.architecture in POST_ATTENTION else "ffn_norm.weight"
    stem, _, ending = part.rpartition(".")
    if part in LAYER:
        return LAYER[part]
    return f"{LAYER[stem]}.{ending}"  # KeyError: a parameter this file does not know


def expert_parts(model, part, values):
    """[(name, values)] of the experts' matrices, which GGUF has as [experts, outputs, inputs]."""
    if model.architecture == "gpt-oss":
        ending = "bias" if part.endswith("_bias") else "weight"
        if ending == "weight":
            values = values.swapaxes(-1, -2)
        if "down_proj" in part:
            return [(f"ffn_down_exps.{ending}", values)]
        gate, up = (values[:, 0::2], values[:, 1::2])
        return [(f"ffn_gate_exps.{ending}", gate), (f"ffn_up_exps.{ending}", up)]
    if model.architecture == "llama4":  # [experts, inputs, outputs], gates before ups
        parts = np.split(values, 2, axis=-1) if "gate_up" in part else [values]
        names = ["gate", "up"] if "gate_up" in part else ["down"]
        return [(f"ffn_{own}_exps.weight", own_values.swapaxes(1, 2)) for own, own_values in zip(names, parts)]
    joined = ("mlp.experts.gate_up_proj", "block_sparse_moe.experts.gate_up_proj")
    if part in joined and model.architecture != "mistral4":
        gate, up = np.split(values, 2, axis=1)
        return [("ffn_gate_exps.weight", gate), ("ffn_up_exps.weight", up)]
    if part == "mlp.experts.gate_up_proj":  # left in one, as published files have them
        return [("ffn_gate_up_exps.weight", values)]
    return [(layer_name(model, part), values)]


def latent_parts(config, values):
    """attn_kv_b [heads x (nope | v), rank] as what is multiplied with queries and with the sums of latents."""
    nope = config["qk_nope_head_dim"]
    heads = values.reshape(config["num_attention_heads"], nope + config["v_head_dim"], config["kv_lora_rank"])
    return [("attn_k_b.weight", heads[:, :nope].swapaxes(1, 2)), ("attn_v_b.weight", heads[:, nope:])]


def by_kinds(values, group, heads):
    """Rows of q, k and v of each group of heads (or their biases), as all of q, then of k, then of v."""
    groups = values.reshape(heads // group, group + 2, -1, *values.shape[1:])
    parts = (groups[:, :group], groups[:, group], groups[:, group + 1])
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def layer_tensors(model, layer, part, values, unsplit):
    if part.startswith("mlp.act_fn."):
        return []  # numbers of weight_keys()
    if model.transposed and values.ndim == 2:
        values = values.T
    if model.grouped and "query_key_value" in part:
        values = by_kinds(values, model.grouped, model.config.get("num_attention_heads", model.config.get("n_head")))
    if model.architecture in recurrent.ARCHITECTURES:
        return recurrent.layer_tensors(model, part, values)
    if model.architecture in recurrent.KIMI and (made := recurrent.kimi_delta(model, layer, part, values)) is not None:
        return made
    if part == "shared_mlp.input_linear.weight":
        gate, up = np.split(values, 2)
        return [("ffn_gate_shexp.weight", gate), ("ffn_up_shexp.weight", up)]
    if model.architecture == "minimax-m3" and part.endswith("gate_up_proj.weight"):  # not of experts
        ending = "_shexp" if "shared" in part else ""
        return [(f"ffn_{own}{ending}.weight", rows) for own, rows in zip(("gate", "up"), np.split(values, 2))]
    if part.endswith(("moe_statics.e_score_correction_bias", "shared_expert_gate.weight")):
        values = values.reshape(-1)
    if part == "self_attn.kv_b_proj.weight" and not unsplit:
        return latent_parts(model.config, values)
    if "experts." in part and "shared" not in part:
        return expert_parts(model, part, values)
    if model.architecture in NORMAL_ROPE or model.neighbours:
        if "q_proj" in part:
            values = neighbours(values, model.config["num_attention_heads"])
        if "k_proj" in part:
            values = neighbours(values, model.config["num_key_value_heads"])
    if model.halves and ("q_proj" in part or "k_proj" in part):
        heads = model.config["num_attention_heads" if "q_proj" in part else "num_key_value_heads"]
        values = halves(values, heads, model.halves)
    if part.endswith("norm.weight"):
        values = values + np.float32(model.norm_shift)
    return [(layer_name(model, part), values)]


def rope_tensors(model):
    """Factors that divide the frequencies."""
    config, rope = model.config, model.config.get("rope_parameters", {})
    if rope.get(GLOBAL, rope).get("rope_type") == "llama3":
        rope = rope.get(GLOBAL, rope)
        dim = int(head_dim(config) * rope.get("partial_rotary_factor", 1))
        original, factor = rope["original_max_position_embeddings"], rope["factor"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        factors = []
        for i in range(dim // 2):
            turns = original / (2 * math.pi * rope["rope_theta"] ** (2 * i / dim))  # of the original context
            smooth = min(max((turns - low) / (high - low), 0), 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
        factors += [1.0] * ((head_dim(config) - dim) // 2)  # of layers that rotate more channels, without factors
        return [("rope_freqs.weight", factors)]
    if rope.get("rope_type") == "longrope":
        return [("rope_factors_long.weight", rope["long_factor"]), ("rope_factors_short.weight", rope["short_factor"])]
    if rope.get(GLOBAL, {}).get("rope_type") == "proportional":
        pairs = config["global_head_dim"] // 2
        rotated = int(config["global_head_dim"] * rope[GLOBAL]["partial_rotary_factor"] / 2)
        return [("rope_freqs.weight", [1.0] * rotated + [1e30] * (pairs - rotated))]
    return []


def fused(tensors):
    """q, k and v of each layer as rows of one tensor."""
    by_name = dict(tensors)
    for name in [name for name in by_name if ".attn_q." in name]:
        stem, ending = name.split(".attn_q.")
        parts = [by_name.pop(f"{stem}.attn_{part}.{ending}") for part in "qkv"]
        by_name[f"{stem}.attn_qkv.{ending}"] = np.concatenate(parts)
    return list(by_name.items())


def gates_before_ups(tensors):
    """Both of each layer as rows of one tensor."""
    by_name = dict(tensors)
    for name in [name for name in by_name if ".ffn_gate." in name]:
        up = name.replace(".ffn_gate.", ".ffn_up.")
        by_name[up] = np.concatenate([by_name.pop(name), by_name[up]])
    return list(by_name.items())


def draft_block(tensors, layer, width):
    """A draft block behind the layers, which is no layer: last layer's tensors once more, and those of its own."""
    last = [(name, values) for name, values in tensors if name.startswith(f"blk.{layer - 1}.")]
    block = [(name.replace(f"blk.{layer - 1}.", f"blk.{layer}."), values) for name, values in last]
    more = {"eh_proj": (width, 2 * width), "enorm": (width,), "hnorm": (width,), "shared_head_norm": (width,)}
    return block + [(f"blk.{layer}.nextn.{name}.weight", np.ones(shape, np.float32)) for name, shape in more.items()]


def stacked(weights):
    """[(GGUF name, values)] of matrices that lie apart and not in layers: Gemma 3n's between residual streams."""
    tensors = []
    for stem, own in {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}.items():
        parts = [weights[name] for name in sorted(weights) if name.startswith(f"model.{stem}.")]
        tensors += [(f"{own}.weight", np.stack(parts))] if parts else []
    return tensors


def all_tensors(model, weights, unsplit):
    """[(GGUF name, values)] of a checkpoint. Every parameter has its place, or KeyError tells which has none."""
    tensors = stacked(weights)
    for name, values in weights.items():
        if name.startswith("model.altup_"):
            continue
        if name == "lm_head.weight" and model.config["tie_word_embeddings"]:
            continue
        in_layer = re.fullmatch(r"(?:model|backbone|gpt_neox|transformer)\.(?:layers|h|blocks)\.(\d+)\.(.+)", name)
        if in_layer:
            layer, part = in_layer.groups()
            if part == recurrent.NGRAM_TABLE:
                tensors.append(("per_layer_token_embd.weight", values))
                continue
            parts = layer_tensors(model, layer, part, values, unsplit)
            tensors += [(f"blk.{layer}.{own}", own_values) for own, own_values in parts]
        else:
            shift = np.float32(model.norm_shift if name in SHIFTED else 0)
            values = values * np.float32(recurrent.top_factor(model, name))
            tensors.append((TOP[name], values + shift))
    tensors += [(name, np.array(factors, np.float32)) for name, factors in rope_tensors(model)]
    if model.architecture == "plamo3":
        tensors = gates_before_ups(tensors)
    if model.fused or model.architecture in ("bailingmoe2", "chatglm"):
        tensors = fused(tensors)
    if "nextn_predict_layers" in own_keys(model):
        tensors += draft_block(tensors, model.config["num_hidden_layers"], model.config["hidden_size"])
    return sorted(tensors, key=lambda tensor: [int(word) if word.isdigit() else word for word in tensor[0].split(".")])


def tensor_type(name, values, mxfp4):
    if name.endswith("tid2eid.weight"):
        return gguf.TENSOR_I32
    kept = (".ffn_gate_inp.", "_fn.", "_ape.", ".altup_router.", "_coef.", ".indexer.proj.", ".ssm_conv1d", ".ssm_norm.", ".shortconv.conv.", ".ple_conv1d.", "position_embd")
    if values.ndim == 1 or not name.endswith(".weight") or any(part in name for part in kept):
        return gguf.TENSOR_F32
    return gguf.TENSOR_MXFP4 if mxfp4 and "_exps." in name else gguf.TENSOR_F16


def files(model, weights):
    """{file name: bytes} of a checkpoint. weights: {transformers' name: float array}."""
    packed = {}
    for name in model.files():
        unsplit, mxfp4 = name.endswith("-unsplit") or model.unsplit_only, model.mxfp4 and not name.endswith("-f16")
        tensors = all_tensors(model, weights, unsplit)
        typed = [(own, values, tensor_type(own, values, mxfp4)) for own, values in tensors]
        packed[f"{name}.gguf"] = gguf.pack(all_keys(model, unsplit) | weight_keys(model, weights), typed)
    return packed
