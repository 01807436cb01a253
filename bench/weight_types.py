#!/usr/bin/env python3
"""What each type costs and brings: a model quantized to all of them, what that does to its answers, and how fast each runs.

    bench/weight_types.py F16.gguf [--types Q4_K_M,Q2_K] [--ram 5M] [--millrace PROGRAM]

Text, questions and importance matrix are the demo's (tests/data). A row: bytes, perplexity, KL divergence from the model
given and how often the likeliest token is the same, all columns alike and with the importance matrix; of 240 questions how
many are answered exactly; decode of one sequence with everything in memory, and under --ram, reading the rest from the disk
(medians of three runs, by turns with all other types). Table and raw figures are written to build/bench/types.md and .json.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

from compare import MILLRACE, ROOT
from compare_gpu import say

LINES = 80  # of the text's first: the importance matrix; of its last: what is measured


class Bench:
    def __init__(self, program, model, folder):
        self.program, self.model, self.folder = program, model, folder
        lines = (ROOT / "tests/data/stories.txt").read_text().splitlines(keepends=True)
        self.first, self.rest = folder / "first.txt", folder / "rest.txt"
        self.first.write_text("".join(lines[:LINES]))
        self.rest.write_text("".join(lines[-LINES:]))
        self.matrix, self.logits = folder / "imatrix.gguf", folder / "logits"
        self.run("imatrix", model, "-f", self.first, "-o", self.matrix)
        self.run("perplexity", model, "-f", self.rest, "--save-logits", self.logits)

    def run(self, *words):
        done = subprocess.run([self.program, *map(str, words), "-q"], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"millrace {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def types(self):
        """All that quantize writes, as its help lists them."""
        words = re.search(r"\btype TEXT\s+((?:[A-Z0-9_]+, )+[A-Z0-9_]+)", self.run("quantize", "--help"))
        return words[1].split(", ")

    def quantize(self, name, with_matrix):
        path = self.folder / f"{name}{'-im' if with_matrix else ''}.gguf"
        if not path.exists():
            self.run("quantize", self.model, path, name, *(["--imatrix", self.matrix] if with_matrix else []))
        return path

    def quality(self, path):
        told = self.run("perplexity", path, "-f", self.rest, "--against", self.logits)
        mean = re.search(r"mean ([\d.e+-]+) \+- ([\d.e+-]+)", told)
        answered = re.search(r"(\d+) of \d+ answered", self.run("eval", ROOT / "tests/data/eval240.jsonl", "-m", path))
        return {"perplexity": float(re.search(r"perplexity ([\d.]+)", told)[1]), "divergence": float(mean[1]),
                "error": float(mean[2]), "same": float(re.search(r"likeliest token: ([\d.]+)", told)[1]),
                "answers": int(answered[1])}

    def decode(self, path, ram):
        flags = ["-p", 32, "-n", 256 if ram is None else 96, "-r", 1, "--json"]
        told = json.loads(self.run("bench", path, *flags, *([] if ram is None else ["--ram", ram])))
        return told["decode_tok_s"]


def table(rows, ram):
    lines = ["| type | bytes | perplexity | all columns alike: divergence, same token, answers | with `--imatrix` | "
             f"decode resident, tok/s | under `--ram {ram}` |", "|---|---|---|---|---|---|---|"]
    for name, row in rows.items():
        quality = [f"{q['divergence']:.6f} ({q['error']:.6f}), {q['same']:.1f} %, {q['answers']}"
                   for q in (row["alike"], row["imatrix"])]
        speed = [f"{statistics.median(row[key]):,.0f}" for key in ("resident", "disk")]
        lines.append(f"| {name} | {row['bytes']:,} | {row['alike']['perplexity']:.4f} | {' | '.join(quality + speed)} |")
    return "\n".join(lines) + "\n"


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("--types", default="")
    words.add_argument("--ram", default="5M")
    words.add_argument("--millrace", default=MILLRACE)
    asked = words.parse_args()
    out = ROOT / "build/bench"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        bench = Bench(asked.millrace, asked.model, pathlib.Path(folder))
        names = asked.types.split(",") if asked.types else bench.types()
        rows = {}
        for name in names:
            say(f"quality of {name}")
            path = bench.quantize(name, False)
            rows[name] = {"bytes": path.stat().st_size, "alike": bench.quality(path),
                          "imatrix": bench.quality(bench.quantize(name, True)), "resident": [], "disk": []}
        rows = dict(sorted(rows.items(), key=lambda row: -row[1]["bytes"]))
        for turn in range(3):
            say(f"speed, turn {turn + 1} of 3")
            for name in rows:
                path = bench.quantize(name, False)
                rows[name]["resident"].append(bench.decode(path, None))
                rows[name]["disk"].append(bench.decode(path, asked.ram))
            (out / "types.json").write_text(json.dumps(rows, indent=1))
    (out / "types.md").write_text(table(rows, asked.ram))
    print(table(rows, asked.ram), end="")


if __name__ == "__main__":
    main()
