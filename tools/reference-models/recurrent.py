"""Layers that keep a state, and what stands beside them: keys and tensors as llama.cpp's converters write them.

What is not a change of name: A is -exp(A_log); a convolution loses its middle axis; Qwen3-Next's fused projections are
sorted by what they make; Qwen3.5's value heads are sorted so that value head h reads key head h mod key heads, where
the checkpoint has h / (value heads a key head).
"""

import numpy as np

QWEN = {"qwen3next", "qwen35", "qwen35moe", "qwen4exp"}
TILED = {"qwen35", "qwen35moe", "qwen4exp"}
MAMBA = {"mamba2", "nemotron_h", "nemotron_h_moe", "granitehybrid", "falcon-h1"}
MAMBA_FIRST = {"mamba", "jamba"}  # with a step for each channel
SHORT_CONVOLUTION = {"lfm2", "lfm2moe"}
ARCHITECTURES = QWEN | MAMBA | MAMBA_FIRST | SHORT_CONVOLUTION
KIMI = ("kimi-linear", "bailingmoe3")  # whose other layers and feed-forwards are convert.py's
SIGMOID = 2  # expert_gating_func

# Of a layer's parameters, without what stands before the mixer's name.
MIXER = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "dt_bias": "ssm_dt.bias",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "dt_layernorm": "ssm_dt_norm",
    "b_layernorm": "ssm_b_norm",
    "c_layernorm": "ssm_c_norm",
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_b": "ssm_beta",
    "in_proj_a": "ssm_alpha",
    "in_proj_ba": "ssm_ba",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.router": "ffn_gate_inp",
    "pre_ff_layernorm": "ffn_norm",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "feed_forward.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "block_sparse_moe.router": "ffn_gate_inp",
    "shared_mlp.output_linear": "ffn_down_shexp",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    # Nemotron-H calls whatever a block does its mixer.
    "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mixer.experts.up_proj": "ffn_up_exps.weight",
    "mixer.experts.down_proj": "ffn_down_exps.weight",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
    # Qwen3.8-Flash-Next: residual streams, n-grams and the choice of blocks.
    **{f"{part}_hyper_connection.{name}": f"hc_{own}_{short}" for part, own in (("attn", "attn"), ("mlp", "ffn"))
       for name, short in (("hc_norm", "norm"), ("input_mix_weight_down", "down"), ("input_mix_weight_up", "up"),
                           ("block_inject_weight", "inject"))},
    "ple.key_proj": "ple_key",
    "ple.value_proj": "ple_value",
    "ple.norm_key": "ple_norm_key",
    "ple.norm_query": "ple_norm_query",
    "ple.norm_conv": "ple_norm_conv",
    "ple.conv1d": "ple_conv1d",
    "self_attn.indexer.q_layernorm": "indexer.q_norm",
    "self_attn.indexer.k_layernorm": "indexer.k_norm",
}
NGRAM_TABLE = "ple.ple_embedding.ngram_embedding.weight"
KIMI_DELTA = {
    "forget_gate.f_a_proj": "ssm_f_a",
    "forget_gate.f_b_proj": "ssm_f_b",
    "forget_gate.f_proj": "ssm_f_a",
    "forget_gate.dt_bias": "ssm_dt.bias",
    "forget_gate.A_log": "ssm_a",
    "g_a_proj": "ssm_g_a",
    "g_b_proj": "ssm_g_b",
    "b_proj": "ssm_beta",
    "o_norm": "ssm_norm",
}
MIXER_PREFIXES = ("linear_attn.", "mamba.", "mixer.")
GATES_AND_UPS = ("experts.gate_up_proj", "block_sparse_moe.input_linear.weight", "shared_mlp.input_linear.weight")
EXPERTS_DOWN = ("experts.down_proj", "block_sparse_moe.output_linear.weight")


# --- keys -------------------------------------------------------------------------------------------------------------


