#!/usr/bin/env python3
"""Holds every #include to the ranks of the house: a folder of src/ includes only itself and folders of lower rank.

Rooms of one rank do not include each other, except where docs/internals/architecture.md says so (SIBLINGS).
Prints each offence with its place and exits with 1; prints nothing and exits with 0 when the house is in order.
"""
import pathlib
import re
import sys

RANKS = {
    "base": 0,
    "device": 1, "link": 1, "tensor": 1, "image": 1,
    "storage": 2, "kernels": 2,
    "modelfile": 3,
    "text": 4, "vision": 4, "residency": 4, "kv": 4,
    "exec": 5,
    "model": 6,
    "engine": 7, "convert": 7,
    "app": 8,
}
# kv's blocks are granted by residency's Budget: the one look across a floor.
SIBLINGS = {("kv", "residency")}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent / "src"
    offences = []
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        room = path.relative_to(root).parts[0]
        if room not in RANKS:
            offences.append(f"{path}: folder '{room}' has no rank; give it one in scripts/check_ranks.py")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1).split("/")[0]
            if target not in RANKS:
                offences.append(f"{path}:{number}: includes \"{match.group(1)}\"; write the path from src/")
            elif target != room and RANKS[target] >= RANKS[room] and (room, target) not in SIBLINGS:
                offences.append(f"{path}:{number}: {room} (rank {RANKS[room]}) includes {target} (rank {RANKS[target]})")
    print("\n".join(offences), end="\n" if offences else "")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
