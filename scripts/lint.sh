#!/usr/bin/env bash
# clang-format, include ranks and clang-tidy; every finding is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
echo "Checking format"
git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror || { echo "lint: run 'make format'" >&2; failed=1; }
echo "Checking include ranks"
python3 scripts/check_ranks.py || failed=1
echo "Running clang-tidy"
[ -f build/dev/compile_commands.json ] || cmake --preset dev >/dev/null
git ls-files 'src/*.cpp' 'tools/*.cpp' | xargs -P "$(nproc)" -n 4 clang-tidy -p build/dev --quiet 2>/dev/null || failed=1
[ "$failed" -eq 0 ] && echo "lint: clean"
exit "$failed"
