"""bench/compare.py gpu, without a GPU: the search for llama.cpp's placement, its flags, the table and the chart, and a whole run on the
CPU beside a stand-in for llama-bench. bench/tiers.py, likewise."""
import contextlib
import importlib
import io
import json
import os
import pathlib
import random
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

from harness import DEMO, MILLRACE, ROOT
from llama_stand_in import write_llama_bench

os.environ["MILLRACE"] = MILLRACE
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
gpu = importlib.import_module("compare_gpu")
tiers = importlib.import_module("tiers")

NEW = "-ncmoe, --n-cpu-moe <n>\n-fa, --flash-attn <on|off|auto>\n-lm, --load-mode <none|mmap>"
OLD = "-fa, --flash-attn <0|1>\n-mmp, --mmap <0|1>\n-ot --override-tensor <tensor name pattern>=<buffer type>;..."


class Search(unittest.TestCase):
    def search(self, count, first, unit, cap, peak_of):
        calls = []

        def asked(k):
            self.assertNotIn(k, calls, "asked twice")
            calls.append(k)
            return peak_of(k)
        found, tried = gpu.most_that_fits(count, first, unit, cap, asked)
        self.assertEqual(sorted(tried), sorted(calls))
        return found, calls

    def test_finds_the_most_that_fits_whatever_the_guess(self):
        for seed in range(500):
            draw = random.Random(seed)
            count, unit, base = draw.randint(1, 90), draw.uniform(3e8, 9e8), draw.uniform(4e8, 2e9)
            cap = draw.uniform(0, base + unit * count * 1.2)
            fails_from = draw.choice([count + 9, draw.randint(0, count + 1)])  # runs out of memory by itself
            peak_of = lambda k: None if k >= fails_from else base + unit * k
            right = max((k for k in range(count + 1) if k < fails_from and base + unit * k <= cap), default=None)
            found, calls = self.search(count, draw.randint(-5, count + 20), unit * draw.uniform(0.3, 3), cap, peak_of)
            # What is plain is not tried: less than a tenth of a layer may be left.
            self.assertIn(found, (right, right - 1 if right else right), (seed, calls))
            if found != right:
                self.assertGreater(base + unit * right, cap - 0.11 * unit, (seed, calls))
            self.assertLessEqual(len(calls), 20, (seed, calls))

    def test_a_good_guess_takes_two_tries(self):
        found, calls = self.search(81, 31, 5e8, 16e9, lambda k: 1.3e9 + 4.9e8 * k)
        self.assertEqual((found, len(calls)), (30, 2))

    def test_nothing_fits(self):
        self.assertEqual(self.search(80, 3, 5e8, 1e8, lambda k: 6e8 + 5e8 * k)[0], None)
        self.assertEqual(self.search(80, 3, 5e8, 1e8, lambda k: None)[0], None)


class Flags(unittest.TestCase):
    def command(self, help_text, prompts=(512,), decode=0, placement=None, ubatch=2048):
        llama = gpu.Llama("llama-bench", help_text, ["-ctk", "q8_0"])
        return " ".join(llama.command("m.gguf", list(prompts), decode, 16, placement or {"ngl": 29, "cpu_experts": 0}, 4, ubatch))

    def test_of_newer_and_older_versions(self):
        self.assertEqual(self.command(NEW), "llama-bench -m m.gguf -p 512 -n 0 -t 16 -r 1 -o json -fa on -ngl 29 -ub 2048 -b 2048 -ctk q8_0")
        self.assertEqual(self.command(OLD, [], 64, None, 512),
                         "llama-bench -m m.gguf -p 0 -n 64 -t 16 -r 1 -o json -fa 1 -ngl 29 -ub 512 -b 2048 -mmp 1 -ctk q8_0")

    def test_experts_stay_in_ram(self):
        self.assertIn("-ngl 5 -ncmoe 3 ", self.command(NEW, placement={"ngl": 5, "cpu_experts": 3}))
        self.assertIn(r"-ot blk\.(0|1|2)\.ffn_(up|down|gate|gate_up)_exps=CPU ", self.command(OLD, placement={"ngl": 5, "cpu_experts": 3}))
        cut = {"ngl": 5, "cpu_experts": 3, "cpu_matrices": 2}
        self.assertIn(r"-ncmoe 3 -ot blk\.3\.ffn_(down|up)_exps=CPU ", self.command(NEW, placement=cut))
        self.assertIn(r"-ot blk\.3\.ffn_(down|up)_exps=CPU;blk\.(0|1|2)\.ffn_(up|down|gate|gate_up)_exps=CPU ", self.command(OLD, placement=cut))
        self.assertIn(r"-ot blk\.\d+\.ffn", self.command(OLD, placement={"ngl": 0, "cpu_experts": 4}))

    def test_its_json_is_read_behind_other_lines(self):
        out = 'load_backend: CUDA\n[{"n_prompt": 512, "n_gen": 0, "avg_ts": 900.5}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 3.05}]\n'
        self.assertEqual(gpu.Llama.rates(out), {"prompt 512": 900.5, "decode": 3.05})
        self.assertEqual(gpu.Llama.rates("nothing"), {})
        self.assertEqual(gpu.Llama.rates(out[:out.index(", {")]), {"prompt 512": 900.5}, "a run that was cut off")

    def test_budgets(self):
        self.assertEqual([tuple(budget) for budget in gpu.parse_budgets("16G/40G,16G/800M@8", 64)],
                         [("16G/40G", 16 * 10**9, 40 * 10**9, 64), ("16G/800M", 16 * 10**9, 8 * 10**8, 8)])
        with self.assertRaises(SystemExit):
            gpu.parse_budgets("16G", 64)

    def test_a_failure_in_a_few_words(self):
        self.assertIn("killed", gpu.failure(-9, ""))
        self.assertEqual(gpu.failure(1, "loading\nCUDA error: out of memory\nbacktrace"), "CUDA error: out of memory")
        self.assertEqual(gpu.failure(3, ""), "ended with 3")


