"""Packs: a mixture's experts once more, each in one piece; used where that is faster, never trusted."""
import os
import pathlib
import shutil
import tempfile
import unittest

from harness import DEMO, DRAFT, Case, run

SMALL = ("--device", "cpu", "--expert-slots", "24", "-p", "20", "-n", "9", "-r", "1", "--hash", "--speculate", "off")


class Pack(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model.gguf"
        shutil.copyfile(DEMO, self.model)
        self.pack = self.folder / "model.gguf.pack"

    def reads(self, *flags):
        """Logits, and reads of the disk in a run."""
        outcome = self.ok("-v", "bench", self.model, *SMALL, *flags)
        logits = next(line for line in outcome.out.splitlines() if line.startswith("logits"))
        return logits, outcome.err

    def test_answers_stay_what_they_are(self):
        plain, _ = self.reads()
        other = self.folder / "another disk"
        other.mkdir()
        for stripes in ([], ["--stripe", str(other)]):
            self.ok("pack", self.model, *stripes)
            self.assertEqual((other / "model.gguf.pack.1").exists(), bool(stripes))
            logits, log = self.reads("--pack", self.pack)
            self.assertEqual(logits, plain)
            self.assertIn("as was asked for", log)
            logits, log = self.reads()  # where it was measured to be faster
            self.assertEqual(logits, plain)
            self.assertRegex(log, r"experts are read from .*: \d+ us each from the pack, \d+ from the model")
            self.assertNotIn("from the pack", self.reads("--pack", "off")[1])
        self.assertIn("all weights are in memory", self.ok("-v", "run", self.model, "--device", "cpu", "-n", "1", "-p", "Hi").err)

    def test_a_stale_one_is_refused_by_name(self):
        self.ok("pack", self.model)
        os.utime(self.model, (1, 1))
        self.refused("bench", self.model, *SMALL, "--pack", self.pack, says=("model.gguf.pack is stale", "millrace pack"))
        self.assertIn("is stale", self.reads()[1])
        self.refused("bench", self.model, *SMALL, "--pack", self.folder / "nowhere", says="nowhere")

    def test_a_damaged_one_gives_no_wrong_token(self):
        plain, _ = self.reads()
        self.ok("pack", self.model)
        whole = self.pack.read_bytes()
        refused = 0
        for at in [*range(0, 900, 90), *range(5000, len(whole), len(whole) // 12)]:
            self.pack.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1:])
            outcome = run("bench", self.model, *SMALL, "--pack", self.pack)
            if outcome.code == 0:
                self.assertIn(plain, outcome.out)  # nothing of what was damaged was used
                continue
            refused += 1
            self.assertEqual(outcome.code, 1, outcome.err)
            self.assertIn("model.gguf.pack is damaged", outcome.err)
        self.assertGreater(refused, 15)
        self.pack.write_bytes(whole[:len(whole) // 2])
        self.refused("bench", self.model, *SMALL, "--pack", self.pack, says="size")
        self.refused("bench", self.model, "--device", "cpu", "-p", "4", "-n", "2", "--pack", self.pack, says="size")  # though all fits

    def test_dense_models_have_nothing_to_pack(self):
        self.refused("pack", DRAFT, "-o", self.folder / "x.pack", says="no experts")
        self.refused("pack", self.model, "-o", self.model, says="is read by this command")
        self.refused("pack", self.model, "-o", self.folder / "no" / "x.pack", says="x.pack")


if __name__ == "__main__":
    unittest.main()
