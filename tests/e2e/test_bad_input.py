"""Whatever a user or a model file does: one line that says what to do, a code that is not 0, no crash, no wrong token."""
import os
import pathlib
import re
import shutil
import struct
import tempfile
import threading
import time
import unittest

from harness import DEMO, DRAFT, SYNTH, Case, run


class Files(Case):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, content, name="model.gguf"):
        path = os.path.join(self.folder.name, name)
        pathlib.Path(path).write_bytes(content)
        return path

    def test_paths(self):
        self.refused("run", "nowhere.gguf", "-p", "x", says="nowhere.gguf")
        self.refused("run", self.folder.name, "-p", "x", says=self.folder.name)
        self.refused("inspect", self.file(b""), says="model.gguf")

    def test_not_a_gguf(self):
        self.refused("run", self.file(b"PK\x03\x04" + b"x" * 1000), "-p", "x", says="GGUF")
        self.refused("run", self.file(b"GGUF" + struct.pack("<IQQ", 1, 0, 0)), "-p", "x", says="version")
        self.refused("run", self.file(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60)), "-p", "x", says="model.gguf")

    def test_truncated(self):
        whole = pathlib.Path(DEMO).read_bytes()
        for share in (0.00001, 0.001, 0.01, 0.5, 0.99):
            self.refused("run", self.file(whole[: int(len(whole) * share)]), "-p", "x", says="model.gguf")

    def test_unknown_architecture_is_named(self):
        content = pathlib.Path(DRAFT).read_bytes()
        changed = content.replace(struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"lhama", 1)
        self.assertNotEqual(content, changed)
        self.refused("run", self.file(changed), "-p", "x", says="lhama")

    def test_missing_split_is_named(self):
        self.refused("run", self.file(pathlib.Path(DRAFT).read_bytes(), "m-00001-of-00002.gguf"), "-p", "x", says="00002-of-00002")

    def test_damaged_everywhere(self):
        """Bytes changed all over the header: an error or an answer, never a crash."""
        whole = bytearray(pathlib.Path(DRAFT).read_bytes())
        for place in range(8, 4000, 331):
            damaged = bytearray(whole)
            damaged[place] ^= 0xFF
            outcome = run("run", self.file(bytes(damaged)), "--raw", "-p", "x", "-n", "1", "--ram", "200M")
            self.assertIn(outcome.code, (0, 1, 2), f"byte {place}: {outcome.err}")

    def test_truncated_while_it_runs(self):
        path = os.path.join(self.folder.name, "shrinks.gguf")
        for storage in ("auto", "pread", "mmap"):
            shutil.copy(DEMO, path)
            flags = [] if storage == "mmap" else ["--ram", "9M"]
            timer = threading.Timer(0.35, lambda: os.truncate(path, 2_000_000))
            timer.start()  # so many runs that no machine ends them first
            outcome = run("bench", path, "--storage", storage, "-p", "64", "-n", "900", "-r", "1000", *flags)
            timer.join()
            self.assertEqual(outcome.code, 1, f"{storage}: {outcome.out} {outcome.err}")
            self.assertRegex(outcome.err, "error: .*(changed|truncated|ends)", storage)

    def test_read_errors(self):
        for fault in ("eio@40", "short@40", "truncated@40"):
            self.refused("run", DEMO, "--ram", "6M", "--inject-fault", fault, "-p", "Tell me a story.", says="")
        outcome = run("run", DEMO, "--ram", "6M", "--temp", "0", "--inject-fault", "stall:300@40", "-p", "What is the capital of France?")
        self.assertIn("Paris", outcome.out)  # a slow disk is slow, not wrong


class Budgets(Case):
    def test_too_small_names_the_smallest_that_works(self):
        outcome = self.refused("run", DEMO, "--ram", "1M", "-p", "What is the capital of France?", says="--ram")
        smallest = re.search(r"--ram ([\d.]+ ?[kMG]?B?)", outcome.err).group(1).replace(" ", "")
        again = self.ok("run", DEMO, "--ram", smallest, "--temp", "0", "-p", "What is the capital of France?")
        self.assertIn("Paris", again.out)

    def test_flags_for_a_gpu_that_is_not_there_are_told(self):
        for flags in (["--vram", "4G"], ["--cpu-share", "50"], ["--cpu-ffn", "3"], ["--pin", "0-1=ram"], ["--vram", "4G", "--isa", "plain"]):
            outcome = self.ok("run", DEMO, *flags, "--temp", "0", "-n", "2", "-p", "hi", env={"CUDA_VISIBLE_DEVICES": ""})
            self.assertIn("warning: computing on the CPU", outcome.err, flags)
        self.assertNotIn("warning", self.ok("run", DEMO, "--temp", "0", "-n", "2", "-p", "hi", env={"CUDA_VISIBLE_DEVICES": ""}).err)

    def test_words_that_are_off(self):
        self.refused("run", DEMO, "--ram", "lots", "-p", "x", says="lots")
        self.refused("run", DEMO, "--ram", "0", "-p", "x", says="--ram")
        self.refused("run", DEMO, "--storage", "tape", "-p", "x", says="tape")
        self.refused("run", DEMO, "--isa", "sse9", "-p", "x", says="sse9")
        for flag, value in (("--ctx", "-1"), ("--cpu-ffn", "some"), ("--cpu-share", "96"), ("--repeat-penalty", "0")):
            outcome = self.refused("run", DEMO, flag, value, "-p", "x", says=flag)
            self.assertLess(len(outcome.err), 120)  # no largest double
        self.refused("frobnicate", says="--help")
        self.refused("run", DEMO, stdin="", says="prompt")
        self.refused("quantize", DEMO, "out.gguf", "Q9_Z", says="Q9_Z")
        self.refused("quantize", DEMO, DEMO, "Q8_0", says="")
        self.refused("eval", DEMO, "nowhere.jsonl", says="nowhere.jsonl")
        self.refused("tokenize", DEMO, "--ids", stdin="12 wolf\n", says="wolf")
        self.assertEqual(run("run").code, 2)
        self.assertEqual(run("walk").code, 2)

    def test_prompt_longer_than_the_context(self):
        self.refused("run", DEMO, "--ctx", "64", "-p", "word " * 200, says="--ctx")


if __name__ == "__main__":
    unittest.main()
