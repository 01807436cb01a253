#!/usr/bin/env python3
"""One model under several caps: what was measured beside what the plan had predicted and beside what link and disk can do.

    bench/tiers.py MODEL.gguf [--rows FILE] [--only 1,4] [--device auto] [--timeout 600]

A row is VRAM/RAM and flags of `millrace bench`, a line each in FILE (default: those of docs/internals/benchmarks.md for a 70B of 40 GB);
`first` instead of flags measures the first token of 16 from a cold page cache, over the whole program with its start and end.
Rates are calibrated once, before anything runs; each row's plan is kept in build/bench/tiers before its first pass. Rows
that read from the disk stand between two sweeps of plain O_DIRECT reads. After every row table and raw figures are written to
build/bench/tiers.md and .json, so a run that is cut off loses one row. VRAM of 0 leaves the GPU out.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import time

import compare
from compare_gpu import file_bytes, machine, parse_size, say

ROWS = """
16G/40G  -p 16 -n 24 --cpu-share 0
16G/40G  -p 16 -n 32
16G/40G  -p 512 -n 1
16G/40G  -p 2048 -n 1
6G/44G   -p 16000 -n 24 --kv q8_0
16G/8G   -p 16 -n 6
16G/8G   -p 2048 -n 1
16G/8G   -p 16 -n 8 -s 16
16G/8G   -p 16 -n 6 -s 64 --ctx 320 --kv q8_0
16G/8G   first
16G/40G  first
"""


class Row:
    def __init__(self, line):
        caps, *self.flags = shlex.split(line)
        if caps.count("/") != 1 or not self.flags:
            sys.exit(f"{line.strip()}: write VRAM/RAM and flags of millrace bench, or first")
        self.label, (vram, ram) = caps, caps.split("/")
        self.vram_bytes, self.ram_bytes = parse_size(vram), parse_size(ram)
        self.first_token = self.flags == ["first"]
        if self.first_token:
            self.flags = ["-p", "16", "-n", "1"]
        asked = lambda name, default: int(self.flags[self.flags.index(name) + 1]) if name in self.flags else default
        self.prompt, self.decode = asked("-p", 512) >= 256, asked("-n", 64) > 1  # which rates the row is about

    def command(self, path, device, plan, reads):
        """Behind a repetition that is not counted, but for decode from the disk: its own short prompt is a pass over all there is to read."""
        on = ["--device", "cpu"] if self.vram_bytes == 0 or device == "cpu" else ["--device", device, "--vram", str(self.vram_bytes)]
        return [compare.MILLRACE, "bench", path, *on, "--ram", str(self.ram_bytes), *self.flags, "-r", "1", *(["--no-warm-up"] if self.first_token or (reads and not self.prompt) else []),
                "--json", "-q", "--plan", str(plan)]


def run(command, timeout):
    """The JSON of a run, its seconds, and why it failed (or None)."""
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return None, timeout, f"none in {timeout} s"
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        return None, seconds, (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    return json.loads(done.stdout), seconds, None


def measure(row, number, path, args, before):
    """before: the sweep that ended when this row began, or None."""
    plan = compare.WORK / "tiers" / f"row-{number}.plan.json"
    plan.parent.mkdir(parents=True, exist_ok=True)
    plan.unlink(missing_ok=True)
    reads = row.first_token or row.vram_bytes + row.ram_bytes < file_bytes(path)
    sweeps = [before or compare.calibrated_disk(path)] if reads else []
    if row.first_token:
        compare.drop_page_cache()
    figures, seconds, failed = run(row.command(path, args.device, plan, reads), args.timeout)
    if reads:
        sweeps.append(compare.calibrated_disk(path))
    return {"caps": row.label, "flags": row.flags, "first_token": row.first_token, "prompt": row.prompt, "decode": row.decode, "seconds": seconds, "failed": failed, "sweeps": sweeps,
            "bytes": file_bytes(path), "bench": figures}


def beside(measured, predicted, digits):
    """A figure with its prediction."""
    if not predicted:
        return f"{measured:.{digits}f}"
    return f"{measured:.{digits}f} (predicted {predicted:.{digits}f}, {100 * (predicted / measured - 1):+.0f} %)"


def cells(result):
    """decode, prompt, link, disk, as text."""
    bench = result["bench"]
    if result["first_token"]:
        allowed = 1.15 * result["bytes"] / max(result["sweeps"]) + 2
        return [f"first token in {result['seconds']:.1f} s ({allowed:.1f} s are 1.15 times the file at {max(result['sweeps']) / 1e9:.2f} GB/s, and 2 s)", "", "", ""]
    decode = prompt = link = disk = ""
    if result["decode"]:
        decode = beside(bench["decode_tok_s"], bench["predicted_decode_tok_s"], 2)
    if result["prompt"]:
        prompt = beside(bench["prompt_tok_s"], bench["predicted_prompt_tok_s"], 0)
    if bench.get("pcie_bytes_per_pass") and result["decode"]:
        link = (f"{bench['pcie_bytes_per_pass'] / 1e9:.1f} GB a pass at {bench['pcie_bytes_s'] / 1e9:.1f} GB/s, "
                f"{100 * bench['pcie_bytes_s'] / bench['pcie_rate_measured']:.1f} % of a copy's {bench['pcie_rate_measured'] / 1e9:.1f}")
    if bench["disk_bytes_per_pass"] and result["sweeps"]:
        # While it decodes, pauses included; of a prompt's one pass the disk's own time is the figure.
        rate = bench["disk_bytes_per_pass"] * bench["decode_tok_s"] / bench["sequences"] if result["decode"] else bench["disk_bytes_s"]
        shares = " and ".join(f"{100 * rate / sweep:.0f} %" for sweep in result["sweeps"])
        disk = (f"{bench['disk_bytes_per_pass'] / 1e9:.1f} GB a pass at {rate / 1e9:.2f} GB/s, {shares} of the sweeps before and after "
                f"({' and '.join(f'{sweep / 1e9:.2f}' for sweep in result['sweeps'])})")
    return [decode, prompt, link, disk]


def table(results):
    lines = ["| VRAM / RAM | | decode, tok/s | prompt, tok/s | link | disk |", "|---|---|---|---|---|---|"]
    for result in results:
        what = "" if result["first_token"] else " ".join(result["flags"])
        shown = cells(result) if not result["failed"] else [result["failed"].replace("|", "/"), "", "", ""]
        lines.append(f"| {result['caps']} | {what} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", default="", help="a file of rows")
    parser.add_argument("--only", default="", help="numbers of rows, from 1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a row may take")
    args = parser.parse_args(argv)
    rows = [Row(line) for line in (pathlib.Path(args.rows).read_text() if args.rows else ROWS).splitlines() if line.strip() and line[0] != "#"]
    only = [int(number) for number in args.only.split(",")] if args.only else range(1, len(rows) + 1)
    if not all(1 <= number <= len(rows) for number in only):
        sys.exit(f"--only {args.only}: there are rows 1 to {len(rows)}")
    if not pathlib.Path(compare.MILLRACE).exists():
        sys.exit(f"{compare.MILLRACE}: not there; build it with make bench, or name another in MILLRACE")
    say("millrace calibrate")
    calibrated = subprocess.run([compare.MILLRACE, "calibrate", args.model, "-q", "--json"], capture_output=True, text=True, check=False)
    if calibrated.returncode != 0:
        sys.exit(f"millrace calibrate: {calibrated.stderr.strip()}")
    results = []
    for number in only:
        row = rows[number - 1]
        before = results[-1]["sweeps"][-1] if results and results[-1]["sweeps"] else None
        results.append(measure(row, number, args.model, args, before))
        say(f"row {number}, {row.label}: {next((cell for cell in cells(results[-1]) if cell), '') if not results[-1]['failed'] else results[-1]['failed']} "
            f"({results[-1]['seconds']:.0f} s)")
        raw = {"model": pathlib.Path(args.model).name, "machine": machine(), "when": time.strftime("%Y-%m-%d"), "rates": json.loads(calibrated.stdout),
               "rows": results}
        (compare.WORK / "tiers.json").write_text(json.dumps(raw, indent=1))
        (compare.WORK / "tiers.md").write_text(f"{raw['model']} on {raw['machine']}, {raw['when']}\n\n{table(results)}\n")
    print(table(results))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; what was measured is in build/bench/tiers.md")
