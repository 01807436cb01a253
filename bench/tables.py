#!/usr/bin/env python3
"""Writes docs/internals/benchmarks.md and measurements.md from what was measured: bench/results/*.json, a file a question, between the words
of bench/results/benchmarks.md and measurements.md. README.md's speeds come from bench/results/expectations.json (measured) and
predicted.json (bench/expect.py), those of docs/guide/choose-a-model.md from the latter.

    bench/tables.py                       writes the pages
    bench/tables.py --check               fails where a page is not what the results say
    bench/tables.py add QUESTION FILE...  takes what `millrace bench --json` or `millrace_cuda_kernels --json` printed, and writes the pages
        [--command TEXT] [--commit NAME] [--date DAY] [--machine WORDS]

QUESTION is the name of a file in bench/results without .json, or a new question in words, which gets a file and a place at
the end of measurements.md. A row has the name of the FILE it came from and takes the place of an older one of that name; kernels
take the place of all before. Defaults: the commit of this tree, today, this machine in words, and for the command what the
FILE or the question's file has.

By hand: a row is a line of "rows", {"cells": [a text a column], "commit": ..., "date": ...}; "at_or_before" stands in place of
"commit" where nobody wrote down what was measured; what a row does not say ("command", "machine" too) its file says. Instead of
"cells" a row may have "values", a number or text by name, which columns with "from" show. "hidden" rows are kept and not shown. A line {{NAME}} of either
page is where the table of NAME.json belongs.
"""
import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
PAGES = ("benchmarks.md", "measurements.md")  # the tables that people ask for, and the rest
WRITTEN = ROOT / "docs/internals"
EXPECTATIONS, PREDICTED, GIANTS = "expectations", "predicted", "predicted-giants"  # have their places in README.md and in the guide
GUIDE = ROOT / "docs/guide/choose-a-model.md"
README_MODELS = ["8B Q4_K_M", "Qwen3.6 35B-A3B Q4_K_M", "Gemma 4 26B-A4B Q4_K_M", "gpt-oss 120B"]  # columns that fit there, and rows
README_MACHINES = 12
NOTE = "<!-- Written by bench/tables.py from bench/results: change the words and results there, and run it. -->\n"


# ---- the pages

def shown(column, row, index):
    """The text of a cell."""
    if "cells" in row:
        return row["cells"][index]
    value = row["values"].get(column["from"], "") if isinstance(column, dict) else ""
    if isinstance(value, (int, float)):
        return f"{value / column.get('per', 1):,.{column.get('digits', 0)}f}"
    return str(value)


def line(cells):
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def measured(result, row):
    """(commit, whether it is a bound only, day) of a row."""
    own = row if "commit" in row or "at_or_before" in row else result
    return own.get("commit") or own["at_or_before"], "commit" not in own, row.get("date", result.get("date"))


def provenance(result, rows):
    """What was run, on what, and when, in a line."""
    found = sorted({measured(result, row) for row in rows}, key=lambda one: (one[2], one[0]))
    bound = "at or before " if any(one[1] for one in found) else "at "
    first, last = found[0], found[-1]
    when = f"{bound}`{last[0]}` ({last[2]})"
    if len(found) > 1:
        when = f"{bound}commits from `{first[0]}` ({first[2]}) to `{last[0]}` ({last[2]})"
    all_of = lambda key: ", and ".join(dict.fromkeys(row.get(key, result[key]) for row in rows))
    return f"{all_of('command')}; {all_of('machine')}; measured {when}."


def table(name, result):
    """Question, table and where it comes from."""
    rows = [row for row in result["rows"] if not row.get("hidden")]
    titles = [column["title"] if isinstance(column, dict) else column for column in result["columns"]]
    lines = [f"**{result['question']}** {provenance(result, rows)}", "", line(titles), "|" + "---|" * len(titles)]
    lines += [line([shown(column, row, i) for i, column in enumerate(result["columns"])]) for row in rows]
    if len(rows) < len(result["rows"]):
        lines += ["", f"All {len(result['rows'])} rows: `bench/results/{name}.json`."]
    return "\n".join(lines)


