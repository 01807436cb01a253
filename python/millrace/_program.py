"""The command `millrace` of a wheel: the program that lies in the package."""
import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).with_name("bin") / "millrace"
    if not program.exists():
        sys.exit("millrace: this Python package was installed without the program. Install a wheel (pip install millrace-llm), "
                 "or build the program from a checkout with `make`.")
    os.execv(program, [str(program), *sys.argv[1:]])
