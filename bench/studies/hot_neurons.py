#!/usr/bin/env python3
"""Hot and cold channels of feed-forwards (PowerInfer's idea): how energy is spread, and what dropping a share of the channels costs.

A channel's energy for a token is |silu(gate) * up|^2 times its column of down's squared norm. What is dropped is chosen by
  oracle    the token's smallest of these
  gate      the smallest of |silu(gate)| times the norm of down's column: gate must be read whole, up and down partly
  previous  the channels that the token before had smallest (the same feed-forward; a dense model alone)
  linear    energies foretold from the input by a ridge regression of rank 32 made on the first text
  fixed     the smallest on average over the first text
Usage: hot_neurons.py MODEL.gguf FIRST.txt REST.txt PROGRAM [WAY...]
"""
import sys

import numpy as np

from numpy_model import Model, measure, silu, token_windows


class Channels(Model):
    def __init__(self, path):
        super().__init__(path)
        self.way, self.drop, self.notes, self.inputs, self.mean, self.energy, self.fit, self.x = None, 0.0, {}, {}, {}, {}, {}, None

    def weights(self, layer, expert):
        if not self.used:
            return [self.of(layer, f"ffn_{part}") for part in ("gate", "up", "down")]
        return [self.of(layer, f"ffn_{part}_exps")[expert] for part in ("gate", "up", "down")]

    def feed_forward(self, layer, x):
        self.x = x
        return super().feed_forward(layer, x)

    def hidden(self, layer, expert, h, rows):
        gate, _, down = self.weights(layer, expert)
        norm = np.linalg.norm(down, axis=0)
        if self.way is None:
            return h
        if self.way == "note":
            self.notes.setdefault((layer, expert), []).append(np.abs(h) * norm)
            self.inputs.setdefault((layer, expert), []).append(self.x[rows])
            return h
        if self.way == "oracle":
            measure_of = np.abs(h) * norm
        elif self.way == "gate":
            measure_of = np.abs(silu(self.x[rows] @ gate.T)) * norm
        elif self.way == "previous":
            measure_of = np.abs(h) * norm
            measure_of = np.concatenate([np.broadcast_to(self.mean[layer, expert], (1, h.shape[1])), measure_of[:-1]])
        elif self.way == "linear":
            a, b = self.fit[layer, expert]
            measure_of = (self.x[rows] @ a) @ b + self.mean[layer, expert]
        else:
            measure_of = np.broadcast_to(self.energy[layer, expert], h.shape)
        lost = int(round(self.drop * h.shape[1]))
        gone = np.argpartition(measure_of, lost, -1)[:, :lost] if lost else np.zeros((len(h), 0), int)
        h = h.copy()
        np.put_along_axis(h, gone, 0, -1)
        return h

    def learn(self):
        for key, notes in self.notes.items():
            y, x = np.concatenate(notes), np.concatenate(self.inputs[key])
            self.mean[key], self.energy[key] = y.mean(0), (y ** 2).mean(0)
            gram = x.T @ x + 1e-2 * np.trace(x.T @ x) / x.shape[1] * np.eye(x.shape[1], dtype=np.float32)
            fit = np.linalg.solve(gram, x.T @ (y - self.mean[key]))
            u, s, v = np.linalg.svd(fit, full_matrices=False)
            self.fit[key] = (u[:, :32] * s[:32], v[:32])


def spread(notes):
    """Share of channels that carry 90 and 99 % of the energy: of each token (median), of the sums over all."""
    def share(e):
        e = np.sort(e, -1)[..., ::-1]
        e = e.cumsum(-1) / e.sum(-1, keepdims=True)
        return [((e < s).sum(-1) + 1) / e.shape[-1] for s in (0.9, 0.99)]
    energy = {key: np.concatenate(n) ** 2 for key, n in notes.items()}
    token = np.concatenate([np.stack(share(e), -1) for e in energy.values()])
    total = np.mean([share(e.sum(0)) for e in energy.values()], 0)
    again = [np.mean([len(np.intersect1d(*p)) for p in zip(t[1:], t[:-1])]) / t.shape[1]
             for t in (np.argsort(-e, -1)[:, :e.shape[1] // 4] for e in energy.values())]
    hot = {key: np.argsort(-e.sum(0))[:e.shape[1] // 4] for key, e in energy.items()}
    covered = np.mean([e[:, hot[key]].sum() / e.sum() for key, e in energy.items()])
    return np.median(token, 0), np.quantile(token, 0.9, axis=0), total, np.mean(again), covered


def main(path, first, rest, program, *ways):
    model = Channels(path)
    model.way = "note"
    for tokens in token_windows(path, program, first):
        model.forward(tokens)
    median, high, total, again, covered = spread(model.notes)
    print(f"share of channels with 90 and 99 % of a token's energy: median {median}, 90 % quantile {high}; of all tokens' energy {total}")
    print(f"of a token's largest quarter the token before (of that expert) has {again:.1%}; energy of the fixed hottest quarter {covered:.1%}")
    zero = np.mean([(np.concatenate(n) < 1e-3 * np.concatenate(n).max(-1, keepdims=True)).mean() for n in model.notes.values()])
    print(f"channels below a thousandth of the token's largest: {zero:.1%}")
    model.learn()
    model.notes, model.inputs, model.way = {}, {}, None
    windows = token_windows(path, program, rest)
    reference, figures = measure(model, windows)
    print("whole", figures)
    for model.way in ways or ["oracle", "gate", "linear", "fixed"] + ([] if model.used else ["previous"]):
        for model.drop in (0.1, 0.25, 0.5, 0.625, 0.75, 0.875):
            _, f = measure(model, windows, reference)
            print(f"{model.way:9s} drop {model.drop:5.1%} KL {f['kl']:.6f} ({f['error']:.6f}) 99% {f['kl99']:.5f} ppl {f['perplexity']:.4f} same {f['same']:.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