def delta_net_keys(model):
    config = model.config
    attends = [kind == "full_attention" for kind in config["layer_types"]]
    keys = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "full_attention_interval": attends.index(True) + 1,
    }
    if "mrope_section" in config["rope_parameters"]:
        keys["rope.dimension_sections"] = [*config["rope_parameters"]["mrope_section"], 0]
    if "moe_intermediate_size" in config:
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
        keys["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    if model.architecture == "qwen4exp":
        keys |= qwen4exp_keys(config, attends)
    if model.architecture == "qwen35moe":
        keys |= {"block_count": config["num_hidden_layers"] + 1, "nextn_predict_layers": 1}
    return keys


def qwen4exp_keys(config, attends):
    heads = (config["ngram_size"] - 1) * config["heads_per_ngram"]
    return {
        "hyper_connection.count": config["hc_count"],
        "hyper_connection.low_rank": config["hc_lowrank"],
        "attention.indexer.head_count": config["indexer_n_heads"],
        "attention.indexer.key_length": config["indexer_head_dim"],
        "attention.indexer.top_k": config["indexer_budget"],
        "attention.compress_ratios": [config["indexer_compress_ratio"] if own else 0 for own in attends],
        "ple.layers": [layer - 1 for layer in config["ple_layer_ids"]],
        "ple.ngram_size": config["ngram_size"],
        "ple.heads_per_ngram": config["heads_per_ngram"],
        "ple.conv_kernel": config["ple_conv_kernel_size"],
        "ple.eos_token_id": config["eos_token_id"],
        "ple.image_token_id": config["vocab_size"] - 1,  # vision.IMAGE
        "embedding_length_per_layer_input": config["ple_embed_dim"] // heads,
    }


def mamba2_keys(config):
    inner = config["expand"] * config["hidden_size"]
    return {
        "context_length": 512, "feed_forward_length": 0, "attention.head_count": 0,
        "ssm.conv_kernel": config["conv_kernel"], "ssm.state_size": config["state_size"],
        "ssm.group_count": config["n_groups"], "ssm.inner_size": inner,
        "ssm.time_step_rank": inner // config["head_dim"],
    }


def nemotron_keys(model):
    config, pattern = model.config, model.config["hybrid_override_pattern"]
    mixture = model.architecture == "nemotron_h_moe"
    width = config["moe_intermediate_size"] if mixture else config["intermediate_size"]
    keys = {
        "block_count": len(pattern),
        "attention.head_count_kv": [config["num_key_value_heads"] if kind == "*" else 0 for kind in pattern],
        "feed_forward_length": [width if kind in "-E" else 0 for kind in pattern],
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": config["conv_kernel"], "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"], "ssm.time_step_rank": config["mamba_num_heads"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
    }
    if mixture:
        if config["moe_latent_size"] is not None:
            keys["moe_latent_size"] = config["moe_latent_size"]
        keys |= {
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_weights_scale": config["routed_scaling_factor"],
            "expert_group_count": config["n_group"],
        }
    return keys


def granite_keys(config):
    kv_heads = config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [kv_heads if kind == "attention" else 0 for kind in config["layer_types"]],
        "attention.scale": config["attention_multiplier"], "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"], "logit_scale": config["logits_scaling"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"], "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": config["mamba_n_heads"] * config["mamba_d_head"],
    }


def mamba_keys(config):
    inner = config["expand"] * config["hidden_size"]
    return {
        "context_length": 512, "feed_forward_length": 0, "attention.head_count": 0,
        "ssm.conv_kernel": config["conv_kernel"], "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": config["time_step_rank"], "ssm.inner_size": inner,
        "ssm.dt_b_c_rms": "mixer_rms_eps" in config,
    } | ({"ssm.dt_b_c_rms_epsilon": config["mixer_rms_eps"]} if "mixer_rms_eps" in config else {})


def jamba_keys(config):
    attends = [layer % config["attn_layer_period"] == config["attn_layer_offset"] for layer in range(config["num_hidden_layers"])]
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] if own else 0 for own in attends],
        "ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_dt_rank"], "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
    }


def falcon_h1_keys(config):
    return {
        "ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"], "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": config["mamba_d_ssm"],
    }


