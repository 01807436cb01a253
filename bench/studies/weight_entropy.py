#!/usr/bin/env python3
"""How far entropy coding makes stored weights smaller: order-0 entropy of each part of a block, Huffman by zlib, and zstd (if installed).

Files are what `millrace quantize` wrote of one model. Beside them int4 by rows and int8 by channels of the F16 file's matrices, and
a uniform grid of one step a row whose step is chosen so that its entropy is a given number of bits (its divergence, too; the head's
is of 6.56 bits at least, as it is Q6_K in a K-quant's file). F16 files that end in -back.gguf are held against the first in the same way.
Usage: weight_entropy.py F16.gguf FILE.gguf... [--text REST.txt --program PROGRAM]
"""
import shutil
import subprocess
import sys
import zlib

import numpy as np

from numpy_model import BLOCKS, Model, NAMES, floats, measure, read_gguf, token_windows


def entropy(symbols):
    _, counts = np.unique(symbols, return_counts=True)
    p = counts / counts.sum()
    return float(-(p * np.log2(p)).sum())


def nibbles(x):
    return np.concatenate([x & 15, x >> 4])


def parts(kind, raw):
    """[(name, symbols, bits of one as stored)] of a tensor's bytes."""
    b = np.frombuffer(raw, np.uint8).reshape(-1, BLOCKS[kind][1]) if kind not in (0, 1, 30) else None
    if kind == 1:
        w = np.frombuffer(raw, np.uint16)
        return [("sign and exponent", w >> 10, 6), ("mantissa, upper 7", (w >> 3) & 127, 7), ("mantissa, lower 3", w & 7, 3)]
    if kind == 30:
        w = np.frombuffer(raw, np.uint16)
        return [("exponent", (w >> 7) & 255, 8), ("sign and mantissa", (w & 127) | (w >> 15 << 7), 8)]
    if kind == 2:
        return [("quants", nibbles(b[:, 2:]), 4), ("scales", b[:, :2].copy().view(np.uint16), 16)]
    if kind == 8:
        return [("quants", b[:, 2:], 8), ("scales", b[:, :2].copy().view(np.uint16), 16)]
    if kind == 12:
        return [("quants", nibbles(b[:, 16:]), 4), ("scales of 6 bits", b[:, 4:16], 8), ("scales", b[:, :4].copy().view(np.uint16), 16)]
    if kind == 14:
        ql, qh = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 32)
        q = [(ql[:, :, j % 2] >> (4 * (j // 2)) & 15) | ((qh >> (2 * j)) & 3) << 4 for j in range(4)]
        return [("quants", np.stack(q), 6), ("scales of 8 bits", b[:, 192:208], 8), ("scales", b[:, 208:].copy().view(np.uint16), 16)]
    if kind == 39:
        return [("quants", nibbles(b[:, 1:]), 4), ("scales", b[:, 0], 8)]
    if kind == 40:
        return [("quants", nibbles(b[:, 4:]), 4), ("scales", b[:, :4], 8)]
    return []


def huffman(raw):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return len(packer.compress(raw) + packer.flush()) / len(raw)


def zstd(raw, level):
    if shutil.which("zstd") is None:
        return float("nan")
    return len(subprocess.run(["zstd", f"-{level}", "-c"], input=raw, capture_output=True, check=True).stdout) / len(raw)


def tell(name, tensors):
    """`tensors`: lists of parts; one table of frequencies a tensor and part."""
    stored = bits = 0.0
    by = {}
    for tensor in tensors:
        for part, symbols, width in tensor:
            h = entropy(symbols)
            stored, bits = stored + symbols.size * width, bits + symbols.size * h
            old = by.get(part, (0, 0, width))
            by[part] = (old[0] + symbols.size * h, old[1] + symbols.size, width)
    print(f"{name}: order 0 {bits / stored:.1%}; " + "; ".join(f"{p} {h / n:.2f} of {w} bits" for p, (h, n, w) in by.items()), flush=True)


def of_file(path):
    _, tensors = read_gguf(path)
    kinds = {}
    for shape, kind, raw in tensors.values():
        if len(shape) > 1 and kind:
            kinds.setdefault(kind, []).append(raw)
    for kind, raws in kinds.items():
        if kind in NAMES and sum(map(len, raws)) > 0.02 * sum(len(t[2]) for t in tensors.values()):
            tell(NAMES[kind] + f" ({path.split('/')[-1]})", [parts(kind, raw) for raw in raws])
            whole = b"".join(raws)
            print(f"    as bytes: Huffman {huffman(whole):.1%}, zstd -3 {zstd(whole, 3):.1%}, zstd -19 {zstd(whole, 19):.1%}", flush=True)


def matrices(path):
    tensors = read_gguf(path)[1]
    found = {n: floats(t) for n, t in tensors.items() if len(t[0]) > 1 and t[1] in (1, 30)}
    for name, w in found.items():  # NVFP4 has a number beside each matrix
        scale = tensors.get(name.replace(".weight", ".scale"))
        if scale is not None:
            w *= floats(scale).reshape(-1, *[1] * (w.ndim - 1))
    return found


def rows_rounded(w, top):
    rows = w.reshape(-1, w.shape[-1])
    return np.round(rows / np.maximum(np.abs(rows).max(1, keepdims=True), 1e-12) * top).astype(np.int8)


def grid(w, bits):
    """Rounded to a uniform grid, one step a row (of its deviation), with that entropy: (levels, weights)."""
    rows = w.reshape(-1, w.shape[-1])
    scale = rows.std(1, keepdims=True)
    low, high = 0.005, 8.0
    for _ in range(18):
        step = (low * high) ** 0.5
        q = np.round(rows / (scale * step))
        low, high = (step, high) if entropy(q) > bits else (low, step)
    return q, (q * scale * step).reshape(w.shape).astype(np.float32)


def error(pairs):
    return (sum(((a - b) ** 2).sum() for a, b in pairs) / sum((a ** 2).sum() for a, _ in pairs)) ** 0.5


def main(args):
    options = {k: args[args.index(k) + 1] for k in ("--text", "--program") if k in args}
    files = [a for i, a in enumerate(args) if not a.startswith("--") and (i == 0 or not args[i - 1].startswith("--"))]
    for path in files:
        if not path.endswith("-back.gguf"):
            of_file(path)
    whole = matrices(files[0])
    for name, top, width in (("int4 by rows", 7, 4), ("int8 by channels", 127, 8)):
        q = [rows_rounded(w, top) for w in whole.values()]
        tell(name, [[("quants", x, width)] for x in q])
        raw = b"".join(((x[:, ::2] & 15) | (x[:, 1::2] << 4)).astype(np.uint8).tobytes() if width == 4 else x.tobytes() for x in q)
        print(f"    as bytes: Huffman {huffman(raw):.1%}, zstd -19 {zstd(raw, 19):.1%}")
    model = Model(files[0]) if options else None
    if model:
        windows = token_windows(files[0], options["--program"], options["--text"])
        reference, _ = measure(model, windows)
    def damage(made):
        text = f"relative error {error([(w, made[n]) for n, w in whole.items() if n in made and n != 'token_embd.weight']):.4f}"
        if model:
            model.w.update(made)
            _, f = measure(model, windows, reference)
            text += f", KL {f['kl']:.6f} ({f['error']:.6f}) 99% {f['kl99']:.6f}"
        return text

    for path in files:
        if path.endswith("-back.gguf"):
            print(path.split("/")[-1], damage(matrices(path)), flush=True)
    for bits in (6.56, 4.5, 4.25, 4.0, 3.5, 3.0):
        made = {n: grid(w, max(bits, 6.56) if n == "token_embd.weight" else bits)[1] for n, w in whole.items()}
        print(f"uniform grid by rows, entropy {bits}: {damage(made)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
