"""bench/gaming_pc.py without a GPU: all rows on the CPU with tiny models, alone and beside a stand-in for llama-bench; the search for llama.cpp's
flags; what goes on where a command was cut off."""
import contextlib
import importlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from harness import MILLRACE, ROOT, SYNTH
from llama_stand_in import write_llama_bench

os.environ["MILLRACE"], os.environ["MILLRACE_SYNTH"] = MILLRACE, SYNTH
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
pc = importlib.import_module("gaming_pc")
flags = importlib.import_module("llama_flags")


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        patched = unittest.mock.patch.object(pc.compare, "WORK", self.folder)
        patched.start()
        self.addCleanup(patched.stop)

    def run_it(self, *argv):
        """Its output, with stderr."""
        told = io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            pc.main([*argv, "--commit", "0123abc"])
        return told.getvalue()

    def result(self):
        return json.loads((self.folder / "gaming-pc-smoke.json").read_text())


class Smoke(InAFolder):
    def test_every_row_runs_and_makes_a_table(self):
        told = self.run_it("--smoke")
        result = self.result()
        self.assertEqual([row["name"].split()[0] for row in result["rows"]], list(pc.SHEET["rows"]))
        for row in result["rows"]:
            self.assertGreater(row["values"]["ours"], 0, row)
            self.assertEqual((row["values"]["theirs"], row["values"]["ratio"]), ("", ""), "there was no llama.cpp")
            self.assertIn(f"{row['name'].split()[0]}, round 1 of 1: Millrace", told)
        self.assertEqual(pc.tables.table("gaming-pc", result).count("\n| "), 1 + len(pc.SHEET["rows"]))
        self.assertEqual((self.folder / "gaming-pc-smoke.json").read_text(), pc.tables.written(result))

    def test_beside_llama_and_a_second_command_measures_nothing_twice(self):
        llama = str(write_llama_bench(self.folder))
        self.run_it("--smoke", "--only", "qwen-zipf,oss20", "--llama-bench", llama, "--rounds", "3", "--link", "x8,free")
        rows = {row["name"]: row["values"] for row in self.result()["rows"]}
        self.assertEqual(sorted(rows), sorted(f"{row} {link}" for row in ("oss20-decode", "oss20-prompt", "qwen-zipf") for link in ("x8", "free")))
        for name, values in rows.items():
            self.assertEqual((values["theirs"], values["rounds"]), (100.0 if "prompt" in name else 10.0, 3), name)
            self.assertAlmostEqual(values["ratio"], values["ours"] / values["theirs"])
            self.assertIn("-fa on", values["flags"])
        with unittest.mock.patch.object(pc.compare_gpu.Runner, "run", side_effect=AssertionError("measured again")):
            self.run_it("--smoke", "--only", "qwen-zipf,oss20", "--llama-bench", llama, "--rounds", "3", "--link", "x8,free")
        self.assertEqual(rows, {row["name"]: row["values"] for row in self.result()["rows"]})
        with unittest.mock.patch.object(flags.Search, "measured", side_effect=AssertionError("flags were searched for again")):
            self.run_it("--smoke", "--only", "qwen-uniform", "--llama-bench", llama)

    def test_a_command_that_runs_out_of_time_goes_on_later(self):
        with self.assertRaises(SystemExit) as ended:
            self.run_it("--smoke", "--only", "70b", "--minutes", "0")
        self.assertEqual(ended.exception.code, 3)
        self.assertFalse((self.folder / "gaming-pc-smoke.json").exists())
        self.run_it("--smoke", "--only", "70b", "--rounds", "2")
        self.assertEqual(self.result()["rows"][0]["values"]["rounds"], 2)

    def test_a_row_that_fails_says_why(self):
        with unittest.mock.patch.dict(pc.SHEET["rows"]["oss20-decode"], flags="--routing nowhere"):
            self.run_it("--smoke", "--only", "oss20-decode")
        self.assertIn("nowhere", self.result()["rows"][0]["values"]["ours"])

    def test_a_dry_run_starts_nothing_and_shows_each_command(self):
        with unittest.mock.patch.object(subprocess, "Popen", side_effect=AssertionError("started")):
            told = self.run_it("--dry-run", "--llama-bench", "/nowhere/llama-bench", "--link", "x8,x16")
        self.assertEqual(list(self.folder.iterdir()), [])
        self.assertEqual(len(re.findall(r"^taskset .* bench .* --isa avx2 ", told, re.M)), 2 * len(pc.SHEET["rows"]))
        self.assertRegex(told, r"MILLRACE_BLOCK_SHARED=99 MILLRACE_LINK_GB_S=13\.7 .*--vram 8000000000 --ram 32000000000 .*--routing zipf:1\.0")
        self.assertRegex(told, r"MILLRACE_LINK_GB_S=27\.4 .*--vram 12000000000 --ram 40000000000 ")
        self.assertRegex(told, r"/nowhere/llama-bench .*-ncmoe \d+ .*# in a cgroup of 33\.00 GB")
        self.assertRegex(told, r"synth-model \S*gpt-oss-120b\S* -p gpt-oss-120b -d MXFP4 --layers 20")

    def test_unknown_rows_and_links_are_refused(self):
        for wrong in (["--only", "oss21"], ["--link", "x3"]):
            with self.assertRaises(SystemExit) as ended:
                self.run_it(*wrong)
            self.assertIn(wrong[1], str(ended.exception.code))


