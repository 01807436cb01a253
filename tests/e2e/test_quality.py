"""Measuring quality, as a user does it: perplexity, divergence, importance matrices, sensitivities, the best mixture."""
import json
import os
import pathlib
import re
import tempfile
import unittest

import harness
from harness import DEMO, DRAFT, ROOT, Case

TEXT = str(ROOT / "tests/data/stories.txt")


def figure(out, pattern):
    return float(re.search(pattern, out).group(1))


def perplexity(out):
    return figure(out, r"perplexity ([0-9.]+)")


class Perplexity(Case):
    def test_is_the_same_under_every_budget(self):
        words = ("perplexity", DEMO, "-f", TEXT, "--ctx", "128", "--chunks", "8")
        found = {self.ok(*words, *more).out for more in ((), ("--ram", "8M"), ("--batch", "50"), ("--threads", "1"))}
        self.assertEqual(len(found), 1, found)
        self.assertRegex(found.pop(), r"^perplexity \d+\.\d{4} \+- \d+\.\d{4} over 504 tokens of 8 windows of 128\n$")

    @unittest.skipIf(harness.SANITIZED, "sanitizers multiply memory")
    def test_keeps_its_budget(self):
        outcome = self.ok("perplexity", DEMO, "-f", TEXT, "--ram", "10M", "--chunks", "6", measured=True)
        self.assertLessEqual(outcome.held_bytes, 10_000_000)

    def test_holds_runs_against_a_saved_one(self):
        with tempfile.TemporaryDirectory() as folder:
            saved, q4 = os.path.join(folder, "saved"), os.path.join(folder, "q4.gguf")
            words = ("-f", TEXT, "--ctx", "128", "--chunks", "6")
            out = self.ok("perplexity", DRAFT, *words, "--save-logits", saved).out
            self.assertEqual(os.listdir(folder), ["saved"])
            itself = self.ok("perplexity", DRAFT, *words, "--against", saved).out
            self.assertLess(figure(itself, r"mean ([0-9.e-]+)"), 1e-6)
            self.assertIn("same likeliest token: 100.000 %", itself)
            self.assertEqual(perplexity(itself), perplexity(out))
            self.ok("quantize", DRAFT, q4, "Q4_0")
            other = self.ok("perplexity", q4, *words, "--against", saved).out
            self.assertGreater(figure(other, r"mean ([0-9.e-]+)"), 1e-4)

            self.refused("perplexity", DRAFT, "-f", TEXT, "--ctx", "64", "--against", saved, says="windows of 128 tokens")
            self.refused("perplexity", DRAFT, "-f", str(ROOT / "README.md"), *words[2:], "--against", saved, says="another text")
            self.refused("perplexity", DRAFT, *words[:-1], "5", "--against", saved, says="6 windows")
            with open(saved, "r+b") as file:
                file.truncate(os.path.getsize(saved) - 1)
            self.refused("perplexity", DRAFT, *words, "--against", saved, says="save the logits again")
            self.refused("perplexity", DRAFT, *words, "--against", DRAFT, says="no file of saved logits")

    def test_refuses_texts_that_are_none(self):
        self.refused("perplexity", DEMO, "-f", "nowhere.txt", says="nowhere.txt")
        self.refused("perplexity", DEMO, "-f", str(ROOT), says="give a file of text")
        self.refused("perplexity", DEMO, says="--file")
        with tempfile.NamedTemporaryFile() as text:
            self.refused("perplexity", DEMO, "-f", text.name, says="empty")
            text.write(b"A few words.")
            text.flush()
            self.refused("perplexity", DEMO, "-f", text.name, says="less than a window of 512")
        self.refused("perplexity", DEMO, "-f", TEXT, "--stride", "512", says="no context")


