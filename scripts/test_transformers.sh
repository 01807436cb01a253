#!/bin/sh
# `convert` and `export` against transformers on the CPU: installs what tests/e2e/transformers.txt pins into build/transformers.
# Usage: scripts/test_transformers.sh [NAME...]   (names of tools/reference-models/zoo.py; none: all)
set -eu
cd "$(dirname "$0")/.."
python=build/transformers/bin/python
scripts/install_transformers.sh test-transformers || exit 0
"$python" scripts/config_fields.py --check
[ $# -gt 0 ] || HF_HUB_OFFLINE=1 "$python" tests/e2e/encoders_check.py --random
[ $# -gt 0 ] || HF_HUB_OFFLINE=1 "$python" tests/e2e/towers_check.py
HF_HUB_OFFLINE=1 exec "$python" tests/e2e/transformers_check.py "$@"
