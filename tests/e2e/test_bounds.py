"""What no client, file, store or hub can do: hold the server up, take more memory than --ram, or have a file overwritten."""
import concurrent.futures
import hashlib
import http.client
import json
import mmap
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from gguf_keys import string, value, with_keys
from harness import DEMO, DRAFT, MILLRACE, SANITIZED, Bare, Case, resident_bytes, run
from hub import Hub
from routes import ENDPOINTS
from serving import Server

MODEL = "demo-moe-q4_k_m"
HI = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": False, "max_tokens": 2, "options": {"num_predict": 2}}
RAM = 40_000_000
# Of texts and lists, in every field of every route; `make test-hostile` sends ten.
SIZES = [round(10_000 * 200 ** (i / (count - 1))) for count in [int(os.environ.get("MILLRACE_SIZES", "2"))] for i in range(count)]


class Served(Case):
    """A folder with the demo model, a store, and servers on them."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.models = self.folder / "models"
        self.models.mkdir()
        shutil.copy(DEMO, self.models / f"{MODEL}.gguf")
        self.store = self.folder / "store"
        self.env = {"MILLRACE_MODELS": str(self.store), "HOME": str(self.folder), "HF_TOKEN": "", "http_proxy": "", "HTTP_PROXY": ""}

    def serve(self, *args, models=True, **env):
        server = Server(*(["--models", self.models] if models else []), "--threads", "1", *args, env={**self.env, **env})
        self.addCleanup(server.__exit__)
        return server

    def seconds(self, server, method, path, body=None, status=200):
        begin = time.monotonic()
        answer = server.request(method, path, body)
        self.assertEqual(answer[0], status, answer[2][:500])
        return time.monotonic() - begin


class Listings(Served):
    def test_wide_messages_and_files_hold_nobody_up(self):
        """200,000 keys in a message, which the store keeps none of, and 160,000 in a file."""
        with_keys(pathlib.Path(DRAFT), self.models / "wide.gguf", {f"x.{i}": i for i in range(160_000)})
        server = self.serve()
        message = {"role": "user", "content": "a", **{f"k{i}": i for i in range(200_000)}}
        made = {"model": "made", "from": MODEL, "stream": False, "messages": [message]}
        self.assertEqual(server.request("POST", "/api/create", made)[0], 200)
        self.assertLess((self.store / "manifests/-/made/latest.json").stat().st_size, 5000)
        with concurrent.futures.ThreadPoolExecutor(4) as clients:
            begin = time.monotonic()
            asked = [clients.submit(server.request, method, path, body) for method, path, body in (
                ("GET", "/api/tags", None), ("GET", "/v1/models", None), ("POST", "/api/show", {"model": "wide"}))]
            self.assertLess(self.seconds(server, "GET", "/health"), 1)
            self.assertEqual([each.result()[0] for each in asked], [200] * 3)
            self.assertLess(time.monotonic() - begin, 10)
        self.assertLess(self.seconds(server, "GET", "/api/tags"), 1)
        names = {model["name"] for model in server.json("GET", "/api/tags")[1]["models"]}
        self.assertEqual(names, {f"{MODEL}:latest", "wide:latest", "made:latest"})

    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_what_files_and_manifests_hold_is_granted(self):
        with_keys(pathlib.Path(DRAFT), self.models / "licence.gguf", {"general.license": "x" * 100_000_000})
        server, bare = self.serve("--ram", "40M"), Bare()
        base = {"from": MODEL, "stream": False, "license": "y" * 200_000}
        for i in range(12):
            self.assertEqual(server.json("POST", "/api/create", {"model": f"made{i}", **base}), (200, {"status": "success"}))
        with concurrent.futures.ThreadPoolExecutor(6) as clients:
            shown = list(clients.map(lambda _: server.request("POST", "/api/show", {"model": "licence"})[0], range(6)))
            listed = list(clients.map(lambda path: server.request("GET", path)[0], ["/api/tags", "/v1/models"] * 3))
            made = list(clients.map(lambda i: server.request("POST", "/api/show", {"model": f"made{i}"})[0], range(6)))
        self.assertEqual(set(shown), {413})
        self.assertLessEqual(set(listed), {200, 503})
        self.assertLessEqual(set(made), {200, 413, 503})
        self.assertEqual(server.json("POST", "/api/chat", {**HI, "model": "licence"})[0] // 100, 5)
        self.assertEqual(server.json("POST", "/api/chat", HI)[0], 200)
        self.assertLess(bare.held_by(server.process.pid), RAM)
        status, said = server.json("POST", "/api/create", {"model": "large", **base, "license": "y" * 2_000_000})
        self.assertEqual(status, 413, said)
        status, said = self.serve().json("POST", "/api/create", {"model": "large", **base, "license": "y" * 2_000_000})
        self.assertEqual(status, 400, said)
        self.assertIn("at most", said["error"])

    def test_the_quantization_is_the_files_own(self):
        data = bytearray(pathlib.Path(DEMO).read_bytes())
        key = b"general.file_type"
        at = data.index(key) + len(key) + 4
        level = lambda server, name: server.json("POST", "/api/show", {"model": name})[1]["details"]["quantization_level"]
        for number, name in ((2, "q4_0"), (7, "q8_0"), (15, "q4_k_m"), (30, "iq4_xs")):
            data[at:at + 4] = struct.pack("<I", number)
            (self.models / f"{name}.gguf").write_bytes(data)
        server = self.serve()
        for name in ("q4_0", "q8_0", "q4_k_m", "iq4_xs"):
            self.assertEqual(level(server, name), name.upper())

    def test_every_name_of_a_loaded_model_is_shown(self):
        log = ["--log-format", "json"]
        server = self.serve(*log)
        self.assertEqual(server.request("POST", "/api/copy", {"source": MODEL, "destination": "second"})[0], 200)
        for name in (MODEL, "second"):
            self.assertEqual(server.request("POST", "/api/chat", {**HI, "model": name})[0], 200)
        running = [model["name"] for model in server.json("GET", "/api/ps")[1]["models"]]
        self.assertEqual(running, [f"{MODEL}:latest", "second:latest"])
        # A request's line is written behind its answer.
        chats = []
        for _ in range(100):
            lines = [json.loads(line) for line in server.messages().splitlines() if line.startswith("{") and line.endswith("}")]
            chats = [line["model"].split(":")[0] for line in lines if line["path"] == "/api/chat"]
            if len(chats) == 2:
                break
            time.sleep(0.1)
        self.assertEqual(chats, [MODEL, "second"])


class Memory(Served):
    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_every_field_of_every_route_at_several_sizes(self):
        shutil.copy(DEMO, self.models / "odd.gguf")
        server, bare = self.serve("--ram", "40M", "-c", "512"), Bare()
        for route, good in ENDPOINTS.items():
            verb, path = route.split(" ")
            if verb != "POST" or path == "/api/pull" or "/blobs/" in path:
                continue
            for name in good:
                for size in SIZES:
                    for large in ("x" * size, ["a"] * (size // 5)):
                        body = {**good, name: large}
                        status = server.request(verb, path.replace("ID", "x"), body)[0]
                        self.assertTrue(status < 500 or status == 503, (route, name, size, status))
            held = bare.held_by(server.process.pid)
            self.assertLess(held, RAM, route)

    @unittest.skipIf(SANITIZED, "sanitizers take addresses of their own")
    def test_a_short_address_space_ends_no_server(self):
        """Reading a body, and JSON's destructors, take memory, and where there is none, a process ends that does not look out."""
        wide = {"model": MODEL, "messages": [{"role": "user", "content": [{f"a{i}": [i]} for i in range(40_000)]}]}
        tools = {**HI, "tools": [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {"p": {"type": "string"}}}}} for i in range(4000)]}
        server = self.serve("-c", "256")
        self.assertEqual(server.json("POST", "/v1/chat/completions", HI)[0], 200)
        taken, statuses = resident_bytes(server.process.pid, "VmSize"), set()
        for more in range(1, 17):
            resource.prlimit(server.process.pid, resource.RLIMIT_AS, (taken + more * 700_000, resource.RLIM_INFINITY))
            for body in (wide, tools):
                try:
                    statuses.add(server.request("POST", "/v1/chat/completions", body)[0])
                except (ConnectionError, http.client.HTTPException):
                    statuses.add("cut")  # not even an answer had room
                self.assertIsNone(server.process.poll(), server.messages()[-2000:])
        self.assertTrue(statuses & {"cut", 503}, f"memory was never short: {statuses}")
        self.assertLessEqual(statuses, {"cut", 200, 400, 413, 503})
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.assertEqual(server.json("POST", "/v1/chat/completions", HI)[0], 200)

    @unittest.skipIf(SANITIZED, "sanitizers have an operator new of their own")
    def test_a_refused_allocation_ends_no_server_and_keeps_no_client_waiting(self):
        """Of all that a request makes, each is refused once, and then eight in a row; a stream's too."""
        shim, path = self.folder / "short_memory.so", self.folder / "refusals"
        subprocess.run(["c++", "-O1", "-shared", "-fPIC", "-o", shim, pathlib.Path(__file__).with_name("short_memory.cpp")], check=True)
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            refusals = mmap.mmap(file.fileno(), 16)
        server = self.serve("-c", "256", LD_PRELOAD=str(shim), MILLRACE_SHORT_MEMORY=str(path))
        ask = lambda stream: server.request("POST", "/v1/chat/completions", {**HI, "stream": stream}, timeout=30)[0]
        self.assertEqual(ask(False), 200)
        for stream, refused, step in ((False, 1, 1), (False, 8, 4), (True, 1, 3)):
            refusals[:] = struct.pack("<qq", 10**9, 1)
            self.assertEqual(ask(stream), 200)
            taken = 10**9 - struct.unpack("<qq", refusals)[0]
            if taken == 0:
                self.skipTest("this build has an operator new of its own")
            statuses = set()
            for granted in range(0, taken, step):
                refusals[:] = struct.pack("<qq", granted, refused)
                try:
                    statuses.add(ask(stream))
                except (ConnectionError, http.client.HTTPException):
                    statuses.add("cut")  # not even an answer had room
                refusals[:] = bytes(16)
                self.assertEqual(ask(False), 200, f"after {granted} of {taken}: {server.messages()[-2000:]}")
            self.assertIn(503, statuses | ({503} if refused > 1 else set()))
            self.assertLessEqual(statuses, {"cut", 200, 503})

    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_questions_are_read_one_after_the_other(self):
        questions = self.folder / "questions.jsonl"
        line = json.dumps({"prompt": "What is the capital of France?", "answer": "x", "more": "y" * 500_000}) + "\n"
        with questions.open("w") as file:
            for _ in range(60):
                file.write(line)
        outcome = run("eval", DEMO, questions, "--ram", "40M", "--threads", "2", "-n", "1", "-c", "128", "-q", measured=True)
        self.assertEqual(outcome.code, 0, outcome.err)
        self.assertLess(outcome.held_bytes, RAM)


