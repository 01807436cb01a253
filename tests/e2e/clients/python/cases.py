"""How a client's cases are written, and run: python CLIENT.py BASE_URL MODEL prints a line of JSON, what passed and what did not.

A case judges the protocol and what a request asked to be kept, not what the small model knows."""
import asyncio
import collections.abc
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import traceback
import typing

BASE, MODEL, *REST = sys.argv[1:]
V1 = BASE + "/v1"
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
ASKED = [{"role": "user", "content": QUESTION}]
STORY = [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["city", "count"], "additionalProperties": False}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"], "additionalProperties": False}
FUNCTION = {"name": "weather", "description": "The weather of a city", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="  # a PNG of one pixel
PICTURE = "data:image/png;base64," + DOT

LOOP = asyncio.new_event_loop()  # one for all cases: clients keep their connections
asyncio.set_event_loop(LOOP)


class Row(typing.NamedTuple):
    name: str
    call: typing.Callable
    checks: tuple
    words: str | None = None
    fails: str | None = None


def ran(*words, folder=None, env=None, asked=None):
    """What a program of the environment prints; an error with what it said where it fails."""
    program = pathlib.Path(sys.executable).parent / words[0]
    done = subprocess.run([program, *map(str, words[1:])], cwd=folder, input=asked or "", capture_output=True, text=True, timeout=900, env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise RuntimeError(f"{words}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return done.stdout


def passes(name, call, *checks, fails=None):
    """The call gives a value of which each check is true. `fails`: why it does not, where the fault is not the server's."""
    return Row(name, call, checks, fails=fails)


def refuses(name, call, words):
    """The client raises the error that the server's refusal is to it; these words stand in it."""
    return Row(name, call, (), words=words)


async def finished(value):
    """What an awaitable or an asynchronous generator comes to."""
    value = await value if inspect.isawaitable(value) else value
    return [one async for one in value] if isinstance(value, collections.abc.AsyncIterator) else value


def value_of(call):
    """What the call gives; streams as the list of their parts."""
    value = call()
    if inspect.isawaitable(value) or isinstance(value, collections.abc.AsyncIterator):
        value = LOOP.run_until_complete(finished(value))
    return list(value) if isinstance(value, collections.abc.Iterator) else value


def wrong_with(row):
    """Why the row did not come out as it says, else None; and the server's words where it refused."""
    try:
        value = value_of(row.call)
    except Exception as problem:
        if row.words is None:
            return "".join(traceback.format_exception(problem))[-3000:], None
        status = getattr(problem, "status_code", None) or getattr(getattr(problem, "response", None), "status_code", None)
        text = re.sub(r"\s+", " ", str(problem))
        if status is not None and status not in (400, 404, 405) or not re.search(row.words, text):
            return f"refused with {status} in other words: {text[:500]}", None
        return None, row.words
    if row.words is not None:
        return f"it was not refused but gave {str(value)[:500]}", None
    for number, check in enumerate(row.checks, 1):
        try:
            good = check(value)
        except Exception as problem:
            return f"check {number} raises of {str(value)[:1500]}: " + "".join(traceback.format_exception(problem))[-1500:], None
        if not good:
            return f"check {number} is not true ({good!r}) of {str(value)[:1500]}", None
    return None, None


def run(client, *groups):
    """Runs the rows and prints the tally that tests/e2e/client_table.py describes."""
    tally, rows = {"passed": [], "refused": [], "failed": [], "wrong": []}, [row for group in groups for row in group]
    assert len({row.name for row in rows}) == len(rows), "two cases have one name"
    for row in rows:
        begin = time.monotonic()
        wrong, words = wrong_with(row)
        print(f"{'FAIL ' if wrong else 'ok   '} {client}: {row.name} ({time.monotonic() - begin:.1f} s)", file=sys.stderr, flush=True)
        if wrong and row.fails:
            tally["failed"].append({"what": row.name, "why": row.fails})
        elif wrong or row.fails:
            tally["wrong"].append({"what": row.name, "why": wrong or "it is said to fail, and passes"})
        elif words:
            tally["refused"].append({"what": row.name, "why": words})
        else:
            tally["passed"].append(row.name)
    print(json.dumps({client: tally}))
    sys.stdout.flush()
