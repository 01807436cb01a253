"""A first hour with the program: slips of the fingers, other engines' words, an 80-column terminal, models by short names."""
import fcntl
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import tempfile
import termios
import time
import unittest
import urllib.request

from harness import DEMO, DRAFT, MILLRACE, Case, run
from hub import Hub
from serving import Server

COLUMNS = 80


def terminal_lines(*args, columns=COLUMNS, typing=b"", env=None):
    """What a terminal of so many columns gets to show."""
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.environ.update({"TERM": "xterm", **(env or {})})
        os.execv(MILLRACE, [MILLRACE, *args])
    seen = b""
    try:
        if typing:
            os.write(fd, typing)
        while piece := os.read(fd, 65536):
            seen += piece
    except OSError:
        pass
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen.decode(errors="replace")


class Words(Case):
    def test_near_commands(self):
        for typed, meant in (("rn", "run"), ("lst", "list"), ("lis", "list"), ("rnu", "run"), ("pul", "pull"), ("srve", "serve"),
                             ("inspcet", "inspect"), ("chat", "run"), ("download", "pull"), ("remove", "rm")):
            self.refused(typed, says=[f"unknown command '{typed}'", f"'millrace {meant}'"])
        self.refused("foo", says="'millrace --help'")
        self.assertNotIn("did you mean", run("foo").err)

    def test_near_options(self):
        for typed, meant in (("--tmp", "--temp"), ("--sead", "--seed"), ("--thraeds", "--threads"), ("--max-token", "--max-tokens")):
            self.refused("run", DEMO, typed, "1", says=[f"unknown option {typed}", f"did you mean {meant}?"])

    def test_options_of_other_engines(self):
        for typed, meant in (("--temperature", "--temp"), ("--ngl", "--vram"), ("-ngl", "--vram"), ("--n-gpu-layers", "--vram"),
                             ("--num-ctx", "--ctx"), ("--num_ctx", "--ctx"), ("--ctx-size", "--ctx"), ("--n-predict", "--max-tokens"),
                             ("--repetition-penalty", "--repeat-penalty"), ("-ctk", "--kv"), ("-fa", "leave it out"), ("-hf", "hf.co/")):
            self.refused("run", DEMO, typed, "1", says=["unknown option", f"use {meant}" if meant[0] == "-" else meant])
        self.refused("run", DEMO, "--temperature=0.5", says="use --temp")
        self.refused("list", "--temperature", "1", says="has no --temp")

    def test_twice(self):
        self.refused("bench", "-m", DEMO, "-m", DEMO, says="the model is given twice")
        self.refused("run", DEMO, "--temp", "1", "--temp", "2", says="--temp is given more than once")
        self.refused("plan", says="needs a model")
        self.refused("run", DEMO, "--temp", says="--temp needs a value")

    def test_a_schema_on_the_command_line(self):
        schema = '{"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}'
        said = json.loads(self.ok("run", DEMO, "-p", "Hi", "--temp", "0", "-n", "60", "--schema", schema).out)
        self.assertIsInstance(said["a"], int)

    def test_brackets_are_text(self):
        """CLI11 takes [a, b] for a list of two values, wherever an option takes several."""
        for text in ("[INST] as text, and [/INST]", "[]", "[1, 2]", "a]", "[[b]]", "]\x01"):
            ids = self.ok("tokenize", "-m", DEMO, text).out
            self.assertEqual(ids, run("tokenize", "-m", DEMO, stdin=text + "\n").out, text)
        self.refused("run", DEMO, "-p", "Hi", "--tmp=[1]", says="unknown option --tmp")
        self.refused("inspect", DEMO, "[extra]", says="[extra]")
        said = self.ok("run", DEMO, "-p", "Hi", "--grammar", 'root ::= "x[a]y"', "--stop", "[a]").out
        self.assertEqual(said.strip(), "x")

    def test_times_in_the_log_have_milliseconds(self):
        lines = self.ok("run", DEMO, "-p", "Hi", "-n", "1", "-v").err.splitlines()
        times = [line for line in lines if re.match(r"\d\d:\d\d:\d\d", line)]
        self.assertTrue(times, lines)
        for line in times:
            self.assertRegex(line, r"^\d\d:\d\d:\d\d\.\d{3} ")

    def test_a_folder_in_place_of_a_model(self):
        with tempfile.TemporaryDirectory() as folder:
            for verb in (("inspect",), ("run", "-p", "a", "-m"), ("bench",), ("perplexity", "-f", __file__, "-m")):
                self.assertNotIn(".gguf file inside", self.refused(*verb, folder, says="give a model's .gguf file").err)
            pathlib.Path(folder, "config.json").write_text("{}")
            self.refused("inspect", folder, says="millrace convert")
            os.symlink(DEMO, pathlib.Path(folder, "small.gguf"))
            self.refused("inspect", folder, says="give small.gguf inside it")

    def test_rounding_twice_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = (pathlib.Path(folder, name) for name in ("bf16.gguf", "q4.gguf"))
            self.ok("quantize", DEMO, first, "BF16")
            self.assertNotIn("warning", self.ok("quantize", first, second, "Q8_0").err)
            self.assertEqual(self.ok("quantize", second, first, "Q4_0").err.count("quantized already"), 1)
            self.assertEqual(self.ok("quantize", second, first, "Q4_0", "-q").err, "")

    def test_a_plan_says_what_would_make_it_faster(self):
        self.assertRegex(self.ok("plan", DEMO, "--ram", "6M").out, r"faster: with 8\.\d+ MB more memory \(--ram 14\.\dM\), no weights would be read from the disk")
        self.assertNotIn("faster:", self.ok("plan", DEMO, "--ram", "100M").out)


