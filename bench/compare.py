#!/usr/bin/env python3
"""Measures Millrace beside llama.cpp on synthetic models, in alternating pairs, and prints the ratios.

    bench/compare.py cpu     [--pairs 5] [--threads 2] [--isa auto|avx2] [--dtypes Q4_0,Q8_0,Q4_K_M,Q6_K]
    bench/compare.py memory  [--pairs 3]      both under one memory limit (a cgroup; needs root)
    bench/compare.py disk    [--ram 800M]     bytes read per second beside what plain O_DIRECT reads reach in the same run
    bench/compare.py gpu     --help           on a GPU at equal budgets of VRAM and RAM

llama.cpp is the llama-bench program given with --llama-bench (built for this machine: the fair peer), else the CPU build
of the npm package @fugood/llama.node (which is slow on some machines: look at its figures before quoting a ratio).
Needs: a built tree (make bench); for the npm package node and npm. Models and raw figures go to build/bench/.
"""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build/bench"
MILLRACE = os.environ.get("MILLRACE", str(ROOT / "build/release/millrace"))
SYNTH = os.environ.get("MILLRACE_SYNTH", str(ROOT / "build/release/tools/synth-model"))

LLAMA_BENCH = ""
GROUPS = itertools.count()  # each cgroup has a name of its own: one may not be gone yet when the next is made


def model(name, *flags):
    """A synthetic model, written once."""
    path = WORK / "models" / f"{name}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.gguf")  # a file that was cut off is not taken for a model
        subprocess.run([SYNTH, str(part), *flags], check=True, stdout=2)
        part.rename(path)
    return str(path)


def peer():
    """The folder of the npm package, installed on first use."""
    folder = WORK / "peer"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "bench.mjs"):
        (folder / name).write_text((ROOT / "bench/peer" / name).read_text())
    if not (folder / "node_modules").exists():
        subprocess.run(["npm", "install", "--ignore-scripts", "--silent"], cwd=folder, check=True)
    return folder


def run_peer(path, prompt, decode, threads, prefix=(), cold=False, timeout=600):
    if LLAMA_BENCH:
        return run_llama_bench(path, prompt, decode, threads, prefix, cold, timeout)
    env = {**os.environ, **({"PEER_COLD": "1"} if cold else {})}
    try:
        done = subprocess.run([*prefix, "node", str(peer() / "bench.mjs"), path, str(prompt), str(decode), str(threads)],
                              capture_output=True, text=True, timeout=timeout, env=env)
    except subprocess.TimeoutExpired:
        return None
    match = re.search(r'\{"prompt_tok_s".*\}', done.stdout)
    return json.loads(match.group(0)) if match else None


