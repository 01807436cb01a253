#!/usr/bin/env python3
"""What the network between hosts costs: ranks in network namespaces of one machine, with a rate, a delay and a cap on memory each.

    bench/borders.py MODEL.gguf [--ranks 2,4] [--networks 10:0.2,1:2] [--ram 1.2G] [-t 1] [-n 48] [--rounds 3]

A network is Gbit/s:milliseconds one way. For each: what a plain TCP connection over it takes and carries, then one sequence decoded over
the ranks, a thread each (or -t): what all stages computed of a pass, and what was between them (medians of the rounds). One process that has all
layers at home, on one thread, stands beside it. With --ram every rank has so much in a memory cgroup, one
process of so much is measured beside it, and what each process read from the disk for a token stands in the table. As root.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/e2e"))
import networks  # noqa: E402
from compare_gpu import parse_size  # noqa: E402
from harness import MILLRACE  # noqa: E402

SERVER = """
import socket
listener = socket.create_server(("", 7000))
print("ready", flush=True)
peer, _ = listener.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(400):
    peer.sendall(peer.recv(1))
while peer.recv(1 << 20):
    pass
"""
CLIENT = """
import socket, statistics, sys, time
peer = socket.create_connection((sys.argv[1], 7000))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(400):
    begin = time.perf_counter()
    peer.sendall(b"x")
    peer.recv(1)
    times.append(time.perf_counter() - begin)
block, sent, begin = bytes(1 << 20), 0, time.perf_counter()
while time.perf_counter() - begin < 1:
    sent += peer.send(block)
print(statistics.median(times) / 2 * 1e3, sent * 8 / (time.perf_counter() - begin) / 1e9)
"""


def measure_tcp(network):
    """Milliseconds one way and Gbit/s, between the first two hosts."""
    server = subprocess.Popen(network.on(1, sys.executable, "-c", SERVER), stdout=subprocess.PIPE)
    server.stdout.readline()
    made = subprocess.run(network.on(0, sys.executable, "-c", CLIENT, network.addresses[1]), capture_output=True, text=True, check=True)
    server.wait()
    return tuple(map(float, made.stdout.split()))


class DiskReads:
    """What processes of millrace have read from the disk, as far as they still told while they lived."""

    def __init__(self):
        self.of, self.going = {}, True
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while self.going:
            for folder in pathlib.Path("/proc").iterdir():
                try:
                    if folder.name.isdigit() and (folder / "comm").read_text().strip() == "millrace":
                        fields = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
                        self.of[folder.name] = int(fields["read_bytes"])
                except (OSError, ValueError, KeyError):
                    continue
            time.sleep(0.05)

    def end(self):
        self.going = False
        self.thread.join()
        return sum(self.of.values())


def bench(command, args, count, *flags):
    """Of one run: its report, and what its processes read from the disk."""
    words = [MILLRACE, "bench", args.model, "--json", "-q", "-r", "1", "--no-warm-up", "-t", args.threads, "-c", "512", "-p", "16", "-n", count, "--hash", *flags]
    reads = DiskReads()
    with tempfile.TemporaryFile("w+") as errors:
        made = subprocess.run(command(*map(str, words)), stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        read = reads.end()
        if made.returncode != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(map(str, words))}\n{errors.read()}")
    return json.loads(made.stdout), read


def row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def borders(args):
    print("| ranks | tc and relay | TCP measured | one process, ms a token | all stages, ms | borders, ms | of the stages | same logits |")
    print("|---|---|---|---|---|---|---|---|")
    for ranks in args.ranks:
        for gbit, delay in args.networks:
            with networks.Network(ranks, gbit=gbit or None, delay_ms=delay) as network:
                latency, rate = measure_tcp(network)
                alone, stages, between, hashes = [], [], [], set()
                for _ in range(args.rounds):
                    one, _ = bench(lambda *words: network.on(0, *words), args, args.n)
                    many, _ = bench(network.mpirun, args, args.n)
                    alone.append(1e3 / one["decode_tok_s"])
                    stages.append(many["stages_ms_per_pass"])
                    between.append(many["between_ms_per_pass"])
                    hashes |= {one["logits_hash"], many["logits_hash"]}
                computed, lost = statistics.median(stages), statistics.median(between)
                row([str(ranks), f"{gbit:g} Gbit/s, {delay:g} ms", f"{rate:.2f} Gbit/s, {latency:.3f} ms", f"{statistics.median(alone):.1f}",
                     f"{computed:.1f}", f"{lost:.2f}", f"{100 * lost / computed:.1f} %", "yes" if len(hashes) == 1 else "NO"])


def capped(args):
    print(f"| ranks, {args.ram} each | tc and relay | TCP measured | tok/s | disk bytes a token, all processes | same logits |")
    print("|---|---|---|---|---|---|")
    ram, hashes = parse_size(args.ram), set()
    for ranks in [1, *args.ranks]:
        gbit, delay = args.networks[0]
        # What the program and MPI take beside --ram counts in a cgroup, and so does the page cache.
        with networks.Network(max(ranks, 2), gbit=gbit or None, delay_ms=delay, memory=ram + 100_000_000) as network:
            latency, rate = measure_tcp(network)
            command = network.mpirun if ranks > 1 else lambda *words: network.on(0, *words)
            few, many = 4, 4 + (args.n if ranks > 1 else 8)
            first, read_first = bench(command, args, few, "--ram", ram)
            report, read = bench(command, args, many, "--ram", ram)
            hashes.add(first["logits_hash"])  # of as many tokens everywhere
            row([str(ranks), f"{gbit:g} Gbit/s, {delay:g} ms" if ranks > 1 else "", f"{rate:.2f} Gbit/s, {latency:.3f} ms" if ranks > 1 else "",
                 f"{report['decode_tok_s']:.2f}", f"{max(read - read_first, 0) / (many - few):,.0f}", "yes" if len(hashes) == 1 else "NO"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ranks", default="2", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--networks", default="10:0.2", type=lambda text: [tuple(map(float, word.split(":"))) for word in text.split(",")])
    parser.add_argument("--ram")
    parser.add_argument("-t", "--threads", default="1", help="of each rank")
    parser.add_argument("-n", type=int, default=48, help="tokens that are decoded")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    missing = networks.unavailable()
    if missing:
        sys.exit(f"nothing is measured: {missing}")
    capped(args) if args.ram else borders(args)


if __name__ == "__main__":
    main()
