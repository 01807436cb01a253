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


if __name__ == "__main__":
    unittest.main()
