"""The tables of docs/clients.md, made of what ran: MILLRACE_WRITE_CLIENTS=1 writes them, without it a difference fails the test."""
import os

from harness import ROOT

PAGE = ROOT / "docs/clients.md"


def cell(text):
    return text.replace("|", "\\|")


def row(name, version, place, tally):
    """tally: {"passed": [what], "refused": [{"what", "why"}]}"""
    passed, refused = tally["passed"], tally["refused"]
    reasons = {}
    for one in refused:
        reasons.setdefault(one["why"], []).append(one["what"])
    why = "; ".join(f"{', '.join(what)} (`{why}`)" for why, what in reasons.items())
    told = [f"`{name}`", version, place, str(len(passed) + len(refused)), f"{len(passed)}: {', '.join(passed)}",
            f"{len(refused)}: {why}" if refused else "0"]
    return f"| {' | '.join(map(cell, told))} |"


def hold_row(case, heading, name, version, place, tally):
    """The row of one client in the table whose first column has this heading."""
    wanted = row(name, version, place, tally)
    lines = PAGE.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2  # below the heading and its rule
    end = next((i for i in range(begin, len(lines)) if not lines[i].startswith("|")), len(lines))
    at = next((i for i in range(begin, end) if lines[i].startswith(f"| `{name}` |")), None)
    if os.environ.get("MILLRACE_WRITE_CLIENTS"):
        if at is None:
            lines.insert(end, wanted)
        else:
            lines[at] = wanted
        PAGE.write_text("\n".join(lines) + "\n")
    else:
        case.assertEqual(lines[at] if at is not None else None, wanted, "docs/clients.md tells otherwise: run `make clients`")
