"""The tables of docs/clients.md and the lists below them, made of what ran: MILLRACE_WRITE_CLIENTS=1 writes them, without it a
difference fails the test."""
import os
import textwrap

from harness import ROOT

PAGE = ROOT / "docs/clients.md"
PASSED, REFUSED = "What passed:", "What was refused, in the server's words:"


def row(name, version, place, tally):
    """tally: {"passed": [what], "refused": [{"what", "why"}]}"""
    passed, refused = len(tally["passed"]), len(tally["refused"])
    return [f"| `{name}` | {version} | {place} | {passed + refused} | {passed} | {refused} |"]


def wrapped(text, indent):
    return textwrap.wrap(text, 120, initial_indent=indent + "- ", subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False)


def passed_item(name, tally):
    return wrapped(f"`{name}`: {', '.join(tally['passed'])}", "")


def refused_item(name, tally):
    """Lines of the list, one for each of the server's words; none where nothing was refused."""
    reasons = {}
    for one in tally["refused"]:
        reasons.setdefault(one["why"], []).append(one["what"])
    lines = [line for why, what in reasons.items() for line in wrapped(f"{', '.join(what)}: `{why}`", "  ")]
    return [f"- `{name}`:", *lines] if lines else []


def block_end(lines, begin):
    """A table or a list ends before the next empty line."""
    return next((i for i in range(begin, len(lines)) if not lines[i]), len(lines))


def item_at(lines, begin, first):
    """Where the item that begins with this is, or would come to stand: (begin, end)."""
    end = block_end(lines, begin)
    at = next((i for i in range(begin, end) if lines[i].startswith(first)), end)
    return at, next((i for i in range(at + 1, end) if not lines[i].startswith("  ")), end) if at < end else end


def hold_row(case, heading, name, version, place, tally):
    """What stands of one client in the table whose first column has this heading, and in the two lists below it."""
    lines = PAGE.read_text().splitlines()
    table = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    write = os.environ.get("MILLRACE_WRITE_CLIENTS")
    for title, first, wanted in ((None, f"| `{name}` |", row(name, version, place, tally)), (PASSED, f"- `{name}`:", passed_item(name, tally)),
                                 (REFUSED, f"- `{name}`:", refused_item(name, tally))):
        if title is REFUSED and REFUSED not in lines[table:]:  # nothing was, by any of them
            if not wanted:
                continue
            end = block_end(lines, lines.index(PASSED, table) + 2)
            lines[end:end] = ["", REFUSED, ""]
        # Below the table's heading and its rule, or the list's title and an empty line.
        begin, end = item_at(lines, (lines.index(title, table) if title else table) + 2, first)
        if write:
            lines[begin:end] = wanted
        else:
            case.assertEqual(lines[begin:end], wanted, "docs/clients.md tells otherwise: run `make clients`")
    if write:
        PAGE.write_text("\n".join(lines) + "\n")
