#!/usr/bin/env bash
# Which lines of src/exec and src/residency the rooms' tests run, those on simulated GPUs included: a list by file, and the
# whole page in build/coverage/lines/index.html. Fails below LEAST percent.  Usage: [LEAST=85] scripts/coverage.sh
set -euo pipefail
cd "$(dirname "$0")/.."
TESTS=ON scripts/build.sh coverage tests/all tools/all millrace
find build/coverage -name '*.gcda' -delete
(cd build/coverage && GTEST_BRIEF=1 ctest --output-on-failure --parallel 2 -R '^(kv|residency|exec|model|engine|measure|simulated)$')
mkdir -p build/coverage/lines
exec gcovr --root . --filter 'src/(exec|residency)/' --exclude-throw-branches --gcov-ignore-parse-errors --html-details build/coverage/lines/index.html \
  --txt /dev/stdout --fail-under-line "${LEAST:-85}" build/coverage
