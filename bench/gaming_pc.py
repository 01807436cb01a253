#!/usr/bin/env python3
"""Runs Millrace and llama.cpp as a gaming PC would, on a machine with a larger GPU, and prints the ratios.

    bench/gaming_pc.py --list                                       the rows, their PCs, and what they take
    bench/gaming_pc.py --llama-bench PROGRAM --only qwen-uniform    measures a row: medians of 3 rounds
    bench/gaming_pc.py --llama-bench PROGRAM --only qwen --remove   the rows of a model, whose file may take the place of other rows' files
    bench/gaming_pc.py --dry-run                                    prints every command and runs none
    bench/gaming_pc.py --smoke [--llama-bench PROGRAM]              all rows on the CPU with tiny models: does this script still run?

What makes a PC of the machine (bench/gaming_pc.json; machines of data sheets are bench/machines.json):
- code for compute capability 8.0 (`CUDA=ON scripts/build.sh gpu80`, with PORTABLE=ON for another machine; MILLRACE names the program) and MILLRACE_BLOCK_SHARED=99; llama.cpp
  built with CMAKE_CUDA_ARCHITECTURES=80-virtual and for AVX2;
- AVX2 (`--isa avx2`) and 8 cores (taskset, one thread of each core) for both; each with its best number of threads, which Millrace
  knows by itself (one core is left to what launches kernels) and llama.cpp is searched for;
- VRAM: Millrace's `--vram`; for llama.cpp the placement of layers and experts whose peak stays below it, read from NVML during the run;
- RAM: a cgroup of v1 or v2 with that much and 1 GB for the program itself, for both, and Millrace's `--ram`. Without the right to make a
  cgroup, `--ram` alone limits Millrace and nothing limits llama.cpp; the table says so;
- the link: MILLRACE_LINK_GB_S slows Millrace's copies down to PCIe 4. llama.cpp's cannot be slowed down: its figures have the machine's own link.

llama.cpp gets its best flags by a search (bench/llama_flags.py), which is printed: the placement, -ub (prompts), -t, -fa, whether the file is
mapped, --no-host. Each round measures every chosen row of one model and PC, and llama.cpp once for them. Rounds are kept (--raw FILE) as soon as they end, so a command that was cut off goes
on where it stopped, as long as machine and commit are the same. Finished rows go to --out, which bench/tables.py understands.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

import compare
import compare_gpu
import llama_flags
import tables
from compare_gpu import gigabytes, parse_size, say

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHEET = json.loads((ROOT / "bench/gaming_pc.json").read_text())
MACHINES = json.loads((ROOT / "bench/machines.json").read_text())
COLUMNS = [{"title": "work", "from": "work"}, {"title": "link", "from": "link"}, {"title": "Millrace, tok/s", "from": "ours", "digits": 1},
           {"title": "llama.cpp, its link not slowed down", "from": "theirs", "digits": 1}, {"title": "ratio", "from": "ratio", "digits": 2},
           {"title": "rounds", "from": "rounds"}, {"title": "their ranges", "from": "ranges"}, {"title": "peak of VRAM, both", "from": "vram"}, {"title": "llama.cpp's flags", "from": "flags"}]


# ---- the PC

def link_gb_s(lanes):
    """What a copy reaches in a slot of PCIe 4 with so many lanes, of which data sheets' machines have the share."""
    return round(lanes * SHEET["profile"]["pcie_4_lane_gb_s"] * MACHINES["shares"]["pcie"][0], 1)


def link_title(lanes):
    return f"PCIe 4 x{lanes}, {link_gb_s(lanes)} GB/s" if lanes else "the machine's own"


def link_name(lanes):
    return f"x{lanes}" if lanes else "free"


def cores(count):
    """So many of the processors that this process may use, one of each core where there are enough."""
    usable, first = sorted(os.sched_getaffinity(0)), []
    for processor in usable:
        siblings = str(processor)
        with contextlib.suppress(OSError):
            siblings = pathlib.Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text()
        if int(siblings.replace("-", ",").split(",")[0]) == processor:
            first.append(processor)
    return (first if len(first) >= count else usable)[:count]


