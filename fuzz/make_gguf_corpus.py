#!/usr/bin/env python3
"""Writes the seeds of gguf_fuzz to fuzz/corpus/gguf: small files that reach every branch of the reader."""
import pathlib
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, held):
    if kind == STRING:
        return string(held)
    if kind == ARRAY:
        element, items = held
        return struct.pack("<IQ", element, len(items)) + b"".join(value(element, item) for item in items)
    return struct.pack("<" + FORMATS[kind], held)


def pair(key, kind, held):
    return string(key) + struct.pack("<I", kind) + value(kind, held)


def gguf(pairs, tensors=(), version=3, alignment=32):
    """tensors: (name, dimensions, type id, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pair(*p) for p in pairs)
    data = b""
    for name, dims, kind, size in tensors:
        data += b"\0" * (-len(data) % alignment)
        head += string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", kind, len(data))
        data += bytes(i * 37 & 0xFF for i in range(size))
    return head + b"\0" * (-len(head) % alignment) + data


def seeds():
    scalars = [("u8", U8, 1), ("i8", I8, -1), ("u16", U16, 2), ("i16", I16, -2), ("u32", U32, 3), ("i32", I32, -3),
               ("f32", F32, 0.5), ("flag", BOOL, 1), ("text", STRING, "h\u00e9\x1b[31m\n"), ("u64", U64, 2**63),
               ("i64", I64, -4), ("f64", F64, 0.25)]
    yield "scalars", gguf(scalars)
    yield "arrays", gguf([(f"a{kind}", ARRAY, (kind, [held, held])) for _, kind, held in scalars])
    nested = (ARRAY, [(U8, [1, 2]), (STRING, ["x", ""]), (ARRAY, [(I32, [])])])
    yield "nested", gguf([("deep", ARRAY, nested)])
    llama = [("general.architecture", STRING, "llama"), ("general.name", STRING, "seed"), ("llama.block_count", U32, 2),
             ("llama.embedding_length", U32, 32), ("llama.attention.head_count", U32, 2),
             ("llama.attention.head_count_kv", U32, 1), ("llama.context_length", U32, 64),
             ("llama.rope.freq_base", F32, 10000.0), ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b", "<0x00>"])),
             ("tokenizer.ggml.scores", ARRAY, (F32, [0.0, -1.0, -2.0]))]
    layer = [("blk.%d.attn_norm.weight", [32], 0, 128), ("blk.%d.attn_q.weight", [32, 4], 2, 72),
             ("blk.%d.ffn_down.weight", [32, 2], 8, 68), ("blk.%d.ffn_gate_exps.weight", [32, 2, 2], 39, 68)]
    tensors = [("token_embd.weight", [32, 3], 1, 192)] + [(n % i, d, k, s) for i in range(2) for n, d, k, s in layer]
    yield "llama", gguf(llama, tensors)
    yield "version2", gguf(llama, tensors, version=2)
    yield "aligned", gguf([("general.alignment", U32, 64)], tensors[:3], alignment=64)
    yield "experts", gguf([("general.architecture", STRING, "m"), ("m.expert_count", U32, 4), ("m.expert_used_count", U32, 2)], tensors)
    blocks = [("q2", [256], 10, 84), ("q3", [256], 11, 110), ("q4", [256], 12, 144), ("q5", [256], 13, 176),
              ("q6", [256], 14, 210), ("iq", [256], 23, 136), ("bf", [2, 1, 1, 2], 30, 8), ("i", [3], 24, 3)]
    yield "blocks", gguf([], blocks)
    yield "split", gguf([("split.no", U16, 0), ("split.count", U16, 2), ("split.tensors.count", I32, 2)], tensors[:1])
    yield "empty", gguf([])


if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent / "corpus" / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in seeds():
        (folder / f"{name}.gguf").write_bytes(content)
