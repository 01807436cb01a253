#!/usr/bin/env python3
"""A forward pass in float32 of small Llama and Qwen3-MoE GGUF files, for studies: plain numpy, every part of it to be replaced.

A study derives from Model and overrides attention() or hidden(). measure() runs a text's windows as `millrace perplexity` does
(side by side, the second half of each counts) and gives perplexity and divergence from a run before.
"""
import struct
import subprocess

import numpy as np

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
FORMS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
# type: (weights a block, bytes a block)
BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
          11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 20: (32, 18), 23: (256, 136), 39: (32, 17), 40: (64, 36)}
NAMES = {0: "F32", 1: "F16", 30: "BF16", 2: "Q4_0", 8: "Q8_0", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 39: "MXFP4", 40: "NVFP4"}


def read_gguf(path):
    """Metadata, and of each tensor (shape slowest first, type, its bytes)."""
    data = open(path, "rb").read()
    at = 8

    def take(form):
        nonlocal at
        value = struct.unpack_from(form, data, at)[0]
        at += struct.calcsize(form)
        return value

    def string():
        nonlocal at
        count = take("<Q")
        at += count
        return data[at - count:at].decode("utf-8", "replace")

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            kind, count = take("<I"), take("<Q")
            return [value(kind) for _ in range(count)]
        return take(FORMS[kind])

    count, pairs = take("<Q"), take("<Q")
    meta = {}
    for _ in range(pairs):
        name = string()
        meta[name] = value(take("<I"))
    table = []
    for _ in range(count):
        name = string()
        dims = [take("<Q") for _ in range(take("<I"))]
        table.append((name, dims[::-1], take("<I"), take("<Q")))
    align = meta.get("general.alignment", 32)
    base = (at + align - 1) // align * align
    tensors = {}
    for name, shape, kind, offset in table:
        weights, size = BLOCKS[kind]
        tensors[name] = (shape, kind, data[base + offset:base + offset + int(np.prod(shape)) // weights * size])
    return meta, tensors


def floats(tensor):
    shape, kind, data = tensor
    if kind == 30:
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, {0: np.float32, 1: np.float16}[kind]).astype(np.float32).reshape(shape)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def silu(x):
    return x / (1 + np.exp(-x))


class Model:
    def __init__(self, path):
        self.path = path
        meta, tensors = read_gguf(path)
        self.w = {name: floats(tensor) for name, tensor in tensors.items()}
        arch = meta["general.architecture"]
        self.layers, self.heads = meta[f"{arch}.block_count"], meta[f"{arch}.attention.head_count"]
        self.kv_heads = meta[f"{arch}.attention.head_count_kv"]
        self.epsilon = meta[f"{arch}.attention.layer_norm_rms_epsilon"]
        self.theta = meta[f"{arch}.rope.freq_base"]
        self.used = meta.get(f"{arch}.expert_used_count", 0)
        self.halves = arch != "llama"  # pairs that RoPE turns: channel i and i + half, or neighbours
        self.dim = len(self.w["output_norm.weight"])
        self.head_dim = self.w["blk.0.attn_k.weight"].shape[0] // self.kv_heads

    def of(self, layer, name):
        return self.w.get(f"blk.{layer}.{name}.weight")

    def pairs(self, x):
        """[..., head_dim] as complex [..., head_dim / 2]."""
        half = x.shape[-1] // 2
        return x[..., :half] + 1j * x[..., half:] if self.halves else x[..., 0::2] + 1j * x[..., 1::2]

    def unpairs(self, z):
        if self.halves:
            return np.concatenate([z.real, z.imag], -1).astype(np.float32)
        return np.stack([z.real, z.imag], -1).reshape(*z.shape[:-1], -1).astype(np.float32)

    def turns(self, tokens):
        """RoPE's factors, [tokens, 1, head_dim / 2]."""
        frequency = self.theta ** (-np.arange(self.head_dim // 2) * 2 / self.head_dim)
        return np.exp(1j * np.arange(tokens)[:, None, None] * frequency)

    def rope(self, x):  # [tokens, heads, head_dim]
        return self.unpairs(self.pairs(x) * self.turns(len(x)))

    def normed(self, layer, x, which):
        weight = self.of(layer, f"attn_{which}_norm")
        return x if weight is None else rms_norm(x, weight, self.epsilon)

    def queries(self, layer, x):  # [tokens, heads, head_dim], before RoPE
        return self.normed(layer, (x @ self.of(layer, "attn_q").T).reshape(len(x), self.heads, self.head_dim), "q")

    def raw_kv(self, layer, x):  # keys before norm and RoPE, and values: [tokens, kv_heads * head_dim] each
        return x @ self.of(layer, "attn_k").T, x @ self.of(layer, "attn_v").T

    def split(self, x):
        return x.reshape(len(x), self.kv_heads, self.head_dim)

    def mix(self, scores, values):
        """[heads, queries, keys] and [keys, kv_heads, any] to [queries, heads, any], causal."""
        count = scores.shape[-1]
        scores = np.where(np.tril(np.ones((count, count), bool)), scores * self.head_dim ** -0.5, -np.inf)
        return (softmax(scores) @ np.repeat(values, self.heads // values.shape[1], 1).transpose(1, 0, 2)).transpose(1, 0, 2)

    def scores(self, q, k):
        return q.transpose(1, 0, 2) @ np.repeat(k, self.heads // k.shape[1], 1).transpose(1, 2, 0)

    def attention(self, layer, x):
        k, v = self.raw_kv(layer, x)
        k = self.rope(self.normed(layer, self.split(k), "k"))
        out = self.mix(self.scores(self.rope(self.queries(layer, x)), k), self.split(v))
        return out.reshape(len(x), -1) @ self.of(layer, "attn_output").T

    def hidden(self, layer, expert, h, rows):
        return h  # silu(gate) * up of those rows, as down will take it; a study changes or notes it

    def feed_forward(self, layer, x):
        if not self.used:
            h = silu(x @ self.of(layer, "ffn_gate").T) * (x @ self.of(layer, "ffn_up").T)
            return self.hidden(layer, 0, h, np.arange(len(x))) @ self.of(layer, "ffn_down").T
        probability = softmax(x @ self.of(layer, "ffn_gate_inp").T)
        chosen = np.argsort(-probability, -1)[:, :self.used]
        weight = np.take_along_axis(probability, chosen, -1)
        weight /= weight.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(probability.shape[1]):
            rows, slot = np.nonzero(chosen == expert)
            if len(rows):
                part = x[rows]
                h = silu(part @ self.of(layer, "ffn_gate_exps")[expert].T) * (part @ self.of(layer, "ffn_up_exps")[expert].T)
                out[rows] += weight[rows, slot][:, None] * (self.hidden(layer, expert, h, rows) @ self.of(layer, "ffn_down_exps")[expert].T)
        return out

    def forward(self, tokens):
        x = self.w["token_embd.weight"][tokens]
        for layer in range(self.layers):
            x = x + self.attention(layer, rms_norm(x, self.of(layer, "attn_norm"), self.epsilon))
            x = x + self.feed_forward(layer, rms_norm(x, self.of(layer, "ffn_norm"), self.epsilon))
        x = rms_norm(x, self.w["output_norm.weight"], self.epsilon)
        return x @ self.w.get("output.weight", self.w["token_embd.weight"]).T


def token_windows(model, program, text, size=512):
    """`text` (a file) as windows of so many tokens."""
    found = subprocess.run([program, "tokenize", "-m", model, "--whole"], stdin=open(text), capture_output=True, check=True).stdout
    ids = np.array(found.split(), np.int64)
    return [ids[i:i + size] for i in range(0, len(ids) - size + 1, size)]


def measure(model, windows, against=None):
    """Log-probabilities of the rows that count, and a dictionary of figures."""
    rows, told = [], []
    for window in windows:
        half = len(window) // 2
        logits = model.forward(window)[half:-1]
        logp = logits - logits.max(-1, keepdims=True)
        logp -= np.log(np.exp(logp).sum(-1, keepdims=True))
        rows.append(logp.astype(np.float32))
        told.append(logp[np.arange(len(logp)), window[half + 1:]])
    rows = np.concatenate(rows)
    figures = {"perplexity": float(np.exp(-np.concatenate(told).mean()))}
    if against is not None:
        kl = (np.exp(against) * (against - rows)).sum(-1, dtype=np.float64)
        figures.update(kl=float(kl.mean()), error=float(kl.std() / len(kl) ** 0.5), kl99=float(np.quantile(kl, 0.99)),
                       same=float((against.argmax(-1) == rows.argmax(-1)).mean()))
    return rows, figures
