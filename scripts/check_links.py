#!/usr/bin/env python3
"""Fails where a link of a Markdown file in the repository leads to a file or a heading that does not exist.

Links to other sites are not followed: a check must give the same answer without a network.
"""
import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]*)\)|(?:src|srcset|href)=\"([^\"]*)\"")
OTHER_SITE = re.compile(r"[a-z][a-z+.-]*:")


def without_code(text):
    """The text without code blocks and code spans, with as many lines as before."""
    text = CODE_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    return re.sub(r"`[^`\n]*`", "", text)


@functools.cache
def anchors(path):
    """The anchors of a page's headings, as forges make them."""
    found, text = {}, CODE_BLOCK.sub("", path.read_text())
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # a link in a heading counts by its words
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = found.get(anchor, -1) + 1
        found[anchor] = again
        if again:
            found[f"{anchor}-{again}"] = 0
    return found | {name: 0 for name in re.findall(r'\bid="([^"]+)"', text)}


def broken(path):
    """(line, target, what is wrong) of each bad link."""
    for number, line in enumerate(without_code(path.read_text()).split("\n"), 1):
        for match in LINK.finditer(line):
            target = match[1] or match[2]
            if not target or OTHER_SITE.match(target):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            if not file.exists():
                yield number, target, "there is no such file"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                yield number, target, f"{file.relative_to(ROOT)} has no such heading"


def main():
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    pages = [path for name in files if name and (path := ROOT / name).exists() and not name.startswith("bench/results/")]  # their links are those of the pages made of them
    failed = False
    for path in pages:
        for number, target, why in broken(path):
            print(f"{path.relative_to(ROOT)}:{number}: {target}: {why}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
