"""A file of requests: the answers are those of single runs, a killed run goes on, bad lines stop nothing."""
import base64
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import harness
from harness import DEMO, MILLRACE, Case

LANDS = ["France", "Italy", "Spain", "Norway", "Japan", "Egypt", "Peru", "Kenya"]


def chat(custom_id, text, **body):
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "demo", "messages": [{"role": "user", "content": text}], "temperature": 0, **body}}


class Batch(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.input, self.output = pathlib.Path(folder.name, "in.jsonl"), pathlib.Path(folder.name, "out.jsonl")

    def ask(self, requests):
        self.input.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in requests))

    def answers(self):
        """By custom_id; each stands there once."""
        lines = [json.loads(line) for line in self.output.read_text().splitlines()]
        by_id = {line["custom_id"]: line for line in lines}
        self.assertEqual(len(by_id), len(lines))
        return by_id

    def content(self, line):
        self.assertIsNone(line["error"], line)
        self.assertEqual(line["response"]["status_code"], 200, line)
        return line["response"]["body"]["choices"][0]["message"]["content"]

    def batch(self, *args, **kwargs):
        return self.ok("batch", self.input, self.output, DEMO, *args, **kwargs)

    def test_the_texts_of_single_runs_with_and_without_memory(self):
        questions = [f"What is the capital of {land}?" for land in LANDS] + ["Tell me a story about a fox and a lantern."]
        single = self.ok("run", DEMO, "--temp", "0", "-n", "60", *(w for q in questions for w in ("-p", q))).out
        texts = re.split(r"^> .*\n", single, flags=re.M)[1:]
        self.ask([chat(f"q{i}", question, max_tokens=60) for i, question in enumerate(questions)])
        for args in ([], ["--ram", "8M"], ["--sequences", "1"]):
            self.output.unlink(missing_ok=True)
            outcome = self.batch(*args)
            answers = self.answers()
            for i, text in enumerate(texts):
                self.assertEqual(self.content(answers[f"q{i}"]).strip(), text.strip(), args)
            self.assertRegex(outcome.err, r"9 requests in [\d.]+ s: \d+ prompt tokens.*, \d+ answer tokens, [\d.]+ tok/s")
        usage = answers["q0"]["response"]["body"]["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])

    def test_embeddings_are_those_the_command_gives(self):
        texts = ["A fox with a red lantern", "The capital of France", "x"]
        def embed(custom_id, **body):
            return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": {"model": "demo", **body}}
        self.ask([embed("all", input=texts), embed("one", input=texts[1]), embed("short", input=texts[0], dimensions=4),
                  embed("base64", input=texts[2], encoding_format="base64"), embed("none", input=""),
                  embed("wide", input="x", dimensions=100_000), embed("long", input="fox " * 9000),
                  chat("words", "What is the capital of France?", max_tokens=20)])
        self.batch("-c", "512")
        answers = self.answers()
        vectors = lambda name: [one["embedding"] for one in answers[name]["response"]["body"]["data"]]
        outcome = self.ok("embed", DEMO, *texts)
        self.assertEqual(vectors("all"), [json.loads(line) for line in outcome.out.splitlines()])
        self.assertEqual(vectors("one"), vectors("all")[1:2])
        self.assertEqual(len(vectors("short")[0]), 4)
        self.assertAlmostEqual(sum(x * x for x in vectors("short")[0]), 1, places=5)
        self.assertEqual(list(struct.unpack(f"<{len(vectors('all')[2])}f", base64.b64decode(vectors("base64")[0]))),
                         [struct.unpack("f", struct.pack("f", x))[0] for x in vectors("all")[2]])
        self.assertGreater(answers["all"]["response"]["body"]["usage"]["prompt_tokens"], 6)
        for name, field in (("none", "input"), ("wide", "dimensions"), ("long", "input")):
            self.assertEqual(answers[name]["response"]["status_code"], 400, answers[name])
            self.assertIn(field, answers[name]["response"]["body"]["error"]["message"])
        self.assertIn("Paris", self.content(answers["words"]))

    @unittest.skipIf(harness.SANITIZED, "sanitizers multiply memory")
    def test_stays_under_its_budget(self):
        self.ask([chat(f"q{i}", f"What is the capital of {LANDS[i % 8]}? " * (1 + i % 9), max_tokens=40) for i in range(30)])
        self.assertLessEqual(self.batch("--ram", "8M", measured=True).held_bytes, 8_000_000)
        self.assertEqual(len(self.answers()), 30)

    def test_beginnings_are_shared(self):
        story = "Once upon a time there was a clever fox named Oscar. Oscar had a red lantern and carried it everywhere. " * 4
        self.ask([chat(f"q{i}", f"{story} What is the capital of {land}?", max_tokens=8) for i, land in enumerate(LANDS)])
        shared = int(re.search(r"\((\d+) shared\)", self.batch().err).group(1))
        self.assertGreaterEqual(shared, 64 * (len(LANDS) - 1))

    def test_all_endpoints_and_forms(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "rank": {"type": "integer"}},
                  "required": ["city", "rank"], "additionalProperties": False}
        tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
        self.ask([
            chat("n", "Tell me a story.", n=2, temperature=1, seed=3, max_tokens=12, logprobs=True),
            chat("schema", "What is the capital of France?", max_tokens=150,
                 response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}),
            chat("tool", "What is the capital of France?", max_tokens=150, tools=[tool], tool_choice="required"),
            {"custom_id": "completion", "method": "POST", "url": "/v1/completions",
             "body": {"prompt": ["Once upon", "One day"], "temperature": 0, "max_tokens": 6}},
            {"custom_id": "response", "method": "POST", "url": "/v1/responses",
             "body": {"model": "demo", "input": "What is the capital of Italy?", "temperature": 0}},
        ])
        self.batch()
        body = {name: line["response"]["body"] for name, line in self.answers().items()}
        self.assertEqual(len(body["n"]["choices"]), 2)
        self.assertNotEqual(*(choice["message"]["content"] for choice in body["n"]["choices"]))
        self.assertTrue(body["n"]["choices"][1]["logprobs"]["content"])
        self.assertEqual(list(json.loads(body["schema"]["choices"][0]["message"]["content"])), ["city", "rank"])
        call = body["tool"]["choices"][0]["message"]["tool_calls"][0]["function"]
        self.assertEqual((call["name"], list(json.loads(call["arguments"]))), ("look", ["city", "rank"]))
        self.assertEqual([choice["index"] for choice in body["completion"]["choices"]], [0, 1])
        self.assertTrue(all(choice["text"] for choice in body["completion"]["choices"]))
        self.assertIn("Rome", body["response"]["output"][0]["content"][0]["text"])

    def test_bad_lines_are_told_and_stop_nothing(self):
        good = chat("good", "What is the capital of Spain?")
        self.ask(['{"custom_id": "torn", ', "", {**good, "custom_id": None}, {**good, "custom_id": "get", "method": "GET"},
                  {**good, "custom_id": "url", "url": "/v1/audio"}, {**good, "custom_id": "body", "body": 3},
                  chat("hot", "Hello", temperature=9), chat("long", "word " * 5000), good,
                  {"custom_id": "picture", "method": "POST", "url": "/v1/chat/completions",
                   "body": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}}])
        outcome = self.batch()
        self.assertIn("8 of them failed", outcome.err)
        self.assertIn("'demo'", outcome.err)
        lines = [json.loads(line) for line in self.output.read_text().splitlines()]
        self.assertEqual(sorted((line["error"]["code"], line["error"]["line"]) for line in lines if line["error"]),
                         [("invalid_body", 6), ("invalid_json_line", 1), ("invalid_method", 4), ("invalid_url", 5),
                          ("missing_custom_id", 3)])
        by_id = {line["custom_id"]: line for line in lines}
        for name, param in (("hot", "temperature"), ("picture", "messages")):
            self.assertEqual(by_id[name]["response"]["status_code"], 400)
            self.assertEqual(by_id[name]["response"]["body"]["error"]["param"], param)
        self.assertIn("context", by_id["long"]["response"]["body"]["error"]["message"])
        self.assertIn("Madrid", self.content(by_id["good"]))
        before = self.output.read_bytes()
        self.assertIn("9 of 9 requests are answered already", self.batch().err)
        self.assertEqual(self.output.read_bytes(), before)

    def start(self, *args):
        process = subprocess.Popen([MILLRACE, "batch", self.input, self.output, DEMO, *args], stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        end = time.time() + 60
        while time.time() < end and (not self.output.exists() or self.output.read_bytes().count(b"\n") < 3):
            time.sleep(0.01)
        return process

    def test_a_killed_run_goes_on(self):
        self.ask([chat(f"q{i}", "Tell me a story about a fox and a lantern.", temperature=1, seed=i + 1, max_tokens=100)
                  for i in range(30)])
        process = self.start("--sequences", "4", "--isa", "plain")
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        whole = self.output.read_bytes().splitlines()[:3]
        self.assertLess(self.output.read_bytes().count(b"\n"), 30)
        with open(self.output, "ab") as file:  # as if it had been killed in the middle of a line
            file.write(b'{"id":"batch_req_x","custom_id":"q5","respon')
        self.assertRegex(self.batch().err, r"\d+ of 30 requests are answered already; going on")
        self.assertEqual(set(self.answers()), {f"q{i}" for i in range(30)})
        self.assertEqual(self.output.read_bytes().splitlines()[:3], whole)
        again = {name: self.content(line) for name, line in self.answers().items()}
        self.output.unlink()
        self.batch()
        self.assertEqual(again, {name: self.content(line) for name, line in self.answers().items()})

    def test_ctrl_c_ends_cleanly(self):
        self.ask([chat(f"q{i}", "Tell me a story.", temperature=1, seed=i + 1, max_tokens=100) for i in range(30)])
        process = self.start("--sequences", "2", "--isa", "plain")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(20), 130)
        said = process.stderr.read().decode()
        done = len(self.answers())
        self.assertIn(f"{done} of 30 requests are answered; run the same command again to continue", said)
        self.assertTrue(all(line["response"]["status_code"] == 200 for line in self.answers().values()))
        self.batch()
        self.assertEqual(len(self.answers()), 30)

    def test_what_is_refused(self):
        self.ask([chat("a", "x"), chat("b", "x"), chat("a", "y")])
        self.refused("batch", self.input, self.output, DEMO, says=["lines 1 and 3", "custom_id"])
        self.refused("batch", self.input.parent / "none", self.output, DEMO, says="none")
        self.refused("batch", self.input.parent, self.output, DEMO, says="regular file")
        self.ask([chat("a", "x", max_tokens=1)])
        self.refused("batch", self.input, self.input, DEMO, says="is read by this command")
        self.refused("batch", self.input, self.output, "no-such-model", says="not found")
        self.assertFalse(self.output.exists())
        for text in ('{"id":"batch_req_1","custom_id":"z","response":{},"error":null}\n', "my notes\n", "my notes"):
            self.output.write_text(text)
            self.refused("batch", self.input, self.output, DEMO, says="another file")
            self.assertEqual(self.output.read_text(), text)
        self.input.write_text("\n\n")
        self.refused("batch", self.input, self.output, DEMO, says="no requests")

    def test_the_disk_fails(self):
        self.ask([chat(f"q{i}", "Tell me a story.", max_tokens=5) for i in range(30)])
        outcome = harness.run("batch", self.input, self.output, DEMO, "--ram", "8M", "-s", "2", "--inject-fault", "eio@40")
        self.assertIn(outcome.code, (0, 1), outcome.err)
        failed = [line for line in self.answers().values() if line["response"]["status_code"] == 500]
        self.assertTrue(failed)


if __name__ == "__main__":
    unittest.main()
