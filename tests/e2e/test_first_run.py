"""A first run: nobody measured this machine, so the run does, keeps it, and says so."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from harness import DEMO, SYNTH, Case, run


class FirstRun(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "large.gguf")  # 330 MB, of which 200 MB have room
        subprocess.run([SYNTH, cls.model, "-p", "tinyllama-1.1b", "-d", "Q4_K", "--layers", "11"], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.kept = pathlib.Path(self.home.name) / "millrace/rates.json"

    def plan(self, model, *flags):
        done = run("plan", model, "-v", *flags, env={"XDG_CACHE_HOME": self.home.name})
        self.assertEqual(done.code, 0, done.err)
        return done

    def test_what_is_measured_briefly_says_so_and_is_measured_once(self):
        first = self.plan(self.model, "--ram", "200M")
        self.assertRegex(first.out, r"predicted decode: .*measured briefly\)")
        seconds = re.search(r"rates measured briefly, ([0-9.]+) s", first.err)
        self.assertIsNotNone(seconds, first.err)
        rates, = json.loads(self.kept.read_text()).values()
        self.assertTrue(rates["brief"])
        self.assertGreater(rates["disk"], 0)
        self.assertGreater(rates["cpu_decode"], 0)
        second = self.plan(self.model, "--ram", "200M")
        self.assertNotIn("rates measured", second.err)
        self.assertRegex(second.out, r"predicted decode: .*measured briefly\)")

    def test_a_calibration_stays(self):
        self.plan(self.model, "--ram", "200M")
        kept = json.loads(self.kept.read_text())
        for rates in kept.values():
            del rates["brief"]
        self.kept.write_text(json.dumps(kept))
        before = self.kept.read_text()
        done = self.plan(self.model, "--ram", "200M")
        self.assertNotIn("measured briefly", done.out + done.err)
        answer = run("run", self.model, "--ram", "200M", "-n", "24", "--raw", "hello", env={"XDG_CACHE_HOME": self.home.name})
        self.assertEqual(answer.code, 0, answer.err)
        self.assertEqual(self.kept.read_text(), before)

    def test_where_there_is_no_choice_nothing_is_measured_and_nothing_is_predicted(self):
        for model, flags in ((DEMO, ("--ram", "14M")), (self.model, ("--ram", "1G"))):
            done = self.plan(model, *flags)
            self.assertIn("rates not measured", done.out)
            self.assertNotIn("predicted decode", done.out)
            self.assertFalse(self.kept.exists())


if __name__ == "__main__":
    unittest.main()
