"""The documents name only paths that are there."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = "src|tests|tools|docs|bench|scripts|include|examples|fuzz|models|cmake"


class Docs(unittest.TestCase):
    def test_every_path_that_a_document_names_exists(self):
        for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            for path in re.findall(rf"[`(]((?:{FOLDERS})/[A-Za-z0-9_./-]+)[`)]", document.read_text()):
                with self.subTest(document=document.name, path=path):
                    if "NAME" in path or "ROOM" in path:
                        continue
                    there = (ROOT / path).exists() or list((ROOT / path).parent.glob((ROOT / path).name + ".*"))
                    self.assertTrue(there, "the document names a path that is not there")

    def test_the_second_witness_was_asked_about_every_checkpoint(self):
        folder = ROOT / "tests/data/reference"
        rows = [line.split(" | ") for line in (folder / "witness.md").read_text().splitlines() if ".gguf | " in line]
        self.assertEqual(sorted({row[0].strip("| ") for row in rows}), sorted(path.name for path in folder.glob("*.gguf")))
        for row in rows:
            with self.subTest(row=row):
                self.assertEqual(row[2], "16 of 16")


if __name__ == "__main__":
    unittest.main()
