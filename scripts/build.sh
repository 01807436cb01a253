#!/usr/bin/env bash
# Configures (once) and builds a preset.  Usage: scripts/build.sh PRESET [TARGET...]
# CUDA=OFF in the environment leaves the GPU part out, CUDA=AUTO (the default) builds it where nvcc is found.
# QUICK=ON builds what is only to be tested in less time: headers are read once, and kernels of the GPU are left as PTX
# that nothing optimizes, for no GPU is there to run it.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1; shift
cuda=${CUDA:-AUTO}
case "$preset" in asan | tsan | fuzz) cuda=OFF ;; esac  # host sanitizers and CUDA do not go together
options=(-DMILLRACE_CUDA="$cuda")
[ "${QUICK:-}" != ON ] || options+=(-DMILLRACE_QUICK=ON -DMILLRACE_CUDA_ARCHITECTURES=90a-virtual -DCMAKE_CUDA_FLAGS="-Xcicc -O0")
if [ ! -f "build/$preset/build.ninja" ] || [ -n "${QUICK:-}" ] || ! grep -q "^MILLRACE_CUDA:STRING=$cuda$" "build/$preset/CMakeCache.txt"; then
  echo "Configuring build/$preset"
  cmake --preset "$preset" "${options[@]}" >"build-$preset.log" 2>&1 || { tail -n 20 "build-$preset.log" >&2; rm -f "build-$preset.log"; exit 1; }
  rm -f "build-$preset.log"
fi
echo "Building build/$preset"
ninja -C "build/$preset" --quiet "$@" 2>/dev/null || ninja -C "build/$preset" "$@"
