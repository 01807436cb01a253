"""Tiny models that read pictures: a decoder whose vocabulary is given the tokens that pictures need, and the mmproj file of a tower."""
import pathlib
import random
import shutil
import struct
import zlib

from gguf_keys import Layout, string, value, with_keys
from harness import DRAFT, ROOT

MODELS, TOWERS, PICTURES = ROOT / "tests/data/reference", ROOT / "tests/data/vision", ROOT / "tests/data/pictures"
QWEN = {45: "<|vision_start|>", 46: "<|vision_end|>", 47: "<|image_pad|>"}
PIXTRAL = {188: "[IMG]", 189: "[IMG_BREAK]", 190: "[IMG_END]"}  # the bundled draft's tokens for bytes that no UTF-8 text has
TILES = {41: "<fake_token_around_image>", 43: "<global-img>", 45: "<row_1_col_1>", 46: "<row_1_col_2>", 47: "<row_2_col_1>", 48: "<row_2_col_2>", 49: "<image>"}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


def make_model(source, target, tokens, keys):
    """A copy whose vocabulary has these tokens as special ones, and which has these keys more."""
    data = source.read_bytes()
    at = data.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 4
    count = struct.unpack_from("<Q", data, at + 4)[0]
    first = last = at + 12
    pieces = []
    for token in range(count):
        length = struct.unpack_from("<Q", data, last)[0]
        pieces.append(string(tokens[token]) if token in tokens else data[last:last + 8 + length])
        last += 8 + length
    head = bytearray(data[:first] + b"".join(pieces) + data[last:Layout(data).end_of_tensors])
    types = head.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 16
    for token in tokens:
        struct.pack_into("<i", head, types + 4 * token, 3)
    middle = target.with_suffix(".middle")
    middle.write_bytes(bytes(head) + b"\0" * (-len(head) % 32) + data[Layout(data).data:])
    with_keys(middle, target, keys)
    middle.unlink()


def make_seeing(folder):
    """A random model in the folder that reads pictures, and its mmproj file."""
    model = folder / "sees.gguf"
    make_model(MODELS / "qwen35.gguf", model, QWEN, {"tokenizer.chat_template": TEMPLATE})
    with_keys(TOWERS / "qwen35-mmproj.gguf", folder / "mmproj-sees.gguf", {"clip.vision.image_min_pixels": 1024, "clip.vision.image_max_pixels": 4096})
    return model


def make_seeing_tiles(folder):
    """The same of one whose tower sees pictures in tiles, and the whole behind them."""
    model = folder / "tiles.gguf"
    make_model(MODELS / "llama.gguf", model, TILES, {"tokenizer.chat_template": TEMPLATE})
    shutil.copy(TOWERS / "llama-idefics3-mmproj.gguf", folder / "mmproj-tiles.gguf")
    return model


def make_seeing_draft(folder):
    """The bundled draft model, which has learned texts, with a random tower: its last two matrices make rows of the draft's width."""
    model, width = folder / "sees.gguf", 128
    make_model(pathlib.Path(DRAFT), model, PIXTRAL, {})
    data, numbers = bytearray((TOWERS / "mistral-nemo-mmproj.gguf").read_bytes()), random.Random(1)
    layout, key = Layout(data), string("clip.vision.projection_dim")
    place = data.index(key) + len(key)
    data[place:place + 8] = value(width)
    first, last = (layout.found[name] for name in ("mm.1.weight", "mm.2.weight"))
    begin = first[3]  # of the data of the two, with which the file ends
    assert all(offset in (begin, last[3]) or offset < begin for *_, offset in layout.found.values()) and begin < last[3]
    weights = b""
    for name, cols in (("mm.1.weight", first[0]), ("mm.2.weight", width)):
        shape = data.index(string(name)) + len(string(name)) + 4
        struct.pack_into("<QQIQ", data, shape, cols, width, 1, begin + len(weights))
        weights += struct.pack(f"<{cols * width}e", *(numbers.gauss(0, 0.1) for _ in range(cols * width)))
    (folder / "mmproj-sees.gguf").write_bytes(data[:layout.data + begin] + weights)
    return model


def noise(width, height):
    """A PNG that nothing makes smaller than three bytes a pixel."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + random.Random(row).randbytes(3 * width) for row in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows, 0))
            + chunk(b"IEND", b""))
