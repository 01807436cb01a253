"""convert, of matrices that are integers with scales: each layout is packed here, and what comes out is held to its formula."""
import json
import pathlib
import random
import struct
import tempfile
import unittest

import checkpoints
from harness import Case

WIDTH, FF, DIM, HEADS, KV_HEADS, VOCABULARY = 128, 128, 32, 4, 2, 16
LARGEST = 15 / 4096  # of scales
LAYER = "model.layers.0."
SHAPES = {"self_attn.q_proj": (HEADS * DIM, WIDTH), "self_attn.k_proj": (KV_HEADS * DIM, WIDTH), "self_attn.v_proj": (KV_HEADS * DIM, WIDTH),
          "self_attn.o_proj": (WIDTH, HEADS * DIM), "mlp.gate_proj": (FF, WIDTH), "mlp.up_proj": (FF, WIDTH), "mlp.down_proj": (WIDTH, FF)}
OURS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


class Matrix:
    """q, [rows][cols]; scales and zeros, [rows][groups]; group_of, the group of each column."""

    def __init__(self, draw, rows, cols, group, bits=4, zero=None):
        self.rows, self.cols, self.groups, self.bits = rows, cols, cols // group, bits
        self.q = [[draw.randrange(1 << bits) for _ in range(cols)] for _ in range(rows)]
        # Scales of 4 bits: bfloat16 holds their products with a zero.
        self.scales = [[(8 + draw.randrange(8)) / 4096 for _ in range(self.groups)] for _ in range(rows)]
        self.zeros = [[draw.randrange(1, 1 << bits) if zero is None else zero for _ in range(self.groups)] for _ in range(rows)]
        self.group_of = [c // group for c in range(cols)]

    def weights(self):
        return [[self.scales[r][g] * (self.q[r][c] - self.zeros[r][g]) for c, g in enumerate(self.group_of)] for r in range(self.rows)]


def words(numbers, bits):
    """Neighbours share a word of 32 bits, the first in its lowest bits."""
    each = 32 // bits
    return struct.pack(f"<{len(numbers) // each}I", *(sum(n << bits * i for i, n in enumerate(numbers[at:at + each])) for at in range(0, len(numbers), each)))


def flat(rows):
    return [number for row in rows for number in row]


def turned(rows):
    return [list(column) for column in zip(*rows)]


def mlx(name, m, floats=("F16", checkpoints.f16)):
    biases = [[-s * z for s, z in zip(*pair)] for pair in zip(m.scales, m.zeros)]
    groups = [m.rows, m.groups]
    return {f"{name}.weight": ("U32", [m.rows, m.cols * m.bits // 32], words(flat(m.q), m.bits)),
            f"{name}.scales": (floats[0], groups, floats[1](flat(m.scales))), f"{name}.biases": (floats[0], groups, floats[1](flat(biases)))}


def gptq(name, m, less=1):
    n = 32 // m.bits
    # Words hold n inputs of one output; they stand as [inputs / n, outputs].
    inputs = [flat(row[i:i + n] for row in m.q) for i in range(0, m.cols, n)]
    zeros = [[z - less for z in group] for group in turned(m.zeros)]
    return {f"{name}.qweight": ("I32", [m.cols // n, m.rows], words(flat(inputs), m.bits)),
            f"{name}.qzeros": ("I32", [m.groups, m.rows // n], words(flat(zeros), m.bits)),
            f"{name}.scales": ("F16", [m.groups, m.rows], checkpoints.f16(flat(turned(m.scales)))),
            f"{name}.g_idx": ("I32", [m.cols], struct.pack(f"<{m.cols}i", *m.group_of)),
            f"{name}.bias": ("F16", [m.rows], bytes(2 * m.rows))}  # as its writers leave it where there is none


def awq(name, m):
    shuffled = lambda row: flat([row[i + k] for k in (0, 2, 4, 6, 1, 3, 5, 7)] for i in range(0, len(row), 8))
    return {f"{name}.qweight": ("I32", [m.cols, m.rows // 8], words(flat(map(shuffled, turned(m.q))), 4)),
            f"{name}.qzeros": ("I32", [m.groups, m.rows // 8], words(flat(map(shuffled, turned(m.zeros))), 4)),
            f"{name}.scales": ("F16", [m.groups, m.rows], checkpoints.f16(flat(turned(m.scales))))}


def packed(name, m, zeros=False):
    tensors = {f"{name}.weight_packed": ("I32", [m.rows, m.cols * m.bits // 32], words(flat(m.q), m.bits)),
               f"{name}.weight_scale": ("BF16", [m.rows, m.groups], checkpoints.bf16(flat(m.scales))),
               f"{name}.weight_shape": ("I64", [2], struct.pack("<2q", m.rows, m.cols))}
    if zeros:  # eight rows of a group share a word
        tensors[f"{name}.weight_zero_point"] = ("I32", [m.rows // 8, m.groups], words(flat(flat(turned(m.zeros[i:i + 8])) for i in range(0, m.rows, 8)), 4))
    return tensors


def int8(name, m):
    return {f"{name}.weight": ("I8", [m.rows, m.cols], bytes(q + 128 & 255 for q in flat(m.q))),
            f"{name}.weight_scale": ("BF16", [m.rows, 1], checkpoints.bf16(flat(m.scales))), f"{name}.input_scale": ("BF16", [1], checkpoints.bf16([1]))}


def rope_pairs(rows, heads):
    dim = len(rows) // heads
    return [rows[head * dim + i // 2 + i % 2 * dim // 2] for head in range(heads) for i in range(dim)]


class Integers(Case):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.folder = pathlib.Path(self.room.name)
        self.source, self.out = self.folder / "tiny", self.folder / "out.gguf"

    def write(self, store, group=32, bits=4, zero=None, extra=None, settings=None, change=None):
        """A llama whose layer is stored as `store` says. Returns {name: Matrix}."""
        draw = random.Random(11)
        matrices = {name: Matrix(draw, rows, cols, group if group else cols, bits, zero) for name, (rows, cols) in SHAPES.items()}
        for matrix in matrices.values():
            if change:
                change(matrix)
        tensors = {name: ("BF16", shape, checkpoints.bf16(checkpoints.numbers_of(shape, 3))) for name, shape in
                   {"model.embed_tokens.weight": [VOCABULARY, WIDTH], "lm_head.weight": [VOCABULARY, WIDTH], "model.norm.weight": [WIDTH],
                    LAYER + "input_layernorm.weight": [WIDTH], LAYER + "post_attention_layernorm.weight": [WIDTH]}.items()}
        for name, matrix in matrices.items():
            tensors |= store(LAYER + name, matrix)
        self.tensors = {**tensors, **(extra or {})}
        self.source.mkdir(exist_ok=True)
        self.settings = checkpoints.config(model_type="llama", hidden_size=WIDTH, intermediate_size=FF, head_dim=DIM, num_attention_heads=HEADS,
                                           num_key_value_heads=KV_HEADS, vocab_size=VOCABULARY, **(settings or {}))
        self.rewrite()
        checkpoints.write_tokenizer(self.source)
        return matrices

    def rewrite(self, without=(), **changes):
        checkpoints.write_safetensors(self.source / "model.safetensors", {name: tensor for name, tensor in self.tensors.items() if name not in without})
        (self.source / "config.json").write_text(json.dumps(self.settings | changes))

    def convert(self, *args):
        self.ok("convert", self.source, "-o", self.out, *args)
        return checkpoints.Gguf(self.out)

    def cannot_convert(self, says, *args):
        self.out.unlink(missing_ok=True)
        self.refused("convert", self.source, "-o", self.out, *args, says=says)
        self.assertEqual(list(self.folder.glob("out.gguf*")), [])

    def check(self, gguf, matrices, kind, within=0):
        for name, matrix in matrices.items():
            got_kind, shape, values = gguf.tensors[f"blk.0.{OURS[name]}.weight"]
            self.assertEqual((got_kind, shape), (kind, [matrix.cols, matrix.rows]), name)
            wanted = matrix.weights()
            if OURS[name] in ("attn_q", "attn_k"):
                wanted = rope_pairs(wanted, HEADS if OURS[name] == "attn_q" else KV_HEADS)
            got = checkpoints.floats_of(kind, values)
            if not within:
                self.assertEqual(got, flat(wanted), name)
            else:
                self.assertLessEqual(max(abs(a - b) for a, b in zip(got, flat(wanted))), within, name)

    def test_mlx_of_four_bits(self):
        for group in (32, 64, 128):
            floats = ("BF16", checkpoints.bf16) if group == 64 else ("F16", checkpoints.f16)
            matrices = self.write(lambda name, m: mlx(name, m, floats), group, settings={"quantization": {"group_size": group, "bits": 4}})
            gguf = self.convert()
            self.check(gguf, matrices, checkpoints.Q4_1)
            self.assertEqual(gguf.keys["general.file_type"], 3)
        self.check(self.convert("--dtype", "f16"), matrices, checkpoints.F16)
        self.check(self.convert("--dtype", "q4_1"), matrices, checkpoints.Q4_1)
        self.check(self.convert("--dtype", "q8_0"), matrices, checkpoints.Q8_0, within=15 * LARGEST / 127 / 2 * 1.2)

    def test_mlx_of_eight_bits_and_of_single_matrices(self):
        settings = {"quantization": {"group_size": 64, "bits": 8}}
        matrices = self.write(mlx, 64, 8, settings=settings)
        self.check(self.convert(), matrices, checkpoints.Q8_0, within=255 * LARGEST / 127 / 2 * 1.2)
        self.check(self.convert("--dtype", "f16"), matrices, checkpoints.F16, within=255 * LARGEST / 1024)
        # The head has bits of its own, the router's place none.
        head = Matrix(random.Random(5), VOCABULARY, WIDTH, 32, 8)
        settings = {"quantization": {"group_size": 64, "bits": 4, "lm_head": {"group_size": 32, "bits": 8}, LAYER + "mlp.gate": False}}
        matrices = self.write(mlx, 64, extra=mlx("lm_head", head), settings=settings)
        gguf = self.convert()
        self.check(gguf, matrices, checkpoints.Q4_1)
        self.assertEqual(gguf.tensors["output.weight"][0], checkpoints.Q8_0)

    def test_mlx_of_mxfp4(self):
        def store(name, m):
            exponents = bytes(118 + (r + g) % 5 for r in range(m.rows) for g in range(m.groups))
            return {f"{name}.weight": ("U32", [m.rows, m.cols // 8], words(flat(m.q), 4)), f"{name}.scales": ("U8", [m.rows, m.groups], exponents)}

        matrices = self.write(store, settings={"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}})
        for m in matrices.values():
            m.weights = lambda m=m: [[2.0 ** (118 + (r + g) % 5 - 127) * checkpoints.MXFP4_LEVELS[m.q[r][c]] for c, g in enumerate(m.group_of)] for r in range(m.rows)]
        self.check(self.convert(), matrices, checkpoints.MXFP4)

    def test_nvfp4(self):
        scale = lambda r, g: 0x05 + (r + 3 * g) % 0x60  # of both kinds of 8-bit floats, subnormal ones too
        factor = lambda m: 0.75 / (m.rows + m.cols)

        def store(name, m, packed):
            tensors = {f"{name}.weight_packed" if packed else f"{name}.weight":
                       ("U8", [m.rows, m.cols // 2], bytes(a | b << 4 for row in m.q for a, b in zip(row[::2], row[1::2]))),
                       f"{name}.weight_scale": ("F8_E4M3", [m.rows, m.groups], bytes(scale(r, g) for r in range(m.rows) for g in range(m.groups)))}
            one = lambda x: ("F32", [1], checkpoints.f32([x]))
            if packed:
                return tensors | {f"{name}.weight_global_scale": one(1 / factor(m)), f"{name}.input_global_scale": one(3)}
            return tensors | {f"{name}.weight_scale_2": one(factor(m)), f"{name}.input_scale": one(3)}

        for packed, quantization in ((False, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
                                     (True, {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})):
            matrices = self.write(lambda name, m: store(name, m, packed), 16, settings={"quantization_config": quantization})
            for m in matrices.values():
                m.weights = lambda m=m: [[checkpoints.e4m3(scale(r, g)) * checkpoints.MXFP4_LEVELS[m.q[r][c]] for c, g in enumerate(m.group_of)]
                                         for r in range(m.rows)]
            gguf = self.convert()
            self.check(gguf, matrices, checkpoints.NVFP4)
            self.assertEqual(gguf.keys["general.file_type"], 39)
            for name, m in matrices.items():
                kind, shape, values = gguf.tensors[f"blk.0.{OURS[name]}.scale"]
                self.assertEqual((kind, shape), (checkpoints.F32, [1]))
                self.assertAlmostEqual(checkpoints.floats_of(kind, values)[0] / factor(m), 1, places=6)
            for m in matrices.values():  # in other types the factor is in the weights
                bare = m.weights
                m.weights = lambda m=m, bare=bare: [[factor(m) * w for w in row] for row in bare()]
            gguf = self.convert("--dtype", "f16")
            self.check(gguf, matrices, checkpoints.F16, within=6 * 448 * 0.75 / 192 / 2048)
            self.assertNotIn("blk.0.ffn_up.scale", gguf.tensors)
        name = LAYER + "mlp.up_proj"
        self.tensors[name + ".weight_scale"] = ("F8_E4M3", [1, 1], bytes([0x38]))
        self.rewrite()
        self.cannot_convert([name, "NVFP4"])

    def test_gptq(self):
        gptq_settings = lambda **more: {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, **more}}
        for group in (32, 128):
            self.check_gptq(self.write(gptq, group, settings=gptq_settings(sym=False)), checkpoints.Q4_1)
        self.check_gptq(self.write(gptq, 32, zero=8, settings=gptq_settings(sym=True)), checkpoints.Q4_0)
        # What says of itself that it is symmetric and is not
        self.check_gptq(self.write(gptq, 32, settings=gptq_settings(sym=True)), checkpoints.Q4_1)
        second = lambda name, m: gptq(name, m, less=0)
        self.check_gptq(self.write(second, 32, settings=gptq_settings(checkpoint_format="gptq_v2")), checkpoints.Q4_1)
        matrices = self.write(gptq, 32, 8, zero=128, settings=gptq_settings(bits=8))
        self.check_gptq(matrices, checkpoints.Q8_0)
        matrices = self.write(gptq, 32, 8, settings=gptq_settings(bits=8, sym=False))
        self.check(self.convert(), matrices, checkpoints.Q8_0, within=255 * LARGEST / 127 / 2 * 1.2)
        self.check(self.convert("--dtype", "f16"), matrices, checkpoints.F16, within=255 * LARGEST / 2048)

    def check_gptq(self, matrices, kind):
        gguf = self.convert()
        self.check(gguf, matrices, kind)
        self.assertNotIn("blk.0.attn_q.bias", gguf.tensors)

    def test_groups_in_the_order_of_activations(self):
        settings = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}}

        def shuffled(matrix):
            random.Random(matrix.rows).shuffle(matrix.group_of)

        matrices = self.write(gptq, 32, settings=settings, change=shuffled)
        self.cannot_convert(["_proj.weight", "--dtype"])
        self.check(self.convert("--dtype", "f16"), matrices, checkpoints.F16)
        self.check(self.convert("--dtype", "q8_0"), matrices, checkpoints.Q8_0, within=15 * LARGEST / 127 / 2 * 1.2)

        def whole_groups(matrix):  # blocks of 32 keep them, in whatever order
            matrix.group_of.reverse()

        self.check(self.convert_of(gptq, settings=settings, change=whole_groups), self.matrices, checkpoints.Q4_1)

    def test_awq(self):
        settings = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM", "zero_point": True}}
        for group in (32, 128):
            matrices = self.write(awq, group, settings=settings)
            self.check(self.convert(), matrices, checkpoints.Q4_1)
        # Each zero is a whole number: Q8_0 holds the differences.
        self.check(self.convert("--dtype", "q8_0"), matrices, checkpoints.Q8_0)

    def test_compressed_tensors(self):
        settings = {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}
        self.check(self.convert_of(packed, zero=8, settings=settings), self.matrices, checkpoints.Q4_0)
        self.check(self.convert_of(packed, group=None, zero=8, settings=settings), self.matrices, checkpoints.Q4_0)
        self.check(self.convert_of(lambda name, m: packed(name, m, zeros=True), settings=settings), self.matrices, checkpoints.Q4_1)
        self.check(self.convert_of(packed, bits=8, zero=128, settings=settings), self.matrices, checkpoints.Q8_0)
        self.check(self.convert_of(int8, group=None, bits=8, zero=128, settings=settings), self.matrices, checkpoints.Q8_0)

    def convert_of(self, store, **facts):
        self.matrices = self.write(store, **facts)
        return self.convert()

    def test_scales_are_rounded_to_float16_and_nothing_else(self):
        def finer(matrix):
            matrix.scales = [[struct.unpack("<f", struct.pack("<f", s * 1.000123))[0] for s in row] for row in matrix.scales]

        floats = ("F32", checkpoints.f32)
        matrices = self.write(lambda name, m: mlx(name, m, floats), settings={"quantization": {"group_size": 32, "bits": 4}}, change=finer)
        gguf = self.convert()
        self.check(gguf, matrices, checkpoints.Q4_1, within=LARGEST * 30 / 2048)
        m = matrices["mlp.up_proj"]
        rounded = lambda x: struct.unpack("<e", struct.pack("<e", x))[0]
        wanted = [[rounded(m.scales[r][g]) * m.q[r][c] + rounded(-m.scales[r][g] * m.zeros[r][g]) for c, g in enumerate(m.group_of)] for r in range(m.rows)]
        self.assertEqual(checkpoints.floats_of(*gguf.tensors["blk.0.ffn_up.weight"][::2]), flat(wanted))

    def test_what_is_wrong_is_named(self):
        name = LAYER + "mlp.up_proj"
        self.write(mlx, settings={"quantization": {"group_size": 32, "bits": 4}})
        self.rewrite(without=[name + ".scales"])
        self.cannot_convert([name + ".scales", "missing"])
        self.rewrite(without=[name + ".biases"])
        self.cannot_convert([name + ".biases", "missing"])
        for quantization, says in (({"group_size": 64, "bits": 4}, [name[:14], "x"]), ({"group_size": 48, "bits": 4}, "48"), ({"group_size": 32, "bits": 3}, "3 bits"),
                                   ({"group_size": 32, "bits": 4, "mode": "nvfp4"}, "nvfp4"), ({"group_size": 32}, "bits"), ({"group_size": 0, "bits": 4}, "group_size"),
                                   ({"group_size": 32, "bits": "four"}, "bits"), ("four", "bits")):
            self.rewrite(quantization=quantization)
            self.cannot_convert(says)
        infinite = bytearray(self.tensors[name + ".scales"][2])
        infinite[:2] = b"\0\x7c"
        good, self.tensors[name + ".scales"] = self.tensors[name + ".scales"], ("F16", [FF, WIDTH // 32], bytes(infinite))
        self.rewrite()
        self.cannot_convert([name, "NaN"])
        self.tensors[name + ".scales"] = ("F32", [FF, WIDTH // 32], checkpoints.f32([1e6] * (FF * WIDTH // 32)))
        self.rewrite()
        self.cannot_convert([name, "bf16"])
        self.convert("--dtype", "bf16")
        self.tensors[name + ".scales"] = good

        gptq_settings = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
        self.write(gptq, settings=gptq_settings)
        for lacking in (".scales", ".qzeros"):
            self.rewrite(without=[name + lacking])
            self.cannot_convert([name + lacking, "missing"])
        kind, shape, values = self.tensors[name + ".g_idx"]
        self.tensors[name + ".g_idx"] = (kind, shape, struct.pack("<i", 4) + values[4:])
        self.rewrite()
        self.cannot_convert([name + ".g_idx", "group 4 of 4"])
        for change, says in (({"bits": 3}, "bits"), ({"checkpoint_format": "marlin"}, "marlin"), ({"quant_method": "awq"}, ["_proj.", " is "]), ({"quant_method": "quip"}, "quip")):
            self.rewrite(quantization_config=gptq_settings["quantization_config"] | change)
            self.cannot_convert(says)
        self.rewrite(quantization_config=None)
        self.cannot_convert(["qweight", "quant_method"])

        self.write(awq, settings={"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemv"}})
        self.cannot_convert("gemv")
        self.write(packed, zero=8)
        self.tensors[name + ".weight_shape"] = ("I64", [2], struct.pack("<2q", FF, WIDTH + 32))
        self.rewrite()
        self.cannot_convert(name)
        self.tensors[name + ".weight_shape"] = ("I64", [2], struct.pack("<2q", FF, WIDTH))
        self.tensors[name + ".weight_scale"] = ("BF16", [FF - 8, 4], bytes(2 * 4 * (FF - 8)))
        self.rewrite()
        self.cannot_convert([name + ".weight_scale", str(FF - 8)])


if __name__ == "__main__":
    unittest.main()
