"""Reranking by HTTP: a score is what the model's own log probabilities say, by a head in the file or by the tokens yes and no."""
import json
import math
import pathlib
import struct
import tempfile
import unittest

from gguf_keys import Layout, with_keys
from harness import DRAFT, ROOT, Case
from serving import Server

YES, NO = 300, 700
PROMPT = "Query: {query}\nDocument: {document}\nAnswer:"
QUERY = "Who found a lantern?"
DOCUMENTS = ["A fox found a lantern.", "Paris is the capital of France.", "The {query} stands here: {document}."]


def make(folder, name, renamed, keys):
    """The draft with a head of rows YES and NO, or with these two tokens called yes and no."""
    data = bytearray(pathlib.Path(DRAFT).read_bytes())
    layout = Layout(data)
    path = pathlib.Path(folder) / f"{name}.gguf"
    if not renamed:
        columns, _, _, offset = layout.found["token_embd.weight"]
        rows = [struct.unpack_from(f"<{columns}e", data, layout.data + offset + 2 * columns * token) for token in (YES, NO)]
        with_keys(pathlib.Path(DRAFT), path, keys, ("cls.output.weight", rows))
        return path
    at = data.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 16
    pieces, first, last = [], at, at
    for token in range(max(YES, NO) + 1):
        length = struct.unpack_from("<Q", data, last)[0]
        text = {YES: b"yes", NO: b"no"}.get(token, bytes(data[last + 8:last + 8 + length]))
        pieces.append(struct.pack("<Q", len(text)) + text)
        last += 8 + length
    source = pathlib.Path(folder) / f"{name}.source"
    head = bytes(data[:first]) + b"".join(pieces) + bytes(data[last:layout.end_of_tensors])
    source.write_bytes(head + b"\0" * (-len(head) % 32) + bytes(data[layout.data:]))
    with_keys(source, path, keys)
    return path


