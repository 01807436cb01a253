"""The flags with which llama.cpp is fastest for a piece of work on a simulated PC (bench/gaming_pc.py): by a search with llama-bench.

The steps: the placement of layers and experts whose peak of VRAM stays within the budget (bench/compare_gpu.py; of a mixture one layer's
experts may be cut), for one or two values of -ub; -t and -fa by a sweep of one process; then, for each -ub, the file read instead of mapped, and
weights repacked for the processor (--no-host). A candidate is {"rate": tok/s, "threads", "flash", "ubatch", "mapped", "host",
"placement": {"ngl": N, "cpu_experts": M, "cpu_matrices": 0 to 2}}.
"""
import types

import compare_gpu
from compare_gpu import gigabytes, say

DECODE_UBATCH = 128  # rows a pass: decode needs one, and smaller buffers leave more VRAM to experts
PROMPT_UBATCHES = (2048, 512)
SPARE_VRAM = 50_000_000  # a longer context takes more than the search saw
HOPELESS = 0.6  # a value of -ub at so much of another one's rate is not tried further
NEW_FLAGS = "--n-cpu-moe <n> --flash-attn <on|off> --load-mode <none|mmap> --no-host <0|1>"  # of llama.cpp's help, where it is not run


class Llama(compare_gpu.Llama):
    """A llama-bench that runs on the PC's cores."""

    def __init__(self, program, prefix, **more):
        super().__init__(program, **more)
        self.prefix = prefix

    def command(self, *args, **more):
        return [*self.prefix, *super().command(*args, **more)]


def words(candidate):
    return f"{placement_words(candidate['placement'])} -t {candidate['threads']} -fa {'on' if candidate['flash'] else 'off'} -ub {candidate['ubatch']}" + (
        "" if candidate["mapped"] else ", not mapped") + ("" if candidate["host"] else " --no-host 1")


def placement_words(placement):
    cut = f" and {placement['cpu_matrices']} of 3 matrices of the next layer's experts (-ot)" if placement.get("cpu_matrices") else ""
    return f"-ngl {placement['ngl']}" + (f" -ncmoe {placement['cpu_experts']}" if placement["cpu_experts"] else "") + cut


