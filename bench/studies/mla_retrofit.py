#!/usr/bin/env python3
"""Keys and values of grouped heads as a latent of few numbers, without training (the idea of TransMLA): what it costs in quality.

Factors are made from a first text (or from weights alone) and measured on a second. Ways to keep keys:
  rebuilt    [K; V] of a token as r numbers; keys are made from them anew at each step, then normed and rotated
  rotated    keys after RoPE in a basis of r_k numbers a head, values as r_v numbers of all heads: queries and output absorb both
  decoupled  one rotated key for all heads (heads turned so that its energy is largest), the rest never rotated and joined with V
Usage: mla_retrofit.py MODEL.gguf FIRST.txt REST.txt PROGRAM [WINDOW]
"""
import sys

import numpy as np

from numpy_model import Model, measure, token_windows


class Recorder(Model):
    """Notes what a layer's keys and values are made from, and what comes out."""

    def __init__(self, path):
        super().__init__(path)
        self.notes = [[] for _ in range(self.layers)]

    def attention(self, layer, x):
        k, v = self.raw_kv(layer, x)
        normed = self.normed(layer, self.split(k), "k")
        self.notes[layer].append((x, normed, self.rope(normed), v))
        return super().attention(layer, x)

    def note(self, layer, which):
        return np.concatenate([n[which] for n in self.notes[layer]])


def basis(samples, rank):
    """[channels, rank]: the directions of most energy."""
    _, vectors = np.linalg.eigh(samples.T.astype(np.float64) @ samples)
    return vectors[:, ::-1][:, :rank].astype(np.float32)


def rounded(x, bits):
    """Blocks of 32 as q8_0 has them (or q4_0 after no rotation); 16 is f16."""
    if bits == 16:
        return x.astype(np.float16).astype(np.float32)
    top = 2 ** (bits - 1) - 1
    pad = -x.shape[1] % 32
    blocks = np.pad(x, ((0, 0), (0, pad))).reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / top
    scale[scale == 0] = 1
    return (np.round(blocks / scale) * scale).reshape(len(x), -1)[:, :x.shape[1]].astype(np.float32)


