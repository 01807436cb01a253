#!/usr/bin/env python3
"""Records docs/pictures/terminal.svg, the recording in README.md, from a real run: scripts/record_terminal.py [FILE]

The commands below are typed into a terminal of tmux, whose screen is read ten times a second; each line becomes a text of
the SVG that is visible while it was on the screen. Needs tmux, a built program (MILLRACE, or build/release/millrace) and a
machine that does nothing else. The window's title names the machine, the date and the commit.
"""
import datetime
import html
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MILLRACE = pathlib.Path(os.environ.get("MILLRACE", ROOT / "build/release/millrace")).resolve()
COLUMNS, ROWS = 98, 27
CELL_WIDTH, LINE_HEIGHT, MARGIN, BAR = 7.83, 17, 14, 30  # pixels
EVERY, TYPING, READING, LAST = 0.1, 0.045, 2.5, 5.0      # seconds: of a look, a key, between commands, before it begins anew
MOST_BYTES = 300_000

DEMO = "models/demo-moe-q4_k_m.gguf"
COMMANDS = [
    "# A 12.5 MB model under a limit of 6 MB: where are its weights, and how fast is that?",
    f"millrace plan {DEMO} --ram 6M",
    f"millrace run {DEMO} --ram 6M --temp 0 -p 'Tell me a story about a fox and a lantern.'",
]


class Terminal:
    """A shell in tmux, on a server of its own."""

    def __init__(self, folder):
        self.name = f"record-{os.getpid()}"
        (folder / "millrace").symlink_to(MILLRACE)
        shell = f"env PS1='$ ' PATH={folder}:$PATH XDG_STATE_HOME={folder} bash --norc --noprofile"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(ROOT), shell)
        self.tmux("set", "-g", "status", "off")

    def tmux(self, *words):
        return subprocess.run(["tmux", "-L", self.name, *words], capture_output=True, text=True, check=True).stdout

    def type(self, key):
        self.tmux("send-keys", "-l", key) if key != "\n" else self.tmux("send-keys", "Enter")

    def screen(self):
        lines = [line.rstrip() for line in self.tmux("capture-pane", "-p").split("\n")]
        return (lines + [""] * ROWS)[:ROWS]

    def idle(self):
        lines = [line for line in self.screen() if line]
        return bool(lines) and lines[-1] == "$"

    def close(self):
        subprocess.run(["tmux", "-L", self.name, "kill-server"], check=False)


def record():
    """[(seconds, lines)] of each screen that differs from the one before."""
    frames, began = [], time.monotonic()

    def look():
        lines = terminal.screen()
        if not frames or frames[-1][1] != lines:
            frames.append((time.monotonic() - began, lines))

    def wait(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            look()
            time.sleep(EVERY)

    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(pathlib.Path(folder))
        try:
            time.sleep(0.5)
            began = time.monotonic()
            look()
            for command in COMMANDS:
                for key in command:
                    terminal.type(key)
                    look()
                    time.sleep(TYPING)
                terminal.type("\n")
                wait(0.3)
                end = time.monotonic() + 120
                while not terminal.idle() and time.monotonic() < end:
                    look()
                    time.sleep(EVERY)
                wait(0.3 if command.startswith("#") else READING)
        finally:
            terminal.close()
    return frames


def spans(frames, length):
    """(row, text, begin, end) of each text that stood on a row."""
    for row in range(ROWS):
        text, begin = "", 0.0
        for seconds, lines in [*frames, (length, [None] * ROWS)]:
            if lines[row] == text:
                continue
            if text:
                yield row, text, begin, seconds
            text, begin = lines[row], seconds


def machine():
    found = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    name = re.sub(r"\((R|TM)\)| Processor| CPU", "", found[1] if found else "unknown processor").strip()
    return f"{len(os.sched_getaffinity(0))} cores of {name}"


def commit():
    return subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def svg(frames):
    length = frames[-1][0] + LAST
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, ROWS * LINE_HEIGHT + 2 * MARGIN + BAR
    title = f"millrace · {machine()} · {datetime.date.today().isoformat()} · {commit()}"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img" '
           'aria-label="A terminal in which Millrace plans and runs a model that is larger than its memory limit">',
           "<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d7dee5;white-space:pre}.t{fill:#8b98a5;font-size:12px}"
           ".c{fill:#7fd1ae}.n{fill:#8b98a5}</style>",
           f'<rect width="100%" height="100%" rx="8" fill="#14181c"/><text class="t" x="50%" y="20" text-anchor="middle">{html.escape(title)}</text>',
           "".join(f'<circle cx="{18 + 16 * i}" cy="16" r="5" fill="{colour}"/>' for i, colour in enumerate(("#e0685e", "#e0b45e", "#6fbf73")))]
    for row, text, begin, end in spans(frames, length):
        kind = ' class="n"' if text.startswith("$ #") else ' class="c"' if text.startswith("$") else ""
        y = BAR + MARGIN + LINE_HEIGHT * row + 12
        a, b = begin / length, min(end / length, 1)
        times, values = [f"{a:.4f}"], ["visible"]
        if a > 0:
            times, values = ["0", *times], ["hidden", *values]
        if b < 1:
            times, values = [*times, f"{b:.4f}"], [*values, "hidden"]
        move = "" if len(times) == 1 else (f'<animate attributeName="visibility" calcMode="discrete" dur="{length:.1f}s" repeatCount="indefinite" '
                                           f'keyTimes="{";".join(times)}" values="{";".join(values)}"/>')
        hidden = ' visibility="hidden"' if b < 1 else ""  # without animation the last screen is shown
        out.append(f'<text x="{MARGIN}" y="{y}" textLength="{len(text) * CELL_WIDTH:.1f}"{kind}{hidden}>{html.escape(text, quote=False)}{move}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    path = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs/pictures/terminal.svg")
    text = svg(record())
    if len(text.encode()) > MOST_BYTES:
        print(f"record_terminal: {len(text.encode())} bytes, more than {MOST_BYTES}", file=sys.stderr)
        return 1
    path.write_text(text)
    print(f"{path.name}: {len(text.encode())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
