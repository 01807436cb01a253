"""What a client of the network can ask for, and what it cannot: names, what is stored, sizes."""
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from harness import DEMO, DRAFT, MILLRACE, SANITIZED, Bare, Case, run
from serving import Server

MODEL = "demo-moe-q4_k_m"


class Stores(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.env = {"MILLRACE_MODELS": os.path.join(self.folder, "store"), "HOME": self.folder}
        self.server = Server("--models", DEMO, "--threads", "1", env=self.env)
        self.addCleanup(self.server.__exit__)

    def post(self, path, body, method="POST"):
        status, _, content = self.server.request(method, path, body)
        return status, content.decode()

    def test_paths_are_no_names(self):
        """The same answer whether a file lies there or not."""
        private = os.path.join(self.folder, "private.gguf")
        shutil.copy(DRAFT, private)
        self.assertEqual(self.post("/api/copy", {"source": MODEL, "destination": "dir/private.gguf"})[0], 400)
        os.chdir(self.folder)
        for there, gone in ((private, private.replace("private", "nothing")), (DEMO, DEMO + "x"), ("private.gguf", "nothing.gguf"),
                            ("./private.gguf", "./nothing.gguf"), ("../" * 20 + "etc/passwd", "../" * 20 + "etc/nothing")):
            for method, path, field in (("POST", "/api/show", "model"), ("DELETE", "/api/delete", "model"), ("POST", "/api/copy", "source"),
                                        ("POST", "/api/create", "from"), ("POST", "/api/chat", "model"), ("POST", "/api/generate", "model"),
                                        ("POST", "/api/embed", "model"), ("POST", "/v1/chat/completions", "model"), ("POST", "/v1/messages", "model"),
                                        ("POST", "/v1/responses", "model"), ("POST", "/tokenize", "model")):
                answers = []
                for name in (there, gone):
                    body = {"model": "new", "destination": "new", "messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x",
                            "content": "x", "max_tokens": 1, "stream": False, field: name}
                    if path == "/v1/responses":
                        del body["prompt"]  # one that is kept, which is refused
                    status, content = self.post(path, body, method)
                    answers.append((status, content.replace(name, "NAME").replace(pathlib.Path(name).name, "NAME")))
                self.assertEqual(answers[0][0], 404, (path, there, answers))
                self.assertEqual(answers[0], answers[1], (path, there))
        self.assertEqual(self.post("/api/create", {"model": "new", "stream": False, "modelfile": f"FROM {private}"})[0], 404)
        self.assertEqual(self.server.json("GET", "/api/tags")[1]["models"].__len__(), 1)

    def test_what_is_stored_is_checked(self):
        for bad, says in (({"messages": [7]}, "messages"), ({"messages": {}}, "messages"), ({"messages": [{"role": "user"}]}, "messages"),
                          ({"parameters": 7}, "parameters"), ({"parameters": {"temperature": "hot"}}, "temperature"),
                          ({"parameters": {"top_p": 7}}, "top_p"), ({"parameters": {"num_ctx": 1 << 62}}, "num_ctx"),
                          ({"parameters": {"nonsense": 1}}, "nonsense"), ({"template": "{% if messages %}"}, "TEMPLATE"),
                          ({"modelfile": f"FROM {MODEL}\nPARAMETER temperature nan"}, "temperature")):
            status, content = self.post("/api/create", {"model": "bad", "from": MODEL, "stream": False, **bad})
            self.assertEqual(status // 100, 4, (bad, content))
            self.assertIn(says, content)
        self.assertEqual(self.post("/api/show", {"model": "bad"})[0], 404)
        good = {"model": "good", "from": MODEL, "stream": False, "parameters": {"temperature": 0, "stop": "END", "num_ctx": 256},
                "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
        self.assertEqual(self.post("/api/create", good)[0], 200)
        ask = {"model": "good", "messages": [{"role": "user", "content": "What is the capital of France?"}], "stream": False}
        self.assertEqual(self.post("/api/chat", ask)[0], 200)
        self.assertEqual(self.post("/api/copy", {"source": "good", "destination": "better"})[0], 200)
        self.assertEqual(self.post("/api/delete", {"model": "good"}, "DELETE")[0], 200)

    def test_what_is_stored_can_be_removed(self):
        for name in ("first", "second"):
            self.assertEqual(self.post("/api/create", {"model": name, "from": MODEL, "stream": False})[0], 200)
            manifest = pathlib.Path(self.env["MILLRACE_MODELS"], "manifests/-", name, "latest.json")
            content = json.loads(manifest.read_text())
            manifest.write_text(json.dumps({**content, "messages": [7]}) if name == "first" else "{")
        self.assertEqual(self.post("/api/delete", {"model": "first"}, "DELETE")[0], 200)
        self.assertEqual(self.post("/api/show", {"model": "first"})[0], 404)
        self.refused("show", "second", says="second", env=self.env)
        self.ok("rm", "second", env=self.env)
        self.assertNotIn("second", self.ok("list", env=self.env).out)

    def test_who_waits_for_a_busy_model_to_go_goes_on_when_it_has_gone(self):
        """The model is told to go while it works: the next request has it loaded anew, once that work is done."""
        with Server("--models", DEMO, "--threads", "1", "--ram", "16M", "-c", "2048", env=self.env) as self.server:
            for _ in range(4):
                busy = self.server.stream("/v1/completions", {"model": MODEL, "prompt": "a", "stream": True, "max_tokens": 1900, "ignore_eos": True})
                busy.readline()
                self.assertEqual(self.post("/api/generate", {"model": MODEL, "keep_alive": 0, "stream": False})[0], 200)
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    waiting = pool.submit(self.post, "/tokenize", {"model": MODEL, "content": "a"})
                    time.sleep(0.3)
                    busy.connection.close()
                    begin = time.monotonic()
                    self.assertEqual(waiting.result()[0], 200)
                    self.assertLess(time.monotonic() - begin, 15)


class Http(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.server = Server("--models", DEMO, "--threads", "1", "--api-key", "key", env={"MILLRACE_MODELS": cls.folder.name})
        cls.addClassCleanup(cls.server.__exit__)

    def raw(self, head, body=b""):
        """The status of the first answer, and all bytes until the server closes or says no more."""
        with socket.create_connection((self.server.host, self.server.port), timeout=5) as client:
            client.sendall(("\r\n".join(head) + "\r\n\r\n").encode() + body)
            data = b""
            try:
                while piece := client.recv(65536):
                    data += piece
                    head_end = data.find(b"\r\n\r\n")
                    length = re.search(rb"(?i)content-length: (\d+)", data[:head_end]) if head_end >= 0 else None
                    if length and len(data) >= head_end + 4 + int(length.group(1)):
                        break
            except TimeoutError:
                pass
        return int(data.split(b" ")[1]) if data.startswith(b"HTTP/1.1 ") else 0, data

    def test_where_a_body_ends_is_said_once(self):
        body = b'{"model": "x", "messages": []}'
        good = f"Content-Length: {len(body)}"
        for lines, status in (([], 411), ([good, good], 400), ([good, "Content-Length: 3"], 400), ([good, "Transfer-Encoding: chunked"], 400),
                              ([f"Content-Length: +{len(body)}"], 400), ([f"Content-Length: {len(body)}, {len(body)}"], 400),
                              (["Content-Length: -1"], 400), (["Content-Length: 0x10"], 400), (["Content-Length:"], 400),
                              (["Content-Length: 99999999999999999999999"], 400), ([f"Content-Length : {len(body)}"], 400),
                              (["Transfer-Encoding: gzip"], 400), (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 400),
                              ([good], 404), ([good, "Host: localhost"], 400)):
            for method in ("POST", "DELETE"):
                path = "/api/chat" if method == "POST" else "/api/delete"
                begin = time.monotonic()
                code, data = self.raw([f"{method} {path} HTTP/1.1", "Host: localhost", "Authorization: bearer key", *lines], body)
                # A DELETE that tells no length has no body; what it should delete is not said then.
                self.assertEqual(code, 400 if method == "DELETE" and status == 411 else status, (method, lines, data))
                self.assertLess(time.monotonic() - begin, 4, lines)

    def test_headers_are_bounded(self):
        line = "X: " + "y" * 7000
        for lines, status in ((["X: y"] * 90, 200), ([line] * 4, 200), (["X: y"] * 100, 431), ([line] * 5, 431)):
            code, data = self.raw(["GET /health HTTP/1.1", "Host: localhost", *lines])
            self.assertEqual(code, status, data[:300])
            if status == 431:
                self.assertIn(b"more than 100 lines or 32768 bytes", data)

    def test_a_body_that_nobody_reads_is_no_request(self):
        inner = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.create_connection((self.server.host, self.server.port), timeout=5) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(inner), inner))
            client.settimeout(3)
            data = b""
            while piece := client.recv(65536):
                data += piece
        self.assertEqual(data.count(b"HTTP/1.1 "), 1, data)

    def test_ranges_do_not_multiply(self):
        whole = self.server.request("GET", "/page/main.js")[2]
        for ranges in ("0-", ",".join(["0-"] * 2600), "5-9", "0-0,1-1"):
            status, _, content = self.server.request("GET", "/page/main.js", headers={"Range": "bytes=" + ranges})
            if status != 416 and status != 400:
                self.assertEqual((status, content), (200, whole), ranges[:20])
            self.assertLessEqual(len(content), len(whole))

    def test_an_answer_is_compressed_only_where_that_is_wanted(self):
        for wanted, coding in ((None, None), ("gzip", "gzip"), ("GZIP", "gzip"), ("gzip;q=0", None), ("gzip; q=0.0, deflate", None),
                               ("br;q=0, *", "gzip"), ("*;q=0", None), ("identity", None), ("gzip ;q=0.5, br; q=0", "gzip")):
            status, headers, _ = self.server.request("GET", "/v1/models", headers={"X-Api-Key": "key", **({"Accept-Encoding": wanted} if wanted else {})})
            self.assertEqual((status, headers.get("content-encoding")), (200, coding), wanted)

    def test_hosts(self):
        for host, code in (("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:1", 200), ("[::1]:1", 200), ("[::1]", 200), ("evil.com", 403),
                           ("evil.com:1:2", 403), ("evil.com:1", 403), ("[::1]evil.com", 403), ("[evil.com]", 403), ("localhost:x", 403),
                           (":80", 403), ("a:b", 403), ("[::1", 403)):
            self.assertEqual(self.raw(["GET /health HTTP/1.1", f"Host: {host}"])[0], code, host)

    def test_the_scheme_of_a_key_has_no_case(self):
        for scheme, code in (("Bearer", 200), ("bearer", 200), ("BEARER", 200), ("Basic", 401)):
            self.assertEqual(self.server.request("GET", "/api/tags", headers={"Authorization": f"{scheme} key"})[0], code)

    def test_a_get_loads_nothing(self):
        key = {"Authorization": "Bearer key"}
        for path in (f"/props?model={MODEL}", f"/slots?model={MODEL}", "/props", "/slots", "/metrics", "/api/tags", "/v1/models", "/api/millrace/live"):
            self.assertEqual(self.server.request("GET", path, headers=key)[0], 200, path)
        self.assertEqual(self.server.json("GET", f"/props?model={MODEL}", headers=key)[1]["is_loaded"], False)
        self.assertEqual(self.server.json("GET", "/api/ps", headers=key)[1]["models"], [])
        self.assertEqual(self.server.request("GET", "/props?model=nothing", headers=key)[0], 404)


class Files(Case):
    def test_a_pid_file_follows_no_link(self):
        with tempfile.TemporaryDirectory() as folder:
            target, link = os.path.join(folder, "target"), os.path.join(folder, "pid")
            pathlib.Path(target).write_text("mine")
            os.symlink(target, link)
            with Server("--pid-file", link) as server:
                self.assertEqual(pathlib.Path(target).read_text(), "mine")
                self.assertEqual(int(pathlib.Path(link).read_text()), server.process.pid)
                self.assertFalse(os.path.islink(link))

    def test_output_that_nobody_takes_is_a_failure(self):
        for args in (["inspect", DEMO], ["inspect", DEMO, "--tensors", "--whole"], ["list"], ["plan", DEMO], ["tokenize", DEMO, "x"],
                     ["bench", DEMO, "-p", "4", "-n", "2", "-r", "1"], ["show", DEMO], ["embed", DEMO, "x"], ["--version"], ["bench", "--help"]):
            with open("/dev/full", "w") as full:
                ended = subprocess.run([MILLRACE, *args], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(ended.returncode, 1, (args, ended.stderr))
            self.assertIn("error: cannot write the output", ended.stderr, args)

    def test_plans_and_rates_are_bounded_and_kept(self):
        self.refused("plan", DEMO, "--rates", "/dev/zero", says="/dev/zero")
        self.refused("plan", DEMO, "--plan", "/dev/zero", says="/dev/zero")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
            ended = subprocess.run([MILLRACE, "plan", DEMO, "--plan", path], preexec_fn=small, capture_output=True, text=True)
            self.assertEqual(ended.returncode, 1, ended.stderr)
            self.assertEqual(os.listdir(folder), [])
            self.ok("plan", DEMO, "--plan", path)
            self.ok("plan", DEMO, "--plan", path)


class Input(Case):
    """Standard input that has no end, or no line's end."""

    def endless(self, source, *args, says, ram=None):
        """One line of error, within the cap."""
        bare = Bare().peak_bytes
        with subprocess.Popen(source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as feeder, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen([MILLRACE, *args], stdin=feeder.stdout, stdout=subprocess.DEVNULL, stderr=err)
            feeder.stdout.close()
            peak, status = 0, pathlib.Path(f"/proc/{process.pid}/status")
            while process.poll() is None:
                held = re.search(r"Name:\s+millrace\n.*VmHWM:\s+(\d+)", status.read_text(), re.S)  # no longer what Python held
                peak = int(held.group(1)) * 1024 if held else peak
                time.sleep(0.001)
            feeder.kill()
            err.seek(0)
            lines = err.read().splitlines()
        self.assertEqual((process.returncode, len(lines)), (2, 1), (args, lines))
        self.assertIn(says, lines[0])
        if ram and not SANITIZED:
            self.assertTrue(0 < peak < ram + bare, (args, peak, bare))

    def test_it_ends_with_a_word(self):
        for source, args, says in ((["yes"], ["run", DEMO, "-q", "--ram", "24M"], "standard input has more than 3.00 MB"),
                                   (["cat", "/dev/zero"], ["embed", DEMO, "-q", "--ram", "24M"], "a line of standard input has more than 3.00 MB"),
                                   (["yes"], ["tokenize", DEMO, "--whole"], "standard input has more than 64.0 MB"),
                                   (["cat", "/dev/zero"], ["tokenize", DEMO], "a line of standard input has more than 64.0 MB")):
            self.endless(source, *args, says=says, ram=24_000_000 if "--ram" in args else None)

    def test_a_reader_of_lines_takes_any_number(self):
        lines = self.ok("tokenize", DEMO, stdin="one\n\ntwo\nthree").out.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertEqual(lines[1], "")
        self.assertEqual(len(self.ok("embed", DEMO, "-q", stdin="one\n" * 600).out.splitlines()), 600)


class Numbers(Case):
    def test_no_flag_takes_what_is_no_number(self):
        for flag in ("--temp", "--top-p", "--min-p", "--repeat-penalty", "--presence-penalty", "--frequency-penalty", "--top-k", "--repeat-last-n",
                     "--seed", "-n", "--prompt-cache-after", "--ctx", "--batch", "--threads", "--cpu-share", "--ram"):
            for value in ("nan", "inf", "-inf", "1e999", ""):
                self.refused("run", DEMO, "-p", "x", f"{flag}={value}" if flag.startswith("--") else flag + value, says=flag) if value else None

    def test_contexts_that_nobody_has(self):
        with tempfile.TemporaryDirectory() as folder:
            recipe = pathlib.Path(folder, "Modelfile")
            env = {"MILLRACE_MODELS": folder}
            for value in ("9223372036854775807", "4611686018427387904", "nan", "-5"):
                recipe.write_text(f"FROM {DEMO}\nPARAMETER num_ctx {value}\n")
                self.refused("create", "x", "-f", recipe, says="num_ctx", env=env)
            recipe.write_text(f"FROM {DEMO}\nPARAMETER num_ctx 256\n")
            self.ok("create", "x", "-f", recipe, env=env)
            manifest = pathlib.Path(folder, "manifests/-/x/latest.json")  # as an earlier version stored it
            manifest.write_text(manifest.read_text().replace("256", "9223372036854775807"))
            for verb in (["run", "x", "-p", "hi"], ["plan", "x"], ["serve", "x", "--port", "0"]):
                self.refused(*verb, says="num_ctx", env=env)
        self.refused("plan", DEMO, "--ctx", 1 << 40, says="--ctx")


class SmallMemory(Case):
    """Wherever run works, serve works: with fewer requests at once, which wait for one another."""

    ASK = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}

    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_wherever_run_works_serve_works(self):
        """But for the least that requests need; where the program lies in memory differs from run to run, and with it what it takes."""
        works = lambda tenths: run("run", DEMO, "--threads", "1", "--ram", f"{tenths / 10}M", "-n", "1", "-p", "Hi").code == 0
        least = next(tenths for tenths in range(20, 60) if works(tenths))
        with Server(DEMO, "--threads", "1", "--ram", f"{least / 10 + 0.3:.1f}M") as server:
            status, answer = server.json("POST", "/v1/chat/completions", self.ASK)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"][0]["message"]["content"], "The capital of France is Paris.")
            self.assertEqual(server.request("POST", "/tokenize", {"model": MODEL, "content": "x" * 300_000})[0], 413)

    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_a_refusal_names_what_is_enough(self):
        refused = self.refused("serve", DEMO, "--threads", "1", "--port", "0", "--ram", "1M", says="give at least --ram ")
        self.refused("run", DEMO, "--ram", "100M", "--ctx", "99999999", "-p", "Hi", says=", or a smaller --ctx")
        with Server(DEMO, "--threads", "1", "--ram", re.search(r"give at least --ram (\S+)", refused.err)[1]) as server:
            self.assertEqual(server.json("POST", "/v1/chat/completions", self.ASK)[0], 200)

    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_serves_in_four_megabytes(self):
        with Server(DEMO, "--threads", "1", "--ram", "4M") as server, concurrent.futures.ThreadPoolExecutor(4) as clients:
            ask = lambda _: server.json("POST", "/v1/chat/completions", self.ASK)
            for status, answer in clients.map(ask, range(4)):
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["choices"][0]["message"]["content"], "The capital of France is Paris.")
            held = Bare().held_by(server.process.pid)
        self.assertLessEqual(held, 4_000_000)


class Contexts(Case):
    """num_ctx: what is longer than the context that the server took by itself is loaded for, where it fits."""

    def ask(self, server, words, **options):
        status, body = server.json("POST", "/api/generate", {"model": MODEL, "prompt": "fox " * words, "raw": True, "stream": False,
                                                            "options": {"num_predict": 1, **options}})
        self.assertEqual(status, 200, body)
        return body["prompt_eval_count"]

    def context(self, server):
        return server.json("GET", "/api/ps")[1]["models"][0]["context_length"]

    def test_a_longer_one_is_loaded_for(self):
        with Server(DEMO, "--threads", "1", "--ram", "6M") as server:
            self.ask(server, 1)
            small = self.context(server)
            self.assertLess(small, 1024)
            self.assertLess(self.ask(server, 900), small)  # the beginning is left out, as Ollama does
            self.assertEqual(self.context(server), small)
            with concurrent.futures.ThreadPoolExecutor(4) as clients:
                counts = list(clients.map(lambda _: self.ask(server, 900, num_ctx=1000), range(4)))
            self.assertGreaterEqual(min(counts), 900)
            self.assertEqual(self.context(server), 1024)
            self.assertGreaterEqual(self.ask(server, 900), 900)

    def test_the_models_own_is_taken_where_memory_has_room(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        model = pathlib.Path(folder.name) / "long.gguf"
        data = bytearray(pathlib.Path(DEMO).read_bytes())
        key = b"qwen3moe.context_length"
        at = data.index(key) + len(key) + 4  # behind the kind of its value
        data[at:at + 4] = (131072).to_bytes(4, "little")
        model.write_bytes(data)
        words = {"model": "long", "messages": [{"role": "user", "content": "fox " * 5000}], "max_tokens": 1}
        for more in ((), ("--ram", "20M")):
            with Server(model, "--threads", "2", *more) as server:
                status, body = server.json("POST", "/v1/chat/completions", words)
                context = self.context(server)
                self.assertTrue(256 <= context <= 4096 if more else context == 65536, context)
                self.assertEqual(status, 400 if more else 200, body)
                server.stop()
                told = server.process.stdout.read().decode()
                self.assertIn(f"a context of {context} tokens (trained for 131072; --ctx)", told)

    def test_what_does_not_fit_is_tried_once(self):
        with Server(DEMO, "--threads", "1", "--ram", "4M") as server:
            for _ in range(2):
                self.ask(server, 3, num_ctx=2048)
                self.assertLess(self.context(server), 2048)
            server.stop()
            self.assertEqual(server.messages().count("asked for a context of 2048 tokens"), 1, server.messages())

    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_as_many_requests_at_once_as_memory_allows(self):
        with Server(DEMO) as server:
            self.ask(server, 1)
            self.assertEqual(server.json("GET", f"/props?model={MODEL}")[1]["total_slots"], 64)

    def test_the_operator_has_the_last_word(self):
        with Server(DEMO, "--threads", "1", "--ctx", "256") as server:
            self.ask(server, 3, num_ctx=2048)
            self.assertEqual(self.context(server), 256)


class Memory(Case):
    """What requests make the server hold is granted, under one cap."""

    def setUp(self):
        self.server = Server("--models", DEMO, "--threads", "1", "--ram", "40M")
        self.addCleanup(self.server.__exit__)
        self.bare = Bare()

    def held(self):
        """Peak bytes of the process beyond its bare start."""
        return self.bare.held_by(self.server.process.pid)

    def send(self, path, body, chunked=False):
        """The status, whatever the server has read by then."""
        with socket.create_connection((self.server.host, self.server.port), timeout=60) as client:
            length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
            try:
                client.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
                for begin in range(0, len(body), 1 << 16):
                    piece = body[begin:begin + (1 << 16)]
                    client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                client.sendall(b"0\r\n\r\n" if chunked else b"")
            except OSError:
                pass
            try:
                return int(client.recv(4096).split(b" ")[1])
            except (OSError, IndexError):
                return 0

    def bodies(self, size):
        name = json.dumps(MODEL).encode()
        yield "/api/chat", b'{"model": %s, "messages": [], "x": [%s{}]}' % (name, b"{}," * (size // 3))
        yield "/api/chat", b'{"model": %s, "stream": false, "options": {"num_predict": 1}, "messages": [%s{"role": "user", "content": "Hi"}]}' % (
            name, b'{"role":"user","content":"x"},' * (size // 30))
        yield "/v1/chat/completions", b'{"model": %s, "max_tokens": 1, "messages": [{"role": "user", "content": "%s"}]}' % (name, b"ab " * (size // 3))
        yield "/v1/completions", b'{"model": %s, "max_tokens": 1, "prompt": [%s1]}' % (name, b"1," * (size // 2))
        yield "/v1/embeddings", b'{"model": %s, "input": [%s"a"]}' % (name, b'"a",' * (size // 4))
        yield "/tokenize", b'{"model": %s, "content": "%s"}' % (name, b"\xc3\xa9" * (size // 2))
        yield "/tokenize", b'{"model": %s, "with_pieces": true, "content": "%s"}' % (name, b"a " * (size // 2))
        yield "/detokenize", b'{"model": %s, "tokens": [%s1]}' % (name, b"1," * (size // 2))
        yield "/apply-template", b'{"model": %s, "messages": [{"role": "user", "content": "%s"}]}' % (name, b"ab " * (size // 3))

    def test_large_bodies_are_refused_and_held_by_nobody(self):
        body = next(iter(self.bodies(60_000_000)))[1]
        for chunked in (False, True):
            for path in ("/api/chat", "/tokenize"):
                self.assertEqual(self.send(path, body, chunked), 413, (path, chunked))
            codes = []
            threads = [threading.Thread(target=lambda: codes.append(self.send("/api/chat", body, chunked))) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertTrue(set(codes) <= {413, 503}, codes)
        if not SANITIZED:
            self.assertLess(self.held(), 40e6)
        self.assertEqual(self.server.request("GET", "/api/tags")[0], 200)

    def test_bodies_of_any_kind_and_size(self):
        """Each is answered or refused, and none of them takes the process past its cap."""
        for size in (3_000, 30_000, 300_000, 1_000_000, 4_000_000):
            for path, body in self.bodies(size):
                for _ in range(50):  # what the last request held goes a moment after its answer
                    code = self.send(path, body)
                    if code != 503:
                        break
                    time.sleep(0.1)
                self.assertIn(code, (200, 400, 413), (path, size))
                if size <= 3_000 and path != "/v1/embeddings":  # its answers are larger than itself
                    self.assertNotEqual(code, 413, (path, size))
                if not SANITIZED:
                    self.assertLess(self.held(), 40e6, (path, size))

    def test_kept_responses_make_room(self):
        """They take a quarter of what requests may hold, which is an eighth of --ram, and the longest unused go."""
        thought, ids = "a thought " * 10_000, []
        for _ in range(30):
            body = {"model": MODEL, "max_output_tokens": 1, "input": [{"type": "reasoning", "summary": thought}, {"role": "user", "content": "Hi"}]}
            status, answer = self.server.json("POST", "/v1/responses", body)
            self.assertEqual((status, answer["store"]), (200, True), answer)
            ids.append(answer["id"])
        there = [self.server.json("GET", f"/v1/responses/{name}")[0] for name in ids]
        self.assertEqual(there, sorted(there, reverse=True))
        self.assertIn(there.count(200), range(8, 13))
        if not SANITIZED:
            self.assertLess(self.held(), 40e6)

    def test_a_greedy_template(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with Server("--models", DEMO, "--threads", "1", "--ram", "40M", env={"MILLRACE_MODELS": folder.name}) as self.server:
            question = {"messages": [{"role": "user", "content": "Hi"}], "stream": False, "options": {"num_predict": 1}}
            for template in ("{{ ([1]*30000000)|length }}", "{{ 'x'*300000000 }}", "{% for i in range(30000000) %}x{% endfor %}"):
                self.server.request("POST", "/api/create", {"model": "greedy", "from": MODEL, "stream": False, "template": template})
                for body in ({"model": "greedy"}, {"model": MODEL, "template": template}):
                    status, _, content = self.server.request("POST", "/api/chat", {**question, **body})
                    self.assertIn(status, (400, 404, 413, 503), (template, content))
                if not SANITIZED:
                    self.assertLess(self.held(), 40e6, template)
            self.assertEqual(self.server.request("POST", "/api/chat", {**question, "model": MODEL})[0], 200)

    def test_a_model_loads_while_bodies_are_held(self):
        held = []
        for _ in range(4):
            client = socket.create_connection((self.server.host, self.server.port), timeout=30)
            self.addCleanup(client.close)
            client.sendall(b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1100000\r\n\r\n" + b" " * 1_000_000)
            held.append(client)
        time.sleep(0.5)
        status, content = self.server.json("POST", "/api/generate", {"model": MODEL, "prompt": "Hi", "stream": False, "options": {"num_predict": 2}})
        self.assertEqual(status, 200, content)
        for client in held:  # what they go on to send is asked for anew
            client.close()
        if not SANITIZED:
            self.assertLess(self.held(), 40e6)


class Time(Case):
    CHAT = {"model": MODEL, "stream": False, "options": {"num_predict": 1, "temperature": 0},
            "messages": [{"role": "user" if i % 2 == 0 else "assistant", "content": f"Message {i}"} for i in range(8001)]}

    def test_dropping_old_messages_is_no_square(self):
        with Server(DEMO, "--threads", "1") as server:
            begin = time.monotonic()
            status, answer = server.json("POST", "/api/chat", self.CHAT)
            self.assertEqual(status, 200, answer)
            self.assertLess(time.monotonic() - begin, 20)
            self.assertGreater(answer["prompt_eval_count"], 1900)  # as many as fit have stayed

    def test_a_client_that_leaves_ends_the_preparation(self):
        """A prompt is rendered long before the first pass; this one would take seconds."""
        ticks = os.sysconf("SC_CLK_TCK")

        def seconds(server):
            fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / ticks
        with Server(DEMO, "--threads", "1") as server:
            loops = "{% for a in range(3000) %}{% for b in range(3000) %}{% endfor %}{% endfor %}"
            body = json.dumps({"model": MODEL, "stream": False, "template": loops, "messages": [{"role": "user", "content": "Hi"}]})
            with socket.create_connection((server.host, server.port), timeout=60) as client:
                client.sendall(f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                time.sleep(0.5)
                before, end = seconds(server), time.monotonic() + 5  # others may have the processors now
                while (works := seconds(server) - before) <= 0.1 and time.monotonic() < end:
                    time.sleep(0.1)
            time.sleep(1)
            before = seconds(server)
            time.sleep(1)
            self.assertGreater(works, 0.1, "the preparation was to take longer")
            self.assertLess(seconds(server) - before, 0.3)

    def test_members_are_no_square(self):
        """80,000 in one object of 1 MB took a core 10 s and more, also where a text of the request holds them."""
        many = {f"p{i}": 1 for i in range(40000)}
        wide = {"type": "object", "properties": {f"p{i}": {} for i in range(40000)}}
        ask = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
        call = lambda text: {**ask, "messages": [{"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": text}}]}, {"role": "tool", "tool_call_id": "a", "content": ""}, *ask["messages"]]}
        deep = "[" * 200000 + "]" * 200000
        with Server(DEMO, "--threads", "1") as server:
            for body, code in (({**ask, "zz": many}, 200), (call(many), 400), (call(json.dumps(many)), 400), (call(json.dumps(many)[:-1]), 400),
                               (call(json.dumps(json.dumps(many))), 400), (call(deep), 400), (call('{"a":' * 200000 + "1" + "}" * 200000), 400),
                               (call(json.dumps('{"a":' * 200000 + "1" + "}" * 200000)), 400), (call('{"a": "cut'), 200),
                               ({**ask, "guided_json": deep}, 400), ({**ask, "guided_json": wide}, 400), ({**ask, "guided_json": json.dumps(wide)}, 400)):
                begin = time.monotonic()
                status, answer = server.json("POST", "/v1/chat/completions", body)
                self.assertEqual(status, code, (str(body)[:300], answer))
                self.assertLess(time.monotonic() - begin, 3, str(body)[:300])

    def test_the_end_comes_in_time(self):
        for leaves in (False, True):
            with Server(DEMO, "--threads", "1") as server:
                body = json.dumps({**self.CHAT, "messages": self.CHAT["messages"] * 4})
                clients = []
                for _ in range(3):
                    client = socket.create_connection((server.host, server.port), timeout=60)
                    self.addCleanup(client.close)
                    client.sendall(f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                    clients.append(client)
                time.sleep(0.3)
                if leaves:
                    for client in clients:
                        client.close()
                seconds, code = server.stop()
                self.assertLess(seconds, 5, leaves)
                self.assertEqual(code, 0)

    def test_half_a_request_does_not_delay_the_end(self):
        head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n"
        with Server(DEMO, "--threads", "1") as server:
            clients = []
            for begun in (head, head + b"Content-Length: 100\r\n\r\n{", head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
                client = socket.create_connection((server.host, server.port), timeout=60)
                self.addCleanup(client.close)
                client.sendall(begun)
                clients.append(client)
            time.sleep(0.3)
            seconds, code = server.stop()
            self.assertLess(seconds, 2)
            self.assertEqual(code, 0)
            for client in clients:
                self.assertIn(b" 503 ", client.recv(1000)[:20])


if __name__ == "__main__":
    unittest.main()