class Search:
    """For one row, {"decode": tokens} or {"prompt": tokens}. runner: a compare_gpu.Runner; pc: its name, budget and cores; smoke: nothing is on
    the GPU; dry: nothing is run, and the first guess of the placement is shown."""

    def __init__(self, llama, runner, pc, shape, path, row, smoke=False, dry=False):
        self.llama, self.runner, self.pc, self.shape, self.path, self.row = llama, runner, pc, shape, path, row
        self.smoke, self.dry = smoke, dry

    def command(self, candidate, row=None, **more):
        """llama-bench's command by a candidate's flags; `more`: values by commas in place of its threads and flash."""
        row = row or self.row
        prompts, decode = ([], row["decode"]) if "decode" in row else ([row["prompt"]], 0)
        given = {"flash": (candidate["flash"],), "mapped": candidate["mapped"], "host": candidate["host"]} | more
        return self.llama.command(self.path, prompts, decode, given.pop("threads", candidate["threads"]), candidate["placement"], self.shape["layers"],
                                  candidate["ubatch"], **given)

    def candidates(self, once):
        """The fastest first. once(name, make): what a step gave, which an earlier command may have done."""
        count, decodes, found = len(self.pc.cores), "decode" in self.row, []
        sweep = sorted({count, max(1, 3 * count // 4), max(1, count // 2)}, reverse=True) if decodes else [count]
        by_commas = ",".join(map(str, sweep))
        variants = {"not mapped": {"mapped": False}} | ({"--no-host 1": {"host": False}} if "--no-host" in self.llama.help else {})
        for ubatch in [DECODE_UBATCH] if decodes else [each for each in PROMPT_UBATCHES if each <= max(512, self.row["prompt"])]:
            placement = once(f"placement -ub {ubatch}", lambda ubatch=ubatch: self.placed(ubatch))
            start = {"rate": 0.0, "threads": count, "flash": True, "ubatch": ubatch, "mapped": True, "host": True, "placement": placement}
            say(f"{self.pc.name}: llama.cpp with {placement_words(placement)} -ub {ubatch}, with -t {by_commas} and -fa on and off")
            swept = once(f"sweep -ub {ubatch}", lambda start=start: self.measured(start, threads=by_commas, flash=(True, False))) or [start]
            best = max(swept, key=lambda each: each["rate"])
            found += swept
            hopeless = best["rate"] < HOPELESS * max(each["rate"] for each in found)
            for name, variant in {}.items() if hopeless else variants.items():
                say(f"{self.pc.name}: llama.cpp with {words(best | variant)}")
                found += once(f"{name} -ub {ubatch}", lambda best=best, variant=variant: self.measured(best | variant))
        found.sort(key=lambda each: -each["rate"])
        for each in [] if self.dry else found:
            say(f"{self.pc.name}: llama.cpp: {each['rate']:.2f} tok/s with {words(each)}")
        return found

    def placed(self, ubatch):
        """The placement of most layers or experts within the budget of VRAM."""
        if self.smoke:
            return {"ngl": 0, "cpu_experts": 0}
        budget = self.pc.budget._replace(vram_bytes=self.pc.budget.vram_bytes - SPARE_VRAM)
        say(f"{self.pc.name}: searching for what of llama.cpp fits in {gigabytes(budget.vram_bytes)} with -ub {ubatch}; a try takes up to a minute")
        layers = self.shape["layers"]
        if self.dry:
            guess = int(layers * budget.vram_bytes / (self.shape["gigabytes"] * 1e9))
            placement = {"ngl": layers + 1, "cpu_experts": max(0, layers - guess)} if self.shape["experts"] else {"ngl": guess, "cpu_experts": 0}
            print(f"# the next command with other values than {placement_words(placement)}")
            return placement
        decodes, settings = "decode" in self.row, types.SimpleNamespace(threads=len(self.pc.cores))
        prompts = [] if decodes else [self.row["prompt"]]
        placement, tried = compare_gpu.place(self.llama, self.runner, settings, self.shape, self.path, budget, prompts, decodes, ubatch, cold=False)
        return self.cut(placement, tried, budget, ubatch)

    def cut(self, placement, tried, budget, ubatch):
        """With one or two of the three matrices of one more layer's experts on the GPU, where they fit."""
        layers, kept = self.shape["layers"], placement["cpu_experts"]
        peaks = {layers - k: peak for k, peak in tried.items() if peak is not None}  # by layers whose experts are in RAM
        others = [(peak - peaks[kept]) / (kept - count) for count, peak in peaks.items() if count != kept] if kept in peaks else []
        if not kept or placement["ngl"] <= layers or not others or others[0] <= 0:
            return placement
        for matrices in range(min(2, int(3 * (budget.vram_bytes - peaks[kept]) / others[0])), 0, -1):
            finer = placement | {"cpu_experts": kept - 1, "cpu_matrices": 3 - matrices}
            command = self.llama.command(self.path, [] if "decode" in self.row else [min(self.row["prompt"], ubatch)], int("decode" in self.row),
                                         len(self.pc.cores), finer, layers, ubatch)
            outcome = self.runner.run([*command, "--no-warmup"], self.pc.budget.ram_bytes, cold=False)
            say(f"{self.pc.name}: {placement_words(finer)} takes {gigabytes(outcome['vram_bytes'])} ({outcome['seconds']:.0f} s)")
            if not outcome["failed"] and outcome["vram_bytes"] <= budget.vram_bytes:
                return finer
        return placement

    def measured(self, start, **more):
        """A candidate for each test of one llama-bench, of half of the row's tokens or one pass of its prompt."""
        short = {"decode": max(1, self.row["decode"] // 2)} if "decode" in self.row else {"prompt": min(self.row["prompt"], start["ubatch"])}
        outcome = self.runner.run(self.command(start, short, **more), self.pc.budget.ram_bytes, cold=False)
        if outcome["failed"] and not self.dry:
            say(f"{self.pc.name}: llama.cpp: {outcome['failed']} ({outcome['seconds']:.0f} s)")
        return [start | {"rate": test["avg_ts"], "threads": test["n_threads"], "flash": str(test["flash_attn"]).lower() in ("1", "on", "true", "enabled")}
                for test in self.llama.tests(outcome["out"])]


def less_vram(candidate, shape):
    """The candidate that takes less: with attention that keeps no scores, or with a layer less on the GPU; None if there is none."""
    placement = candidate["placement"]
    if not candidate["flash"]:
        return candidate | {"flash": True}
    if shape["experts"] and placement["cpu_experts"] < shape["layers"]:
        return candidate | {"placement": placement | {"cpu_experts": placement["cpu_experts"] + 1, "cpu_matrices": 0}}
    if placement["ngl"] > 0:
        return candidate | {"placement": placement | {"ngl": placement["ngl"] - 1}}
    return None
