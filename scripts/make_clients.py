#!/usr/bin/env python3
"""The tables of docs/reference/clients.md, made of tests/e2e/clients/results.json, where tests/e2e/test_clients.py and test_agents.py
wrote what ran.

Usage: scripts/make_clients.py   prints the page with its tables made anew; `make clients` puts it where it belongs
"""
import json
import pathlib
import re
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs/reference/clients.md", ROOT / "tests/e2e/clients/results.json"
BLOCK = re.compile(r"(<!-- made of results.json: (.*?) -->\n)(.*?)(<!-- end -->\n)", re.S)


def grouped(entries):
    """{why: [what]} in the order of their first appearance."""
    reasons = {}
    for entry in entries:
        reasons.setdefault(entry["why"], []).append(entry["what"])
    return reasons


def fails(ran):
    return "; ".join(f"{', '.join(what)}: {why}" for why, what in grouped(ran["failed"]).items())


def share(passed, failed):
    return f"{passed} / {passed + failed}"


def table(heading, clients):
    lines = [f"| {heading} | version | base URL | right / tried | refused | what fails, and why |", "|---|---|---|---|---|---|"]
    for name, ran in clients.items():
        lines.append(f"| `{name}` | {ran['version']} | {ran['base_url']} | {share(len(ran['passed']), len(ran['failed']))} | {len(ran['refused'])} | {fails(ran)} |")
    sums = [sum(len(ran[what]) for ran in clients.values()) for what in ("passed", "failed", "refused")]
    return [*lines, f"| all | | | {share(sums[0], sums[1])} | {sums[2]} | |"]


def shown(heading, clients):
    """Of who shows pictures, how."""
    return [f"| {heading} | version | base URL | the picture as | what fails, and why |", "|---|---|---|---|---|",
            *(f"| `{name}` | {ran['version']} | {ran['base_url']} | {', '.join(ran['passed'])} | {fails(ran)} |" for name, ran in clients.items())]


def refusals(clients):
    lines = []
    for name, ran in clients.items():
        if ran["refused"]:
            told = f"- `{name}`: {', '.join(entry['what'] for entry in ran['refused'])}"
            lines += textwrap.wrap(told, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return ["", "Refused in words:", "", *lines] if lines else []


def page():
    results = json.loads(RESULTS.read_text())

    def made(block):
        clients = results.get(block[2], {})
        lines = (shown if block[2].startswith("pictures by ") else table)(block[2], clients)
        return block[1] + "\n".join(["", *lines, *refusals(clients), ""]) + "\n" + block[4]

    return BLOCK.sub(made, PAGE.read_text())


if __name__ == "__main__":
    print(page(), end="")
