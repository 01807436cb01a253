#!/usr/bin/env bash
# Builds for Windows with mingw-w64 and runs in Wine the unit tests and millrace.exe (tests/e2e/windows_check.py, beside Linux's program, which
# is built for that), with a time limit each and without a display but for Direct3D's. Prints how many tests passed beside how
# many Linux's program of the same name has, where that is built (make test). Tests that cannot pass there are named with the
# reason in scripts/windows_skips.txt and are not run. Exit status 1: a test failed.
# Usage: scripts/test_windows.sh [ROOM...]; a room `program`: millrace.exe; without rooms: all that the Windows build has
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build windows
packaging/windows_libs.sh
build=build/windows
rooms=("$@")
if [ ${#rooms[@]} -eq 0 ]; then  # those that cmake/windows_port.cmake does not leave out
  TESTS=ON scripts/build.sh windows build.ninja
  mapfile -t rooms < <(ninja -C "$build" -t targets all | sed -n 's/^millrace_\(.*\)_test: .*/\1/p' | sort)
  rooms+=(program)
fi
targets=()
for room in "${rooms[@]}"; do
  if [ "$room" = program ]; then targets+=(millrace); else targets+=("millrace_${room}_test"); fi
done
TESTS=ON scripts/build.sh windows "${targets[@]}"
[[ " ${rooms[*]} " != *" program "* ]] || scripts/build.sh release millrace

wine=$(command -v wine64 || echo /usr/lib/wine/wine64)
server=$(command -v wineserver || echo /usr/lib/wine/wineserver)
export WINEDLLOVERRIDES=winedbg.exe=d WINEDEBUG=-all WINEPREFIX=$PWD/$build/wine DISPLAY=
export GTEST_BRIEF=1 GTEST_COLOR=no
[ -e "$WINEPREFIX/system.reg" ] || timeout 120 "$wine" wineboot --init >/dev/null 2>&1 || true

# Direct3D 12, through which the storage's tests read to a device, needs a display and a Vulkan driver.
display=
if command -v Xvfb >/dev/null; then
  Xvfb -displayfd 3 -screen 0 640x480x24 3>"$build/display" >/dev/null 2>&1 &
  trap 'kill %1 2>/dev/null || true' EXIT
  for _ in $(seq 50); do [ -s "$build/display" ] && break || sleep 0.1; done
  display=:$(cat "$build/display")
fi

# What the tests of the program start.
printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$wine" "$PWD/$build/millrace.exe" >"$build/millrace"
chmod +x "$build/millrace"

failed=0
printf '%-12s %8s %8s %8s %8s\n' room passed skipped failed Linux
for room in "${rooms[@]}"; do
  if [ "$room" = program ]; then
    status=0
    MILLRACE=$PWD/$build/millrace MILLRACE_LINUX=$PWD/build/release/millrace timeout "${MILLRACE_TEST_SECONDS:-900}" \
      python3 tests/e2e/windows_check.py >"$build/tests/program.log" 2>&1 </dev/null || status=$?
    total=$(sed -n 's/^Ran \([0-9]*\) tests.*/\1/p' "$build/tests/program.log")
    bad=$(grep -cE '^(FAIL|ERROR): ' "$build/tests/program.log" || true)
    printf '%-12s %8d %8d %8d %8s\n' program $((${total:-0} - bad)) 0 "$bad" -
    [ "$status" -eq 0 ] || { failed=1; tail -n 60 "$build/tests/program.log"; }
    [ "$status" -ne 124 ] || echo "test_windows: the program's tests did not end in time"
    continue
  fi
  program=$build/tests/millrace_${room}_test.exe
  not=$(sed -n "s/^$room \([^ ]*\) .*/\1/p" scripts/windows_skips.txt | paste -sd:)
  log=$build/tests/$room.log
  status=0
  DISPLAY=
  if [ "$room" = storage ] && [ -n "$display" ]; then
    "$server" -k 2>/dev/null || true  # a desktop that began without a display goes on without one
    DISPLAY=$display
  fi
  rm -rf "$WINEPREFIX"/drive_c/users/*/Temp/*  # a process's number comes again, and with it the names of what a test left
  timeout "${MILLRACE_TEST_SECONDS:-300}" "$wine" "$program" --gtest_output="xml:$build/tests/$room.xml" --gtest_filter="-$not" \
    >"$log" 2>&1 </dev/null || status=$?
  count() { grep -oP "^<testsuites .*?\b$1=\"\K\d+" "$build/tests/$room.xml" 2>/dev/null || echo 0; }
  total=$(count tests) bad=$(count failures) passed_over=$(grep -c 'result="skipped"' "$build/tests/$room.xml" 2>/dev/null || true)
  left=$(tr ':' '\n' <<<"$not" | grep -c . || true)
  linux=-
  there=build/release/tests/millrace_${room}_test
  [ ! -x "$there" ] || linux=$("$there" --gtest_list_tests 2>/dev/null | grep -c '^  ')
  printf '%-12s %8d %8d %8d %8s\n' "$room" $((total - bad - passed_over)) $((passed_over + left)) "$bad" "$linux"
  if [ "$status" -ne 0 ]; then
    failed=1
    tail -n 30 "$log"
    [ "$status" -ne 124 ] || echo "test_windows: $room did not end in time"
  fi
done
WINEPREFIX=$WINEPREFIX "$server" -k 2>/dev/null || true
exit $failed
