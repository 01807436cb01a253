"""Checkpoints written, and GGUF files read, by other code than Millrace's: what the tests of `convert` compare with."""
import json
import pathlib
import struct

SIZES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 14: (256, 210), 30: (1, 2), 39: (32, 17), 40: (64, 36)}  # GGUF type: elements and bytes of a block
F32, F16, Q4_0, Q4_1, Q8_0, BF16, MXFP4, NVFP4 = 0, 1, 2, 3, 8, 30, 39, 40


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """What write_safetensors wrote."""
    raw = path.read_bytes()
    length, = struct.unpack_from("<Q", raw)
    return {name: (entry["dtype"], entry["shape"], raw[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])
            for name, entry in json.loads(raw[8:8 + length]).items() if name != "__metadata__"}


def bf16(numbers):
    """Numbers that bfloat16 holds exactly, as its bytes."""
    return b"".join(struct.pack("<f", number)[2:] for number in numbers)


def floats_of_bf16(values):
    return [struct.unpack("<f", b"\0\0" + values[i:i + 2])[0] for i in range(0, len(values), 2)]


def f32(numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def f16(numbers):
    return struct.pack(f"<{len(numbers)}e", *numbers)


def floats_of(kind, values):
    """The numbers of a tensor's bytes, exactly."""
    if kind in (F32, F16):
        return list(struct.unpack(f"<{len(values) // (4 if kind == F32 else 2)}{'f' if kind == F32 else 'e'}", values))
    if kind == BF16:
        return floats_of_bf16(values)
    floats, size = [], SIZES[kind][1]
    for at in range(0, len(values), size):
        block = values[at:at + size]
        nibbles = lambda quants: [byte & 15 for byte in quants] + [byte >> 4 for byte in quants]
        if kind == Q4_0:
            d, = struct.unpack_from("<e", block)
            floats += [d * (q - 8) for q in nibbles(block[2:])]
        elif kind == Q4_1:
            d, m = struct.unpack_from("<2e", block)
            floats += [d * q + m for q in nibbles(block[4:])]
        elif kind == Q8_0:
            d, *quants = struct.unpack("<e32b", block)
            floats += [d * q for q in quants]
        elif kind == MXFP4:
            floats += [2.0 ** (block[0] - 127) * MXFP4_LEVELS[q] for q in nibbles(block[1:])]
        elif kind == NVFP4:
            for sub in range(4):
                floats += [e4m3(block[sub]) * MXFP4_LEVELS[q] for q in nibbles(block[4 + 8 * sub:12 + 8 * sub])]
    return floats


def e4m3(bits):
    """A positive one, as a number."""
    exponent, mantissa = bits >> 3, bits & 7
    return mantissa / 512 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


MXFP4_LEVELS = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


class Gguf:
    """{name: value} as .keys, {name: (type, shape, bytes)} as .tensors."""

    def __init__(self, path):
        self.data, self.at = pathlib.Path(path).read_bytes(), 4
        version, tensors, keys = self.number("<I"), self.number("<Q"), self.number("<Q")
        assert self.data[:4] == b"GGUF" and version == 3
        self.keys = {}
        for _ in range(keys):
            name = self.text()
            self.keys[name] = self.value(self.number("<I"))
        places = []
        for _ in range(tensors):
            name, dims = self.text(), self.number("<I")
            shape = [self.number("<Q") for _ in range(dims)]
            places.append((name, shape, self.number("<I"), self.number("<Q")))
        begin = -(-self.at // 32) * 32
        self.tensors = {}
        for name, shape, kind, offset in places:
            elements, size = SIZES[kind]
            count = 1
            for dim in shape:
                count *= dim
            self.tensors[name] = (kind, shape, self.data[begin + offset:begin + offset + count // elements * size])

    def number(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        size = self.number("<Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.number("<I"), self.number("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.number({0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}[kind])


QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def write_tokenizer(folder, pattern=QWEN2_WORDS, **changes):
    """A byte-level BPE of single characters; the template of ChatML."""
    words = {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġa": 5}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": 6, "content": "<|im_start|>", "special": True}, {"id": 7, "content": "<|im_end|>", "special": True},
                         {"id": 8, "content": "<tool_call>", "special": False}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "model": {"type": "BPE", "vocab": words, "merges": ["a b", ["Ġ", "a"]], "byte_fallback": False, "ignore_merges": False},
        **changes,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "eos_token": {"content": "<|im_end|>"}, "bos_token": None, "add_bos_token": False, "chat_template": "in the config"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 6], "temperature": 0.6, "top_k": 20}))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")


VOCABULARY, WIDTH, HEADS, KV_HEADS, DIM, FF = 12, 32, 2, 1, 16, 32  # 12 rows, of which 9 are tokens


def config(**changes):
    return {"hidden_size": WIDTH, "intermediate_size": FF, "num_hidden_layers": 1, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "head_dim": DIM, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "max_position_embeddings": 128, "vocab_size": VOCABULARY, "tie_word_embeddings": False, **changes}


def dense_shapes():
    layer = "model.layers.0."
    return {"model.embed_tokens.weight": [VOCABULARY, WIDTH], "model.norm.weight": [WIDTH], "lm_head.weight": [VOCABULARY, WIDTH],
            layer + "input_layernorm.weight": [WIDTH], layer + "post_attention_layernorm.weight": [WIDTH],
            layer + "self_attn.q_proj.weight": [HEADS * DIM, WIDTH], layer + "self_attn.k_proj.weight": [KV_HEADS * DIM, WIDTH],
            layer + "self_attn.v_proj.weight": [KV_HEADS * DIM, WIDTH], layer + "self_attn.o_proj.weight": [WIDTH, HEADS * DIM],
            layer + "mlp.gate_proj.weight": [FF, WIDTH], layer + "mlp.up_proj.weight": [FF, WIDTH],
            layer + "mlp.down_proj.weight": [WIDTH, FF]}


def numbers_of(shape, seed):
    """Different everywhere, and bfloat16 holds each: multiples of 1/64 below 4."""
    count = 1
    for dim in shape:
        count *= dim
    return [((i * 37 + seed * 101) % 253 - 126) / 64 for i in range(count)]


def write_checkpoint(folder, model_type="llama", shapes=None, **changes):
    """Returns {name: numbers}."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {name: numbers_of(shape, seed) for seed, (name, shape) in enumerate((shapes or dense_shapes()).items())}
    tensors = {name: ("BF16", shape, bf16(numbers[name])) for name, shape in (shapes or dense_shapes()).items()}
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config(model_type=model_type, **changes)))
    write_tokenizer(folder)
    return numbers
