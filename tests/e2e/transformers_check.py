"""`make test-transformers`: random checkpoints of odd shapes, as transformers saves them, converted and computed by both.

Each of tools/reference-models/zoo.py's models is made again with heads of 48 and 80, one KV head, 5 experts, widths that are
no multiple of 32 and a vocabulary of 517; then single fields of its configuration are changed (the walk). `convert` either
refuses a checkpoint by the field's name, or Millrace gives transformers' log-probabilities. What `export` writes is loaded by
transformers again. Models that run from GGUF alone are named at the end. Needs the packages of transformers.txt; $MILLRACE is the program.
Usage: transformers_check.py [NAME...]
"""
import copy
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools/reference-models")]
import checkpoints  # noqa: E402
import zoo  # noqa: E402

MILLRACE = os.environ.get("MILLRACE", str(ROOT / "build/release/millrace"))
VOCABULARY, TOKENS, TOLERANCE = 517, 64, 2e-3
ODD = {"vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "num_experts": 5, "num_local_experts": 5,
       "n_routed_experts": 5, "intermediate_size": 52, "moe_intermediate_size": 44, "pad_token_id": VOCABULARY - 1}
IDS = {"a": 0, "b": 1, "c": 2, " ": 3}


def odd(model, head_dim):
    """The model's configuration in another shape; groups of experts and states keep theirs."""
    changes = {key: value for key, value in ODD.items() if key in model.config}
    if model.config.get("n_group"):
        changes.pop("n_routed_experts", None)
    if "head_dim" in model.config and "expand" not in model.config:
        changes |= {"head_dim": head_dim, "num_key_value_heads": 1}
        if "compress_rates" in model.config:  # index heads rotate as many channels
            changes["index_head_dim"] = head_dim
        if "query_pre_attn_scalar" in model.config:  # no key of GGUF's: readers take a head's width
            changes["query_pre_attn_scalar"] = head_dim
    config = copy.deepcopy(model.config) | changes
    rope = config.get("rope_parameters") or {}
    if "head_dim" in changes and "mrope_section" in rope:  # angles of time, rows and columns
        angles = int(head_dim * rope.get("partial_rotary_factor", 1)) // 2
        rope["mrope_section"] = [angles - 2 * (angles // 3), angles // 3, angles // 3]
    for key in ("short_factor", "long_factor"):  # one for each pair of a head's channels
        if "head_dim" in changes and key in config.get("rope_parameters", {}):
            config["rope_parameters"][key] = (config["rope_parameters"][key] * 2)[: head_dim // 2]
    return config


def make(model, config, folder):
    """(the network, its configuration) of random weights, saved to the folder."""
    package = getattr(__import__("transformers.models", fromlist=[model.module]), model.module)
    torch.manual_seed(7)
    values = copy.deepcopy(config)
    if model.vision:
        values = {"text_config": values, "vision_config": model.vision, "tie_word_embeddings": values["tie_word_embeddings"]}
    made = getattr(package, model.config_class)(**values)
    net = getattr(package, model.model_class)(made).eval().float()
    with torch.no_grad():
        for name, values in net.named_parameters():
            if values.ndim > 1:
                values.normal_(0, 0.6 / values.shape[-1] ** 0.5 if "embed" not in name else 0.3)
            elif "bias" in name or name.endswith(("sinks", "dt_bias")):
                values.normal_(0, 0.3)
        for name, values in net.named_buffers():
            if name.endswith("tid2eid"):  # other experts for each token
                values.copy_(torch.stack([torch.randperm(config["n_routed_experts"])[: values.shape[1]] for _ in values]))
    net.save_pretrained(folder)
    checkpoints.write_tokenizer(pathlib.Path(folder))
    return net


def sample():
    """Text of which each letter is a token."""
    state, text = 12345, "c"
    while len(text) < TOKENS:
        state = (state * 1103515245 + 12345) % 2**31
        letter = "abc "[state >> 16 & 3]
        if text[-1] + letter not in ("ab", " a"):
            text += letter
    return text


def theirs(net, text):
    ids = torch.tensor([[IDS[letter] for letter in text]])
    with torch.no_grad():
        return torch.log_softmax(net(ids).logits[0].float(), dim=-1), ids[0]


def millrace(*args):
    return subprocess.run([MILLRACE, *map(str, args)], capture_output=True, text=True, timeout=120)


def distance(net, gguf, folder):
    """The greatest difference of log-probabilities of the text's tokens."""
    text, saved = folder / "text.txt", folder / "logits"
    text.write_text(sample())
    ran = millrace("perplexity", gguf, "-f", text, "-c", TOKENS, "--kv", "f32", "--save-logits", saved)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr)
    raw = saved.read_bytes()
    vocabulary, = struct.unpack_from("<I", raw, 8)
    rows, = struct.unpack_from("<q", raw, 40)
    logs, ids = theirs(net, sample())
    worst = 0.0
    for row in range(rows):
        right, = struct.unpack_from("<f", raw, 256 + row * (24 + 2 * vocabulary) + 16)
        at = TOKENS - rows + row
        worst = max(worst, abs(right - logs[at - 1, ids[at]].item()))
    return worst


def walk(model, config):
    """Changes of one field each: what is refused must be refused by that name, the rest must agree."""
    others = {"hidden_act": "gelu", "rms_norm_eps": 1e-2, "layer_norm_epsilon": 1e-2, "norm_eps": 1e-2, "tie_word_embeddings": True,
              "attention_bias": True, "norm_topk_prob": False, "routed_scaling_factor": 0.5, "swiglu_alpha": 1.2, "swiglu_limit": 0.5,
              "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 2.0,
              "sliding_window": 8, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 2.0, "rope_interleave": False,
              "time_step_limit": [0.0, 0.01], "mlp_bias": True, "use_sliding_window": True, "num_experts_per_tok": 1,
              "mamba_hidden_act": "gelu", "mlp_hidden_act": "silu", "use_conv_bias": False, "conv_bias": True,
              "mamba_rms_norm": True, "mamba_norm_before_gate": True, "mamba_conv_bias": False, "mamba_proj_bias": True, "projectors_bias": True,
              "lm_head_multiplier": 0.7, "key_multiplier": 0.7, "attention_in_multiplier": 0.7, "attention_out_multiplier": 0.7,
              "ssm_in_multiplier": 0.7, "ssm_out_multiplier": 0.7, "ssm_multipliers": [0.7, 1.1, 1.3, 0.9, 1.2], "mlp_multipliers": [1.3, 0.7]}
    if model.vision:
        return
    package = getattr(__import__("transformers.models", fromlist=[model.module]), model.module)
    known = getattr(package, model.config_class)(**copy.deepcopy(config)).to_dict()
    for field, value in others.items():
        if field in known and known[field] != value:
            yield f"{field}={value}", config | {field: value}
    scalings = {"yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
                "yarn mscale": {"factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0},
                "yarn mscales": {"factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 2.0},
                "yarn exact": {"factor": 4.0, "original_max_position_embeddings": 16, "truncate": False},
                "linear": {"factor": 4.0}}
    flat = config.get("rope_parameters")
    if flat and "rope_theta" in flat and model.module not in ("phi3", "phimoe"):
        for name, scaling in scalings.items():
            extra = {key: flat[key] for key in ("partial_rotary_factor", "llama_4_scaling_beta", "mrope_section") if key in flat}
            yield name, config | {"rope_parameters": {"rope_type": name.split()[0], "rope_theta": 1e4, **scaling, **extra}}
        yield "partial", config | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}


class NotConverted(Exception):
    """`convert` does not know the type."""


def check(model, what, config, round_trip):
    """None, or what is wrong."""
    with tempfile.TemporaryDirectory() as room:
        folder = pathlib.Path(room)
        try:
            net = make(model, config, folder / "checkpoint")
            gguf = folder / "model.gguf"
            ran = millrace("convert", folder / "checkpoint", "-o", gguf)
            if "are not converted by this version" in ran.stderr:
                raise NotConverted
            theirs(net, sample())
        except NotConverted:
            raise
        except Exception as failure:  # transformers has no such model
            return None if what != "odd" else f"transformers: {failure!r}"
        if ran.returncode != 0:
            named = what.split("=")[0].split()[0] in ran.stderr or any(word in ran.stderr for word in ("cannot run", "truncate", "rope", "bias", "partial"))
            return None if what != "odd" and named else ran.stderr.strip()
        if "layers see a window" in ran.stderr:
            return None  # the file's context ends with the window, and a warning says so
        found = distance(net, gguf, folder)
        if not found < TOLERANCE:
            return f"differs by {found:.3g}"
        if not round_trip:
            return None
        ran = millrace("export", gguf, folder / "again")
        if ran.returncode != 0:
            return None if "is not written in the form of a checkpoint" in ran.stderr else ran.stderr.strip()
        again = type(net).from_pretrained(folder / "again", dtype=torch.float32).eval()
        apart = (theirs(again, sample())[0] - theirs(net, sample())[0]).abs().max().item()
        return None if apart < 1e-3 else f"exported: differs by {apart:.3g}"


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    failed = tried = 0
    from_gguf = []
    for model in zoo.MODELS:
        if model.without_class or sys.argv[1:] and model.name not in sys.argv[1:]:
            continue
        cases = [("odd", odd(model, 48), not model.vision), ("odd", odd(model, 80), False)]
        cases += [(what, config, False) for what, config in walk(model, odd(model, 48))]
        for what, config, round_trip in cases:
            tried += 1
            try:
                wrong = check(model, what, config, round_trip)
            except NotConverted:
                tried -= 1
                from_gguf.append(model.name)
                break
            except Exception as failure:  # such as of what `export` wrote
                wrong = repr(failure)
            if wrong:
                failed += 1
                print(f"{model.name}, {what}: {wrong}", flush=True)
    if from_gguf:
        print(f"run from GGUF alone: {', '.join(from_gguf)}")
    print(f"{tried} checkpoints, {failed} wrong")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