class Shaped:
    """A runner on a GPU that is not there. It reads from llama-bench's flags what that would take of VRAM, and how fast it would be."""

    def __init__(self, *_):
        self.commands, self.cold = [], []

    @contextlib.contextmanager
    def limited(self, ram_bytes, cold):
        yield ["in a cgroup"]

    def run(self, command, ram_bytes, cold=True):
        self.commands.append(command)
        self.cold.append(cold)
        if "--isa" in command:
            told = {"decode_tok_s": 60.0, "prompt_tok_s": 6000.0, "drafts": {"drafters": []}}
            return {"command": command, "code": 0, "out": json.dumps(told), "failed": None, "seconds": 1.0, "vram_bytes": 7_900_000_000, "limited": True}
        value = lambda name: command[command.index(name) + 1] if name in command else "0"
        cut = value("-ot").split("=")[0]
        on_gpu = int(value("-ngl")) - int(value("-ncmoe")) - (cut.count("up") + cut.count("down")) / 3
        tests = [{"n_prompt": int(value("-p")), "n_gen": int(value("-n")), "flash_attn": int(flash == "on"), "n_threads": int(threads),
                  "avg_ts": 10.0 + on_gpu + (flash == "off") + 5.0 * (threads == "6") + ("-lm" in command) - ("--no-host" in command)}
                 for flash in value("-fa").split(",") for threads in value("-t").split(",")]
        vram = 1_000_000_000 + 500_000_000 * on_gpu + (400_000_000 if "off" in value("-fa") else 0)
        return {"command": command, "code": 0, "out": json.dumps(tests), "failed": None, "seconds": 1.0, "vram_bytes": vram, "limited": True}


class Search(unittest.TestCase):
    def setUp(self):
        self.runner = Shaped()
        budget = pc.compare_gpu.Budget("8+32", 8_000_000_000, 32_000_000_000, 0)
        machine = unittest.mock.Mock(budget=budget, cores=list(range(8)))
        machine.name = "8+32"
        file = tempfile.NamedTemporaryFile()
        self.addCleanup(file.close)
        file.truncate(20_000_000_000)  # a hole
        llama = flags.Llama("llama-bench", ["taskset", "-c", "0"], help_text=flags.NEW_FLAGS)
        self.search = flags.Search(llama, self.runner, machine, {"layers": 40, "experts": 256}, file.name, {"decode": 64})
        self.kept = {}

    def once(self, name, make):
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def quietly(self, what):
        with contextlib.redirect_stderr(io.StringIO()):
            return what()

    def test_the_fastest_flags_come_first_and_keep_to_the_budget(self):
        found = self.quietly(lambda: self.search.candidates(self.once))
        # 13 layers take 7.5 GB of the 7.95 that a longer context leaves, and two thirds of another one's experts 0.33 more.
        self.assertAlmostEqual(found[0].pop("rate"), 30 + 2 / 3)
        self.assertEqual(found[0], {"threads": 6, "flash": False, "ubatch": 128, "mapped": False, "host": True,
                                    "placement": {"ngl": 41, "cpu_experts": 27, "cpu_matrices": 1}})
        found[0]["rate"] = 30 + 2 / 3
        self.assertIn(r"blk\.27\.ffn_(down)_exps=CPU", self.runner.commands[-1])
        self.assertEqual([each["rate"] for each in found], sorted((each["rate"] for each in found), reverse=True))
        count = len(self.runner.commands)
        self.assertEqual(self.quietly(lambda: self.search.candidates(self.once)), found)
        self.assertEqual(len(self.runner.commands), count, "a step was done twice")

    def test_flags_that_take_more_than_the_budget_give_way(self):
        found = {"candidates": self.quietly(lambda: self.search.candidates(self.once)), "checked": False}
        found["candidates"][0]["placement"] = {"ngl": 41, "cpu_experts": 26, "cpu_matrices": 1}
        done = self.quietly(lambda: pc.their_round(self.search, found, False))
        self.assertLessEqual(done["vram_bytes"], 8_000_000_000)
        self.assertTrue(found["checked"])
        self.assertEqual(done["flags"], "-ngl 41 -ncmoe 27 -t 6 -fa on -ub 128, not mapped")

    def test_a_prompt_is_tried_in_two_sizes_of_a_pass(self):
        self.search.row = {"prompt": 2048}
        found = self.quietly(lambda: self.search.candidates(self.once))
        self.assertEqual({each["ubatch"] for each in found}, {2048, 512})
        self.assertTrue(all(command[command.index("-n") + 1] == "0" for command in self.runner.commands))
        self.assertEqual(sum("--no-host" in command for command in self.runner.commands), 2)
        self.kept["sweep -ub 512"] = [each | {"rate": 1.0} for each in self.kept["sweep -ub 512"]]
        self.assertEqual({each["ubatch"] for each in self.quietly(lambda: self.search.candidates(self.once)) if not each["mapped"]}, {2048}, "hopeless")


