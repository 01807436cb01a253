"""bench/compare.py gpu: Millrace beside llama.cpp on one GPU, at equal budgets of VRAM and RAM.

    bench/compare.py gpu --llama-bench PROGRAM [--model F.gguf] [--budgets 16G/40G,16G/8G@16] [--pairs 3] [-p 512,2048] [-n 64]
    bench/compare.py gpu --render build/bench/gpu.json       the table and the chart again, from what was measured

A budget is VRAM/RAM; with @N, N tokens are decoded under it instead of -n, for those that are slow. Without --model a synthetic one is written (--preset llama3-70b --dtype Q4_K, 40 GB, in build/bench/models). For each
budget, llama.cpp gets the most layers on the GPU (of a mixture: the experts of the most layers, with all else there) whose
measured peak of VRAM stays under the budget, searched for apart for decode and for prompts, whose batches need buffers.
Both run under a cgroup of the RAM budget and 256 MB for the programs themselves, with a cold page cache, in alternating
pairs. Runs that fail or pass --timeout are shown as that. The table goes to stdout and with chart and raw figures to
build/bench/gpu.md, .svg and .json, after every pair. --device cpu leaves the GPU out on both sides (the VRAM half of a
budget is ignored): for trying this program where there is none.
"""
import argparse
import collections
import contextlib
import ctypes
import html
import json
import math
import os
import pathlib
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time

import compare

PROGRAM_BYTES = 256_000_000  # of the cgroup, beside the budget
CONTEXT_BYTES = 900_000_000  # first guess of what CUDA and llama.cpp's buffers take
EXPERT_MATRICES = ("down", "up")  # which of a layer's three stay in RAM first, where the layer is cut


def say(line):
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


# ---- sizes

def parse_size(text):
    """As Millrace reads sizes: decimal."""
    match = re.fullmatch(r"([0-9.]+)([kMGT]?)B?", text.strip())
    if not match:
        sys.exit(f"{text}: not a size; write for example 16G or 800M")
    return int(float(match.group(1)) * 1000 ** " kMGT".index(match.group(2) or " "))


Budget = collections.namedtuple("Budget", "label vram_bytes ram_bytes decode")


def parse_budgets(text, decode):
    """"16G/40G,16G/8G@16"; `decode`: tokens where a budget does not say."""
    budgets = []
    for item in text.split(","):
        match = re.fullmatch(r"(([^/@]+)/([^/@]+))(?:@(\d+))?", item.strip())
        if not match:
            sys.exit(f"--budgets {item}: write VRAM/RAM, for example 16G/40G, or 16G/8G@16 for 16 tokens")
        budgets.append(Budget(match.group(1), parse_size(match.group(2)), parse_size(match.group(3)), int(match.group(4) or decode)))
    return budgets


def gigabytes(count):
    return "?" if count is None else f"{count / 1e9:.2f} GB"


# ---- the model

def parse_inspect(text):
    """Layers and experts, as `millrace inspect` prints them."""
    layers = re.search(r"^\s+layers\s+([\d,]+)", text, re.M)
    experts = re.search(r"^\s+experts\s+([\d,]+)", text, re.M)
    number = lambda match: int(match.group(1).replace(",", "")) if match else 0
    return {"layers": number(layers), "experts": number(experts)}


def file_bytes(path):
    """Of all parts of a split file."""
    name = pathlib.Path(path)
    part = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", name.name)
    parts = sorted(name.parent.glob(f"{part.group(1)}-*-of-{part.group(2)}.gguf")) if part else [name]
    return sum(each.stat().st_size for each in parts)


# ---- VRAM

class Vram:
    """Bytes in use on GPU 0, by the driver's library, or else by nvidia-smi."""

    def __init__(self):
        class Memory(ctypes.Structure):
            _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]
        self.memory, self.device, self.library = Memory(), ctypes.c_void_p(), None
        with contextlib.suppress(OSError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0:
                self.library = library

    def used(self):
        """None where nobody can tell."""
        if self.library is not None:
            return self.memory.used if self.library.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(self.memory)) == 0 else None
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            asked = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True,
                                   text=True, timeout=10, check=True)
            return int(asked.stdout.split()[0]) << 20
        return None


