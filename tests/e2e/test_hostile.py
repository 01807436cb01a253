"""Requests whose fields are of every odd kind, at every endpoint, and clients that do not read what they asked for: each gets
an answer or an end, none a 5xx of ours, and what the server holds stays bounded. MILLRACE_ODD=4000 runs the full length."""
import json
import os
import pathlib
import random
import socket
import threading
import time
import unittest

from harness import DEMO, DRAFT, SANITIZED, Case
from serving import Server

ODD = int(os.environ.get("MILLRACE_ODD", "400"))
MODEL = "demo-draft-f16"
MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
CUSTOM = {"type": "custom", "name": "move", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"up\" | \"down\""}}
SAMPLING = {"temperature": 1, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 1, "stop": ["x"], "logit_bias": {"5": 1}}
FORMS = {"grammar": "root ::= \"a\"", "guided_regex": "a+", "guided_choice": ["a"], "structured_outputs": {"json": {"type": "integer"}},
         "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}}
# Each endpoint with all the fields it knows; what runs is a few of them, one of which is odd.
ENDPOINTS = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2, "n": 1, "stream": False, "logprobs": True, "top_logprobs": 1, "tools": [TOOL],
                             "tool_choice": "auto", "stream_options": {"include_usage": True}, "reasoning_effort": "low", **SAMPLING, **FORMS},
    "/v1/completions": {"prompt": "a", "max_tokens": 2, "echo": True, "suffix": None, **SAMPLING, **FORMS},
    "/v1/responses": {"input": "a", "max_output_tokens": 2, "instructions": "b", "tools": [CUSTOM], "tool_choice": "auto",
                      "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "stream": False},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2, "system": "b", "tools": [{"name": "look", "input_schema": {"type": "object"}}],
                     "tool_choice": {"type": "auto"}, "stop_sequences": ["x"], "thinking": {"type": "disabled"}, "output_config": {}},
    "/v1/messages/count_tokens": {"messages": MESSAGES, "system": "b"},
    "/v1/embeddings": {"input": ["a"], "encoding_format": "float", "dimensions": 8},
    "/api/chat": {"messages": MESSAGES, "stream": False, "format": {"type": "integer"}, "options": {"num_predict": 2, "num_ctx": 64}, "tools": [TOOL],
                  "think": False, "keep_alive": "5m"},
    "/api/generate": {"prompt": "a", "stream": False, "system": "b", "template": "{{ messages }}", "raw": False, "options": {"num_predict": 2}},
    "/api/embed": {"input": "a", "truncate": True, "dimensions": 4},
    "/api/show": {"verbose": True},
    "/tokenize": {"content": "a", "add_special": True, "with_pieces": True},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": MESSAGES, "tools": [TOOL]},
}


def deep(levels):
    value = "x"
    for _ in range(levels):
        value = [value]
    return value


VALUES = [None, True, False, 0, -1, 0.5, 1e308, -1e308, 2**63, -2**63, 2**64, "", " ", "x" * 5000, "\u0000", "\u202e\ufeff", "\ud7ff😀", [], {}, [None], [[]],
          {"": ""}, {"type": "x"}, {"type": "grammar", "grammar": "root ::= root"}, {"type": []}, deep(60), deep(150), list(range(300)),
          [{"role": "user"}], [{"role": 1, "content": 2}], [{"type": "custom"}], "root ::= (", "(" * 300, {"json": {"$ref": "#"}}, "-1h", "\\u0000"]


def odd(value, rng):
    """The same with one place in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.6:
        key = rng.choice(list(value))
        return {**value, key: odd(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return value[:at] + [odd(value[at], rng)] + value[at + 1:]
    return rng.choice(VALUES)


class OddFields(Case):
    def test_no_field_gives_a_fault_of_ours(self):
        rng = random.Random(17)
        with Server(DRAFT, "--parallel", "4", "-c", "512", "--threads", "2", "--log-format", "off") as server:
            for i in range(ODD):
                path, fields = list(ENDPOINTS.items())[i % len(ENDPOINTS)]
                body = {"model": MODEL, "temperature": 0}
                needed = {"messages", "prompt", "input", "max_tokens", "max_output_tokens", "content", "tokens", "options", "stream"}
                body.update({name: value for name, value in fields.items() if name in needed})
                name = rng.choice([*fields, "model"])
                body[name] = odd(fields.get(name, MODEL), rng)
                if path.startswith("/v1") and body.get("max_tokens") in (None, -1):
                    body["max_tokens"] = 2  # an answer of all the context is right, and long
                begin = time.monotonic()
                status, _, content = server.request("POST", path, body)
                with self.subTest(path=path, field=name, value=str(body[name])[:200]):
                    self.assertTrue(200 <= status < 500, (status, content[:300]))
                    self.assertLess(time.monotonic() - begin, 20)
                    if status >= 400:
                        self.assertIn("error", json.loads(content))
            self.assertEqual(server.request("GET", "/health")[0], 200)


class SlowReaders(Case):
    def resident(self, server):
        text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS"))

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
            before, clients = self.resident(server), []
            data = json.dumps(body).encode()
            for _ in range(8):
                client = socket.socket()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect((server.host, server.port))
                client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
                clients.append(client)
            most, end = 0, time.monotonic() + 10
            while time.monotonic() < end:
                most = max(most, self.resident(server) - before)
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
