"""What nobody sends by accident, at every route of the server (routes.py): fields of every odd kind, HTTP of every odd kind, and
clients that are slow or leave. Each gets an answer or an end, none a fault of ours, and the process stays below its cap.
At the end of each SIGTERM comes while all routes are busy. MILLRACE_ODD=10000 runs the full length."""
import json
import os
import pathlib
import random
import re
import socket
import struct
import tempfile
import threading
import time
import unittest
import urllib.parse

from gguf_keys import with_keys
from harness import DEMO, DRAFT, SANITIZED, Bare, Case, resident_bytes
from hub import Hub
from routes import ENDPOINTS, MESSAGES, MODEL, answered, read_fields, words_of
from serving import Server
from test_rerank import PROMPT, make

ODD = int(os.environ.get("MILLRACE_ODD", "1000"))
RAM = 64_000_000
# 503 is an answer (too many wait, or others hold the memory); a fault of the machine or of a hub is one only where these are asked.
FAULTS = {"POST /api/pull": {500}}


def nested(levels):
    value = "x"
    for _ in range(levels):
        value = [value]
    return value


VALUES = [None, True, False, 0, -1, 0.5, 1e308, -1e308, 2**31, 2**63, -2**63, 2**64, 10**400, "", " ", "x" * 5000, "\u0000", "\u202e\ufeff", "\ud7ff😀", [], {}, [None],
          [[]], {"": ""}, {"type": "x"}, {"type": "grammar", "grammar": "root ::= root"}, {"type": []}, nested(60), nested(150), list(range(300)),
          [{"role": "user"}], [{"role": 1, "content": 2}], [{"type": "custom"}], "root ::= (", "(" * 300, {"json": {"$ref": "#"}}, "-1h", "nan", "infh",
          "\\u0000", "../" * 20 + "etc/passwd", "hf.co/" + "a" * 300 + "/b", "x.gguf", {"a" * 3000: 1}, [{}] * 2000, {f"k{i}": i for i in range(5000)}]


