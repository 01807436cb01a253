#!/usr/bin/env python3
"""Checks a SPIR-V module and writes its words as a constant NAME that a C++ file includes.

    scripts/embed_spirv.py NAME.spv NAME.inc

Every product, sum and difference of floats has to carry NoContraction, which GLSL's `precise` gives it: without that a
driver may make one rounding of two, and the module is refused.
"""
import pathlib
import struct
import sys

MAGIC = 0x07230203
HEADER_WORDS = 5
OP_NAME, OP_DECORATE, NO_CONTRACTION = 5, 71, 42
ARITHMETIC = {129: "OpFAdd", 131: "OpFSub", 133: "OpFMul", 142: "OpVectorTimesScalar", 148: "OpDot"}


def instructions(words):
    at = HEADER_WORDS
    while at < len(words):
        count, op = words[at] >> 16, words[at] & 0xffff
        if count == 0 or at + count > len(words):
            raise ValueError("its instructions do not end with it")
        yield op, words[at + 1:at + count]
        at += count


def contractible(words):
    """The arithmetic that a driver might contract: a list of (operation, id)."""
    exact = {operands[0] for op, operands in instructions(words) if op == OP_DECORATE and operands[1] == NO_CONTRACTION}
    return [(ARITHMETIC[op], operands[1]) for op, operands in instructions(words)
            if op in ARITHMETIC and operands[1] not in exact]


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    module, target = map(pathlib.Path, sys.argv[1:])
    data = module.read_bytes()
    words = struct.unpack(f"<{len(data) // 4}I", data[:len(data) // 4 * 4])
    if len(data) % 4 != 0 or len(words) < HEADER_WORDS or words[0] != MAGIC:
        print(f"embed_spirv: {module} is no SPIR-V module", file=sys.stderr)
        return 1
    loose = contractible(words)
    if loose:
        listed = ", ".join(f"{op} %{number}" for op, number in loose[:8])
        print(f"embed_spirv: {module.name} has {len(loose)} operations that a driver may contract ({listed}); "
              f"make their results `precise` (spirv-dis {module} shows them)", file=sys.stderr)
        return 1
    lines = "".join("    " + ", ".join(f"{word:#x}" for word in words[i:i + 16]) + ",\n" for i in range(0, len(words), 16))
    target.write_text(f"constexpr std::uint32_t {module.stem}[] = {{\n{lines}}};\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
