"""What the end-to-end tests share: the program, the bundled models, and ways to run one against the other."""
import fcntl
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MILLRACE = os.environ.get("MILLRACE", str(ROOT / "build/dev/millrace"))
SYNTH = os.environ.get("MILLRACE_SYNTH", str(ROOT / "build/dev/tools/synth-model"))
DEMO = str(ROOT / "models/demo-moe-q4_k_m.gguf")
DRAFT = str(ROOT / "tests/data/demo-draft-f16.gguf")
os.environ.setdefault("MILLRACE_LEARN_EXPERTS", "off")  # what one test uses is not for the next one to know
SANITIZED = bool(os.environ.get("MILLRACE_SANITIZED"))  # sanitizers multiply memory: budgets cannot be checked


class Outcome:
    def __init__(self, code, out, err, peak_rss_bytes=0):
        self.code, self.out, self.err, self.peak_rss_bytes = code, out, err, peak_rss_bytes


def run(*args, stdin=None, timeout=300, env=None):
    """Runs millrace to its end; peak resident memory as the kernel saw it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([MILLRACE, *map(str, args)], stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                                   stdout=out, stderr=err, env={**os.environ, **(env or {})})
        if stdin is not None:
            try:
                process.stdin.write(stdin if isinstance(stdin, bytes) else stdin.encode())
                process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return Outcome(process.returncode, out.read().decode(errors="replace"), err.read().decode(errors="replace"),
                       usage.ru_maxrss * 1024)


def bare_bytes():
    """What the program holds before it does anything. Of a process that has ended the kernel tells the most that it held since its
    fork, and so what Python held; this one waits at a full pipe, and is asked."""
    out, full = os.pipe()
    fcntl.fcntl(full, fcntl.F_SETPIPE_SZ, 4096)
    os.write(full, b"x" * 4096)
    process = subprocess.Popen([MILLRACE, "--version"], stdout=full)
    status = pathlib.Path(f"/proc/{process.pid}/status")
    try:
        sleeps = 0
        while sleeps < 3:
            sleeps = sleeps + 1 if "State:\tS" in status.read_text() else 0
            time.sleep(0.05)
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text()).group(1)) * 1024
    finally:
        process.kill()
        process.wait()
        os.close(out)
        os.close(full)


class Case(unittest.TestCase):
    def ok(self, *args, **kwargs):
        outcome = run(*args, **kwargs)
        self.assertEqual(outcome.code, 0, f"{args}\n{outcome.out}\n{outcome.err}")
        return outcome

    def refused(self, *args, says, **kwargs):
        """The command fails with one line that says what is wrong, and never by a signal."""
        outcome = run(*args, **kwargs)
        self.assertGreater(outcome.code, 0, f"{args} ended with {outcome.code}\n{outcome.out}\n{outcome.err}")
        self.assertLess(outcome.code, 126, outcome.err)
        errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, f"{args}: {outcome.err!r}")
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, errors[0], args)
        return outcome

    def bench(self, model, *args):
        outcome = self.ok("bench", model, "--json", "-q", "--hash", *args)
        return json.loads(outcome.out)
