"""Damaged pictures, and pictures that want more than there is, at all four APIs of a server with a cap: each request gets an answer or an
error in words, /health answers meanwhile, and the process stays below its cap. MILLRACE_PICTURES=3000 runs the full length."""
import base64
import functools
import json
import os
import pathlib
import random
import struct
import tempfile
import threading
import time
import unittest
import zlib

from harness import SANITIZED, Bare, Case
from seeing import PICTURES, make_seeing
from serving import Server

COUNT = int(os.environ.get("MILLRACE_PICTURES", "300"))
RAM = 200_000_000
SOUND = {path.name: path.read_bytes() for path in sorted(PICTURES.iterdir()) if path.suffix in (".png", ".jpg", ".webp") and path.name != "bomb.png"}
MEDIA = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/svg+xml", "text/html", "application/pdf", "", "image", "image/png;charset=x", "\u202e", "a" * 3000]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth=8, colour=2, rows=None, interlaced=0):
    """Of one colour; `rows`: so many lines of it are there."""
    bits = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] * depth
    packer, data = zlib.compressobj(9), b""
    for _ in range(height if rows is None else rows):
        data += packer.compress(b"\0" * (1 + (width * bits + 7) // 8))
    palette = chunk(b"PLTE", b"\0" * 3) if colour == 3 else b""
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)) + palette
            + chunk(b"IDAT", data + packer.flush()) + chunk(b"IEND", b""))


def jpeg(name, width, height):
    """The file, saying that it is of another size."""
    data = bytearray(SOUND[name])
    at = next(i for i in range(len(data) - 9) if data[i] == 0xFF and data[i + 1] in (0xC0, 0xC2))
    struct.pack_into(">HH", data, at + 5, height, width)
    return bytes(data)


def webp(name, width, height):
    data = bytearray(SOUND[name])
    at = data.index(b"VP8") + 8
    if data[at - 5:at - 4] == b"L":
        (bits,) = struct.unpack_from("<I", data, at + 1)
        struct.pack_into("<I", data, at + 1, bits & 0xF000_0000 | (height - 1) << 14 | width - 1)
    elif data[at - 5:at - 4] == b" ":
        struct.pack_into("<HH", data, at + 6, width, height)
    else:
        data[at + 4:at + 10] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


@functools.cache
def large():
    """Sound pictures of odd sizes, and those that want more memory than there is."""
    bomb = png(60_000, 60_000, depth=1, colour=0, rows=1000)
    return [png(1, 1), png(1, 10_000), png(10_000, 1), png(2, 65_500), png(8_000, 8_000, depth=1, colour=0), png(4_000, 4_000), png(8_000, 8_000, colour=3, depth=1, rows=3),
            bomb, (PICTURES / "bomb.png").read_bytes(), png(7_900, 8_000, colour=6, depth=16, rows=10), png(0, 10, rows=1), png(2**31 - 1, 2**31 - 1, rows=0),
            png(3_000, 2_000), png(3_000, 2_000, interlaced=1), png(7_000, 7_000, interlaced=1), jpeg("baseline.jpg", 2_500, 2_500),
            jpeg("progressive.jpg", 2_500, 2_500), jpeg("progressive.jpg", 8_000, 8_000), jpeg("inks.jpg", 8_000, 7_999), jpeg("baseline.jpg", 65_500, 900),
            webp("lossless.webp", 2_500, 2_500), webp("lossless.webp", 7_999, 8_000), webp("lossy.webp", 7_999, 8_000), webp("lossy_alpha.webp", 2_500, 2_400),
            webp("lossy_alpha.webp", 16_000, 4_000)]


def png_chunks(data):
    at, chunks = 8, []
    while at + 12 <= len(data):
        length = struct.unpack_from(">I", data, at)[0]
        chunks.append((data[at + 4:at + 8], data[at + 8:at + 8 + length]))
        at += 12 + length
    return chunks


def damaged_png(data, rng):
    """Damage behind checksums that are right."""
    chunks = png_chunks(data)
    at = rng.randrange(len(chunks))
    kind, content = chunks[at]
    way = rng.randrange(5)
    if way == 0:
        chunks.insert(rng.randrange(len(chunks)), chunks[at])
    elif way == 1:
        del chunks[at]
    elif way == 2 and content:
        changed = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        chunks[at] = (kind, bytes(changed))
    elif way == 3:
        head = bytearray(chunks[0][1])
        struct.pack_into(">I", head, rng.choice([0, 4]), rng.choice([0, 1, 7, 4096, 65_535, 2**31, 2**32 - 1]))
        chunks[0] = (chunks[0][0], bytes(head))
    else:
        chunks.insert(1, (rng.choice([b"iCCP", b"zTXt", b"eXIf", b"tRNS", b"PLTE", b"iTXt", b"acTL"]), rng.randbytes(rng.randrange(300))))
    return data[:8] + b"".join(chunk(*one) for one in chunks)


