#!/usr/bin/env bash
# Builds for Windows with mingw-w64 and runs in Wine, with a time limit each and without a display but for Direct3D's: the unit
# tests; the C library's test (room `capi`); the Go package's (room `go`); the zip (room `zip`, tests/e2e/windows_zip_check.py);
# millrace.exe (room `program`, tests/e2e/windows_check.py, beside Linux's program, which is built for that); some of Linux's end-to-end tests
# (room `e2e`); npm's clients, which run on Linux, against millrace.exe (room `clients`; MILLRACE_CLIENTS=1: PyPI's, too). Prints how many tests passed beside how many Linux's program of the same name has, where that is built (make test). Tests that cannot pass there are named with the
# reason in scripts/windows_skips.txt and are not run. Exit status 1: a test failed.
# Usage: scripts/test_windows.sh [--ci] [--build] [ROOM...]; without rooms: all that the Windows build has
#   --ci     the rooms that .ci/run tests, in a build of their own that is made quickly (preset windows-core): without the program, whose
#            libraries and sources take as long as all the rest, and hardly optimized. The C library runs the engine
#   --build  builds what the rooms need, and runs nothing
#   --can    does nothing, and succeeds where this could be built; where not it says why
set -euo pipefail
cd "$(dirname "$0")/.."
preset=windows libraries=() rooms=() only_build= seconds=600
for word in "$@"; do
  case "$word" in
    --ci) preset=windows-core libraries=(core) seconds=300 rooms+=(base storage tensor kernels modelfile capi) ;;
    --build) only_build=yes ;;
    --can)
      mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' 2>/dev/null | awk '$2 == "bookworm" { print $1; exit }') || true
      if ! grep -q 'VERSION_CODENAME=bookworm' /etc/os-release 2>/dev/null; then why="it is built on Debian 12"
      elif [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then why="packages are installed as root or with sudo"
      elif [ -z "$mirror" ] || ! /usr/lib/apt/apt-helper -o Acquire::Retries=0 -o Acquire::http::Timeout=20 download-file \
        "$mirror/dists/bookworm/InRelease" "$(mktemp -d)/InRelease" >/dev/null 2>&1; then why="Debian's packages cannot be had here"
      else exit 0; fi
      echo "windows: skipped, $why" >&2
      exit 1 ;;
    -*) echo "test_windows: unknown option '$word'; use --ci, --build or --can" >&2; exit 2 ;;
    *) rooms+=("$word") ;;
  esac
done
scripts/setup.sh build windows
packaging/windows_libs.sh "${libraries[@]}"
build=build/$preset
if [ ${#rooms[@]} -eq 0 ]; then  # those that cmake/windows_port.cmake does not leave out
  TESTS=ON scripts/build.sh "$preset" build.ninja
  mapfile -t rooms < <(ninja -C "$build" -t targets all | sed -n 's/^millrace_\(.*\)_test: .*/\1/p' | sort)
  rooms+=(go zip program e2e clients)
fi
targets=()
for room in "${rooms[@]}"; do
  case "$room" in
    program | e2e | clients) targets+=(millrace) ;;
    go) targets+=(millrace_shared) ;;
    capi) targets+=(millrace_capi_test example_generate) ;;
    zip) targets+=(millrace millrace_shared) ;;
    modelfile) targets+=(millrace_modelfile_test synth-model) ;;
    *) targets+=("millrace_${room}_test") ;;
  esac
done
TESTS=ON scripts/build.sh "$preset" "${targets[@]}"
[[ ! " ${rooms[*]} " =~ \ (program|e2e|clients)\  ]] || scripts/build.sh release millrace synth-model
[ -z "$only_build" ] || exit 0

