"""What published clients did, in tests/e2e/clients/results.json, of which scripts/make_clients.py makes the tables of docs/reference/clients.md.
MILLRACE_WRITE_CLIENTS=1 writes what ran; without it a difference fails the test."""
import json
import os

from harness import ROOT

SHOWN = "pictures by "  # with it begin the headings of the tables of who shows pictures
RESULTS = ROOT / "tests/e2e/clients/results.json"


def hold_row(case, heading, name, version, place, tally):
    """What is kept of one client of the table whose first column has this heading. tally: {"passed": [what], "refused": [{"what", "why"}],
    "failed": [{"what", "why"}]}; refused is what Millrace does not serve, in the server's words, failed what should pass and does not."""
    ran = {"version": version, "base_url": place, "passed": tally["passed"], "refused": tally["refused"], "failed": tally.get("failed", [])}
    results = json.loads(RESULTS.read_text())
    if os.environ.get("MILLRACE_WRITE_CLIENTS"):
        results.setdefault(heading, {})[name] = ran
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    else:
        case.assertEqual(results.get(heading, {}).get(name), ran, "tests/e2e/clients/results.json differs: run `make clients`")
