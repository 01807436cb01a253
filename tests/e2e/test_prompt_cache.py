"""The prompt cache on the disk through the program: a restarted server goes on where the first one was."""
import json
import os
import pathlib
import tempfile
import unittest

from harness import DEMO, ROOT, Case
from serving import Server, lines

MODEL = "demo-moe-q4_k_m"
TEXT = " ".join(json.loads(line)["prompt"] for line in (ROOT / "tests/data/eval240.jsonl").read_text().splitlines()[:60])
PROMPT = TEXT[:1500]


class PromptCache(Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "prompts"
        self.flags = ("--prompt-cache", self.folder, "--prompt-cache-after", "0", "--threads", "2")

    def enterContext(self, context):  # unittest's own came with Python 3.11
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def complete(self, server, **fields):
        status, whole = server.json("POST", "/v1/completions", {
            "model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **fields})
        self.assertEqual(status, 200, whole)
        return whole["choices"][0]["text"], whole["usage"], whole["timings"]

    def test_a_restarted_server_goes_on_where_the_first_was(self):
        with Server(DEMO, *self.flags) as server:
            text, usage, timings = self.complete(server)
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)
            self.assertEqual((timings["cache_n"], timings["prompt_n"]), (0, usage["prompt_tokens"]))
            again, usage, _ = self.complete(server)  # from memory
            self.assertEqual(again, text)
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 1)
            self.assertEqual(server.metric("millrace_prompt_cache_tokens_total"), 0)
        prompt = usage["prompt_tokens"]
        self.assertGreater(prompt, 200)
        blocks = (prompt - 1) // 64
        self.assertGreaterEqual(len(list(self.folder.iterdir())), blocks)
        with Server(DEMO, *self.flags) as server:
            again, usage, timings = self.complete(server)
            self.assertEqual(again, text)
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 64 * blocks)
            self.assertEqual((timings["cache_n"], timings["prompt_n"]), (64 * blocks, prompt - 64 * blocks))
            self.assertEqual(server.metric("millrace_prompt_cache_tokens_total"), 64 * blocks)
            self.assertGreater(server.metric("millrace_prompt_cache_bytes_total"), 64 * blocks)
            self.assertGreaterEqual(server.metric("millrace_prompt_cache_files"), blocks)

    def test_each_api_says_what_was_cached(self):
        question = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": PROMPT}]}
        with Server(DEMO, *self.flags) as server:
            _, first = server.json("POST", "/v1/messages", question)
            self.assertEqual(first["usage"]["cache_read_input_tokens"], 0)
        with Server(DEMO, *self.flags) as server:
            events = [json.loads(line) for line in lines(server.stream("/v1/messages", {**question, "stream": True}))]
            last = [event["usage"] for event in events if event["type"] == "message_delta"][0]
            self.assertGreaterEqual(last["cache_read_input_tokens"], 192)
            begun = [event["message"]["usage"] for event in events if event["type"] == "message_start"]
            self.assertEqual(events[0]["type"], "message_start")
            self.assertEqual([{**one, "output_tokens": last["output_tokens"]} for one in begun], [last], "the first event tells it, too")
            self.assertEqual(last["cache_read_input_tokens"] + last["input_tokens"], first["usage"]["input_tokens"])
            _, response = server.json("POST", "/v1/responses", {"model": MODEL, "input": PROMPT, "max_output_tokens": 4})
            self.assertGreaterEqual(response["usage"]["input_tokens_details"]["cached_tokens"], 192)

    def test_the_folder_is_private_and_under_its_cap(self):
        with Server(DEMO, *self.flags, "--prompt-cache-size", "300k") as server:
            self.complete(server)
            self.complete(server, prompt=TEXT[1500:3000])
        files = list(self.folder.iterdir())
        self.assertGreater(len(files), 0)
        self.assertLessEqual(sum(file.stat().st_size for file in files), 300_000)
        self.assertEqual(self.folder.stat().st_mode & 0o777, 0o700)
        self.assertTrue(all(file.stat().st_mode & 0o777 == 0o600 for file in files))

    def test_run_keeps_nothing_unless_asked(self):
        home = self.folder.parent
        env = {"XDG_CACHE_HOME": str(home), "MILLRACE_PROMPT_CACHE": ""}
        args = ("-q", "run", DEMO, "--raw", "--temp", "0", "-n", "4", "--prompt-cache-after", "0", "-p", PROMPT)
        plain = self.ok(*args, env=env)
        self.assertFalse((home / "millrace/prompts").exists())
        self.assertEqual(self.ok(*args, "--prompt-cache", "on", env=env).out, plain.out)
        self.assertGreater(len(list((home / "millrace/prompts").iterdir())), 3)
        again = self.ok(*args, "--prompt-cache", "on", env=env)
        self.assertEqual(again.out, plain.out)
        self.refused(*args, "--prompt-cache-size", "much", says="--prompt-cache-size")

    def test_a_folder_nobody_may_write_to_stops_nothing(self):
        with Server(DEMO, "--prompt-cache", "/proc/nothing/here", "--threads", "2") as server:
            self.complete(server)
            self.assertIn("prompt cache off", server.messages())


if __name__ == "__main__":
    unittest.main()