class Peak:
    """The most VRAM in use while the block runs, less what was in use before it; `bytes` is None where nobody can tell."""

    def __init__(self, vram):
        self.vram, self.bytes, self.ended = vram, None, threading.Event()

    def __enter__(self):
        self.before = self.vram.used() if self.vram else None
        for _ in range(25):  # what ran before may still be giving memory back
            time.sleep(0.2 if self.before is not None else 0)
            earlier, self.before = self.before, self.vram.used() if self.vram else None
            if self.before == earlier:
                break
        if self.before is not None:
            self.bytes = 0
            self.thread = threading.Thread(target=self.watch, daemon=True)
            self.thread.start()
        return self

    def watch(self):
        while not self.ended.wait(0.02):
            now = self.vram.used()
            if now is not None:
                self.bytes = max(self.bytes, now - self.before)

    def __exit__(self, *_):
        self.ended.set()
        if self.before is not None:
            self.thread.join()


# ---- running

def failure(code, errors):
    """Why a program failed, in a few words."""
    if code == -signal.SIGKILL:
        return "killed (out of RAM?)"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"out of memory|error|failed", line, re.I)]
    return (telling or lines or [f"ended with {code}"])[-1 if not telling else 0][:160]


class Runner:
    def __init__(self, vram, timeout, program_bytes=PROGRAM_BYTES):
        self.vram, self.timeout, self.program_bytes, self.told = vram, timeout, program_bytes, False

    @contextlib.contextmanager
    def limited(self, ram_bytes, cold):
        """A command prefix; empty where no cgroup can be made."""
        with contextlib.ExitStack() as stack:
            prefix, refused = [], None
            try:
                prefix = stack.enter_context(compare.memory_limit(ram_bytes + self.program_bytes))
                entered = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
                if entered.returncode != 0:
                    prefix, refused = [], entered.stderr.strip()
            except OSError as error:
                refused = f"{error.strerror}: {error.filename}"
            if refused and not self.told:
                say(f"no cgroup can be made here ({refused}): llama.cpp runs without a limit on RAM")
                self.told = True
            if cold:
                compare.drop_page_cache()
            yield prefix

    def run(self, command, ram_bytes, cold=True):
        """The outcome of one run, whatever it is: code (None: timed out), out, failed (why, or None), seconds, vram_bytes, command. cold: files are
        read from the disk."""
        with self.limited(ram_bytes, cold) as prefix, Peak(self.vram) as peak:
            begin = time.monotonic()
            process = subprocess.Popen([*prefix, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                       start_new_session=True)
            try:
                out, errors = process.communicate(timeout=self.timeout)
                code = process.returncode
                failed = failure(code, errors) if code != 0 else None
            except subprocess.TimeoutExpired:
                code, failed = None, f"none in {self.timeout} s"
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)
                out, errors = process.communicate()
        return {"command": command, "code": code, "out": out, "failed": failed, "seconds": time.monotonic() - begin, "vram_bytes": peak.bytes,
                "limited": bool(prefix)}


# ---- llama.cpp