class Pc:
    """Prefixes and budgets of a row's PC."""

    def __init__(self, name, args):
        pc = SHEET["pcs"][name]
        self.name, self.cores, self.smoke = name, args.cores, args.smoke
        self.budget = compare_gpu.Budget(name, parse_size(pc["vram"]), parse_size("1G" if args.smoke else pc["ram"]), 0)
        self.links = args.link or [pc["lanes"]]

    def pinned(self):
        return ["taskset", "-c", ",".join(map(str, self.cores))]

    def ours(self, path, row, lanes, draft):
        """`millrace bench` of a row. Its first repetition warms up and is not counted; so is llama-bench's."""
        profile = SHEET["profile"]
        on = ["--device", "cpu"] if self.smoke else ["--device", "cuda", "--vram", str(self.budget.vram_bytes)]
        link = [f"MILLRACE_LINK_GB_S={link_gb_s(lanes)}"] if lanes else []
        work = ["-p", "32", "-n", str(row["decode"])] if "decode" in row else ["-p", str(row["prompt"]), "-n", "1"]
        return [*self.pinned(), "env", f"MILLRACE_BLOCK_SHARED={profile['block_shared_kib']}", *link, f"XDG_CACHE_HOME={compare.WORK / 'gaming-pc-cache'}",
                compare.MILLRACE, "bench", path, *on, "--ram", str(self.budget.ram_bytes), "--isa", "auto" if self.smoke else profile["isa"],
                *work, "-r", "1", "--json", "-q", *shlex.split(row["flags"]), *(["--draft", draft] if draft else [])]


# ---- models

def model(name, args):
    """The file of a model, written where it is missing."""
    entry, folder = SHEET["models"][name], compare.WORK / "models"
    stem = f"smoke-{name}" if args.smoke else f"gaming-pc-{name}"
    path, flags = folder / f"{stem}.gguf", shlex.split(entry["smoke" if args.smoke else "synth"])
    if args.dry_run:
        print(shlex.join([compare.SYNTH, str(path), *flags]), flush=True)
    elif not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        needs = 0 if args.smoke else int(entry["gigabytes"] * 1e9)
        if args.remove and not args.smoke:
            make_room(folder, needs, {f"gaming-pc-{each}.gguf" for each in needed(args)})
        if shutil.disk_usage(folder).free < needs:
            sys.exit(f"{path.name} takes {gigabytes(needs)}, and the disk has {gigabytes(shutil.disk_usage(folder).free)} free; "
                     "--remove deletes the models of other rows")
        say(f"writing {path.name}" + ("" if args.smoke else f", {entry['gigabytes']} GB"))
        compare.model(stem, *flags)
    return str(path)


def needed(args):
    """The models of all chosen rows."""
    rows = [SHEET["rows"][name] for name in args.only]
    return {row[key] for row in rows for key in ("model", "draft") if key in row}


def make_room(folder, needs, keep):
    for other in sorted(folder.glob("gaming-pc-*.gguf")):
        if shutil.disk_usage(folder).free < needs and other.name not in keep:
            say(f"removing {other.name}")
            other.unlink()


# ---- running

class Dry(compare_gpu.Runner):
    """Prints commands and runs none."""

    def run(self, command, ram_bytes, cold=True):
        print(f"{shlex.join(map(str, command))}   # in a cgroup of {gigabytes(ram_bytes + self.program_bytes)}{', cold page cache' if cold else ''}", flush=True)
        return {"command": command, "code": 0, "out": "", "failed": "not run", "seconds": 0.0, "vram_bytes": 0, "limited": True}


def rate_of(outcome, row):
    """tok/s of an outcome of `millrace bench`, or why there is none."""
    if outcome["failed"]:
        return outcome["failed"]
    told = json.loads(outcome["out"])
    if "draft" in row and not any(drafter["drafted"] for drafter in told["drafts"]["drafters"] if drafter["drafter"] != "ngram"):
        say("the draft model made no guess: the plan predicts no gain from it")
    return told["decode_tok_s" if "decode" in row else "prompt_tok_s"]


def shown(rate, outcome):
    vram = "" if not outcome["vram_bytes"] else f", {gigabytes(outcome['vram_bytes'])} of VRAM"
    return (f"{rate:.2f} tok/s" if isinstance(rate, (int, float)) else str(rate)) + f"{vram} ({outcome['seconds']:.0f} s)"


# ---- a group: rows of one model, PC and kind of work, beside one llama.cpp

def groups(args):
    """The names of chosen rows, those together that one run of llama.cpp stands beside."""
    found = {}
    for name in args.only:
        row = SHEET["rows"][name]
        found.setdefault((row["model"], row["pc"], row.get("decode"), row.get("prompt")), []).append(name)
    return list(found.values())


