"""Makes the reference checkpoints: tiny random models of each architecture, and what transformers answers with them.

    python3 make.py OUT_DIR [--only NAME,NAME] [--jobs N] [--weights]

Writes NAME.gguf and NAME.bin (tests/data/reference/README.md) for each model of zoo.py; with --weights also NAME.npz,
from which convert.py can write the GGUF file again. What is printed is written to OUT_DIR/report.txt, too. Needs
PyTorch (the CPU is enough), transformers and numpy.

Weights are drawn so that F16 holds them exactly: what the file says is what transformers computed with, in float32 and
with eager attention. Prompts are chosen so that the answer does not hang on rounding: copies of the model whose weights
are off by a thousandth must give nearly the same logits (they would not where an expert is chosen by a hair), and the
greedy token must lead. Then every tensor and every point of zoo.py's `variants` is held to being felt. What misses a
mark is printed with "WARN".
"""

import argparse
import concurrent.futures
import copy
import importlib
import multiprocessing
import os
import sys
import time
import traceback
import types
import zlib
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "demo-model"))

import convert
import gguf
import reference as reference_file
import zoo

NOISE = 1e-3  # relative error of the weights of the noisy copies
NOISY_COPIES = 2
MOST_CHANGE = 0.03  # of a row of logits in a noisy copy: norm of the difference by the norm; or thrice the usual change
LEAST_LEAD = 0.25  # of the greedy token in the prompt, in standard deviations of the row; the answer takes what it gets
LEAST_FELT = 0.01  # change of all logits when one tensor or one point of the configuration is wrong
CANDIDATES = 8  # tokens tried for each place of a prompt
LAST_CANDIDATES = 48  # tried for its last place, each with its answer
TRIES = 4  # prompts
DISTINCT = 5  # tokens of an answer, at least
FIRST_WORD = len(convert.SPECIALS)
SLOW = 60  # seconds after which no further prompt is tried
FINAL_NORMS = {"model.norm.weight", "model.norm_f.weight", "model.embedding_norm.weight", "backbone.norm_f.weight",
               "model.final_layernorm.weight", "transformer.ln_f.weight", "transformer.norm_f.weight",
               "gpt_neox.final_layer_norm.weight"}


class Model:
    """A network of transformers with weights of our own."""

    def __init__(self, model, weights, changes=None):
        self.net = build(model, changes or {})
        load(self.net, weights)

    def logits(self, tokens, positions=0):
        """[batch, tokens, vocabulary] of integer tokens [batch, tokens]. `positions`: how far one more row, which is
        not returned, makes positions reach."""
        ids = torch.as_tensor(tokens)
        more = {}
        if positions:
            batch, length = ids.shape
            more["position_ids"] = torch.arange(length).repeat(batch + 1, 1)
            more["position_ids"][batch] += positions
            ids = torch.cat([ids, ids[:1]])
        with torch.no_grad():
            values = self.net(input_ids=ids, use_cache=False, **more).logits
        return values[: len(tokens)].float().numpy()


def find_class(model, name):
    kind = "configuration" if name.endswith("Config") else "modeling"
    for place in ("composed", "transformers", f"transformers.models.{model.module}.{kind}_{model.module}"):
        try:
            return getattr(importlib.import_module(place), name)
        except (ImportError, AttributeError, RuntimeError) as error:
            last = error
    raise ImportError(f"this version of transformers has no {name}") from last


class CausalLM(torch.nn.Module):
    """A text model with a head, where transformers has that with a vision part alone."""

    def __init__(self, text):
        super().__init__()
        self.config, self.model = text.config, text
        self.lm_head = torch.nn.Linear(text.config.hidden_size, text.config.vocab_size, bias=False)

    def get_input_embeddings(self):
        return self.model.get_input_embeddings()

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, **inputs):
        return types.SimpleNamespace(logits=self.lm_head(self.model(**inputs).last_hidden_state))


def build(model, changes):
    values = copy.deepcopy(model.config | changes)
    if model.vision:
        values = {"text_config": values, "vision_config": model.vision,
                  "tie_word_embeddings": values["tie_word_embeddings"]}
    config = find_class(model, model.config_class)(**values)
    config._attn_implementation = "eager"
    try:
        config._experts_implementation = "eager"
    except Exception as error:  # versions before it have no other
        print(f"{model.name}: experts: {error}", flush=True)
    net = find_class(model, model.model_class)(config)
    if model.model_class.endswith("TextModel"):
        net = CausalLM(net)
    net = net.float().eval().requires_grad_(False)
    if net.config._attn_implementation != "eager":
        raise RuntimeError(f"attention is {net.config._attn_implementation}")
    return net


def own_state(net):
    """Parameters and kept buffers by name, a tied head left out."""
    tied = getattr(net.config, "tie_word_embeddings", False)
    return {
        name.replace("model.language_model.", "model."): tensor
        for name, tensor in net.state_dict().items()
        if not (tied and name == "lm_head.weight") and ".visual." not in name
    }


