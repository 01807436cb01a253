"""Packages from PyPI in a virtual environment below build/, for tests that run other people's programs."""
import fcntl
import subprocess
import sys
import unittest

from harness import ROOT


def python_with(folder, *packages):
    """The Python of an environment that has the packages; skips the test with a sentence where they cannot be fetched."""
    home = ROOT / "build" / folder
    home.mkdir(parents=True, exist_ok=True)
    wanted, installed, python = "\n".join(packages), home / "installed", home / "bin/python"
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed.exists() and installed.read_text() == wanted:
            return python
        for words in ([sys.executable, "-m", "venv", home], [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]):
            done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=7200)
            if done.returncode != 0:
                raise unittest.SkipTest("PyPI is not reachable: " + ((done.stderr or done.stdout).strip().splitlines() or ["pip does not say why"])[-1])
        installed.write_text(wanted)
    return python
