"""A person at a terminal: the chat, Ctrl-C, a reader that goes away."""
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import termios
import time
import unittest

from harness import DEMO, MILLRACE, Case


STATE = tempfile.TemporaryDirectory()  # chats keep their lines there, not in the developer's home


class Terminal:
    """millrace in a pseudo-terminal."""

    def __init__(self, *args, env=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "XDG_STATE_HOME": STATE.name, **(env or {})})
            os.execv(MILLRACE, [MILLRACE, *args])
        self.seen = ""

    def wait_for(self, pattern, timeout=60):
        end = time.time() + timeout
        while time.time() < end:
            if match := re.search(pattern, self.seen):
                self.seen = self.seen[match.end():]
                return True
            ready, _, _ = select.select([self.fd], [], [], 0.2)
            if ready:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    break
        return re.search(pattern, self.seen) is not None

    def type(self, line):
        """A line for the prompt, once the line editor takes keys: what comes sooner is echoed twice."""
        end = time.time() + 20
        while time.time() < end and termios.tcgetattr(self.fd)[3] & termios.ICANON:
            time.sleep(0.002)
        self.press(line)

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def exit_code(self, timeout=20, typing=""):
        """Waits for the end; types `typing` again and again (a key typed while the line editor starts is lost)."""
        end = time.time() + timeout
        while time.time() < end:
            self.wait_for("(?!)", timeout=0.3)  # matches nothing: reads, so that the other side never waits for us
            if typing and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                self.press(typing)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None


# Words at random, by a seed whose answer lasts for 1,882 tokens: one that is over before Ctrl-C takes its prompt along.
BABBLE = ("--temp", "100", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "2")


