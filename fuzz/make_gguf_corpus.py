#!/usr/bin/env python3
"""Writes seeds: to fuzz/corpus/gguf small files that reach every branch of the reader, to fuzz/corpus/model one for each
architecture, with every metadata key that src/model names.

    python3 fuzz/make_gguf_corpus.py [--check]

--check writes nothing and fails where a file is not what this script would write: a key or an architecture is new.
"""
import pathlib
import re
import struct
import sys

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
              ("q6", [256], 14, 210), ("iq", [256], 23, 136), ("bf", [2, 1, 1, 2], 30, 8), ("i", [3], 24, 3), ("nv", [64], 40, 36)]
    yield "blocks", gguf([], blocks)
    yield "split", gguf([("split.no", U16, 0), ("split.count", U16, 2), ("split.tensors.count", I32, 2)], tensors[:1])
    yield "empty", gguf([])


# What keeps a key's number from ending a model at once; others are 1.
NUMBERS = {"block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32,
           "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32, "expert_count": 4,
           "expert_used_count": 2, "attention.head_count": 2, "attention.key_length": 16, "attention.value_length": 16,
           "attention.key_length_swa": 8, "attention.value_length_swa": 8, "attention.sliding_window": 16,
           "rope.dimension_count": 16, "rope.dimension_count_swa": 8, "rope.scaling.original_context_length": 32,
           "rope.scaling.factor": 4.0, "rope.freq_base": 10000.0, "rope.freq_base_swa": 10000.0, "vocab_size": 3,
           "attention.key_length_mla": 24, "attention.value_length_mla": 24, "attention.kv_lora_rank": 32,
           "attention.q_lora_rank": 32, "nextn_predict_layers": 0, "embedding_length_per_layer_input": 8,
           "full_attention_interval": 2, "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2,
           "ssm.time_step_rank": 4, "ssm.inner_size": 128, "shortconv.l_cache": 3, "moe_latent_size": 0,
           "attention.indexer.key_length": 32}
REALS = {"swiglu_clamp_exp", "swiglu_clamp_shexp"}  # of each layer
ROPE_SCALINGS = ["none", "linear", "yarn", "longrope"]


def model_keys(sources):
    """{key without its architecture: type} of all that src/model reads."""
    kinds = {"floats_of_layers": ARRAY, "required": U32, "optional": U32, "of_layers": ARRAY, "optional_float": F32, "optional_bool": BOOL,
             "get_float_or": F32, "get_string": STRING}
    text = "\n".join(path.read_text() for path in sources)
    keys = {key: kinds[how] for how, key in
            re.findall(r'\b(required|optional|floats_of_layers|of_layers|optional_float|optional_bool)\(\s*"([^"]+)"', text)}
    for how, key in re.findall(r'\b(get_float_or|get_string)\(arch_key\(file, "([^"]+)"', text):
        keys.setdefault(key, kinds[how])
    named = set(re.findall(r'arch_key\(file, "([^"]+)"', text)) | set(keys)
    for key in named - set(keys):
        keys[key] = STRING if key.endswith(".type") else U32
    return dict(sorted(keys.items()))


def model_seeds(source):
    """(name, file) of each architecture: its metadata and an embedding; the first tensor of a layer is missing."""
    keys = model_keys(sorted(source.glob("*.cpp")))
    architectures = re.findall(r'Entry\{"([^"]+)"', (source / "registry.cpp").read_text())
    if not keys or not architectures:
        sys.exit(f"{source}: no keys or no architectures; has its code another form now?")
    for number, architecture in enumerate(architectures):
        pairs = [("general.architecture", STRING, architecture), ("general.name", STRING, "seed")]
        for key, kind in keys.items():
            held = NUMBERS.get(key, 1)
            if kind == STRING:
                held = ROPE_SCALINGS[number % len(ROPE_SCALINGS)]
            if kind == ARRAY:
                held = (F32 if key in REALS else U32, [held] * NUMBERS["block_count"])
            pairs.append((f"{architecture}.{key}", kind, held))
        yield architecture, gguf(pairs, [("token_embd.weight", [32, 3], 1, 192)])


def main():
    fuzz = pathlib.Path(__file__).parent
    wanted = {fuzz / "corpus" / "gguf" / f"{name}.gguf": content for name, content in seeds()}
    wanted |= {fuzz / "corpus" / "model" / f"{name}.gguf": content
               for name, content in model_seeds(fuzz.parent / "src" / "model")}
    if "--check" in sys.argv[1:]:
        stale = [path for path, content in wanted.items() if not path.exists() or path.read_bytes() != content]
        if stale:
            sys.exit(f"{', '.join(path.name for path in stale)}: run fuzz/make_gguf_corpus.py, src/model reads other keys")
        return
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
