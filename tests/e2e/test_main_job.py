"""The main job: a model larger than its budget answers, and stays under the budget while it does."""
import os
import pathlib
import re
import tempfile
import unittest

import harness
from harness import DEMO, DRAFT, ROOT, Case


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
        bare = min(self.ok("--version").peak_rss_bytes for _ in range(3))
        for ram in (6_000_000, 8_000_000, 12_000_000):
            outcome = self.ok("run", DEMO, "--ram", str(ram), "--temp", "0", "-p", "Tell me a story about a fox and a lantern.")
            self.assertLessEqual(outcome.peak_rss_bytes - bare, ram, f"--ram {ram}")

    def test_same_logits_for_every_budget_backend_and_thread_count(self):
        hashes = {}
        for label, flags in {
            "all resident": [],
            "6M": ["--ram", "7M"],
            "one expert at a time": ["--ram", "7M", "--expert-slots", "1"],
            "lfu": ["--ram", "7M", "--policy", "lfu"],
            "pread": ["--ram", "8M", "--storage", "pread"],
            "pread-direct": ["--ram", "8M", "--storage", "pread-direct"],
            "mmap": ["--storage", "mmap"],
            "1 thread": ["--threads", "1"],
            "3 threads": ["--threads", "3", "--ram", "9M"],
            "plain": ["--isa", "plain", "--batch", "300"],
            "batch of 8": ["--sequences", "8", "--batch", "100"],
        }.items():
            report = self.bench(DEMO, "-p", "200", "-n", "16", "-r", "1", "--no-warm-up", "--hash-prompt", *flags)
            self.assertTrue(report["logits_finite"])
            hashes[label] = report["logits_hash"]
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_answers_the_held_out_questions(self):
        outcome = self.ok("eval", DEMO, str(ROOT / "tests/data/eval240.jsonl"))
        exact = int(re.match(r"(\d+) of 240", outcome.out).group(1))
        self.assertGreaterEqual(exact, 236)

    def test_quantized_by_us_answers_too(self):
        with tempfile.TemporaryDirectory() as folder:
            for dtype in ("Q8_0", "Q4_0"):
                path = os.path.join(folder, f"draft-{dtype}.gguf")
                self.ok("quantize", DRAFT, path, dtype)
                outcome = self.ok("run", path, "--temp", "0", "-p", "What is the opposite of hot?")
                self.assertTrue(outcome.out.strip(), dtype)


class Words(Case):
    def test_version_and_help(self):
        self.assertRegex(self.ok("--version").out, r"^millrace \d+\.\d+\.\d+")
        for verb in ("run", "plan", "calibrate", "inspect", "quantize", "tokenize", "eval", "bench", "doctor"):
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
        for word in ("O_DIRECT", "io_uring", "GPU"):
            self.assertIn(word, out)


if __name__ == "__main__":
    unittest.main()
