"""The main job: a model larger than its budget answers, and stays under the budget while it does."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

import harness
from harness import DEMO, DRAFT, ROOT, Case

SMALL = "8M"  # the KV of 733 tokens takes 2.3 MB of it


def io_uring_works():
    return harness.run("bench", DEMO, "--storage", "io_uring", "--ram", "9M", "-p", "8", "-n", "1", "-r", "1").code == 0


class MainJob(Case):
    def test_answers_under_half_of_its_size(self):
        outcome = self.ok("run", DEMO, "--ram", "6M", "--temp", "0", "--show-plan", "--stats",
                          "-p", "What is the capital of France?", "-p", "Tell me a story about a fox and a lantern.")
        self.assertIn("The capital of France is Paris.", outcome.out)
        self.assertIn("fox", outcome.out.split("Paris.")[1])
        self.assertIn("disk", outcome.out)  # the plan
        self.assertRegex(outcome.err, r"experts: \d+ used")
        misses = int(re.search(r"(\d+) read from disk", outcome.err).group(1))
        self.assertGreater(misses, 200, "experts must keep coming from the disk all through the story")

    @unittest.skipIf(harness.SANITIZED, "sanitizers multiply memory")
    def test_peak_memory_stays_under_the_budget(self):
        for ram in (4_000_000, 6_000_000, 8_000_000, 12_000_000):
            outcome = self.ok("run", DEMO, "--ram", str(ram), "--temp", "0", "-p", "Tell me a story about a fox and a lantern.",
                              measured=True)
            self.assertLessEqual(outcome.held_bytes, ram, f"--ram {ram}")
        long = self.ok("run", DEMO, "--ram", "6M", "--temp", "0", "-n", "8", "--raw", "-p", "One day a fox met an owl. " * 25,
                       measured=True)
        self.assertLessEqual(long.held_bytes, 6_000_000, "a long prompt")

    def test_smaller_budgets_are_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            drawing = pathlib.Path(folder) / "speed.svg"
            outcome = self.ok("bench", DEMO, "--device", "cpu", "--squeeze", str(drawing), "-p", "16", "-n", "16", "-r", "1")
            rows = re.findall(r"^ *([\d.]+ MB) +[\d.]+ +[\d.]+ +[\d.]+ k?M?B +([\d.]+)$", outcome.out, re.M)
            self.assertGreaterEqual(len(rows), 3, outcome.out)
            self.assertGreater(float(rows[-1][1]), 0, "experts must be missed under the smallest budget")
            self.assertIn("is too small", outcome.out)
            shapes = [node.tag.split("}")[1] for node in xml.etree.ElementTree.parse(drawing).iter()]
            self.assertEqual(shapes.count("polyline"), 2)
            self.assertEqual(shapes.count("circle"), 2 * len(rows))

    def test_routings_choose_in_the_routers_place(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "routing.txt"
            self.ok("run", DEMO, "--device", "cpu", "--temp", "0", "-n", "20", "--record-routing", str(trace),
                    "-p", "Tell me a story about a fox.")
            self.assertRegex(trace.read_text(), r"\Amillrace routing layers 6 experts 16 of 2\n\d+( \d+){12}\n")
            hashes = {}
            for routing in ("model", "uniform", "zipf:1.0", f"trace:{trace}"):
                hashes[routing] = {
                    self.bench(DEMO, "-p", "20", "-n", "9", "-r", "1", "--hash", "--routing", routing, *flags)["logits_hash"]
                    for flags in ([], ["--expert-slots", "12"], ["--batch", "7"])}
            self.assertEqual({len(found) for found in hashes.values()}, {1}, hashes)
            self.assertEqual(len(set.union(*hashes.values())), 4, hashes)
        refused = harness.run("bench", DRAFT, "--routing", "uniform", "-n", "1")
        self.assertIn("no experts", refused.err)

    def test_guessed_experts_are_counted_and_read_ahead(self):
        answers, missed = [], []
        for mode in ("off", "auto", "on"):
            outcome = self.ok("run", DEMO, "--device", "cpu", "--temp", "0", "--expert-slots", "24", "--speculate", "off", "--stats",
                              "--prefetch", mode, "-p", "Tell me a story about a fox and a lantern.")
            answers.append(outcome.out)
            missed.append(int(re.search(r"(\d+) read from disk", outcome.err).group(1)))
            self.assertEqual("guesses:" in outcome.err, mode != "off", outcome.err)
        self.assertEqual(len(set(answers)), 1)
        self.assertLess(missed[2], 0.75 * missed[0], "experts that are asked for and not on their way")
        ahead, used = map(int, re.search(r"(\d+) experts read ahead, (\d+) of them used", outcome.err).groups())
        self.assertGreater(used, ahead / 2)
        recall = int(re.search(r"next router: (\d+) % of uses", outcome.err).group(1))
        self.assertGreater(recall, 45)

    def test_same_logits_for_every_budget_backend_and_thread_count(self):
        hashes = {}
        for label, flags in {
            "all resident": [],
            "a small budget": ["--ram", SMALL],
            "one expert at a time": ["--ram", SMALL, "--expert-slots", "1"],
            "lfu": ["--ram", "9M", "--policy", "lfu"],
            "guessed experts read ahead": ["--expert-slots", "24", "--prefetch", "on"],
            "io_uring": ["--ram", "9M", "--storage", "io_uring"],
            "pread": ["--ram", "9M", "--storage", "pread"],
            "pread-direct": ["--ram", "9M", "--storage", "pread-direct"],
            "mmap": ["--storage", "mmap"],
            "1 thread": ["--threads", "1"],
            "3 threads": ["--threads", "3", "--ram", "9M"],
            "plain kernels": ["--isa", "plain", "--batch", "300"],
            "batch of 8": ["--sequences", "8", "--batch", "100"],
        }.items():
            if label == "io_uring" and not io_uring_works():
                continue
            report = self.bench(DEMO, "-p", "700", "-n", "33", "-r", "1", "--no-warm-up", "--hash-prompt", *flags)
            self.assertTrue(report["logits_finite"])
            hashes[label] = report["logits_hash"]
        print("logits over 700 prompt and 32 decode tokens:", set(hashes.values()))
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    @unittest.skipIf(harness.SANITIZED, "sanitizers multiply memory and time")
    def test_a_dense_model_of_2_gigabytes_under_800_megabytes(self):
        if shutil.disk_usage(harness.ROOT).free < 6e9:
            self.skipTest("writing the 2.2 GB model needs 6 GB of free disk")
        with tempfile.TemporaryDirectory(dir=pathlib.Path(harness.MILLRACE).parent) as folder:
            path = os.path.join(folder, "dense.gguf")
            subprocess.run([harness.SYNTH, path, "--preset", "tinyllama-1.1b", "--dtype", "F16"], check=True, capture_output=True)
            outcome = self.ok("bench", path, "--ram", "800M", "-p", "16", "-n", "8", "-r", "1", "--no-warm-up", "--json", "-q", measured=True)
        report = json.loads(outcome.out)
        self.assertTrue(report["logits_finite"])
        self.assertLessEqual(outcome.held_bytes, 800_000_000)
        self.assertGreaterEqual(report["disk_bytes_per_pass"], 0.6 * report["weight_bytes_per_pass"])

    def test_answers_the_held_out_questions(self):
        outcome = self.ok("eval", DEMO, str(ROOT / "tests/data/eval240.jsonl"))
        exact = int(re.match(r"(\d+) of 240", outcome.out).group(1))
        self.assertGreaterEqual(exact, 236)

    def test_quantized_by_us_answers_too(self):
        with tempfile.TemporaryDirectory() as folder:
            for dtype in ("Q8_0", "Q4_0", "NVFP4"):
                path = os.path.join(folder, f"draft-{dtype}.gguf")
                self.ok("quantize", DRAFT, path, dtype)
                outcome = self.ok("run", path, "--temp", "0", "-p", "What is the opposite of hot?")
                self.assertTrue(outcome.out.strip(), dtype)
            path = os.path.join(folder, "demo.gguf")
            self.ok("quantize", DEMO, path, "NVFP4")
            out = self.ok("eval", path, str(ROOT / "tests/data/eval240.jsonl")).out
            self.assertGreaterEqual(int(re.match(r"(\d+) of 240", out).group(1)), 236)
            out = self.ok("quantize", DEMO, os.path.join(folder, "other.gguf"), "Q8_0", "--tensor", "ffn_.*_exps=NVFP4", "--dry-run").out
            self.assertRegex(out, r"NVFP4 +18 tensors")


class Words(Case):
    def test_version_and_help(self):
        self.assertRegex(self.ok("--version").out, r"^millrace \d+\.\d+\.\d+")
        for verb in ("run", "plan", "calibrate", "inspect", "quantize", "tokenize", "embed", "eval", "perplexity", "imatrix",
                     "sensitivity", "bench", "doctor"):
            self.assertIn(verb, self.ok("--help").out)
            self.assertIn("Usage", self.ok(verb, "--help").out)

    def test_inspect(self):
        out = self.ok("inspect", DEMO).out
        for word in ("qwen3moe", "Q4_K", "Q6_K"):
            self.assertIn(word, out)

    def test_plan_changes_with_budget_and_rates(self):
        small, large = self.ok("plan", DEMO, "--ram", "6M").out, self.ok("plan", DEMO, "--ram", "60M").out
        self.assertIn("disk", small)
        self.assertNotEqual(small, large)
        with tempfile.TemporaryDirectory() as folder:
            speeds = []
            for disk in (1e8, 1e9):
                path = pathlib.Path(folder, "rates.json")
                path.write_text('{"disk": %g, "ram": 2e10, "cpu_decode": 2e10}' % disk)
                out = self.ok("plan", DEMO, "--ram", "6M", "--rates", str(path)).out
                speeds.append(float(re.search(r"([\d.,]+) tok/s", out).group(1).replace(",", "")))
            self.assertGreater(speeds[1], speeds[0])

    def test_tokenize_and_back(self):
        text = "Hello, y'all! 3 × 4 = 12 ½ 🙂"
        ids = self.ok("tokenize", DEMO, text).out.strip()
        self.assertRegex(ids, r"^\d+( \d+)*$")
        self.assertEqual(self.ok("tokenize", DEMO, "--ids", stdin=ids + "\n").out, text + "\n")

    def test_pipe(self):
        out = self.ok("run", DEMO, "--temp", "0", stdin="What is the capital of Italy?\n").out
        self.assertEqual(out.strip(), "The capital of Italy is Rome.")

    def test_seed_repeats(self):
        args = ("run", DEMO, "--seed", "7", "--temp", "1", "-n", "24", "-p", "Tell me a story.")
        self.assertEqual(self.ok(*args).out, self.ok(*args).out)

    def test_stop_string(self):
        out = self.ok("run", DEMO, "--temp", "0", "--stop", " is", "-p", "What is the capital of France?").out
        self.assertEqual(out, "The capital of France\n")

    def test_doctor(self):
        out = self.ok("doctor").out
        self.assertEqual([line.split("  ")[0] for line in out.splitlines()[:3]], ["runs well", "limited by", "to do"])
        self.assertRegex(out.splitlines()[0], r"models of up to \S+ [MG]B from (RAM|VRAM)")
        for word in ("O_DIRECT", "io_uring", "GPU"):
            self.assertIn(word, out)

    def test_the_self_test(self):
        with tempfile.TemporaryDirectory() as folder:
            out = self.ok("doctor", folder, "--self-test").out
            self.assertEqual(os.listdir(folder), [])
        for words in ("system ", "processor ", "  pread ", "right bytes", "\nPassed.\n"):
            self.assertIn(words, out)
        self.assertRegex(out, "digest +[0-9a-f]{16}\n")
        self.assertNotIn("FAILED", out)
        out = self.refused("doctor", "/proc", "--self-test", says="self-test").out  # where no file can be made
        self.assertIn("FAILED: ", out)


if __name__ == "__main__":
    unittest.main()
