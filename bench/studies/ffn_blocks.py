#!/usr/bin/env python3
"""A feed-forward cut into blocks of channels that sum to it, of which each token computes the best few (a dense model as a mixture).

Blocks are made by a plain cut, by mean energy (the hottest together), or by clusters of channels that are large for the same
tokens (k-means of equal sizes over |h| of a first text). Which are computed is chosen by an oracle (the squared norm of what a
block adds), by a router (a ridge regression from the input to these norms), or is the same for all tokens.
Usage: ffn_blocks.py MODEL.gguf FIRST.txt REST.txt PROGRAM [BLOCKS]
"""
import sys

import numpy as np

from numpy_model import Model, measure, token_windows


class Blocks(Model):
    def __init__(self, path, count):
        super().__init__(path)
        self.count, self.keep, self.way, self.notes, self.blocks, self.router = count, count, None, {}, {}, {}

    def feed_forward(self, layer, x):
        self.x = x
        return super().feed_forward(layer, x)

    def down(self, layer, expert):
        return self.of(layer, "ffn_down_exps")[expert] if self.used else self.of(layer, "ffn_down")

    def norms(self, key, h):
        """[rows, blocks]: what each block adds, its norm."""
        down = self.down(*key)
        return np.stack([np.linalg.norm(h[:, b] @ down[:, b].T, axis=-1) for b in self.blocks[key]], -1)

    def hidden(self, layer, expert, h, rows):
        key = (layer, expert)
        if self.way == "note":
            self.notes.setdefault(key, []).append((self.x[rows], h))
        if self.way in (None, "note") or self.keep == self.count:
            return h
        if self.way == "oracle":
            worth = self.norms(key, h)
        elif self.way == "router":
            worth = np.concatenate([self.x[rows], np.ones((len(rows), 1), np.float32)], 1) @ self.router[key][0]
        else:
            worth = np.broadcast_to(self.router[key][1], (len(h), self.count))
        out = np.zeros_like(h)
        for i, block in enumerate(np.argsort(-worth, -1)[:, :self.keep].T if len(h) else []):
            for b in range(self.count):
                at = np.nonzero(block == b)[0]
                out[np.ix_(at, self.blocks[key][b])] = h[np.ix_(at, self.blocks[key][b])]
        return out

    def cut(self, how):
        for key, notes in self.notes.items():
            x, h = (np.concatenate([n[i] for n in notes]) for i in (0, 1))
            size = np.abs(h) * np.linalg.norm(self.down(*key), axis=0)
            width = h.shape[1]
            order = np.arange(width)
            if how == "energy":
                order = np.argsort(-(size ** 2).sum(0))
            self.blocks[key] = list(order.reshape(self.count, -1))
            if how == "clusters":
                self.blocks[key] = clusters(size, self.count)
            worth = self.norms(key, h)
            x = np.concatenate([x, np.ones((len(x), 1), np.float32)], 1)
            gram = x.T @ x
            gram += 1e-2 * np.trace(gram) / len(gram) * np.eye(len(gram), dtype=np.float32)
            self.router[key] = (np.linalg.solve(gram, x.T @ worth), worth.mean(0))


def clusters(size, count, rounds=12):
    """Channels in groups of equal size by how alike their sizes are over tokens."""
    points = (size / (np.linalg.norm(size, axis=0) + 1e-9)).T  # [channels, tokens]
    if points.shape[1] > 1500:
        points = points[:, np.linspace(0, points.shape[1] - 1, 1500).astype(int)]
    points = points / (np.linalg.norm(points, axis=1, keepdims=True) + 1e-9)
    room = len(points) // count
    centres = points[np.random.default_rng(1).permutation(len(points))[:count]]
    for _ in range(rounds):
        likeness = points @ centres.T
        best = np.sort(likeness, 1)
        left, where = [room] * count, np.full(len(points), -1)
        for i in np.argsort(best[:, -2] - best[:, -1]):  # those with most to lose choose first
            for c in np.argsort(-likeness[i]):
                if left[c]:
                    where[i], left[c] = c, left[c] - 1
                    break
        centres = np.stack([points[where == c].mean(0) for c in range(count)])
    return [np.nonzero(where == c)[0] for c in range(count)]


def main(path, first, rest, program, count=8):
    model = Blocks(path, int(count))
    model.way = "note"
    for tokens in token_windows(path, program, first):
        model.forward(tokens)
    model.way = None
    windows = token_windows(path, program, rest)
    reference, figures = measure(model, windows)
    print("whole", figures)
    for how in ("plain", "energy", "clusters"):
        model.cut(how)
        for model.way in ("oracle", "router", "fixed"):
            for model.keep in [model.count * n // 8 for n in (7, 6, 5, 4, 2)]:
                _, f = measure(model, windows, reference)
                print(f"{how:9s} {model.way:7s} {model.keep} of {count}: KL {f['kl']:.6f} ({f['error']:.6f}) 99% {f['kl99']:.5f} ppl {f['perplexity']:.4f} "
                      f"same {f['same']:.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
