"""The web page in a real Chromium, and what it is served with."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

import npm
from harness import DEMO, DRAFT, ROOT, Case
from hub import Hub
from seeing import PICTURES, make_seeing
from serving import Server, lines

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(Case):
    @unittest.skipIf(npm.why_not(), npm.why_not())
    @unittest.skipIf(CHROMIUM is None, "chromium is not installed")
    def test_all(self):
        npm.install_clients()
        with tempfile.TemporaryDirectory() as store, Server(DEMO, env={"MILLRACE_MODELS": store}) as server:
            if any(server.request("GET", f"/page/{name}")[0] != 200 for name in ("marked.js", "purify.js", "highlight.js", "katex.js", "pdf.js")):
                self.skipTest("built without libjs-marked, node-dompurify, libjs-highlight.js, libjs-katex or libjs-pdf")
            self.in_browser(server, "page.mjs", *filter(None, [os.environ.get("MILLRACE_PICTURES")]))

    @unittest.skipIf(npm.why_not(), npm.why_not())
    @unittest.skipIf(CHROMIUM is None, "chromium is not installed")
    def test_pictures(self):
        npm.install_clients()
        with tempfile.TemporaryDirectory() as folder:
            make_seeing(pathlib.Path(folder))
            blind = pathlib.Path(DEMO).stem
            (pathlib.Path(folder) / f"{blind}.gguf").symlink_to(DEMO)
            with Server("--models", folder, "--threads", "2", "--ctx", "512") as server:
                self.in_browser(server, "page_pictures.mjs", "sees", blind, PICTURES)

    @unittest.skipIf(npm.why_not(), npm.why_not())
    @unittest.skipIf(CHROMIUM is None, "chromium is not installed")
    def test_first_run(self):
        npm.install_clients()
        hub = Hub({"tiny-Q4_K_M.gguf": pathlib.Path(DEMO).read_bytes()})
        try:
            with tempfile.TemporaryDirectory() as store, \
                    Server("--device", "cpu", env={"MILLRACE_MODELS": store, "HF_ENDPOINT": hub.url}) as server:
                self.in_browser(server, "page_first_run.mjs")
        finally:
            hub.close()

    def test_what_the_page_asks(self):
        with tempfile.TemporaryDirectory() as store, Server(DEMO, "--device", "cpu", "--ram", "3G", env={"MILLRACE_MODELS": store}) as server:
            model = pathlib.Path(DEMO).stem
            suggested = server.json("GET", "/api/millrace/suggestions")[1]
            self.assertLessEqual(suggested["ram"], 3e9)
            self.assertEqual(len(suggested["models"]), 5)
            in_memory = [one for one in suggested["models"] if one["tier"] == "ram"]
            self.assertGreaterEqual(len(in_memory), 1)
            self.assertTrue(all(one["size"] < 3e9 for one in in_memory), suggested)
            for _ in range(2):
                fit = server.json("POST", "/api/millrace/fit", {"model": model})[1]
                self.assertGreater(fit["context_tokens"], 0)
                server.json("POST", "/api/generate", {"model": model, "prompt": "Hi", "stream": False, "options": {"num_predict": 4}})
            self.assertTrue(fit["loaded"])
            self.assertEqual(server.request("POST", "/api/millrace/fit", {"model": "nothing"})[0], 404)
            self.assertEqual(server.request("POST", "/api/millrace/search", {"query": "x" * 101})[0], 400)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                history = server.json("GET", "/api/millrace/live?history=1")[1]["history"]
                if history and history[0]["samples"][-1]["decode_tokens"] >= 6:
                    break
                time.sleep(0.2)
            self.assertEqual([one["model"] for one in history], [model + ":latest"])
            self.assertGreaterEqual(history[0]["samples"][-1]["decode_tokens"], 6, "three of each answer: a prompt gives the first")
            self.assertEqual(history[0]["samples"][0]["decode_tokens"], 0, "it begins with the load, however soon the first answer came")
            self.assertNotIn("history", server.json("GET", "/api/millrace/live")[1])

    def in_browser(self, server, script, *words):
        done = subprocess.run([npm.NODE, script, server.url, CHROMIUM, *words], cwd=npm.CLIENTS, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}\n{server.messages()}")

    def test_the_page_knows_the_limits_of_pictures(self):
        def number(path, pattern):
            found = re.search(pattern, (ROOT / "src/app" / path).read_text())
            self.assertIsNotNone(found, path)
            return eval(re.sub(r"\bu\b|(?<=\d)u\b|'", "", found[1]))  # "20u << 20", "64'000'000"
        page = (ROOT / "src/app/web/pictures.js").read_text()
        limits = {name: eval(value) for name, value in re.findall(r"(\w+): ([\d_ *]+)[,}]", re.search(r"export const limits = (.*);", page)[1])}
        self.assertEqual(limits, {"bytes": number("generate/pictures.h", r"kMostPictureBytes = ([^;]+);"),
                                  "pixels": number("../image/decode.h", r"kMostPixels = ([^;]+);"),
                                  "side": number("../image/decode.cpp", r"kMostSide = ([^;]+);"),
                                  "memory": number("server/context.cpp", r"most_request_bytes = ([^;]+);"),
                                  "copies": 1 + number("generate/job.cpp", r"kCopies = (\d+)")})

    def test_plain_clients_and_the_policy(self):
        with Server(DEMO) as server:
            self.assertEqual(server.request("GET", "/")[2], b"Ollama is running")
            status, headers, content = server.request("GET", "/", headers={"Accept": "text/html"})
            self.assertEqual(status, 200)
            self.assertIn("default-src 'none'; script-src 'self'", headers["content-security-policy"])
            self.assertEqual(content, (ROOT / "src/app/web/index.html").read_bytes())

    def test_a_draft_is_supposed_where_there_is_none(self):
        def supposed(server):
            server.json("POST", "/api/generate", {"model": pathlib.Path(DEMO).stem, "stream": False})  # waits until it is loaded
            return server.json("GET", "/api/millrace/live")[1]["models"][0]["supposed_draft"]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as rates:
            rates.write('{"disk": 1e9, "ram": 20e9, "cpu_decode": 10e9, "cpu_prefill_macs": 5e10}')
            rates.flush()
            with Server(DEMO, "--rates", rates.name, "--device", "cpu") as server:
                draft = supposed(server)
                self.assertEqual(draft["acceptance"], 0.7)
                self.assertGreater(min(draft["bytes"], draft["guesses"], draft["tokens_per_second"]), 0, draft)
            for flags in (("--draft", DRAFT), ("--speculate", "off")):
                with Server(DEMO, "--device", "cpu", *flags) as server:
                    self.assertIsNone(supposed(server), flags)

    def test_files(self):
        with Server(DEMO, "--api-key", "secret") as server:
            status, headers, content = server.request("GET", "/page/main.js")
            self.assertEqual((status, headers["content-type"]), (200, "text/javascript; charset=utf-8"), "without a key")
            self.assertIn("default-src 'none'", headers["content-security-policy"], "a worker heeds its own file's policy")
            self.assertEqual(server.request("GET", "/page/main.js", headers={"If-None-Match": headers["etag"]})[0], 304)
            self.assertEqual(server.request("GET", "/page/../main.js")[0], 404)
            self.assertIn(b"Apache License", server.request("GET", "/page/licenses.txt")[2])

    def test_progress_of_a_prompt(self):
        with Server(DEMO) as server:
            ask = {"model": pathlib.Path(DEMO).stem, "messages": [{"role": "user", "content": "the fox and the lantern " * 200}],
                   "options": {"num_predict": 1}}
            told = [json.loads(line).get("prompt_progress") for line in lines(server.stream("/api/chat", {**ask, "prompt_progress": True}))]
            steps = [step["processed"] for step in told if step]
            self.assertEqual(steps, sorted(steps))
            self.assertEqual(steps[-1], [step for step in told if step][-1]["total"])
            self.assertFalse(any("prompt_progress" in line for line in lines(server.stream("/api/chat", ask))), "nobody else is told")


if __name__ == "__main__":
    unittest.main()