class Sensitivity(Case):
    def test_makes_a_file_that_fits(self):
        with tempfile.TemporaryDirectory() as folder:
            found, out = os.path.join(folder, "found.json"), os.path.join(folder, "out.gguf")
            self.ok("sensitivity", DRAFT, "-f", TEXT, "--chunks", "3", "--ctx", "128", "--types", "Q4_0,Q8_0", "--checks", "1",
                    "-o", found)
            self.assertEqual(os.listdir(folder), ["found.json"])
            with open(found) as file:
                groups = json.load(file)["groups"]
            self.assertEqual({group["name"] for group in groups},
                             {f"blk.{layer}.{part}" for layer in range(3) for part in ("attention", "values", "ffn", "down")} | {"head"})
            said = self.ok("quantize", DRAFT, out, "--bytes", "900k", "--sensitivity", found).out
            self.assertLessEqual(os.path.getsize(out), 900_000)
            self.assertGreater(os.path.getsize(out), 700_000)
            self.assertIn("Q8_0", said)
            self.assertTrue(self.ok("run", out, "--temp", "0", "-p", "What is the opposite of hot?").out.strip())
            predicted = {}
            for limit in ("0.01", "0.0001"):
                said = self.ok("quantize", DRAFT, out, "--divergence", limit, "--sensitivity", found).out
                predicted[limit] = (os.path.getsize(out), float(re.search("divergence: ([^ ]+)", said)[1]))
                self.assertLessEqual(predicted[limit][1], float(limit))
            self.assertLess(predicted["0.01"][0], predicted["0.0001"][0], "what may diverge more is smaller")
            planned = {}
            for words in ((), ("--as", "Q4_0"), *(("--divergence", limit, "--sensitivity", found) for limit in predicted)):
                number, unit = re.search(r"weights ([\d.]+) (k|M)B", self.ok("plan", DRAFT, "--ram", "8M", *words).out).groups()
                planned[words[:2]] = float(number) * {"k": 1e3, "M": 1e6}[unit]
            for limit, (size, _) in predicted.items():
                self.assertLess(abs(planned["--divergence", limit] - size), 0.05 * size, (size, planned))
            self.assertLess(planned["--as", "Q4_0"], planned["--divergence", "0.0001"])
            self.assertLess(planned["--divergence", "0.0001"], planned[()])
            self.assertFalse([name for name in os.listdir(tempfile.gettempdir()) if name.startswith("millrace-plan-")])
            self.refused("plan", DRAFT, "--divergence", "0.001", says="--sensitivity")
            self.refused("plan", DRAFT, "--as", "Q4_0", "--bytes", "900k", says="one of them")
            self.refused("plan", DRAFT, "--as", "Q9", says="Q9")
            self.refused("quantize", DRAFT, out, "--divergence", "0.001", says="--sensitivity")
            self.refused("quantize", DRAFT, out, "--bytes", "100k", "--sensitivity", found, says="smallest")
            self.refused("quantize", DEMO, out, "--bytes", "9M", "--sensitivity", found, says="another model")
            self.refused("quantize", DRAFT, out, "--bytes", "900k", "--sensitivity", TEXT, says="not a sensitivity file")
            self.refused("quantize", DRAFT, out, says="type")
            self.refused("quantize", DRAFT, out, "Q8_0", "--bytes", "900k", says="--bytes")


    def test_by_importance(self):
        with tempfile.TemporaryDirectory() as folder:
            matrix, plain, weighted = (os.path.join(folder, name) for name in ("matrix.gguf", "plain.json", "weighted.json"))
            text = ("-f", TEXT, "--chunks", "3", "--ctx", "128")
            self.ok("imatrix", DRAFT, *text, "-o", matrix)
            types = ("--types", "Q4_0,Q8_0", "--checks", "0")
            self.ok("sensitivity", DRAFT, *text, *types, "-o", plain)
            self.ok("sensitivity", DRAFT, *text, *types, "--imatrix", matrix, "-o", weighted)
            of = [json.loads(pathlib.Path(path).read_text())["all"]["Q4_0"] for path in (plain, weighted)]
            self.assertLess(of[1], 0.9 * of[0], "weights that count for more are kept better")
            self.refused("sensitivity", DRAFT, *text, *types, "--imatrix", TEXT, "-o", plain, says="importance matrix")


