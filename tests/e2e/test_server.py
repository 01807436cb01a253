"""The server as any client sees it: both APIs' shapes, refusals, limits, clients that leave, and its end."""
import http.client
import json
import os
import signal
import socket
import threading
import time
import unittest

from harness import DEMO, DRAFT, SANITIZED, WINDOWS, Case, run
from serving import Server, lines

MODEL = "demo-moe-q4_k_m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
STORY = [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]


class Shared(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(DEMO, "--models", DRAFT, "--threads", "2", "--parallel", "8", "--queue", "8")
        cls.addClassCleanup(cls.server.__exit__)

    def chat(self, **fields):
        body = {"model": MODEL, "messages": QUESTION, "temperature": 0, **fields}
        return self.server.json("POST", "/v1/chat/completions", body)


class Ollama(Shared):
    def test_chat_streams_by_default(self):
        response = self.server.stream("/api/chat", {"model": MODEL, "messages": QUESTION, "options": {"temperature": 0}})
        self.assertEqual(response.getheader("Content-Type"), "application/x-ndjson")
        chunks = [json.loads(line) for line in lines(response)]
        self.assertEqual("".join(c["message"]["content"] for c in chunks), ANSWER)
        self.assertTrue(all(not c["done"] for c in chunks[:-1]))
        last = chunks[-1]
        self.assertEqual((last["done"], last["done_reason"]), (True, "stop"))
        for field in ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
                      "eval_duration"):
            self.assertIsInstance(last[field], int, field)
        self.assertRegex(last["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z$")

    def test_generate(self):
        status, whole = self.server.json("POST", "/api/generate", {
            "model": MODEL, "prompt": QUESTION[0]["content"], "stream": False, "options": {"temperature": 0}})
        self.assertEqual((status, whole["response"], whole["done_reason"]), (200, ANSWER, "stop"))
        status, raw = self.server.json("POST", "/api/generate", {
            "model": MODEL, "raw": True, "stream": False, "options": {"temperature": 0, "num_predict": 12, "unknown": 1},
            "prompt": f"<|im_start|>user\n{QUESTION[0]['content']}<|im_end|>\n<|im_start|>assistant\n"})
        self.assertEqual((status, raw["response"]), (200, ANSWER))

    def test_generate_goes_on_from_the_context_of_an_answer(self):
        ask = {"model": MODEL, "stream": False, "options": {"temperature": 0, "num_predict": 24}}
        generate = lambda **more: self.server.json("POST", "/api/generate", {**ask, **more})
        first = generate(prompt=QUESTION[0]["content"])[1]
        self.assertEqual(len(first["context"]), first["prompt_eval_count"] + first["eval_count"] + 1, "and the token that ended it")
        detokenized = self.server.json("POST", "/detokenize", {"model": MODEL, "tokens": first["context"]})[1]["content"]
        self.assertIn(QUESTION[0]["content"], detokenized)
        self.assertTrue(detokenized.endswith(ANSWER + "<|im_end|>"), detokenized)
        status, second = generate(prompt="And of Italy?", context=first["context"])
        self.assertEqual(status, 200, second)
        added = second["context"][len(first["context"]):]
        self.assertEqual(second["context"][:len(first["context"])], first["context"])
        self.assertIn("And of Italy?", self.server.json("POST", "/detokenize", {"model": MODEL, "tokens": added})[1]["content"])
        self.assertEqual(second["prompt_eval_count"], len(second["context"]) - second["eval_count"] - (second["done_reason"] == "stop"))
        chat = self.server.stream("/api/generate", {**ask, "prompt": "And of Italy?", "context": first["context"], "stream": True})
        self.assertEqual(json.loads(list(lines(chat))[-1])["context"], second["context"], "a stream's last line tells it")
        # What is too long for the context loses its beginning, and what is no context is refused by name.
        status, cut = generate(prompt="And of Italy?", context=first["context"] * 40, options={"temperature": 0, "num_predict": 2, "num_ctx": 128})
        self.assertEqual(status, 200, cut)
        self.assertLessEqual(cut["prompt_eval_count"], 128)
        for more in ({"context": "x"}, {"context": [1, "a"]}, {"context": [-1]}, {"context": [1 << 30]}, {"context": [1], "raw": True}):
            status, body = generate(prompt="Hi", **more)
            self.assertEqual((status, body["error"].split(":")[0]), (400, "context"), more)
        self.assertNotIn("context", generate(prompt="Hi", raw=True)[1])

    def test_formats_that_are_texts(self):
        for format, expected in (("", 200), (None, 200), ("json", 200), ("yaml", 400), ("{}", 400), (7, 400)):
            status, body = self.server.json("POST", "/api/generate", {"model": MODEL, "prompt": "Hi", "format": format, "stream": False,
                                                                       "options": {"num_predict": 4}})
            self.assertEqual(status, expected, (format, body))

    def test_loading_and_unloading(self):
        name = "demo-draft-f16"
        loaded = lambda: [m["name"] for m in self.server.json("GET", "/api/ps")[1]["models"]]
        status, answer = self.server.json("POST", "/api/generate", {"model": name, "stream": False})
        self.assertEqual((status, answer["done_reason"]), (200, "load"))
        self.assertIn(name + ":latest", loaded())
        status, answer = self.server.json("POST", "/api/chat", {"model": name, "messages": [], "keep_alive": 0, "stream": False})
        self.assertEqual(answer["done_reason"], "unload")
        for _ in range(100):
            if name + ":latest" not in loaded():
                break
            time.sleep(0.05)
        self.assertNotIn(name + ":latest", loaded())

    def test_lists(self):
        _, tags = self.server.json("GET", "/api/tags")
        self.assertEqual({m["name"] for m in tags["models"]}, {MODEL + ":latest", "demo-draft-f16:latest"})
        details = next(m for m in tags["models"] if m["name"] == MODEL + ":latest")["details"]
        self.assertEqual((details["format"], details["family"], details["quantization_level"]), ("gguf", "qwen3moe", "Q4_K_M"))
        _, shown = self.server.json("POST", "/api/show", {"name": MODEL})
        self.assertIsInstance(shown["template"], str)
        self.assertIsInstance(shown["parameters"], str)
        self.assertIn("qwen3moe.context_length", shown["model_info"])
        _, running = self.server.json("GET", "/api/ps")
        self.assertIn("residency", running["models"][0])
        _, version = self.server.json("GET", "/api/version")
        self.assertRegex(version["version"], r"^\d+\.\d+\.\d+$")
        status, _, front = self.server.request("GET", "/", headers={"Accept": "*/*"})
        self.assertEqual((status, front), (200, b"Ollama is running"))
        self.assertEqual(self.server.request("HEAD", "/")[0], 200)
        self.assertEqual(self.server.request("HEAD", "/api/tags")[0], 200)

    def test_errors(self):
        for body, code, says in (({"model": "none", "messages": QUESTION}, 404, "not found"), ({}, 400, "model"),
                                 ("{", 400, "JSON"), ({"model": MODEL, "messages": QUESTION, "format": 7}, 400, "format"),
                                 ({"model": MODEL, "messages": QUESTION, "options": {"top_p": 7}}, 400, "top_p"),
                                 ({"model": MODEL, "messages": QUESTION, "keep_alive": "soon"}, 400, "keep_alive")):
            status, headers, content = self.server.request("POST", "/api/chat", body)
            self.assertEqual(status, code, content)
            self.assertEqual(headers["content-type"], "application/json")
            self.assertIn(says, json.loads(content)["error"])


class OpenAI(Shared):
    def test_chat(self):
        status, body = self.chat()
        self.assertEqual(status, 200)
        choice = body["choices"][0]
        self.assertEqual((choice["message"]["role"], choice["message"]["content"], choice["finish_reason"]),
                         ("assistant", ANSWER, "stop"))
        self.assertEqual(body["usage"]["total_tokens"], body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"])

    def test_stream(self):
        response = self.server.stream("/v1/chat/completions", {
            "model": MODEL, "messages": QUESTION, "temperature": 0, "stream": True, "return_progress": True,
            "stream_options": {"include_usage": True}})
        self.assertEqual(response.getheader("Content-Type"), "text/event-stream")
        received = list(lines(response))
        self.assertEqual(received[-1], "[DONE]")
        chunks = [json.loads(line) for line in received[:-1]]
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]), ANSWER)
        self.assertTrue(any("prompt_progress" in c for c in chunks))
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertGreater(chunks[-1]["usage"]["completion_tokens"], 5)
        self.assertEqual([c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1], "stop")

    def test_choices_stops_seeds_and_bias(self):
        _, many = self.chat(n=3, temperature=1.5, seed=5, max_tokens=12, messages=STORY)
        self.assertEqual([c["index"] for c in many["choices"]], [0, 1, 2])
        self.assertEqual(len({c["message"]["content"] for c in many["choices"]}), 3)
        _, again = self.chat(n=3, temperature=1.5, seed=5, max_tokens=12, messages=STORY)
        self.assertEqual([c["message"] for c in many["choices"]], [c["message"] for c in again["choices"]])
        _, stopped = self.chat(stop=["France is", "x y z"])
        self.assertEqual(stopped["choices"][0]["message"]["content"], "The capital of ")
        _, tokens = self.server.json("POST", "/tokenize", {"model": MODEL, "content": "The"})
        _, biased = self.chat(logit_bias={str(tokens["tokens"][0]): -100}, max_tokens=3)
        self.assertFalse(biased["choices"][0]["message"]["content"].startswith("The "))
        _, cut = self.chat(max_completion_tokens=2)
        self.assertEqual((cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]), ("length", 2))

    def test_logprobs(self):
        _, body = self.chat(logprobs=True, top_logprobs=3, max_tokens=4)
        content = body["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 4)
        self.assertEqual("".join(t["token"] for t in content), body["choices"][0]["message"]["content"])
        for token in content:
            self.assertEqual(len(token["top_logprobs"]), 3)
            self.assertEqual(token["top_logprobs"][0]["token"], token["token"])
            self.assertLessEqual(token["logprob"], 0)

    def test_completions(self):
        prompt = f"<|im_start|>user\n{QUESTION[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
        status, body = self.server.json("POST", "/v1/completions", {
            "model": MODEL, "prompt": [prompt, "Once upon"], "temperature": 0, "max_tokens": 20, "logprobs": 1})
        self.assertEqual(status, 200)
        self.assertEqual([c["index"] for c in body["choices"]], [0, 1])
        self.assertEqual(body["choices"][0]["text"], ANSWER)
        self.assertEqual("".join(body["choices"][0]["logprobs"]["tokens"]), ANSWER)

    def test_helpers(self):
        _, tokens = self.server.json("POST", "/tokenize", {"model": MODEL, "content": "The capital"})
        _, text = self.server.json("POST", "/detokenize", {"model": MODEL, "tokens": tokens["tokens"]})
        self.assertEqual(text["content"], "The capital")
        _, applied = self.server.json("POST", "/apply-template", {"model": MODEL, "messages": QUESTION})
        self.assertTrue(applied["prompt"].endswith("<|im_start|>assistant\n"))
        self.assertEqual(self.server.json("GET", f"/props?model={MODEL}")[1]["total_slots"], 8)
        self.assertEqual(len(self.server.json("GET", f"/slots?model={MODEL}")[1]), 8)
        self.assertEqual(self.server.json("GET", f"/v1/models/{MODEL}")[1]["object"], "model")

    def test_errors(self):
        long = [{"role": "user", "content": "a fox " * 5000}]
        for fields, code, param in (({"model": "none"}, 404, None), ({"temperature": 9}, 400, "temperature"),
                                    ({"messages": []}, 400, "messages"), ({"messages": long}, 400, None),
                                    ({"n": 0}, 400, "n"), ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
                                    ({"tool_choice": "required"}, 400, "tool_choice"),
                                    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages")):
            status, body = self.chat(**fields)
            self.assertEqual(status, code, body)
            self.assertEqual(set(body["error"]), {"message", "type", "param", "code"})
            self.assertEqual(body["error"]["param"], param)
        self.assertEqual(self.chat(messages=long)[1]["error"]["code"], "context_length_exceeded")
        nested = '{"model":"x","messages":' + "[" * 5000 + "]" * 5000 + "}"
        self.assertEqual(self.server.request("POST", "/v1/chat/completions", nested)[0], 400)
        self.assertEqual(self.server.request("GET", "/nowhere")[0], 404)
        self.assertEqual(self.server.request("POST", "/v1/chat/completions", "")[0], 400)


class Together(Shared):
    def test_streams_beside_each_other_say_what_each_says_alone(self):
        questions = ["What is the capital of France?", "Tell me a short story.", "Who are you?", "What is 2 + 2?"]
        alone = {q: self.chat(messages=[{"role": "user", "content": q}], max_tokens=60)[1]["choices"][0]["message"]["content"]
                 for q in questions}
        results, threads = [], []

        def ask(question):
            response = self.server.stream("/v1/chat/completions", {
                "model": MODEL, "messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True,
                "max_tokens": 60})
            chunks = [json.loads(line) for line in lines(response) if line != "[DONE]"]
            results.append((question, "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)))

        for i in range(16):
            threads.append(threading.Thread(target=ask, args=(questions[i % 4],)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 16)
        for question, text in results:
            self.assertEqual(text, alone[question])

    def test_a_client_that_leaves_stops_its_request(self):
        cancelled = self.server.metric("millrace_requests_cancelled_total")
        for stream in (True, False):
            raw = socket.create_connection((self.server.host, self.server.port))
            body = json.dumps({"model": MODEL, "messages": STORY, "stream": stream, "max_tokens": 1900,
                               "logit_bias": {}, "temperature": 2, "ignore_eos": True})
            raw.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            self.wait_for("millrace_batch_sequences", 1)
            raw.close()
            self.wait_for("millrace_batch_sequences", 0)
        self.assertEqual(self.server.metric("millrace_requests_cancelled_total"), cancelled + 2)

    def wait_for(self, metric, value):
        end = time.monotonic() + 60
        while self.server.metric(metric) != value and time.monotonic() < end:
            time.sleep(0.005)
        self.assertEqual(self.server.metric(metric), value, metric)

    def test_a_connection_that_ends_says_so(self):
        """Clients send their next request on a connection of which nobody told them that it ends."""
        asked = [("GET", "/v1/files", None), ("POST", "/api/push", "{}"), ("POST", "/api/tags", "{}"), ("DELETE", "/v1/files/x", None),
                 ("POST", "/api/chat", "no JSON"), ("POST", "/api/show", '{"model": "nothing"}'), ("GET", "/api/version", None)]
        stayed = 0
        for method, path, body in asked:
            with self.subTest(method=method, path=path):
                connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
                connection.request(method, path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                if not response.will_close:
                    stayed += 1
                    connection.request("GET", "/api/version")
                    self.assertEqual(connection.getresponse().status, 200)
                connection.close()
        self.assertGreaterEqual(stayed, 3, "a word that the server does not like is no reason to end a connection")

    def test_the_queue_is_bounded(self):
        codes, threads = [], []

        def ask():
            codes.append(self.chat(messages=STORY, max_tokens=200, ignore_eos=True)[0])

        for _ in range(40):
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self.assertEqual(set(codes), {200, 503})
        self.assertGreaterEqual(codes.count(200), 16)


class Start(Case):
    def test_a_model_that_is_not_there_is_told_before_it_listens(self):
        outcome = run("serve", "-m", "no-such-model.gguf", "--port", 0, timeout=20)
        self.assertEqual(outcome.code, 1)
        self.assertIn("model 'no-such-model.gguf' not found", outcome.err)
        self.assertNotIn("Listening", outcome.out)


class Guarded(Case):
    def test_an_empty_key_protects_nothing_and_is_refused(self):
        for args, env in ((("--api-key", ""), {}), (("--api-key", "good", "--api-key", ""), {}), ((), {"MILLRACE_API_KEY": ""})):
            outcome = run("serve", DRAFT, "--port", 0, *args, env=env, timeout=20)
            self.assertNotEqual(outcome.code, 0, args)
            self.assertIn("would protect nothing", outcome.err, args)

    def test_keys(self):
        with Server(DRAFT, "--api-key", "first", "--api-key", "second") as server:
            self.assertEqual(server.request("GET", "/v1/models")[0], 401)
            self.assertEqual(server.json("GET", "/v1/models", headers={"Authorization": "Bearer wrong"})[1]["error"]["code"],
                             "invalid_api_key")
            self.assertEqual(server.request("GET", "/v1/models", headers={"Authorization": "Bearer second"})[0], 200)
            self.assertEqual(server.request("GET", "/api/tags", headers={"X-Api-Key": "first"})[0], 200)
            self.assertIn(server.request("GET", "/health")[0], (200, 503))
            # What follows a refused body on the same connection is not taken for a request.
            self.assertEqual(server.request("POST", "/api/chat", "GET /x HTTP/1.1\r\n\r\n")[0], 401)

    def test_hosts_and_origins(self):
        with Server(DRAFT) as server:
            self.assertEqual(server.request("GET", "/api/tags", headers={"Host": "evil.example"})[0], 403)
            self.assertEqual(server.request("GET", "/api/tags", headers={"Host": f"localhost:{server.port}"})[0], 200)
            self.assertEqual(server.request("GET", "/api/tags", headers={"Origin": "https://evil.example"})[0], 403)
            status, headers, _ = server.request("OPTIONS", "/v1/chat/completions", headers={
                "Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"})
            self.assertEqual(status, 204)
            self.assertEqual(headers["access-control-allow-origin"], "http://localhost:3000")
            self.assertIn("x-stainless-os", headers["access-control-allow-headers"])

    @unittest.skipIf(WINDOWS, "Windows has no signals")
    def test_starts_fast_and_ends_in_time(self):
        with Server(DEMO) as server:
            response = server.stream("/v1/chat/completions", {"model": MODEL, "messages": QUESTION, "stream": True})
            for line in lines(response):
                if json.loads(line)["choices"][0]["delta"].get("content"):
                    break
            response.connection.close()
            if not SANITIZED:
                self.assertLess(time.monotonic() - server.began, 1.0)
            story = server.stream("/v1/chat/completions", {"model": MODEL, "messages": STORY, "stream": True,
                                                           "max_tokens": 2000, "ignore_eos": True})
            ended = []
            reader = threading.Thread(target=lambda: ended.extend(lines(story)))
            reader.start()
            seconds, code = server.stop()
            reader.join()
            self.assertLess(seconds, 5)
            self.assertEqual(code, 0)
            self.assertTrue(ended[-1] == "[DONE]" or "error" in json.loads(ended[-1]), ended[-1])

    @unittest.skipIf(WINDOWS, "Windows has no signals")
    def test_drains(self):
        with Server(DEMO, "--drain") as server:
            body = {"model": MODEL, "messages": STORY, "max_tokens": 300, "ignore_eos": True}
            story = server.stream("/v1/chat/completions", {**body, "stream": True})
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            while server.request("GET", "/health")[0] == 200:
                self.assertLess(time.monotonic() - begin, 10)
                time.sleep(0.05)
            status, _, said = server.request("GET", "/health")
            self.assertEqual((status, json.loads(said)["status"]), (503, "draining"))
            # What a balancer has sent before it asked is answered, too.
            self.assertEqual(server.request("POST", "/v1/chat/completions", {**body, "max_tokens": 2})[0], 200)
            self.assertEqual(list(lines(story))[-1], "[DONE]")
            answered = time.monotonic()
            self.assertEqual(server.process.wait(30), 0)
            self.assertGreater(time.monotonic() - answered, 2, "a balancer has the time to notice")

    @unittest.skipIf(WINDOWS, "Windows has no signals")
    def test_daemon(self):
        import signal
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            pid_file = os.path.join(folder, "pid")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            self.ok("serve", DRAFT, "--daemon", "--pid-file", pid_file, "--port", port)
            try:
                for _ in range(200):
                    if "demo-draft" in run("ps", "--port", port).out:
                        break
                    time.sleep(0.05)
                self.assertIn("demo-draft-f16:latest", self.ok("ps", "--port", port).out)
                self.ok("stop", "demo-draft-f16", "--port", port)
                self.refused("stop", "nothing", "--port", port, says="not found")
            finally:
                pid = int(open(pid_file).read())
                os.kill(pid, signal.SIGTERM)
                for _ in range(200):
                    if not os.path.exists(pid_file):
                        break
                    time.sleep(0.05)
            self.assertFalse(os.path.exists(pid_file))
            self.refused("ps", "--port", port, says="no server")

    def test_refuses_to_start(self):
        with Server(DRAFT) as server:
            self.refused("serve", DRAFT, "--port", server.port, says="cannot listen")
        self.refused("serve", "nowhere.gguf", "--port", 0, says="nowhere.gguf")
        self.refused("serve", DRAFT, "--keep-alive", "soon", says="keep-alive")

    def test_limits(self):
        with Server(DRAFT) as server:
            def raw(data):
                with socket.create_connection((server.host, server.port), timeout=20) as client:
                    try:
                        client.sendall(data)
                        client.shutdown(socket.SHUT_WR)
                        return client.recv(4096)
                    except OSError:
                        return b""
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            self.assertIn(b"413", raw(head + b"Content-Length: 999999999\r\n\r\n{").split(b"\r\n")[0])
            self.assertNotIn(b" 200 ", raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 100000 + b"\r\n\r\n"))
            self.assertNotIn(b" 200 ", raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 100000 + b"\r\n"))
            self.assertNotIn(b" 200 ", raw(b"\x16\x03\x01\x02\x00" + os.urandom(500)))
            self.assertNotIn(b" 200 ", raw(head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"))
            self.assertIn(server.request("GET", "/health")[0], (200, 503))


if __name__ == "__main__":
    unittest.main()
