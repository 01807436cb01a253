#!/usr/bin/env python3
"""How many texts a second an encoder embeds, beside llama.cpp: 256 texts of nearly 256 tokens, both programs by turns.

    bench/embeddings.py MODEL.gguf... --llama-embedding PROGRAM [--rounds 3] [--texts 256] [--batch 256,512]

Texts are words of this repository's documents. Millrace computes 64 at once; llama.cpp gets the batch that is best for it of those
named, flash attention and a thread for each processor. Times are those of whole processes, loading included; the median of the rounds counts.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MILLRACE = ROOT / "build/release/millrace"
TOKENS = 256


def token_counts(model, texts):
    lines = subprocess.run([MILLRACE, "tokenize", model], input="\n".join(texts), capture_output=True, text=True, check=True)
    return [len(line.split()) for line in lines.stdout.splitlines()]


def make_texts(model, count):
    """Words until a text has as many tokens as fit."""
    words = re.findall("[A-Za-z]+", " ".join(path.read_text() for path in sorted(ROOT.glob("docs/**/*.md"))))
    unique = sorted(set(words))
    cost = dict(zip(unique, token_counts(model, unique)))
    texts, at = [], 0
    while len(texts) < count:
        text, used = [], 2
        while used + cost[words[at % len(words)]] <= TOKENS:
            used += cost[words[at % len(words)]]
            text.append(words[at % len(words)])
            at += 1
        texts.append(" ".join(text))
    return texts


def seconds(command, texts):
    begin = time.monotonic()
    subprocess.run(command, stdin=open(texts, "rb"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--llama-embedding", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--batch", default="256,512")
    args = parser.parse_args()
    threads = str(len(os.sched_getaffinity(0)))
    print("| model | Millrace, texts/s | llama.cpp | ratio |\n|---|---|---|---|")
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            texts = pathlib.Path(folder) / "texts"
            texts.write_text("\n".join(make_texts(model, args.texts)) + "\n")
            ours = [MILLRACE, "embed", model, "-s", "64", "--pooling", "mean"]
            theirs = {batch: [args.llama_embedding, "-m", model, "-f", texts, "-c", batch, "-b", batch, "-ub", batch, "-fa", "on", "-t", threads, "--pooling", "mean",
                              "--embd-output-format", "array"] for batch in args.batch.split(",")}
            best = min(theirs, key=lambda batch: seconds(theirs[batch], texts))
            times = [(seconds(ours, texts), seconds(theirs[best], texts)) for _ in range(args.rounds)]
            own, other = (statistics.median(each) for each in zip(*times))
        print(f"| {pathlib.Path(model).name} | {args.texts / own:.1f} | {args.texts / other:.1f} (`-ub {best}`) | {other / own:.2f} |", flush=True)


if __name__ == "__main__":
    main()
