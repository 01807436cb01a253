#!/usr/bin/env bash
# Configures (once) and builds a preset.  Usage: scripts/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1; shift
if [ ! -f "build/$preset/build.ninja" ]; then
  echo "Configuring build/$preset"
  cmake --preset "$preset" >"build-$preset.log" 2>&1 || { tail -n 20 "build-$preset.log" >&2; rm -f "build-$preset.log"; exit 1; }
  rm -f "build-$preset.log"
fi
echo "Building build/$preset"
ninja -C "build/$preset" --quiet "$@" 2>/dev/null || ninja -C "build/$preset" "$@"
