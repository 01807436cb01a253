"""The published clients of Ollama's, OpenAI's and Anthropic's APIs work unmodified. They come by npm, as the lock file says."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from harness import DEMO, DRAFT, ROOT, Case
from hub import Hub
from serving import Server

FOLDER = ROOT / "tests/e2e/clients"
FEATURES = "tools,schema,embeddings"


def why_not():
    """What is missing, or nothing."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node and npm are not installed"
    version = int(subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip("v\n").split(".")[0])
    return f"these clients need Node 20, here is {version}" if version < 20 else ""


def install():
    """The clients as the lock file names them, once."""
    installed = FOLDER / "node_modules/.package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= (FOLDER / "package-lock.json").stat().st_mtime:
        return
    done = subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=FOLDER, capture_output=True, text=True)
    if done.returncode != 0:
        raise unittest.SkipTest("npm could not fetch the clients: " + done.stderr.strip().splitlines()[-1])


@unittest.skipIf(why_not(), why_not())
class Clients(Case):
    def test_all(self):
        install()
        hub = Hub({"tiny-q8_0.gguf": pathlib.Path(DRAFT).read_bytes()})
        self.addCleanup(hub.close)
        with tempfile.TemporaryDirectory() as store, \
                Server(DEMO, env={"MILLRACE_MODELS": store, "HF_ENDPOINT": hub.url}) as server:
            done = subprocess.run(["node", "clients.mjs", server.url, pathlib.Path(DEMO).stem, FEATURES], cwd=FOLDER,
                                  capture_output=True, text=True, timeout=300, env={**os.environ, "NODE_NO_WARNINGS": "1"})
            self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}\n{server.messages()}")

    def test_frameworks(self):
        install()
        with Server(DEMO) as server:
            done = subprocess.run(["node", "frameworks.mjs", server.url, pathlib.Path(DEMO).stem], cwd=FOLDER, capture_output=True,
                                  text=True, timeout=300, env={**os.environ, "NODE_NO_WARNINGS": "1"})
            self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}\n{server.messages()}")


AGENTS = os.environ.get("MILLRACE_AGENTS", "")  # a folder where npm has put them: 700 MB, so nobody's by default
CODEX = """model = "@MODEL@"
model_provider = "here"
[model_providers.here]
name = "here"
base_url = "@URL@/v1"
wire_api = "responses"
"""
OPENCODE = {"autoupdate": False, "share": "disabled", "model": "here/@MODEL@", "provider": {"here": {
    "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "@URL@/v1", "apiKey": "none"},
    "models": {"@MODEL@": {"limit": {"context": 65536, "output": 200}}}}}}


@unittest.skipUnless(AGENTS, "MILLRACE_AGENTS names no folder with them (docs/clients.md)")
class Agents(Case):
    """Coding agents, unmodified and headless: their whole prompts go through; what the demo says to them is nonsense."""

    def setUp(self):
        self.server = Server(DEMO, "-c", "65536", "--log-format", "json")
        self.addCleanup(self.server.__exit__)
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)

    def ask(self, program, *words, path, files=None, **env):
        model, home = pathlib.Path(DEMO).stem, pathlib.Path(self.home.name)
        def fill(text):
            return text.replace("@URL@", self.server.url).replace("@MODEL@", model)
        for name, text in (files or {}).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(fill(text))
        done = subprocess.run([str(pathlib.Path(AGENTS) / "node_modules" / program), *words], cwd=home, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=300,
                              env={**os.environ, "HOME": str(home), **{name: fill(text) for name, text in env.items()}})
        asked = [json.loads(line) for line in self.server.messages().splitlines() if line.startswith("{")]
        answered = [line for line in asked if line["path"] == path and line["status"] == 200 and line["tokens_out"] > 0]
        self.assertTrue(answered, (done.stdout[-500:], done.stderr[-500:], asked))
        self.assertEqual([line for line in asked if line["status"] >= 500], [])
        return done

    def test_claude_code(self):
        done = self.ask(".bin/claude", "-p", "What is the capital of France?", "--max-turns", "1", path="/v1/messages", ANTHROPIC_BASE_URL="@URL@",
                        ANTHROPIC_AUTH_TOKEN="none", ANTHROPIC_MODEL="@MODEL@", ANTHROPIC_SMALL_FAST_MODEL="@MODEL@",
                        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", CLAUDE_CODE_MAX_OUTPUT_TOKENS="200")
        self.assertTrue(done.returncode == 0 or "output token maximum" in done.stdout, done)

    def test_codex(self):
        done = self.ask(".bin/codex", "exec", "--skip-git-repo-check", "What is the capital of France?", path="/v1/responses",
                        files={".codex/config.toml": CODEX})
        self.assertEqual(done.returncode, 0, done.stderr[-500:])

    def test_opencode(self):
        done = self.ask("opencode-linux-x64/bin/opencode", "run", "What is the capital of France?", path="/v1/chat/completions",
                        files={".config/opencode/opencode.json": json.dumps(OPENCODE)})
        self.assertEqual(done.returncode, 0, done.stderr[-500:])

    def test_qwen_code(self):
        done = self.ask(".bin/qwen", "--auth-type", "openai", "-p", "What is the capital of France?", path="/v1/chat/completions",
                        OPENAI_API_KEY="none", OPENAI_BASE_URL="@URL@/v1", OPENAI_MODEL="@MODEL@")
        self.assertEqual(done.returncode, 0, done.stderr[-500:])


if __name__ == "__main__":
    unittest.main()