def load(net, weights):
    state = own_state(net)
    if state.keys() != weights.keys():
        raise RuntimeError(f"parameters differ: {sorted(state.keys() ^ weights.keys())}")
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(torch.from_numpy(weights[name]))
    embedding, head = net.get_input_embeddings().weight, net.get_output_embeddings().weight
    if (embedding.data_ptr() == head.data_ptr()) != bool(net.config.tie_word_embeddings):
        raise RuntimeError("the head is not tied as the configuration says")


# --- weights ----------------------------------------------------------------------------------------------------------


# Whole numbers that follow from the configuration: of hashed n-grams.
HASHES = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")

# Drawn a little larger: what writes into the residual stream, and routers.
LARGER = ("o_proj", "out_proj", "down_proj", "output_linear", "feed_forward.w2", "gate.weight", "router")


def norm_shift(model, name):
    """What transformers adds to the weights of a norm; the gated one behind a delta net has it never."""
    return 0.0 if name.endswith("linear_attn.norm.weight") else model.norm_shift


def draw(model, name, shape, random):
    """One parameter's values, before rounding."""
    normal = random.standard_normal(shape)
    gain = np.prod([own for part, own in model.gains.items() if part in name])
    if name.endswith(("alpha_p", "alpha_n", ".beta", ".eps")):  # of xIELU
        return 0.3 * normal if "alpha" in name else np.full(shape, 0.5 if name.endswith("beta") else -1e-6)
    own = name.rsplit(".", 2)[-2]
    if ("norm" in own or own.startswith("ln_")) and not name.endswith("bias"):
        return gain * (1 + 0.25 * normal) - norm_shift(model, name)
    if name.endswith("tid2eid"):  # other experts for each token
        experts = model.config["n_routed_experts"]
        return np.stack([random.permutation(experts)[: shape[1]] for _ in range(shape[0])])
    if name.endswith("hc_scale") or name.endswith("_hc.scale"):
        return gain * (1 + 0.25 * normal)
    if name.endswith("A_log"):  # states that forget half in half a token to 30
        return np.log(0.03 * 30 ** random.random(shape))
    if name.endswith(".D"):
        return 1 + 0.25 * normal
    if name.endswith(("e_score_correction_bias", "expert_bias")):
        return gain * 0.15 * normal
    if name.endswith("bias"):
        return gain * 0.5 * normal
    if name.endswith("sinks"):
        return 1 + normal
    if name.endswith(("router.scale", "per_expert_scale")):
        return gain * (1 + 0.25 * normal)
    if name.endswith("layer_scalar"):
        return 0.7 + 0.3 * random.random(shape)
    if any(part in name for part in ("embed_tokens", "embeddings", "embed_in", "wte", "wpe")):
        return gain * normal * (0.35 if "per_layer" in name else model.embedding_std)
    inputs = shape[-2] if model.architecture in ("gpt-oss", "llama4") and len(shape) == 3 else shape[-1]
    usual = 1.5 if any(part in name for part in LARGER) else 1.2
    return gain * usual / np.sqrt(inputs) * normal


def draw_all(model, seed):
    """{name: float32 array}, every matrix exactly what F16 (or MXFP4) holds, logits as wide as the model says."""
    random = np.random.default_rng([zlib.crc32(model.name.encode()), seed])
    weights = {}
    for name, tensor in own_state(build(model, {})).items():
        if name.endswith(HASHES):
            weights[name] = tensor.numpy()
            continue
        values = draw(model, name, tuple(tensor.shape), random).astype(np.float16).astype(np.float32)
        if model.mxfp4 and values.ndim == 3:  # its blocks run along a row's inputs
            values = gguf.round_to_mxfp4(values.swapaxes(-1, -2)).swapaxes(-1, -2)
        weights[name] = np.ascontiguousarray(values).reshape(values.shape)  # which makes a number a vector
    tokens = random.integers(FIRST_WORD, zoo.VOCABULARY, (4, zoo.PROMPT))
    factor = np.float32(model.logit_std / Model(model, weights).logits(tokens).std())
    if not FINAL_NORMS & weights.keys():  # the head itself then, by what F16 holds
        weights["lm_head.weight"] *= np.float32(2.0 ** np.round(np.log2(factor)))
        return weights
    (final,) = FINAL_NORMS & weights.keys()
    last = weights[final]
    weights[final] = (last + np.float32(model.norm_shift)) * factor - np.float32(model.norm_shift)
    return weights


def noisy(weights, random):
    return {
        name: values if name.endswith(("tid2eid", *HASHES))
        else np.asarray(values * (1 + NOISE * random.standard_normal(values.shape)), np.float32)
        for name, values in weights.items()
    }


