#!/usr/bin/env python3
"""Counts how far the house is from its plan (docs/architecture.md), and prints each number beside its goal.

    scripts/house.py            the table; exit status 1 where a number that had reached its goal has left it
    scripts/house.py --where    the files behind each number, too

A goal that is not reached yet fails nothing: the number is there to be seen to fall. Which goals are reached stands in
REACHED; take a name into it with the change that reaches the goal.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".c"}

# Headers of POSIX and Linux. Those of C and of C++ that every system has (csignal's names are two) are not among them.
POSIX = re.compile(
    r"^\s*#\s*include\s+<((?:arpa|linux|net|netinet|sys)/\w+\.h|(?:dirent|dlfcn|elf|fcntl|glob|grp|ifaddrs|link|malloc|netdb|poll"
    r"|pthread|pwd|sched|semaphore|signal|spawn|strings|syslog|termios|ucontext|unistd|wordexp)\.h|csignal)>", re.M)
# CUDA's headers, ours that only CUDA's backend has, and CUDA's names.
CUDA = re.compile(r"#\s*include\s+(?:<(?:cuda|cufile|nvml|nvtx)\w*|\"(?:device/cuda_|kernels/cuda/))|\bcuda[A-Z]\w*|\bCU(?:file|device|event|stream)\w*")
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.S)
LINE_COMMENT = re.compile(r"//[^\n]*")
STRUCT = re.compile(r"^struct (\w*Options)\b[^;{]*\{\n(.*?)^\};", re.M | re.S)
PLANNING = re.compile(r"^(?:residency/(?:plan\w*|homes\w*|predict\w*)|engine/(?:setup\w*|\w*_plan|\w*_setup|limits\w*))\.(?:h|cpp)$")
WORDS = ("expert", "draft", "shard")

REACHED = frozenset()


class Row:
    def __init__(self, name, what, goal, number, files=()):
        self.name, self.what, self.goal, self.number, self.files = name, what, goal, number, list(files)


def read(path):
    return path.read_text(errors="replace")


def code_of(text):
    return LINE_COMMENT.sub("", BLOCK_COMMENT.sub("", text))


def fields(body):
    """The data members of a struct's body."""
    body = code_of(body)
    for _ in range(8):  # inner types and bodies, from the inside out
        body = re.sub(r"\{[^{}]*\}", "", body)
    count = 0
    for statement in body.split(";"):
        statement = " ".join(statement.split())
        if not statement or re.match(r"(using|friend|static|enum|struct|class|template|typedef)\b", statement):
            continue
        head = re.split(r"=", statement)[0]
        if "(" in re.sub(r"<[^=;]*>", "", head):
            continue  # a function
        for _ in range(4):
            statement = re.sub(r"<[^<>]*>|\([^()]*\)", "", statement)
        count += statement.count(",") + 1
    return count


def largest_options(files):
    found = [(fields(body), name, path) for path, text in files.items() for name, body in STRUCT.findall(text)]
    return max(found, default=(0, "", ""))


def rows():
    src = ROOT / "src"
    files = {str(path.relative_to(src)): read(path) for path in sorted(src.rglob("*")) if path.suffix in SOURCES}
    at = lambda *rooms: [name for name in files if not name.startswith(rooms)]
    posix = [name for name in at("base/os/", "storage/", "device/") if POSIX.search(files[name])]
    cuda = [name for name in at("device/", "kernels/") if CUDA.search(code_of(files[name]))]
    named = [name for name in at("device/", "kernels/") if pathlib.Path(name).name.startswith("cuda_")]
    lines = sum(text.count("\n") for text in files.values())
    count, options, where = largest_options(files)
    planning = {name: files[name].count("\n") for name in files if PLANNING.match(name)}
    found = [
        Row("posix", "files outside base/os, storage/ and device/ that include POSIX headers", 0, len(posix), posix),
        Row("cuda", "files outside device/ and kernels/ that include CUDA headers or use its names", 0, len(cuda), cuda),
        Row("cuda_files", "files named cuda_* outside device/ and kernels/", 0, len(named), named),
        Row("lines", "lines of src/", None, lines),
    ]
    for word, goal in zip(WORDS, (90, 45, 12)):
        knowing = [name for name, text in files.items() if re.search(word, text, re.I)]
        found.append(Row(word, f"source files that know the word '{word}'", goal, len(knowing), knowing))
    found.append(Row("options", f"fields of the largest options struct ({options} in {where})", 12, count))
    found.append(Row("planning", "lines of planning and assembling", 2600, sum(planning.values()),
                     [f"{lines:5} {name}" for name, lines in planning.items()]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--where", action="store_true", help="name the files behind each number")
    arguments = parser.parse_args()
    worse = []
    print(f"{'today':>8}  {'goal':>6}  what is counted")
    for row in rows():
        goal = "fewer" if row.goal is None else f"{row.goal:,}"
        print(f"{row.number:>8,}  {goal:>6}  {row.what}")
        if arguments.where:
            print("".join(f"{'':18}{name}\n" for name in row.files), end="")
        if row.name in REACHED and row.number > row.goal:
            worse.append(row)
    for row in worse:
        print(f"house: {row.number:,} {row.what}; it was {row.goal:,} at most and shall stay so", file=sys.stderr)
        print("".join(f"  {name}\n" for name in row.files), end="", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