class Llama:
    """A llama-bench and the spelling of its flags, which differs between versions."""

    def __init__(self, program, help_text=None, extra=()):
        self.program, self.extra = program, list(extra)
        self.help = help_text if help_text is not None else subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout

    def flash(self, on=True):
        words = re.search(r"--flash-attn\s+<on\|off", self.help)
        return ("on" if on else "off") if words else str(int(on))

    def load(self, mapped):
        """Weights as a memory map, or read into memory."""
        if "--load-mode" in self.help:
            return [] if mapped else ["-lm", "none"]
        return ["-mmp", "1" if mapped else "0"]

    def experts(self, on_cpu, layers, matrices=0):
        """The experts of the first `on_cpu` layers stay in RAM, and of the next one `matrices` of the three that each expert has."""
        overrides = [rf"blk\.{on_cpu}\.ffn_({'|'.join(EXPERT_MATRICES[:matrices])})_exps=CPU"] if matrices else []
        counted = "--n-cpu-moe" in self.help
        if on_cpu and not counted:
            which = r"\d+" if on_cpu >= layers else f"({'|'.join(str(layer) for layer in range(on_cpu))})"
            overrides.append(rf"blk\.{which}\.ffn_(up|down|gate|gate_up)_exps=CPU")
        return [*(["-ncmoe", str(on_cpu)] if on_cpu and counted else []), *(["-ot", ";".join(overrides)] if overrides else [])]

    def command(self, path, prompts, decode, threads, placement, layers, ubatch, flash=(True,), mapped=True, host=True):
        """prompts: lengths, may be empty. threads: a number, or several by commas, which it measures one by one, as it does those of flash.
        placement: {"ngl": N, "cpu_experts": M}, and "cpu_matrices" where the next layer's experts are cut. host: weights
        in RAM may lie in page-locked memory; without that, they may be repacked for the processor."""
        return [self.program, "-m", path, "-p", ",".join(map(str, prompts)) or "0", "-n", str(decode), "-t", str(threads), "-r", "1", "-o", "json",
                "-fa", ",".join(map(self.flash, flash)), "-ngl", str(placement["ngl"]),
                *self.experts(placement["cpu_experts"], layers, placement.get("cpu_matrices", 0)), "-ub", str(ubatch),
                "-b", str(max(2048, ubatch)), *self.load(mapped), *([] if host else ["--no-host", "1"]), *self.extra]

    @staticmethod
    def tests(out):
        """What its JSON says of each test, in order; of one that was cut off, the tests that had ended."""
        tests, at, decoder = [], out.find("[") + 1, json.JSONDecoder()
        with contextlib.suppress(ValueError):
            while at:
                test, end = decoder.raw_decode(out, out.index("{", at))
                tests.append(test)
                at = end
        return tests

    @classmethod
    def rates(cls, out):
        """{"decode": tok/s, "prompt 512": tok/s ...} of its JSON; empty where there is none."""
        with contextlib.suppress(KeyError, TypeError):
            return {("decode" if test["n_gen"] else f"prompt {test['n_prompt']}"): test["avg_ts"] for test in cls.tests(out)}
        return {}


def most_that_fits(count, first, unit_bytes, cap_bytes, peak_of):
    """The largest k of 0 .. count whose peak_of(k) is at most cap_bytes, or None; and what was tried, {k: peak}. peak_of gives None
    where the program failed. `first` and `unit_bytes` (what one more takes) are guesses that are measured as it goes."""
    fits, over, step, tried, sure = -1, count + 1, 1, {}, False
    k = max(0, min(first, count))
    while over - fits > 1:
        tried[k] = peak = peak_of(k)
        known = sorted((each, bytes_) for each, bytes_ in tried.items() if bytes_ is not None)
        if len(known) > 1 and known[-1][1] > known[0][1]:
            unit_bytes, sure = (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]), True
        if peak is not None and peak <= cap_bytes:
            fits, step = k, 1
            more = (cap_bytes - peak) / unit_bytes
            if (sure and more < 0.9) or fits + 1 == over:  # a try takes minutes: what is plain is not tried
                break
            k = min(fits + max(1, int(more)), over - 1)
        else:
            over = k
            less = max(1, math.ceil((peak - cap_bytes) / unit_bytes)) if peak is not None else step if fits < 0 else (over - fits) // 2
            step = step * 2 if peak is None else 1
            k = max(over - less, fits + 1)
    return (fits if fits >= 0 else None), tried


def place(llama, runner, args, shape, path, budget, prompts, decode, ubatch, cold=True):
    """The placement with which llama.cpp keeps to the budget, and how it was found."""
    label, vram_bytes, ram_bytes, _ = budget
    layers = shape["layers"]
    per_layer = file_bytes(path) / (layers + 1)
    what = "decode" if decode else "prompts"

    def search(count, placement_of):
        def peak_of(k):
            # A prompt of a whole batch needs the largest buffers; decode shows its own with a token.
            command = llama.command(path, [min(max(prompts), ubatch)] if prompts else [], 1 if decode else 0, args.threads, placement_of(k), layers, ubatch)
            outcome = runner.run([*command, "--no-warmup"], ram_bytes, cold)
            # What was allocated before a time-out stands.
            peak = outcome["vram_bytes"] if outcome["code"] in (0, None) else None
            say(f"{label}: placing llama.cpp for {what}: {placement_of(k)} takes {gigabytes(peak) if peak is not None else outcome['failed']} "
                f"of {gigabytes(vram_bytes)} ({outcome['seconds']:.0f} s)")
            return peak
        return most_that_fits(count, int((vram_bytes - CONTEXT_BYTES) / per_layer), per_layer, vram_bytes, peak_of)

    if shape["experts"] > 0:
        every = lambda k: {"ngl": layers + 1, "cpu_experts": layers - k}
        found, tried = search(layers, every)
        if found is not None:
            return every(found), tried
    some = lambda k: {"ngl": k, "cpu_experts": layers if shape["experts"] > 0 else 0}
    found, tried = search(layers + 1, some)
    if found is None:
        say(f"{label}: llama.cpp takes more than the budget of VRAM even with no layer on the GPU; it runs so")
    return some(found or 0), tried