class Chat(Case):
    def test_chat(self):
        terminal = Terminal("run", DEMO, "--temp", "0")
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        terminal.type("What is the capital of Spain?\n")
        self.assertTrue(terminal.wait_for("The capital of Spain is Madrid"), terminal.seen)
        terminal.type("/show\n")
        self.assertTrue(terminal.wait_for("temp"), terminal.seen)
        terminal.type("/set temp warm\n")
        self.assertTrue(terminal.wait_for("takes a number"), terminal.seen)
        terminal.type("/set parameter temperature 0.25\n")
        terminal.type("/show\n")
        self.assertTrue(terminal.wait_for("temp +0.25"), terminal.seen)
        terminal.type("/show plan\n")
        self.assertTrue(terminal.wait_for("ram"), terminal.seen)
        terminal.type("/nonsense\n")
        self.assertTrue(terminal.wait_for("no command"), terminal.seen)
        terminal.type("/clear\n")
        self.assertTrue(terminal.wait_for("Forgotten"), terminal.seen)
        terminal.type("/bye\n")
        self.assertEqual(terminal.exit_code(), 0)

    def test_ctrl_c_stops_the_answer_and_the_chat_lives(self):
        terminal = Terminal("run", DEMO, *BABBLE, "--ctx", "2000", "--isa", "plain", "--threads", "1")
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        terminal.type("Tell me a story about a fox and a lantern.\n")
        self.assertTrue(terminal.wait_for("lantern\\.\r?\n.*[a-z]{3}"), terminal.seen)
        terminal.press("\x03")
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        terminal.type("/clear\n")
        self.assertTrue(terminal.wait_for("Forgotten.*\n.*>>> "), terminal.seen)
        terminal.type("/set temp 0\n")
        self.assertTrue(terminal.wait_for("temp 0.*\n.*>>> "), terminal.seen)
        terminal.type("What is the capital of Spain?\n")
        self.assertTrue(terminal.wait_for("Madrid"), terminal.seen)
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        self.assertEqual(terminal.exit_code(typing="\x04"), 0)

    def test_ctrl_c_while_a_line_is_drawn(self):
        terminal = Terminal("run", DEMO, "--temp", "0")
        self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
        for i in range(60):
            terminal.type("What is the capital of Spain")
            end = time.perf_counter() + i * 2e-5
            while time.perf_counter() < end:
                pass
            terminal.press("\x03")
            self.assertTrue(terminal.wait_for("leaves.*\n.*>>> ", timeout=5), (i, terminal.seen))
        terminal.type("What is the capital of Spain?\n")
        self.assertTrue(terminal.wait_for("Madrid"), terminal.seen)
        self.assertEqual(terminal.exit_code(typing="\x04"), 0)

    def test_letters_of_every_language(self):
        typed = "Où est l’été à Köln, 日本 и 🦊?"
        for locale in ("C", "C.UTF-8"):
            terminal = Terminal("run", DEMO, "--temp", "0", "-n", "1", env={"LC_ALL": locale})
            self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
            terminal.type(typed + "\n")
            self.assertTrue(terminal.wait_for("\n.*>>> "), terminal.seen)
            terminal.type("/show history\n")
            self.assertTrue(terminal.wait_for("user: " + re.escape(typed)), terminal.seen)
            self.assertEqual(terminal.exit_code(typing="\x04"), 0)

    def test_lines_are_there_in_the_next_chat(self):
        with tempfile.TemporaryDirectory() as state:
            for session in (1, 2):
                terminal = Terminal("run", DEMO, "--temp", "0", env={"XDG_STATE_HOME": state})
                self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
                if session == 1:
                    for line in ("/set seed 71", "/set seed 72", " /set seed 73"):
                        terminal.type(line + "\n")
                        self.assertTrue(terminal.wait_for(line), terminal.seen)
                        self.assertTrue(terminal.wait_for("\n.*>>> "), terminal.seen)
                else:
                    terminal.type("\x1b[A\x1b[A\n")  # up: /bye, /set seed 72; what began with a space is nowhere
                    self.assertTrue(terminal.wait_for("seed 72.*\n.*>>> "), terminal.seen)
                    terminal.type("/show\n")
                    self.assertTrue(terminal.wait_for("seed +72"), terminal.seen)
                terminal.type("/bye\n")
                self.assertEqual(terminal.exit_code(), 0)
            history = os.path.join(state, "millrace", "history")
            self.assertEqual(os.stat(history).st_mode & 0o777, 0o600)
            with open(history) as file:
                self.assertEqual(file.read().split("\n")[:3], ['"/set seed 71"', '"/set seed 72"', '"/bye"'])
        # A pipe is nobody's typing.
        with tempfile.TemporaryDirectory() as state:
            subprocess.run([MILLRACE, "run", DEMO, "-n", "1", "-q"], input=b"Hi\n", env={**os.environ, "XDG_STATE_HOME": state},
                           stdout=subprocess.DEVNULL, check=True, timeout=60)
            self.assertEqual(os.listdir(state), [])

    def test_conversations_are_saved_and_gone_on_with(self):
        with tempfile.TemporaryDirectory() as state:
            env = {"XDG_STATE_HOME": state}
            terminal = Terminal("run", DEMO, "--temp", "0", env=env)
            self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
            for line, says in (("/list", "No conversation"), ("/save spain", "nothing to save"), ("What is the capital of Spain?", "Madrid"),
                               ("/save ../spain", "letters, digits"), ("/save", "wants a name"), ("/save spain", "Saved; "),
                               ("/save spain", "Saved in the place of the chat"), ("/?", "/load NAME"), ("/load nowhere", "no chat 'nowhere'")):
                terminal.type(line + "\n")
                self.assertTrue(terminal.wait_for(says), (line, terminal.seen))
                self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
            terminal.type("/bye\n")
            self.assertEqual(terminal.exit_code(), 0)
            self.assertEqual(os.listdir(os.path.join(state, "millrace", "chats")), ["spain.json"])
            self.assertEqual(os.stat(os.path.join(state, "millrace", "chats", "spain.json")).st_mode & 0o777, 0o600)
            self.assertEqual(os.stat(os.path.join(state, "millrace", "chats")).st_mode & 0o777, 0o700)
            terminal = Terminal("run", DEMO, "--temp", "0", env=env)
            self.assertTrue(terminal.wait_for(">>> "), terminal.seen)
            terminal.type("/list\n")
            self.assertTrue(terminal.wait_for("  spain\r?\n"), terminal.seen)
            terminal.type("/load spain\n")
            self.assertTrue(terminal.wait_for("Going on with spain"), terminal.seen)
            terminal.type("/show history\n")
            self.assertTrue(terminal.wait_for("assistant: The capital of Spain is Madrid"), terminal.seen)
            terminal.type("/bye\n")
            self.assertEqual(terminal.exit_code(), 0)

    def test_ctrl_c_outside_a_chat_ends_with_130(self):
        process = subprocess.Popen([MILLRACE, "bench", DEMO, "-p", "256", "-n", "1500", "-r", "50", "-q"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=20), 130)
        process.stdout.close()
        process.stderr.close()

    def test_calibrate_leaves_nothing_behind_when_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([MILLRACE, "calibrate", "--disk-only", "-q"], cwd=folder, stdout=subprocess.DEVNULL)
            time.sleep(0.7)
            self.assertIsNone(process.poll(), "it was to be killed while it measures")
            process.kill()
            process.wait()
            self.assertEqual(os.listdir(folder), [])

    def test_reader_that_goes_away(self):
        process = subprocess.Popen([MILLRACE, "run", DEMO, "--temp", "0", "-p", "Tell me a story.", "-p", "Tell me a story about a cat."],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(5)
        process.stdout.close()
        self.assertIn(process.wait(timeout=20), (0, 1, 130))
        process.stderr.close()


if __name__ == "__main__":
    unittest.main()