def multiplied(part, values, config):
    """A parameter of Falcon-H1 as files have it: with what its result, or a part of its result, is multiplied by."""
    gate, down = config["mlp_multipliers"]
    whole = {"self_attn.q_proj": config["attention_in_multiplier"], "self_attn.v_proj": config["attention_in_multiplier"],
             "self_attn.k_proj": config["attention_in_multiplier"] * config["key_multiplier"],
             "self_attn.o_proj": config["attention_out_multiplier"], "mamba.out_proj": config["ssm_out_multiplier"],
             "feed_forward.gate_proj": gate, "feed_forward.down_proj": down}
    stem = part.removesuffix(".weight")
    if stem == "mamba.in_proj":
        inner, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        rows = [inner, inner, state, state, config["mamba_n_heads"]]
        return values * (np.repeat(config["ssm_multipliers"], rows) * config["ssm_in_multiplier"]).astype(np.float32)[:, None]
    return values * np.float32(whole.get(stem, 1))


def top_factor(model, name):
    """What a parameter outside the layers is multiplied by in a file."""
    if model.architecture == "plamo3":  # Gemma 3 scales its embeddings
        return model.config["hidden_size"] ** 0.5 if name == "model.embed_tokens.weight" else 1
    if model.architecture != "falcon-h1":
        return 1
    return {"model.embed_tokens.weight": model.config["embedding_multiplier"],
            "lm_head.weight": model.config["lm_head_multiplier"]}.get(name, 1)


def short_convolution_keys(config):
    kv_heads = config["num_key_value_heads"]
    keys = {
        "attention.head_count_kv": [0 if kind == "conv" else kv_heads for kind in config["layer_types"]],
        "shortconv.l_cache": config["conv_L_cache"], "vocab_size": config["vocab_size"],
    }
    if "num_experts" in config:
        keys |= {
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "leading_dense_block_count": config["num_dense_layers"], "expert_gating_func": SIGMOID,
        }
    return keys


def kimi_keys(config):
    attends = [kind == "full_attention" for kind in config["layer_types"]]
    keys = {"attention.head_count_kv": [int(own) for own in attends]}
    if "kda_lower_bound" in config:
        return keys | {"kda.head_dim": config["head_dim"], "ssm.conv_kernel": config["short_conv_kernel_size"],
                       "kda.safe_gate": True, "kda.gate_lower_bound": config["kda_lower_bound"]}
    return keys | {"kda.head_dim": config["linear_head_dim"], "ssm.conv_kernel": config["linear_conv_kernel_dim"]}


def own_keys(model):
    if model.architecture in QWEN:
        return delta_net_keys(model)
    if model.architecture in SHORT_CONVOLUTION:
        return short_convolution_keys(model.config)
    if model.architecture == "mamba2":
        return mamba2_keys(model.config)
    if model.architecture == "falcon-h1":
        return falcon_h1_keys(model.config)
    if model.architecture in MAMBA_FIRST:
        return mamba_keys(model.config) if model.architecture == "mamba" else jamba_keys(model.config)
    return granite_keys(model.config) if model.architecture == "granitehybrid" else nemotron_keys(model)


# --- tensors ----------------------------------------------------------------------------------------------------------


def tiled(values, config, head_dim, axis=0):
    """Value heads along an axis: [key heads, value heads a key head] becomes [value heads a key head, key heads]."""
    key_heads = config["linear_num_key_heads"]
    each = config["linear_num_value_heads"] // key_heads
    values = np.moveaxis(values, axis, 0)
    sorted_ = values.reshape(key_heads, each, head_dim, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)
    return np.moveaxis(sorted_, 0, axis)


def tile_heads(part, values, config):
    """A parameter of Qwen3.5's gated delta net with its value heads in the file's order."""
    dim, keys = config["linear_value_head_dim"], 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        return np.concatenate([values[:keys], tiled(values[keys:], config, dim)])
    if part == "in_proj_z.weight":
        return tiled(values, config, dim)
    if part == "out_proj.weight":
        return tiled(values, config, dim, axis=1)
    return values if part == "norm.weight" else tiled(values, config, 1)


