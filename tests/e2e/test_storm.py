"""Clients at their worst, many at once: aborts, malformed and oversized bodies, slow readers, connections left half open.
No crash, no leak, no stuck request, every KV block back. MILLRACE_STORM=10000 runs the full length."""
import http.client
import json
import os
import random
import socket
import threading
import time
import unittest

from harness import DRAFT, SANITIZED, Bare, Case, resident_bytes
from serving import Server

REQUESTS = int(os.environ.get("MILLRACE_STORM", "1000"))
CLIENTS = 16
RAM = 64_000_000
MODEL = "demo-draft-f16"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me a short story."}], "max_tokens": 60}


class Storm(Case):
    def setUp(self):
        self.server = Server(DRAFT, "--parallel", "8", "--queue", "32", "-c", "512", "--threads", "2", "--ram", "64M")
        self.addCleanup(self.server.__exit__)
        self.lock = threading.Lock()
        self.left, self.failures, self.answered, self.marks = REQUESTS, [], 0, {}
        self.half_open = []

    def raw(self, data, timeout=30):
        client = socket.create_connection((self.server.host, self.server.port), timeout=timeout)
        client.sendall(data)
        return client

    def post(self, body, path="/v1/chat/completions"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data

    # What a client may do. Each returns nothing, or says what went wrong.

    def answer(self, rng):
        status, _, content = self.server.request("POST", "/v1/chat/completions", {**BODY, "max_tokens": rng.randint(1, 30)})
        if status not in (200, 503):
            return f"{status}: {content[:200]}"
        with self.lock:
            self.answered += status == 200

    def stream(self, rng):
        with self.raw(self.post({**BODY, "stream": True, "max_tokens": 20})) as client:
            received = b""
            while piece := client.recv(65536):
                received += piece
                if b"[DONE]" in received or b"503" in received[:20]:
                    return None
        return f"a stream ended early: {received[-200:]}"

    def abort(self, rng):
        with self.raw(self.post({**BODY, "stream": rng.random() < 0.5, "n": rng.randint(1, 3), "max_tokens": 400})) as client:
            if rng.random() < 0.5:
                client.recv(rng.randint(1, 2000))

    def malformed(self, rng):
        body = bytearray(json.dumps(BODY).encode())
        for _ in range(rng.randint(1, 5)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        path = rng.choice(["/v1/chat/completions", "/api/chat", "/v1/messages", "/v1/responses", "/tokenize", "/api/embed"])
        with self.raw(self.post(bytes(body), path)) as client:
            if not client.recv(100).startswith(b"HTTP/1.1 "):
                return "no answer to a malformed body"

    def oversized(self, rng):
        with self.raw(f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {1 << 40}\r\n\r\n".encode()) as client:
            try:
                client.sendall(b"x" * 100_000)
                head = client.recv(100)
            except OSError:
                return None
            if head and b"413" not in head and b"400" not in head:
                return f"{head[:60]} to an oversized body"

    def garbage(self, rng):
        with self.raw(rng.randbytes(rng.randint(1, 3000)) + b"\r\n\r\n") as client:
            client.settimeout(0.2)
            try:
                client.recv(100)
            except OSError:
                pass

    def slow(self, rng):
        with self.raw(self.post({**BODY, "stream": True, "max_tokens": 200})) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            for _ in range(5):
                client.recv(20)
                time.sleep(0.01)

    def leave_open(self, rng):
        data = self.post(BODY)
        client = self.raw(data[: rng.randrange(1, len(data))])
        with self.lock:
            self.half_open.append(client)
            oldest = self.half_open.pop(0) if len(self.half_open) > 40 else None
        if oldest:
            oldest.close()

    def work(self, seed):
        rng = random.Random(seed)
        kinds = [self.answer, self.answer, self.stream, self.abort, self.abort, self.malformed, self.oversized, self.garbage,
                 self.slow, self.leave_open]
        while True:
            with self.lock:
                if self.left == 0:
                    return
                self.left -= 1
                done = REQUESTS - self.left
            if done % (REQUESTS // 10) == 0:
                self.marks[done] = resident_bytes(self.server.process.pid)
            kind = rng.choice(kinds)
            try:
                wrong = kind(rng)
            except OSError as error:
                wrong = f"{error}"
            if wrong:
                with self.lock:
                    self.failures.append(f"{kind.__name__}: {wrong}")

    def test_storm(self):
        threads = [threading.Thread(target=self.work, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertIsNone(self.server.process.poll(), self.server.messages())
        self.assertEqual(self.failures, [])
        self.assertGreater(self.answered, REQUESTS // 20)
        for client in self.half_open:
            client.close()
        held = lambda: (self.server.metric("millrace_batch_sequences") + self.server.metric("millrace_queue_length"),
                        self.server.metric("millrace_kv_blocks") - self.server.metric("millrace_kv_blocks_cached"))
        for _ in range(200):
            if held() == (0, 0):
                break
            time.sleep(0.05)
        self.assertEqual(held(), (0, 0), "requests or KV blocks are stuck")
        if not SANITIZED and REQUESTS >= 5000:
            self.assertLess(self.marks[REQUESTS], self.marks[REQUESTS // 5] * 1.05, self.marks)
        peak = Bare().held_by(self.server.process.pid)
        if not SANITIZED:
            self.assertLess(peak, 2 * RAM)
        streams = [self.raw(self.post({**BODY, "stream": True, "max_tokens": 400})) for _ in range(CLIENTS)]
        seconds, code = self.server.stop()
        for client in streams:
            client.close()
        self.assertLess(seconds, 5)
        self.assertEqual(code, 0)
        print(f"{REQUESTS} requests, {self.answered} answered, {peak / 1e6:.1f} MB of {RAM / 1e6:.0f} MB at most, ended {seconds:.1f} s after SIGTERM, RSS in MB after each tenth: "
              + " ".join(f"{mark / 1e6:.1f}" for _, mark in sorted(self.marks.items())))


if __name__ == "__main__":
    unittest.main()
