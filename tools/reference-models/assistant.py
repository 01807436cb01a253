"""Makes assistants of Gemma 4 for two reference checkpoints, and what transformers answers with them.

    python3 assistant.py REFERENCE_DIR OUT_DIR

Writes NAME.gguf and NAME.bin (tests/data/reference/README.md) for each of ASSISTANTS, random assistants for gemma4.gguf
and gemma4-moe.gguf, to OUT_DIR, which is tests/data/heads. Needs what make.py needs. The checkpoints' weights are drawn
again as make.py draws them, and have to give the logits of their .bin files; keys, values and states are theirs.

NAME.bin has a prompt for each of STARTS. Its first token is the checkpoint's of that position, by the keys of all
positions before it and the state of the last of them; behind it come the tokens that the row before thinks likeliest,
each by that row's own state.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

import eagle3
import gguf
import make
import zoo

STARTS = (10, 40, 79)  # positions; the window is of 16
GUESSES = 3
ASSISTANTS = {
    "gemma4-assistant": dict(target="gemma4", hidden_size=64, layers=[zoo.LOCAL, zoo.LOCAL, zoo.GLOBAL]),
    "gemma4-assistant-moe": dict(target="gemma4-moe", hidden_size=32, layers=[zoo.LOCAL, zoo.GLOBAL]),
}
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.q_norm": "attn_q_norm",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
       "pre_projection.weight": "nextn.pre_projection.weight", "post_projection.weight": "nextn.post_projection.weight"}


def target_of(name, source):
    """The network, and the tokens of its reference."""
    (model,) = [one for one in zoo.MODELS if one.name == name]
    own = make.Model(model, make.draw_all(model, seed=1))
    tokens, expected = eagle3.read_reference(source / f"{name}.bin")
    error = make.difference(own.logits(tokens[None].astype(np.int64))[0], expected)
    print(f"{name}: {error:.1e} from its reference")
    if error > 1e-5:
        raise SystemExit("these weights are not the checkpoint's; use the versions of tests/e2e/transformers.txt")
    return model, own.net, tokens


def build(target, hidden_size, layers, random):
    """The window is that of the token that is fed, which has no key of its own. Without a cache that forgets, transformers
    counts from the last key, and both ends."""
    config = target.config
    changes = {"hidden_size": hidden_size, "num_hidden_layers": len(layers), "layer_types": layers, "intermediate_size": 48,
               "num_kv_shared_layers": len(layers), "use_double_wide_mlp": False,
               "sliding_window": config["sliding_window"] - 2, "hidden_size_per_layer_input": 0,
               "vocab_size_per_layer_input": 0, "enable_moe_block": False, "final_logit_softcapping": None}
    net = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(
        text_config=make.find_class(target, target.config_class)(**config | changes), backbone_hidden_size=config["hidden_size"]))
    net.config._attn_implementation = net.model.config._attn_implementation = "eager"
    net = net.float().eval().requires_grad_(False)
    for name, tensor in net.state_dict().items():
        if name.startswith("lm_head"):  # tied
            continue
        shape = tuple(tensor.shape)
        if "norm" in name:
            values = 1 + 0.25 * random.standard_normal(shape)
            values *= 0.4 if "q_norm" in name else 1
        elif name.endswith("layer_scalar"):
            values = 0.7 + 0.3 * random.random(shape)
        else:
            values = random.standard_normal(shape) * 1.5 / np.sqrt(shape[-1])
        tensor.copy_(torch.from_numpy(values.astype(np.float16).astype(np.float32)))
    return net


def gguf_of(net, target):
    """The file's bytes."""
    text, config = net.config.get_text_config(), target.config
    local = [kind == zoo.LOCAL for kind in text.layer_types]
    whole, wide, kv_heads = text.rope_parameters[zoo.GLOBAL], config["global_head_dim"], config["num_key_value_heads"]
    keys = {
        "block_count": len(local), "nextn_predict_layers": len(local), "context_length": 512,
        "embedding_length": text.hidden_size, "embedding_length_out": net.config.backbone_hidden_size,
        "feed_forward_length": text.intermediate_size, "attention.head_count": text.num_attention_heads,
        "attention.head_count_kv": [kv_heads if here else config.get("num_global_key_value_heads", kv_heads) for here in local],
        "attention.key_length": wide, "attention.value_length": wide,
        "attention.key_length_swa": config["head_dim"], "attention.value_length_swa": config["head_dim"],
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": local,
        "attention.shared_kv_layers": len(local), "attention.layer_norm_rms_epsilon": text.rms_norm_eps,
        "rope.freq_base": whole["rope_theta"], "rope.freq_base_swa": text.rope_parameters[zoo.LOCAL]["rope_theta"],
        "rope.dimension_count": wide, "rope.dimension_count_swa": config["head_dim"],
    }
    tensors = {}
    for name, tensor in net.state_dict().items():
        if name in TOP:
            tensors[TOP[name]] = tensor.numpy()
        elif name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            part = "layer_output_scale" if rest == "layer_scalar" else NAMES[rest.removesuffix(".weight")]
            tensors[f"blk.{layer}.{part}.weight"] = tensor.numpy().reshape(-1) if part == "layer_output_scale" else tensor.numpy()
    half, part = wide // 2, whole["partial_rotary_factor"]
    factors = np.full(half, 1e30, np.float32)
    factors[: int(part * half)] = 1
    tensors["rope_freqs.weight"] = factors
    packed = [(name, values, gguf.TENSOR_F16 if values.ndim == 2 else gguf.TENSOR_F32) for name, values in tensors.items()]
    architecture = "gemma4-assistant"
    return gguf.pack({"general.architecture": architecture, "general.name": "a random assistant of Gemma 4",
                      **{f"{architecture}.{key}": value for key, value in keys.items()}}, packed)


