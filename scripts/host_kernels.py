#!/usr/bin/env python3
"""Leaves the bodies of GPU functions out of CUDA sources, so that any C++ compiler compiles the rest: the launchers.

A function with __global__ gets an empty body: it stands for the kernel. One with __device__, and without __host__, is only
declared. All else, and each line's number, stays.

Usage: host_kernels.py OUT_FOLDER FILE...: a file of src/kernels/cuda/X becomes OUT_FOLDER/kernels/cuda/X, a .cu one with .cpp
behind its name. Written only where it changes.
"""
import re
import sys
from pathlib import Path

# What is no code, so that braces and quotes in it are not counted.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
MARK = re.compile(r"\b__(?:global|device)__\b")
CLOSED_BY = {"(": ")", "{": "}", "[": "]"}


def blanked(text):
    """The text with spaces for what is no code."""
    # 1'000 and 0x1p'0 begin no character.
    text = re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", " ", text)
    return NO_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def end_of(code, at):
    """Behind the bracket that closes the one at `at`."""
    stack = []
    for i in range(at, len(code)):
        if code[i] in CLOSED_BY:
            stack.append(CLOSED_BY[code[i]])
        elif stack and code[i] == stack[-1]:
            stack.pop()
            if not stack:
                return i + 1
    raise SystemExit(f"host_kernels: a bracket is not closed: {code[at:at + 80]!r}")


def body_of(code, mark):
    """(begin, end) of the body of the function whose specifiers hold the mark; None: it is none, or has no body."""
    at, parameters = mark, False
    begin = None  # of what follows the parameters: specifiers, a constructor's members, or the body
    while at < len(code):
        c = code[at]
        if c == ";":
            return None
        if c == "=" and not parameters:
            return None  # a variable
        if c == "(":
            word = re.search(r"(\w+)\s*$", code[max(0, at - 60):at])
            at = end_of(code, at)
            if word is None or word.group(1) not in ("__launch_bounds__", "__align__", "decltype", "alignas"):
                if not parameters:
                    begin = at
                parameters = True
            continue
        if c == "{":
            if not parameters:
                return None
            end = end_of(code, at)
            rest = re.match(r"\s*(,|\{)", code[end:])
            if rest is not None and ":" in code[begin:at].replace("::", ""):  # a member's braces
                at = end
                continue
            colon = re.search(r"(?<!:):(?!:)", code[begin:at])
            return (begin + colon.start() if colon else at), end
        at += 1
    return None


def without_bodies(text):
    code = blanked(text)
    parts, done = [], 0
    for mark in MARK.finditer(code):
        if mark.start() < done:
            continue
        line = code.rfind("\n", 0, mark.start()) + 1
        if code[line:mark.start()].lstrip().startswith("#"):
            continue
        before = code[max(code.rfind(c, 0, mark.start()) for c in ";}{") + 1:mark.start()]
        body = body_of(code, mark.start())
        if body is None:
            continue
        specifiers = before + code[mark.start():body[0]]
        if re.search(r"\b__host__\b", specifiers):
            continue
        lines = "\n" * text.count("\n", body[0], body[1])
        parts += [text[done:body[0]], "{}" if "__global__" in specifiers else ";", lines]
        done = body[1]
    parts.append(text[done:])
    return "".join(parts)


def main():
    out = Path(sys.argv[1])
    for name in sys.argv[2:]:
        source = Path(name)
        target = out / "kernels/cuda" / (source.name + (".cpp" if source.suffix == ".cu" else ""))
        text = without_bodies(source.read_text(encoding="utf-8"))
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