class Raw:
    """What was measured so far. Of another machine or commit it is not continued."""

    def __init__(self, path, args):
        self.path, self.kept, self.args = path, {}, args
        self.of = {"machine": machine(args), "boot": pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "commit": args.commit}
        if path.exists() and not args.again and not args.dry_run:
            before = json.loads(path.read_text())
            if before["of"] == self.of:
                self.kept = before["kept"]
            else:
                say(f"{path.name} is of another machine or commit: begun anew")

    def rounds(self, names, links):
        beside = f" beside {self.args.llama_bench}" if self.args.llama_bench else ""
        return self.kept.setdefault(f"{' '.join(names)}, {' '.join(map(link_name, links))}{beside}", [])

    def flags(self, row):
        """What is known of llama.cpp's flags for a row, and for others of its model, PC and kind of work."""
        key = f"{self.args.llama_bench}: {row['model']} {row['pc']} {'decode' if 'decode' in row else 'prompt'}"
        return self.kept.setdefault(key, {"steps": {}, "candidates": [], "checked": False})

    def once(self, steps, name, make):
        """What a step of a search gave, kept as soon as it is there."""
        if name not in steps:
            steps[name] = make()
            self.keep()
        return steps[name]

    def keep(self):
        if self.args.dry_run:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"of": self.of, "kept": self.kept}, indent=1))
        part.rename(self.path)


def machine(args):
    limit = "" if args.smoke or args.dry_run else ", RAM limited by a cgroup" if args.limited else ", RAM not limited for llama.cpp (no cgroup could be made)"
    short = "" if len(args.cores) == SHEET["profile"]["cores"] else f" instead of {SHEET['profile']['cores']}"
    this = "this machine" if args.dry_run else tables.this_machine()
    return f"{this} in place of a PC, both programs on {len(args.cores)} cores{short}{limit}"


def measure(names, args, runner, raw):
    """All rounds of a group. False: the time ran out."""
    rows = {name: smoke_row(SHEET["rows"][name]) if args.smoke else SHEET["rows"][name] for name in names}
    first = rows[names[0]]
    pc, path = Pc(first["pc"], args), model(first["model"], args)
    drafts = {name: model(row["draft"], args) if "draft" in row else None for name, row in rows.items()}
    shape = shape_of(path, first, args)
    rounds, flags, theirs = raw.rounds(names, pc.links), raw.flags(first), None
    if args.llama_bench or args.dry_run:
        llama = llama_flags.Llama(args.llama_bench or "llama-bench", pc.pinned(), help_text=llama_flags.NEW_FLAGS if args.dry_run else None)
        theirs = llama_flags.Search(llama, runner, pc, shape, path, first, args.smoke, args.dry_run)
        if not flags["candidates"]:
            flags["candidates"] = theirs.candidates(lambda name, make: raw.once(flags["steps"], name, make))
            raw.keep()
    # Pages that another process read are not charged to the cgroup: they matter where the file is larger than RAM.
    cold = not args.smoke and os.path.exists(path) and compare_gpu.file_bytes(path) > pc.budget.ram_bytes
    longest = 0 if args.smoke else 60  # seconds of a round
    while len(rounds) < args.rounds:
        if time.monotonic() - args.began + longest > 60 * args.minutes:
            say(f"{' '.join(names)}: {len(rounds)} of {args.rounds} rounds are done and --minutes are over; the same command goes on from here")
            return False
        began, title = time.monotonic(), f"round {len(rounds) + 1} of {args.rounds}"
        done = {"ours": our_round(title, rows, drafts, pc, path, runner, cold), "theirs": None}
        if theirs:
            say(f"{' '.join(names)}, {title}: llama.cpp with {llama_flags.words(flags['candidates'][0])}")
            done["theirs"] = their_round(theirs, flags, cold)
        rounds.append(done)
        longest = max(longest, time.monotonic() - began)
        raw.keep()
    return True


def our_round(title, rows, drafts, pc, path, runner, cold):
    """{"ROW LINK": a run}."""
    done = {}
    for name, row in rows.items():
        for lanes in pc.links:
            say(f"{name}, {title}: Millrace, link: {link_title(lanes)}")
            outcome = runner.run(pc.ours(path, row, lanes, drafts[name]), pc.budget.ram_bytes, cold)
            rate = rate_of(outcome, row)
            done[f"{name} {link_name(lanes)}"] = {"rate": rate, **kept_of(outcome)}
            say(f"{name}, {title}: Millrace: {shown(rate, outcome)}")
    return done


