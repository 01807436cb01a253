#!/usr/bin/env python3
"""docs/reference/command-line.md, made of what the program says of itself (--help-all of every verb).

Usage: scripts/make_reference.py PROGRAM   prints the page; `make reference` puts it where it belongs
"""
import collections
import os
import re
import subprocess
import sys
import textwrap
import typing

HEAD = """# Command line
For anyone who looks up a command or an option. `make reference` generates this page from `--help-all`, and a test fails if they differ.
`millrace COMMAND --help` prints the common options, `--help-all` all of them; packages also install `man millrace-COMMAND`.
[Features](features.md) explains what the options are for, and [Quality, files and conversion](http-api.md#on-the-command-line) the commands that
measure quality or convert.

An option's value follows it: `--ram 12G`, or `--ram=12G`. Sizes are decimal (6M is 6,000,000 bytes); write MiB or GiB for binary units.
A model is a name or a GGUF file. `serve --config FILE` reads the same options from a file, one per line. Two other pages list the [environment variables](environment.md) and the [exit codes](../guide/troubleshooting.md#exit-codes).

| command | what it does |
|---|---|
"""
GROUPS = ["Ask", "Models", "Server", "This machine", "More"]


class Entry(typing.NamedTuple):
    names: str       # of a flag "-m, --model", of a word "model"
    value: str       # "TEXT", "INT", "off|auto|on", empty for a switch
    default: str
    about: str


def said_by(program, *words):
    # What is set here is not the program's default.
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MILLRACE_", "OLLAMA_"))}
    return subprocess.run([program, *words], check=True, capture_output=True, text=True, env=bare).stdout


def parts_of(help_text):
    """(title, lines) of each part; a line that goes on with the one before is joined to it."""
    parts = []
    for line in help_text.splitlines():
        if re.fullmatch(r"[A-Z][A-Za-z ]*:", line):
            parts.append((line[:-1], []))
        elif parts and parts[-1][1] and line.startswith(" " * 30):  # more of a description
            parts[-1][1][-1] += " " + line.strip()
        elif parts and re.match(r"  \S", line):
            parts[-1][1].append(line.strip())
        elif parts and parts[-1][1] and line.startswith("      "):
            parts[-1][1][-1] += "  " + line.strip()
    return parts


def as_before(line):
    """A line of CLI11 2.4 (Debian 13), `TEXT [off]  (Env:NAME)`, as 2.3 has it: `TEXT=off (Env:NAME)`."""
    line = re.sub(r"^((?:-\w, ?)?--[\w-]+) \[0\]", r"\1", line)  # a flag that is counted
    line = re.sub(r"((?:TEXT|INT|FLOAT|TYPE|\})\S*) \[([^\]]*)\] ?", r"\1=\2 ", line, count=1)
    return re.sub(r" +\(Env:", " (Env:", line)


def entry_of(line):
    line = as_before(line)
    left, _, about = line.partition("  ")
    if not about:  # a long name, with one blank behind it
        left, about = re.match(r"(\S+(?: [A-Z]{2,}\S*)*) (.*)", line).groups()
    about = about.strip()
    names, _, value = left.replace(", ", ",").partition(" ")
    names = re.sub(r"\{\w+\}", "", names)
    default = ""
    if found := re.search(r" ?\(Env:(\w+)\)", value):
        value, about = value.replace(found.group(), ""), f"{about} (or `{found.group(1)}` of the environment)"
    for word, says in (("Excludes", "not with"), ("Needs", "only with")):
        if found := re.search(rf" ?{word}:((?: --\S+)+)", value):
            value = value.replace(found.group(), "")
            about += f" ({says} {', '.join(f'`{name}`' for name in found.group(1).split())})"
    if value.endswith("REQUIRED"):
        value, default = value.removesuffix("REQUIRED").strip(), "" if "--model" in names else "required"
    if found := re.fullmatch(r"(.*(?:TEXT|INT|FLOAT|TYPE|\}))=(\S+)", value):
        value, default = found.group(1), found.group(2).strip("[]").replace(",", ", ")
    if found := re.search(r":\{(.*)\}", value):
        value = found.group(1).replace(",", "|")
    if found := re.search(r" \(default: ([^()]*)\)", about):
        about, default = about.replace(found.group(), ""), found.group(1)
    return Entry(", ".join(names.split(",")), value, default, about)


