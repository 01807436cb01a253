#!/usr/bin/env python3
"""Writes a checkpoint of random bf16 weights in Llama's shapes, sharded: what `convert` is timed on. Needs Python alone.

    make.py FOLDER [LAYERS]     # 44 MB of embedding and head, 88 MB a layer; 22 layers are 2.0 GB
"""
import json
import os
import pathlib
import struct
import sys

WIDTH, FF, HEADS, KV_HEADS, DIM, WORDS = 2048, 5632, 32, 4, 64, 5300
SHARD_BYTES = 500_000_000
BLOCK = 1 << 24
# Signs and exponents of numbers between 2^-9 and 2^-5.
EXPONENTS = bytes((byte & 0x81) | 0x3B - (byte >> 1 & 1) for byte in range(256))


def shapes(layers):
    yield "model.embed_tokens.weight", [WORDS, WIDTH]
    for layer in range(layers):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", [WIDTH]
        for part, rows, cols in (("q", HEADS * DIM, WIDTH), ("k", KV_HEADS * DIM, WIDTH), ("v", KV_HEADS * DIM, WIDTH), ("o", WIDTH, HEADS * DIM)):
            yield f"{name}self_attn.{part}_proj.weight", [rows, cols]
        yield name + "post_attention_layernorm.weight", [WIDTH]
        for part, rows, cols in (("gate", FF, WIDTH), ("up", FF, WIDTH), ("down", WIDTH, FF)):
            yield f"{name}mlp.{part}_proj.weight", [rows, cols]
    yield "model.norm.weight", [WIDTH]
    yield "lm_head.weight", [WORDS, WIDTH]


def random_block():
    block = bytearray(os.urandom(BLOCK))
    block[1::2] = bytes(block[1::2]).translate(EXPONENTS)
    return bytes(block)


def size_of(shape):
    return 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)


def write_shard(path, tensors, block):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size_of(shape)]}
        end += size_of(shape)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, end, BLOCK):
            file.write(block[: min(BLOCK, end - begin)])


def write_tokenizer(folder):
    """Byte-level, without merges: the bytes' letters, then words that no text becomes."""
    letters = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + i) for i in range(256 - len(letters))]
    words = letters + [f"word{i}" for i in range(WORDS - len(letters))]
    pattern = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    steps = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"},
             {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]
    model = {"type": "BPE", "vocab": {word: i for i, word in enumerate(words)}, "merges": [], "ignore_merges": True}
    (folder / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "model": model}))


def main():
    folder, layers = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 22
    folder.mkdir(parents=True)
    shards, size = [[]], 0
    for name, shape in shapes(layers):
        if size + size_of(shape) > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += size_of(shape)
    block, where = random_block(), {}
    for i, tensors in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(folder / file, tensors, block)
        where |= {name: file for name, _ in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    config = {"model_type": "llama", "hidden_size": WIDTH, "intermediate_size": FF, "num_hidden_layers": layers, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048,
              "vocab_size": WORDS, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)


if __name__ == "__main__":
    main()
