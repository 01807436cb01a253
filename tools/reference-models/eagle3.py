"""Makes heads of EAGLE-3 for a reference checkpoint, and what they answer.

    python3 eagle3.py REFERENCE_DIR OUT_DIR

Writes NAME.gguf and NAME.bin (tests/data/reference/README.md) for each of HEADS, random heads for llama3.gguf; OUT_DIR is
tests/data/heads. Needs numpy. The checkpoint's layers are computed here in float64 from its file, and have to give the logits that transformers
gave (llama3.bin); the heads are computed as the paper has them (arXiv:2503.01840) and as the code beside the published
heads does: SafeAILab's EAGLE for the order of norms, vLLM's speculators for norm_before_residual and norm_before_fc.

NAME.bin has a row for each token behind the first of llama3.bin's, by what the checkpoint's layers read at the position
before it; and three behind them, of which each is the token that the row before thinks likeliest, by that row's own
state. Logits are the head's, of its own vocabulary.
"""

import struct
import sys
from pathlib import Path

import numpy as np

import gguf

TARGET = "llama3"
GUESSES = 3


def read_gguf(path):
    """{key: value}, {tensor: array in C order} of a file of F32, F16 and simple keys."""
    data = path.read_bytes()
    at = 8

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values[0]

    def text():
        nonlocal at
        length = take("Q")
        at += length
        return data[at - length:at].decode()

    def value(kind):
        if kind == gguf.STRING:
            return text()
        if kind == gguf.ARRAY:
            inner = take("I")
            return [value(inner) for _ in range(take("Q"))]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    tensors, keys = take("Q"), take("Q")
    metadata = {}
    for _ in range(keys):
        name = text()
        metadata[name] = value(take("I"))
    found = []
    for _ in range(tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        found.append((name, dims, take("I"), take("Q")))
    base = -(-at // gguf.ALIGNMENT) * gguf.ALIGNMENT
    arrays = {}
    for name, dims, kind, offset in found:
        dtype = {gguf.TENSOR_F32: np.float32, gguf.TENSOR_F16: np.float16}[kind]
        array = np.frombuffer(data, dtype, int(np.prod(dims)), base + offset)
        arrays[name] = array.reshape(dims[::-1]).astype(np.float64)
    return metadata, arrays


def read_reference(path):
    data = path.read_bytes()
    text, tokens, vocabulary = struct.unpack_from("<III", data, 16)
    at = 28 + -(-text // 4) * 4
    ids = np.frombuffer(data, np.int32, tokens, at)
    return ids, np.frombuffer(data, np.float32, tokens * vocabulary, at + 4 * tokens).reshape(tokens, vocabulary)


def write_reference(path, tokens, logits):
    path.write_bytes(b"MRLOGITS" + struct.pack("<IIIII", 1, 1, 0, *logits.shape)
                     + np.asarray(tokens, np.int32).tobytes() + logits.astype(np.float32).tobytes())


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def rotate(x, theta, factors):
    """x: [rows, heads, dim], row i at position i; neighbours are pairs, as GGUF has llama's."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-np.arange(half) / half) / factors
    angle = np.arange(len(x))[:, None, None] * frequencies
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


class Layers:
    """Decoder layers of a file, over all rows at once."""

    def __init__(self, metadata, tensors):
        architecture = metadata["general.architecture"]
        self.tensors = tensors
        self.key = lambda name: metadata[f"{architecture}.{name}"]
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.heads, self.kv_heads = self.key("attention.head_count"), self.key("attention.head_count_kv")

    def attention(self, layer, x):
        weight = lambda name: self.tensors[f"blk.{layer}.attn_{name}.weight"]
        bias = lambda name: self.tensors.get(f"blk.{layer}.attn_{name}.bias", 0)
        rows = len(x)
        q, k, v = ((x @ weight(name).T + bias(name)).reshape(rows, count, -1)
                   for name, count in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)))
        factors = self.tensors.get("rope_freqs.weight", 1)
        q, k = (rotate(part, self.key("rope.freq_base"), factors) for part in (q, k))
        k, v = (np.repeat(part, self.heads // self.kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
        scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        return np.einsum("hij,jhd->ihd", scores, v).reshape(rows, -1) @ weight("output").T

    def feed_forward(self, layer, x):
        weight = lambda name: self.tensors[f"blk.{layer}.ffn_{name}.weight"]
        h = norm(x, weight("norm"), self.eps)
        gate = h @ weight("gate").T
        return (gate / (1 + np.exp(-gate)) * (h @ weight("up").T)) @ weight("down").T


def target_states(target, tokens):
    """What each layer reads, [layers + 1, rows, dim], the last being what the last layer gives; and logits."""
    x = target.tensors["token_embd.weight"][tokens]
    read = [x]
    for layer in range(target.key("block_count")):
        x = x + target.attention(layer, norm(x, target.tensors[f"blk.{layer}.attn_norm.weight"], target.eps))
        x = x + target.feed_forward(layer, x)
        read.append(x)
    head = target.tensors.get("output.weight", target.tensors["token_embd.weight"])
    return np.stack(read), norm(x, target.tensors["output_norm.weight"], target.eps) @ head.T


class Head(Layers):
    def states_of(self, taps):
        if self.key("norm_before_fc"):
            taps = norm(taps, self.tensors["enc.output_norm.weight"], self.eps)
        return taps @ self.tensors["fc.weight"].T

    def forward(self, embeddings, states):
        """Logits and the states that stand in the target's place, of all rows."""
        first = norm(embeddings, self.tensors["blk.0.attn_norm.weight"], self.eps)
        second = norm(states, self.tensors["blk.0.attn_norm_2.weight"], self.eps)
        x = second if self.key("norm_before_residual") else states
        x = x + self.attention(0, np.concatenate([first, second], axis=1))
        x = x + self.feed_forward(0, x)
        return norm(x, self.tensors["output_norm.weight"], self.eps) @ self.tensors["output.weight"].T, x


def draw(random, *shape, scale=None):
    values = random.normal(0, scale or shape[-1] ** -0.5, shape)
    return values.astype(np.float16).astype(np.float64)


def draw_norm(random, size):
    return random.uniform(0.5, 1.5, size).astype(np.float16).astype(np.float64)


def make_head(random, target, dim, heads, logits, shared_embedding, flags):
    """Keys and tensors of a random head; `logits`: tokens that it guesses, None: all."""
    head_dim, ff, width = 64, 48, target.key("embedding_length")
    vocabulary = len(target.tensors["token_embd.weight"])
    keys = {
        "general.architecture": "eagle3", "general.name": "a random head of EAGLE-3", "eagle3.block_count": 1,
        "eagle3.context_length": 256, "eagle3.embedding_length": dim, "eagle3.feed_forward_length": ff,
        "eagle3.attention.head_count": heads, "eagle3.attention.head_count_kv": 1,
        "eagle3.attention.key_length": head_dim, "eagle3.attention.value_length": head_dim,
        "eagle3.attention.layer_norm_rms_epsilon": 1e-5, "eagle3.rope.freq_base": 5e4,
        "eagle3.rope.dimension_count": head_dim, "eagle3.vocab_size": vocabulary,
        "eagle3.target_layers": [0, 1, 2], "eagle3.target_hidden_size": width,
        "eagle3.norm_before_residual": flags, "eagle3.norm_before_fc": flags,
    }
    tensors = {
        "fc.weight": draw(random, dim, 3 * width), "output_norm.weight": draw_norm(random, dim),
        "output.weight": draw(random, logits or vocabulary, dim, scale=3 * dim ** -0.5),
        "blk.0.attn_norm.weight": draw_norm(random, dim), "blk.0.attn_norm_2.weight": draw_norm(random, dim),
        "blk.0.attn_q.weight": draw(random, heads * head_dim, 2 * dim, scale=2 * (2 * dim) ** -0.5),
        "blk.0.attn_k.weight": draw(random, head_dim, 2 * dim, scale=2 * (2 * dim) ** -0.5),
        "blk.0.attn_v.weight": draw(random, head_dim, 2 * dim),
        "blk.0.attn_output.weight": draw(random, dim, heads * head_dim),
        "blk.0.ffn_norm.weight": draw_norm(random, dim), "blk.0.ffn_gate.weight": draw(random, ff, dim),
        "blk.0.ffn_up.weight": draw(random, ff, dim), "blk.0.ffn_down.weight": draw(random, dim, ff),
    }
    if flags:
        tensors["enc.output_norm.weight"] = draw_norm(random, 3 * width)
        tensors["blk.0.attn_q.bias"] = draw_norm(random, heads * head_dim)
    if not shared_embedding:
        tensors["token_embd.weight"] = draw(random, vocabulary, dim, scale=0.5)
    if logits:
        tensors["d2t"] = np.sort(random.permutation(vocabulary)[:logits])
    if not flags:
        tensors["rope_freqs.weight"] = np.linspace(1, 4, head_dim // 2)
    return keys, tensors


def kind_of(name, values):
    return gguf.TENSOR_I64 if name == "d2t" else gguf.TENSOR_F16 if values.ndim == 2 else gguf.TENSOR_F32


HEADS = {
    "eagle3": dict(dim=32, heads=2, logits=48, shared_embedding=True, flags=False),
    "eagle3-wide": dict(dim=64, heads=3, logits=None, shared_embedding=False, flags=True),
}


def answer(head, target, tokens, embeddings):
    """Tokens and logits of NAME.bin."""
    read, _ = target_states(target, tokens)
    states = head.states_of(np.concatenate([read[tap] for tap in head.key("target_layers")], axis=1))[:-1]
    fed = list(tokens[1:])
    for _ in range(GUESSES):
        logits, given = head.forward(embeddings[fed], states)
        best = int(logits[-1].argmax())
        fed.append(int(head.tensors["d2t"][best]) if "d2t" in head.tensors else best)
        states = np.concatenate([states, given[-1:]])
    return fed, head.forward(embeddings[fed], states)[0]


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    target = Layers(*read_gguf(source / f"{TARGET}.gguf"))
    tokens, expected = read_reference(source / f"{TARGET}.bin")
    _, logits = target_states(target, tokens)
    error = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
    print(f"{TARGET}: {error:.1e} from transformers' logits")
    if error > 1e-5:
        raise SystemExit("these layers are not the checkpoint's")
    for seed, (name, shape) in enumerate(HEADS.items()):
        keys, tensors = make_head(np.random.default_rng(seed), target, **shape)
        packed = [(tensor, values, kind_of(tensor, values)) for tensor, values in tensors.items()]
        (out / f"{name}.gguf").write_bytes(gguf.pack(keys, packed))
        embeddings = tensors.get("token_embd.weight", target.tensors["token_embd.weight"])
        fed, rows = answer(Head(keys, tensors), target, tokens, embeddings)
        write_reference(out / f"{name}.bin", fed, rows)
        lead = np.sort(rows, axis=1)
        print(f"{name}: {len(fed)} rows, guesses {fed[-GUESSES:]}, the likeliest leads by "
              f"{(lead[:, -1] - lead[:, -2]).min():.3f} at least, logits of {rows.std():.1f}")


if __name__ == "__main__":
    main()