def sort_projections(values, config):
    """[(name, values)] of Qwen3-Next's q, k, v and z, which the checkpoint has one key head after the other."""
    heads, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    value_dim = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    by_head = values.reshape(heads, -1, values.shape[1])
    parts = np.split(by_head, np.cumsum([key_dim, key_dim, value_dim]), axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
    return [("attn_qkv.weight", np.concatenate([q, k, v])), ("attn_gate.weight", z)]


def mixer_tensors(model, part, values):
    """Of a gated delta net or a Mamba-2 scan."""
    if part == "in_proj_qkvz.weight":
        return sort_projections(values, model.config)
    if model.architecture in TILED:
        values = tile_heads(part, values, model.config)
    mamba = model.architecture in MAMBA
    stem, _, ending = part.rpartition(".")
    if part == "A_log":
        values = -np.exp(values)
    if part in ("A_log", "D") and mamba:
        values = values.reshape(-1, 1)
    if part == "norm.weight" and mamba:
        groups = model.config.get("n_groups", model.config.get("mamba_n_groups"))
        values = values.reshape(groups, -1)
    if part == "conv1d.weight":
        values = values.reshape(values.shape[0], -1)
    return [(MIXER[part] if part in MIXER else f"{MIXER[stem]}.{ending}", values)]


def gates_and_ups(part, values):
    gate, up = np.split(values, 2, axis=-2)
    ending = "shexp" if part.startswith("shared_mlp") else "exps"
    return [(f"ffn_gate_{ending}.weight", gate), (f"ffn_up_{ending}.weight", up)]


def kimi_delta(model, layer, part, values):
    """[(name, values)] of a parameter of its layers with a state; None: it is none."""
    part = part.removeprefix("self_attn.")
    if part == "g_proj.weight":  # Ling 3: of a state's results, or of heads
        attends = model.config["layer_types"][int(layer)] == "full_attention"
        return [("attn_gate.weight" if attends else "ssm_g_a.weight", values)]
    if part == "conv1d.weight":  # of queries, keys and values, [channels, 1, taps] each
        return [(f"ssm_conv1d_{own}.weight", own_values) for own, own_values in zip("qkv", np.split(values, 3))]
    stem, _, ending = part.rpartition(".")
    if part == "forget_gate.A_log":
        values = (1 if model.architecture == "bailingmoe3" else -1) * np.exp(values).reshape(-1, 1)
    if part in KIMI_DELTA:
        return [(KIMI_DELTA[part], values)]
    return [(f"{KIMI_DELTA[stem]}.{ending}", values)] if stem in KIMI_DELTA else None


def layer_tensors(model, part, values):
    """[(name, values)] of a layer's parameter. KeyError: one that this file does not know."""
    if model.architecture == "falcon-h1":
        if part == "pre_ff_layernorm.weight":
            return [("ffn_norm", values)]
        values = multiplied(part, values, model.config)
    for prefix in MIXER_PREFIXES:
        own = part.removeprefix(prefix)
        if own != part and (own in MIXER or own.rpartition(".")[0] in MIXER or own == "in_proj_qkvz.weight"):
            return mixer_tensors(model, own, values)
    if part.startswith("ple.ple_embedding."):
        return []  # numbers of convert.weight_keys()
    if part == "self_attn.indexer.index_qk_proj.weight":
        queries = model.config["indexer_n_heads"] * model.config["indexer_head_dim"]
        return [("indexer.q_proj.weight", values[:queries]), ("indexer.k_proj.weight", values[queries:])]
    if part.endswith(GATES_AND_UPS):
        return gates_and_ups(part, values)
    if part.endswith(EXPERTS_DOWN) and "mixer" not in part:
        return [("ffn_down_exps.weight", values)]
    if part == "post_attention_layernorm.weight":
        name = "post_attention_norm.weight" if model.architecture in QWEN else "ffn_norm.weight"
        return [(name, values + np.float32(model.norm_shift))]
    if part in LAYER:
        return [(LAYER[part], values)]
    stem, _, ending = part.rpartition(".")
    if part.endswith("norm.weight") or part.startswith("ple.norm_"):
        values = values + np.float32(model.norm_shift)
    if part == "ple.conv1d.weight":
        values = values.reshape(values.shape[0], -1)
    if part == "conv.conv.weight":
        values = values.reshape(values.shape[0], -1)
    if part == "mlp.shared_expert_gate.weight":
        values = values.reshape(-1)
    return [(f"{LAYER[stem]}.{ending}", values)]
