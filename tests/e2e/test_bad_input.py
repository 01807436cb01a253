"""Whatever a user or a model file does: one line that says what to do, a code that is not 0, no crash, no wrong token."""
import json
import os
import pathlib
import random
import re
import shutil
import struct
import tempfile
import threading
import time
import unittest

import checkpoints
from harness import DEMO, DRAFT, SANITIZED, SYNTH, Case, run


class InFolder(Case):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, content, name="model.gguf"):
        path = os.path.join(self.folder.name, name)
        pathlib.Path(path).write_bytes(content)
        return path


class Files(InFolder):
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


DAMAGED = int(os.environ.get("MILLRACE_DAMAGED", "6"))


class Damaged(InFolder):
    """Every other kind of file that the program reads, damaged in every way: an error of one line or an answer, soon, in little memory.
    What comes as many bytes has a fuzzer besides (fuzz/). MILLRACE_DAMAGED=60 changes that many bytes of each."""

    def damage(self, good, rng):
        """A name for what was done, and the bytes."""
        for share in (0, 0.3, 0.9, 0.999):
            yield f"cut at {share}", good[:int(len(good) * share)]
        yield "no text", bytes(range(256)) * 4
        yield "zeros", bytes(len(good))
        yield "twice", good + good
        yield "one long line", b"x" * 900_000
        for opened, closed in ((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"{%if x%}", b"{%endif%}")):
            yield f"deep {opened}", opened * 60_000 + b"1" + closed * 60_000
            values = [value for value in re.finditer(rb'(?<=: )([\d.]+|"[^"]*"|\[.*?\])', good[:100_000])]
            for value in rng.sample(values, min(len(values), 2)):
                yield f"deep {opened} at {value.start()}", good[:value.start()] + opened * 60_000 + b"1" + closed * 60_000 + good[value.end():]
        numbers = list(re.finditer(rb"\d+", good[:100_000]))
        for number in rng.sample(numbers, min(len(numbers), 2 * DAMAGED)):
            odd = rng.choice([b"-1", b"0", b"1e999", b"9" * 40, b"1e-400", b"null", b'""', b"[]", b"{}"])
            yield f"{odd} at {number.start()}", good[:number.start()] + odd + good[number.end():]
        for _ in range(DAMAGED):
            bad = bytearray(good)
            for _ in range(rng.choice([1, 1, 4, 30])):
                bad[rng.randrange(len(bad))] = rng.choice([0, 0x22, 0x5b, 0x7b, 0xff, rng.randrange(256)])
            yield "bytes changed", bytes(bad)

    def check(self, path, *words, env=None, good=None):
        """The command takes the file as it is, and ends well with whatever becomes of it."""
        path = pathlib.Path(path)
        good = path.read_bytes() if good is None else good
        rng = random.Random(len(good))
        path.write_bytes(good)
        self.ok(*words, env=env)
        for how, bad in self.damage(good, rng):
            path.write_bytes(bad)
            begin = time.monotonic()
            outcome = run(*words, env=env, timeout=60)
            with self.subTest(file=path.name, how=how, bytes=bad[:200]):
                self.assertIn(outcome.code, (0, 1, 2), outcome.err)
                errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
                self.assertEqual(len(errors), int(outcome.code != 0), outcome.err)
                self.assertLess(time.monotonic() - begin, 20)
                if not SANITIZED:
                    self.assertLess(outcome.peak_rss_bytes, 200_000_000)
        path.write_bytes(good)

    def home(self, **more):
        return {"HOME": self.folder.name, "XDG_CACHE_HOME": self.folder.name, "XDG_STATE_HOME": self.folder.name, **more}

    RATES = {"disk": 7e9, "ram": 2e10, "cpu_decode": 2e10, "cpu_prefill_macs": 1e11, "types": {"F16": {"decode": 5e9, "prompt": 4e9}}}

    def test_rates(self):
        path = self.file(json.dumps(self.RATES).encode(), "rates.json")
        self.check(path, "plan", DRAFT, "--rates", path)

    def test_plans(self):
        path = os.path.join(self.folder.name, "plan.json")
        self.ok("plan", DRAFT, "--ram", "8M", "--plan", path)
        self.check(path, "run", DRAFT, "--ram", "8M", "--plan", path, "-p", "x", "-n", "1", "--raw")

    def test_recipes_and_manifests(self):
        env = self.home(MILLRACE_MODELS=os.path.join(self.folder.name, "store"))
        recipe = f'FROM {DRAFT}\nPARAMETER temperature 0.5\nPARAMETER stop "END"\nSYSTEM """Be\nbrief."""\nTEMPLATE "{{{{ messages[0].content }}}}"\nMESSAGE user Hi\n'
        path = self.file(recipe.encode(), "Modelfile")
        self.check(path, "create", "made", "-f", path, env=env)
        self.ok("create", "made", "-f", path, env=env)
        manifest = os.path.join(self.folder.name, "store/manifests/-/made/latest.json")
        self.check(manifest, "show", "made", env=env)
        self.check(manifest, "list", env=env)

    def test_configuration(self):
        path = self.file(b"# what we serve\nram = 40M\nthreads = 1\nparallel = 2\nctx = 256\napi-key = k\n", "serve.conf")
        words = ("serve", "--config", path, "--host", "256.0.0.1")  # where nobody can listen
        good = pathlib.Path(path).read_bytes()
        for how, bad in self.damage(good, random.Random(1)):
            pathlib.Path(path).write_bytes(bad)
            with self.subTest(how=how, bytes=bad[:200]):
                self.refused(*words, says="", env=self.home())

    def test_clusters(self):
        hosts = [{"name": "a", "ram": "1G", "rates": self.RATES, "count": 3}]
        path = self.file(json.dumps({"hosts": hosts, "gbit_per_second": 10, "latency_ms": 0.1}).encode(), "cluster.json")
        self.check(path, "plan", DRAFT, "--cluster", path)

    def test_questions(self):
        path = self.file(b'{"prompt": "Hi", "answer": "Hello"}\n' * 3, "questions.jsonl")
        self.check(path, "eval", path, "-m", DRAFT, "-q")
        self.refused("eval", "/dev/zero", "-m", DRAFT, says="/dev/zero")

    def test_schemas(self):
        path = self.file(b'{"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}', "schema.json")
        self.check(path, "run", DRAFT, "--schema", path, "-p", "x", "-n", "4")

    def test_checkpoints(self):
        """What lies beside safetensors."""
        folder = pathlib.Path(self.folder.name) / "tiny"
        checkpoints.write_checkpoint(folder)
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", "model.safetensors"):
            self.check(folder / name, "convert", folder, "-o", os.path.join(self.folder.name, "out.gguf"), "-q")
        (folder / "chat_template.jinja").unlink()
        (folder / "tokenizer_config.json").unlink()
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
        self.check(folder / "chat_template.json", "convert", folder, "-o", os.path.join(self.folder.name, "out.gguf"), "-q")


