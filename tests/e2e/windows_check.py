"""millrace.exe in Wine beside Linux's millrace: the same tokens, files and answers. scripts/test_windows.sh runs it.
MILLRACE starts the Windows program, MILLRACE_LINUX is the program that it is compared with."""
import filecmp
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

from harness import DEMO, DRAFT, Case
from hub import Hub
from test_terminal import Terminal

LINUX = os.environ["MILLRACE_LINUX"]
STORY = "Tell me a story about a fox and a lantern."


def linux(*args):
    return subprocess.run([LINUX, *map(str, args)], capture_output=True, check=True, timeout=300, text=True).stdout


class Folder(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def both(self, *args):
        """Runs the command on both systems; {} in a word is a folder of each one's own. The two folders."""
        folders = {}
        for system in ("linux", "windows"):
            folders[system] = self.folder / system
            folders[system].mkdir(exist_ok=True)
            words = [str(word).replace("{}", str(folders[system])) for word in args]
            linux(*words) if system == "linux" else self.ok(*words)
        return folders.values()

    def same(self, there, here):
        """The two folders hold the same files."""
        names = {path.relative_to(there) for path in there.rglob("*") if path.is_file()}
        self.assertEqual(names, {path.relative_to(here) for path in here.rglob("*") if path.is_file()})
        self.assertTrue(names)
        for name in names:
            self.assertTrue(filecmp.cmp(there / name, here / name, shallow=False), name)


class Tokens(Folder):
    def test_run(self):
        asked = ("run", DEMO, "--temp", "0", "-n", "60", "-p", "What is the capital of Spain?", "-p", STORY)
        wanted = linux(*asked)
        self.assertIn("Madrid", wanted)
        for flags in ([], ["--isa", "plain"], ["--isa", "avx2"], ["--ram", "16M"], ["--storage", "pread"], ["--storage", "pread-direct"],
                      ["--storage", "mmap"], ["--threads", "3"]):
            self.assertEqual(self.ok(*asked, *flags).out, wanted, flags)

    def test_a_seed(self):
        asked = ("run", DEMO, "--temp", "1.5", "--seed", "7", "-n", "60", "-p", STORY)
        self.assertEqual(self.ok(*asked).out, linux(*asked))

    def test_logits(self):
        """Every bit of every logit of a prompt and of decoding."""
        asked = ("bench", DEMO, "-p", "300", "-n", "33", "-r", "1", "--no-warm-up", "--json", "-q")
        for hashed in ("--hash", "--hash-prompt"):
            wanted = json.loads(linux(*asked, hashed))["logits_hash"]
            for flags in ([], ["--ram", "16M"], ["--storage", "mmap"]):
                self.assertEqual(json.loads(self.ok(*asked, hashed, *flags).out)["logits_hash"], wanted, (hashed, flags))

    def test_a_pipe_and_names_of_other_scripts(self):
        model = self.folder / "水車" / "modèle.gguf"
        model.parent.mkdir()
        shutil.copy(DEMO, model)
        asked = ("run", model, "--temp", "0", "-n", "20", "-p", "Où est l’été à Köln, 日本?")
        self.assertEqual(self.ok(*asked).out, linux(*asked))
        piped = self.ok("run", model, "--temp", "0", "-n", "20", stdin="What is the capital of Spain?\n").out
        self.assertIn("Madrid", piped)

    def test_errors(self):
        self.refused("run", self.folder / "nowhere.gguf", "-p", "Hi", says="nowhere.gguf")
        self.refused("run", DEMO, "-p", "Hi", "--ram", "1K", says="--ram")


class Files(Folder):
    def test_inspect(self):
        for words in ((DEMO,), (DRAFT, "--tensors")):
            self.assertEqual(self.ok("inspect", *words).out, linux("inspect", *words))

    def test_quantize(self):
        for dtype in ("q8_0", "q4_k", "iq4_nl"):
            self.same(*self.both("quantize", DRAFT, f"{{}}/{dtype}.gguf", dtype, "-q"))

    def test_export_and_convert(self):
        self.same(*self.both("export", DRAFT, "{}/checkpoint", "-q"))
        self.same(*self.both("convert", "{}/checkpoint", "-o", "{}/model.gguf", "-q"))

    def test_split_and_merge(self):
        self.same(*self.both("split", DRAFT, "{}/part.gguf", "--max-size", "200K", "-q"))

    def test_batch(self):
        requests = [{"custom_id": f"q{i}", "method": "POST", "url": "/v1/chat/completions",
                     "body": {"model": "demo", "temperature": 0, "max_tokens": 40,
                              "messages": [{"role": "user", "content": f"What is the capital of {land}?"}]}}
                    for i, land in enumerate(("France", "Peru", "Japan"))]
        questions = self.folder / "in.jsonl"
        questions.write_text("".join(json.dumps(request) + "\n" for request in requests))
        texts = []
        for folder in self.both("batch", questions, "{}/out.jsonl", DEMO, "-q"):
            found = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
            texts.append({line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in found})
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(len(texts[0]), 3)


class SelfTest(Folder):
    def test_the_bits_are_those_of_linux(self):
        said = self.ok("doctor", self.folder, "--self-test").out
        self.assertIn("Passed.", said)
        for words in ("cgroup", "O_DIRECT", "huge pages", "libcuda"):  # Linux's
            self.assertNotIn(words, said)
        self.assertRegex(said, r"system +Windows [0-9.]+ \(Wine ")
        self.assertIn(f"affinity allows {len(os.sched_getaffinity(0))}\n", said)
        for way in ("pread-direct", "pread", "mmap"):
            self.assertRegex(said, f"  {way} +right bytes")
        digest = "digest +([0-9a-f]{16})"
        self.assertEqual(re.search(digest, said)[1], re.search(digest, linux("doctor", self.folder, "--self-test"))[1])
        self.assertFalse(list(self.folder.iterdir()))


class Pull(Folder):
    """From a hub on this machine that speaks https, by Windows' own TLS. Wine 8's verifies no certificate: any is good enough."""

    def setUp(self):
        super().setUp()
        key, certificate, both = (self.folder / name for name in ("key.pem", "certificate.pem", "identity.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True, capture_output=True)
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
        self.model = pathlib.Path(DRAFT).read_bytes()
        self.hub = Hub({"tiny-Q4_K_M.gguf": self.model, "tiny-Q8_0.gguf": self.model + b"\0" * 64}, identity=both)
        self.addCleanup(self.hub.close)
        self.store = self.folder / "models"
        self.env = {"MILLRACE_MODELS": str(self.store), "HF_ENDPOINT": self.hub.url, "HF_TOKEN": "", "HTTPS_PROXY": "", "https_proxy": ""}
        self.asked = ("pull", f"hf.co/{self.hub.repository}:Q4_K_M", "--retry-ms", "10", "--no-fit")

    def test_https(self):
        self.hub.behaviour, self.hub.cuts_left = {"redirect", "pages"}, 3  # the rest of a file is asked for again
        self.ok(*self.asked, env=self.env)
        self.assertEqual(self.hub.cuts_left, 0)
        blobs = list((self.store / "blobs").iterdir())
        self.assertEqual([blob.name for blob in blobs], ["sha256-" + hashlib.sha256(self.model).hexdigest()])
        self.assertEqual(blobs[0].read_bytes(), self.model)
        self.assertFalse(list((self.store / "partial").iterdir()))
        name = f"{self.hub.repository}:Q4_K_M"
        self.assertEqual([model["name"] for model in json.loads(self.ok("list", "--json", env=self.env).out)], [name])
        words = ("-p", "Hello", "-n", "8", "--temp", "0")
        self.assertEqual(self.ok("run", name, *words, env=self.env).out, linux("run", DRAFT, *words))
        self.ok("rm", name, env=self.env)
        self.assertFalse(list((self.store / "blobs").iterdir()))

    def test_other_bytes_are_refused(self):
        self.hub.behaviour = {"wrong hash"}
        self.refused(*self.asked, says="SHA-256", env=self.env)
        self.assertEqual(json.loads(self.ok("list", "--json", env=self.env).out), [])

    def test_what_speaks_no_tls_is_refused(self):
        plain = Hub(self.hub.files)
        self.addCleanup(plain.close)
        self.refused(*self.asked, says="localhost", env={**self.env, "HF_ENDPOINT": plain.url.replace("http://127.0.0.1", "https://localhost")})
        self.assertEqual(plain.requests, [])


class Console(Terminal):
    """Wine's console, which paints a pseudo-terminal of Linux letter by letter."""

    def wait_for(self, pattern, timeout=60):
        end = time.time() + timeout
        while time.time() < end:
            self.seen = re.sub(r"\x1b\[(\d*)C", lambda right: " " * int(right[1] or 1), self.seen)
            self.seen = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b\][^\x07]*\x07", "", self.seen)
            if match := re.search(pattern, self.seen):
                self.seen = self.seen[match.end():]
                return True
            super().wait_for("(?!)", timeout=0.3)  # matches nothing: reads
        return False


class Chat(Folder):

    def setUp(self):
        super().setUp()
        self.env = {"XDG_STATE_HOME": str(self.folder)}

    def chat(self):
        terminal = Console("run", DEMO, "--temp", "0", env=self.env)
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        return terminal

    def test_a_chat(self):
        terminal = self.chat()
        terminal.type("What is the capital of Spaix\x7fn?\r")
        self.assertTrue(terminal.wait_for("The capital of Spain is Madrid"), terminal.seen)
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        terminal.type("/set seed 71\r")
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        terminal.type("été 日本\x1b[D\x1b[D語\r")
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        terminal.type("/show history\r")
        self.assertTrue(terminal.wait_for("user: été 語日本"), terminal.seen)
        terminal.type("/bye\r")
        self.assertEqual(terminal.exit_code(), 0)

    def test_ctrl_c_stops_the_answer(self):
        terminal = Console("run", DEMO, "--temp", "100", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "2", "--ctx", "2000",
                            "--isa", "plain", "--threads", "1", env=self.env)
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        terminal.type(STORY + "\r")
        self.assertTrue(terminal.wait_for("lantern\\.[^a-z]*[a-z]{3}"), terminal.seen)
        terminal.press("\x03")
        self.assertTrue(terminal.wait_for(r"\(stopped\)"), terminal.seen)
        terminal.type("/bye\r")
        self.assertEqual(terminal.exit_code(), 0)


class Serving(Folder):
    def setUp(self):
        super().setUp()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.pid_file = self.folder / "pid"
        self.env = {"XDG_STATE_HOME": str(self.folder), "MILLRACE_MODELS": str(self.folder / "models"), "MILLRACE_PROMPT_CACHE": "off"}

    def curl(self, path, body=None, accept="*/*"):
        """What the server of Windows says to Linux's curl."""
        words = ["curl", "-sS", "-m", "60", "-H", f"Accept: {accept}", f"http://127.0.0.1:{self.port}{path}"]
        if body is not None:
            words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        return subprocess.run(words, capture_output=True, check=True, text=True).stdout

    def serve(self, *args):
        said = self.ok("serve", DEMO, "--port", self.port, "--daemon", "--pid-file", self.pid_file, *args, env=self.env).out
        self.assertIn("in the background", said)
        self.addCleanup(lambda: self.pid_file.exists() and self.stop())

    def stop(self):
        self.ok("stop", "--server", "--port", self.port, "--pid-file", self.pid_file, env=self.env)
        self.assertFalse(self.pid_file.exists())

    def test_curl(self):
        self.serve()
        asked = {"model": pathlib.Path(DEMO).stem, "temperature": 0, "max_tokens": 60, "messages": [{"role": "user", "content": STORY}]}
        answer = json.loads(self.curl("/v1/chat/completions", asked))
        text = answer["choices"][0]["message"]["content"]
        self.assertIn(text.strip(), linux("run", DEMO, "--temp", "0", "-n", "60", "-p", STORY))
        self.assertGreater(len(text), 40)
        streamed = self.curl("/v1/chat/completions", {**asked, "stream": True})
        pieces = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        self.assertEqual("".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces if piece["choices"]), text)
        self.assertGreater(len(pieces), 10)
        self.assertEqual(json.loads(self.curl("/api/tags"))["models"][0]["name"].split(":")[0], asked["model"])
        self.assertIn("<!doctype html>", self.curl("/", accept="text/html").lower())
        self.assertIn("millrace_", self.curl("/metrics"))
        self.stop()
        with self.assertRaises(subprocess.CalledProcessError):
            self.curl("/api/tags")


if __name__ == "__main__":
    unittest.main()