def stored(rank, bits):
    return rank * bits / 8 if bits == 16 else -(-rank // 32) * (4 * bits + 2)


class Rebuilt(Model):
    def __init__(self, path, recorder, rank, weighted, bits=16):
        super().__init__(path)
        self.bits, self.bytes, self.down, self.up = bits, stored(rank, bits), [], []
        for layer in range(self.layers):
            w = np.concatenate([self.of(layer, "attn_k"), self.of(layer, "attn_v")])  # [2 * kv, dim]
            wide = len(w) // 2
            if weighted:  # values count as much as keys do once these are normed: both parts to the same mean energy
                y = recorder.note(layer, 0) @ w.T
                scale = np.repeat([(y[:, :wide] ** 2).mean() ** -0.5, (y[:, wide:] ** 2).mean() ** -0.5], wide)
                u = basis(y * scale, rank)
            else:
                scale = np.ones(2 * wide)
                u = np.linalg.svd(w)[0][:, :rank]
            self.down.append(((u.T * scale) @ w).astype(np.float32))
            self.up.append((u / scale[:, None]).astype(np.float32))

    def raw_kv(self, layer, x):
        y = rounded(x @ self.down[layer].T, self.bits) @ self.up[layer].T
        return np.split(y, 2, -1)


class Rotated(Model):
    def __init__(self, path, recorder, rank_k, rank_v, bits=16):
        super().__init__(path)
        self.bits = bits
        self.bytes = self.kv_heads * stored(rank_k, bits) + stored(rank_v, bits)
        self.k = [[basis(recorder.note(layer, 2)[:, h], rank_k) for h in range(self.kv_heads)] for layer in range(self.layers)]
        self.v = [basis(recorder.note(layer, 3), rank_v) for layer in range(self.layers)]

    def attention(self, layer, x):
        k, v = self.raw_kv(layer, x)
        k = self.rope(self.normed(layer, self.split(k), "k"))
        k = np.stack([rounded(k[:, h] @ u, self.bits) @ u.T for h, u in enumerate(self.k[layer])], 1)
        v = rounded(v @ self.v[layer], self.bits) @ self.v[layer].T
        out = self.mix(self.scores(self.rope(self.queries(layer, x)), k), self.split(v))
        return out.reshape(len(x), -1) @ self.of(layer, "attn_output").T


class Decoupled(Model):
    """Keys of the same frequency are turned across heads (which commutes with RoPE), the first head's share stays rotated."""

    def __init__(self, path, recorder, rank, keep=1, bits=16):
        super().__init__(path)
        self.bits, self.keep, self.turn, self.joint, self.scale = bits, keep, [], [], []
        self.bytes = stored(keep * self.head_dim, bits) + stored(rank, bits)
        for layer in range(self.layers):
            z = self.pairs(recorder.note(layer, 1))  # [tokens, kv_heads, half]
            turn = np.stack([np.linalg.eigh((z[:, :, j].conj().T @ z[:, :, j]).real)[1][:, ::-1] for j in range(z.shape[2])])
            self.turn.append(turn)
            rest = self.turned(layer, recorder.note(layer, 1))[:, keep:].reshape(len(z), -1)
            v = recorder.note(layer, 3)
            self.scale.append(((v ** 2).sum() / max((rest ** 2).sum(), 1e-9)) ** 0.5 if rest.size else 1.0)
            self.joint.append(basis(np.concatenate([rest * self.scale[layer], v], 1), rank))

    def turned(self, layer, x):  # [tokens, kv_heads, head_dim]
        return self.unpairs(np.einsum("thj,jhg->tgj", self.pairs(x), self.turn[layer]))

    def attention(self, layer, x):
        k, v = self.raw_kv(layer, x)
        k = self.turned(layer, self.normed(layer, self.split(k), "k"))
        q, group = self.queries(layer, x), self.heads // self.kv_heads
        scores = 0
        rest = k[:, self.keep:].reshape(len(x), -1) * self.scale[layer]
        both = rounded(np.concatenate([rest, v], 1) @ self.joint[layer], self.bits) @ self.joint[layer].T
        rest, v = both[:, :rest.shape[1]].reshape(len(x), -1, self.head_dim) / self.scale[layer], both[:, rest.shape[1]:]
        first = self.rope(k[:, :self.keep])
        first = rounded(first.reshape(len(x), -1), self.bits).reshape(first.shape)
        lone = np.zeros((len(x), self.heads, self.kv_heads, self.head_dim), np.float32)
        for h in range(self.heads):  # a query meets its own head's key: as seen in the turned heads
            lone[:, h, h // group] = q[:, h]
            lone[:, h] = self.turned(layer, lone[:, h])
        for g in range(self.kv_heads):
            query = lone[:, :, g]
            key = first[:, g:g + 1] if g < self.keep else rest[:, g - self.keep:g - self.keep + 1]
            scores = scores + self.scores(self.rope(query) if g < self.keep else query, key)
        return self.mix(scores, self.split(v)).reshape(len(x), -1) @ self.of(layer, "attn_output").T


def main(path, first, rest, program, window=512):
    recorder = Recorder(path)
    windows = token_windows(path, program, rest, int(window))
    for tokens in token_windows(path, program, first, int(window)):
        recorder.forward(tokens)
    wide = recorder.kv_heads * recorder.head_dim
    print("energy of [K; V], keys normed as used, by rank: of all, before RoPE and after; of keys alone by head after RoPE; of values")
    for layer in range(recorder.layers):
        def share(y):
            e = np.linalg.eigvalsh(y.T.astype(np.float64) @ y)[::-1].cumsum()
            e /= e[-1]
            return [int((e < s).sum()) + 1 for s in (0.9, 0.99, 0.999)]
        k, r, v = (recorder.note(layer, i) for i in (1, 2, 3))
        s = (k ** 2).sum() ** -0.5 * (v ** 2).sum() ** 0.5
        flat = [np.concatenate([y.reshape(len(v), -1) * s, v], 1) for y in (k, r)]
        print(layer, *[share(y) for y in flat], [share(r[:, h]) for h in range(recorder.kv_heads)], share(v), "of", 2 * wide, recorder.head_dim, wide)
    reference, figures = measure(recorder, windows)
    full = 4 * wide * 1.0
    print(f"whole: ppl {figures['perplexity']:.4f}, {full * recorder.layers:.0f} bytes a token")

    def tell(name, model):
        _, f = measure(model, windows, reference)
        print(f"{name:40s} {model.bytes * model.layers:6.0f} B {model.bytes / full:6.1%}  KL {f['kl']:.6f} ({f['error']:.6f}) 99% {f['kl99']:.5f} "
              f"ppl {f['perplexity']:.4f} same {f['same']:.3f}", flush=True)

    most = min(2 * wide, recorder.dim)
    for rank in [most * n // 8 for n in (8, 7, 6, 5, 4, 3, 2)]:
        tell(f"rebuilt, plain, r {rank}", Rebuilt(path, recorder, rank, False))
        tell(f"rebuilt, weighted, r {rank}", Rebuilt(path, recorder, rank, True))
        tell(f"rebuilt, weighted, q8_0, r {rank}", Rebuilt(path, recorder, rank, True, 8))
    for eighths in (8, 7, 6, 5, 4, 3, 2):
        rank_k, rank_v = recorder.head_dim * eighths // 8, wide * eighths // 8
        tell(f"rotated, r_k {rank_k} a head, r_v {rank_v}", Rotated(path, recorder, rank_k, rank_v))
        tell(f"keys whole, r_v {rank_v}", Rotated(path, recorder, recorder.head_dim, rank_v))
        tell(f"rotated, q8_0, r_k {rank_k}, r_v {rank_v}", Rotated(path, recorder, rank_k, rank_v, 8))
    for keep in range(1, recorder.kv_heads + 1):
        both = (recorder.kv_heads - keep) * recorder.head_dim + wide
        for eighths in (8, 6, 5, 4, 3, 2):
            tell(f"decoupled, {keep} rotated, r {both * eighths // 8}", Decoupled(path, recorder, both * eighths // 8, keep))


if __name__ == "__main__":
    main(*sys.argv[1:])
