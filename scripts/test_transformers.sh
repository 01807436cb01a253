#!/bin/sh
# `convert` and `export` against transformers on the CPU: installs what tests/e2e/transformers.txt pins into build/transformers.
# Usage: scripts/test_transformers.sh [NAME...]   (names of tools/reference-models/zoo.py; none: all)
set -eu
cd "$(dirname "$0")/.."
python=build/transformers/bin/python
if ! cmp -s tests/e2e/transformers.txt build/transformers/installed.txt; then
  mkdir -p build
  if ! { python3 -m venv build/transformers && "$python" -m pip install --quiet -r tests/e2e/transformers.txt; }; then
    echo "test-transformers is skipped: pip cannot install tests/e2e/transformers.txt here (is PyPI reachable?)"
    exit 0
  fi
  cp tests/e2e/transformers.txt build/transformers/installed.txt
fi
"$python" scripts/config_fields.py --check
[ $# -gt 0 ] || HF_HUB_OFFLINE=1 "$python" tests/e2e/encoders_check.py --random
HF_HUB_OFFLINE=1 exec "$python" tests/e2e/transformers_check.py "$@"
