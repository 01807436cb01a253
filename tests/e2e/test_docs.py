"""The documents name only paths that are there."""
import json
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = "src|tests|tools|docs|bench|scripts|include|examples|fuzz|models|cmake|packaging|python"


class Docs(unittest.TestCase):
    def test_every_path_that_a_document_names_exists(self):
        for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            for path in re.findall(rf"[`(]((?:{FOLDERS})/[A-Za-z0-9_./-]+)[`)]", document.read_text()):
                with self.subTest(document=document.name, path=path):
                    if "NAME" in path or "ROOM" in path:
                        continue
                    there = (ROOT / path).exists() or list((ROOT / path).parent.glob((ROOT / path).name + ".*"))
                    self.assertTrue(there, "the document names a path that is not there")

    def test_every_environment_variable_is_told(self):
        read = {"HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"}  # by libcurl
        for source in (ROOT / "src").rglob("*.cpp"):
            for call in re.findall(r"\b(?:getenv|environment|variable|envname)\(([^)]*)\)", source.read_text()):
                read |= set(re.findall(r'"([A-Za-z_]+)"', call))
        for source in (ROOT / "python/millrace").glob("*.py"):
            read |= set(re.findall(r'environ\.get\("([A-Z_]+)"', source.read_text()))
        page = (ROOT / "docs/environment.md").read_text()
        told = {name for row in re.findall(r"^\| (`.*?) \|", page, re.M) for name in re.findall(r"`(\w+)`", row)}
        self.assertEqual(told, read)

    def test_every_path_that_the_server_answers_is_told(self):
        answered = set()
        for source in (ROOT / "src/app/server").glob("*.cpp"):
            for verb, raw, plain in re.findall(r'http\.(Get|Post|Put|Delete)\((?:R"\((/.*?)\)"|(?:fmt::format\()?"(/[^"]*)")', source.read_text()):
                path = (raw or plain).replace("(.+)", "NAME").replace("([^/]+)", "ID").replace("{}", "FILE")
                answered.add(f"{verb.upper()} {path}")
        told = set(re.findall(r"`((?:GET|POST|PUT|DELETE) /\S*)`", (ROOT / "docs/api.md").read_text()))
        self.assertEqual(told, answered)

    def test_the_clients_are_those_of_the_lock_file(self):
        packages = json.loads((ROOT / "tests/e2e/clients/package-lock.json").read_text())["packages"]
        asked = set(packages[""]["dependencies"]) - {"ajv", "playwright-core", "zod"}  # the tests' own tools
        rows = re.findall(r"^\| `([^`]+)` \| ([\d.]+) \|", (ROOT / "docs/clients.md").read_text(), re.M)
        self.assertEqual(dict(rows), {name: packages["node_modules/" + name]["version"] for name in asked})

    def test_the_second_witness_was_asked_about_every_checkpoint(self):
        folder = ROOT / "tests/data/reference"
        rows = [line.split(" | ") for line in (folder / "witness.md").read_text().splitlines() if ".gguf | " in line]
        self.assertEqual(sorted({row[0].strip("| ") for row in rows}), sorted(path.name for path in folder.glob("*.gguf")))
        for row in rows:
            with self.subTest(row=row):
                self.assertEqual(row[2], "16 of 16")

    def test_every_launcher_of_a_kernel_is_timed(self):
        bench = "".join(path.read_text() for path in (ROOT / "bench/cuda_kernels").glob("*.cpp"))
        launchers = set()
        for header in (ROOT / "src/kernels/cuda").glob("*.h"):
            for name, first in re.findall(r"^cudaError_t (\w+)\(\s*(?:const )?(\w+)", header.read_text(), re.M):
                launchers.add((name, first if first.endswith("Call") else None))
        self.assertGreater(len(launchers), 40)
        for name, call in sorted(launchers, key=str):
            with self.subTest(launcher=name, call=call):
                self.assertIn(f'"{name}"', bench, "bench/cuda_kernels has no row for it")
                self.assertRegex(bench, rf'(?<!")\b{name}\b(?!")', "bench/cuda_kernels has a row, which does not launch it")
                if call:  # of launchers of one name each
                    self.assertRegex(bench, rf"\b{call}\b", "bench/cuda_kernels has no row for it")


if __name__ == "__main__":
    unittest.main()
