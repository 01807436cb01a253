"""Asks llama.cpp what reference checkpoints answer under a control vector.

    python3 steered.py FIXTURES_DIR [NAME...]

Writes NAME-steered.bin beside each of MODELS: the tokens of NAME.bin, and in the place of its logits those of llama.cpp
with direction(layer, dim) behind every layer but the first, from FIRST_LAYER to LAST_LAYER. The copy that llama.cpp
reads has F32 weights in the place of F16, so that it rounds nothing, and KV is in F32. Without a vector its logits have to be
those of NAME.bin: what differs is printed, and more than ROUNDING of it fails.
Needs llama-cpp-py-sync of PyPI (llama.cpp as a library, 2026).
"""

import math
import struct
import sys
import tempfile
from pathlib import Path

from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib

import widen

MODELS = ["gemma4", "gpt2", "llama3", "qwen3moe"]
FIRST_LAYER, LAST_LAYER = 1, 1000
ROUNDING = 2e-3


def direction(layer, dim):
    """The test makes the same: eighths, so that every float is exact."""
    return [((37 * i + 101 * layer) % 17 - 8) / 8 for i in range(dim)]


def read_reference(path):
    data = path.read_bytes()
    magic, version, sequences, text_bytes, count, vocabulary = struct.unpack_from("<8s5I", data)
    assert (magic, version, sequences, text_bytes) == (b"MRLOGITS", 1, 1, 0), path
    tokens = struct.unpack_from(f"<{count}i", data, 28)
    return list(tokens), list(struct.unpack_from(f"<{count * vocabulary}f", data, 28 + 4 * count)), vocabulary


def write_reference(path, tokens, logits, vocabulary):
    path.write_bytes(struct.pack("<8s5I", b"MRLOGITS", 1, 1, 0, len(tokens), vocabulary) + struct.pack(f"<{len(tokens)}i", *tokens) +
                     struct.pack(f"<{len(logits)}f", *logits))


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b))


class Witness:
    def __init__(self, path):
        self.ffi, self.lib = get_ffi(), get_lib()
        self.lib.llama_backend_init()
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
        assert self.model != self.ffi.NULL, path
        self.dim, self.layers = self.lib.llama_model_n_embd(self.model), self.lib.llama_model_n_layer(self.model)

    def answer(self, tokens, vocabulary, steered):
        """All rows' logits."""
        parameters = self.lib.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 256, len(tokens), len(tokens)
        parameters.type_k = parameters.type_v = self.lib.GGML_TYPE_F32
        parameters.flash_attn_type = self.lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.n_threads = parameters.n_threads_batch = 1
        context = self.lib.llama_init_from_model(self.model, parameters)
        if steered:
            numbers = [x for layer in range(1, self.layers) for x in direction(layer, self.dim)]
            data = self.ffi.new("float[]", numbers)
            status = self.lib.llama_set_adapter_cvec(context, data, len(numbers), self.dim, FIRST_LAYER, LAST_LAYER)
            assert status == 0, status
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.n_seq_id[place], batch.logits[place] = token, place, 1, 1
            batch.seq_id[place][0] = 0
        batch.n_tokens = len(tokens)
        assert self.lib.llama_decode(context, batch) == 0
        logits = [x for row in range(len(tokens)) for x in self.ffi.unpack(self.lib.llama_get_logits_ith(context, row), vocabulary)]
        self.lib.llama_free(context)
        return logits


def main():
    folder, names = Path(sys.argv[1]), sys.argv[2:] or MODELS
    for name in names:
        tokens, logits, vocabulary = read_reference(folder / f"{name}.bin")
        with tempfile.TemporaryDirectory() as room:
            wide = Path(room) / "wide.gguf"
            wide.write_bytes(widen.widened((folder / f"{name}.gguf").read_bytes()))
            witness = Witness(wide)
            bare, steered = (witness.answer(tokens, vocabulary, which) for which in (False, True))
        print(f"{name}: {distance(bare, logits):.1e} of transformers without a vector, which changes {distance(steered, bare):.2f}")
        assert distance(bare, logits) < ROUNDING, name
        write_reference(folder / f"{name}-steered.bin", tokens, steered, vocabulary)


if __name__ == "__main__":
    main()