def pages(folder=RESULTS):
    """{name: text} of the pages. Every result has one place in them."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json")) if path.stem not in (EXPECTATIONS, PREDICTED, GIANTS)}
    words = {name: (folder / name).read_text() for name in PAGES}
    places = re.findall(r"^\{\{([\w.-]+)\}\}$", "\n".join(words.values()), re.M)
    for name, result in results.items():
        if places.count(name) != 1:
            sys.exit(f"the pages in bench/results have {places.count(name)} lines {{{{{name}}}}}; write one where that table belongs")
        for row in result["rows"]:
            if "cells" in row and len(row["cells"]) != len(result["columns"]):
                sys.exit(f"bench/results/{name}.json: a row has {len(row['cells'])} cells for {len(result['columns'])} columns: {row['cells'][0]}")
    for name in places:
        if name not in results:
            sys.exit(f"a page in bench/results names {name}, of which there is no result")
    filled = lambda place: table(place[1], results[place[1]])
    return {name: NOTE + re.sub(r"^\{\{([\w.-]+)\}\}$", filled, text, flags=re.M) for name, text in words.items()}


def day(text):
    """2026-11-28 as people write it."""
    date = datetime.date.fromisoformat(text)
    return f"{date.day} {date:%B %Y}"


def readme(folder=RESULTS):
    """README.md with its table of speeds. Rows of another day or commit than most say so."""
    result, text = json.loads((folder / f"{EXPECTATIONS}.json").read_text()), (ROOT / "README.md").read_text()
    rows = [[cell if i or "commit" not in row else f"{cell} ({row['date']}, `{row['commit']}`)" for i, cell in enumerate(row["cells"])]
            for row in result["rows"]]
    lines = [f"Measured on {day(result['date'])} at commit `{result['commit']}` ({result['command']}), decode of one conversation if the row",
             "names no other work; the better is bold ([all figures](docs/internals/benchmarks.md)):",
             "", line(result["columns"]), "|" + "---|" * len(result["columns"]), *map(line, rows)]
    text = between("expectations", lines, text)
    predicted = json.loads((folder / f"{PREDICTED}.json").read_text())
    lines = [f"Predicted from data sheets on {day(predicted['date'])} at commit `{predicted['commit']}`, **not measured**, tok/s",
             "([other models and machines](docs/guide/choose-a-model.md#by-machine)):", "", *predictions(README_MODELS, folder)[:README_MACHINES + 2]]
    return between("predictions", lines, text)


def between(name, lines, text):
    """The text with these lines between <!-- name --> and <!-- end -->."""
    return re.sub(rf"(?<=<!-- {name} -->\n).*?(?=\n<!-- end -->)", lambda _: "\n".join(lines), text, flags=re.S)


def predictions(models, folder, name=PREDICTED):
    """The table of predictions for these models, or for all."""
    result = json.loads((folder / f"{name}.json").read_text())
    columns = [0, *(result["columns"].index(model) for model in models or result["columns"][1:])]
    return [line([result["columns"][i] for i in columns]), "|" + "---|" * len(columns),
            *(line([row["cells"][i] for i in columns]) for row in result["rows"])]


def guide(folder=RESULTS):
    """The guide's page with all predictions."""
    result = json.loads((folder / f"{PREDICTED}.json").read_text())
    lines = [f"Predicted on {day(result['date'])} at commit `{result['commit']}`, not measured:", "", *predictions(None, folder)]
    giants = json.loads((folder / f"{GIANTS}.json").read_text())
    largest = [f"Predicted on {day(giants['date'])} at commit `{giants['commit']}`, not measured; in brackets what limits it:", "", *predictions(None, folder, GIANTS)]
    return between("giants", largest, between("predictions", lines, GUIDE.read_text()))


# ---- results