# ---- one budget

def ours_command(args, path, budget, test):
    """Decode is measured after the first prompt, which warms it up; where weights stream, a warm-up that decodes all tokens
    would take as long as the figure. Prompts are measured after one that is not counted, as llama-bench does."""
    on = ["--device", "cpu"] if args.device == "cpu" else ["--device", "cuda", "--vram", str(budget.vram_bytes)]
    if test == "decode":
        streams = args.device == "cpu" or file_bytes(path) > budget.vram_bytes
        what = ["-p", str(args.prompts[0]), "-n", str(budget.decode), *(["--no-warm-up"] if streams else [])]
    else:
        what = ["-p", test.split()[1], "-n", "1"]
    return [compare.MILLRACE, "bench", path, *on, "--ram", str(budget.ram_bytes), *what, "-r", "1", "-t", str(args.threads), "--json", "-q",
            *shlex.split(args.millrace_flags)]


def run_ours(args, runner, path, budget, test):
    """{test: tok/s or why not}, and the outcome."""
    outcome = runner.run(ours_command(args, path, budget, test), budget.ram_bytes)
    if outcome["failed"]:
        return {test: outcome["failed"]}, outcome
    return {test: json.loads(outcome["out"])["decode_tok_s" if test == "decode" else "prompt_tok_s"]}, outcome


def tests_of(args):
    return ["decode", *(f"prompt {length}" for length in args.prompts)]


def measure_pair(args, llama, runner, shape, path, budget, placements):
    """{"ours": {test: tok/s or why not}, "theirs": likewise, "vram": {...}, "runs": [...]}"""
    pair = {"ours": {}, "theirs": {}, "vram": {"ours": 0, "theirs": 0}, "runs": []}

    def note(side, name, rates, outcome):
        pair[side].update(rates)
        pair["vram"][side] = max(pair["vram"][side], outcome["vram_bytes"] or 0)
        pair["runs"].append({**outcome, "out": outcome["out"][-4000:]})
        shown = ", ".join(f"{test} {value:.2f} tok/s" if isinstance(value, float) else f"{test}: {value}" for test, value in rates.items())
        say(f"{budget.label}: {name}: {shown} ({outcome['seconds']:.0f} s)")

    for test in tests_of(args):
        note("ours", "Millrace", *run_ours(args, runner, path, budget, test))
    for what, prompts, decode in (("decode", [], budget.decode), ("prompts", args.prompts, 0)):
        place_ = placements[what]
        outcome = runner.run(llama.command(path, prompts, decode, args.threads, place_["placement"], shape["layers"], place_["ubatch"]), budget.ram_bytes)
        rates = llama.rates(outcome["out"]) if not outcome["failed"] else {}
        wanted = ["decode"] if decode else [f"prompt {length}" for length in prompts]
        note("theirs", "llama.cpp", {test: rates.get(test, outcome["failed"] or "said nothing") for test in wanted}, outcome)
    return pair


def measure(args, llama, runner, shape, path, raw, keep):
    found = {}  # by VRAM: RAM changes nothing about what fits there
    for budget in parse_budgets(args.budgets, args.decode):
        entry = {"budget": budget.label, "vram_bytes": budget.vram_bytes, "ram_bytes": budget.ram_bytes, "decode_tokens": budget.decode,
                 "placements": {}, "pairs": []}
        raw["budgets"].append(entry)
        for what, prompts, decode, ubatch in (("decode", [], 1, 512), ("prompts", args.prompts, 0, args.ubatch)):
            placement, tried = {"ngl": 0, "cpu_experts": 0}, {}
            if args.ngl is not None:
                placement["ngl"] = args.ngl
            elif args.device != "cpu":
                key = (budget.vram_bytes, what)
                if key not in found:
                    found[key] = place(llama, runner, args, shape, path, budget, prompts, decode, ubatch)
                placement, tried = found[key]
            entry["placements"][what] = {"placement": placement, "tried": tried, "ubatch": ubatch}
        for number in range(args.pairs):
            say(f"{budget.label}: pair {number + 1} of {args.pairs}")
            entry["pairs"].append(measure_pair(args, llama, runner, shape, path, budget, entry["placements"]))
            keep(raw)


