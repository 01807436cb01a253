#!/usr/bin/env bash
# Runs every libFuzzer target on its seed corpus (fuzz/corpus/NAME) for FUZZ_SECONDS each; new finds stay in build/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
pids=()
shopt -s nullglob
targets=(build/fuzz/fuzz/*_fuzz)
count=${#targets[@]}
[ "$count" -gt 0 ] || { echo "fuzz: no targets were built" >&2; exit 1; }
# An input may take ten seconds of a processor. libFuzzer counts those of the clock, and the targets share the processors.
timeout=$((10 * (1 + count / $(nproc))))
for target in "${targets[@]}"; do
  name=$(basename "$target" _fuzz)
  mkdir -p "build/fuzz/corpus/$name" "fuzz/corpus/$name"
  echo "Fuzzing $name for $seconds s"
  "$target" -max_total_time="$seconds" -timeout="$timeout" -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/$name-" "build/fuzz/corpus/$name" "fuzz/corpus/$name" >"build/fuzz/$name.log" 2>&1 &
  pids+=("$!:$name")
done
failed=0
for entry in "${pids[@]}"; do
  if ! wait "${entry%%:*}"; then
    failed=$((failed + 1)); tail -n 40 "build/fuzz/${entry#*:}.log" >&2
  else
    grep -E 'stat::number_of_executed_units' "build/fuzz/${entry#*:}.log" | sed "s/^/${entry#*:}: /"
  fi
done
echo "fuzz: $((count - failed)) targets clean, $failed failed"
[ "$failed" -eq 0 ]
