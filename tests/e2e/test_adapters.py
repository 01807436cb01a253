"""LoRA adapters: PEFT's as GGUF files, beside a model and merged into it, and what a server answers with several."""
import hashlib
import json
import os
import pathlib
import random
import struct
import tempfile
import unittest

import checkpoints
from harness import DEMO, Case, run
from serving import Server

RANK, ALPHA = 2, 3
MODULES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
           "ffn_gate_inp": "mlp.gate", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}


def halves(draw, rows, cols, size):
    a = [draw.gauss(0, cols**-0.5) for _ in range(RANK * cols)]
    return a, [draw.gauss(0, size) for _ in range(rows * RANK)]


def write_peft(folder, modules, seed, size=0.2, **config):
    """An adapter of {module: (rows, cols)}, as PEFT saves it. Returns {module: (a, b)}."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, tensors, made = random.Random(seed), {}, {}
    for module, (rows, cols) in modules.items():
        a, b = made[module] = halves(draw, rows, cols, size)
        tensors[f"base_model.model.{module}.lora_A.weight"] = ("F32", [RANK, cols], checkpoints.f32(a))
        tensors[f"base_model.model.{module}.lora_B.weight"] = ("F32", [rows, RANK], checkpoints.f32(b))
    checkpoints.write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "use_rslora": False, "modules_to_save": None, **config}))
    return made


def linear_modules(path):
    """{module: (rows, cols)} of a GGUF file's matrices."""
    modules = {}
    for name, (_, shape, _) in checkpoints.Gguf(path).tensors.items():
        parts = name.split(".")
        if len(parts) != 4 or parts[3] != "weight":
            continue
        layer = f"model.layers.{parts[1]}."
        if parts[2] in MODULES:
            modules[layer + MODULES[parts[2]]] = (shape[1], shape[0])
        elif parts[2] in EXPERTS:
            for expert in range(shape[2]):
                modules[f"{layer}mlp.experts.{expert}.{EXPERTS[parts[2]]}"] = (shape[1], shape[0])
    return modules


class Files(Case):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.folder = pathlib.Path(self.room.name)
        self.source, self.base, self.peft = self.folder / "tiny", self.folder / "base.gguf", self.folder / "peft"
        self.numbers = checkpoints.write_checkpoint(self.source)
        self.ok("convert", self.source, "-o", self.base)
        self.shapes = {name.removesuffix(".weight"): shape for name, shape in checkpoints.dense_shapes().items()
                       if "_proj" in name}

    def test_merging_gives_the_sums(self):
        """Names and the order of rows are those of a checkpoint whose weights have the sums."""
        for scale, config in ((1, {}), (0.5, {"use_rslora": True}), (1, {"alpha_pattern": {"self_attn.q_proj": 7}})):
            made = write_peft(self.peft, self.shapes, 5, **config)
            self.ok("export-lora", self.base, "--lora", f"{self.peft}={scale}", "-o", self.folder / "ours.gguf", "--dtype", "f32")
            ours = checkpoints.Gguf(self.folder / "ours.gguf").tensors
            tensors = {}
            for name, shape in checkpoints.dense_shapes().items():
                numbers = list(self.numbers[name])
                if name.removesuffix(".weight") in made:
                    (rows, cols), (a, b) = shape, made[name.removesuffix(".weight")]
                    alpha = config.get("alpha_pattern", {}).get("self_attn.q_proj" if "q_proj" in name else "", ALPHA)
                    factor = scale * alpha / (RANK**0.5 if config.get("use_rslora") else RANK)
                    for n in range(rows):
                        for k in range(cols):
                            numbers[n * cols + k] += factor * sum(b[n * RANK + r] * a[r * cols + k] for r in range(RANK))
                tensors[name] = ("F32", shape, checkpoints.f32(numbers))
            theirs = self.folder / "theirs"
            checkpoints.write_checkpoint(theirs)
            checkpoints.write_safetensors(theirs / "model.safetensors", tensors)
            self.ok("convert", theirs, "-o", self.folder / "theirs.gguf")
            wanted = checkpoints.Gguf(self.folder / "theirs.gguf").tensors
            self.assertEqual(ours.keys(), wanted.keys())
            changed = 0
            for name, (kind, shape, values) in wanted.items():
                self.assertEqual(list(ours[name][1]), list(shape), name)
                got, want = (checkpoints.floats_of(one[0], one[2]) for one in (ours[name], (kind, shape, values)))
                self.assertLess(max(abs(x - y) for x, y in zip(got, want)), 1e-5, name)
                changed += ours[name][0] == checkpoints.F32 and "norm" not in name
            self.assertEqual(changed, len(made))

    def test_what_is_no_adapter_of_the_model_is_named(self):
        out = self.folder / "adapter.gguf"
        cannot = lambda says: self.refused("convert", self.peft, "--base", self.base, "-o", out, says=says)
        for config, says in (({"peft_type": "IA3"}, "IA3"), ({"use_dora": True}, "use_dora"), ({"bias": "all"}, "bias"),
                             ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"alpha_pattern": {"q|k": 1}}, "alpha_pattern")):
            write_peft(self.peft, self.shapes, 1, **config)
            cannot(says)
        write_peft(self.peft, {**self.shapes, "model.layers.0.self_attn.w_proj": (4, 4)}, 1)
        cannot("w_proj")
        write_peft(self.peft, {**self.shapes, "model.layers.0.self_attn.q_proj": (4, 4)}, 1)
        cannot("q")
        write_peft(self.peft, {**self.shapes, "model.layers.7.self_attn.q_proj": (32, 32)}, 1)
        cannot("7")
        write_peft(self.peft, self.shapes, 1)
        tensors = checkpoints.read_safetensors(self.peft / "adapter_model.safetensors")
        checkpoints.write_safetensors(self.peft / "adapter_model.safetensors", dict(list(tensors.items())[1:]))
        cannot("half")
        (self.peft / "adapter_model.safetensors").unlink()
        cannot("adapter_model.safetensors")
        self.refused("convert", self.peft, "-o", out, says="--base")
        self.refused("convert", self.source, "--base", self.base, "-o", out, says="adapter_config.json")
        self.assertFalse(out.exists())

    def test_names_of_files(self):
        self.refused("run", self.base, "--lora", self.folder / "none.gguf", "hi", says="none.gguf")
        self.refused("run", self.base, "--lora", self.base, "hi", says="general.type")
        self.refused("run", self.base, "--lora", self.source, "hi", says="adapter_config.json")
        self.refused("run", self.base, "--lora", "", "hi", says="--lora")
        self.refused("run", self.base, "--lora", f"{self.base}=nan", "hi", says="number")


