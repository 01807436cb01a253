"""What the end-to-end tests share: the program, the bundled models, and ways to run one against the other."""
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MILLRACE = os.environ.get("MILLRACE", str(ROOT / "build/release/millrace"))
SYNTH = os.environ.get("MILLRACE_SYNTH", str(ROOT / "build/release/tools/synth-model"))
DEMO = str(ROOT / "models/demo-moe-q4_k_m.gguf")
DRAFT = str(ROOT / "tests/data/demo-draft-f16.gguf")
os.environ.setdefault("MILLRACE_LEARN_EXPERTS", "off")  # what one test uses is not for the next one to know
WINDOWS = os.environ.get("MILLRACE_SYSTEM") == "windows"  # MILLRACE starts Windows' program, in Wine (scripts/test_windows.sh)
SANITIZED = bool(os.environ.get("MILLRACE_SANITIZED"))  # sanitizers multiply memory: budgets cannot be checked


class Outcome:
    """What a program that ended said; `peak_rss_bytes` as the kernel saw it, `held_bytes` where it was measured: the most that it held
    beyond its bare start."""

    def __init__(self, code, out, err, peak_rss_bytes=0, held_bytes=None):
        self.code, self.out, self.err, self.peak_rss_bytes, self.held_bytes = code, out, err, peak_rss_bytes, held_bytes


def run(*args, stdin=None, timeout=300, env=None, measured=False):
    """Runs millrace to its end. `time` starts it, since of a process that has ended the kernel tells the most that it held since
    its fork: started from here, what Python held."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.NamedTemporaryFile("r") as peak:
        process = subprocess.Popen(["/usr/bin/time", "-q", "-f", "%M", "-o", peak.name, MILLRACE, *map(str, args)],
                                   stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                                   stdout=out, stderr=err, env={**os.environ, **(env or {})}, start_new_session=True)
        used = 0
        try:
            if stdin is not None:
                try:
                    process.stdin.write(stdin if isinstance(stdin, bytes) else stdin.encode())
                    process.stdin.close()
                except BrokenPipeError:
                    pass
            while measured and process.poll() is None:
                used = max(used, children_program_bytes(process.pid))
                time.sleep(0.05)
            process.wait(timeout * (10 if SANITIZED else 1))
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        out.seek(0)
        err.seek(0)
        peak_rss_bytes = int(peak.read()) * 1024
        return Outcome(process.returncode, out.read().decode(errors="replace"), err.read().decode(errors="replace"), peak_rss_bytes,
                       Bare().beyond(peak_rss_bytes, used) if measured else None)


def program_bytes(pid):
    """What a process holds of its program's and libraries' files, unchanged: others share it, and the kernel can drop it."""
    held, is_program = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_program = line.endswith("/" + pathlib.Path(MILLRACE).name) or ".so" in line
        elif is_program and (found := re.match(r"(Rss|Anonymous):\s+(\d+) kB", line)):
            held += int(found[2]) * 1024 * (1 if found[1] == "Rss" else -1)
    return held


def children_program_bytes(pid):
    try:
        return sum(map(program_bytes, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:  # they have ended
        return 0


def resident_bytes(pid, what="VmRSS"):
    """What a process holds, or with VmHWM the most that it has held so far; 0 where it has ended."""
    found = re.search(rf"^{what}:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0


def peak_bytes(pid):
    return resident_bytes(pid, "VmHWM")


class Bare:
    """What the program holds before it does anything. It waits at a full pipe, and is asked."""

    def __init__(self):
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
            self.peak_bytes, self.program_bytes = peak_bytes(process.pid), program_bytes(process.pid)
        finally:
            process.kill()
            process.wait()
            os.close(out)
            os.close(full)

    def beyond(self, peak, program):
        """Of a process that held `peak` bytes, those that neither the bare start nor more of the program itself, `program` bytes of it,
        explains."""
        return peak - self.peak_bytes - max(program - self.program_bytes, 0)

    def held_by(self, pid):
        return self.beyond(peak_bytes(pid), program_bytes(pid))


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
