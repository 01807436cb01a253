#!/usr/bin/env bash
# Runs every test of a built preset, two at a time: most of them wait for something.  Usage: scripts/test.sh PRESET
set -euo pipefail
cd "$(dirname "$0")/.."
cd "build/$1"
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export GTEST_BRIEF=1  # of a hundred tests in one program only those that failed are worth their lines
exec ctest --output-on-failure --parallel 2