class Columns(Case):
    def test_help_fits(self):
        verbs = re.findall(r"^  (?!millrace )([a-z]+)", self.ok("--help").out, re.M)
        self.assertGreater(len(verbs), 20)
        for words in [("--help",)] + [(verb, "--help-all") for verb in verbs]:
            for line in self.ok(*words).out.splitlines():
                self.assertLessEqual(len(line), COLUMNS, (words, line))

    def test_help_begins_with_examples_that_work(self):
        out = self.ok("--help").out
        examples = re.findall(r"^  millrace ([a-z]+) ", out, re.M)
        self.assertEqual(examples, ["doctor", "plan", "run", "serve"])
        self.assertLess(out.index("Examples:"), out.index("Options:"))

    def test_examples_come_before_the_flags_and_name_those_that_exist(self):
        found = 0
        verbs = re.findall(r"^  (?!millrace )([a-z][a-z-]*)", self.ok("--help").out, re.M)
        self.assertIn("export-lora", verbs)
        for verb in verbs:
            whole = self.ok(verb, "--help-all").out
            shown = re.search(r"^Usage: .*\n\nExamples:\n((?:  .*\n)+)\n[PO]", whole, re.M)
            self.assertIsNotNone(shown, whole)
            for line in shown.group(1).splitlines():
                command = re.search(rf"millrace {verb}\b(?!-)(.*?)(?:   |$)", line)
                self.assertIsNotNone(command, line)
                for flag in re.findall(r"(?<!\S)--?[a-z][a-z-]*", command[1]):
                    self.assertRegex(whole.partition("Options:")[2], rf"(?m)^  (?:-\w,)?{flag}\b", line)
                    found += 1
        self.assertGreater(found, 10)

    def test_a_progress_bar_stays_on_its_line(self):
        with tempfile.TemporaryDirectory() as folder:
            hub = Hub({"tiny-Q4_K_M.gguf": pathlib.Path(DRAFT).read_bytes()})
            self.addCleanup(hub.close)
            hub.bytes_per_second = 2 * pathlib.Path(DRAFT).stat().st_size // 7
            env = {"MILLRACE_MODELS": folder, "HF_ENDPOINT": hub.url, "http_proxy": ""}
            for columns in (80, 40):
                code, seen = terminal_lines("pull", "hf.co/someone/tiny-GGUF", "--no-fit", "--connections", "1", columns=columns, env=env)
                self.assertEqual(code, 0, seen)
                bars = [bar for bar in re.findall(r"\r\x1b\[K([^\r\n\x1b]+)", seen) if "%" in bar]
                self.assertGreater(len(bars), 1, seen)
                for bar in bars:
                    self.assertLess(len(bar), columns, bar)
                self.ok("rm", "someone/tiny-GGUF", env=env)

    def test_a_chat_breaks_between_words(self):
        ask = ("run", DEMO, "--temp", "0", "-n", "60", "-q", "-p", "Tell me a story about a fox and a lantern.")
        whole = self.ok(*ask).out
        code, seen = terminal_lines(*ask, columns=30)
        self.assertEqual(code, 0)
        lines = seen.replace("\r\n", "\n").split("\n")
        self.assertGreater(len(lines), 3, seen)
        for line in lines:
            self.assertLessEqual(len(line), 30, line)
        self.assertEqual(seen.split(), whole.split())


class Batch(Case):
    def test_prompts_and_plain_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            source, out = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
            source.write_text('What is the capital of Spain?\n\n{"prompt": "What is the capital of France?", "max_tokens": 20}\n')
            outcome = self.ok("batch", source, out, DEMO)
            said = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
                    for line in map(json.loads, out.read_text().splitlines())}
            self.assertEqual(sorted(said), ["line-1", "line-3"])
            self.assertIn("2 of 2 requests are answered already", self.ok("batch", source, out, DEMO).err)

    def test_every_line_failed(self):
        with tempfile.TemporaryDirectory() as folder:
            source, out = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
            source.write_text('{"custom_id": "torn"\n{"prompt": "Hi", "temperature": 9}\n')
            self.refused("batch", source, out, DEMO, "-q", says=["every request failed", "line 1"])


