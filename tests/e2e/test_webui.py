"""Open WebUI as PyPI has it, unmodified, in a real browser: both of its connections, a tool, a file with retrieval, an upload."""
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

import npm
from between import Between, Call
from client_table import hold_row
from harness import DEMO, DRAFT, ROOT, Case
from pypi import python_with
from serving import Server
from test_page import CHROMIUM

MODEL = pathlib.Path(DEMO).stem + ":latest"
# All that it needs but torch, which its own embeddings need alone: ours come from the server.
PINS = (ROOT / "tests/e2e/clients/python/open_webui.txt").read_text().split()


@unittest.skipUnless(os.environ.get("MILLRACE_CLIENTS"), "`make test-clients` runs Open WebUI")
@unittest.skipIf(CHROMIUM is None, "chromium is not installed")
@unittest.skipIf(npm.why_not(), npm.why_not())
class OpenWebUi(Case):
    def answer(self, asked):
        """The one question with a tool is told to call it; everything else is the model's own."""
        names = [tool.get("function", {}).get("name") for tool in asked.get("tools", [])]
        if "weather" in names and not self.called:
            self.called = True
            return Call("weather")
        return None

    def serve(self, python, server, between, data):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {**os.environ, "DATA_DIR": data, "WEBUI_SECRET_KEY": "test", "OLLAMA_BASE_URL": server.url, "OPENAI_API_BASE_URL": between.url + "/v1",
               "OPENAI_API_KEY": "none", "OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1", "RAG_EMBEDDING_ENGINE": "openai", "RAG_EMBEDDING_MODEL": MODEL,
               "RAG_OPENAI_API_BASE_URL": between.url + "/v1", "RAG_OPENAI_API_KEY": "none", "ANONYMIZED_TELEMETRY": "false"}
        log = pathlib.Path(data) / "log"
        with open(log, "w") as said:
            process = subprocess.Popen([python.parent / "open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)], env=env, stdout=said, stderr=said)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                urllib.request.urlopen(url + "/health", timeout=5)
                return url
            except OSError:
                self.assertIsNone(process.poll(), log.read_text()[-3000:])
                time.sleep(1)
        return self.fail(log.read_text()[-3000:])

    def test_sign_up_chat_tool_retrieval_upload(self):
        npm.install_clients()
        python = python_with("clients/open_webui", "--no-deps", *PINS)
        data, store = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
        self.addCleanup(data.cleanup)
        self.addCleanup(store.cleanup)
        self.called = False
        server = Server(DEMO, env={"MILLRACE_MODELS": store.name})
        self.addCleanup(server.__exit__)
        between = Between(server, self.answer)
        between.narrowed = {"weather": {"city": "Paris"}}
        self.addCleanup(between.close)
        url = self.serve(python, server, between, data.name)
        done = subprocess.run([npm.NODE, "webui.mjs", url, CHROMIUM, MODEL, between.url + "/v1", DRAFT], cwd=npm.CLIENTS, capture_output=True, text=True, timeout=900)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}\n{server.messages()[-3000:]}")
        asked = {path: [json.dumps(one.asked) for one in between.exchanges if one.path == path and one.status == 200] for path in ("/v1/embeddings", "/v1/chat/completions")}
        self.assertTrue(any("4711" in text for text in asked["/v1/embeddings"]), "the file was not embedded here")
        self.assertTrue(any("4711" in text for text in asked["/v1/chat/completions"]), "what was retrieved is in no prompt")
        self.assertTrue(any("Sunny in Paris" in text for text in asked["/v1/chat/completions"]), "what the tool answered is in no prompt")
        version = next(pin.split("==")[1] for pin in PINS if pin.startswith("open-webui=="))
        hold_row(self, "application (PyPI)", "open-webui", version, "both", json.loads(done.stdout.splitlines()[-1])["open-webui"])


if __name__ == "__main__":
    unittest.main()