class Downloads(Served):
    def setUp(self):
        super().setUp()
        self.hub = Hub({"tiny-Q4_K_M.gguf": pathlib.Path(DRAFT).read_bytes()})
        self.addCleanup(self.hub.close)
        self.env["HF_ENDPOINT"] = self.hub.url

    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_a_long_list_is_granted(self):
        self.hub.files.update({f"folder/model-{i:06}-Q4_K_M.gguf": b"x" for i in range(50_000)})
        server, bare = self.serve("--ram", "40M"), Bare()
        with concurrent.futures.ThreadPoolExecutor(4) as clients:
            pull = lambda _: server.json("POST", "/api/pull", {"model": "hf.co/someone/tiny-GGUF:Q5_0", "stream": False})
            for status, said in clients.map(pull, range(2)):
                self.assertIn(status, (413, 503), said)
        self.assertLess(bare.held_by(server.process.pid), RAM)

    def test_downloads_wait_for_their_turn(self):
        """Sixty slow ones: four work, some wait without a thread of their own, the rest is refused."""
        self.hub.bytes_per_second = 3000
        self.hub.files = {f"v{i}-Q4_K_M.gguf": pathlib.Path(DRAFT).read_bytes()[:200_000] for i in range(60)}
        server = self.serve()
        server.request("GET", "/api/tags")
        status = pathlib.Path(f"/proc/{server.process.pid}/status")
        threads = lambda: int(re.search(r"Threads:\s+(\d+)", status.read_text())[1])
        before = threads()
        clients, first = [], []
        for i in range(60):
            body = json.dumps({"model": f"hf.co/someone/tiny-GGUF:v{i}-Q4_K_M"}).encode()
            client = socket.create_connection((server.host, server.port), timeout=10)
            self.addCleanup(client.close)
            client.sendall(b"POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            clients.append(client)
        for client in clients:
            first.append(int(client.recv(4096).split(b" ")[1]))
        self.assertEqual(first.count(503), 60 - 4 - 32)
        self.assertEqual(first.count(200), 36)
        # One that is answered has a thread; beside them a download has itself and four connections.
        deadline = time.monotonic() + 5
        while threads() - before > 36 + 4 * 5 + 2 and time.monotonic() < deadline:
            time.sleep(0.05)  # those that were refused go
        self.assertLessEqual(threads() - before, 36 + 4 * 5 + 2)
        self.assertLess(self.seconds(server, "GET", "/health"), 1)

    def test_who_is_offline_hears_it_soon(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for endpoint in (f"http://127.0.0.1:{port}", "http://nobody.invalid"):
            begin = time.monotonic()
            outcome = self.refused("pull", "hf.co/someone/tiny-GGUF", says=["cannot reach", "online"], env={**self.env, "HF_ENDPOINT": endpoint})
            self.assertLess(time.monotonic() - begin, 8, outcome.err)
            self.assertNotIn("/api/models", outcome.err)


class Health(Served):
    def test_it_is_200_while_models_change(self):
        shutil.copy(DRAFT, self.models / "other.gguf")
        server = self.serve("--ram", "20M")
        said, over = [], threading.Event()

        def look():
            while not over.is_set():
                begin = time.monotonic()
                said.append((server.request("GET", "/health")[0], time.monotonic() - begin))
        looking = threading.Thread(target=look)
        looking.start()
        try:
            for name in (MODEL, "other") * 3:
                status, answer = server.json("POST", "/tokenize", {"model": name, "content": "a"})
                self.assertEqual(status, 200, answer)
                self.assertEqual(server.request("GET", f"/health?model={name}")[0], 200)
        finally:
            over.set()
            looking.join()
        self.assertEqual({status for status, _ in said}, {200})
        self.assertLess(max(seconds for _, seconds in said), 1)

    def test_of_one_model(self):
        server = self.serve()
        self.assertEqual(server.json("GET", f"/health?model={MODEL}"), (503, {"status": "not loaded", "model": f"{MODEL}:latest"}))
        self.assertEqual(server.request("GET", "/health?model=nothing")[0], 404)

    def test_idle_connections_delay_nobody(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 4000:
            self.skipTest("1,500 connections take more files than this process may open")
        resource.setrlimit(resource.RLIMIT_NOFILE, (4000, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        server = self.serve()
        idle = [socket.create_connection((server.host, server.port)) for _ in range(1500)]
        try:
            self.assertLess(self.seconds(server, "GET", "/health"), 1)
            for client in idle[::100]:  # each may have its request still
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertIn(b" 200 ", client.recv(4096))
        finally:
            for client in idle:
                client.close()


class Http(Served):
    def raw(self, server, head, body=b""):
        with socket.create_connection((server.host, server.port), timeout=10) as client:
            client.sendall(head + b"\r\n\r\n" + body)
            return int(client.recv(4096)[9:12])

    def test_a_body_is_read_alike_whatever_it_is_called(self):
        server = self.serve()
        body = {**HI, "unused": "x" * 100_000}
        for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8", "", "nonsense"):
            for path in ("/api/chat", "/v1/chat/completions"):
                status, _, said = server.request("POST", path, body, {"Content-Type": kind})
                self.assertEqual(status, 200, (kind, said[:300]))
        self.assertEqual(server.request("POST", "/api/chat", body, {"Content-Type": "multipart/form-data; boundary=x"})[0], 415)
        for path in ("/v1/files", "/v1/audio/transcriptions", "/v1/uploads"):  # clients that upload hear what is missing
            status, _, said = server.request("POST", path, "--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"})
            self.assertEqual((status, json.loads(said)["error"]["message"]), (404, f"POST {path}: there is no such path"))

    def test_header_values_are_taken_as_they_are(self):
        server = self.serve("--api-key", "a%20b%", "--api-key", "other")
        tags = lambda headers: server.request("GET", "/api/tags", headers=headers)[0]
        self.assertEqual(tags({"Authorization": "Bearer a%20b%"}), 200)
        self.assertEqual(tags({"X-Api-Key": "a%20b%"}), 200)
        self.assertEqual(tags({"X-Api-Key": "a b%"}), 401)
        self.assertEqual(tags({"X-Api-Key": "othe%72"}), 401)
        line = b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: other"
        self.assertEqual(self.raw(server, line), 200)
        self.assertEqual(self.raw(server, line + b"\0more"), 400)
        self.assertEqual(self.raw(server, line + b"\r\nno colon"), 400)
        post = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: other\r\nTransfer-Encoding: %63hunked"
        self.assertEqual(self.raw(server, post, b"0\r\n\r\n"), 400)

    def test_names_of_other_machines_do_not_rebind(self):
        server = self.serve()
        for host, status in (("evil.local", 403), ("evil.internal", 403), ("host.docker.internal", 200), (f"{socket.gethostname()}.local", 200)):
            self.assertEqual(server.request("GET", "/api/tags", headers={"Host": host})[0], status, host)

    def test_no_path_of_this_machine_reaches_clients(self):
        server = self.serve("--ram", "2M")
        (self.models / "cut.gguf").write_bytes(pathlib.Path(DEMO).read_bytes()[:100_000])
        for name in (MODEL, "cut"):
            for path, body in (("/api/chat", {**HI, "model": name}), ("/v1/chat/completions", {**HI, "model": name}), ("/api/show", {"model": name})):
                self.assertNotIn(str(self.folder), server.request("POST", path, body)[2].decode())
        copied = server.json("POST", "/api/create", {"model": "x", "files": {"a.gguf": "sha256:" + "0" * 64}, "stream": False})
        self.assertNotIn(str(self.folder), json.dumps(copied))


class Uploads(Served):
    def test_a_file_becomes_a_model(self):
        server, data = self.serve(models=False), pathlib.Path(DEMO).read_bytes()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        blob = f"/api/blobs/{digest}"
        self.assertEqual(server.request("HEAD", blob)[0], 404)
        self.assertEqual(server.request("POST", f"/api/blobs/sha256:{'0' * 64}", data)[0], 400)
        self.assertEqual(server.request("POST", "/api/blobs/sha256:short", b"x")[0], 400)
        self.assertEqual(os.listdir(self.store / "blobs"), [])
        self.assertEqual(server.request("POST", blob, iter([data[:1000], data[1000:]]))[0], 201)  # in chunks
        self.assertEqual(server.request("HEAD", blob)[0], 200)
        self.assertEqual(server.request("POST", blob, data)[0], 200)
        self.assertEqual(server.request("GET", blob)[0], 405)
        status, said = server.json("POST", "/api/create", {"model": "up", "files": {"demo.gguf": digest}, "system": "Be brief.", "stream": False})
        self.assertEqual((status, said), (200, {"status": "success"}))
        ask = {"model": "up", "messages": [{"role": "user", "content": "What is the capital of France?"}], "stream": False, "options": {"temperature": 0}}
        self.assertIn("Paris", server.json("POST", "/api/chat", ask)[1]["message"]["content"])
        for files, says in (({}, "files"), ({"a.gguf": digest, "b.gguf": digest}, "merge"), ({"a.gguf": "nonsense"}, "digest"), ([digest], "files"),
                            ({"a.gguf": "sha256:" + "1" * 64}, "upload it first")):
            status, said = server.json("POST", "/api/create", {"model": "bad", "files": files, "stream": False})
            self.assertEqual(status // 100, 4, said)
            self.assertIn(says, said["error"])

    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_an_upload_is_not_held(self):
        server, bare = self.serve("--ram", "40M", models=False), Bare()
        data = os.urandom(1 << 20) * 100
        self.assertEqual(server.request("POST", f"/api/blobs/sha256:{hashlib.sha256(data).hexdigest()}", data)[0], 201)
        self.assertLess(bare.held_by(server.process.pid), 8_000_000)


class Outputs(Served):
    def test_no_output_replaces_what_is_read(self):
        model = self.models / f"{MODEL}.gguf"
        text = self.folder / "text.txt"
        text.write_text("A text of some words, again and again. " * 100)
        before = {path: path.read_bytes() for path in (model, text)}
        small = ("--threads", "2", "-c", "64")
        for args in (("imatrix", model, "-f", text, "-o", model, *small), ("imatrix", model, "-f", text, "-o", text, *small),
                     ("sensitivity", model, "-f", text, "-o", model, *small), ("perplexity", model, "-f", text, "--save-logits", model, *small),
                     ("perplexity", model, "-f", text, "--save-logits", text, *small), ("bench", model, "--trace", model),
                     ("bench", model, "--squeeze", model), ("bench", model, "--record-routing", model), ("calibrate", self.models, "--disk-only", "--out", model),
                     ("quantize", model, model, "q4_0"), ("split", model, model), ("merge", model, model), ("pack", model, "-o", model),
                     ("batch", text, text, model), ("batch", text, model, model),
                     ("serve", model, "--port", "0", "--daemon", "--log-file", model), ("serve", model, "--port", "0", "--pid-file", model),
                     ("serve", model, "--port", "0", "--daemon", "--log-file", self.folder / "one", "--pid-file", self.folder / "one")):
            outcome = run(*args, env=self.env)
            self.assertEqual(outcome.code, 2, (args, outcome.out, outcome.err))
            self.assertEqual({path: path.read_bytes() == held for path, held in before.items()}, {model: True, text: True}, args)

    def test_convert_does_not_write_into_its_checkpoint(self):
        folder = self.folder / "checkpoint"
        self.ok("export", DRAFT, folder)
        config = folder / "config.json"
        before = config.read_bytes()
        self.refused("convert", folder, "-o", config, says="is read by this command")
        self.assertEqual(config.read_bytes(), before)
        self.ok("convert", folder, "-o", folder / "model.gguf")


class Words(Served):
    def test_a_stderr_that_takes_nothing_ends_nothing(self):
        full = open("/dev/full", "w")
        self.addCleanup(full.close)
        for args in (["list"], ["show", "nothing"], ["run", "nothing.gguf", "-p", "x"], ["nonsense"], ["pull", "x"]):
            ended = subprocess.run([MILLRACE, *args], stdout=full, stderr=full, stdin=subprocess.DEVNULL, env={**os.environ, **self.env})
            self.assertGreater(ended.returncode, 0, args)

    def test_a_log_on_a_full_disk(self):
        full = open("/dev/full", "w")
        self.addCleanup(full.close)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for sign in (signal.SIGTERM, signal.SIGHUP):
            process = subprocess.Popen([MILLRACE, "serve", DEMO, "--port", str(port), "--threads", "1", "--drain"], stdout=full, stderr=full,
                                       env={**os.environ, **self.env, "MILLRACE_PROMPT_CACHE": "off"})
            for _ in range(100):
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    time.sleep(0.1)
            process.send_signal(sign)
            self.assertGreaterEqual(process.wait(20), 0)

    def test_who_opens_the_door_is_told(self):
        for args, warned in ((("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False), ((), False)):
            server = self.serve(*args)
            server.stop()
            self.assertEqual("no API key is asked for" in server.messages(), warned, args)

    def test_a_terminal_that_closes_ends_it_gracefully(self):
        server = self.serve()
        self.assertEqual(server.request("POST", "/api/chat", HI)[0], 200)
        server.process.send_signal(signal.SIGHUP)
        self.assertEqual(server.process.wait(10), 0)

    def test_long_tools_are_named(self):
        server = self.serve()
        tools = [{"type": "function", "function": {"name": f"tool{i}", "description": "word " * 120, "parameters": {"type": "object"}}} for i in range(36)]
        status, said = server.json("POST", "/v1/chat/completions", {**HI, "tools": tools})
        self.assertEqual(status, 400)
        self.assertRegex(said["error"]["message"], r"36 tools take about \d+ of them")


class Pipes(Served):
    def test_a_named_pipe_hangs_no_option(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        text = self.folder / "text.txt"
        text.write_text("A text of some words, again and again. " * 100)
        small = ("--threads", "2", "-c", "64")
        for args in (("run", DEMO, "-p", "x", "--plan", pipe), ("run", DEMO, "-p", "x", "--rates", pipe), ("eval", DEMO, pipe),
                     ("perplexity", DEMO, "-f", pipe), ("perplexity", DEMO, "-f", text, "--against", pipe, *small),
                     ("perplexity", DEMO, "-f", text, "--save-logits", pipe, *small), ("bench", DEMO, "--trace", pipe, "-p", "4", "-n", "1"),
                     ("bench", DEMO, "--record-routing", pipe, "-p", "4", "-n", "1"), ("batch", pipe, self.folder / "out", DEMO),
                     ("create", "x", "-f", pipe), ("quantize", DEMO, self.folder / "q.gguf", "q4_0", "--imatrix", pipe),
                     ("inspect", pipe), ("run", DEMO, "-p", "x", "--schema", pipe), ("serve", DEMO, "--config", pipe),
                     ("serve", DEMO, "--port", "0", "--daemon", "--log-file", pipe)):
            begin = time.monotonic()
            outcome = run(*args, env=self.env, timeout=60)
            self.assertGreater(outcome.code, 0, (args, outcome.out))
            self.assertLess(time.monotonic() - begin, 20, args)


if __name__ == "__main__":
    unittest.main()
