#!/usr/bin/env python3
"""A copy of a Qwen3 GGUF file (F16) that computes the same, but whose keys and values have outliers such as larger models have.

Of each head's channels some keys are FACTOR times as large, and the queries that meet them as much smaller: the weights of the heads' norms change.
Some channels of values are, too, and the output matrix undoes it. A power of two changes no other bit (but of subnormals).
Usage: kv_outliers.py IN OUT FACTOR
"""
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
OUTLIERS = (5, 20)  # of the first half of a head's channels, and the same of the second: pairs that RoPE turns


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def string(self):
        count = self.take("Q")
        self.at += count
        return self.data[self.at - count:self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, count = self.take("I"), self.take("Q")
            for _ in range(count):
                self.value(kind)
            return None
        self.at += SIZES[kind]
        return struct.unpack_from({4: "<I", 5: "<i"}.get(kind, "<B"), self.data, self.at - SIZES[kind])[0]


def main(source, target, factor):
    data = bytearray(open(source, "rb").read())
    reader = Reader(data)
    reader.at = 8
    tensors, pairs = reader.take("Q"), reader.take("Q")
    meta = {}
    for _ in range(pairs):
        name = reader.string()
        meta[name] = reader.value(reader.take("I"))
    table = {}
    for _ in range(tensors):
        name = reader.string()
        dims = [reader.take("Q") for _ in range(reader.take("I"))]
        table[name] = (dims, reader.take("I"), reader.take("Q"))
    align = meta.get("general.alignment", 32)
    base = (reader.at + align - 1) // align * align

    def scale(name, indices, by):
        dims, kind, offset = table[name]
        form, width = {0: ("f", 4), 1: ("e", 2)}[kind]
        for i in indices(dims):
            at = base + offset + i * width
            struct.pack_into("<" + form, data, at, struct.unpack_from("<" + form, data, at)[0] * by)

    arch = meta["general.architecture"]
    heads, kv_heads = meta[f"{arch}.attention.head_count"], meta[f"{arch}.attention.head_count_kv"]
    head_dim = table["blk.0.attn_k_norm.weight"][0][0]
    channels = [c + half for c in OUTLIERS for half in (0, head_dim // 2)]
    for layer in range(meta[f"{arch}.block_count"]):
        scale(f"blk.{layer}.attn_k_norm.weight", lambda _: channels, factor)
        scale(f"blk.{layer}.attn_q_norm.weight", lambda _: channels, 1 / factor)
        scale(f"blk.{layer}.attn_v.weight",
              lambda dims: [(h * head_dim + c) * dims[0] + i for h in range(kv_heads) for c in channels for i in range(dims[0])], factor)
        scale(f"blk.{layer}.attn_output.weight",
              lambda dims: [row * dims[0] + h * head_dim + c for row in range(dims[1]) for h in range(heads) for c in channels], 1 / factor)
    open(target, "wb").write(data)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
