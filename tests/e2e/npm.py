"""Programs from npm as a lock file names them, and the Node that runs them: it is one of them."""
import fcntl
import platform
import shutil
import subprocess
import unittest

from harness import ROOT

CLIENTS = ROOT / "tests/e2e/clients"
AGENTS = ROOT / "tests/e2e/agents"
CPU = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), "")
NODE = CLIENTS / f"node_modules/node-linux-{CPU}/bin/node"


def why_not():
    """What is missing, or nothing."""
    if shutil.which("npm") is None:
        return "npm is not installed"
    return "" if CPU else f"npm has no Node 22 for {platform.machine()}"


def fetch(folder, *words):
    """Runs npm in the folder unless what the lock file says is there; one test at a time, as two use the clients."""
    installed = folder / "node_modules/.package-lock.json"  # which npm writes last
    with open(folder / "package-lock.json") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed.exists() and installed.stat().st_mtime >= (folder / "package-lock.json").stat().st_mtime:
            return
        done = subprocess.run(["npm", *words, "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise unittest.SkipTest("npm could not fetch the programs: " + (done.stderr.strip().splitlines() or ["it does not say why"])[-1])
        installed.touch()


def install_clients():
    """The clients and Node, beside the scripts that import them."""
    fetch(CLIENTS, "ci")


def install_agents():
    """The coding agents, 1.1 GB, below build/. Their parts for this platform are named themselves, so nothing optional is missed;
    `npm ci` would ask for parts of other platforms that the registry does not have."""
    folder = ROOT / "build/agents"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        wanted = (AGENTS / name).read_bytes()
        if not (folder / name).exists() or (folder / name).read_bytes() != wanted:
            (folder / name).write_bytes(wanted)
    fetch(folder, "install", "--no-save", "--omit=optional")
    return folder / "node_modules"
