#!/usr/bin/env bash
# Tries a program with the GPU part where no NVIDIA driver is: it starts, says so, and answers on the processor.
# Usage: scripts/test_kernels.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
millrace=$1/millrace
model=models/demo-moe-q4_k_m.gguf
fail() { echo "test_kernels: $*" >&2; exit 1; }

kernels=$(find "$1/CMakeFiles/millrace_cuda.dir" -name '*.cu.o' | wc -l)
sources=$(find src/kernels/cuda -name '*.cu' | wc -l)
[ "$kernels" -eq "$sources" ] || fail "$kernels of $sources kernel files were compiled"
if ldd "$millrace" | grep -qi cuda; then fail "the program asks for a CUDA library to start: $(ldd "$millrace" | grep -i cuda)"; fi
if [ -e /proc/driver/nvidia/version ]; then
  echo "Kernels: all $sources files compiled; this machine has a driver, so starting without one was not tried"
  exit 0
fi
"$millrace" --version >/dev/null || fail "the program does not start without a driver"
"$millrace" run "$model" --ram 20M --temp 0 -p "What is the capital of France?" | grep -q Paris || fail "it does not answer without a driver"
if said=$("$millrace" run "$model" --device cuda --temp 0 -p "Hello" 2>&1); then fail "--device cuda is accepted without a driver"; fi
grep -qi 'gpu\|cuda\|driver' <<<"$said" || fail "--device cuda fails without saying what is missing: $said"
echo "Kernels: all $sources files compiled; the program with the GPU part starts and answers without a driver"
