"""The web page in a real Chromium."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from harness import DEMO, Case
from serving import Server
from test_clients import FOLDER, install, why_not

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@unittest.skipIf(why_not(), why_not())
@unittest.skipIf(CHROMIUM is None, "chromium is not installed")
class Page(Case):
    def test_all(self):
        install()
        with tempfile.TemporaryDirectory() as store, Server(DEMO, env={"MILLRACE_MODELS": store}) as server:
            done = subprocess.run(["node", "page.mjs", server.url, CHROMIUM, *filter(None, [os.environ.get("MILLRACE_PICTURES")])],
                                  cwd=FOLDER, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}\n{server.messages()}")

    def test_plain_clients_and_the_policy(self):
        with Server(DEMO) as server:
            self.assertEqual(server.request("GET", "/")[2], b"Ollama is running")
            status, headers, content = server.request("GET", "/", headers={"Accept": "text/html"})
            self.assertEqual(status, 200)
            self.assertIn("default-src 'self'", headers["content-security-policy"])
            self.assertEqual(content, (pathlib.Path(FOLDER).parents[2] / "src/app/web/index.html").read_bytes())


if __name__ == "__main__":
    unittest.main()