def odd(value, rng):
    """The same with one place in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.7:
        key = rng.choice(list(value))
        return {**value, key: odd(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return value[:at] + [odd(value[at], rng)] + value[at + 1:]
    return rng.choice(VALUES)


def odd_text(body, rng):
    """The bytes of a body, changed where JSON as a library writes it cannot be odd."""
    text = json.dumps(body).encode()
    at = rng.randrange(1, len(text))
    return rng.choice([
        lambda: text[:-1] + b"," + text[1:],                                             # each key twice
        lambda: text[:-1] + b',"model":"odd"' * 2000 + b"}",
        lambda: text.decode().encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + text,
        lambda: text[:at] + rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0", b"\x1b"]) + text[at:],
        lambda: text[:-1] + b',"x":"\\ud800"}',
        lambda: text[:at],
        lambda: text + rng.choice([b"}", b"x", text, b"\0"]),
        lambda: text[:-1] + b',"x":' + b"[" * 200_000 + b"}",
        lambda: text[:-1] + b',"x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        lambda: text[:-1] + b',"x":1e99999,"y":' + b"9" * 5000 + b"}",
        lambda: text[:-1] + b',"x":"' + b"\\u00e9" * 50_000 + b'"}',
        lambda: text.replace(b": ", b":" + b" " * 20_000, 3),
        lambda: rng.choice([b"", b"null", b"[]", b"1", b'"x"', b"{", b"{}", b"[{}]", b"NaN", b'{"a":}', b"{'a':1}", b"{a:1}"]),
        lambda: rng.randbytes(rng.randrange(1, 3000)),
    ])()


def final(received):
    """What came without "100 Continue"."""
    return received.partition(b"\r\n\r\n")[2] if received.startswith(b"HTTP/1.1 100 ") else received


def whole(received):
    """Whether the head and as much as it tells of have come; of an answer in chunks its head is enough."""
    head, end, content = final(received).partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return bool(end) and (length is None or len(content) >= int(length.group(1)))


class Hostile(Case):
    """A server that answers all routes, with a store, a hub and a model of its own."""

    def setUp(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        ranker = make(folder, "ranker", True, {"general.basename": "Tiny-Reranker", "tokenizer.chat_template.rerank": PROMPT})
        with_keys(ranker, folder / f"{MODEL}.gguf",
                  {f"tokenizer.ggml.fim_{name}_token_id": number for name, number in (("pre", 301), ("suf", 302), ("mid", 303))})
        self.hub = Hub({"tiny-Q4_K_M.gguf": pathlib.Path(DRAFT).read_bytes()})
        self.addCleanup(self.hub.close)
        self.bare = Bare()
        env = {"MILLRACE_MODELS": str(folder / "store"), "HF_ENDPOINT": self.hub.url, "HF_TOKEN": "", "HOME": str(folder), "http_proxy": "", "HTTP_PROXY": ""}
        self.server = Server(folder / f"{MODEL}.gguf", "--parallel", "4", "-c", "512", "--threads", "2", "--ram", "64M", "--log-format", "off", env=env)
        self.addCleanup(self.server.__exit__)
        self.assertEqual(self.server.request("POST", "/tokenize", {"model": MODEL, "content": "a"})[0], 200)  # it is loaded
        self.began, self.asked = time.monotonic(), 0
        self.usual = self.state()

    def process(self, file, pattern):
        return int(re.search(pattern, pathlib.Path(f"/proc/{self.server.process.pid}/{file}").read_text()).group(1))

    def peak(self):
        """Most bytes that the process has held beyond its bare start."""
        return self.bare.held_by(self.server.process.pid)

    def state(self):
        """What a request that is done leaves nothing in: live sequences, queue, KV that no cache holds, open files, threads."""
        metric = self.server.metric
        return (metric("millrace_batch_sequences"), metric("millrace_queue_length"), metric("millrace_kv_blocks") - metric("millrace_kv_blocks_cached"),
                len(os.listdir(f"/proc/{self.server.process.pid}/fd")), self.process("status", r"Threads:\s+(\d+)"))

    def target(self, route, values):
        """The method and the path, with a GET's fields in its query."""
        verb, path = route.split(" ")
        for name in ("NAME", "ID", "FILE"):
            path = path.replace(name, urllib.parse.quote(str(values.get(name, "x")), safe=""))
        query = {name: value for name, value in values.items() if not name.isupper()} if verb == "GET" else {}
        return verb, path + ("?" + urllib.parse.urlencode(query) if query else "")

    def body(self, route, **more):
        """A good one, that is soon answered: of forms and names of one thing it has none but those that are asked for."""
        needed = {"model", "messages", "prompt", "input", "content", "tokens", "options", "stream", "query", "documents", "source", "destination", "from",
                  "max_tokens", "max_output_tokens", "n_predict", "input_prefix", "input_suffix"}
        good = ENDPOINTS[route]
        return {**{name: good[name] for name in good if name in needed and good[name] is not None}, **more}

    def head(self, verb, path, length, more=()):
        return "\r\n".join([f"{verb} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}", *more, "", ""]).encode()

    def exchange(self, data, ends=False, patience=60):
        """The status of the first answer, 0 where the connection ended without one, and what came; fails where nothing comes. `ends`:
        the client sends no more after this."""
        self.asked += 1
        with socket.create_connection((self.server.host, self.server.port), timeout=patience) as client:
            received = b""
            try:
                client.sendall(data)
                if ends:
                    client.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            try:
                while not whole(received) and (piece := client.recv(65536)):
                    received += piece
            except ConnectionError:
                pass
            except TimeoutError:
                self.fail(f"no answer within {patience} s to {data[:300]!r}")
            answer = final(received)
            return int(answer[9:12]) if answer.startswith(b"HTTP/1.") else 0, answer

    def finish(self):
        """Nothing of what came is left, nothing was ever past the cap; and the end comes in time while everything is busy."""
        self.assertIsNone(self.server.process.poll(), self.server.messages()[-3000:])
        for _ in range(300):
            state = self.state()
            # A connection that has just ended may be closing; threads and files of the hub's come and go.
            if state[:3] == (0, 0, 0) and state[3] <= self.usual[3] + 2 and state[4] <= self.usual[4] + 2:
                break
            time.sleep(0.1)
        self.assertEqual(state[:3], (0, 0, 0), "requests or KV blocks are stuck")
        self.assertLessEqual(state[3:], (self.usual[3] + 2, self.usual[4] + 2), "files or threads are left")
        self.assertEqual(self.server.request("POST", "/v1/chat/completions", {"model": MODEL, "messages": MESSAGES, "max_tokens": 4})[0], 200)
        took, peak = time.monotonic() - self.began, self.peak()
        if not SANITIZED:
            self.assertLess(peak, 2 * RAM)
        clients = self.keep_busy()
        seconds, code = self.server.stop()
        for client in clients:
            client.close()
        print(f"\n{self.id().split('.')[-1]}: {self.asked} requests in {took:.0f} s, {peak / 1e6:.1f} MB of {RAM / 1e6:.0f} MB at most, "
              f"ended {seconds:.1f} s after SIGTERM", flush=True)
        self.assertLess(seconds, 5)
        self.assertEqual(code, 0, self.server.messages()[-3000:])

    def judge(self, route, request, status, content, may_end=False):
        """An answer that is none of our faults; or an end, where that is one: what is too long to be read whole has no other."""
        if status == 0:
            self.assertTrue(may_end or request.index(b"\r\n\r\n") > 60_000, content[:500])
        else:
            self.assertTrue(200 <= status < 500 or status == 503 or status in FAULTS.get(route, ()), (status, content[:500]))

    def long_request(self, route, stream, tokens=480):
        """One that the server works on for a while."""
        long = {"max_tokens": tokens, "max_output_tokens": tokens, "n_predict": tokens, "ignore_eos": True, "options": {"num_predict": tokens}, "stream": stream}
        good = self.body(route)
        good.update({name: value for name, value in long.items() if name in good or name == "ignore_eos"})
        verb, path = self.target(route, good if verb_of(route) != "GET" else ENDPOINTS[route])
        data = json.dumps(good).encode() if verb != "GET" else b""
        return self.head(verb, path, len(data), ["Connection: close"]) + data

    def keep_busy(self):
        """Connections that ask each route for the longest that it gives, one with a body on its way and one that has sent all."""
        self.hub.bytes_per_second = 20_000
        clients = []
        for route in ENDPOINTS:
            for whole in (True, False):
                request = self.long_request(route, stream=whole)
                client = socket.create_connection((self.server.host, self.server.port), timeout=10)
                client.sendall(request if whole else request[:-3])
                clients.append(client)
        time.sleep(0.5)
        return clients


