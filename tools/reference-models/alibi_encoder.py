"""Makes the reference encoder with ALiBi, jina-bert-v2: transformers has none, so llama.cpp computes its states.

    python3 alibi_encoder.py FIXTURES_DIR

FIXTURES_DIR (tests/data/encoders) has bert.gguf and bert.bin of encoders.py. Their tokenizer, texts, tokens and weights stay; the table
of positions goes, and a feed-forward's first matrix gets a gate, drawn so that F16 holds it exactly. Writes jina-bert-v2.gguf, and in
jina-bert-v2.bin each token's last state. llama.cpp's GELU is the tanh form by a table of F16 results, the model's is the error function's:
how far that takes bert.gguf from what transformers gave is printed, and more than ROUNDING of it fails.
Needs llama-cpp-py-sync of PyPI (llama.cpp as a library, 2026).
"""

import math
import random
import struct
import sys
import tempfile
from pathlib import Path

from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib

import widen

NAME, FROM, ALIGNMENT = "jina-bert-v2", "bert", 32
F32, F16, STRING = 0, 1, 8
ROUNDING = 3e-3


def string(text):
    return struct.pack("<Q", len(text)) + text


def read_gguf(data):
    """[(key, type, bytes of its value)], [(name, dims, type, bytes)]"""
    reader = widen.Reader(data)
    _, _, tensor_count, key_count = reader.numbers("4sIQQ")
    keys = []
    for _ in range(key_count):
        name, (kind,), begin = reader.string(), reader.numbers("I"), reader.at
        reader.skip_value(kind)
        keys.append((name, kind, data[begin:reader.at]))
    places = []
    for _ in range(tensor_count):
        name, (dims,) = reader.string(), reader.numbers("I")
        places.append((name, reader.numbers(f"{dims}Q"), *reader.numbers("IQ")))
    begin = -(-reader.at // ALIGNMENT) * ALIGNMENT
    size = lambda dims, kind: math.prod(dims) * {F32: 4, F16: 2}[kind]
    return keys, [(name, dims, kind, data[begin + at:begin + at + size(dims, kind)]) for name, dims, kind, at in places]


def write_gguf(keys, tensors):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for name, kind, value in keys:
        head += string(name) + struct.pack("<I", kind) + value
    body = b""
    for name, dims, kind, data in tensors:
        head += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(body))
        body += data + bytes(-len(data) % ALIGNMENT)
    return head + bytes(-len(head) % ALIGNMENT) + body


def with_alibi(data):
    draw = random.Random(2)
    keys, tensors = read_gguf(data)
    ours = [(name.replace(FROM.encode() + b".", NAME.encode() + b".", 1) if name.startswith(FROM.encode() + b".") else name, kind,
             string(NAME.encode()) if name == b"general.architecture" else value) for name, kind, value in keys]
    made = []
    for name, dims, kind, values in tensors:
        if name == b"position_embd.weight" or name.endswith(b"ffn_up.bias"):
            continue
        if name.endswith(b"ffn_up.weight"):  # the gate's rows come first
            assert kind == F16, name
            gate = struct.pack(f"<{math.prod(dims)}e", *(draw.gauss(0, dims[0]**-0.5) for _ in range(math.prod(dims))))
            dims, values = (dims[0], 2 * dims[1]), gate + values
        made.append((name, dims, kind, values))
    return write_gguf(ours, made)


def read_states(path):
    """[(text, tokens, columns, states)]"""
    data, at, found = path.read_bytes(), 16, []
    for _ in range(struct.unpack_from("<I", data, 12)[0]):
        text_bytes, count, cols = struct.unpack_from("<III", data, at)
        text = data[at + 12:at + 12 + text_bytes]
        at += 12 + -(-text_bytes // 4) * 4
        tokens = struct.unpack_from(f"<{count}i", data, at)
        states = struct.unpack_from(f"<{count * cols}f", data, at + 4 * count)
        at += 4 * count + 4 * count * cols
        found.append((text, tokens, cols, states))
    return found


def write_states(path, references):
    out = struct.pack("<8sII", b"MRLOGITS", 1, len(references))
    for text, tokens, cols, states in references:
        out += struct.pack("<III", len(text), len(tokens), cols) + text + bytes(-len(text) % 4)
        out += struct.pack(f"<{len(tokens)}i", *tokens) + struct.pack(f"<{len(states)}f", *states)
    path.write_bytes(out)


def answer(data, references):
    """Each text's states, of a copy with F32 weights."""
    ffi, lib = get_ffi(), get_lib()
    lib.llama_backend_init()
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        Path(file.name).write_bytes(widen.widened(data))
        model = lib.llama_model_load_from_file(file.name.encode(), lib.llama_model_default_params())
        assert model != ffi.NULL
    parameters = lib.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = 512
    parameters.embeddings, parameters.pooling_type = True, lib.LLAMA_POOLING_TYPE_NONE
    parameters.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.n_threads = parameters.n_threads_batch = 1
    context = lib.llama_init_from_model(model, parameters)
    found = []
    for text, tokens, cols, _ in references:
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.n_seq_id[place], batch.logits[place] = token, place, 1, 1
            batch.seq_id[place][0] = 0
        batch.n_tokens = len(tokens)
        assert lib.llama_encode(context, batch) == 0
        states = [x for row in range(len(tokens)) for x in ffi.unpack(lib.llama_get_embeddings_ith(context, row), cols)]
        found.append((text, tokens, cols, states))
    return found


def main():
    folder = Path(sys.argv[1])
    bert, known = (folder / f"{FROM}.gguf").read_bytes(), read_states(folder / f"{FROM}.bin")
    pairs = [(x, y) for ours, theirs in zip(answer(bert, known), known) for x, y in zip(ours[3], theirs[3])]
    off = math.sqrt(sum((x - y)**2 for x, y in pairs) / sum(y * y for _, y in pairs))
    print(f"{FROM}: {off:.1e} of transformers")
    assert off < ROUNDING
    made = with_alibi(bert)
    (folder / f"{NAME}.gguf").write_bytes(made)
    write_states(folder / f"{NAME}.bin", answer(made, known))


if __name__ == "__main__":
    main()
