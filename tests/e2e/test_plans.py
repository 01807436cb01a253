"""Golden tables: where `millrace plan --machine` puts seven published models on PCs from data sheets, and how fast it predicts them.

tests/data/machines has the machines' files (made by bench/expect.py --machines) and plans.md, the tables, which people read for absurd
choices. A change of a plan must show up here and be meant: MILLRACE_WRITE_PLANS=1 writes both anew. $MILLRACE_ON_PAPER is a program that
plans for GPUs without having one, $MILLRACE_SYNTH writes the models' shapes without weights.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import expect  # noqa: E402

PLANNER = os.environ.get("MILLRACE_ON_PAPER", str(ROOT / "build/release/millrace_on_paper"))
SYNTH = os.environ.get("MILLRACE_SYNTH", str(ROOT / "build/release/tools/synth-model"))
FOLDER = ROOT / "tests/data/machines"
WRITES = bool(os.environ.get("MILLRACE_WRITE_PLANS"))
TIER = re.compile(r"^(vram|ram|disk)\s+(\S.*?)\s+\d+\s+\d+\s+([\d.]+ [kMG]?B)\s+([\d.]+ [kMG]?B)\s+(\S+)\s+(\S.*?)\s+[\d.]+$")
HEAD = """# Plans of machines from data sheets
Made by tests/e2e/test_plans.py. For each model: the predicted decode speed, what bounds it, and what lies where, with the processor that
computes it. A context of 4,096 tokens, one conversation, experts used equally often.
"""


def lines_of(machine, model):
    """[speed, bound, places] or [-, -, why there is no plan] of `millrace plan`."""
    ran = subprocess.run([PLANNER, "plan", str(model), "--machine", str(machine), "--ctx", str(expect.CONTEXT)],
                         capture_output=True, text=True, timeout=120, check=False)
    if ran.returncode != 0:
        return ["-", "-", ran.stderr.strip().splitlines()[-1].removeprefix("error: ").replace(str(model), "MODEL")]
    speed = re.search(r"^predicted decode: ([\d.]+) tok/s, bound by (.*?)(?: at .*)? \(", ran.stdout, re.M)
    places = {}
    for line in ran.stdout.splitlines():
        if found := TIER.match(line):
            tier, what, size, _, executor, _ = found.groups()
            places.setdefault(tier, []).append(f"{what} {size} by {executor}")
    return [speed[1], speed[2], "; ".join(f"{tier.upper() if tier != 'disk' else tier}: {', '.join(parts)}" for tier, parts in places.items())]


def tables():
    sheet = json.loads((ROOT / "bench/machines.json").read_text())
    files = {machine["name"]: FOLDER / name for name, machine in expect.machine_files(sheet)}
    rows = {name: [] for name in files}
    with tempfile.TemporaryDirectory() as temporary:
        for title, preset, dtype in sheet["models"]:
            model = pathlib.Path(temporary) / "model.gguf"
            subprocess.run([SYNTH, model, "-p", preset, "-d", dtype, "--hollow"], check=True, capture_output=True)
            for name, file in files.items():
                rows[name].append([title, *lines_of(file, model)])
    text = HEAD
    for name, table in rows.items():
        text += f"\n## {name}\n| model | tok/s | bound by | where |\n|---|---|---|---|\n"
        text += "".join(f"| {' | '.join(row)} |\n" for row in table)
    return text


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def nearly(one, other):
    """The same words, and numbers within a hundredth or a last digit: a plan leaves RAM for the program, whose size differs a little."""
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    return all(abs(float(a) - float(b)) <= max(0.01 * float(a), 1.01 * 10.0 ** -len(a.partition(".")[2]))
               for a, b in zip(NUMBER.findall(one), NUMBER.findall(other)))


class Plans(unittest.TestCase):
    maxDiff = None

    def test_machines_are_those_of_the_data_sheets(self):
        sheet = json.loads((ROOT / "bench/machines.json").read_text())
        if WRITES:
            expect.write_machines(FOLDER, sheet)
        made = {name: json.dumps(machine, indent=1) + "\n" for name, machine in expect.machine_files(sheet)}
        self.assertEqual(made, {path.name: path.read_text() for path in FOLDER.glob("*.json")}, "MILLRACE_WRITE_PLANS=1 writes them")

    @unittest.skipUnless(pathlib.Path(PLANNER).is_file(), "nothing here plans for GPUs")
    def test_giants_have_plans_whole_and_cut(self):
        machine = FOLDER / "rtx-5090-32-gb-128-gb-ddr5.json"
        with tempfile.TemporaryDirectory() as temporary:
            model = pathlib.Path(temporary) / "model.gguf"
            for preset, dtype in (("ling-3-flash", "Q4_K_M"), ("minimax-m3", "Q4_K_M"), ("deepseek-v4-flash", "MXFP4"), ("glm-5.2", "Q4_K_M")):
                for cut in ((), ("--layers", "8")):
                    with self.subTest(preset=preset, cut=cut):
                        subprocess.run([SYNTH, model, "-p", preset, "-d", dtype, "--hollow", *cut], check=True, capture_output=True)
                        self.assertNotEqual(lines_of(machine, model)[0], "-")

    @unittest.skipUnless(pathlib.Path(PLANNER).is_file(), "nothing here plans for GPUs")
    def test_plans_are_those_that_were_read(self):
        now, golden = tables(), FOLDER / "plans.md"
        if WRITES:
            golden.write_text(now)
        if nearly(golden.read_text(), now):
            return
        self.assertEqual(golden.read_text(), now, "a plan changed: if that is meant, MILLRACE_WRITE_PLANS=1 writes the tables")


if __name__ == "__main__":
    unittest.main()