class Served(Case):
    @classmethod
    def setUpClass(cls):
        cls.room = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.room.cleanup)
        cls.folder = pathlib.Path(cls.room.name)
        modules = linear_modules(DEMO)
        assert len(modules) > 20, modules
        for name, seed in (("pirate", 1), ("poet", 2)):
            write_peft(cls.folder / f"{name}.peft", modules, seed, size=0.1)
            outcome = run("convert", cls.folder / f"{name}.peft", "--base", DEMO, "-o", cls.folder / f"{name}.gguf")
            assert outcome.code == 0, outcome.err
        cls.adapters = [cls.folder / "pirate.gguf", cls.folder / "poet.gguf"]
        cls.flags = ["--lora", f"{cls.adapters[0]}=0", "--lora", f"{cls.adapters[1]}=0"]

    def text(self, *flags):
        return self.ok("run", DEMO, "-q", "--temp", "0", "--max-tokens", "24", "--raw", "-p", "Once upon a time", *flags).out

    def test_run_serve_and_batch_agree(self):
        plain, pirate, poet = self.text(), self.text("--lora", self.adapters[0]), self.text("--lora", self.folder / "poet.peft")
        self.assertEqual(len({plain, pirate, poet}), 3)
        self.assertEqual(self.text(*self.flags), plain)
        both = self.text("--lora", f"{self.adapters[0]}=0.5", "--lora", f"{self.adapters[1]}=0.25")
        body = {"prompt": "Once upon a time", "n_predict": 24, "temperature": 0}
        with Server("-m", DEMO, "--parallel", "8", *self.flags) as server:
            ask = lambda **more: server.json("POST", "/completion", {**body, **more})
            shown = {"": plain, "pirate": pirate, "poet": poet, "both": both}
            content = {}
            for name, lora in (("", []), ("pirate", [{"id": 0, "scale": 1}]), ("poet", [{"id": 1, "scale": 1.0}]),
                               ("both", [{"id": 1, "scale": 0.25}, {"id": 0, "scale": 0.5}])):
                status, answer = ask(lora=lora)
                self.assertEqual(status, 200, answer)
                content[name] = answer["content"]
                self.assertIn(content[name].strip(), shown[name])
            self.assertEqual(ask()[1]["content"], content[""])
            # All at once: a pass mixes them.
            streams = {name: server.stream("/completion", {**body, "stream": True, "lora": lora}) for name, lora in (
                ("", []), ("pirate", [{"id": 0, "scale": 1}]), ("poet", [{"id": 1, "scale": 1}]),
                ("both", [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.25}]))}
            for name, response in streams.items():
                pieces = [json.loads(line[6:]) for line in response.read().decode().splitlines() if line.startswith("data: ")]
                self.assertEqual("".join(piece["content"] for piece in pieces), content[name], name)
                response.connection.close()

            # By name, and by what is set for all.
            base = server.json("GET", "/v1/models")[1]["data"][0]["id"]
            names = [model["id"] for model in server.json("GET", "/v1/models")[1]["data"]]
            short = base.removesuffix(":latest")
            self.assertEqual(names, [base, f"{short}:pirate", f"{short}:poet"])
            self.assertEqual(server.json("GET", f"/v1/models/{short}:poet")[1]["id"], f"{short}:poet")
            completion = lambda model: server.json("POST", "/v1/completions", {
                "model": model, "prompt": body["prompt"], "max_tokens": 24, "temperature": 0})
            self.assertEqual(completion(f"{short}:pirate")[1]["choices"][0]["text"], content["pirate"])
            self.assertEqual(completion(f"{short}:poet")[1]["choices"][0]["text"], content["poet"])
            self.assertEqual(completion(base)[1]["choices"][0]["text"], content[""])
            status, answer = server.json("POST", "/api/generate", {"model": f"{short}:poet", "prompt": body["prompt"], "raw": True,
                                                                   "stream": False, "options": {"num_predict": 24, "temperature": 0}})
            self.assertEqual((status, answer["response"]), (200, content["poet"]))
            self.assertEqual(completion(f"{short}:sailor")[0], 404)
            self.assertEqual(server.json("POST", "/v1/embeddings", {"model": f"{short}:poet", "input": "a"})[0], 400)

            self.assertEqual([(one["id"], one["name"], one["scale"]) for one in server.json("GET", "/lora-adapters")[1]],
                             [(0, "pirate", 0), (1, "poet", 0)])
            self.assertEqual(server.json("POST", "/lora-adapters", [{"id": 1, "scale": 1}])[0], 200)
            self.assertEqual([one["scale"] for one in server.json("GET", "/lora-adapters")[1]], [0, 1])
            self.assertEqual(ask()[1]["content"], content["poet"])
            self.assertEqual(ask(lora=[])[1]["content"], content[""])

            for lora in ([{"id": 2, "scale": 1}], [{"id": 0, "scale": 1}, {"id": 0, "scale": 1}], [{"id": 0}], {"id": 0}, [[]],
                         [{"id": -1, "scale": 1}], [{"id": 0, "scale": "1"}]):
                status, answer = ask(lora=lora)
                self.assertEqual(status, 400, lora)
                self.assertIn("adapter", answer["error"]["message"])
                self.assertEqual(server.json("POST", "/lora-adapters", lora)[0], 400, lora)
            self.assertEqual(server.json("POST", "/v1/completions", {"model": f"{short}:poet", "prompt": "a", "lora": []})[0], 400)
            status, answer = server.json("POST", "/lora-adapters", [{"id": 0, "scale": 1}] * 5000)
            self.assertEqual(status, 400)
            self.assertIn("at most 65536", answer["error"]["message"])

        requests = self.folder / "requests.jsonl"
        requests.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {
            "prompt": body["prompt"], "max_tokens": 24, "temperature": 0, **({"lora": lora} if lora is not None else {})}}) + "\n"
            for i, lora in enumerate(([], [{"id": 0, "scale": 1}], [{"id": 1, "scale": 1}], None))))
        self.ok("batch", requests, self.folder / "answers.jsonl", DEMO, *self.flags)
        answers = {line["custom_id"]: line["response"]["body"]["choices"][0]["text"]
                   for line in map(json.loads, (self.folder / "answers.jsonl").read_text().splitlines())}
        self.assertEqual([answers[str(i)] for i in range(4)], [content[""], content["pirate"], content["poet"], content[""]])

    def test_an_adapter_becomes_part_of_a_model(self):
        """ADAPTER of a Modelfile and `adapters` of /api/create, in GGUF and as PEFT saves it."""
        store = self.folder / "store"
        env = {**os.environ, "MILLRACE_MODELS": str(store)}
        recipe = self.folder / "Modelfile"
        text = lambda model, *flags: self.ok("run", model, "-q", "--temp", "0", "--max-tokens", "24", "--raw", "-p", "Once upon a time",
                                             *flags, env=env).out
        plain, pirate, poet = self.text(), self.text("--lora", self.adapters[0]), self.text("--lora", self.adapters[1])
        both = self.text("--lora", self.adapters[0], "--lora", self.adapters[1])
        for name, body in (("plain", ""), ("pirate", "ADAPTER pirate.gguf\n"), ("poet", f"ADAPTER {self.folder}/poet.peft\n"),
                           ("both", "ADAPTER ./pirate.gguf\nADAPTER poet.peft/adapter_model.safetensors\n")):
            recipe.write_text(f"FROM {DEMO}\n{body}")
            self.ok("create", name, "-f", recipe, env=env)
        self.assertEqual([text(name) for name in ("plain", "pirate", "poet", "both")], [plain, pirate, poet, both])
        self.assertEqual(text("pirate", "--lora", self.adapters[1]), both)
        shown = self.ok("show", "both", env=env).out
        self.assertIn("Adapters\n", shown)
        self.assertRegex(shown, r"pirate +.*/pirate\.gguf")
        recipe.write_text(self.ok("show", "both", "--modelfile", env=env).out)
        self.ok("create", "again", "-f", recipe, env=env)
        self.assertEqual(text("again"), both)
        merged, of_model = self.folder / "by-flag.gguf", self.folder / "of-model.gguf"
        self.ok("export-lora", DEMO, "--lora", self.adapters[0], "-o", merged)
        self.ok("export-lora", "pirate", "-o", of_model, env=env)
        self.assertEqual(merged.read_bytes(), of_model.read_bytes())
        self.refused("export-lora", "plain", "-o", of_model, says="--lora", env=env)

        with Server("-m", "pirate", env=env) as server:
            def answer(model, **more):
                status, body = server.json("POST", "/api/generate", {"model": model, "prompt": "Once upon a time", "raw": True, "stream": False,
                                                                    "options": {"num_predict": 24, "temperature": 0}, **more})
                self.assertEqual(status, 200, body)
                return body["response"]

            answers = {name: answer(name) for name in ("pirate", "plain", "poet", "both")}
            for name, told in (("pirate", pirate), ("plain", plain), ("poet", poet), ("both", both)):
                self.assertIn(answers[name].strip(), told)
            self.assertEqual(len(set(answers.values())), len({plain, pirate, poet, both}))
            self.assertEqual({name: answer(name) for name in answers}, answers)  # each is loaded by itself
            self.assertEqual(server.json("POST", "/completion", {"model": "pirate", "prompt": "Once upon a time", "n_predict": 24,
                                                                 "temperature": 0, "lora": []})[1]["content"], answers["plain"])
            self.assertEqual(server.json("POST", "/api/show", {"model": "both"})[1]["adapters"], ["pirate", "poet.peft"])
            self.assertNotIn("adapters", server.json("POST", "/api/show", {"model": "plain"})[1])

            def upload(path):
                data = path.read_bytes()
                digest = "sha256:" + hashlib.sha256(data).hexdigest()
                self.assertIn(server.request("POST", f"/api/blobs/{digest}", data)[0], (200, 201))
                return digest

            peft = {name: upload(self.folder / "poet.peft" / name) for name in ("adapter_config.json", "adapter_model.safetensors")}
            create = lambda **more: server.json("POST", "/api/create", {"model": "made", "stream": False, **more})
            for adapters, name in (({"pirate.gguf": upload(self.adapters[0])}, "pirate"), (peft, "poet")):
                status, body = create(**{"from": "plain", "adapters": adapters})
                self.assertEqual(status, 200, body)
                self.assertEqual(answer("made"), answers[name])
            status, body = create(files={"demo.gguf": upload(pathlib.Path(DEMO))}, adapters=peft)
            self.assertEqual(status, 200, body)
            self.assertEqual(answer("made"), answers["poet"])
            for adapters in ({}, [], {"a.gguf": "sha256:0"}, {"a": peft["adapter_config.json"]}, {**peft, "b": peft["adapter_config.json"]},
                             {"../a.gguf": peft["adapter_config.json"]}, {"a": peft["adapter_config.json"], "b": peft["adapter_config.json"]}):
                status, body = create(**{"from": "plain", "adapters": adapters})
                self.assertEqual(status, 400, body)
                self.assertIn("adapter", body["error"])
            self.assertEqual(create(**{"from": "plain", "adapters": {"a.gguf": "sha256:" + "0" * 64}})[0], 404)
            self.assertEqual(create(modelfile=f"FROM plain\nADAPTER {self.adapters[0]}\n")[0], 400)
            self.assertEqual(answer("made"), answers["poet"])
            self.assertEqual(server.request("DELETE", "/api/delete", {"model": "made"})[0], 200)
        self.assertEqual(list((store / "partial").iterdir()), [])

    def test_a_merged_file_answers_as_the_model_beside_its_adapter(self):
        merged = self.folder / "merged.gguf"
        self.ok("export-lora", DEMO, "--lora", self.adapters[0], "-o", merged, "--dtype", "f16")
        self.assertEqual(self.ok("run", merged, "-q", "--temp", "0", "--max-tokens", "8", "--raw", "-p", "Once upon a time").out[:24],
                         self.text("--lora", self.adapters[0])[:24])

    def test_memory_is_granted(self):
        outcome = run("run", DEMO, "--ram", "1M", "--lora", self.adapters[0], "hi")
        self.assertGreater(outcome.code, 0)
        self.assertIn("--ram", outcome.err)


if __name__ == "__main__":
    unittest.main()
