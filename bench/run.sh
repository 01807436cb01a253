#!/usr/bin/env bash
# Kernels against the machine's peaks, then the program beside llama.cpp. Figures land in build/bench.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in build/dev/bench/*_bench; do
  echo "== $(basename "$program")"
  "$program"
done
python3 bench/compare.py cpu
python3 bench/compare.py disk --pairs 3
if [ "$(id -u)" -eq 0 ]; then python3 bench/compare.py memory --pairs 3; fi