class Rerank(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        prompt = {"tokenizer.chat_template.rerank": PROMPT}
        head = make(cls.folder, "head", False, {"llama.pooling_type": 4, **prompt})
        name = make(cls.folder, "name", True, {"general.basename": "Tiny-Reranker", **prompt})
        cls.server = Server(head, "--models", name, "--models", DRAFT, "--threads", "2", "--ctx", "256")
        cls.addClassCleanup(cls.server.__exit__)

    def ask(self, path="/v1/rerank", model="head", **fields):
        return self.server.json("POST", path, {"model": model, **fields})

    def share(self, model, document):
        """Of YES among YES and NO, behind the prompt."""
        logprobs = []
        for token in (YES, NO):
            status, body = self.server.json("POST", "/v1/completions", {
                "model": model, "prompt": PROMPT.replace("{document}", "\0").replace("{query}", QUERY).replace("\0", document),
                "max_tokens": 1, "temperature": 0, "logprobs": 1, "logit_bias": {str(token): 100}})
            self.assertEqual(status, 200, body)
            logprobs.append(body["choices"][0]["logprobs"]["token_logprobs"][0])
        return 1 / (1 + math.exp(logprobs[1] - logprobs[0]))

    def test_scores(self):
        for model in ("head", "name"):
            status, body = self.ask(model=model, query=QUERY, documents=DOCUMENTS)
            self.assertEqual((status, body["object"], body["model"]), (200, "list", model), body)
            results = body["results"]
            self.assertEqual(sorted(one["index"] for one in results), [0, 1, 2])
            scores = [one["relevance_score"] for one in results]
            self.assertEqual(scores, sorted(scores, reverse=True))
            self.assertEqual(len(set(scores)), 3)
            for one in results:
                self.assertAlmostEqual(one["relevance_score"], self.share(model, DOCUMENTS[one["index"]]), places=4)
            self.assertGreater(body["usage"]["prompt_tokens"], 60)

    def test_answer(self):
        whole = self.ask(query=QUERY, documents=DOCUMENTS)[1]["results"]
        for path in ("/v1/rerank", "/rerank"):
            body = self.ask(path, query=QUERY, documents=[{"text": text} for text in DOCUMENTS], top_n=2, return_documents=True)[1]
            self.assertEqual([{k: one[k] for k in ("index", "relevance_score")} for one in body["results"]], whole[:2])
            self.assertEqual(body["results"][0]["document"], {"text": DOCUMENTS[whole[0]["index"]]})
        alone = self.ask(query=QUERY, documents=[DOCUMENTS[1]])[1]["results"][0]["relevance_score"]
        self.assertEqual([alone], [one["relevance_score"] for one in whole if one["index"] == 1], "alone as among others")

    def test_refusals(self):
        for fields, says in (({"documents": DOCUMENTS}, "query"), ({"query": QUERY}, "documents"), ({"query": QUERY, "documents": []}, "documents"),
                             ({"query": QUERY, "documents": ["x", 3]}, "documents: [1]"), ({"query": QUERY, "documents": ["x"], "top_n": 0}, "top_n"),
                             ({"query": QUERY, "documents": ["x", "fox " * 300]}, "documents: [1]"),
                             ({"query": QUERY, "documents": ["x"], "model": "demo-draft-f16"}, "no reranker")):
            status, body = self.ask(**fields)
            self.assertEqual(status, 400, body)
            self.assertIn(says, body["error"]["message"])
        status, body = self.ask("/v1/embeddings", input="x")
        self.assertEqual(status, 400, body)
        self.assertIn("/v1/rerank", body["error"]["message"])

    def test_damaged_heads(self):
        for name, rows, says in (("narrow", [[1.0] * 64] * 2, "64"), ("endless", [[math.inf] * 128] * 2, "not finite")):
            path = pathlib.Path(self.folder) / f"{name}.gguf"
            with_keys(pathlib.Path(DRAFT), path, {"llama.pooling_type": 4}, ("cls.output.weight", rows))
            with Server(path, "--threads", "2", "--ctx", "256") as server:
                status, body = server.json("POST", "/v1/rerank", {"query": QUERY, "documents": ["x"]})
                self.assertEqual(status, 500, body)
                self.assertIn(says, json.dumps(body))


ENCODERS = ROOT / "tests/data/encoders"
CROSS = ("cross-bert", "cross-xlm-roberta", "cross-modern-bert")


class CrossEncoders(Case):
    """Encoders that score a pair of texts: scores are the sigmoid of transformers' logits (tools/reference-models/encoders.py)."""

    @classmethod
    def setUpClass(cls):
        first, *others = (ENCODERS / f"{name}.gguf" for name in CROSS)
        cls.server = Server(first, *(arg for path in others for arg in ("--models", path)), "--threads", "2", "--parallel", "4",
                            "--kv", "f32")
        cls.addClassCleanup(cls.server.__exit__)

    def test_scores_are_transformers(self):
        for name in CROSS:
            wanted = json.loads((ENCODERS / f"{name}.json").read_text())
            status, body = self.server.json("POST", "/v1/rerank", {"model": name, "query": wanted["query"], "documents": wanted["documents"]})
            self.assertEqual(status, 200, body)
            self.assertEqual(body["usage"]["prompt_tokens"], wanted["tokens"])
            scores = {one["index"]: one["relevance_score"] for one in body["results"]}
            for index, logit in enumerate(wanted["logits"]):
                with self.subTest(model=name, document=wanted["documents"][index]):
                    self.assertAlmostEqual(scores[index], 1 / (1 + math.exp(-logit)), delta=2e-4)

    def test_it_embeds_nothing_and_writes_nothing(self):
        status, body = self.server.json("POST", "/v1/embeddings", {"model": "cross-bert", "input": "x"})
        self.assertEqual((status, "/v1/rerank" in body["error"]["message"]), (400, True), body)
        status, body = self.server.json("POST", "/v1/completions", {"model": "cross-bert", "prompt": "x"})
        self.assertEqual(status, 400, body)

    def test_a_pair_longer_than_its_positions(self):
        status, body = self.server.json("POST", "/v1/rerank", {"model": "cross-bert", "query": "x", "documents": ["a", "the " * 200]})
        self.assertEqual((status, "documents: [1]" in body["error"]["message"]), (400, True), body)

    def test_damaged_heads(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        wide = [[0.5] * 48]
        for name, keys, tensor, says in (("labels", {}, ("cls.output.weight", wide * 3), "3 labels"), ("narrow", {}, ("cls.weight", [[1.0] * 24]), "24")):
            path = folder / f"{name}.gguf"
            with_keys(ENCODERS / "bert.gguf", path, keys, tensor)
            with Server(path, "--threads", "2") as server:
                status, body = server.json("POST", "/v1/rerank", {"query": QUERY, "documents": ["x"]})
                self.assertGreaterEqual(status, 400, body)
                self.assertIn(says, json.dumps(body))


if __name__ == "__main__":
    unittest.main()