def damaged(data, rng):
    way = rng.randrange(6)
    if way == 0:
        return data[:rng.randrange(len(data))]
    if way == 1 and data.startswith(b"\x89PNG"):
        return damaged_png(data, rng)
    changed = bytearray(data)
    if way == 2:  # where sizes stand
        at = rng.randrange(min(len(data), 64))
        changed[at:at + 4] = struct.pack(rng.choice([">I", "<I"]), rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 0x00FF_FF00, rng.randrange(2**32)]))
    elif way == 3:
        at, other = rng.randrange(len(data)), rng.choice(list(SOUND.values()))
        changed[at:] = other[rng.randrange(len(other)):]
    elif way == 4:
        at = rng.randrange(len(data))
        changed[at:at] = rng.randbytes(rng.randrange(1, 200)) if rng.random() < 0.5 else data[at:at + 2000]
    else:
        for _ in range(rng.choice([1, 1, 3, 20, 200])):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def spelled(data, rng):
    """In base64, sometimes broken."""
    text = base64.b64encode(data).decode()
    way = rng.randrange(12)
    if way == 0:
        at = rng.randrange(len(text) + 1)
        return text[:at] + rng.choice(["!", " ", "\n", "\u0000", "é", "====", "-", "%3D", "\\"]) + text[at:]
    if way == 1:
        return text[:rng.randrange(len(text) + 1)]
    if way == 2:
        return base64.urlsafe_b64encode(data).decode()
    return text


def address(data, rng):
    text, media = spelled(data, rng), rng.choice(MEDIA) if rng.random() < 0.3 else "image/png"
    if rng.random() < 0.05:
        return rng.choice([f"data:{media},{text}", "data:", f"data:{media};base64", f"data:;base64,{text}", text, "file:///etc/passwd", "http://127.0.0.1:1/x.png", ""])
    return f"data:{media};base64,{text}"


def openai(pictures, rng):
    parts = [{"type": "image_url", "image_url": {"url": address(one, rng), "detail": "high"}} for one in pictures]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}]
    way = rng.randrange(8)
    if way == 0:  # an old message, and what a tool showed: notes stand in their place
        messages += [{"role": "assistant", "content": "a fox."}, {"role": "user", "content": "and?"}]
    elif way == 1:
        call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages = [{"role": "user", "content": "look."}, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "a", "content": parts}]
    return "/v1/chat/completions", {"messages": messages, "max_tokens": 2, "stream": rng.random() < 0.2}


def responses(pictures, rng):
    parts = [{"type": "input_image", "image_url": address(one, rng)} for one in pictures]
    return "/v1/responses", {"input": [{"role": "user", "content": [*parts, {"type": "input_text", "text": "what?"}]}], "max_output_tokens": 2}


def anthropic(pictures, rng):
    parts = [{"type": "image", "source": {"type": "base64", "media_type": rng.choice(MEDIA), "data": spelled(one, rng)}} for one in pictures]
    return "/v1/messages" + rng.choice(["", "", "/count_tokens"]), {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}], "max_tokens": 2}


def ollama_chat(pictures, rng):
    turn = {"role": "user", "content": "what?", "images": [spelled(one, rng) for one in pictures]}
    return "/api/chat", {"messages": [turn], "stream": rng.random() < 0.2, "options": {"num_predict": 2}}


def ollama_generate(pictures, rng):
    return "/api/generate", {"prompt": "what?", "images": [spelled(one, rng) for one in pictures], "stream": False, "options": {"num_predict": 2}}


APIS = [openai, responses, anthropic, ollama_chat, ollama_generate]


class Sound(random.Random):
    """Chooses no damage."""

    def random(self):
        return 0.999

    def randrange(self, *_):
        return 9


def message_of(content):
    """What an error says."""
    error = json.loads(content)["error"]
    return error if isinstance(error, str) else error["message"]


