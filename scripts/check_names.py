#!/usr/bin/env python3
"""No two types of one full name: the linker keeps one of what templates make of them, for both. Exits with 1 and a line for each."""
import collections
import pathlib
import re
import subprocess
import sys

NAMESPACE = re.compile(r"\s*(?:inline )?namespace ([\w:]*)\s*\{(?!\s*\})")
END = re.compile(r"\}\s*//\s*namespace")
TYPE = re.compile(r"(?:template\s*<.*>\s*)?(?:struct|class|union|enum class|enum)\s+(?:(?:MR_\w+|alignas)(?:\([^)]*\))?\s+)?(\w+)(?!\w|::)[^;]*(?:\{|$)")

root = pathlib.Path(__file__).resolve().parent.parent
files = subprocess.run(["git", "ls-files", *(f"{room}/*.{kind}" for room in ("src", "tools") for kind in ("h", "cpp", "cuh", "cu"))],
                       cwd=root, capture_output=True, text=True, check=True).stdout.split()
places = collections.defaultdict(set)
for name in files:
    spaces = []
    for line in (root / name).read_text().splitlines():
        if opened := NAMESPACE.match(line):
            spaces.append(opened[1] or f"(unnamed, {name})")
        elif END.match(line):
            if spaces:
                spaces.pop()
        elif spaces and (found := TYPE.match(line)):  # at the line's begin: of the namespace, not of a class
            places["::".join([*spaces, found[1]])].add(name)
twice = {name: sorted(where) for name, where in places.items() if len(where) > 1}
for name, where in sorted(twice.items()):
    print(f"lint: {name} is defined in {' and '.join(where)}: give one of them another name", file=sys.stderr)
sys.exit(1 if twice else 0)
