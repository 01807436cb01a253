"""Which experts a user's traffic calls for is learned: a file of the user's cache, of use to the next run, and never in its way."""
import json
import pathlib
import tempfile
import unittest

from harness import DEMO, Case
from serving import Server

ASK = ["-p", "What is the capital of France?", "--temp", "0", "-t", "1", "--ram", "100M", "--expert-slots", "24", "--local", "--stats"]


class Learned(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.env = {"XDG_CACHE_HOME": folder.name, "MILLRACE_LEARN_EXPERTS": ""}

    def files(self):
        return sorted(self.folder.glob("millrace/experts/*"))

    def ask(self, *args):
        done = self.ok("run", DEMO, *ASK, *args, env=self.env)
        return done.out.splitlines()[0], done.out + done.err

    def test_the_next_run_knows(self):
        said, _ = self.ask("--learn-experts", "off")
        self.assertEqual(self.files(), [])
        for _ in range(4):  # until enough passes are known
            again, stats = self.ask()
            self.assertEqual(again, said)
        self.assertRegex(stats, r"[1-9]\d* of [1-9]\d* that were learned used")
        [file] = self.files()
        known = json.loads(file.read_text())
        self.assertGreater(known["passes"], 16)
        self.assertEqual(self.folder.joinpath("millrace/experts").stat().st_mode & 0o777, 0o700)

    def test_a_damaged_file_is_said_and_ignored(self):
        said, _ = self.ask()
        [file] = self.files()
        file.write_text(file.read_text().replace('"passes":', '"passes":1'))
        again, told = self.ask()
        self.assertEqual(again, said)
        self.assertEqual(told.count("it is damaged"), 2, told)  # as it begins, and as it adds what it counted
        _, told = self.ask()
        self.assertNotIn("damaged", told)

    def test_a_server_learns_until_its_end(self):
        for run in range(3):
            with Server(DEMO, "-t", "1", "--ram", "100M", "--expert-slots", "24", env=self.env) as server:
                body = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 20, "temperature": 0}
                self.assertEqual(server.json("POST", "/v1/chat/completions", body)[0], 200)
                learned = server.metric("millrace_experts_learned_total")
            self.assertEqual(learned > 0, run > 0)
            self.assertEqual(len(self.files()), 1)


if __name__ == "__main__":
    unittest.main()