def answers(net, target, tokens, start):
    """Tokens that are fed, and logits."""
    ids = torch.as_tensor(tokens[:start].astype(np.int64))[None]
    read = target.model(input_ids=ids, use_cache=False, return_shared_kv_states=True, output_hidden_states=True)
    state = read.last_hidden_state[:, -1:]
    if not torch.equal(state, read.hidden_states[-1][:, -1:]):
        raise SystemExit("the last of the hidden states is not the final one")
    fed, rows = [int(tokens[start])], []
    while True:
        embedding = target.get_input_embeddings()(torch.tensor([[fed[-1]]]))
        given = net(inputs_embeds=torch.cat([embedding, state], dim=-1), position_ids=torch.tensor([[start]]),
                    shared_kv_states=dict(read.shared_kv_states))
        rows.append(given.logits[0, 0].numpy())
        if len(rows) > GUESSES:
            return np.array(fed, np.int32), np.array(rows, np.float32)
        fed.append(int(rows[-1].argmax()))
        state = given.last_hidden_state


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    for seed, (name, shape) in enumerate(ASSISTANTS.items()):
        model, target, tokens = target_of(shape["target"], source)
        net = build(model, shape["hidden_size"], shape["layers"], np.random.default_rng(seed))
        (out / f"{name}.gguf").write_bytes(gguf_of(net, model))
        prompts = []
        with torch.no_grad():
            for start in STARTS:
                fed, rows = answers(net, target, tokens, start)
                lead = np.sort(rows, axis=1)
                print(f"{name}: {fed}, the likeliest leads by {(lead[:, -1] - lead[:, -2]).min():.3f} at least, "
                      f"logits of {rows.std():.1f}")
                prompts.append(("", fed.tobytes(), rows.tobytes(), len(fed), rows.shape[1]))
        (out / f"{name}.bin").write_bytes(make.reference_file.pack(prompts))


if __name__ == "__main__":
    main()