class Hubs(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.store = pathlib.Path(folder.name)
        self.model = pathlib.Path(DRAFT).read_bytes()
        self.hub = Hub({"tiny-Q4_K_M.gguf": self.model, "mmproj-tiny-f16.gguf": b"x" * 64})
        self.addCleanup(self.hub.close)
        self.env = {"MILLRACE_MODELS": folder.name, "HF_ENDPOINT": self.hub.url, "HF_TOKEN": "", "http_proxy": ""}

    def test_plan_reads_the_header_alone(self):
        self.hub.files["tiny-Q4_K_M.gguf"] = self.model + b"\0" * 40_000_000  # what lies behind the tensors is not read either
        for name in ("hf.co/someone/tiny-GGUF:Q4_K_M", "https://huggingface.co/someone/tiny-GGUF/resolve/main/tiny-Q4_K_M.gguf",
                     "hf.co/someone/tiny-GGUF/tiny-Q4_K_M.gguf", "someone/tiny-GGUF"):
            self.assertIn("context: up to", self.ok("plan", name, "--ram", "100M", env=self.env).out, name)
        self.assertLess(self.hub.bytes_sent, 40_000_000)
        self.assertEqual(self.ok("list", "--json", env=self.env).out.strip(), "[]")
        self.assertEqual([*(self.store / "partial").iterdir()], [])
        self.refused("plan", "no-such-model", says="not found", env=self.env)

    def test_aliases(self):
        self.refused("run", "llama3.2:1b", "-p", "Hi", says=["millrace pull llama3.2:1b"], env=self.env)
        (self.store / "aliases").write_text("# ours\ntiny someone/tiny-GGUF:Q4_K_M\n")
        self.assertIn("context: up to", self.ok("plan", "tiny", env=self.env).out)
        outcome = self.ok("pull", "tiny", "--no-fit", env=self.env)
        self.assertIn("mmproj", outcome.err)
        self.ok("run", "tiny", "-p", "Hi", "-n", "2", env=self.env)
        shown = self.ok("show", "tiny", env=self.env).out
        for words in ("architecture", "parameters", "context", "quantization", "Capabilities"):
            self.assertIn(words, shown)
        self.assertLess(len(shown.splitlines()), 24)
        out = self.store / "small.gguf"
        self.assertIn("of weights", self.ok("quantize", "tiny", out, "Q3_K_M", env=self.env).out)
        self.assertLess(out.stat().st_size, len(self.model))
        self.assertIn("part.gguf", self.ok("split", "tiny", self.store / "part.gguf", "--max-size", "1G", env=self.env).out)

    def test_run_says_what_fetches_and_fetches(self):
        name = "hf.co/someone/tiny-GGUF/tiny-Q4_K_M.gguf"
        self.refused("run", name, "-p", "Hi", says=f"millrace pull {name}", env=self.env)
        code, seen = terminal_lines("run", name, "-p", "Hi", "-n", "2", typing=b"y\n", env=self.env)
        self.assertEqual(code, 0, seen)
        self.assertIn("Fetch it now?", seen)


class Unnamed(Case):
    def test_the_model_used_last_answers(self):
        ask = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
        with tempfile.TemporaryDirectory() as store, Server("--models", DEMO, "--models", DRAFT, env={"MILLRACE_MODELS": store}) as server:
            self.assertEqual(server.json("POST", "/v1/chat/completions", ask)[0], 400)  # which of the two?
            name = pathlib.Path(DEMO).stem
            self.assertEqual(server.json("POST", "/v1/chat/completions", {**ask, "model": name})[0], 200)
            self.assertEqual(server.json("POST", "/api/generate", {"model": name, "keep_alive": 0, "stream": False})[0], 200)
            until = time.monotonic() + 10  # the answer before may still be held by its connection's thread
            while server.json("GET", "/api/ps")[1]["models"] and time.monotonic() < until:
                time.sleep(0.05)
            self.assertEqual(server.json("GET", "/api/ps")[1]["models"], [])
            status, answer = server.json("POST", "/v1/chat/completions", ask)
            self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, "The capital of France is Paris."))


class Page(Case):
    def test_serve_names_the_page(self):
        process = subprocess.Popen([MILLRACE, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
        try:
            lines = [process.stdout.readline() for _ in range(2)]
            self.assertRegex(lines[1], r"Open http://127\.0\.0\.1:\d+/ in a browser")
            asked = urllib.request.Request(lines[1].split()[1], headers={"Accept": "text/html"})
            with urllib.request.urlopen(asked, timeout=20) as page:
                self.assertIn(b'rel="icon"', page.read())
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


if __name__ == "__main__":
    unittest.main()
