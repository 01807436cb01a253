"""Guessed tokens from outside: the same answers and logits, the budget held, and what the flags and counters say."""
import concurrent.futures
import json
import pathlib
import struct
import tempfile
import unittest

import checkpoints
import harness
from harness import DEMO, DRAFT, Case
from serving import Server

STORY = "Tell me a story about a fox."
TARGET, HEAD = (str(harness.ROOT / "tests/data" / name) for name in ("reference/llama3.gguf", "heads/eagle3.gguf"))


class Speculation(Case):
    def answer(self, *args):
        return self.ok("run", DEMO, "--local", "--device", "cpu", "--ram", "12M", "--ctx", "512", "--stats", "-p", STORY, *args)

    def test_every_drafter_gives_the_same_answer(self):
        for drawn in (["--temp", "0"], ["--temp", "0.9", "--seed", "5"]):
            plain = self.answer("--speculate", "off", *drawn)
            self.assertNotIn("drafts:", plain.err)
            for flags in (["--speculate", "6"], ["--speculate", "auto"], ["--speculate", "4", "--draft", DRAFT], ["--draft", DRAFT],
                          ["--speculate", "3", "--draft", "self:1"], ["--draft", "self"]):
                with self.subTest(flags=flags, drawn=drawn):
                    self.assertEqual(self.answer(*flags, *drawn).out, plain.out)

    def test_a_draft_model_gives_several_tokens_a_pass(self):
        said = self.answer("--temp", "0", "--speculate", "5", "--draft", DRAFT).err
        self.assertRegex(said, r"drafts: [2-5]\.\d+ tokens a pass; \d+ of \d+ by Millrace demo draft were right")

    @unittest.skipIf(harness.SANITIZED, "sanitizers multiply memory")
    def test_a_draft_model_stays_under_the_budget_with_its_model(self):
        for ram in (8_000_000, 12_000_000):
            outcome = self.ok("run", DEMO, "--local", "--device", "cpu", "--ram", str(ram), "--ctx", "512", "--temp", "0", "-p", STORY,
                              "--draft", DRAFT, measured=True)
            self.assertNotIn("does not guess", outcome.err)
            self.assertLessEqual(outcome.held_bytes, ram, f"--ram {ram}")

    def test_a_plan_says_where_the_draft_model_is(self):
        planned = self.ok("plan", DEMO, "--device", "cpu", "--ram", "12M", "--ctx", "512", "--draft", DRAFT)
        self.assertRegex(planned.out, r"draft model: on the CPU, \d\.\d+ MB of RAM")
        self.assertNotIn("draft model", self.ok("plan", DEMO, "--device", "cpu", "--ram", "12M", "--ctx", "512").out)
        other = str(harness.ROOT / "tests/data/reference/llama.gguf")
        self.assertNotIn("draft model", self.ok("plan", DEMO, "--device", "cpu", "--draft", other).out)

    def test_bench_guesses_as_often_right_as_it_is_told(self):
        flags = ("--device", "cpu", "-p", "32", "-n", "100", "-r", "1", "-s", "2")
        plain = self.bench(DEMO, *flags, "--speculate", "off")
        self.assertEqual(plain["drafts"]["tokens_per_pass"], 1)
        for accept, least, most in ((0, 1, 1), (0.8, 2.2, 3.4), (1, 3.8, 4)):
            drafted = self.bench(DEMO, *flags, "--speculate", "3", "--accept", str(accept))
            self.assertEqual(drafted["logits_hash"], plain["logits_hash"])
            self.assertGreaterEqual(drafted["drafts"]["tokens_per_pass"], least)
            self.assertLessEqual(drafted["drafts"]["tokens_per_pass"], most)

    def test_first_layers_guess_and_say_so(self):
        flags = ("--device", "cpu", "--ram", "12M", "--ctx", "512", "--draft", "self:1")
        planned = self.ok("plan", DEMO, *flags)
        self.assertRegex(planned.out, r"self-speculation: the first 1 of 6 layers and the head stay in memory \(\d\.\d+ MB\); on the CPU, .* of RAM")
        said = self.ok("run", DEMO, "--local", *flags, "--temp", "0", "--speculate", "3", "--stats", "-p", STORY)
        self.assertRegex(said.err, r"drafts: [1-3]\.\d+ tokens a pass; \d+ of \d+ by self 1 layer were right")
        drafted = self.bench(DEMO, *flags, "-p", "32", "-n", "60", "-r", "1", "--speculate", "3", "--accept", "1")
        self.assertGreaterEqual(drafted["drafts"]["tokens_per_pass"], 3.5)
        self.assertEqual(drafted["drafts"]["drafters"][-1]["drafter"], "self 1 layer")

    def test_a_block_for_multi_token_prediction_guesses(self):
        model = str(harness.ROOT / "tests/data/reference/glm4moe.gguf")
        flags = ("--device", "cpu", "--ctx", "256", "--draft", "mtp")
        self.assertRegex(self.ok("plan", model, *flags).out, r"multi-token prediction: the block behind the layers and the head stay in memory")
        plain = self.bench(model, "--device", "cpu", "--ctx", "256", "-p", "32", "-n", "60", "-r", "1", "--speculate", "off")
        drafted = self.bench(model, *flags, "-p", "32", "-n", "60", "-r", "1", "--speculate", "3", "--accept", "0.8")
        self.assertEqual(drafted["logits_hash"], plain["logits_hash"])
        self.assertEqual(drafted["drafts"]["drafters"][-1]["drafter"], "mtp")

    def test_a_head_of_eagle_3_guesses(self):
        flags = ("--device", "cpu", "--ctx", "256")
        self.assertRegex(self.ok("plan", TARGET, *flags, "--draft", HEAD).out, r"the head of EAGLE-3: its layer and the model's head stay in memory")
        plain = self.bench(TARGET, *flags, "-p", "32", "-n", "60", "-r", "1", "--speculate", "off")
        drafted = self.bench(TARGET, *flags, "-p", "32", "-n", "60", "-r", "1", "--draft", HEAD, "--speculate", "3", "--accept", "0.8")
        self.assertEqual(drafted["logits_hash"], plain["logits_hash"])
        self.assertEqual(drafted["drafts"]["drafters"][-1]["drafter"], "eagle3")
        self.assertIn("target_layers", self.ok("inspect", HEAD).out)
        self.refused("run", HEAD, "--local", "-p", "hi", says="give it to --draft")
        outcome = self.ok("run", DEMO, "--local", "--device", "cpu", "--temp", "0", "--draft", HEAD, "-p", "What is the capital of France?")
        self.assertRegex(outcome.err, "warning: the head of EAGLE-3 is left out: .* is for a model of 32 channels")
        self.assertIn("Paris", outcome.out)

    def test_a_server_asks_a_head_of_eagle_3(self):
        """Over HTTP, several at once, with the texts of a server without."""
        bodies = [{"prompt": prompt, "max_tokens": 40, "temperature": heat, "seed": 7, "ignore_eos": True}
                  for prompt, heat in (("the in an", 0), ("an the in the an in the in an the an in", 0), ("the in an", 0.9))]
        def texts(*flags):
            with Server(TARGET, "--device", "cpu", "--ctx", "256", "--parallel", "3", *flags) as server:
                with concurrent.futures.ThreadPoolExecutor(3) as pool:
                    answers = list(pool.map(lambda body: server.json("POST", "/v1/completions", body), bodies))
                self.assertEqual([status for status, _ in answers], [200] * 3)
                return [answer["choices"][0]["text"] for _, answer in answers], server.json("GET", "/api/millrace/live")[1]["models"][0]["drafts"]
        plain, _ = texts("--speculate", "off")
        drafted, counts = texts("--speculate", "4", "--draft", HEAD)
        self.assertEqual(drafted, plain)
        self.assertEqual(counts[0]["drafter"], "eagle3")
        self.assertGreater(counts[0]["drafted"], 0)

    def test_a_converted_head_guesses(self):
        with tempfile.TemporaryDirectory() as room:
            folder, out = pathlib.Path(room) / "head", pathlib.Path(room) / "head.gguf"
            folder.mkdir()
            shapes = {"fc": (32, 96), "norm": (32,), "lm_head": (24, 32), "midlayer.input_layernorm": (32,), "midlayer.hidden_norm": (32,),
                      "midlayer.self_attn.q_proj": (64, 64), "midlayer.self_attn.k_proj": (32, 64), "midlayer.self_attn.v_proj": (32, 64),
                      "midlayer.self_attn.o_proj": (32, 64), "midlayer.post_attention_layernorm": (32,), "midlayer.mlp.gate_proj": (48, 32),
                      "midlayer.mlp.up_proj": (48, 32), "midlayer.mlp.down_proj": (32, 48)}
            tensors = {f"{name}.weight": ("F32", list(shape), checkpoints.f32(checkpoints.numbers_of(shape, seed))) for seed, (name, shape) in enumerate(shapes.items())}
            tensors["d2t"] = ("I64", [24], struct.pack("<24q", *(2 * i for i in range(24))))
            tensors["t2d"] = ("BOOL", [80], bytes(80))
            checkpoints.write_safetensors(folder / "model.safetensors", tensors)
            (folder / "config.json").write_text(json.dumps({
                "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48,
                "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256, "vocab_size": 80, "draft_vocab_size": 24,
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]}}))
            self.refused("convert", folder, "-o", out, says=["is a draft head", "--base"])
            self.refused("convert", folder, "--base", DEMO, "-o", out, says="is for a model of 32 channels")
            self.assertFalse(out.exists())
            said = self.ok("convert", folder, "--base", TARGET, "--dtype", "q8_0", "-o", out).out
            self.assertIn("a draft head for a model of llama, which reads layers 0, 1, 2; 14 tensors", said)
            self.assertIn("eagle3.target_layers", self.ok("inspect", out).out)
            drafted = self.bench(TARGET, "--device", "cpu", "--ctx", "256", "-p", "32", "-n", "30", "-r", "1", "--draft", out, "--speculate", "3")
            self.assertEqual(drafted["drafts"]["drafters"][-1]["drafter"], "eagle3")

    def test_what_cannot_be_is_said(self):
        self.refused("run", DEMO, "--speculate", "fast", "-p", "hi", says=["--speculate", "fast", "auto"])
        self.refused("run", DEMO, "--speculate", "off", "--draft", DRAFT, "-p", "hi", says=["--draft", "--speculate off"])
        self.refused("run", DEMO, "--draft", "self:none", "-p", "hi", says=["--draft", "self:K"])
        for who, word in (("mtp", "no block"), ("self:6", "has 6 layers")):
            outcome = self.ok("run", DEMO, "--local", "--device", "cpu", "--temp", "0", "--draft", who, "-p", "What is the capital of France?")
            self.assertRegex(outcome.err, f"warning: .* is left out: .*{word}")
            self.assertIn("Paris", outcome.out)
        other = str(harness.ROOT / "tests/data/reference/llama.gguf")
        for draft, word in ((other, "vocabulary"), ("/nowhere.gguf", "no such file")):
            outcome = self.ok("run", DEMO, "--local", "--device", "cpu", "--temp", "0", "--draft", draft, "-p", "What is the capital of France?")
            self.assertRegex(outcome.err, f"warning: .* does not guess: .*{word}")
            self.assertIn("Paris", outcome.out)

    def test_a_server_counts_drafts(self):
        for draft, name in ((DRAFT, "Millrace demo draft"), ("self:4", "self 4 layers")):
            with self.subTest(draft=draft), Server(DEMO, "--device", "cpu", "--speculate", "4", "--draft", draft) as server:
                self.check_counters(server, name)

    def check_counters(self, server, name):
        asked = {"messages": [{"role": "user", "content": STORY}], "temperature": 0}
        status, _, _ = server.request("POST", "/v1/chat/completions", asked)
        self.assertEqual(status, 200)
        metrics = server.request("GET", "/metrics")[2]
        metrics = metrics.decode() if isinstance(metrics, bytes) else metrics
        self.assertRegex(metrics, rf'millrace_drafts_right_total\{{[^}}]*drafter="{name}"[^}}]*place="1"[^}}]*\}} [1-9]')
        self.assertRegex(metrics, r"millrace_decode_turns_total\{[^}]*\} [1-9]")
        self.assertRegex(metrics, rf'millrace_draft_passes_total\{{[^}}]*drafter="{name}"[^}}]*\}} [1-9]')
        self.assertIn("millrace_verify_seconds_total", metrics)
        live = server.json("GET", "/api/millrace/live")[1]["models"][0]
        drafts = live["drafts"][0]
        self.assertEqual((drafts["drafter"], sum(drafts["drafted_at"])), (name, drafts["drafted"]))
        self.assertEqual(sum(drafts["right_at"]), drafts["right"])
        self.assertGreater(drafts["passes"], 0)
        self.assertGreater(live["tokens_a_turn"], 1)


if __name__ == "__main__":
    unittest.main()
