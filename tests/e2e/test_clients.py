"""The published clients of Ollama's, OpenAI's and Anthropic's APIs work unmodified. They come by npm, as the lock file says."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import npm
from client_table import hold_row
from harness import DEMO, DRAFT, Case
from hub import Hub
from serving import Server

BARE, V1 = "`http://HOST:11434`", "`.../v1`"
PLACES = {  # the base URL that each is given
    "ollama": BARE, "openai": V1, "@anthropic-ai/sdk": BARE, "ai": "by the three below", "@ai-sdk/openai-compatible": V1, "@ai-sdk/openai": V1,
    "@ai-sdk/anthropic": V1, "@langchain/ollama": BARE, "@langchain/openai": V1, "@langchain/anthropic": BARE, "@openai/agents": V1}


@unittest.skipIf(npm.why_not(), npm.why_not())
class Clients(Case):
    @classmethod
    def setUpClass(cls):
        npm.install_clients()

    def run_script(self, name, **env):
        """Every call of a script; its tallies are the table's rows."""
        with Server(DEMO, env=env) as server:
            done = subprocess.run([npm.NODE, name, server.url, pathlib.Path(DEMO).stem], cwd=npm.CLIENTS, capture_output=True,
                                  text=True, timeout=300, env={**os.environ, "NODE_NO_WARNINGS": "1"})
            self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}\n{server.messages()}")
        for client, tally in json.loads(done.stdout.splitlines()[-1]).items():
            with self.subTest(client=client):
                package = json.loads((npm.CLIENTS / "node_modules" / client / "package.json").read_text())
                hold_row(self, "client (npm)", client, package["version"], PLACES[client], tally)

    def test_node_is_the_one_of_the_lock_file(self):
        lock = json.loads((npm.CLIENTS / "package-lock.json").read_text())["packages"]
        told = subprocess.run([npm.NODE, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual(told, "v" + lock[f"node_modules/node-linux-{npm.CPU}"]["version"])
        self.assertTrue(told.startswith("v22."), told)

    def test_clients(self):
        hub = Hub({"tiny-q8_0.gguf": pathlib.Path(DRAFT).read_bytes()})
        self.addCleanup(hub.close)
        with tempfile.TemporaryDirectory() as store:
            self.run_script("clients.mjs", MILLRACE_MODELS=store, HF_ENDPOINT=hub.url)

    def test_frameworks(self):
        self.run_script("frameworks.mjs")


if __name__ == "__main__":
    unittest.main()
