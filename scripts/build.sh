#!/usr/bin/env bash
# Configures (once) and builds a preset.  Usage: scripts/build.sh PRESET [TARGET...]
# CUDA=OFF in the environment leaves the GPU part out, CUDA=AUTO (the default) builds it where nvcc is found.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1; shift
cuda=${CUDA:-AUTO}
case "$preset" in asan | tsan | fuzz) cuda=OFF ;; esac  # host sanitizers and CUDA do not go together
if [ ! -f "build/$preset/build.ninja" ] || ! grep -q "^MILLRACE_CUDA:STRING=$cuda$" "build/$preset/CMakeCache.txt"; then
  echo "Configuring build/$preset"
  cmake --preset "$preset" -DMILLRACE_CUDA="$cuda" >"build-$preset.log" 2>&1 || { tail -n 20 "build-$preset.log" >&2; rm -f "build-$preset.log"; exit 1; }
  rm -f "build-$preset.log"
fi
echo "Building build/$preset"
ninja -C "build/$preset" --quiet "$@" 2>/dev/null || ninja -C "build/$preset" "$@"