# ---- what is shown

def figures(pairs, side, test):
    return [pair[side].get(test) for pair in pairs if isinstance(pair[side].get(test), (int, float))]


def cell(pairs, side, test):
    numbers = figures(pairs, side, test)
    why = [pair[side].get(test, "not run") for pair in pairs if not isinstance(pair[side].get(test), (int, float))]
    digits = 2 if numbers and statistics.median(numbers) < 100 else 0
    shown = compare.spread(numbers, digits) if numbers else ""
    if why:
        shown += ("; " if shown else "") + (f"{len(why)} of {len(pairs)}: " if shown else "") + why[0].replace("|", "/")
    return shown


def ratios(pairs, test):
    both = [(pair["ours"].get(test), pair["theirs"].get(test)) for pair in pairs]
    return [ours / theirs for ours, theirs in both if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)) and theirs > 0]


def placement_text(place_):
    placement = place_["placement"]
    return f"-ngl {placement['ngl']}" + (f", experts of {placement['cpu_experts']} layers in RAM" if placement["cpu_experts"] else "")


def table(raw):
    lines = ["| VRAM / RAM | | Millrace, tok/s | llama.cpp, tok/s | ratio | llama.cpp's placement | VRAM, ours and llama.cpp's |",
             "|---|---|---|---|---|---|---|"]
    for entry in raw["budgets"]:
        for test in raw["tests"]:
            found = ratios(entry["pairs"], test)
            place_ = entry["placements"]["decode" if test == "decode" else "prompts"]
            most = [max((pair["vram"][side] for pair in entry["pairs"]), default=0) for side in ("ours", "theirs")]
            lines.append(f"| {entry['budget']} | {test} | {cell(entry['pairs'], 'ours', test)} | {cell(entry['pairs'], 'theirs', test)} "
                         f"| {compare.spread(found) if found else '-'} | {placement_text(place_)} "
                         f"| {' and '.join(gigabytes(each) if each else '-' for each in most)} |")
    return "\n".join(lines)


def chart(raw):
    """Bars of medians with their range, a panel a test: every panel has its own scale."""
    width, bar, left, right = 720, 18, 190, 110
    parts, y = [], 46
    for test in raw["tests"]:
        entries = raw["budgets"]
        numbers = [number for entry in entries for side in ("ours", "theirs") for number in figures(entry["pairs"], side, test)]
        scale = (width - left - right) / max(numbers, default=1)
        parts.append(f'<text x="16" y="{y}" class="h">{html.escape(test if test == "decode" else f"{test} tokens")}, tok/s</text>')
        y += 12
        for entry in entries:
            for side, name in (("ours", "Millrace"), ("theirs", "llama.cpp")):
                values = figures(entry["pairs"], side, test)
                parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{html.escape(entry["budget"])} {name}</text>')
                if values:
                    middle = statistics.median(values)
                    parts.append(f'<rect x="{left}" y="{y}" width="{max(1, middle * scale):.1f}" height="{bar - 4}" class="{side}"/>'
                                 f'<line x1="{left + min(values) * scale:.1f}" x2="{left + max(values) * scale:.1f}" y1="{y + 7}" y2="{y + 7}"/>'
                                 f'<text x="{left + max(values) * scale + 8:.1f}" y="{y + 13}">{middle:.{2 if middle < 100 else 0}f}</text>')
                else:
                    parts.append(f'<text x="{left}" y="{y + 13}" class="n">{html.escape(cell(entry["pairs"], side, test)[:60] or "not run")}</text>')
                y += bar
            y += 8
        y += 26
    style = ("text{font:13px system-ui,sans-serif;fill:#222}.h{font-weight:600}.n{fill:#777}.ours{fill:#2563eb}.theirs{fill:#9ca3af}"
             "line{stroke:#111;stroke-width:1.5}")
    title = html.escape(f"{raw['model']}, VRAM / RAM budgets, {raw['machine']}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}"><style>{style}</style>'
            f'<path d="M0 0H{width}V{y}H0Z" fill="#fff"/><text x="16" y="22" class="h">{title}</text>{"".join(parts)}</svg>\n')