class Outputs(InFolder):
    def test_what_is_no_file_is_not_replaced(self):
        """Written aside and put in place it would be a file from then on: for root a device, and for everybody."""
        pipe, text = os.path.join(self.folder.name, "pipe"), self.file(b"A fox found a lantern. " * 40, "text")
        os.mkfifo(pipe)
        folder = pathlib.Path(self.folder.name) / "tiny"
        checkpoints.write_checkpoint(folder)
        for words in (["quantize", DRAFT, pipe, "Q8_0"], ["convert", folder, "-o", pipe], ["pack", DEMO, "-o", pipe],
                      ["perplexity", DRAFT, "-f", text, "--ctx", "64", "--save-logits", pipe], ["imatrix", DRAFT, "-f", text, "--ctx", "64", "-o", pipe]):
            self.refused(*words, says="pipe: is no regular file")
            self.assertTrue(pathlib.Path(pipe).is_fifo(), words)


class Budgets(Case):
    def test_too_small_names_the_smallest_that_works(self):
        outcome = self.refused("run", DEMO, "--ram", "1M", "-p", "What is the capital of France?", says="--ram")
        smallest = re.search(r"--ram ([\d.]+ ?[kMG]?B?)", outcome.err).group(1).replace(" ", "")
        again = self.ok("run", DEMO, "--ram", smallest, "--temp", "0", "-p", "What is the capital of France?")
        self.assertIn("Paris", again.out)

    def test_flags_for_a_gpu_that_is_not_there_are_told(self):
        for flags in (["--vram", "4G"], ["--cpu-share", "50"], ["--pin", "0-1=ram"], ["--vram", "4G", "--isa", "plain"]):
            outcome = self.ok("run", DEMO, *flags, "--temp", "0", "-n", "2", "-p", "hi", env={"CUDA_VISIBLE_DEVICES": ""})
            self.assertIn("warning: computing on the CPU", outcome.err, flags)
        self.assertNotIn("warning", self.ok("run", DEMO, "--temp", "0", "-n", "2", "-p", "hi", env={"CUDA_VISIBLE_DEVICES": ""}).err)

    def test_words_that_are_off(self):
        self.refused("run", DEMO, "--ram", "lots", "-p", "x", says="lots")
        self.refused("run", DEMO, "--ram", "0", "-p", "x", says="--ram")
        self.refused("run", DEMO, "--storage", "tape", "-p", "x", says="tape")
        self.refused("run", DEMO, "--isa", "sse9", "-p", "x", says="sse9")
        for flag, value in (("--ctx", "-1"), ("--vram-experts", "some"), ("--cpu-share", "96"), ("--repeat-penalty", "0")):
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