def their_round(theirs, flags, cold):
    """A run by the fastest flags whose peak stays within the budget; the first round may change them."""
    budget = theirs.pc.budget
    while True:
        best = flags["candidates"][0]
        outcome = theirs.runner.run(theirs.command(best), budget.ram_bytes, cold)
        rates = list(theirs.llama.rates(outcome["out"]).values())
        rate = rates[0] if rates and not outcome["failed"] else outcome["failed"] or "no figure"
        say(f"llama.cpp: {shown(rate, outcome)}")
        over = not theirs.smoke and (outcome["vram_bytes"] or 0) > budget.vram_bytes
        less = llama_flags.less_vram(best, theirs.shape) if over and not flags["checked"] else None
        if less is None:
            flags["checked"] = True
            return {"rate": rate, "flags": llama_flags.words(best), **kept_of(outcome)}
        flags["candidates"][0] = less
        say(f"that is more than the budget of {gigabytes(budget.vram_bytes)}: once more with {llama_flags.words(less)}")


def kept_of(outcome):
    told = {}
    with contextlib.suppress(ValueError):
        told = json.loads(outcome["out"])
    return {"seconds": outcome["seconds"], "vram_bytes": outcome["vram_bytes"], "limited": outcome["limited"], "command": outcome["command"], "told": told}


def smoke_row(row):
    return row | ({"decode": 8} if "decode" in row else {"prompt": 64})


def shape_of(path, row, args):
    if args.dry_run:
        return SHEET["models"][row["model"]]
    return compare_gpu.parse_inspect(subprocess.run([compare.MILLRACE, "inspect", path], capture_output=True, text=True, check=True).stdout)


# ---- what is shown

def middle(runs):
    """The median of what has figures, and the range in words; else why there is none."""
    rates = [run["rate"] for run in runs if run and isinstance(run["rate"], (int, float))]
    if not rates:
        return (runs[0]["rate"] if runs and runs[0] else ""), ""
    return statistics.median(rates), f"{min(rates):,.1f} to {max(rates):,.1f}"


def peak(runs, pc):
    """The most VRAM of the runs in words."""
    most = max((run["vram_bytes"] or 0 for run in runs if run), default=0)
    over = " (over the budget)" if most > pc.budget.vram_bytes else ""
    return gigabytes(most) + over if most else ""


def result_rows(names, args, raw):
    """A row of the table for each row and link of a finished group."""
    pc = Pc(SHEET["rows"][names[0]]["pc"], args)
    rounds = raw.rounds(names, pc.links)
    for name in names:
        for link in map(link_name, pc.links):
            yield {"name": f"{name} {link}", "values": values_of(name, link, pc, rounds), "commit": args.commit, "date": datetime.date.today().isoformat(),
                   "machine": machine(args)}


def values_of(name, link, pc, rounds):
    row, ours, beside = SHEET["rows"][name], [each["ours"][f"{name} {link}"] for each in rounds], [each["theirs"] for each in rounds]
    rate, spread = middle(ours)
    their_rate, their_spread = middle(beside)
    both = isinstance(rate, (int, float)) and isinstance(their_rate, (int, float)) and their_rate > 0
    sheet = SHEET["pcs"][row["pc"]]
    return {"work": f"{SHEET['models'][row['model']]['title']}, {sheet['vram'][:-1]} and {sheet['ram'][:-1]} GB: {row['work']}",
            "link": link_title(lanes_of(link)[0]), "ours": rate, "theirs": their_rate, "ratio": rate / their_rate if both else "",
            "ranges": "; ".join(filter(None, [spread, their_spread])), "vram": "; ".join(filter(None, [peak(ours, pc), peak(beside, pc)])),
            "flags": f"`{beside[-1]['flags']}`" if beside[-1] else "", "rounds": len(rounds)}


COMMAND = ("`bench/gaming_pc.py`: `MILLRACE_BLOCK_SHARED=99 MILLRACE_LINK_GB_S=... millrace bench MODEL --isa avx2` and `llama-bench` with its best "
           "flags, both compiled for compute capability 8.0, medians of rounds by turns")


def write_rows(path, found):
    """Puts rows in the place of older ones of their name."""
    result = {"question": SHEET["question"], "command": COMMAND, "machine": found[0]["machine"], "columns": COLUMNS, "rows": []}
    if path.exists():
        result = json.loads(path.read_text())
    for row in found:
        tables.put(result, row)
    tables.keep(path, result)


def listed():
    print(f"{'row':14} {'GB of VRAM + RAM':17} {'link':22} {'disk':>8}  work")
    for name, row in SHEET["rows"].items():
        entry, pc = SHEET["models"][row["model"]], SHEET["pcs"][row["pc"]]
        print(f"{name:14} {row['pc']:17} {link_title(pc['lanes']):22} {entry['gigabytes']:5.1f} GB  {entry['title']}: {row['work']}")