def run_llama_bench(path, prompt, decode, threads, prefix, cold, timeout):
    command = [*prefix, LLAMA_BENCH, "-m", path, "-p", str(prompt), "-n", str(decode), "-t", str(threads), "-r", "1", "-ngl", "0", "-o", "json",
               *(["--no-warmup"] if cold else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    rates = {("decode_tok_s" if test["n_gen"] else "prompt_tok_s"): test["avg_ts"] for test in json.loads(done.stdout)}
    return rates if len(rates) == 2 else None


def run_ours(path, prompt, decode, threads, *flags, prefix=(), warm=True):
    done = subprocess.run([*prefix, MILLRACE, "bench", path, "-p", str(prompt), "-n", str(decode), "-r", "1", "-t", str(threads), "--json",
                           "-q", *([] if warm else ["--no-warm-up"]), *flags], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"millrace bench {path}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def compare_cpu(args):
    raw = {}
    print("| dtype | prompt 512: ours | llama.cpp | ratio | decode 64: ours | llama.cpp | ratio | RAM read, GB/s |\n|---|---|---|---|---|---|---|---|")
    for dtype in args.dtypes.split(","):
        path = model(f"tinyllama-{dtype}", "--preset", "tinyllama-1.1b", "--dtype", dtype)
        pairs = []
        for _ in range(args.pairs):
            ours = run_ours(path, 512, 64, args.threads, "--isa", args.isa)
            theirs = run_peer(path, 512, 64, args.threads)
            pairs.append((ours, theirs))
        raw[dtype] = pairs
        column = lambda key, side: [pair[side][key] for pair in pairs]
        ratio = lambda key: [a[key] / b[key] for a, b in pairs]
        print(f"| {dtype} | {spread(column('prompt_tok_s', 0), 1)} | {spread(column('prompt_tok_s', 1), 1)} | {spread(ratio('prompt_tok_s'))} "
              f"| {spread(column('decode_tok_s', 0), 1)} | {spread(column('decode_tok_s', 1), 1)} | {spread(ratio('decode_tok_s'))} "
              f"| {spread([a['ram_bytes_s'] / 1e9 for a, _ in pairs], 1)} |", flush=True)
    save(f"cpu-{args.isa}", raw)


@contextlib.contextmanager
def memory_limit(limit_bytes):
    """Command prefix that runs a program in a cgroup with this memory limit (page cache included)."""
    name = f"millrace-bench-{os.getpid()}-{next(GROUPS)}"
    v1 = pathlib.Path("/sys/fs/cgroup/memory")
    group = v1 / name if v1.is_dir() else pathlib.Path("/sys/fs/cgroup") / name
    if not v1.is_dir():
        (group.parent / "cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    try:
        if v1.is_dir():
            (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        else:
            (group / "memory.max").write_text(str(limit_bytes))
            with contextlib.suppress(OSError):  # there where the kernel has swap
                (group / "memory.swap.max").write_text("0")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def drop_page_cache():
    subprocess.run(["sync"], check=True)
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def compare_memory(args):
    raw = {}
    rows = [("1.1B F16, 1.2 GB", model("tinyllama-F16", "--preset", "tinyllama-1.1b", "--dtype", "F16"), 1_200_000_000, "1.1G"),
            ("1.1B Q8_0, 0.6 GB", model("tinyllama-Q8_0", "--preset", "tinyllama-1.1b", "--dtype", "Q8_0"), 600_000_000, "540M"),
            ("MoE Q8_0 of 64 experts, 0.7 GB", model("moe-1.5gb", "--preset", "moe-1.5gb", "--dtype", "Q8_0"), 700_000_000, "640M")]
    print("| model and limit | ours, tok/s | llama.cpp, tok/s | ratio | read a token, ours |\n|---|---|---|---|---|")
    for label, path, limit, ram in rows:
        pairs = []
        for _ in range(args.pairs):
            with memory_limit(limit) as prefix:
                drop_page_cache()
                ours = run_ours(path, 16, 24, args.threads, "--ram", ram, prefix=prefix)
            with memory_limit(limit) as prefix:
                drop_page_cache()
                theirs = run_peer(path, 16, 12, args.threads, prefix=prefix, cold=True, timeout=240)
            pairs.append((ours, theirs))
        raw[label] = pairs
        finished = [(a, b) for a, b in pairs if b]
        theirs = spread([b["decode_tok_s"] for _, b in finished]) if finished else "none in 240 s"
        ratio = spread([a["decode_tok_s"] / b["decode_tok_s"] for a, b in finished]) if finished else "-"
        print(f"| {label} | {spread([a['decode_tok_s'] for a, _ in pairs])} | {theirs} | {ratio} "
              f"| {statistics.median(a['disk_bytes_per_pass'] for a, _ in pairs) / 1e9:.2f} GB |", flush=True)
    save("memory", raw)


def compare_disk(args):
    path = model("tinyllama-F16", "--preset", "tinyllama-1.1b", "--dtype", "F16")
    raw = []
    for _ in range(args.pairs):
        before = calibrated_disk(path)
        ours = run_ours(path, 16, 24, args.threads, "--ram", args.ram)
        after = calibrated_disk(path)
        raw.append({"plain": max(before, after), "ours": ours["disk_bytes_s"], "wall": ours["disk_bytes_per_pass"] * ours["decode_tok_s"], "bench": ours})
    print(f"plain O_DIRECT reads, best of the sweep: {spread([r['plain'] / 1e9 for r in raw])} GB/s")
    print(f"decoding, bytes read over the decode time: {spread([r['wall'] / 1e9 for r in raw])} GB/s")
    print(f"share: {spread([100 * r['wall'] / r['plain'] for r in raw], 0)} %")
    save("disk", raw)


def calibrated_disk(path):
    done = subprocess.run([MILLRACE, "calibrate", path, "--disk-only", "--json", "-q"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["disk"]


def save(name, raw):
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / f"{name}.json").write_text(json.dumps(raw, indent=1))


def main():
    if sys.argv[1:2] == ["gpu"]:
        import compare_gpu  # which uses this file's functions
        return compare_gpu.main(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cpu", "memory", "disk"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--ram", default="800M")
    parser.add_argument("--dtypes", default="Q4_0,Q8_0,Q4_K_M,Q6_K")
    parser.add_argument("--llama-bench", default="")
    args = parser.parse_args()
    global LLAMA_BENCH
    LLAMA_BENCH = args.llama_bench
    {"cpu": compare_cpu, "memory": compare_memory, "disk": compare_disk}[args.what](args)


if __name__ == "__main__":
    main()