class OnAGpu(InAFolder):
    def measured(self, *argv):
        """The values of the rows that a command measured, and its runner."""
        runner = Shaped()
        shape = lambda path, row, args: pc.SHEET["models"][row["model"]]

        def hollow(name, args):
            path = self.folder / f"{name}.gguf"
            with path.open("wb") as file:
                file.truncate(int(pc.SHEET["models"][name]["gigabytes"] * 1e9))
            return str(path)
        with contextlib.ExitStack() as stack:
            for what, name, by in ((pc.compare_gpu, "Runner", lambda *_: runner), (pc.compare_gpu, "Vram", unittest.mock.Mock), (pc, "model", hollow), (pc, "shape_of", shape),
                                   (pc, "cores", lambda count: list(range(count)))):
                stack.enter_context(unittest.mock.patch.object(what, name, by))
            llama = write_llama_bench(self.folder)
            self.run_it("--llama-bench", str(llama), "--out", str(self.folder / "out.json"), *argv)
        return {row["name"]: row["values"] for row in json.loads((self.folder / "out.json").read_text())["rows"]}, runner

    def test_rows_have_ratios_peaks_and_flags(self):
        rows, runner = self.measured("--only", "qwen-uniform,qwen-prompt", "--link", "x8,x16")
        self.assertEqual(list(rows), ["qwen-uniform x8", "qwen-uniform x16", "qwen-prompt x8", "qwen-prompt x16"])
        values = rows["qwen-uniform x8"]
        self.assertEqual((values["ours"], values["rounds"], values["link"]), (60.0, 3, "PCIe 4 x8, 13.7 GB/s"))
        self.assertAlmostEqual(values["ratio"], 60 / values["theirs"])
        # Without flash attention this would take 0.4 GB more, too much: the first round took that away.
        self.assertEqual(values["flags"], "`-ngl 41 -ncmoe 27 and 1 of 3 matrices of the next layer's experts (-ot) -t 6 -fa on -ub 128, not mapped`")
        self.assertEqual(values["vram"], "7.90 GB; 7.83 GB")
        self.assertNotIn(True, runner.cold, "19.7 GB fit in 32")

    def test_a_file_larger_than_ram_is_read_cold(self):
        rows, runner = self.measured("--only", "70b")
        self.assertRegex(rows["70b-draft x16"]["flags"], r"^`-ngl 29 -t 6 ")
        self.assertEqual(runner.cold[-6:], [True] * 6, "three rounds of both")
        self.assertIn("--draft", runner.commands[-2])


class Numbers(unittest.TestCase):
    def test_links_are_those_of_machines_from_data_sheets(self):
        self.assertEqual([pc.link_gb_s(lanes) for lanes in (8, 16)], [13.7, 27.4])

    def test_medians_and_what_has_no_figure(self):
        run = lambda rate: {"rate": rate}
        self.assertEqual(pc.middle([run(3.0), run("killed (out of RAM?)"), run(1.0), run(2.0)]), (2.0, "1.0 to 3.0"))
        self.assertEqual(pc.middle([run("none in 240 s"), None]), ("none in 240 s", ""))
        self.assertEqual(pc.middle([None]), ("", ""))

    def test_models_of_other_rows_make_room(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("gaming-pc-a.gguf", "gaming-pc-b.gguf", "other.gguf"):
                pathlib.Path(folder, name).write_text("")
            with contextlib.redirect_stderr(io.StringIO()):
                pc.make_room(pathlib.Path(folder), 0, set())
                self.assertEqual(len(os.listdir(folder)), 3, "there was room")
                pc.make_room(pathlib.Path(folder), 1 << 60, {"gaming-pc-b.gguf"})
            self.assertEqual(sorted(os.listdir(folder)), ["gaming-pc-b.gguf", "other.gguf"])


if __name__ == "__main__":
    unittest.main()
