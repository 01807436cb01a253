"""`run` beside a server that has the model: the server answers, unless the command asks for an engine of its own."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness import DEMO, MILLRACE, Case
from serving import Server
from test_terminal import BABBLE, Terminal

SAYS = "answers from the server at"
FRANCE = ("-p", "What is the capital of France?")


class RunServer(Case):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.store = {"MILLRACE_MODELS": folder.name}
        cls.server = Server(DEMO, "--parallel", "4", env=cls.store)
        cls.addClassCleanup(cls.server.__exit__)
        cls.env = {**cls.store, "MILLRACE_HOST": f"127.0.0.1:{cls.server.port}"}

    def test_the_same_answers_as_an_engine_of_its_own(self):
        for args in (("--temp", "0", *FRANCE, "-p", "Tell me a story about a fox and a lantern."),
                     ("--seed", "7", "--temp", "1", "-n", "24", "-p", "Tell me a story."),
                     ("--raw", "--temp", "0", "-n", "9", "-p", "Once upon"),
                     ("--temp", "0", "--stop", " is", "--system", "You are helpful.", *FRANCE)):
            there = self.ok("run", DEMO, *args, env=self.env)
            self.assertIn(f"{SAYS} 127.0.0.1:{self.server.port}", there.err)
            here = self.ok("run", DEMO, "--local", *args, env=self.env)
            self.assertNotIn(SAYS, here.err)
            self.assertEqual(there.out, here.out, args)
        self.assertNotIn(SAYS, self.ok("run", DEMO, "-q", "--temp", "0", *FRANCE, env=self.env).err)

    def test_from_another_folder_and_through_a_pipe(self):
        relative = os.path.relpath(DEMO)
        outcome = self.ok("run", relative, "--temp", "0", stdin="What is the capital of Italy?\n", env=self.env)
        self.assertIn(SAYS, outcome.err)
        self.assertEqual(outcome.out, "The capital of Italy is Rome.\n")

    def test_an_engine_of_its_own_where_a_flag_asks_for_one(self):
        for flags in (["--ram", "12M"], ["--threads", "1"], ["--ctx", "512"], ["--device", "cpu"], ["--stats"]):
            self.assertNotIn(SAYS, self.ok("run", DEMO, *flags, "--temp", "0", *FRANCE, env=self.env).err, flags)

    def test_a_server_with_other_models_is_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, pathlib.Path(DEMO).name)  # the same name, another file
            shutil.copy(DEMO, other)
            self.assertNotIn(SAYS, self.ok("run", other, "--temp", "0", *FRANCE, env=self.env).err)

    def test_errors_of_the_server_are_told(self):
        self.refused("run", DEMO, "-p", "word " * 5000, env=self.env, says="context")

    def test_a_modelfile_is_heeded_here_and_there(self):
        recipe = pathlib.Path(self.store["MILLRACE_MODELS"], "Modelfile")
        recipe.write_text(f"FROM {DEMO}\nPARAMETER temperature 0\nSYSTEM You are a guide.\n"
                          "MESSAGE user What is the capital of Spain?\nMESSAGE assistant The capital of Spain is Madrid.\n"
                          'TEMPLATE """{%- for message in messages %}<|im_start|>{{ message.role }}\n'
                          "{{ message.content|replace('France', 'Norway') }}<|im_end|>\n{% endfor %}<|im_start|>assistant{{ '\\n' }}\"\"\"\n")
        self.ok("create", "guide", "-f", recipe, env=self.env)
        here = self.ok("run", "guide", "--local", *FRANCE, env=self.env)
        there = self.ok("run", "guide", *FRANCE, env=self.env)
        self.assertIn(SAYS, there.err)
        self.assertEqual(here.out, "The capital of Norway is Oslo.\n")
        self.assertEqual(there.out, here.out)
        question = {"model": "guide", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        status, body = self.server.json("POST", "/v1/chat/completions", {**question, "temperature": 0})
        self.assertEqual((status, body["choices"][0]["message"]["content"]), (200, here.out.strip()))
        status, bare = self.server.json("POST", "/v1/chat/completions", {**question, "model": "demo-moe-q4_k_m", "temperature": 0})
        self.assertGreater(body["usage"]["prompt_tokens"], bare["usage"]["prompt_tokens"] + 10)  # MESSAGE and SYSTEM
        status, body = self.server.json("POST", "/api/chat", {**question, "stream": False})
        self.assertEqual((status, body["message"]["content"]), (200, here.out.strip()))

    def test_a_chat_and_ctrl_c(self):
        # A slow one, so that the answer is not over before a busy machine gets to press the keys.
        server = self.enterContext(Server(DEMO, "--isa", "plain", "--threads", "1", env=self.store))
        terminal = Terminal("run", DEMO, *BABBLE, env={**self.store, "MILLRACE_HOST": f"127.0.0.1:{server.port}"})
        self.assertTrue(terminal.wait_for(SAYS), terminal.seen)
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        terminal.type("Tell me a story about a fox and a lantern.\n")
        self.assertTrue(terminal.wait_for("lantern\\.\r?\n.*[a-z]{3}"), terminal.seen)
        terminal.press("\x03")
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        end = time.time() + 10
        while time.time() < end and server.metric("millrace_requests_cancelled_total") == 0:
            time.sleep(0.05)
        self.assertEqual(server.metric("millrace_requests_cancelled_total"), 1)
        for line, answer in (("/clear", "Forgotten"), ("/set temp 0", "temp 0"), ("What is the capital of Spain?", "Spain is Madrid"),
                             ("/show model", "on the server")):
            terminal.type(line + "\n")
            self.assertTrue(terminal.wait_for(answer + "(.*\n)+.*>>> "), terminal.seen)
        self.assertEqual(terminal.exit_code(typing="\x04"), 0)

    def test_a_server_that_dies_in_the_middle(self):
        with Server(DEMO, "--isa", "plain", "--threads", "1", env=self.store) as server:
            process = subprocess.Popen([MILLRACE, "run", DEMO, "--temp", "1", "-n", "1500", "-p", "Tell me a story."],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env={**os.environ, **self.store, "MILLRACE_HOST": server.url})
            process.stdout.read(10)
            server.process.send_signal(signal.SIGKILL)
            out, said = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 1, said)
        errors = [line for line in said.decode().splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, said)
        self.assertIn("went away", errors[0])
        self.assertIn("--local", errors[0])

    def test_something_else_on_that_port(self):
        class Strange(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"version": "0.9.9"}).encode())

            def log_message(self, *_):
                pass

        strange = ThreadingHTTPServer(("127.0.0.1", 0), Strange)
        threading.Thread(target=strange.serve_forever, daemon=True).start()
        self.addCleanup(strange.server_close)
        self.addCleanup(strange.shutdown)
        env = {"MILLRACE_HOST": f"127.0.0.1:{strange.server_port}"}
        outcome = self.ok("run", DEMO, "--temp", "0", *FRANCE, env=env)
        self.assertNotIn(SAYS, outcome.err)
        self.assertIn("Paris", outcome.out)


if __name__ == "__main__":
    unittest.main()