def pair(ours, theirs):
    return {"ours": ours, "theirs": theirs, "vram": {"ours": 15_900_000_000, "theirs": 15_700_000_000}, "runs": []}


RECORDED = {
    "model": "llama3-70b-Q4_K.gguf", "machine": "a GPU <test>", "when": "2026-11-22", "pairs": 3, "tests": ["decode", "prompt 512"],
    "budgets": [
        {"budget": "16G/40G", "placements": {what: {"placement": {"ngl": 29, "cpu_experts": 0}} for what in ("decode", "prompts")},
         "pairs": [pair({"decode": 5.2, "prompt 512": 1071.0}, {"decode": 3.0, "prompt 512": 300.0}),
                   pair({"decode": 5.4, "prompt 512": 1050.0}, {"decode": 3.1, "prompt 512": "CUDA error: out of memory"}),
                   pair({"decode": 5.5, "prompt 512": 1080.0}, {"decode": 3.2, "prompt 512": 310.0})]},
        {"budget": "16G/8G", "placements": {what: {"placement": {"ngl": 41, "cpu_experts": 7}} for what in ("decode", "prompts")},
         "pairs": [pair({"decode": 0.14, "prompt 512": 200.0}, {"decode": "none in 600 s", "prompt 512": "none in 600 s"})]},
    ]}


class Shown(unittest.TestCase):
    def test_the_table_has_medians_ratios_and_what_failed(self):
        lines = gpu.table(RECORDED).splitlines()
        self.assertEqual(len(lines), 2 + 4)
        self.assertEqual(len({line.count("|") for line in lines}), 1, "columns")
        self.assertIn("| 16G/40G | decode | 5.40 (5.20 to 5.50) | 3.10 (3.00 to 3.20) | 1.73 (1.72 to 1.74) | -ngl 29 |", lines[2])
        self.assertIn("305 (300 to 310); 1 of 3: CUDA error: out of memory", lines[3])
        self.assertIn("| none in 600 s | - | -ngl 41, experts of 7 layers in RAM |", lines[4])

    def test_the_chart_is_whole_and_needs_nothing_else(self):
        text = gpu.chart(RECORDED)
        tree = xml.etree.ElementTree.fromstring(text)
        self.assertEqual(len([each for each in tree if each.tag.endswith("rect")]), 6, "bars of what has figures")
        self.assertIn("none in 600 s", text)
        self.assertNotIn("href", text)

    def test_what_was_recorded_is_rendered_again(self):
        with tempfile.TemporaryDirectory() as folder:
            gpu.keep(RECORDED, folder)
            before = (pathlib.Path(folder) / "gpu.svg").read_text()
            gpu.main(["--render", f"{folder}/gpu.json"])
            self.assertEqual((pathlib.Path(folder) / "gpu.svg").read_text(), before)
            self.assertIn("5.40", (pathlib.Path(folder) / "gpu.md").read_text())