wine=$(command -v wine64 || echo /usr/lib/wine/wine64)
server=$(command -v wineserver || echo /usr/lib/wine/wineserver)
export WINEDLLOVERRIDES=winedbg.exe=d WINEDEBUG=-all WINEPREFIX=$PWD/$build/wine DISPLAY=
export GTEST_BRIEF=1 GTEST_COLOR=no
here=Z:${PWD//\//\\}
export WINEPATH="$here\\${build//\//\\}"  # where the tests find millrace.dll
end_of_wine() { timeout -k 10 30 "$server" -k 2>/dev/null || true; }
# Wine 8 hung twice. Everything that runs in Wine goes through here: past its time it is killed, with what it started in Wine.
limited() {  # SECONDS COMMAND...
  local limit=${MILLRACE_TEST_SECONDS:-$1} tries=1 status
  shift
  [ "$preset" = windows ] || tries=2  # with --ci: that Wine hangs once refuses no change
  while true; do
    status=0
    timeout -k 10 "$limit" "$@" || status=$?
    case "$status" in 124 | 137) end_of_wine ;; *) return "$status" ;; esac
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || return 124
    echo "test_windows: not done after $limit s; once more"
  done
}
if [ ! -e "$WINEPREFIX/system.reg" ]; then
  limited 120 "$wine" wineboot --init >"$build/wineboot.log" 2>&1 ||
    { tail -n 10 "$build/wineboot.log"; echo "test_windows: Wine could not be set up within two minutes" >&2; exit 1; }
fi

# Direct3D 12, through which the storage's tests read to a device, needs a display and a Vulkan driver.
display=
if command -v Xvfb >/dev/null; then
  rm -f "$build/display"  # an earlier run's would be read before this one's is there
  Xvfb -displayfd 3 -screen 0 640x480x24 3>"$build/display" >/dev/null 2>&1 &
  trap 'kill %1 2>/dev/null || true' EXIT
  for _ in $(seq 200); do [ -s "$build/display" ] && break || sleep 0.1; done
  display=:$(cat "$build/display")
fi

# What the tests of the program start.
printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$wine" "$PWD/$build/millrace.exe" >"$build/millrace"
chmod +x "$build/millrace"

failed=0
row() { printf '%-12s %8s %8s %8s %8s\n' "$@"; }
totals=(0 0 0)  # passed, skipped, failed
result() {  # ROOM PASSED SKIPPED FAILED LINUX
  row "$@"
  totals=($((totals[0] + $2)) $((totals[1] + $3)) $((totals[2] + $4)))
}
# Sees to a room's exit status, of which 124 is a time limit's.
judge() {  # ROOM STATUS LOG LINES
  [ "$2" -ne 0 ] || return 0
  failed=$((failed + 1))
  tail -n "$4" "$3"
  [ "$2" -ne 124 ] || echo "test_windows: $1 did not end in time and was ended; Wine 8 hangs now and then"
}

test_with_python() {  # ROOM SCRIPT
  local log=$build/tests/$1.log status=0 total bad passed_over
  MILLRACE=$PWD/$build/millrace MILLRACE_SYSTEM=windows MILLRACE_LINUX=$PWD/build/release/millrace WINE=$wine limited 900 \
    python3 "$2" >"$log" 2>&1 </dev/null || status=$?
  total=$(sed -n 's/^Ran \([0-9]*\) tests.*/\1/p' "$log")
  bad=$(grep -cE '^(FAIL|ERROR): ' "$log" || true)
  passed_over=$(sed -n 's/.*skipped=\([0-9]*\).*/\1/p' "$log" | tail -n 1)
  result "$1" $((${total:-0} - bad - ${passed_over:-0})) "${passed_over:-0}" "$bad" -
  judge "$1" "$status" "$log" 60
}
test_program() { test_with_python program tests/e2e/windows_check.py; }
test_e2e() {
  local name
  for name in pull server embeddings rerank chat_shapes image_urls; do test_with_python "$name" "tests/e2e/test_$name.py"; done
}
test_clients() { test_with_python clients tests/e2e/test_clients.py; }
test_zip() {
  CUDA=${CUDA:-OFF} packaging/make_windows_zip.sh https://downloads.invalid/millrace >"$build/tests/zip.log"
  test_with_python zip tests/e2e/windows_zip_check.py
}

