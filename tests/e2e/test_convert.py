"""convert, export, split, merge and verify, against checkpoints and a reader of GGUF that are other code (checkpoints.py)."""
import json
import math
import pathlib
import signal
import struct
import subprocess
import tempfile
import unittest

import checkpoints
from harness import DEMO, DRAFT, MILLRACE, ROOT, Case, run

SHARED = ROOT.parent / "shared"


def e4m3(byte):
    """The OCP specification's E4M3."""
    sign, exponent, mantissa = -1 if byte & 0x80 else 1, byte >> 3 & 15, byte & 7
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


class Convert(Case):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.folder = pathlib.Path(self.room.name)
        self.source, self.out = self.folder / "tiny-model", self.folder / "out.gguf"

    def convert(self, *args):
        self.ok("convert", self.source, "-o", self.out, *args)
        self.assertFalse((self.folder / "out.gguf.partial").exists())
        return checkpoints.Gguf(self.out)

    def cannot_convert(self, says, *args):
        self.out.unlink(missing_ok=True)
        self.refused("convert", self.source, "-o", self.out, *args, says=says)
        self.assertEqual(list(self.folder.glob("out.gguf*")), [])

    def numbers(self, gguf, name):
        kind, _, values = gguf.tensors[name]
        return list(struct.unpack(f"<{len(values) // 4}f", values)) if kind == checkpoints.F32 else checkpoints.floats_of_bf16(values)

    def test_llama_turns_pairs_of_neighbours(self):
        theirs = checkpoints.write_checkpoint(self.source)
        gguf = self.convert()
        rows = lambda numbers: [numbers[i:i + checkpoints.WIDTH] for i in range(0, len(numbers), checkpoints.WIDTH)]
        half = checkpoints.DIM // 2
        for name, ours, heads in (("q_proj", "attn_q", 2), ("k_proj", "attn_k", 1)):
            given, got = rows(theirs[f"model.layers.0.self_attn.{name}.weight"]), rows(self.numbers(gguf, f"blk.0.{ours}.weight"))
            for head in range(heads):
                for i in range(half):
                    self.assertEqual(got[head * checkpoints.DIM + 2 * i], given[head * checkpoints.DIM + i])
                    self.assertEqual(got[head * checkpoints.DIM + 2 * i + 1], given[head * checkpoints.DIM + half + i])
        self.assertEqual(self.numbers(gguf, "blk.0.ffn_down.weight"), theirs["model.layers.0.mlp.down_proj.weight"])
        self.assertEqual(gguf.tensors["blk.0.attn_norm.weight"][0], checkpoints.F32)
        self.assertEqual(gguf.tensors["output.weight"][0], checkpoints.BF16)
        keys = {"general.architecture": "llama", "general.name": "tiny-model", "llama.block_count": 1, "llama.rope.freq_base": 500000.0,
                "llama.attention.head_count_kv": 1, "llama.vocab_size": checkpoints.VOCABULARY}
        self.assertEqual({key: gguf.keys[key] for key in keys}, keys)

    def test_the_tokenizer_comes_along(self):
        checkpoints.write_checkpoint(self.source)
        keys = self.convert().keys
        self.assertEqual(keys["tokenizer.ggml.tokens"], ["a", "b", "c", "Ġ", "ab", "Ġa", "<|im_start|>", "<|im_end|>", "<tool_call>",
                                                         "[PAD9]", "[PAD10]", "[PAD11]"])
        self.assertEqual(keys["tokenizer.ggml.token_type"], [1] * 6 + [3, 3, 4] + [5] * 3)
        self.assertEqual(keys["tokenizer.ggml.merges"], ["a b", "Ġ a"])
        self.assertEqual((keys["tokenizer.ggml.model"], keys["tokenizer.ggml.pre"]), ("gpt2", "qwen2"))
        self.assertEqual((keys["tokenizer.ggml.eos_token_id"], keys["tokenizer.ggml.eot_token_id"]), (7, 6))
        self.assertEqual(keys["tokenizer.chat_template"], "{{ messages[0].content }}")
        self.assertAlmostEqual(keys["general.sampling.temp"], 0.6)
        self.assertEqual(keys["general.sampling.top_k"], 20)

    def test_the_chat_template_is_found_in_each_of_its_files(self):
        """transformers keeps it in one of three, by its version and by whether a processor or a tokenizer was saved."""
        checkpoints.write_checkpoint(self.source)
        (self.source / "chat_template.json").write_text(json.dumps({"chat_template": "of the processor"}))
        self.assertEqual(self.convert().keys["tokenizer.chat_template"], "{{ messages[0].content }}")
        (self.source / "chat_template.jinja").unlink()
        self.assertEqual(self.convert().keys["tokenizer.chat_template"], "in the config")
        settings = json.loads((self.source / "tokenizer_config.json").read_text())
        del settings["chat_template"]
        (self.source / "tokenizer_config.json").write_text(json.dumps(settings))
        self.assertEqual(self.convert().keys["tokenizer.chat_template"], "of the processor")
        (self.source / "chat_template.json").write_text("[]")
        self.cannot_convert("chat_template.json")

    def test_pre_tokenizers_are_known_by_what_they_do(self):
        checkpoints.write_checkpoint(self.source)
        words = checkpoints.QWEN2_WORDS
        for pattern, name in ((words.replace(r"\p{N}|", r"\p{N}{1,3}|"), "dbrx"), (words.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)"), "qwen2")):
            checkpoints.write_tokenizer(self.source, pattern)
            self.assertEqual(self.convert().keys["tokenizer.ggml.pre"], name)
        checkpoints.write_tokenizer(self.source, words.replace(r"\p{N}|", r"\p{N}{1,2}|"))
        self.cannot_convert("no pre-tokenizer of this version")
        checkpoints.write_tokenizer(self.source, "(")
        self.cannot_convert("cannot read")
        checkpoints.write_tokenizer(self.source, normalizer={"type": "Lowercase"})
        self.cannot_convert("Lowercase")

    def test_experts_are_joined(self):
        shapes = {name: shape for name, shape in checkpoints.dense_shapes().items() if "mlp" not in name}
        layer = "model.layers.0."
        shapes |= {layer + "self_attn.q_norm.weight": [checkpoints.DIM], layer + "self_attn.k_norm.weight": [checkpoints.DIM], layer + "mlp.gate.weight": [4, checkpoints.WIDTH]}
        for expert in (3, 0, 2, 1):
            for name, shape in (("gate", [16, checkpoints.WIDTH]), ("up", [16, checkpoints.WIDTH]), ("down", [checkpoints.WIDTH, 16])):
                shapes[f"{layer}mlp.experts.{expert}.{name}_proj.weight"] = shape
        theirs = checkpoints.write_checkpoint(self.source, "qwen3_moe", shapes, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True)
        gguf = self.convert()
        for name in ("gate", "up", "down"):
            joined = sum((theirs[f"{layer}mlp.experts.{expert}.{name}_proj.weight"] for expert in range(4)), [])
            self.assertEqual(self.numbers(gguf, f"blk.0.ffn_{name}_exps.weight"), joined)
        self.assertEqual(gguf.tensors["blk.0.ffn_down_exps.weight"][1], [16, checkpoints.WIDTH, 4])
        del shapes[layer + "mlp.experts.2.up_proj.weight"]
        checkpoints.write_checkpoint(self.source, "qwen3_moe", shapes, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
        self.out.unlink()
        self.cannot_convert("mlp.experts.2.up_proj.weight' is missing")

    def test_eight_bits_with_scales_become_sixteen(self):
        checkpoints.write_checkpoint(self.source, quantization_config={"quant_method": "fp8", "weight_block_size": [8, 16]})
        name, path = "model.layers.0.mlp.up_proj.weight", self.source / "model.safetensors"
        raw = path.read_bytes()
        length, = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8:8 + length])
        tensors = {key: (entry["dtype"], entry["shape"], raw[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])
                   for key, entry in header.items() if key != "__metadata__"}
        rows, cols = checkpoints.FF, checkpoints.WIDTH
        weights = bytes((i * 7) % 127 | (i & 1) << 7 for i in range(rows * cols))
        for scales, shape in (([2.0**-i for i in range(8)], [4, 2]), ([0.5], []), ([2.0 ** (i % 4) for i in range(rows)], [rows, 1])):
            suffix = "_scale_inv" if shape == [4, 2] else "_scale"
            own = tensors | {name: ("F8_E4M3", [rows, cols], weights), name + suffix: ("F32", shape, checkpoints.f32(scales))}
            checkpoints.write_safetensors(path, own)
            scale = lambda r, c: scales[r // 8 * 2 + c // 16] if shape == [4, 2] else scales[r if len(scales) > 1 else 0]
            wanted = [e4m3(weights[r * cols + c]) * scale(r, c) for r in range(rows) for c in range(cols)]
            self.assertEqual(self.numbers(self.convert(), "blk.0.ffn_up.weight"), wanted)
        self.out.unlink()
        checkpoints.write_safetensors(path, tensors | {name: ("F8_E4M3", [rows, cols], weights)})
        self.cannot_convert("scales")

    def test_scales_that_are_exponents(self):
        """DeepSeek V4's .weight and .scale, MXFP8, and MXFP4 as compressed-tensors packs it."""
        stem, rows, cols = "model.layers.0.mlp.down_proj", checkpoints.WIDTH, 64
        shapes = checkpoints.dense_shapes() | {stem.replace("down", name) + ".weight": [cols, rows] for name in ("gate", "up")} | {stem + ".weight": [rows, cols]}
        checkpoints.write_checkpoint(self.source, shapes=shapes, intermediate_size=cols,
                                     quantization_config={"quant_method": "fp8", "weight_block_size": [8, 16], "scale_fmt": "ue8m0"})
        path = self.source / "model.safetensors"
        tensors = checkpoints.read_safetensors(path)
        del tensors[f"{stem}.weight"]
        eights = bytes((i * 7) % 127 | (i & 1) << 7 for i in range(rows * cols))
        pairs = bytes(i * 37 % 256 for i in range(rows * cols // 2))
        bytes_of = lambda count: bytes(120 + i * 5 % 16 for i in range(count))
        blocks, rows_of_32 = [rows // 8, cols // 16], [rows, cols // 32]

        def check(weight, kind, values, scale, kind_of_scale, shape):
            exponents = bytes_of(shape[0] * shape[1])
            checkpoints.write_safetensors(path, tensors | {weight: (kind, [rows, len(values) // rows], values), scale: (kind_of_scale, shape, exponents)})
            gguf = self.convert()
            number = (lambda i: e4m3(values[i])) if kind == "F8_E4M3" else lambda i: checkpoints.MXFP4_LEVELS[values[i // 2] >> i % 2 * 4 & 15]
            power = lambda r, c: 2.0 ** (exponents[(r // 8 * shape[1] + c // 16) if shape == blocks else r * shape[1] + c // 32] - 127)
            tensor = gguf.tensors["blk.0.ffn_down.weight"]
            self.assertEqual(tensor[0], checkpoints.BF16 if kind == "F8_E4M3" else checkpoints.MXFP4)
            self.assertEqual(checkpoints.floats_of(tensor[0], tensor[2]), [number(r * cols + c) * power(r, c) for r in range(rows) for c in range(cols)])

        check(f"{stem}.weight", "F8_E4M3", eights, f"{stem}.scale", "F8_E8M0", blocks)
        check(f"{stem}.weight", "F8_E4M3", eights, f"{stem}.weight_scale_inv", "F8_E8M0", blocks)
        check(f"{stem}.weight", "F8_E4M3", eights, f"{stem}.weight_scale_inv", "U8", rows_of_32)
        check(f"{stem}.weight", "I8", pairs, f"{stem}.scale", "F8_E8M0", rows_of_32)
        check(f"{stem}.weight", "U8", pairs, f"{stem}.weight_scale", "U8", rows_of_32)
        check(f"{stem}.weight_packed", "U8", pairs, f"{stem}.weight_scale", "U8", rows_of_32)
        for kind, values, shape, scales, says in (("F8_E4M3", eights, blocks, b"\xff" * (rows * cols // 128), "NaN"), ("F8_E4M3", eights, [1, 3], bytes(3), "3 scales"),
                                                  ("I8", pairs, rows_of_32, b"\xff" * (rows * cols // 32), "NaN"), ("I8", pairs, [rows, 3], bytes(3 * rows), "must hold MXFP4")):
            own = {f"{stem}.weight": (kind, [rows, len(values) // rows], values), f"{stem}.scale": ("F8_E8M0", shape, scales)}
            checkpoints.write_safetensors(path, tensors | own)
            self.cannot_convert(says)

    def test_bad_checkpoints_are_named_in_a_line(self):
        checkpoints.write_checkpoint(self.source)
        path, config = self.source / "model.safetensors", self.source / "config.json"
        good, settings = path.read_bytes(), json.loads(config.read_text())

        def with_config(**changes):
            config.write_text(json.dumps(settings | changes))

        path.write_bytes(good[:-5])
        self.cannot_convert("truncated")
        nan = bytearray(good)
        nan[-2:] = b"\xc0\x7f"
        path.write_bytes(nan)
        self.cannot_convert(["down_proj", "NaN"])
        path.write_bytes(good)
        for changes, says in (({"model_type": "nobody"}, "'nobody'"), ({"num_attention_heads": 4}, "attn_"), ({"intermediate_size": 64}, "ffn_"),
                              ({"num_hidden_layers": 2}, "blk.1"), ({"hidden_size": "wide"}, "hidden_size"), ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "dynamic"),
                              ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"), ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"), ({"head_dim": 0}, "head_dim")):
            with_config(**changes)
            self.cannot_convert(says)
        with_config()
        shapes = checkpoints.dense_shapes() | {"model.layers.0.self_attn.surprise": [4]}
        checkpoints.write_checkpoint(self.source, shapes=shapes)
        self.cannot_convert("surprise")
        checkpoints.write_checkpoint(self.source)
        (self.source / "tokenizer.json").unlink()
        self.cannot_convert("tokenizer.json")
        config.unlink()
        self.cannot_convert("config.json")
        self.source = self.folder / "nothing"
        self.cannot_convert("no such file or folder")

    def test_the_demo_is_there_and_back(self):
        """An exported model, converted again, answers as it did."""
        self.source = self.folder / "demo"
        self.ok("export", DRAFT, self.source)
        self.assertTrue((self.source / "model.safetensors").exists())
        self.convert()
        self.ok("verify", self.out, "--against", DRAFT)
        self.assertEqual(self.bench(DRAFT, "-p", "16", "-n", "8")["logits_hash"], self.bench(self.out, "-p", "16", "-n", "8")["logits_hash"])
        self.refused("export", DRAFT, self.source, says="holds something")

    def test_nvfp4_has_the_scales_that_quantize_gives_it(self):
        """Of a dense model, and of experts where the trained ones are here."""
        for model in (DRAFT, SHARED / "models/demo-moe-f16.gguf"):
            if not pathlib.Path(model).exists():
                continue
            with tempfile.TemporaryDirectory() as folder:
                checkpoint, converted, quantized = (pathlib.Path(folder) / name for name in ("checkpoint", "c.gguf", "q.gguf"))
                self.ok("export", model, checkpoint)
                self.ok("convert", checkpoint, "-o", converted, "--dtype", "nvfp4")
                self.ok("quantize", model, quantized, "NVFP4")
                made, wanted = checkpoints.Gguf(converted).tensors, checkpoints.Gguf(quantized).tensors
                self.assertTrue([name for name in made if name.endswith(".scale")])
                self.assertEqual(sorted(made), sorted(wanted))
                for name, tensor in made.items():
                    self.assertEqual(tensor, wanted[name], name)

    @unittest.skipUnless((SHARED / "models/hf/demo-moe").exists(), "skipped: the trained checkpoints are not here")
    def test_trained_checkpoints_are_what_they_were(self):
        for name, trained in (("demo-moe", "demo-moe-f16.gguf"), ("demo-draft", "demo-draft-f16.gguf")):
            self.source = SHARED / "models/hf" / name
            self.ok("convert", self.source, "-o", self.out, "--dtype", "f16")
            self.ok("verify", self.out, "--against", SHARED / "models" / trained)
            given, made = checkpoints.Gguf(SHARED / "models" / trained).keys, checkpoints.Gguf(self.out).keys
            for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.ggml.eos_token_id", "tokenizer.chat_template"):
                self.assertEqual(made[key], given[key], key)

    def test_a_head_of_its_own_stays(self):
        """transformers 5 takes lm_head.weight where there is one that differs, whatever tie_word_embeddings says."""
        theirs = checkpoints.write_checkpoint(self.source, tie_word_embeddings=True)
        self.assertEqual(self.numbers(self.convert(), "output.weight"), theirs["lm_head.weight"])
        path = self.source / "model.safetensors"
        tensors = checkpoints.read_safetensors(path)
        checkpoints.write_safetensors(path, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
        self.assertNotIn("output.weight", self.convert().tensors)
        del tensors["lm_head.weight"]
        checkpoints.write_safetensors(path, tensors)
        self.assertNotIn("output.weight", self.convert().tensors)
        config = json.loads((self.source / "config.json").read_text()) | {"tie_word_embeddings": False}
        (self.source / "config.json").write_text(json.dumps(config))
        self.cannot_convert("no lm_head.weight")

    def converted_key(self, key, model_type="llama", **changes):
        self.source.mkdir(exist_ok=True)
        checkpoints.write_checkpoint(self.source, model_type, **changes)
        return self.convert().keys.get(key)

    def test_yarn_has_transformers_factor(self):
        """mscale over mscale_all_dim where there are both, else 0.1 ln(factor) + 1; readers multiply by the latter themselves."""
        usual = 0.1 * math.log(4) + 1
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
        key = "llama.rope.scaling.attn_factor"
        self.assertIsNone(self.converted_key(key, rope_parameters=yarn))
        self.assertAlmostEqual(self.converted_key(key, rope_parameters=yarn | {"mscale": 1.0, "mscale_all_dim": 1.0}), 1 / usual, 5)
        self.assertAlmostEqual(self.converted_key(key, rope_parameters=yarn | {"mscale": 0.7, "mscale_all_dim": 2.0}),
                               (0.07 * math.log(4) + 1) / (0.2 * math.log(4) + 1) / usual, 5)
        self.assertAlmostEqual(self.converted_key(key, rope_parameters=yarn | {"attention_factor": 1.5}), 1.5 / usual, 5)
        self.assertAlmostEqual(self.converted_key("llama.rope.scaling.factor", rope_parameters={"rope_type": "default"},
                                                  rope_scaling=yarn | {"factor": 2.0}), 2)
        checkpoints.write_checkpoint(self.source, rope_parameters=yarn | {"truncate": False})
        self.cannot_convert("truncate")

    def test_rotations_take_transformers_defaults(self):
        """What a class has where config.json says nothing, and what it ignores."""
        key = "mistral3.rope.scaling."
        checkpoints.write_checkpoint(self.source, "ministral3", **{"rope_theta": 5e5})
        keys = self.convert().keys
        self.assertEqual((keys[key + "type"], keys[key + "factor"], keys[key + "original_context_length"]), ("yarn", 16, 16384))
        self.assertAlmostEqual(keys["mistral3.attention.temperature_scale"], 0.1)
        self.assertEqual(keys["mistral3.rope.freq_base"], 1e6)
        scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.3,
                   "mscale": 1.0, "mscale_all_dim": 1.0}
        checkpoints.write_checkpoint(self.source, "ministral3", rope_scaling=scaling)
        keys = self.convert().keys
        self.assertAlmostEqual(keys["mistral3.attention.temperature_scale"], 0.3)
        self.assertEqual((keys[key + "factor"], keys["mistral3.rope.freq_base"]), (8, 500000))
        self.assertEqual(self.converted_key("llama.rope.dimension_count", partial_rotary_factor=0.5), checkpoints.DIM)
        checkpoints.write_checkpoint(self.source, rope_parameters={"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5})
        self.cannot_convert("partial_rotary_factor")

    def test_fields_that_change_the_result_are_used_or_refused(self):
        for model_type, field, value in (("llama", "hidden_act", "gelu"), ("qwen3", "use_sliding_window", True),
                                         ("qwen3", "layer_types", ["sliding_attention"]), ("mixtral", "hidden_act", "gelu"),
                                         ("gpt_oss", "swiglu_alpha", 1.5), ("gpt_oss", "swiglu_limit", 6.0),
                                         ("mamba2", "hidden_act", "gelu"), ("granitemoehybrid", "hidden_act", "gelu"),
                                         ("nemotron_h", "mamba_hidden_act", "gelu"), ("mamba2", "time_step_limit", [0.0, 0.1]),
                                         ("granitemoehybrid", "time_step_limit", [0.0, 0.1]), ("nemotron_h", "time_step_limit", [0.0, 0.1]),
                                         ("nemotron_h", "time_step_limit", [0.01, float("inf")]), ("deepseek_v3", "rope_interleave", False),
                                         ("gemma3_text", "attn_logit_softcapping", 30.0)):
            with self.subTest(model_type, field=field):
                changes = {"mamba_n_heads": 4, "num_heads": 4, "expand": 2, "hybrid_override_pattern": "*"} | {field: value}
                if model_type == "gemma3_text":
                    changes["query_pre_attn_scalar"] = checkpoints.DIM
                checkpoints.write_checkpoint(self.source, model_type, **changes)
                self.cannot_convert(field)
        checkpoints.write_checkpoint(self.source, "gemma3_text", query_pre_attn_scalar=checkpoints.DIM, rope_parameters={
            "sliding_attention": {"rope_type": "linear", "factor": 2.0}, "full_attention": {"rope_type": "default"}})
        self.cannot_convert("sliding_attention")

    def test_what_cannot_run_is_an_error(self):
        """Biases that the architecture has no place for: no file, and no exit status of 0."""
        shapes = checkpoints.dense_shapes() | {"model.layers.0.self_attn.q_norm.weight": [checkpoints.DIM],
                                               "model.layers.0.self_attn.k_norm.weight": [checkpoints.DIM],
                                               "model.layers.0.self_attn.q_proj.bias": [checkpoints.HEADS * checkpoints.DIM]}
        checkpoints.write_checkpoint(self.source, "qwen3", shapes, attention_bias=True)
        self.cannot_convert("cannot run")

    def exported(self, name, *args):
        folder = self.folder / f"{name}-{len(args)}"
        self.ok("export", ROOT / f"tests/data/reference/{name}.gguf", folder, *args)
        return json.loads((folder / "config.json").read_text())

    def test_exported_configurations_say_all(self):
        """Each key here was left out once, and transformers then took its class's default, or nothing at all."""
        self.assertEqual(self.exported("glm-4.7-flash")["first_k_dense_replace"], 1)
        self.assertIs(self.exported("glm4moe")["use_qk_norm"], True)
        mistral3 = self.exported("mistral3")
        self.assertEqual(mistral3["rope_scaling"], mistral3["rope_parameters"])
        for key in ("llama_4_scaling_beta", "original_max_position_embeddings", "mscale", "mscale_all_dim"):
            self.assertIn(key, mistral3["rope_scaling"])
        self.assertEqual(self.exported("deepseek-v2-lite")["first_k_dense_replace"], 1)
        self.assertIsNone(self.exported("phi3")["sliding_window"])
        llama = self.exported("llama3")
        self.assertEqual(llama["torch_dtype"], "float16")

    def test_null_and_infinity_are_values(self):
        """Python writes Infinity into config.json, and null where a class's default is a number."""
        checkpoints.write_checkpoint(self.source, head_dim=None, time_step_limit=[0.0, float("inf")])
        self.assertEqual(self.convert().keys["llama.attention.key_length"], checkpoints.WIDTH // checkpoints.HEADS)
        self.ok("export", ROOT / "tests/data/reference/deepseek-v2-lite.gguf", self.folder / "v2")
        self.assertIsNone(json.loads((self.folder / "v2/config.json").read_text())["q_lora_rank"])
        self.ok("convert", self.folder / "v2", "-o", self.out)
        self.assertEqual(checkpoints.Gguf(self.out).keys["deepseek2.attention.q_lora_rank"], 0)

    def test_as_transformers_5_saves_them(self):
        """Lists of layers' kinds in the place of patterns and numbers."""
        kinds = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
        names = ("nemotron-h", "nemotron-h-moe", "granitehybrid", "glm-4.7-flash", "qwen3next", "lfm2", "kimi-linear", "bailingmoe3", "minimax-m3")
        for name in names:
            with self.subTest(name):
                config, folder = self.exported(name), self.folder / f"{name}-0"
                if "hybrid_override_pattern" in config:
                    config["layers_block_type"] = [kinds[kind] for kind in config.pop("hybrid_override_pattern")]
                    del config["num_hidden_layers"]
                    config.setdefault("n_routed_experts", 8)
                if name == "granitehybrid":
                    config["layer_types"] = [{"attention": "full_attention", "mamba": "linear_attention"}[kind] for kind in config["layer_types"]]
                    config["time_step_limit"] = [0.0, {"__float__": "Infinity"}]
                if name == "glm-4.7-flash":  # a file does not say that it was GLM's, whose class has a list
                    layers, dense = config["num_hidden_layers"], config.pop("first_k_dense_replace")
                    config |= {"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense"] * dense + ["sparse"] * (layers - dense)}
                if name == "kimi-linear":  # published files have an object and numbers from 1 on
                    net, layers = config.pop("linear_attn_config"), config["num_hidden_layers"]
                    self.assertEqual((net["full_attn_layers"], net["kda_layers"]), ([2], [1, 3]))
                    config |= {"layer_types": [f"{'full' if i + 1 in net['full_attn_layers'] else 'linear'}_attention" for i in range(layers)],
                               "linear_head_dim": net["head_dim"], "linear_num_heads": net["num_heads"],
                               "mlp_layer_types": ["dense"] * config.pop("first_k_dense_replace") + ["sparse"] * (layers - 1)}
                if name == "bailingmoe3":  # by head_dim the class saves what is rotated
                    config |= {"linear_head_dim": config["head_dim"], "head_dim": config["qk_rope_head_dim"]}
                if name == "minimax-m3":  # published files have an object, and flags of layers
                    moved = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim", "index_block_size": "sparse_block_size",
                             "index_topk_blocks": "sparse_topk_blocks", "index_local_blocks": "sparse_local_block"}
                    self.assertEqual(config.pop("layer_types"), ["full_attention", "minimax_m3_sparse"])
                    self.assertEqual(config.pop("mlp_layer_types"), ["dense", "sparse"])
                    config |= {"sparse_attention_config": {theirs: config.pop(key) for key, theirs in moved.items()} | {"sparse_attention_freq": [0, 1]},
                               "moe_layer_freq": [0, 1], "hidden_act": "swigluoai"}
                (folder / "config.json").write_text(json.dumps(config))
                self.ok("convert", folder, "-o", self.out)
                before, after = checkpoints.Gguf(ROOT / f"tests/data/reference/{name}.gguf"), checkpoints.Gguf(self.out)
                self.assertEqual(after.tensors, before.tensors)
                self.assertEqual(after.keys["general.architecture"], before.keys["general.architecture"])
                if name == "kimi-linear":
                    self.assertEqual(after.keys["kimi-linear.attention.head_count_kv"], [0, 1, 0])
                    (folder / "config.json").write_text(json.dumps(config | {"linear_num_heads": 2}))
                    self.refused("convert", folder, "-o", self.out, says="linear_num_heads")
                if name == "bailingmoe3":
                    for wrong in ({"kda_safe_gate": False}, {"mlp_layer_types": ["dense", "sparse", "dense"]}):
                        (folder / "config.json").write_text(json.dumps(config | wrong))
                        self.refused("convert", folder, "-o", self.out, says=next(iter(wrong)))
                if name == "minimax-m3":
                    for wrong in ({"swiglu_limit": 6.0}, {"moe_layer_freq": [1, 1]}, {"shared_intermediate_size": 33}):
                        (folder / "config.json").write_text(json.dumps(config | wrong))
                        self.refused("convert", folder, "-o", self.out, says="layer_types" if "moe_layer_freq" in wrong else next(iter(wrong)))

    def test_laguna_as_published(self):
        """Gates by a flag, a word or a list; windows in the usual layers and in others; one rotation for all layers."""
        for name in ("laguna", "laguna-channels"):
            both, folder = self.exported(name), self.folder / f"{name}-0"
            before = checkpoints.Gguf(ROOT / f"tests/data/reference/{name}.gguf")
            layers, heads = len(both["layer_types"]), name == "laguna"
            keys = {key: value for key, value in before.keys.items() if key.startswith("laguna.")}
            word = "per-head" if heads else "per-element"
            forms = [both, both | {"gating_types": [word.replace("-", "_")] * layers},
                     both | {"mlp_only_layers": [0], "norm_topk_prob": True, "moe_router_logit_softcapping": 0.0}]
            if heads:
                forms += [both | {"gating": True}]
            for config in forms:
                (folder / "config.json").write_text(json.dumps(config))
                self.ok("convert", folder, "-o", self.out)
                after = checkpoints.Gguf(self.out)
                self.assertEqual(after.tensors, before.tensors)
                self.assertEqual({key: after.keys[key] for key in keys}, keys)
                self.assertNotIn("laguna.attention.sliding_window_pattern", after.keys)
            if heads:
                other = both["layer_types"][:3] + both["layer_types"][:1] + both["layer_types"][1:2]
                (folder / "config.json").write_text(json.dumps(both | {"layer_types": other}))
                self.ok("convert", folder, "-o", self.out)
                self.assertEqual(checkpoints.Gguf(self.out).keys["laguna.attention.sliding_window_pattern"], [kind == "sliding_attention" for kind in other])
            else:
                (folder / "config.json").write_text(json.dumps(both | {"rope_parameters": both["rope_parameters"]["full_attention"]}))
                self.ok("convert", folder, "-o", self.out)
                self.assertEqual({key: value for key, value in keys.items() if not key.endswith("_swa")},
                                 {key: value for key, value in checkpoints.Gguf(self.out).keys.items() if key.startswith("laguna.")})
            mixed = ["per_head", "per_element"] + ["per_head"] * (layers - 2)
            for wrong, says in (({"gating_types": mixed}, "gating"), ({"gating": "per-token"}, "gating"), ({"gating": False}, "gating"),
                                ({"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping"), ({"layer_types": ["full_attention"]}, "layer_types"),
                                ({"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input"),
                                ({"num_attention_heads_per_layer": [2]}, "num_attention_heads_per_layer")):
                (folder / "config.json").write_text(json.dumps(both | wrong))
                self.refused("convert", folder, "-o", self.out, says=says)

    def test_step_35_as_published_and_as_transformers_saves_it(self):
        """Published files have lists of layers, which go on with the blocks that guess; transformers has a rotation for each kind, and overrides."""
        both, folder = self.exported("step35"), self.folder / "step35-0"
        before = checkpoints.Gguf(ROOT / "tests/data/reference/step35.gguf")
        published = dict(both) | {"num_nextn_predict_layers": 3, "num_attention_groups": both["num_key_value_heads"], "moe_top_k": both["num_experts_per_tok"],
                                  "moe_num_experts": both["n_routed_experts"], "yarn_only_types": ["full_attention"], "norm_expert_weight": True,
                                  "rope_scaling": {key: value for key, value in both["rope_scaling"].items() if key not in ("rope_theta", "partial_rotary_factor")}}
        for key in ("rope_parameters", "mlp_layer_types", "first_k_dense_replace", "num_sliding_attention_heads", "num_key_value_heads", "num_experts_per_tok",
                    "n_routed_experts"):
            del published[key]
        for key, behind in (("layer_types", "sliding_attention"), ("swiglu_limits", None), ("swiglu_limits_shared", None), ("rope_theta", 1e4),
                            ("partial_rotary_factors", 1.0)):
            published[key] = published[key] + [behind] * 3
        saved = {key: value for key, value in both.items() if key not in ("rope_theta", "partial_rotary_factors", "rope_scaling", "attention_other_setting",
                                                                          "moe_layers_enum", "first_k_dense_replace")}
        heads = {"num_attention_heads": both["num_sliding_attention_heads"]}
        saved["per_layer_config"] = {str(i): heads for i, kind in enumerate(both["layer_types"]) if kind == "sliding_attention"}
        for config in (both, published, saved):
            (folder / "config.json").write_text(json.dumps(config))
            self.ok("convert", folder, "-o", self.out)
            after = checkpoints.Gguf(self.out)
            self.assertEqual(after.tensors, before.tensors)
            self.assertEqual({key: after.keys[key] for key in before.keys if key.startswith("step35.")},
                             {key: value for key, value in before.keys.items() if key.startswith("step35.")})
        parts = [1.0, 1.0, 1.0, 1.0]
        for config, says in ((published | {"partial_rotary_factors": parts}, "rotates"), (published | {"moe_layers_enum": "0,2"}, "mlp_layer_types"),
                             (published | {"attention_other_setting": both["attention_other_setting"] | {"num_attention_groups": 1}}, "num_attention_groups"),
                             (saved | {"per_layer_config": {"0": heads | {"head_dim": 8}}}, "per_layer_config"),
                             (published | {"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate")):
            (folder / "config.json").write_text(json.dumps(config))
            with self.subTest(says):
                self.refused("convert", folder, "-o", self.folder / "other.gguf", says=says)

    def test_gemma_4_there_and_back(self):
        """Its layers differ in heads and widths; published files say so in two keys, transformers 5 in overrides of layers."""
        for name in ("gemma4", "gemma4-moe"):
            with self.subTest(name):
                given = ROOT / f"tests/data/reference/{name}.gguf"
                config, folder = self.exported(name), self.folder / f"{name}-0"
                self.ok("convert", folder, "-o", self.out)
                self.ok("verify", self.out, "--against", given)
                before, after = checkpoints.Gguf(given).keys, checkpoints.Gguf(self.out).keys
                self.assertEqual({key: after[key] for key in before if key.startswith("gemma4.")}, {key: value for key, value in before.items() if key.startswith("gemma4.")})
                override = {"head_dim": config.pop("global_head_dim")}
                if (heads := config.pop("num_global_key_value_heads", None)) and config["attention_k_eq_v"]:
                    override["num_key_value_heads"] = heads
                config["per_layer_config"] = {str(i): override for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"}
                (folder / "config.json").write_text(json.dumps(config))
                self.ok("convert", folder, "-o", self.out)
                self.assertEqual(checkpoints.Gguf(self.out).keys, after)
                config["per_layer_config"]["0"] = {"head_dim": 32}
                (folder / "config.json").write_text(json.dumps(config))
                self.refused("convert", folder, "-o", self.folder / "other.gguf", says="per_layer_config")

    def test_llama_4_turns_joined_experts(self):
        """Its matrices are [inputs, outputs], gates before ups."""
        experts, width, ff, layer = 2, checkpoints.WIDTH, checkpoints.FF, "model.layers.0."
        shapes = {name: shape for name, shape in checkpoints.dense_shapes().items() if ".mlp." not in name}
        shapes |= {layer + "feed_forward.router.weight": [experts, width], layer + "feed_forward.experts.gate_up_proj": [experts, width, 2 * ff],
                   layer + "feed_forward.experts.down_proj": [experts, ff, width], layer + "feed_forward.shared_expert.gate_proj.weight": [ff, width],
                   layer + "feed_forward.shared_expert.up_proj.weight": [ff, width], layer + "feed_forward.shared_expert.down_proj.weight": [width, ff]}
        changes = {"num_local_experts": experts, "num_experts_per_tok": 1, "intermediate_size_mlp": ff, "interleave_moe_layer_step": 1}
        theirs = checkpoints.write_checkpoint(self.source, "llama4_text", shapes, **changes)
        gguf = self.convert()
        for name, given, first, inputs, outputs in (("gate", "gate_up_proj", 0, width, ff), ("up", "gate_up_proj", ff, width, ff), ("down", "down_proj", 0, ff, width)):
            numbers = theirs[f"{layer}feed_forward.experts.{given}"]
            row = len(numbers) // (experts * inputs)
            turned = [numbers[(e * inputs + i) * row + first + o] for e in range(experts) for o in range(outputs) for i in range(inputs)]
            self.assertEqual(self.numbers(gguf, f"blk.0.ffn_{name}_exps.weight"), turned)
        self.assertEqual(self.numbers(gguf, "blk.0.ffn_gate_shexp.weight"), theirs[layer + "feed_forward.shared_expert.gate_proj.weight"])
        keys = {"llama4.interleave_moe_layer_step": 1, "llama4.attention.sliding_window": 8192, "llama4.attention.temperature_length": 8192,
                "llama4.feed_forward_length": ff, "llama4.expert_feed_forward_length": ff}
        self.assertEqual({key: gguf.keys[key] for key in keys}, keys)
        for key, value in (("no_rope_layers", [0]), ("attention_chunk_size", None), ("moe_layers", [3]), ("use_qk_norm", False)):
            checkpoints.write_checkpoint(self.source, "llama4_text", shapes, **changes, **{key: value})
            self.cannot_convert(key)

    def test_gemma_3n_pads_the_table_of_layers(self):
        """The last tokens stand for pictures and sounds, and the table has no rows for them: transformers takes the first row."""
        config, folder = self.exported("gemma3n"), self.folder / "gemma3n-0"
        path, name, missing = folder / "model.safetensors", "model.embed_tokens_per_layer.weight", 2
        tensors = checkpoints.read_safetensors(path)
        kind, (rows, cols), values = tensors[name]
        row = len(values) // rows
        tensors[name] = kind, [rows - missing, cols], values[:-missing * row]
        checkpoints.write_safetensors(path, tensors)
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size_per_layer_input": rows - missing}))
        self.ok("convert", folder, "-o", self.out)
        self.assertEqual(bytes(checkpoints.Gguf(self.out).tensors["per_layer_token_embd.weight"][2]), bytes(values[:-missing * row]) + missing * bytes(values[:row]))
        (folder / "config.json").write_text(json.dumps(config | {"altup_correct_scale": False}))
        self.refused("convert", folder, "-o", self.folder / "other.gguf", says="altup_correct_scale")

    def test_granite_4_h_without_experts(self):
        """Its only feed-forward is called shared."""
        config, folder = self.exported("granitehybrid"), self.folder / "granitehybrid-0"
        path = folder / "model.safetensors"
        tensors = {name: tensor for name, tensor in checkpoints.read_safetensors(path).items() if "block_sparse_moe" not in name}
        checkpoints.write_safetensors(path, tensors)
        (folder / "config.json").write_text(json.dumps(config | {"num_local_experts": 0, "num_experts_per_tok": 0}))
        self.ok("convert", folder, "-o", self.out)
        gguf = checkpoints.Gguf(self.out)
        self.assertIn("blk.0.ffn_gate.weight", gguf.tensors)
        self.assertEqual(gguf.keys["granitehybrid.feed_forward_length"], config["shared_intermediate_size"])
        again = self.folder / "again"
        self.ok("export", self.out, again)
        self.assertEqual(checkpoints.read_safetensors(again / "model.safetensors"), tensors)


class Files(Case):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.folder = pathlib.Path(self.room.name)

    def test_a_split_model_is_the_same_and_one_again(self):
        names = self.ok("split", DEMO, self.folder / "s.gguf", "--max-size", "3M").out.split()
        self.assertGreater(len(names), 3)
        self.assertTrue(names[0].endswith(f"s-00001-of-{len(names):05}.gguf"))
        self.assertTrue(all(pathlib.Path(name).stat().st_size <= 3_000_000 for name in names))
        self.ok("verify", names[1], "--against", DEMO)
        self.ok("merge", names[2], self.folder / "m.gguf")
        self.ok("verify", self.folder / "m.gguf", "--against", DEMO)
        self.assertNotIn("split.count", checkpoints_keys(self.folder / "m.gguf"))
        self.refused("split", names[0], self.folder / "s.gguf", says="file of the input")
        self.refused("split", DEMO, self.folder / "t.gguf", "--max-size", "0", says="--max-size")
        pathlib.Path(names[1]).unlink()
        self.refused("merge", names[0], self.folder / "n.gguf", says="missing")
        self.assertFalse((self.folder / "n.gguf").exists())

    def test_verify_names_what_is_wrong(self):
        gguf = checkpoints.Gguf(DRAFT)
        self.assertEqual(len(self.ok("verify", DRAFT, "--hashes").out.splitlines()), len(gguf.tensors) + 1)
        copy = self.folder / "copy.gguf"
        data = bytearray(pathlib.Path(DRAFT).read_bytes())
        at = data.rindex(gguf.tensors["blk.1.ffn_up.weight"][2])
        data[at] ^= 1
        copy.write_bytes(data)
        self.ok("verify", copy)
        outcome = self.refused("verify", copy, "--against", DRAFT, says="1 tensors")
        self.assertIn("tensor 'blk.1.ffn_up.weight' holds other weights", outcome.out)
        data[at:at + 2] = b"\x00\x7c"  # infinity
        copy.write_bytes(data)
        self.refused("verify", copy, says="blk.1.ffn_up.weight")

    def test_units_come_twice_as_they_are(self):
        said = self.ok("verify", DEMO, "--reload").out
        self.assertIn("the same bytes", said)
        self.assertNotIn(" 0 tiles evicted", said)

    def test_a_stopped_conversion_leaves_nothing(self):
        source = self.folder / "big"
        shapes = checkpoints.dense_shapes() | {"model.embed_tokens.weight": [200_000, checkpoints.WIDTH], "lm_head.weight": [200_000, checkpoints.WIDTH]}
        source.mkdir()
        tensors = {name: ("BF16", shape, b"\0" * (2 * shape[0] * (shape[1] if len(shape) > 1 else 1))) for name, shape in shapes.items()}
        checkpoints.write_safetensors(source / "model.safetensors", tensors)
        (source / "config.json").write_text(json.dumps(checkpoints.config(model_type="llama")))
        checkpoints.write_tokenizer(source)
        out = self.folder / "big.gguf"
        process = subprocess.Popen([MILLRACE, "convert", str(source), "-o", str(out), "--dtype", "q8_0"], stderr=subprocess.PIPE)
        while process.poll() is None and not (self.folder / "big.gguf.partial").exists():
            pass
        process.send_signal(signal.SIGINT)
        process.communicate()
        if process.returncode != 0:  # else it was done before
            self.assertEqual(process.returncode, 130)
            self.assertEqual(list(self.folder.glob("big.gguf*")), [])


def checkpoints_keys(path):
    return checkpoints.Gguf(path).keys


if __name__ == "__main__":
    unittest.main()
