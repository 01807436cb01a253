#!/usr/bin/env python3
"""Which C++ files can be put together into one unit, so that the headers they share are read once for all of them.

A file's own names (those of its unnamed namespace, its aliases and macros) become visible in the whole unit. So files that
give one name two meanings go into different units, and so does a file that uses a name of its headers which is another
file's own: it might call the other's. Names are found at the beginning of a line, where clang-format leaves them.

usage: scripts/units.py MOST FILE...   writes the number of its unit for each file, a line each; MOST files a unit
"""
import functools
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("src", "tests", "tools/synth-model", "fuzz")  # that headers are named from
NAME = re.compile(
    r"^(?:using (?P<alias>\w+) = (?P<of>[^;]+);|using (?P<from>\w+(?:::\w+)*::(?P<taken>\w+));|#define\s+(?P<macro>\w+)"
    r"|namespace (?:\w+::)*(?P<space>\w+) \{"
    r"|(?:struct|class|enum class|enum|union)\s+(?P<type>\w+)"
    r"|(?:static )?(?!template|return|namespace|using)(?:::)?[A-Za-z][\w:<>,*&\[\] ]*[ *&>](?P<name>\w+)(?:\(|\[|\{| =|;))", re.M)
UNDEFINED = re.compile(r"^#undef (\w+)", re.M)
OWN = re.compile(r"^namespace \{$.*?^\}  // namespace$", re.M | re.S)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
SHARED = {"execute", "PrintTo", "__attribute__", "alignas"}  # what many files give other parameters


@functools.lru_cache(None)
def text_of(path):
    with open(path) as file:
        return file.read()


@functools.lru_cache(None)
def code_of(text):
    """Without comments and what is quoted."""
    return re.sub(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"', "", text)


def found_in(text):
    undefined = set(UNDEFINED.findall(text))
    for match in NAME.finditer(text):
        kinds = match.groupdict()
        if kinds["macro"] in undefined:
            continue
        name = next(kinds[kind] for kind in ("alias", "taken", "macro", "space", "type", "name") if kinds[kind])
        if name not in SHARED:
            yield name, kinds


@functools.lru_cache(None)
def declared_in(text):
    return {name for name, kinds in found_in(text) if kinds["name"] or kinds["type"]}


@functools.lru_cache(None)
def own_names_of(path):
    return {name for part in OWN.findall(text_of(path)) for name in declared_in(part)}


@functools.lru_cache(None)
def names_of(path):
    """What a file gives names to, and what each of them means: the same in two files only where it comes from elsewhere.
    Functions that its headers declare are no names of its own: another file may define an overload."""
    names = dict.fromkeys(own_names_of(path), path)
    for name, kinds in found_in(text_of(path)):
        if kinds["name"] or kinds["type"]:
            if name not in declared_for(path):
                names[name] = path
            continue
        names[name] = "namespace" if kinds["space"] else (kinds["of"] or kinds["from"] or path).removeprefix("millrace::")
        if kinds["from"]:
            names[kinds["from"].split("::")[0]] = "namespace"
    return names


@functools.lru_cache(None)
def headers_of(path):
    """The project's headers that a file reads, and those that they read."""
    found = set()
    for name in INCLUDE.findall(text_of(path)):
        for folder in (*(os.path.join(ROOT, folder) for folder in FOLDERS), os.path.dirname(path)):
            header = os.path.join(folder, name)
            if os.path.exists(header):
                found |= {header} | headers_of(header)
                break
    return frozenset(found)


@functools.lru_cache(None)
def declared_for(path):
    """Names that the headers of a file declare."""
    return set().union(*(declared_in(text_of(header)) for header in headers_of(path)))


@functools.lru_cache(None)
def space_of(path):
    """The namespace that a file is in."""
    found = re.search(r"^namespace (\w+(?:::\w+)*) \{", text_of(path), re.M)
    return found[1] if found else ""


@functools.lru_cache(None)
def uses(path, name, space):
    """Whether a file, or a header of it that is in this namespace, has the name without saying whose it is, as a name that
    its headers declare."""
    if name not in declared_for(path):
        return False
    within = [header for header in headers_of(path) if (space_of(header) + "::").startswith(space + "::")]
    return any(re.search(rf"(?<![\w.>:]){name}\b", code_of(text_of(file))) for file in (path, *within))


class Unit:
    def __init__(self):
        self.paths, self.names = [], {}

    def takes(self, path):
        """Whether no name has two meanings then, and nobody uses a name that is another's own."""
        if any(self.names.get(name, meaning) != meaning for name, meaning in names_of(path).items()):
            return False
        return not any(uses(user, name, space_of(owner)) for other in self.paths for owner, user in ((other, path), (path, other))
                       for name in own_names_of(owner))

    def add(self, path):
        self.paths.append(path)
        self.names.update(names_of(path))


def units_of(paths, most):
    """Lists of paths; each file goes into the first unit where it has room and clashes with none."""
    units = []
    for path in paths:
        unit = next((unit for unit in units if len(unit.paths) < most and unit.takes(path)), None)
        if unit is None:
            unit = Unit()
            units.append(unit)
        unit.add(path)
    return [unit.paths for unit in units]


if __name__ == "__main__":
    paths = sys.argv[2:]
    number_of = {path: number for number, unit in enumerate(units_of(paths, int(sys.argv[1]))) for path in unit}
    print("\n".join(str(number_of[path]) for path in paths))
