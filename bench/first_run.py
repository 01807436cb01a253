#!/usr/bin/env python3
"""A first run beside a calibrated one: what a model larger than memory decodes at where nobody ran `millrace calibrate`.

    bench/first_run.py --vram 16G --ram 48G                    on a GPU: the 70B shape, Q4_K, written on first use (40 GB)
    bench/first_run.py --device cpu --ram 2G --preset llama3-8b   on the CPU, from the disk

Each pair is a first run (an empty folder for rates), a second one beside what the first left there, and a run after
`millrace calibrate`. All read the same prompt and decode as many tokens. Prints one JSON object: tok/s, what was predicted for
them, the seconds that measuring took, the rates that each plan was made from, and the machine. Every finished run is also told on
stderr, so that nothing is lost where time runs out. Needs a built tree (make bench).
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compare  # noqa: E402


def say(words):
    print(words, file=sys.stderr, flush=True)


def rates_in(folder):
    """What the folder's rates.json has, by machine and disk."""
    path = pathlib.Path(folder) / "millrace/rates.json"
    return json.loads(path.read_text()) if path.exists() else {}


def without_types(rates):
    return {key: value for key, value in rates.items() if key != "types"}


def bench(args, folder, *more):
    """One `millrace bench`, its rates kept in `folder`."""
    flags = ["bench", args.model, "--device", args.device, "--ram", args.ram, "-p", str(args.prompt), "-n", str(args.decode),
             "-r", str(args.repetitions), "--json", "--explain", "-v", *(["--vram", args.vram] if args.device != "cpu" else []), *more]
    began = time.monotonic()
    done = subprocess.run([compare.MILLRACE, *flags], capture_output=True, text=True, check=False, timeout=args.timeout,
                          env={**os.environ, "XDG_CACHE_HOME": str(folder)})
    seconds = time.monotonic() - began
    if done.returncode != 0:
        return {"error": done.stderr[-2000:], "seconds": seconds}
    report = json.loads(done.stdout[:done.stdout.rindex("}") + 1])
    measuring = re.search(r"measured briefly, ([0-9.]+) s", done.stderr) or re.search(r"measured in ([0-9.]+) s", done.stderr)
    decode, predicted = report["decode_tok_s"], report["predicted_decode_tok_s"]
    return {"decode_tok_s": decode, "predicted_decode_tok_s": predicted, "prediction_off": predicted / decode - 1 if decode else None,
            "prompt_tok_s": report["prompt_tok_s"], "predicted_prompt_tok_s": report["predicted_prompt_tok_s"],
            "measuring_seconds": float(measuring[1]) if measuring else 0, "seconds": seconds,
            "rates": [without_types(rates) for rates in rates_in(folder).values()],
            "explain": done.stderr[done.stderr.find("explain:"):].splitlines(),
            "log": [line for line in done.stderr.splitlines() if re.search(r"measur|rates|computes|stream|budget", line) and "explain" not in line]}


def calibrate(args, folder):
    began = time.monotonic()
    subprocess.run([compare.MILLRACE, "calibrate", args.model, "-q", "--json"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "XDG_CACHE_HOME": str(folder)})
    return time.monotonic() - began


def pair(args, n):
    """A first run, one after it, and a calibrated one."""
    result = {}
    with tempfile.TemporaryDirectory() as fresh, tempfile.TemporaryDirectory() as kept:
        result["first"] = bench(args, fresh)
        say(f"pair {n}, first: {json.dumps(result['first'])}")
        result["second"] = bench(args, fresh)
        say(f"pair {n}, second: {json.dumps(result['second'])}")
        result["calibrate_seconds"] = calibrate(args, kept)
        result["calibrated"] = bench(args, kept)
        say(f"pair {n}, calibrated: {json.dumps(result['calibrated'])}")
        if n == 0:
            for share in args.shares:
                result[f"cpu_share_{share}"] = bench(args, kept, "--cpu-share", share)
                say(f"--cpu-share {share}: {json.dumps(result[f'cpu_share_{share}'])}")
    return result


def summary(pairs):
    def middle(run, field):
        values = [one[run][field] for one in pairs if one[run].get(field) is not None]
        return statistics.median(values) if values else None
    words = {f"{run}_{field}": middle(run, field) for run in ("first", "second", "calibrated")
             for field in ("decode_tok_s", "predicted_decode_tok_s", "prediction_off", "measuring_seconds")}
    ratios = [one["first"]["decode_tok_s"] / one["calibrated"]["decode_tok_s"] for one in pairs
              if one["first"].get("decode_tok_s") and one["calibrated"].get("decode_tok_s")]
    words["first_of_calibrated"] = statistics.median(ratios) if ratios else None
    return words


def machine():
    def output(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            return ""
    cpu = [line.strip() for line in output("lscpu").splitlines() if re.match(r"\s*(Model name|CPU\(s\)|Socket|NUMA node|L3)", line)]
    return {"cpu": cpu, "gpu": output("nvidia-smi", "--query-gpu=name,pcie.link.gen.current,pcie.link.width.current", "--format=csv,noheader"),
            "usable": len(os.sched_getaffinity(0))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="the model; written here where it is not there (default: build/bench/models/PRESET-DTYPE.gguf)")
    parser.add_argument("--preset", default="llama3-70b", help="a shape of tools/synth-model")
    parser.add_argument("--dtype", default="Q4_K")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--vram", default="16G")
    parser.add_argument("--ram", default="48G")
    parser.add_argument("-p", dest="prompt", type=int, default=64)
    parser.add_argument("-n", dest="decode", type=int, default=48)
    parser.add_argument("-r", dest="repetitions", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=400, help="seconds of a run at most")
    parser.add_argument("--shares", default="", help="after the first pair: runs with these --cpu-share, as 30,50,70")
    args = parser.parse_args()
    args.shares = [share for share in args.shares.split(",") if share]
    if args.model is None:
        args.model = str(compare.WORK / "models" / f"{args.preset}-{args.dtype}.gguf")
    if not pathlib.Path(args.model).exists():
        pathlib.Path(args.model).parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(pathlib.Path(args.model).parent).free < 45e9 and args.preset == "llama3-70b":
            sys.exit("first_run: the model takes 40 GB, and the disk has less; name another with --model")
        subprocess.run([compare.SYNTH, args.model, "-p", args.preset, "-d", args.dtype], check=True, stdout=sys.stderr)
    pairs = [pair(args, n) for n in range(args.pairs)]
    print(json.dumps({"model": pathlib.Path(args.model).name, "vram": args.vram, "ram": args.ram, "device": args.device, "machine": machine(),
                      "summary": summary(pairs), "pairs": pairs}, indent=1))


if __name__ == "__main__":
    main()
