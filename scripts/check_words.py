#!/usr/bin/env python3
"""Fails where a document or a message of the program uses a word or an opening that hides who does what.

Documents: README.md, CONTRIBUTING.md and docs/, but for the diary. Messages: the string literals of src/, the page's words in
English, and those of the Python and Go packages.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BANNED = re.compile(r"\btells\b|\bstands? in\b|\bwhat there is\b|\bat home\b|\bnobody's\b|\blikewise\b|\bwhoever\b|\bwho guesses\b|\bsays so\b"
                    r"|\bit is thought that\b|^(?:- |\| )?(?-i:Of) ", re.I)
DIARY = {"docs/internals/notebook.md"}  # a diary, which stays as it was written
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def documents():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if str(page.relative_to(ROOT)) not in DIARY]


def in_document(text):
    """(line, words) of each finding. Code blocks hold what programs print, whose messages are checked where they are made."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        code ^= line.startswith("```")
        if not code and (found := BANNED.search(line)):
            yield number, found[0]


def in_source(text):
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("//", "*", "#include")):
            continue
        for literal in LITERAL.findall(line):
            if found := BANNED.search(literal):
                yield number, found[0]


def packages():
    """The files whose text people see beside the program's own."""
    return [ROOT / "src/app/web/words-en.js", *sorted((ROOT / "python").rglob("*.py")), *sorted((ROOT / "go").rglob("*.go"))]


def in_words(text):
    """As in_source(), with literals in either kind of quotes."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("//", "#")):
            continue
        for literal in re.findall(r"'((?:[^'\\]|\\.)*)'", line) + LITERAL.findall(line):
            if found := BANNED.search(literal):
                yield number, found[0]


def findings():
    for page in documents():
        yield from ((page.relative_to(ROOT), *found) for found in in_document(page.read_text()))
    for source in sorted((ROOT / "src").rglob("*")):
        if source.suffix in (".h", ".cpp", ".cu", ".cuh"):
            yield from ((source.relative_to(ROOT), *found) for found in in_source(source.read_text()))
    for file in packages():
        yield from ((file.relative_to(ROOT), *found) for found in in_words(file.read_text()))


def main():
    found = list(findings())
    for path, number, words in found:
        print(f"{path}:{number}: {words.strip()!r}: write who does what", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
