#!/usr/bin/env bash
# Runs every libFuzzer target on its seed corpus (fuzz/corpus/NAME) for FUZZ_SECONDS each; new finds stay in build/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
count=0
pids=()
for target in build/fuzz/fuzz/*_fuzz; do
  name=$(basename "$target" _fuzz)
  mkdir -p "build/fuzz/corpus/$name" "fuzz/corpus/$name"
  echo "Fuzzing $name for $seconds s"
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/$name-" "build/fuzz/corpus/$name" "fuzz/corpus/$name" >"build/fuzz/$name.log" 2>&1 &
  pids+=("$!:$name")
  count=$((count + 1))
done
[ "$count" -gt 0 ] || { echo "fuzz: no targets were built" >&2; exit 1; }
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
