#!/usr/bin/env python3
"""Predicts how fast published models decode on PCs that people own, and writes bench/results/predicted.json and the pages made of it.

    bench/expect.py             plans every model for every machine of bench/machines.json (a minute), and writes the tables
    bench/expect.py --machines FOLDER    only writes the machine files, for `millrace plan --machine FILE`

Machine files come from data sheets: bandwidths of the sheet times the share of it that measured machines reached (bench/machines.json).
Models are hollow (synth-model --hollow): shapes without weights. A context of 4,096 tokens, decode of one conversation. Nothing here is measured.
`make predictions` builds what it needs and runs it. MILLRACE, a program with a GPU part, and MILLRACE_SYNTH name other programs.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/release"
PAPER = BUILD / "millrace_on_paper"  # built where there is no GPU part: with a simulated one
MILLRACE = os.environ.get("MILLRACE", str(PAPER if PAPER.exists() else BUILD / "millrace"))
SYNTH = os.environ.get("MILLRACE_SYNTH", str(BUILD / "tools/synth-model"))
CONTEXT = 4096
GIB = 1 << 30


def machine_file(sheet, row):
    """The machine as `millrace plan --machine` reads it."""
    pc = dict(zip(sheet["columns"], row))
    share = {name: value for name, (value, _) in sheet["shares"].items()}
    kept = sheet["kept_for_the_system_gib"]
    modules = pc["ram_gb_s"] * 1e9 * share["ram"]
    ram = min(modules, (pc["fabric_gb_s"] or pc["ram_gb_s"]) * 1e9 * share["ram"])  # what the CPU's cores read of it
    decode = min(ram * share["decode"], pc["cores"] * sheet["gb_s_a_core"][pc["isa"]] * 1e9)
    rates = {"machine": f"{pc['machine']}; from data sheets, not measured", "disk": pc["ssd_gb_s"] * 1e9 * share["disk"], "disk_latency": 5e-5,
             "ram": ram, "cpu_decode": decode, "cpu_prefill_macs": pc["cores"] * sheet["prompt_gmac_s_a_core"][pc["isa"]] * 1e9, "cpu_product": 4e-6}
    machine = {"name": pc["machine"], "ram": f"{pc['ram_gib'] - kept['ram']}GiB", "processors": pc["cores"]}
    if pc["gpus"] > 1:
        machine["gpus"] = pc["gpus"]
    if pc["gpu"]:
        link = pc["pcie_gb_s"] * 1e9 * share["pcie"]
        together = min(1, modules / (pc["gpus"] * link + decode))  # all read the same modules
        rates |= {"gpu": pc["gpu"], "device_memory": pc["vram_gb_s"] * 1e9 * share["vram"], "host_to_device": link,
                  "host_to_device_busy": link * together, "cpu_decode_busy": decode * together}
        machine["vram"] = f"{int((pc['vram_gib'] - kept['vram']) * GIB)}"
    return machine | {"rates": rates}


def machine_files(sheet):
    """[(name of the file, machine)] of all machines."""
    machines = [machine_file(sheet, row) for row in sheet["rows"]]
    return [("-".join(re.sub("[(),]", "", machine["name"].lower()).split()) + ".json", machine) for machine in machines]


def write_machines(folder, sheet):
    folder.mkdir(parents=True, exist_ok=True)
    for name, machine in machine_files(sheet):
        (folder / name).write_text(json.dumps(machine, indent=1) + "\n")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def predict(model, machine, folder):
    """{"decode", "bound", "device"}, or why there is no plan."""
    described, saved = folder / "machine.json", folder / "plan.json"
    described.write_text(json.dumps(machine))
    saved.unlink(missing_ok=True)
    told = run(MILLRACE, "plan", str(model), "--machine", str(described), "--plan", str(saved), "--ctx", str(CONTEXT))
    if told.returncode != 0:
        return {"error": told.stderr.strip().splitlines()[-1].replace(str(folder), "")}
    plan = json.loads(saved.read_text())
    return {"decode": plan["predicted"]["decode_tokens_per_second"], "bound": plan["predicted"]["bound"], "device": plan["device"]}


def shown(one):
    if "error" in one:
        return "-"
    speed = one["decode"]
    return f"{speed:.1f}" if speed < 10 else f"{speed:.0f}"


def with_bound(one):
    """The speed, and what limits it."""
    return "-" if "error" in one else f"{shown(one)} ({one['bound']})"


def results(sheet, rows, models, question, shown):
    """The result of every model on every machine, as bench/tables.py takes it; a cell is shown(what predict() says)."""
    machines = [machine_file(sheet, row) for row in rows]
    cells = [[machine["name"]] for machine in machines]
    details = [{} for _ in machines]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for title, preset, dtype in models:
            model = folder / "model.gguf"
            written = run(SYNTH, str(model), "-p", preset, "-d", dtype, "--hollow")
            if written.returncode != 0:
                sys.exit(f"{SYNTH}: {written.stderr}")
            for machine, row, detail in zip(machines, cells, details):
                detail[title] = predict(model, machine, folder)
                row.append(shown(detail[title]))
                print(f"{machine['name']:40} {title:24} {detail[title]}", flush=True)
    return {
        "question": question,
        "command": "`bench/expect.py`: `millrace plan MODEL --machine FILE --ctx 4096`",
        "machine": "machine files made from data sheets (bench/machines.json); **predicted, not measured**",
        "commit": tables.this_commit(),
        "date": datetime.date.today().isoformat(),
        "columns": ["machine", *(title for title, _, _ in models)],
        "rows": [{"cells": row, "plans": detail} for row, detail in zip(cells, details)],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", metavar="FOLDER", type=pathlib.Path)
    args = parser.parse_args()
    sheet = json.loads((ROOT / "bench/machines.json").read_text())
    if args.machines:
        write_machines(args.machines, sheet)
        return
    everyday = results(sheet, sheet["rows"], sheet["models"], "How fast are PCs predicted to be?", shown)
    giants = sheet["giants"]
    rows = [row for row in sheet["rows"] if row[0] in giants["machines"]] + giants["rows"]
    largest = results(sheet, rows, giants["models"], "How fast are this year's largest models predicted to be?", with_bound)
    (tables.RESULTS / f"{tables.PREDICTED}.json").write_text(tables.written(everyday))
    (tables.RESULTS / f"{tables.GIANTS}.json").write_text(tables.written(largest))
    tables.write()


if __name__ == "__main__":
    main()
