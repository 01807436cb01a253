"""Embeddings by HTTP: OpenAI's form and Ollama's two give the same vectors, and refusals name what is wrong."""
import base64
import http.client
import json
import math
import struct
import time
import unittest

from harness import DEMO, DRAFT, ROOT, Case
from serving import Server

MODEL = "demo-moe-q4_k_m"
TEXTS = ["A fox found a lantern.", "A fox found a lamp.", "What is the capital of France?"]


def norm(vector):
    return math.sqrt(sum(x * x for x in vector))


class Embeddings(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(DEMO, "--models", DRAFT, "--threads", "2", "--parallel", "4", "--queue", "2", "--ctx", "128")
        cls.addClassCleanup(cls.server.__exit__)

    def ask(self, path, **fields):
        return self.server.json("POST", path, {"model": MODEL, **fields})

    def vectors(self, input, **fields):
        status, body = self.ask("/v1/embeddings", input=input, **fields)
        self.assertEqual(status, 200, body)
        self.assertEqual([one["index"] for one in body["data"]], list(range(len(body["data"]))))
        return [one["embedding"] for one in body["data"]]

    def test_openai(self):
        status, body = self.ask("/v1/embeddings", input=TEXTS)
        self.assertEqual((status, body["object"], body["model"]), (200, "list", MODEL))
        self.assertEqual(body["data"][0]["object"], "embedding")
        vectors = [one["embedding"] for one in body["data"]]
        for vector in vectors:
            self.assertAlmostEqual(norm(vector), 1, places=5)
        like = [sum(a * b for a, b in zip(vectors[0], other)) for other in vectors]
        self.assertGreater(like[1], like[2], "two foxes are closer than a fox and France")
        self.assertEqual(self.vectors(TEXTS[1]), [vectors[1]], "alone as among others, to the bit")
        tokens = [self.server.json("POST", "/tokenize", {"content": text, "add_special": True})[1]["tokens"] for text in TEXTS]
        self.assertEqual(self.vectors(tokens), vectors)
        self.assertEqual(self.vectors(tokens[2]), [vectors[2]])
        count = sum(map(len, tokens))
        self.assertEqual(body["usage"], {"prompt_tokens": count, "total_tokens": count})

    def test_base64_and_dimensions(self):
        whole = self.vectors(TEXTS)
        for vector, coded in zip(whole, self.vectors(TEXTS, encoding_format="base64")):
            raw = base64.b64decode(coded, validate=True)
            singles = [struct.unpack("<f", struct.pack("<f", x))[0] for x in vector]
            self.assertEqual(list(struct.unpack(f"<{len(vector)}f", raw)), singles)
        for vector, short in zip(whole, self.vectors(TEXTS, dimensions=8)):
            self.assertEqual(len(short), 8)
            for a, b in zip(short, vector):
                self.assertAlmostEqual(a, b / norm(vector[:8]), places=5)

    def test_ollama(self):
        status, body = self.ask("/api/embed", input=TEXTS)
        self.assertEqual((status, body["model"]), (200, MODEL))
        self.assertEqual(body["embeddings"], self.vectors(TEXTS))
        for field in ("total_duration", "load_duration", "prompt_eval_count"):
            self.assertIsInstance(body[field], int, field)
        self.assertGreater(body["prompt_eval_count"], 10)
        self.assertEqual(self.ask("/api/embed", input=TEXTS[0], dimensions=8)[1]["embeddings"], self.vectors(TEXTS[0], dimensions=8))
        self.assertEqual(self.ask("/api/embeddings", prompt=TEXTS[0])[1], {"embedding": body["embeddings"][0]})
        self.assertEqual(self.ask("/api/embed")[1]["embeddings"], [])
        self.assertEqual(self.ask("/api/embed", input="")[1]["embeddings"], [])
        self.assertEqual(self.ask("/api/embeddings", prompt="")[1], {"embedding": []})

    def test_too_long(self):
        long = "Tell me a story about a fox and a lantern. " * 30
        status, body = self.ask("/v1/embeddings", input=["x", long])
        self.assertEqual((status, body["error"]["param"], body["error"]["code"]), (400, "input", "context_length_exceeded"))
        status, body = self.ask("/api/embed", input=long, truncate=False)
        self.assertEqual(status, 400)
        self.assertIn("context length", body["error"])
        status, body = self.ask("/api/embed", input=long)
        self.assertEqual((status, body["prompt_eval_count"]), (200, 128))
        status, body = self.ask("/api/embed", input=long, options={"num_ctx": 16})
        self.assertEqual((status, body["prompt_eval_count"]), (200, 16))

    def test_more_texts_than_the_queue_holds(self):
        before = self.server.metric("millrace_prompt_tokens_total")
        texts = [f"{i} foxes and {i * i} lanterns" for i in range(40)]
        status, body = self.ask("/api/embed", input=texts)
        self.assertEqual((status, len(body["embeddings"])), (200, 40))
        self.assertEqual(body["embeddings"][23], self.vectors(texts[23])[0])
        self.assertGreaterEqual(self.server.metric("millrace_prompt_tokens_total") - before, body["prompt_eval_count"])

    def passes_until(self, done):
        """Passes so far, once done(passes); those of the last look where that never comes."""
        for _ in range(200):
            passes = self.server.metric("millrace_passes_total")
            if done(passes):
                break
            time.sleep(0.05)
        return passes

    def test_a_client_that_leaves_stops_its_texts(self):
        self.vectors(TEXTS)
        before = self.server.metric("millrace_passes_total")
        cancelled = self.server.metric("millrace_requests_cancelled_total")
        texts = [f"{i}: " + "Tell me a story about a fox and a lantern. " * 8 for i in range(2048)]
        connection = http.client.HTTPConnection(self.server.host, self.server.port)
        connection.request("POST", "/v1/embeddings", json.dumps({"model": MODEL, "input": texts}), {"Content-Type": "application/json"})
        self.assertGreater(self.passes_until(lambda passes: passes > before + 2), before + 2)
        connection.close()
        self.passes_until(lambda _: self.server.metric("millrace_requests_cancelled_total") > cancelled)
        self.assertGreater(self.server.metric("millrace_requests_cancelled_total"), cancelled)
        time.sleep(0.2)
        stopped = self.server.metric("millrace_passes_total")
        time.sleep(0.5)
        self.assertEqual(self.server.metric("millrace_passes_total"), stopped)
        self.assertLess(stopped - before, 2048 / 8, "all of it was done")

    def test_refusals(self):
        for fields, word in (({}, "input"), ({"input": []}, "input"), ({"input": ""}, "input"), ({"input": ["a", 3]}, "input"),
                             ({"input": {"a": 1}}, "input"), ({"input": ["a"] * 2049}, "2048"), ({"input": [[1], "a"]}, "input"),
                             ({"input": [-1]}, "input"), ({"input": [4294967301]}, "input"), ({"input": [1 << 30]}, "vocabulary"),
                             ({"input": [1] * 129}, "context length"), ({"input": "a", "dimensions": 0}, "dimensions"),
                             ({"input": "a", "dimensions": 100000}, "dimensions"), ({"input": "a", "encoding_format": "xml"}, "encoding_format")):
            status, body = self.ask("/v1/embeddings", **fields)
            self.assertEqual((status, word in body["error"]["message"]), (400, True), (fields, body))
        self.assertEqual(self.server.json("POST", "/v1/embeddings", {"model": "nothing", "input": "a"})[0], 404)
        for path, fields in (("/api/embed", {"input": 3}), ("/api/embed", {"input": ["a", None]}), ("/api/embed", {"input": ["a"] * 2049}),
                             ("/api/embed", {"input": "a", "truncate": 1}), ("/api/embed", {"input": ["a", ""]}),
                             ("/api/embeddings", {"prompt": 3}), ("/api/embed", {"input": "a", "keep_alive": "soon"})):
            status, body = self.ask(path, **fields)
            self.assertEqual((status, isinstance(body["error"], str)), (400, True), (fields, body))
        self.assertEqual(self.server.json("POST", "/api/embed", {"model": "nothing", "input": "a"})[0], 404)
        self.assertEqual(self.server.json("POST", "/api/embed", {"input": "a"})[0], 400)

    def test_command(self):
        lines = self.ok("embed", DEMO, stdin="\n".join(TEXTS) + "\n").out.splitlines()
        self.assertEqual([json.loads(line) for line in lines], self.vectors(TEXTS))
        mean = json.loads(self.ok("embed", DEMO, TEXTS[0], "--pooling", "mean").out)
        self.assertNotEqual(mean, json.loads(lines[0]))
        self.assertAlmostEqual(norm(mean), 1, places=5)
        self.assertEqual(json.loads(self.ok("embed", DEMO, TEXTS[0], "--dimensions", "8").out), self.vectors(TEXTS[0], dimensions=8)[0])
        self.refused("embed", DEMO, "--ctx", "16", "a fox " * 30, says=("text 1", "context"))
        self.ok("embed", DEMO, "--ctx", "16", "--truncate", "a fox " * 30)
        self.refused("embed", DEMO, stdin="a\n\n", says="text 2")
        self.assertEqual(self.ok("embed", DEMO, stdin="").out, "")

    def test_keep_alive(self):
        name = "demo-draft-f16"
        status, body = self.server.json("POST", "/api/embed", {"model": name, "input": "a fox", "keep_alive": 0})
        self.assertEqual((status, len(body["embeddings"])), (200, 1))


ENCODER = ROOT / "tests/data/encoders/bert.gguf"


def references():
    """(text, tokens, the mean of transformers' states) of each text of tools/reference-models/encoders.py."""
    data = ENCODER.with_suffix(".bin").read_bytes()
    _, version, count = struct.unpack_from("<8sII", data)
    assert version == 1
    at = 16
    for _ in range(count):
        size, tokens, width = struct.unpack_from("<III", data, at)
        text = data[at + 12:at + 12 + size].decode()
        at += 12 + (size + 3) // 4 * 4
        ids = list(struct.unpack_from(f"<{tokens}i", data, at))
        states = struct.unpack_from(f"<{tokens * width}f", data, at + 4 * tokens)
        at += 4 * tokens * (1 + width)
        yield text, ids, [sum(states[i::width]) / tokens for i in range(width)]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / norm(a) / norm(b)


class Encoder(Case):
    """A BERT: its vectors by every way are transformers', and it is asked for no text."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(ENCODER, "--threads", "2", "--parallel", "4")
        cls.addClassCleanup(cls.server.__exit__)
        cls.texts = [(text, ids, vector) for text, ids, vector in references() if text]

    def ask(self, path, **fields):
        return self.server.json("POST", path, {"model": "bert", **fields})

    def test_every_way_gives_transformers_vectors(self):
        texts = [text for text, _, _ in self.texts]
        status, body = self.ask("/v1/embeddings", input=texts)
        self.assertEqual(status, 200, body)
        vectors = [one["embedding"] for one in body["data"]]
        for (text, _, wanted), vector in zip(self.texts, vectors, strict=True):
            self.assertGreaterEqual(cosine(vector, wanted), 0.99999, text)
            self.assertAlmostEqual(norm(vector), 1, places=5)
        self.assertEqual(body["usage"]["prompt_tokens"], sum(len(ids) for _, ids, _ in self.texts))
        self.assertEqual(self.ask("/api/embed", input=texts)[1]["embeddings"], vectors)
        self.assertEqual([self.ask("/api/embeddings", prompt=text)[1]["embedding"] for text in texts], vectors)
        lines = self.ok("embed", ENCODER, *texts).out.splitlines()
        self.assertEqual([json.loads(line) for line in lines], vectors)

    def test_texts_longer_than_its_positions(self):
        long = "the " * 200
        status, body = self.ask("/v1/embeddings", input=long)
        self.assertEqual((status, body["error"]["code"]), (400, "context_length_exceeded"), body)
        status, body = self.ask("/api/embed", input=long, truncate=False)
        self.assertEqual((status, "context length is 160" in body["error"]), (400, True), body)
        status, body = self.ask("/api/embed", input=long, options={"num_ctx": 4096})
        self.assertEqual((status, body["prompt_eval_count"]), (200, 160))
        self.refused("embed", ENCODER, long, says="shorten the text")
        self.ok("embed", ENCODER, "--truncate", long)

    def test_it_is_asked_for_no_text(self):
        for path, fields in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                             ("/v1/completions", {"prompt": "a"}), ("/api/generate", {"prompt": "a"}),
                             ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}),
                             ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": "a"}]})):
            for stream in (False, True):
                status, body = self.ask(path, stream=stream, **fields)
                self.assertEqual((status, "/v1/embeddings" in json.dumps(body)), (400, True), (path, body))
        self.refused("run", ENCODER, "hello", says="embeds texts")

    def test_it_is_shown_as_what_it_is(self):
        self.assertEqual(self.server.json("POST", "/api/show", {"model": "bert"})[1]["capabilities"], ["embedding"])
        self.assertIn("embedding", self.ok("show", ENCODER).out)


if __name__ == "__main__":
    unittest.main()