def verb_of(route):
    return route.split(" ")[0]


class Table(Case):
    def test_every_route_is_in_it(self):
        self.assertEqual(answered(), set(ENDPOINTS))

    def test_every_field_that_is_read_is_in_it(self):
        known = set().union(*(words_of(fields) for fields in ENDPOINTS.values()))
        for file, names in read_fields().items():
            self.assertGreater(len(names), 3, file)
            self.assertEqual(names - known, set(), f"{file} reads fields that routes.py does not have")


class OddFields(Hostile):
    def test_no_field_gives_a_fault_of_ours(self):
        self.assertLess(max(self.exchange(self.request(route, self.body(route)))[0] for route in ENDPOINTS), 500)
        rng, routes = random.Random(17), list(ENDPOINTS)
        for i in range(ODD):
            route = routes[i % len(routes)]
            fields = ENDPOINTS[route]
            name = rng.choice([*fields, "model"])
            body = self.body(route, **{name: odd(fields.get(name, MODEL), rng)})
            text = odd_text(body, rng) if verb_of(route) != "GET" and rng.random() < 0.2 else None
            request = self.request(route, body, text)
            status, content = self.exchange(request)
            with self.subTest(route=route, field=name, value=str(text or body.get(name))[:200]):
                self.judge(route, request, status, content)
                if status >= 400:
                    self.assertIn("error", json.loads(content.split(b"\r\n\r\n", 1)[1]))
        self.finish()

    def request(self, route, body, text=None):
        verb, path = self.target(route, body)
        data = (json.dumps(body).encode() if text is None else text) if verb != "GET" else b""
        return self.head(verb, path, len(data), ["Connection: close"]) + data