test_capi() {
  local log=$build/tests/capi.log status=0
  local model=models/demo-moe-q4_k_m.gguf linux=build/release/millrace question="Tell me a story about a fox and a lantern."
  local passed=0 failed_here=0 wanted=1
  limited 300 "$wine" "$build/tests/millrace_capi_test.exe" "$model" >"$log" 2>&1 </dev/null || status=$?
  if [ "$status" -eq 0 ]; then passed=1; else failed_here=1; fi
  if [ "$status" -eq 0 ] && [ -x "$linux" ]; then  # the tokens of Linux's program
    wanted=2
    "$linux" run "$model" --temp 0 -p "$question" >"$build/tests/capi.linux" 2>/dev/null
    limited 120 "$wine" "$build/examples/example_generate.exe" "$model" "$question" >"$build/tests/capi.windows" 2>>"$log" </dev/null || status=$?
    if [ "$status" -eq 0 ] && diff <(tr -d '\r' <"$build/tests/capi.windows") "$build/tests/capi.linux" >>"$log"; then passed=2; else
      failed_here=1
      [ "$status" -ne 0 ] || status=1
    fi
  fi
  result capi "$passed" 0 "$failed_here" "$wanted"
  judge capi "$status" "$log" 30
}

test_go() {
  local log=$build/tests/go.log status=0 passed passed_over bad linux why
  if ! why=$(scripts/test_go.sh --can); then
    result go 0 0 0 -
    echo "$why"
    return
  fi
  # Go programs ask Windows 10's bcryptprimitives.dll for random bytes; Wine 8 has none.
  local random=$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll
  [ -e "$random" ] || x86_64-w64-mingw32-gcc-posix -shared -O2 -o "$random" tests/e2e/bcryptprimitives.c -ladvapi32
  (cd go && CGO_ENABLED=0 GOOS=windows go test -c -o "../$build/tests/millrace_go_test.exe" . &&
    MILLRACE_LIBRARY="$WINEPATH\\millrace.dll" limited 300 \
      "$wine" "../$build/tests/millrace_go_test.exe" -test.v) >"$log" 2>&1 </dev/null || status=$?
  passed=$(grep -c '^--- PASS' "$log" || true) passed_over=$(grep -c '^--- SKIP' "$log" || true) bad=$(grep -c '^--- FAIL' "$log" || true)
  linux=$(grep -c '^func Test[A-Z][A-Za-z]*(t ' go/millrace_test.go)
  result go "$passed" "$passed_over" "$bad" "$linux"
  judge go "$status" "$log" 40
}

test_unit() {  # ROOM
  local room=$1 program=$build/tests/millrace_$1_test.exe log=$build/tests/$1.log xml=$build/tests/$1.xml status=0
  local not total bad passed_over left linux=- there=build/release/tests/millrace_$1_test seconds=$seconds
  [ "$room" != engine ] || seconds=1800
  not=$(sed -n "s/^$room \([^ ]*\) .*/\1/p" scripts/windows_skips.txt | paste -sd:)
  DISPLAY=
  if [ "$room" = storage ] && [ -n "$display" ]; then
    end_of_wine  # a desktop that began without a display goes on without one
    DISPLAY=$display
  fi
  rm -rf "$WINEPREFIX"/drive_c/users/*/Temp/*  # a process's number comes again, and with it the names of what a test left
  rm -f "$xml"
  limited "$seconds" "$wine" "$program" --gtest_output="xml:$xml" --gtest_filter="-$not" \
    >"$log" 2>&1 </dev/null || status=$?
  count() { grep -oP "^<testsuites .*?\b$1=\"\K\d+" "$xml" 2>/dev/null || echo 0; }
  total=$(count tests) bad=$(count failures) passed_over=$(grep -c 'result="skipped"' "$xml" 2>/dev/null || true)
  left=$(tr ':' '\n' <<<"$not" | grep -c . || true)
  [ ! -x "$there" ] || linux=$("$there" --gtest_list_tests 2>/dev/null | grep -c '^  ')
  result "$room" $((total - bad - passed_over)) $((passed_over + left)) "$bad" "$linux"
  judge "$room" "$status" "$log" 30
}

row room passed skipped failed Linux
for room in "${rooms[@]}"; do
  case "$room" in
    program | e2e | clients | capi | go | zip) "test_$room" ;;
    *) test_unit "$room" ;;
  esac
done
end_of_wine
echo "Windows, in Wine: ${totals[0]} tests passed, ${totals[1]} skipped, ${totals[2]} failed; ${#rooms[@]} rooms, $failed did not pass"
[ "$failed" -eq 0 ]
