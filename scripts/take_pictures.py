#!/usr/bin/env python3
"""Takes the pictures of the web page that the documents show, anew: scripts/take_pictures.py [FOLDER, default docs/pictures]

This machine's rates are measured; then the bundled model answers under a budget of 14 MB, in a real Chromium. Needs npm
and chromium (apt), a built program (MILLRACE, or build/release/millrace), and a machine that does nothing else; makes
the files small with pngquant where that is installed.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))

import npm  # noqa: E402
from harness import DEMO, MILLRACE  # noqa: E402
from serving import Server  # noqa: E402
from test_page import CHROMIUM  # noqa: E402


def main() -> int:
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs/pictures").resolve()
    if CHROMIUM is None:
        print("take_pictures: chromium is not installed", file=sys.stderr)
        return 1
    npm.install_clients()
    folder.mkdir(parents=True, exist_ok=True)
    rates = pathlib.Path(tempfile.mkdtemp()) / "rates.json"
    subprocess.run([MILLRACE, "calibrate", DEMO, "--out", str(rates)], env={**os.environ, "XDG_CACHE_HOME": str(rates.parent)}, check=True,
                   stdout=subprocess.DEVNULL)

    def take(server, what):
        # A browser draws without a GPU here: it gives way, or it would take the processors of the answers it shows.
        subprocess.run(["nice", "-n", "19", npm.NODE, "pictures.mjs", server.url, CHROMIUM, str(folder), what], cwd=npm.CLIENTS, check=True, timeout=300)

    with tempfile.TemporaryDirectory() as store, Server("--rates", rates, env={"MILLRACE_MODELS": store}) as server:
        take(server, "first-run")
    for theme in ("light", "dark"):
        with tempfile.TemporaryDirectory() as store, \
                Server(DEMO, "--ram", "14M", "--parallel", "1", "--rates", rates, env={"MILLRACE_MODELS": store}) as server:
            take(server, theme)
    for picture in folder.glob("*.png"):
        if shutil.which("pngquant"):
            subprocess.run(["pngquant", "--force", "--ext", ".png", "--speed", "1", "96", str(picture)], check=True)
        print(f"{picture.name}: {picture.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