class RawHttp(Hostile):
    """Lines, headers and bodies that no library would write."""

    METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PRI", "PROPFIND", "get", "G ET", "", "\0", "P" * 9000]
    VERSIONS = ["HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2", "HTTP/1.1 x", "", "http/1.1", "HTTP/9999999999999"]
    PATHS = ["{}/", "//{}", "{}%00", "{}%2e%2e/", "{}/../..", "http://localhost{}", "http://evil.com{}", "{}#x", "{}?" + "a=b&" * 1000, "{}?%", "{}%", "{}%zz",
             "{}%u0000", "*", "", " ", "{}" + "/x" * 3000, "{}" + "a" * 8100, "{}" + "a" * 100_000, "{}\t", "\u00e9{}", "{};x=1", "/v1/models/" + "a" * 8000,
             "/v1/responses/" + "a" * 8000, "/v1/responses/" + "a" * 8000 + "/input_items", "/page/" + "../" * 200 + "etc/passwd", "/page/%2e%2e%2fmain.js"]
    HEADERS = ["Expect: 100-continue", "Upgrade: h2c", "Connection: Upgrade, close", "Range: bytes=" + "0-," * 2600, "Range: bytes=99999999999999999999-",
               "Content-Type: multipart/form-data; boundary=" + "b" * 7000, "Content-Type: application/x-www-form-urlencoded", "Content-Encoding: gzip",
               "Content-Encoding: br", "Accept-Encoding: " + "gzip;q=0," * 800, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked, gzip", "TE: trailers",
               "Content-Length: 5", "Content-Length: -5", "Content-Length: 18446744073709551616", "Host: evil.com", "Host: localhost:99999999", "Origin: null",
               "Origin: http://evil.com", "Authorization: Bearer " + "k" * 8000, "X-Api-Key: \0", "Cookie: " + "c" * 8000, " folded: x", "no colon", ": no name",
               "Name : x", "X: \x01\x02", "X: " + "\u00ff" * 20, "X-Forwarded-For: " + "1.2.3.4, " * 800, "Keep-Alive: timeout=999999999999",
               "Access-Control-Request-Headers: " + "x," * 3000]
    WHOLE = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"\r\n" * 5000, b"\n", b"GET / HTTP/1.1\n\n",
             b"GET /\r\n\r\n", b"\0" * 70_000, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", b"GET / HTTP/1.1\r\n" + b"X" * 100_000,
             b"POST /api/chat HTTP/1.1\rHost: localhost\r\r{}"]
    CHUNKS = [b"5\r\nab", b"ffffffffffffffff\r\n{}", b"-1\r\n{}\r\n0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n", b"2;x=" + b"y" * 9000 + b"\r\n{}\r\n0\r\n\r\n",
              b"2\n{}\n0\n\n", b"\r\n", b"2\r\n{}\r\n0\r\nContent-Length: 4\r\n\r\n", b"1\r\n{\r\n" * 3000, b"2\r\n{}\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
              b"zz\r\n", b"2\r\n{}x\r\n0\r\n\r\n"]

    def test_every_line_has_an_answer_or_an_end(self):
        rng, routes = random.Random(23), list(ENDPOINTS)
        for i in range(ODD):
            route = routes[i % len(routes)]
            request = self.request(route, rng)
            status, content = self.exchange(request, ends=True)
            with self.subTest(route=route, request=request[:200], bytes=len(request)):
                self.judge(route, request, status, content, may_end=True)
        self.crowd(b"GET /v1/models/" + b"a" * 8000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.crowd(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 9000 + b"\r\n")
        self.crowd(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + (b"X: " + b"y" * 320 + b"\r\n") * 96 + b"\r\n")
        self.finish()

    def request(self, route, rng):
        good = self.body(route)
        verb, path = self.target(route, good)
        data = json.dumps(good).encode()
        lines = [f"{verb} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}"]
        kind = rng.randrange(6)
        if kind == 0:
            lines[0] = f"{rng.choice(self.METHODS)} {path} {rng.choice(self.VERSIONS)}"
        elif kind == 1:
            lines[0] = f"{verb} {rng.choice(self.PATHS).replace('{}', path)} HTTP/1.1"
        elif kind == 2:
            at = rng.randint(1, 3)  # in place of the host or the length, or beside them
            lines[at:at + rng.randrange(2)] = rng.choices(self.HEADERS, k=rng.randint(1, 4))
        elif kind == 3:
            lines[2], data = "Transfer-Encoding: chunked", rng.choice(self.CHUNKS)
        elif kind == 4:
            return rng.choice(self.WHOLE)
        request = bytearray("\r\n".join([*lines, "", ""]).encode() + data)
        for _ in range(rng.randint(1, 6) if kind == 5 else 0):
            request[rng.randrange(len(request))] = rng.randrange(256)
        return bytes(request)

    def crowd(self, request):
        """As many at once as there may be connections, about: what one takes of its stack, each takes."""
        clients = []
        for _ in range(500):
            client = socket.create_connection((self.server.host, self.server.port), timeout=20)
            client.sendall(request[:-2])
            clients.append(client)
        for client in clients:
            client.sendall(request[-2:])
        for client in clients:
            try:
                client.recv(1000)
            except ConnectionError:
                pass
            client.close()
        self.asked += len(clients)
        if not SANITIZED:
            self.assertLess(self.peak(), 2 * RAM, request[:30])


class Leaving(Hostile):
    """Clients that send slowly, read slowly, leave anywhere, and never say good-bye."""

    CLIENTS = 16

    def test_what_is_left_ends(self):
        failures, left, lock = [], [ODD], threading.Lock()

        def work(seed):
            rng = random.Random(seed)
            while True:
                with lock:
                    left[0] -= 1
                    if left[0] < 0:
                        return
                    self.asked += 1
                    route = list(ENDPOINTS)[left[0] % len(ENDPOINTS)]
                try:
                    self.leave(route, rng)
                except TimeoutError:
                    failures.append(f"{route}: nothing within 60 s")
                except OSError:
                    pass  # the server ended it first
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(self.CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.finish()

    def leave(self, route, rng):
        self.hub.bytes_per_second = 1_000_000
        request = self.long_request(route, rng.random() < 0.7, 60)
        with socket.socket() as client:
            client.settimeout(60)
            if rng.random() < 0.3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            if rng.random() < 0.3:  # its end is a RST
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.connect((self.server.host, self.server.port))
            way = rng.randrange(6)
            if way == 0:  # in the midst of the request
                client.sendall(request[:rng.randrange(1, len(request))])
            elif way == 1:  # byte by byte for a while, then away
                for at in range(rng.randint(1, 40)):
                    client.sendall(request[at:at + 1])
                    time.sleep(0.005)
            elif way == 2:  # before the answer
                client.sendall(request)
                time.sleep(rng.choice([0, 0.001, 0.02, 0.1]))
            elif way == 3:  # within the answer
                client.sendall(request)
                client.recv(rng.randint(1, 400))
            elif way == 4:  # reads slowly
                client.sendall(request)
                for _ in range(20):
                    client.recv(16)
                    time.sleep(0.01)
            else:  # has no more to say, and may still read
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                client.recv(100)


class SlowReaders(Case):
    def test_what_nobody_reads_stays_bounded(self):
        """Eight clients ask for long streams with all they can have in each piece, and read none of it."""
        with Server(DEMO, "-c", "4096", "--parallel", "8", "--threads", "2", "--log-format", "json") as server:
            body = {"model": pathlib.Path(DEMO).stem, "messages": MESSAGES, "stream": True, "ignore_eos": True, "max_tokens": 3500,
                    "logprobs": True, "top_logprobs": 20}
            # What eight that do read make it take: KV of their contexts, for the most part.
            readers = [server.stream("/v1/chat/completions", body) for _ in range(8)]
            threads = [threading.Thread(target=reader.read) for reader in readers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            before, clients = resident_bytes(server.process.pid), []
            data = json.dumps(body).encode()
            for _ in range(8):
                client = socket.socket()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect((server.host, server.port))
                client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
                clients.append(client)
            most, end = 0, time.monotonic() + 10
            while time.monotonic() < end:
                most = max(most, resident_bytes(server.process.pid) - before)
                time.sleep(0.2)
            # All of it would be 8 x 3500 pieces of some kilobytes, 100 MB and more; 1 MB each may wait, and what is being written.
            if not SANITIZED:
                self.assertLess(most, 24 << 20)
            for client in clients:
                client.close()
            end = time.monotonic() + 30
            while server.metric("millrace_batch_sequences") and time.monotonic() < end:
                time.sleep(0.1)
            self.assertEqual(server.metric("millrace_batch_sequences"), 0)
            self.assertEqual(server.request("POST", "/v1/chat/completions", {**body, "stream": False, "max_tokens": 8})[0], 200)


if __name__ == "__main__":
    unittest.main()
