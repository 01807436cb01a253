#!/usr/bin/env python3
"""How much one pass for many is worth: total tokens per second of N streaming clients of `millrace serve` against one.

  bench/streams.py MODEL.gguf [--ram 400M] [--clients 16] [--tokens 32] [--rounds 3] [--millrace build/release/millrace]

Each round measures one client and N, on one server. All prompts differ. Prints a line a round and the medians."""
import argparse
import http.client
import json
import pathlib
import random
import re
import statistics
import subprocess
import threading
import time

WORDS = "river stone lamp winter garden paper engine music shadow bread forest window copper sailor thunder pocket".split()


def ask(address, model, tokens, seed, results):
    """Streams one completion; notes when its first and last token came, and how many there were."""
    prompt = " ".join(random.Random(seed).choice(WORDS) for _ in range(24))
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True,
            "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(*address, timeout=3600)
    began = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"the server said {response.status}: {response.read()[:300]!r}")
    first, count = None, 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("usage"):
            count = event["usage"]["completion_tokens"]
        elif first is None:
            first = time.monotonic()
    results.append((began, first or time.monotonic(), time.monotonic(), count))


def round_of(address, model, clients, tokens, seed):
    results = []
    threads = [threading.Thread(target=ask, args=(address, model, tokens, seed * 1000 + i, results)) for i in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # From the first request to the last token: the prompts count too.
    total = sum(count for *_, count in results)
    return total / (max(end for _, _, end, _ in results) - began), statistics.median(first - start for start, first, *_ in results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ram")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--millrace", default="build/release/millrace")
    flags = parser.parse_args()
    command = [flags.millrace, "serve", flags.model, "--port", "0", "--parallel", str(flags.clients), "-c", "512",
               "--prompt-cache", "off"]
    server = subprocess.Popen(command + (["--ram", flags.ram] if flags.ram else []), stdout=subprocess.PIPE, text=True)
    try:
        found = re.search(r"http://([^:]+):(\d+)", server.stdout.readline())
        if not found:
            raise SystemExit("the server did not start")
        address, model = (found.group(1), int(found.group(2))), pathlib.Path(flags.model).stem
        round_of(address, model, 1, 4, 999)  # loads the model
        ratios = []
        for number in range(flags.rounds):
            one, one_first = round_of(address, model, 1, flags.tokens, 2 * number)
            many, many_first = round_of(address, model, flags.clients, flags.tokens, 2 * number + 1)
            ratios.append(many / one)
            print(f"1 client {one:.2f} tok/s, first after {one_first:.2f} s; {flags.clients} clients {many:.2f} tok/s, "
                  f"first after {many_first:.2f} s; ratio {many / one:.2f}", flush=True)
        print(f"median ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
