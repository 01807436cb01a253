#!/bin/sh
# Installs what tests/e2e/transformers.txt pins into build/transformers. Usage: scripts/install_transformers.sh TARGET
# (of make, which is skipped where pip cannot do that: a sentence says so, and this fails).
set -eu
cd "$(dirname "$0")/.."
! cmp -s tests/e2e/transformers.txt build/transformers/installed.txt || exit 0
mkdir -p build
if ! { python3 -m venv build/transformers && build/transformers/bin/python -m pip install --quiet -r tests/e2e/transformers.txt; }; then
  echo "$1 is skipped: pip cannot install tests/e2e/transformers.txt here (is PyPI reachable?)"
  exit 1
fi
cp tests/e2e/transformers.txt build/transformers/installed.txt