class DamagedPictures(Case):
    def setUp(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.bare = Bare()
        self.server = Server(make_seeing(folder), "--parallel", "4", "-c", "4096", "--threads", "2", "--ram", "200M", "--log-format", "off",
                             env={"MILLRACE_MODELS": str(folder / "store")})
        self.addCleanup(self.server.__exit__)
        self.lock, self.statuses, self.faults, self.waits, self.most = threading.Lock(), {}, [], [], 0

    def ask(self, path, body, what):
        status, _, content = self.server.request("POST", path, {"model": "sees", **body}, timeout=120)
        with self.lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1
        if status != 200:
            try:
                said = message_of(content)
                sound = (400 <= status < 500 or status == 503) and len(said) > 10 and len(said) < 2000
            except (ValueError, KeyError, TypeError):
                sound = False
            if not sound:
                with self.lock:
                    self.faults.append((what, path, status, content[:500]))
        return status, content

    def watch(self, stop):
        while not stop.wait(0.1) or not self.waits:
            began = time.monotonic()
            try:
                status = self.server.request("GET", "/health", timeout=30)[0]
            except OSError as broken:
                status = repr(broken)
            with self.lock:
                self.waits.append(time.monotonic() - began)
                if status != 200:
                    self.faults.append(("/health", status))

    def work(self, seed, tasks):
        rng = random.Random(seed)
        for task in tasks:
            name, (path, body) = task(rng)
            try:
                self.ask(path, body, (seed, name))
            except OSError as broken:
                with self.lock:
                    self.faults.append((seed, name, path, repr(broken)))
                if self.server.process.poll() is not None:
                    return

    def one(self, rng):
        if rng.random() < 0.03:
            sizes = large()
            at = rng.randrange(len(sizes))
            return f"large {at}", rng.choice(APIS)([sizes[at]], rng)
        name = rng.choice(list(SOUND))
        return name, rng.choice(APIS)([damaged(SOUND[name], rng)], rng)

    def many(self, rng):
        pictures = [data if rng.random() < 0.9 else damaged(data, rng) for data in rng.choices(list(SOUND.values()), k=50)]
        return "many", rng.choice(APIS)(pictures, rng)

    def run_all(self, tasks):
        until = time.monotonic() + 60
        while self.server.request("GET", "/health")[0] != 200 and time.monotonic() < until:
            time.sleep(0.05)  # the model is still being loaded
        stop, workers = threading.Event(), []
        watcher = threading.Thread(target=self.watch, args=(stop,))
        watcher.start()
        for seed in range(4):
            workers.append(threading.Thread(target=self.work, args=(seed, tasks[seed::4])))
            workers[-1].start()
        for worker in workers:
            worker.join()
        stop.set()
        watcher.join()
        self.assertEqual(self.faults[:5], [], f"{len(self.faults)} in all; {self.server.messages()[-2000:]}")

    def finish(self, what):
        self.assertIsNone(self.server.process.poll(), self.server.messages()[-3000:])
        metric = self.server.metric
        for _ in range(100):
            left = metric("millrace_batch_sequences"), metric("millrace_queue_length"), metric("millrace_kv_blocks") - metric("millrace_kv_blocks_cached")
            if left == (0, 0, 0):
                break
            time.sleep(0.1)
        self.assertEqual(left, (0, 0, 0), "requests or KV blocks are stuck")
        status, content = self.ask(*ollama_generate([SOUND["colour.png"]], Sound()), "sound")
        self.assertEqual(status, 200, content)
        peak = self.bare.held_by(self.server.process.pid)
        print(f"\n{what}: {dict(sorted(self.statuses.items()))}, {peak / 1e6:.1f} MB of {RAM / 1e6:.0f} MB at most, /health after {max(self.waits):.2f} s at most",
              flush=True)
        if not SANITIZED:
            self.assertLess(peak, RAM)
        seconds, code = self.server.stop()
        self.assertEqual(code, 0, self.server.messages()[-3000:])
        self.assertLess(seconds, 5)

    def test_each_has_an_answer_in_words(self):
        self.run_all([self.many if i % 100 == 50 else self.one for i in range(COUNT)])
        self.finish("damaged pictures")

    def test_large_ones_at_every_api(self):
        tasks = [lambda _, at=at, data=data, api=api: (f"large {at}", api([data], Sound())) for at, data in enumerate(large()) for api in APIS]
        self.run_all(tasks * max(1, COUNT // 500))
        self.finish("large pictures")


if __name__ == "__main__":
    unittest.main()
