"""The Python package's own tests, with the library of this build."""
import os
import pathlib
import subprocess
import sys
import unittest

from harness import MILLRACE, ROOT, SANITIZED

LIBRARY = pathlib.Path(MILLRACE).parent / "libmillrace.so"


class Python(unittest.TestCase):
    def setUp(self):
        if SANITIZED or not LIBRARY.exists():
            self.skipTest("skipped: a sanitized library, or none")

    def call(self, *command):
        outcome = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=600,
                                 env={**os.environ, "MILLRACE_LIBRARY": str(LIBRARY)})
        self.assertEqual(outcome.returncode, 0, f"{command}\n{outcome.stdout}{outcome.stderr}")
        return outcome.stdout

    def test_the_package(self):
        self.call(ROOT / "python/tests/test_millrace.py")

    def test_the_examples(self):
        model = ROOT / "models/demo-moe-q4_k_m.gguf"
        self.assertIn("Paris", self.call(ROOT / "python/examples/generate.py", model, "What is the capital of France?", "40"))
        self.assertIn("output_norm.weight", self.call(ROOT / "python/examples/tensors.py", model))
        self.assertIn("sums of rows:", self.call(ROOT / "python/examples/tensors.py", model, "token_embd.weight"))


if __name__ == "__main__":
    unittest.main()