# --- tokens -----------------------------------------------------------------------------------------------------------


def judge(models, tokens, positions):
    """Of the last row of each sequence: greedy token, its lead in standard deviations, greatest change by noise."""
    rows = [model.logits(tokens, positions)[:, -1] for model in models]
    first = rows[0]
    best = np.sort(first, axis=1)[:, -2:]
    lead = (best[:, 1] - best[:, 0]) / first.std(axis=1)
    norm = np.linalg.norm(first, axis=1)
    change = np.max([np.linalg.norm(other - first, axis=1) / norm for other in rows[1:]], axis=0)
    return first.argmax(axis=1), lead, change


def most_change(models, reference, random):
    """What no row may change by more."""
    tokens = random.integers(FIRST_WORD, zoo.VOCABULARY, (32, reference.prompt))
    _, _, change = judge(models, tokens, reference.positions)
    return max(MOST_CHANGE, 3 * float(np.median(change)))


def choose_prompt(models, reference, random, limit):
    """All but the last token of a prompt, or None where noise decides whatever comes next."""
    tokens = []
    while len(tokens) < reference.prompt - 1:
        candidates = random.permutation(np.arange(FIRST_WORD, zoo.VOCABULARY))[:CANDIDATES]
        _, lead, change = judge(models, np.array([[*tokens, word] for word in candidates]), reference.positions)
        lead = np.where(change < limit, lead, -1)
        if lead.max() < 0:
            return None
        enough = np.flatnonzero(lead >= LEAST_LEAD)
        tokens.append(int(candidates[enough[0] if len(enough) > 0 else lead.argmax()]))
    return tokens


def choose_answer(models, prompt, reference, random, limit):
    """(tokens, least lead) with the last token of the prompt that gives the steadiest answer; a lead of -1: none is."""
    words = random.permutation(np.arange(FIRST_WORD, zoo.VOCABULARY))[:LAST_CANDIDATES]
    tokens = np.concatenate([np.tile(prompt, (len(words), 1)), words[:, None]], axis=1).astype(np.int64)
    leads = np.full(len(words), np.inf)
    for _ in range(zoo.ANSWER + 1):
        greedy, lead, change = judge(models, tokens, reference.positions)
        leads = np.minimum(leads, np.where((change < limit) & (greedy >= FIRST_WORD), lead, -1))
        tokens = np.concatenate([tokens, greedy[:, None]], axis=1)
    tokens = tokens[:, : reference.prompt + zoo.ANSWER]
    distinct = np.array([len(set(row[reference.prompt :])) for row in tokens])
    leads = np.where(distinct >= DISTINCT, leads, -1)
    return tokens[leads.argmax()], leads.max()


def choose_tokens(models, reference, random):
    """(tokens, least lead in the answer) of the steadiest of some sequences; of any, where none is steady."""
    started, limit = time.time(), most_change(models, reference, random)
    best = None
    for _ in range(TRIES):
        prompt = choose_prompt(models, reference, random, limit)
        if prompt is None:
            continue
        tokens, lead = choose_answer(models, prompt, reference, random, limit)
        if best is None or lead > best[1]:
            best = tokens, lead
        if lead > 0.02 or time.time() - started > SLOW:
            break
    if best is None:
        prompt = random.integers(FIRST_WORD, zoo.VOCABULARY, reference.prompt - 1)
        return choose_answer(models, prompt, reference, random, limit)
    return best


# --- is all of it felt? -----------------------------------------------------------------------------------------------


def difference(other, logits):
    return float(np.linalg.norm(other - logits) / np.linalg.norm(logits))


def damaged(name, values):
    if name.endswith("tid2eid"):  # the order of a token's experts counts nothing
        return np.ascontiguousarray(values[::-1])
    if name.endswith("_hc.scale"):  # of which turning around leaves the middle
        return -values
    if values.size == 1:
        return values * np.float32(0.5)
    axis = max(axis for axis, length in enumerate(values.shape) if length > 1)
    return np.ascontiguousarray(np.flip(values, axis))


def tensors_felt(model, weights, tokens, positions, logits):
    """{name: change of the logits if that tensor, or one expert's part of it, is read backwards}."""
    felt = {}
    whole = Model(model, weights)
    for name, values in weights.items():
        if name.endswith(HASHES):
            continue
        parts = range(len(values)) if values.ndim == 3 and "conv" not in name else [None]
        for part in parts:
            wrong = values.copy()
            wrong[part if part is not None else ...] = damaged(name, values if part is None else values[part])
            load(whole.net, weights | {name: wrong})
            label = name if part is None else f"{name}[{part}]"
            felt[label] = difference(whole.logits(tokens, positions)[0], logits)
    return felt