def cell(text):
    return text.replace("|", r"\|").replace("<", "&lt;")


def code(text):
    return "`" + text.replace("|", r"\|") + "`"


def row(entry):
    return f"| {code((entry.names + ' ' + entry.value).strip())} | {cell(entry.default)} | {cell(entry.about)} |\n"


def anchor(title):
    return re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")


def page(program):
    whole = said_by(program, "--help-all")
    everywhere = [entry_of(line) for title, lines in parts_of(whole) if title == "Options" for line in lines]
    verbs = {}  # by group: (names, about)
    for title, lines in parts_of(whole):
        if title in GROUPS:
            verbs[title] = [(entry_of(line).names.split(", "), entry_of(line).about) for line in lines]
    if not verbs.get("Ask") or "run" not in verbs["Ask"][0][0]:
        sys.exit("error: cannot read the verbs in --help-all")
    told = {names[0]: said_by(program, names[0], "--help-all") for names, _ in sum(verbs.values(), [])}
    flags = {verb: [(title, entry_of(line)) for title, lines in parts_of(text) if title not in ("Positionals", "Examples") for line in lines]
             for verb, text in told.items()}
    flags = {verb: [(title, entry) for title, entry in all if entry not in everywhere] for verb, all in flags.items()}
    users = collections.defaultdict(list)  # of each flag that is the same in several verbs
    for verb, all in flags.items():
        for pair in all:
            users[pair].append(verb)
    shared = {pair: of for pair, of in users.items() if len(of) > 1}

    out = HEAD
    for title in GROUPS:
        for names, about in verbs.get(title, []):
            out += f"| [{' or '.join(f'`{name}`' for name in names)}](#millrace-{names[0]}) | {cell(about)} |\n"
    out += "\n## For every command\n\n| option | default | what it does |\n|---|---|---|\n" + "".join(map(row, everywhere))
    for title in GROUPS:
        out += f"\n## {title}\n"
        for names, about in verbs.get(title, []):
            verb, text = names[0], told[names[0]]
            usage = re.search(r"^Usage: (.*)$", text, re.M).group(1)
            shown = re.search(r"^Examples:\n((?:  .*\n)+)", text, re.M)
            lines = [usage, *([""] + textwrap.dedent(shown.group(1)).splitlines() if shown else [])]
            out += f"\n### millrace {verb}\n{cell(about)}.\n\n```\n" + "\n".join(lines) + "\n```\n"
            named = [entry_of(line) for part, lines in parts_of(text) if part == "Positionals" for line in lines]
            if any("--model" in entry.names for _, entry in flags[verb]):  # one of both
                named = [entry._replace(default=entry.default + ", here or by -m") if entry.names == "model" and entry.default else entry
                         for entry in named]
            own = named + [entry for title, entry in flags[verb] if (title, entry) not in shared]
            if own:
                out += "\n| argument or option | default | what it does |\n|---|---|---|\n" + "".join(map(row, own))
            by_title = collections.defaultdict(list)
            for part, entry in filter(shared.__contains__, flags[verb]):
                by_title[name_of(part)].append(code(entry.names.split(", ")[-1]))
            if by_title:
                out += "\nShared with other commands:\n"
                out += "".join(f"- [{name}](#{anchor(name)}): {', '.join(names)}\n" for name, names in by_title.items())
    out += "\n## Options that commands share\n"
    for part in dict.fromkeys(part for part, _ in shared):
        out += f"\n### {name_of(part)}\n\n| option | default | what it does |\n|---|---|---|\n"
        out += "".join(row(entry) for other, entry in shared if other == part)
    return out


def name_of(part):
    return "Other options" if part == "Options" else f"{part}: options"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.stdout.write(page(sys.argv[1]))
