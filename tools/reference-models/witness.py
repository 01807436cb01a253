"""Asks a second witness: llama.cpp's server must give the recorded greedy tokens of every reference checkpoint.

    python3 witness.py LLAMA_SERVER [FIXTURES_DIR] [--only NAME,NAME] [--table FILE]

For each fixture the server is started on the file with a cache of float32; it continues the recorded prompt greedily,
and then tells the logarithms of all probabilities behind each beginning of the sequence. Printed are how many greedy
tokens agree and how far its logits are from the recorded ones, relative to these less their row's mean: with the file,
and with a copy whose F16 weights are F32, since llama.cpp rounds what it multiplies with F16 weights to F16. Other
greedy tokens fail, and so does a copy that is farther than ROUNDING without a reason in CAUSES.
Needs Python alone, and a llama-server of 2026 on this machine.
"""

import argparse
import json
import math
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import widen
import zoo

FIXTURES = Path(__file__).resolve().parent.parent.parent / "tests" / "data" / "reference"
START_SECONDS = 60
ROUNDING = 1e-5  # what order and rounding of float32 sums change
GELU = "its GELU reads a table of 65,536 F16 results"
CAUSES = {  # of what a copy in F32 still differs by
    "gemma3": GELU,
    "gemma4": GELU,
    "gemma4-moe": GELU,
    "gpt-oss": "it rounds the bounds of YaRN's ramp, and what meets MXFP4 to 8 bits",
    "gpt-oss-f16": "it rounds the bounds of YaRN's ramp: 2.18 to 2 and 11.80 to 12",
}


def read_reference(path):
    """(tokens, rows of logits) of the only sequence of a reference file."""
    data = path.read_bytes()
    magic, version, sequences, text_bytes, count, vocabulary = struct.unpack_from("<8s5I", data)
    if (magic, version, sequences, text_bytes) != (b"MRLOGITS", 1, 1, 0):
        raise ValueError(f"{path} is no reference of one sequence without text")
    tokens = struct.unpack_from(f"<{count}i", data, 28)
    rows = [
        struct.unpack_from(f"<{vocabulary}f", data, 28 + 4 * count + 4 * vocabulary * row) for row in range(count)
    ]
    return list(tokens), rows


class Server:
    """A llama-server with one model, for as long as the `with` lasts."""

    def __init__(self, program, model, context):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = tempfile.TemporaryFile()
        options = ["-m", model, "-c", context, "-np", 1, "--host", "127.0.0.1", "--port", self.port, "-ngl", 0, "-fa",
                   "off", "-ctk", "f32", "-ctv", "f32", "-fit", "off", "--no-warmup", "-t", 2]
        self.process = subprocess.Popen([program, *map(str, options)], stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        deadline = time.time() + START_SECONDS
        while time.time() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        self.__exit__()
        self.log.seek(0)
        raise RuntimeError("llama-server did not start:\n" + self.log.read().decode(errors="replace")[-3000:])

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def complete(self, tokens, count, probabilities=0):
        body = {"prompt": tokens, "n_predict": count, "temperature": 0, "return_tokens": True, "cache_prompt": True,
                "n_probs": probabilities}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)


def log_softmax(row):
    largest = max(row)
    total = largest + math.log(sum(math.exp(value - largest) for value in row))
    return [value - total for value in row]


def distance(server, tokens, rows):
    """Norm of the differences of all logarithms of probabilities, by that of the recorded logits less their mean."""
    differences = norm = 0.0
    for length, row in enumerate(rows, start=1):
        answer = server.complete(tokens[:length], 1, len(row))
        theirs = {entry["id"]: entry["logprob"] for entry in answer["completion_probabilities"][0]["top_logprobs"]}
        mean = sum(row) / len(row)
        for word, value in enumerate(log_softmax(row)):
            differences += (theirs[word] - value) ** 2
            norm += (row[word] - mean) ** 2
    return math.sqrt(differences / norm)


def ask(program, model, context, tokens, rows):
    """(greedy tokens behind the prompt, distance) of one file."""
    with Server(program, model, context) as server:
        theirs = server.complete(tokens[: -zoo.ANSWER], zoo.ANSWER)["tokens"]
        return theirs, distance(server, tokens, rows)


def witness(program, fixtures_dir, model, reference, context):
    """(cells of the table, whether they agree) of one fixture."""
    tokens, rows = read_reference(fixtures_dir / reference)
    answer, name = tokens[-zoo.ANSWER :], Path(model).stem
    theirs, far = ask(program, fixtures_dir / model, context, tokens, rows)
    with tempfile.NamedTemporaryFile(suffix=".gguf") as copy:
        copy.write(widen.widened((fixtures_dir / model).read_bytes()))
        copy.flush()
        theirs_wide, far_wide = ask(program, copy.name, context, tokens, rows)
    same = sum(own == other for own, other in zip(answer, theirs))
    cause = "" if far_wide <= ROUNDING else CAUSES.get(name, "UNKNOWN")
    if theirs != answer:
        cause += f" DIFFERS {theirs} for {answer}"
    cells = [model, reference, f"{same} of {len(answer)}", f"{far:.1e}", f"{far_wide:.1e}", cause]
    return cells, theirs == answer and theirs_wide == answer and cause != "UNKNOWN"


def line(cells):
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_server")
    parser.add_argument("fixtures_dir", nargs="?", type=Path, default=FIXTURES)
    parser.add_argument("--only", default="", help="names of GGUF or reference files without ending, with commas")
    parser.add_argument("--table", type=Path, help="write what is printed there, too")
    options = parser.parse_args()
    wanted = set(options.only.split(",")) - {""}
    lines = [line(["file", "reference", "greedy tokens", "distance", "in F32", "why"]), "|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    failed = 0
    for model, reference, context in zoo.fixtures():
        if wanted and not wanted & {Path(model).stem, Path(reference).stem}:
            continue
        try:
            cells, agrees = witness(options.llama_server, options.fixtures_dir, model, reference, context)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            cells, agrees = [model, reference, "", "", "", f"FAILED {error}"], False
        lines.append(line(cells))
        print(lines[-1], flush=True)
        failed += not agrees
    if options.table:
        options.table.write_text("\n".join(lines) + "\n")
    sys.exit(f"{failed} do not agree" if failed else 0)


if __name__ == "__main__":
    main()