def written(result):
    """A row a line, so that one more is one more line."""
    text = lambda value: json.dumps(value, ensure_ascii=False)
    lines = [f" {text(key)}: {text(value)}" for key, value in result.items() if key not in ("columns", "rows")]
    for key in ("columns", "rows"):
        lines.append(f' "{key}": [\n' + ",\n".join(f"  {text(item)}" for item in result[key]) + "\n ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def words_of(told):
    """What a run of `millrace bench` was, in words."""
    many = f", {told['sequences']} sequences" if told.get("sequences", 1) > 1 else ""
    return f"prompt {told['prompt_tokens']}, decode {told['decode_tokens']}{many}; {told['executor']}"


BENCH_COLUMNS = [{"title": "run", "from": "run"}, {"title": "model", "from": "model"}, {"title": "work", "from": "work"}, {"title": "prompt, tok/s", "from": "prompt_tok_s"},
                 {"title": "decode, tok/s", "from": "decode_tok_s", "digits": 1}, {"title": "predicted", "from": "predicted_decode_tok_s", "digits": 1},
                 {"title": "GB of weights a pass", "from": "weight_bytes_per_pass", "per": 1e9, "digits": 2},
                 {"title": "GB of them from the disk", "from": "disk_bytes_per_pass", "per": 1e9, "digits": 2}]

def rows_of_bench(path, told):
    values = {key: value for key, value in told.items() if isinstance(value, (int, float, str)) and not isinstance(value, bool)}
    return [{"name": path.stem, "values": {"run": path.stem, "work": words_of(told), **values}}]


KERNEL_ROWS = (1, 4, 8, 64, 512)
KERNEL_SHAPES = 4  # of a launcher that the page shows
KERNEL_COLUMNS = ["launcher", "shape", *(f"{rows} row{'s' if rows > 1 else ''}" for rows in KERNEL_ROWS)]


def rows_of_kernels(told):
    """A row a launcher and shape: microseconds, and the least time by the device's rates as a share."""
    found = {}
    for row in told["rows"]:
        found.setdefault((row["launcher"], row["shape"]), {})[row["rows"]] = f"{row['us']:.1f} ({100 * row['share']:.0f} %)"
    rows, shapes = [], collections.Counter()
    for (launcher, shape), times in found.items():
        rows.append({"name": f"{launcher}, {shape}", "cells": [f"`{launcher}`", shape, *(times.get(count, "") for count in KERNEL_ROWS)]})
        shapes[launcher] += 1
        if shapes[launcher] > KERNEL_SHAPES:
            rows[-1]["hidden"] = True
    return rows


def words_of_rates(told):
    r = told["rates"]
    return (f"{told['device']}, which copies {r['copy_gb_s']:,.0f} GB/s in its memory and {r['to_host_gb_s']:.0f} and {r['from_host_gb_s']:.0f} to the "
            f"host and from it, and multiplies {r['bf16_tflop_s']:,.0f} TFLOP/s in bfloat16 and {r['int8_top_s']:,.0f} TOP/s in int8; "
            f"{r['least_us']:.1f} us with the smallest kernel")


def this_machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*:\s*(.*)", text, re.M)
    gpus = subprocess.run("nvidia-smi --query-gpu=name --format=csv,noheader", shell=True, capture_output=True, text=True, check=False).stdout.split("\n")
    return ", ".join([*filter(None, gpus), name[1] if name else os.uname().machine, f"{len(os.sched_getaffinity(0))} processors"])


def this_commit():
    return subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=9", "--match="], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def find(question, folder):
    """The file of a question, which may be new."""
    for path in folder.glob("*.json"):
        if question in (path.stem, json.loads(path.read_text())["question"]):
            return path
    if " " not in question:
        names = ", ".join(sorted(path.stem for path in folder.glob("*.json")))
        sys.exit(f"bench/results has no {question}.json; write the question in words, or one of: {names}")
    return folder / ("-".join(re.findall(r"[a-z0-9]+", question.lower())[:6]) + ".json")


def put(result, row):
    """A row in the place of an older one of its name, without what the whole result says already."""
    row = {key: value for key, value in row.items() if value != result.get(key)}
    same = [i for i, old in enumerate(result["rows"]) if old.get("name") == row["name"]]
    if same:
        result["rows"][same[0]] = row
    else:
        result["rows"].append(row)


def add(args, folder=RESULTS):
    path = find(args.question, folder)
    new = not path.exists()
    result = {"question": args.question, "command": args.command, "machine": args.machine or this_machine(), "columns": [], "rows": []}
    if not new:
        result = json.loads(path.read_text())
    for name in map(pathlib.Path, args.files):
        told = json.loads(name.read_text())
        kernels = told.get("bench") == "cuda_kernels"
        if not kernels and "decode_tok_s" not in told:
            sys.exit(f"{name}: neither of `millrace bench --json` nor of `millrace_cuda_kernels --json`")
        rows, columns = (rows_of_kernels(told), KERNEL_COLUMNS) if kernels else (rows_of_bench(name, told), BENCH_COLUMNS)
        command = args.command or ("`build/release/bench/millrace_cuda_kernels --json FILE`" if kernels else told.get("command"))
        if not (result["command"] or command):
            sys.exit(f"{name} does not say what was run: give --command")
        result["command"] = result["command"] or command
        if not result["columns"]:
            result["columns"] = columns
        if result["columns"] != columns and not all(isinstance(column, dict) for column in result["columns"]):
            sys.exit(f"{path.stem} has other columns than {name} gives; write the row by hand: see bench/tables.py --help")
        machine = args.machine or (words_of_rates(told) if kernels else this_machine())
        commit, date = args.commit or told.get("commit") or this_commit(), args.date or datetime.date.today().isoformat()
        if kernels:  # all at once
            result.update(machine=machine, commit=commit, date=date, command=command, rows=rows)
            result.pop("at_or_before", None)
            continue
        for row in rows:
            put(result, row | {"commit": commit, "date": date, "command": command or result["command"], "machine": machine})
    keep(path, result)
    return path


def keep(path, result):
    """Writes a result's file; a new one gets a place at the end of measurements.md."""
    new, words = not path.exists(), path.parent / "measurements.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written(result))
    if new and words.exists():
        words.write_text(f"{words.read_text()}\n{{{{{path.stem}}}}}\n")


def write():
    """All pages that are made of results."""
    for name, text in pages().items():
        (WRITTEN / name).write_text(text)
    (ROOT / "README.md").write_text(readme())
    GUIDE.write_text(guide())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    commands = parser.add_subparsers(dest="what")
    adding = commands.add_parser("add")
    adding.add_argument("question")
    adding.add_argument("files", nargs="+")
    for name in ("command", "commit", "date", "machine"):
        adding.add_argument(f"--{name}")
    args = parser.parse_args()
    if args.what == "add":
        print(f"bench/results/{add(args).name}")
    if not args.check:
        return write()
    for name, text in pages().items():
        if text != (WRITTEN / name).read_text():
            sys.exit(f"docs/internals/{name} differs from bench/results: run bench/tables.py")
    if readme() != (ROOT / "README.md").read_text():
        sys.exit("README.md differs from bench/results/expectations.json and predicted.json: run bench/tables.py")
    if guide() != GUIDE.read_text():
        sys.exit("docs/guide/choose-a-model.md differs from bench/results/predicted.json: run bench/tables.py")
    return None


if __name__ == "__main__":
    main()