class WholeRun(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.environ["XDG_CACHE_HOME"] = self.folder.name
        gpu.compare.WORK = pathlib.Path(self.folder.name)
        gpu.compare.drop_page_cache = lambda: None  # others' tests run beside this one
        self.llama = write_llama_bench(self.folder.name)

    def raw(self, *flags):
        gpu.main(["--llama-bench", str(self.llama), "--model", DEMO, "--device", "cpu", "--budgets", "0/1G@4", "--pairs", "2", "-p", "16,32",
                  "--threads", "2", *flags])
        return json.loads((pathlib.Path(self.folder.name) / "gpu.json").read_text())

    def test_both_are_measured_in_pairs(self):
        raw = self.raw()
        self.assertEqual(raw["shape"], {"layers": 6, "experts": 16})
        self.assertEqual(len(raw["budgets"][0]["pairs"]), 2)
        for each in raw["budgets"][0]["pairs"]:
            self.assertEqual(each["theirs"], {"decode": 10.0, "prompt 16": 100.0, "prompt 32": 100.0})
            self.assertTrue(all(isinstance(rate, float) and rate > 0 for rate in each["ours"].values()), each["ours"])
            self.assertEqual(set(each["ours"]), set(each["theirs"]))
            decode = next(run["command"] for run in each["runs"] if "bench" in run["command"])
            self.assertEqual(decode[decode.index("-n") + 1], "4")

    def test_a_run_that_fails_or_hangs_is_shown(self):
        failed = self.raw("--ngl", "5", "--calibrated")["budgets"][0]["pairs"][0]["theirs"]["decode"]
        self.assertIn("out of memory", failed)
        self.assertEqual(self.raw("--llama-flags=-slow", "--timeout", "3", "--pairs", "1", "--calibrated")["budgets"][0]["pairs"][0]["theirs"]["decode"],
                         "none in 3 s")

    def test_the_placement_is_searched_for_by_what_it_takes(self):
        class Vram:  # as a GPU would show it, by the command that runs
            def used(self):
                return 0

        class Runner(gpu.Runner):
            def run(self, command, ram_bytes, cold=True):
                outcome = super().run(command, ram_bytes, cold)
                layers = int(command[command.index("-ngl") + 1])
                experts = int(command[command.index("-ncmoe") + 1]) if "-ncmoe" in command else 0
                outcome["vram_bytes"] = 1_000_000 * layers + 2_000_000 * (layers - experts if layers > experts else 0)
                return outcome
        args = gpu.arguments(["--llama-bench", str(self.llama), "--model", DEMO, "-p", "16", "--threads", "2"])
        llama = gpu.Llama(str(self.llama))
        dense = gpu.place(llama, Runner(Vram(), 60), args, {"layers": 6, "experts": 0}, DEMO, gpu.parse_budgets("8M/1G", 4)[0], [], 4, 512)
        self.assertEqual(dense[0], {"ngl": 2, "cpu_experts": 0})
        # Seven on the GPU fail in the stand-in, so experts alone are no way out and layers are searched for.
        mixture = gpu.place(llama, Runner(Vram(), 60), args, {"layers": 6, "experts": 16}, DEMO, gpu.parse_budgets("3M/1G", 4)[0], [16], 0, 512)
        self.assertEqual(mixture[0], {"ngl": 3, "cpu_experts": 6})


class Tiers(unittest.TestCase):
    def test_rows_of_the_demo(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder}), \
                unittest.mock.patch.object(tiers.compare, "WORK", pathlib.Path(folder)):
            rows = pathlib.Path(folder, "rows")
            rows.write_text("# the model takes 7 MB\n0/1G -p 16 -n 8\n0/6M -p 256 -n 1\n0/6M first\n0/1G -n 4 --kv f64\n0/6M -p 16 -n 8\n")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                tiers.main([DEMO, "--rows", str(rows), "--only", "1,2,3,4"])
            _, _, all_in_ram, prompt, first, refused = out.getvalue().strip().splitlines()
            self.assertRegex(all_in_ram, r"0/1G \| -p 16 -n 8 \| [\d.]+ \(predicted [\d.]+, [+-]\d+ %\) \|  \|  \|  \|")
            self.assertRegex(prompt, r"\|  \| \d+ \(predicted \d+, [+-]\d+ %\) \|  \| .*GB/s, \d+ % and \d+ % of the sweeps before and after")
            self.assertRegex(first, r"first token in \d+\.\d s")
            self.assertIn("error: ", refused)
            raw = json.loads(pathlib.Path(folder, "tiers.json").read_text())
            self.assertEqual(len(raw["rows"]), 4)
            self.assertTrue(pathlib.Path(folder, "tiers/row-2.plan.json").exists())
            for wrong in ("0/1G\n", "1G -n 4\n"):
                rows.write_text(wrong)
                with self.assertRaises(SystemExit):
                    tiers.main([DEMO, "--rows", str(rows)])


if __name__ == "__main__":
    unittest.main()
