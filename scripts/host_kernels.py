#!/usr/bin/env python3
"""CUDA sources for a host compiler that nvcc does not drive: mingw-w64's.

    host_kernels.py launchers OUT_FOLDER FILE...
        Leaves the bodies of GPU functions out, so that any C++ compiler compiles the rest. A function with __global__ gets an
        empty body: it stands for the kernel. One with __device__, and without __host__, is only declared. All else, and each
        line's number, stays. A file of src/kernels/cuda/X becomes OUT_FOLDER/kernels/cuda/X, a .cu one with .cpp behind its
        name and what registers its kernels at its end. Written only where it changes.
    host_kernels.py assembly HOST.s OBJECT OUT.s
        Adds to what that compiler made of the file the kernels: the image of the GPU's code that nvcc's object for Linux holds,
        beside OUT.s as a .fatbin, and a table of the functions that stand for them and their names in it. A kernel that has no
        such function is an error.
"""
import re
import subprocess
import sys
import tempfile
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


REGISTRATION = """
#include "device/cuda_registration.h"
extern "C" const millrace::device::HostKernel kernels_of_{name}[];
extern "C" const unsigned char image_of_{name}[];
static const millrace::device::KernelRegistration registration_of_{name}(image_of_{name}, kernels_of_{name});
"""


def launchers(out, names):
    for name in names:
        source = Path(name)
        target = out / "kernels/cuda" / (source.name + (".cpp" if source.suffix == ".cu" else ""))
        text = without_bodies(source.read_text(encoding="utf-8"))
        if source.suffix == ".cu":
            text += REGISTRATION.format(name=source.stem)
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def image_of(object_file):
    """The GPU's code, as the driver loads it."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["objcopy", "-O", "binary", "--set-section-flags", ".nv_fatbin=alloc,readonly", "--only-section=.nv_fatbin",
                        object_file, out.name], check=True)
        return Path(out.name).read_bytes()


def strings_of(object_file):
    """What the read-only sections hold of mangled names."""
    with tempfile.TemporaryDirectory() as folder:
        listed = subprocess.run(["objdump", "-h", "-w", object_file], check=True, capture_output=True, text=True).stdout
        names = {line.split()[1] for line in listed.splitlines() if re.match(r"\s*\d+ \.rodata", line)}
        found = set()
        for name in names:
            dump = Path(folder) / "section"
            subprocess.run(["objcopy", f"--dump-section={name}={dump}", object_file, "/dev/null"], check=True)
            found |= set(re.findall(rb"(?<![\w.])_Z\w+(?=\0)", dump.read_bytes()))
        return sorted(name.decode() for name in found)


def folded(name):
    """A mangled name without what the two compilers mangle differently: 64-bit integers are long there and long long here, and
    a namespace without a name has one of the file's."""
    parts, at = [], 0
    for match in re.finditer(r"(\d+)_GLOBAL__N_", name):
        if match.start() < at:
            continue
        digits = match.group(1)
        # Digits before the length belong to what stands in front of it, and a length is at least that of its text.
        while len(digits) > 1 and int(digits) > len(name) - match.end(1):
            digits = digits[1:]
        begin = match.end(1)
        parts += [name[at:begin - len(digits)], "12_GLOBAL__N_1"]
        at = begin + int(digits)
    parts.append(name[at:])
    return "".join(parts).replace("l", "x").replace("m", "y")


def is_variable(name):
    """Names within names and nothing behind them: a function's parameters would be there."""
    at = len("_ZN")
    while name.startswith("_ZN") and (length := re.match(r"\d+", name[at:])):
        at += length.end() + int(length.group())
    return name[at:] == "E"


def assembly(host, object_file, out):
    text = host.read_text()
    functions = {}
    for label in re.findall(r"^(_Z\w+):", text, re.M):
        functions.setdefault(folded(label), []).append(label)
    rows = []
    for name in strings_of(object_file):
        if is_variable(name):  # constants, which no host touches
            continue
        standing = functions.get(folded(name), [])
        if len(standing) != 1:
            sys.exit(f"host_kernels: {len(standing)} functions stand for the kernel {name} of {object_file}")
        rows.append((standing[0], name))
    image = out.with_suffix(".fatbin")
    image.write_bytes(image_of(object_file) if rows else b"\0")  # a file may hold launchers alone
    if rows and image.stat().st_size == 0:
        sys.exit(f"host_kernels: {object_file} holds no GPU code")
    file = out.stem
    table = [text, '\t.section .rdata,"dr"', f"\t.globl kernels_of_{file}", "\t.balign 16", f"kernels_of_{file}:"]
    table += [f"\t.quad {function}, .Lkernel{i}" for i, (function, _) in enumerate(rows)]
    table += ["\t.quad 0, 0"]
    table += [f'.Lkernel{i}: .asciz "{name}"' for i, (_, name) in enumerate(rows)]
    table += ["\t.balign 16", f"\t.globl image_of_{file}", f"image_of_{file}:", f'\t.incbin "{image}"', ""]
    out.write_text("\n".join(table))


def main():
    if sys.argv[1:2] == ["launchers"]:
        launchers(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["assembly"]:
        assembly(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