def report(model, reference, weights, models, tokens, lead, logits):
    """Lines about one reference."""
    rows = np.sort(logits, axis=1)
    leads = (rows[:, -1] - rows[:, -2]) / logits.std(axis=1)
    noise = max(difference(other.logits(tokens, reference.positions)[0], logits) for other in models[1:])
    lines = [
        f"{reference.name}: {sum(values.size for values in weights.values())} parameters, std {logits.std():.2f}, "
        f"lead {leads.min():.3f} at least, {lead:.3f} in the answer, {np.median(leads):.2f} in the middle, "
        f"change by noise {noise:.4f}",
        f"  answer {' '.join(map(str, tokens[0, reference.prompt :]))}",
    ]
    if lead < 0.02:
        lines.append("  WARN the answer is not steady")
    felt = tensors_felt(model, weights, tokens, reference.positions, logits)
    least = sorted(felt, key=felt.get)[:3]
    lines.append("  least felt tensors: " + ", ".join(f"{name} {felt[name]:.3f}" for name in least))
    for name, changes in model.variants.items():
        try:
            other = Model(model, weights, changes).logits(tokens, reference.positions)[0]
            felt[name] = difference(other, logits)
            lines.append(f"  {name}: {felt[name]:.3f}")
        except Exception as error:  # a configuration that this version refuses proves nothing
            lines.append(f"  WARN {name}: {error!r}")
    lines += [f"  WARN not felt: {name} {change:.4f}" for name, change in felt.items() if change < LEAST_FELT]
    return lines


# --- files ------------------------------------------------------------------------------------------------------------


def make(model, out_dir, keep_weights):
    """Writes one model's files; the report. Weights that cannot be converted are kept, and have a reference, too."""
    started, lines = time.time(), []
    weights = draw_all(model, seed=1)
    try:
        for name, data in convert.files(model, weights).items():
            (out_dir / name).write_bytes(data)
    except Exception:
        keep_weights = True
        lines.append(f"{model.name}: WARN not converted: {sorted(weights)}\n{traceback.format_exc()}")
    if keep_weights:
        np.savez_compressed(out_dir / f"{model.name}.npz", **weights)
    random = np.random.default_rng([zlib.crc32(model.name.encode()), 2])
    models = [Model(model, weights)] + [Model(model, noisy(weights, random)) for _ in range(NOISY_COPIES)]
    for reference in model.references:
        tokens, lead = choose_tokens(models, reference, random)
        tokens = tokens[None].astype(np.int32)
        logits = models[0].logits(tokens.astype(np.int64), reference.positions)[0]
        if not np.array_equal(logits[reference.prompt - 1 : -1].argmax(axis=1), tokens[0, reference.prompt :]):
            raise RuntimeError("the answer is not greedy")
        packed = reference_file.pack([("", tokens.tobytes(), logits.tobytes(), tokens.size, zoo.VOCABULARY)])
        (out_dir / f"{reference.name}.bin").write_bytes(packed)
        try:
            lines += report(model, reference, weights, models, tokens.astype(np.int64), lead, logits)
        except Exception:
            lines.append(f"{reference.name}: WARN written, but not held to being felt\n{traceback.format_exc()}")
    return lines + [f"  {time.time() - started:.0f} s"]


def attempt(model, out_dir, keep_weights):
    """(report, whether it failed). One model's trouble is no other's."""
    torch.set_num_threads(1)
    try:
        return "\n".join(make(model, out_dir, keep_weights)), False
    except Exception:
        return f"{model.name}: FAILED\n{traceback.format_exc()}", True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--only", default="", help="names of zoo.py, with commas between them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--weights", action="store_true", help="write NAME.npz, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nobody asks a hub for kernels
    import transformers  # here, that every worker has it from the start

    transformers.logging.set_verbosity_error()
    options.out_dir.mkdir(parents=True, exist_ok=True)
    log = open(options.out_dir / "report.txt", "w", buffering=1)  # a line at a time, should the run be cut off

    def say(text):
        print(text, flush=True)
        print(text, file=log)

    say(f"transformers {transformers.__version__}, torch {torch.__version__}, numpy {np.__version__}")
    wanted = options.only.split(",") if options.only else [model.name for model in zoo.MODELS]
    models = [model for model in zoo.MODELS if model.name in wanted]
    failed = []
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("fork")) as pool:
        jobs = {pool.submit(attempt, model, options.out_dir, options.weights): model for model in models}
        for job in concurrent.futures.as_completed(jobs):
            try:
                text, bad = job.result()
            except Exception as error:  # the process died
                text, bad = f"{jobs[job].name}: FAILED\n{error!r}", True
            say(text)
            if bad:
                failed.append(jobs[job].name)
    written = [path for path in options.out_dir.iterdir() if path.suffix in (".gguf", ".bin")]
    say(f"{len(written)} files of {sum(path.stat().st_size for path in written)} bytes")
    if failed:
        say(f"failed: {', '.join(failed)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
