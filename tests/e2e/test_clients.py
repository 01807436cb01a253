"""The published clients of Ollama's, OpenAI's and Anthropic's APIs work unmodified. They come by npm, as the lock file says."""
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


if __name__ == "__main__":
    unittest.main()
