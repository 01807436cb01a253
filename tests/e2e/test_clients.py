"""The published clients of Ollama's, OpenAI's and Anthropic's APIs work unmodified: those of npm as the lock file says, those of PyPI
(`make test-clients`) as clients/python/packages.json does."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import npm
from client_table import hold_row
from harness import DEMO, DRAFT, ROOT, Case
from hub import Hub
from pypi import python_with
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


PYTHON = ROOT / "tests/e2e/clients/python"
PACKAGES = json.loads((PYTHON / "packages.json").read_text())


def pinned(packages):
    """Versions as the table has them: of several packages each with its name."""
    pins = [package.split("==") for package in packages]
    return pins[0][1] if len(pins) == 1 else ", ".join(f"{name.split('[')[0]} {version}" for name, version in pins)


@unittest.skipUnless(os.environ.get("MILLRACE_CLIENTS"), "`make test-clients` runs the clients of PyPI")
class PythonClients(Case):
    """One test for each line of packages.json, in an environment of its own: its script prints what passed and what did not."""

    def run_client(self, client):
        package = PACKAGES[client]
        python = python_with("clients/" + client, *package["packages"], *package.get("helpers", []))
        hub = Hub({"tiny-q8_0.gguf": pathlib.Path(DRAFT).read_bytes()})
        self.addCleanup(hub.close)
        for script in package.get("scripts", [client]):
            with tempfile.TemporaryDirectory() as store, Server(DEMO, env={"MILLRACE_MODELS": store, "HF_ENDPOINT": hub.url}) as server:
                done = subprocess.run([python, PYTHON / f"{script}_cases.py", server.url, pathlib.Path(DEMO).stem], capture_output=True, text=True,
                                      timeout=5400, env={**os.environ, "PYTHONWARNINGS": "ignore"})
                self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            [(name, tally)] = json.loads(done.stdout.splitlines()[-1]).items()
            wrong = tally.pop("wrong")
            for one in wrong:
                with self.subTest(client=name, case=one["what"]):
                    self.fail(one["why"])
            if not wrong:
                hold_row(self, "client (PyPI)", name, pinned(package["packages"]), package["base_url"], tally)


for client in PACKAGES:
    setattr(PythonClients, f"test_{client}", lambda self, client=client: self.run_client(client))


if __name__ == "__main__":
    unittest.main()