# ---- the command line

def chosen(text):
    """Rows by name, or by the part of it before the dash."""
    names = []
    for each in text.split(","):
        found = [name for name in SHEET["rows"] if each in (name, name.split("-")[0])]
        if not found:
            sys.exit(f"--only {each}: no such row; rows are {', '.join(SHEET['rows'])}")
        names += [name for name in found if name not in names]
    return names


def lanes_of(text):
    """Links: x8,x16, or free for the machine's own."""
    names = {"x4": 4, "x8": 8, "x16": 16, "free": 0}
    for each in text.split(","):
        if each not in names:
            sys.exit(f"--link {each}: write x4, x8, x16 or free, several by commas")
    return [names[each] for each in text.split(",")]


def arguments(argv):
    parser = argparse.ArgumentParser(prog="gaming_pc.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", default="", help="a llama-bench built for compute capability 8.0 and AVX2; without it Millrace runs alone")
    parser.add_argument("--only", type=chosen, default=list(SHEET["rows"]), help="rows by commas (--list has them), or qwen, oss120, oss20, 70b")
    parser.add_argument("--link", type=lanes_of, help="x4, x8, x16, free, several by commas (default: the PC's)")
    parser.add_argument("--rounds", type=int, help="of each row (default: 3; 1 with --smoke)")
    parser.add_argument("--minutes", type=float, default=9, help="no round begins that might end later than so many minutes from the start")
    parser.add_argument("--timeout", type=int, default=240, help="seconds a run may take")
    parser.add_argument("--out", type=pathlib.Path, help="where finished rows go (default: bench/results/gaming-pc.json; build/bench/gaming-pc-smoke.json with --smoke)")
    parser.add_argument("--raw", type=pathlib.Path, help="where all runs are kept (default: build/bench/gaming-pc-raw.json)")
    parser.add_argument("--commit", help="what was built (default: the commit of this tree)")
    parser.add_argument("--remove", action="store_true", help="models of other rows are deleted where the disk has no room")
    parser.add_argument("--again", action="store_true", help="measures all rounds again")
    for name in ("--list", "--dry-run", "--smoke"):
        parser.add_argument(name, action="store_true")
    args = parser.parse_args(argv)
    args.rounds = 1 if args.dry_run else args.rounds or (1 if args.smoke else 3)
    args.out = args.out or (compare.WORK / "gaming-pc-smoke.json" if args.smoke else tables.RESULTS / "gaming-pc.json")
    args.raw = args.raw or compare.WORK / ("gaming-pc-smoke-raw.json" if args.smoke else "gaming-pc-raw.json")
    args.cores, args.began = cores(SHEET["profile"]["cores"]), time.monotonic()
    try:
        args.commit = args.commit or tables.this_commit()
    except (OSError, subprocess.CalledProcessError):
        if not args.dry_run and not args.list:
            parser.error("this tree has no commit: name what was built with --commit")
    return args


def can_limit(args):
    """Whether a cgroup can be made here; the runner says why not."""
    runner = compare_gpu.Runner(None, args.timeout, SHEET["profile"]["program_bytes"])
    with runner.limited(10**9, cold=False) as prefix:
        return bool(prefix)


def main(argv):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what runs is ended, and its cgroup removed
    args = arguments(argv)
    if args.list:
        listed()
        return
    os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}  # of several GPUs the one whose memory is watched
    vram = None if args.smoke or args.dry_run else compare_gpu.Vram()
    if vram is not None and vram.used() is None:
        sys.exit("neither libnvidia-ml.so.1 nor nvidia-smi tells how much VRAM is in use here, so no budget can be kept; --smoke needs no GPU")
    args.limited = args.dry_run or can_limit(args)
    raw = Raw(args.raw, args)
    say(f"{machine(args)}: processors {','.join(map(str, args.cores))}")
    runner = (Dry if args.dry_run else compare_gpu.Runner)(vram, args.timeout, SHEET["profile"]["program_bytes"])
    for names in groups(args):
        if not measure(names, args, runner, raw):
            sys.exit(3)
        if not args.dry_run:
            found = list(result_rows(names, args, raw))
            write_rows(args.out, found)
            for row in found:
                print(" | ".join(tables.shown(column, row, 0) for column in COLUMNS), flush=True)
    if not args.dry_run:
        say(f"kept in {args.out}" + ("; bench/tables.py puts them on the page" if args.out.parent == tables.RESULTS else ""))


if __name__ == "__main__":
    main(sys.argv[1:])