class Quantize(Case):
    def types(self, *words):
        """{type: tensors} of what would be written."""
        with tempfile.TemporaryDirectory() as folder:
            out = self.ok("quantize", DRAFT, os.path.join(folder, "out.gguf"), *words, "--dry-run").out
            self.assertEqual(os.listdir(folder), [])
        return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+) tensors", out, re.M)}

    def test_rules_name_types_by_tensor(self):
        self.assertEqual(self.types("Q8_0"), {"F32": 7, "Q8_0": 22, "all": 29})
        rules = ("--tensor", "ffn_.*=Q5_0", "--tensor", r"blk\.0\..*down=q4_1")
        self.assertEqual(self.types("Q8_0", *rules), {"F32": 7, "Q4_1": 1, "Q5_0": 8, "Q8_0": 13, "all": 29})
        for rule, says in (("ffn", "PATTERN=TYPE"), ("=Q3_K", "PATTERN=TYPE"), ("(=Q3_K", "regular expression"), ("ffn=Q9", "Q9"),
                           ("nothing=Q3_K", "no matrix"), ("ffn=I32", "cannot become I32")):
            self.refused("quantize", DRAFT, "out.gguf", "Q4_K", "--tensor", rule, says=says)

    def test_importance_lessens_divergence(self):
        with tempfile.TemporaryDirectory() as folder:
            matrix, logits, out = (os.path.join(folder, name) for name in ("im.gguf", "logits", "out.gguf"))
            words = ("-f", TEXT, "--ctx", "128", "--chunks", "12")
            self.ok("imatrix", DRAFT, *words, "-o", matrix)
            self.ok("perplexity", DRAFT, *words, "--save-logits", logits)
            found = []
            for more in ((), ("--imatrix", matrix)):
                self.ok("quantize", DRAFT, out, "IQ4_NL", *more)
                found.append(figure(self.ok("perplexity", out, *words, "--against", logits).out, r"mean ([0-9.e-]+)"))
            self.assertLess(found[1], 0.8 * found[0])
            self.refused("quantize", DRAFT, out, "Q4_K", "--imatrix", TEXT, says="not an importance matrix")
            # convert encodes as quantize does.
            checkpoint, converted = os.path.join(folder, "checkpoint"), os.path.join(folder, "converted.gguf")
            self.ok("export", DRAFT, checkpoint)
            self.ok("quantize", DRAFT, out, "Q4_K_M", "--imatrix", matrix)
            self.ok("convert", checkpoint, "-o", converted, "--dtype", "Q4_K_M", "--imatrix", matrix)
            self.ok("verify", converted, "--against", out)
            self.ok("convert", checkpoint, "-o", converted, "--dtype", "Q4_K_M")
            self.refused("verify", converted, "--against", out, says="tensors")
            self.refused("convert", checkpoint, "-o", converted, "--dtype", "Q4_K_M", "--imatrix", TEXT, says="not an importance matrix")
            self.refused("quantize", DEMO, out, "Q8_0", "--imatrix", matrix, says="another model")


class Importance(Case):
    def test_is_written_for_each_matrix(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "imatrix.gguf")
            said = self.ok("imatrix", DEMO, "-f", TEXT, "--chunks", "4", "--ctx", "128", "-o", out).out
            self.assertIn("perplexity", said)
            listed = self.ok("inspect", out, "--tensors").out
            for name in ("blk.0.attn_q.weight.in_sum2", "blk.5.ffn_down_exps.weight.in_sum2", "blk.5.ffn_down_exps.weight.counts"):
                self.assertIn(name, listed)
            self.refused("imatrix", DEMO, "-f", TEXT, "-o", out, "--device", "cuda", says="CPU")


if __name__ == "__main__":
    unittest.main()
