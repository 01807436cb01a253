"""The published clients of Ollama's, OpenAI's and Anthropic's APIs work unmodified: those of npm as the lock file says, those of PyPI
(`make test-clients`) as clients/python/packages.json does."""
import base64
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import npm
from client_table import SHOWN, hold_row
from harness import DEMO, DRAFT, ROOT, Case
from hub import Hub
from pypi import python_with
from seeing import make_seeing, noise
from serving import Server

BARE, V1 = "`http://HOST:11434`", "`.../v1`"
QUESTION, TOKENS = "What is it?", 16
# A message's text as clients send it: Python's LangChain puts a line break before it for Ollama, litellm a heading for /api/generate.
TEXTS = {"user": QUESTION, "line": "\n" + QUESTION, "heading": f"### User:\n{QUESTION}\n\n"}
PLACES = {  # the base URL that each is given
    "ollama": BARE, "openai": V1, "@anthropic-ai/sdk": BARE, "ai": "by the three below", "@ai-sdk/openai-compatible": V1, "@ai-sdk/openai": V1,
    "@ai-sdk/anthropic": V1, "@langchain/ollama": BARE, "@langchain/openai": V1, "@langchain/anthropic": BARE, "@openai/agents": V1}


def look(server, model):
    """What clients are to show, and the model's greedy answers to it: without the picture, and with another one, it answers otherwise."""
    def answers(picture):
        def chat(*messages):
            status, told = server.json("POST", "/v1/chat/completions", {"model": model, "messages": messages, "temperature": 0, "max_tokens": TOKENS})
            assert status == 200, told
            return told["choices"][0]["message"]["content"].strip()

        shown = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture}}] if picture else []
        call = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}
        asked = {"role": "user", "content": QUESTION}
        return {**{place: chat({"role": "user", "content": [*shown, {"type": "text", "text": text}]}) for place, text in TEXTS.items()},
                "apart": chat({"role": "user", "content": shown or ""}, asked),
                "tool": chat(asked, call, {"role": "tool", "tool_call_id": "a", "content": shown or ""})}

    picture, other = (base64.b64encode(noise(*size)).decode() for size in ((48, 32), (32, 64)))
    right, *wrong = map(answers, (picture, other, ""))
    assert all(right[where] != one[where] for one in wrong for where in right), (right, wrong)
    return {"picture": picture, "question": QUESTION, "tokens": TOKENS, "answers": right}


@unittest.skipIf(npm.why_not(), npm.why_not())
class Clients(Case):
    @classmethod
    def setUpClass(cls):
        npm.install_clients()

    def run_script(self, name, model=DEMO, heading="client (npm)", arguments=lambda server: [], **env):
        """Every call of a script; its tallies are the table's rows."""
        with Server(model, env=env) as server:
            done = subprocess.run([npm.NODE, name, server.url, pathlib.Path(model).stem, *arguments(server)], cwd=npm.CLIENTS, capture_output=True,
                                  text=True, timeout=300, env={**os.environ, "NODE_NO_WARNINGS": "1"})
            self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}\n{server.messages()}")
        for client, tally in json.loads(done.stdout.splitlines()[-1]).items():
            with self.subTest(client=client):
                package = json.loads((npm.CLIENTS / "node_modules" / client / "package.json").read_text())
                hold_row(self, heading, client, package["version"], PLACES[client], tally)

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

    def test_pictures(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_script("shown.mjs", make_seeing(pathlib.Path(folder)), SHOWN + "client (npm)", lambda server: [json.dumps(look(server, "sees"))])


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
                self.run_cases(python, package, "client (PyPI)", script, server.url, pathlib.Path(DEMO).stem)
        if package.get("shows_pictures"):
            with tempfile.TemporaryDirectory() as folder, Server(make_seeing(pathlib.Path(folder))) as server:
                self.run_cases(python, package, SHOWN + "client (PyPI)", "shown", server.url, "sees", client, json.dumps(look(server, "sees")))

    def run_cases(self, python, package, heading, script, *arguments):
        done = subprocess.run([python, PYTHON / f"{script}_cases.py", *arguments], capture_output=True, text=True, timeout=5400,
                              env={**os.environ, "PYTHONWARNINGS": "ignore"})
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        [(name, tally)] = json.loads(done.stdout.splitlines()[-1]).items()
        wrong = tally.pop("wrong")
        for one in wrong:
            with self.subTest(client=name, case=one["what"]):
                self.fail(one["why"])
        if not wrong:
            hold_row(self, heading, name, pinned(package["packages"]), package["base_url"], tally)


for client in PACKAGES:
    setattr(PythonClients, f"test_{client}", lambda self, client=client: self.run_client(client))


if __name__ == "__main__":
    unittest.main()
