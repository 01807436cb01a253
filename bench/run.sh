#!/usr/bin/env bash
# Kernels against the machine's peaks, then the program beside llama.cpp. Figures land in build/bench.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/bench
for program in build/release/bench/*_bench; do
  echo "== $(basename "$program")"
  "$program"
done
# On a GPU, where there is one, and the program was built for it.
if [ -x build/release/bench/millrace_cuda_kernels ] && nvidia-smi -L >/dev/null 2>&1; then
  echo "== millrace_cuda_kernels"
  build/release/bench/millrace_cuda_kernels --json build/bench/cuda_kernels.json --commit "$(git describe --always --dirty 2>/dev/null || true)"
fi
python3 bench/compare.py cpu
python3 bench/compare.py disk --pairs 3
if [ "$(id -u)" -eq 0 ]; then python3 bench/compare.py memory --pairs 3; fi