def keep(raw, folder=None):
    folder = pathlib.Path(folder or compare.WORK)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(raw, indent=1))
    (folder / "gpu.md").write_text(f"{raw['model']} on {raw['machine']}, {raw['when']}; median (range) of {raw['pairs']} pairs\n\n{table(raw)}\n")
    (folder / "gpu.svg").write_text(chart(raw))


def machine():
    """The GPU, and the processors that the figures were taken with."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        named = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=True)
        return f"{named.stdout.strip()}, {len(os.sched_getaffinity(0))} processors"
    return f"{len(os.sched_getaffinity(0))} processors"


def arguments(argv):
    parser = argparse.ArgumentParser(prog="compare.py gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", default="", help="a llama-bench built with CUDA for this machine")
    parser.add_argument("--model", default="", help="a GGUF file (default: a synthetic one)")
    parser.add_argument("--preset", default="llama3-70b", help="of the synthetic model")
    parser.add_argument("--dtype", default="Q4_K", help="of the synthetic model")
    parser.add_argument("--budgets", default="16G/40G,16G/8G@16", help="VRAM/RAM or VRAM/RAM@TOKENS, several by commas")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("-p", dest="prompts", default="512,2048", help="lengths of prompts")
    parser.add_argument("-n", dest="decode", type=int, default=64, help="tokens to decode")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ubatch", type=int, default=0, help="llama.cpp's rows a pass for prompts (default: the longest prompt, 2048 at most)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a run may take")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--ngl", type=int, help="llama.cpp's layers on the GPU, instead of the search")
    parser.add_argument("--llama-flags", default="", help="more flags for llama-bench, in one text: --llama-flags='-ctk q8_0'")
    parser.add_argument("--millrace-flags", default="", help="more flags for millrace bench, likewise")
    parser.add_argument("--calibrated", action="store_true", help="millrace calibrate was run for this machine and disk")
    parser.add_argument("--render", default="", help="table and chart of this JSON file; nothing is run")
    args = parser.parse_args(argv)
    args.prompts = [int(length) for length in args.prompts.split(",")]
    args.ubatch = args.ubatch or min(2048, max(512, *args.prompts, 512))
    if not args.llama_bench and not args.render:
        parser.error("--llama-bench PROGRAM is needed")
    return args


def main(argv):
    args = arguments(argv)
    if args.render:
        raw = json.loads(pathlib.Path(args.render).read_text())
        keep(raw, pathlib.Path(args.render).parent)
        print(table(raw))
        return
    vram = Vram() if args.device == "cuda" else None
    if vram is not None and vram.used() is None:
        sys.exit("neither libnvidia-ml.so.1 nor nvidia-smi tells how much VRAM is in use here, so no budget can be kept; --device cpu leaves the GPU out")
    path = args.model or compare.model(f"{args.preset}-{args.dtype}", "--preset", args.preset, "--dtype", args.dtype)
    shape = parse_inspect(subprocess.run([compare.MILLRACE, "inspect", path], capture_output=True, text=True, check=True).stdout)
    llama = Llama(args.llama_bench, extra=shlex.split(args.llama_flags))
    if not args.calibrated:
        say("millrace calibrate")
        subprocess.run([compare.MILLRACE, "calibrate", path, "-q"], check=True, stdout=subprocess.DEVNULL)
    raw = {"model": pathlib.Path(path).name, "model_bytes": file_bytes(path), "shape": shape, "machine": machine(),
           "when": time.strftime("%Y-%m-%d"), "arguments": vars(args), "tests": tests_of(args), "pairs": args.pairs, "budgets": []}
    measure(args, llama, Runner(vram, args.timeout), shape, path, raw, keep)
    print(table(raw))
    say(f"kept in {compare.WORK}/gpu.md, gpu.svg and gpu.json")
