#!/usr/bin/env python3
"""clang-tidy over every file of src/ and tools/ that the lint preset compiles; anything it finds is an error.

Checks walk everything that a translation unit includes, and the libraries' headers are far larger than any file of ours:
one file at a time, most of the work goes into them. So the texts of files that are compiled alike are put together into
one unit, two dozen at most. (Including them would hide them: the analyzer walks no paths of what is included.) Which
go together says scripts/units.py; where some turn out not to, each is looked at alone.

usage: scripts/tidy.py BUILD_FOLDER
"""
import collections
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

from units import units_of

FILES = 24  # of a unit at most


def flags_of(entry):
    """How a file is compiled, without its name and its output's: what all of its unit must share, and where it looks for
    headers and what is defined, which its unit can have more of."""
    words = iter(shlex.split(entry["command"]))
    alike, more = [], []
    for word in words:
        if word in ("-o", "-MT", "-MF"):
            next(words)
        elif word == "-isystem":
            more.append((word, next(words)))
        elif word.startswith(("-I", "-D")):
            more.append((word,))
        elif word not in ("-c", "-MD", entry["file"]) and not word.endswith("/ccache"):
            alike.append(word)
    return tuple(alike), more


def entries_in_units(entries):
    """Lists of entries that are compiled alike and go together, the longest first."""
    by_flags = collections.defaultdict(dict)
    for entry in entries:
        by_flags[flags_of(entry)[0]][entry["file"]] = entry
    units = [[alike[path] for path in unit] for alike in by_flags.values() for unit in units_of(sorted(alike), FILES)]
    return sorted(units, key=len, reverse=True)


def write_units(units, folder):
    """A file for each unit, and the compilation database that clang-tidy finds it in; returns the files. What a unit
    is made of lies one behind the other, each file whole: place_of() finds a line's."""
    os.makedirs(folder, exist_ok=True)
    paths, database = [], []
    for number, unit in enumerate(units):
        path = f"{folder}/unit_{number}.cpp"
        with open(path, "w") as file:
            for entry in unit:
                file.writelines(lines_of(entry))
        more = dict.fromkeys(flag for entry in unit for flag in flags_of(entry)[1])
        words = [*flags_of(unit[0])[0], *(word for flag in more for word in flag), "-c", path]
        database.append({"directory": unit[0]["directory"], "file": path, "arguments": words})
        paths.append(path)
    with open(f"{folder}/compile_commands.json", "w") as file:
        json.dump(database, file, indent=1)
    return paths


def lines_of(entry):
    with open(entry["file"]) as file:
        return file.readlines()


def place_of(unit, line):
    """FILE:LINE of a unit's line."""
    for entry in unit:
        count = len(lines_of(entry))
        if line <= count:
            return f'{entry["file"]}:{line}'
        line -= count
    return f"line {line}"


def tidy(folder, *paths):
    run = subprocess.run(["clang-tidy", "-p", folder, "--quiet", "--config-file=.clang-tidy", *paths],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return run.returncode, run.stdout


def check(build, folder, unit, path):
    """What is wrong in a unit, "" where nothing is."""
    status, said = tidy(folder, path)
    if status != 0 and len(unit) > 1 and "clang-diagnostic-error" in said:
        if "-v" in sys.argv:
            print("apart:", said[:600], *(entry["file"] for entry in unit), flush=True)
        status, said = tidy(build, *(entry["file"] for entry in unit))
    said = re.sub(re.escape(path) + r":(\d+)", lambda match: place_of(unit, int(match[1])), said)
    return said or "clang-tidy failed\n" if status != 0 else ""


def main():
    build = os.path.abspath(sys.argv[1])
    with open(f"{build}/compile_commands.json") as file:
        known = {entry["file"]: entry for entry in json.load(file)}
    ours = subprocess.run(["git", "ls-files", "src/*.cpp", "tools/*.cpp"], check=True, capture_output=True, text=True)
    # What this machine does not build (the GPU part, where there is no nvcc) cannot be checked here either.
    entries = [known[os.path.abspath(name)] for name in ours.stdout.split() if os.path.abspath(name) in known]
    units = entries_in_units(entries)
    folder = f"{build}/tidy"
    paths = write_units(units, folder)
    failed = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for said in pool.map(lambda pair: check(build, folder, *pair), zip(units, paths)):
            if said:
                failed = True
                sys.stdout.write(said)
                sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
