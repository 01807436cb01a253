#!/usr/bin/env bash
# Configures and builds a preset.  Usage: scripts/build.sh PRESET [TARGET...]
# The GPU part is built where an NVIDIA driver is. CUDA in the environment decides otherwise: ON, OFF, or PTX, which compiles
# every kernel to unoptimized PTX, to see whether it compiles. For Windows it is OFF unless asked for; the kernels are then compiled in a
# build for Linux first. VULKAN=ON builds it by Vulkan instead (cmake/vulkan.cmake). TESTS=ON configures the tests, too; they stay configured.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1; shift
build=build/$preset

cuda=${CUDA:-AUTO} nvcc=
[ "${VULKAN:-OFF}" = OFF ] || cuda=${CUDA:-OFF}
case "$preset" in asan | tsan | fuzz | coverage) cuda=OFF ;; windows | windows-core) cuda=${CUDA:-OFF} ;; esac  # sanitizers of host code and CUDA do not go together
if [ "$cuda" = AUTO ]; then
  cuda=OFF
  if [ ! -e /proc/driver/nvidia/version ] && [ ! -e /usr/lib/wsl/lib/libcuda.so.1 ]; then
    echo "GPU: no NVIDIA driver, so this build is for the processor alone"
  elif nvcc=$(scripts/find_nvcc.sh); then
    cuda=ON
  else
    echo "GPU: this build is for the processor alone"
  fi
elif [ "$cuda" != OFF ]; then
  nvcc=$(scripts/find_nvcc.sh)
fi

options=(-DMILLRACE_CUDA="$cuda" ${VULKAN:+-DMILLRACE_VULKAN="$VULKAN"} ${nvcc:+-DMILLRACE_NVCC="$nvcc"} ${PORTABLE:+-DMILLRACE_PORTABLE="$PORTABLE"})
if [[ "$preset" = windows* ]] && [ "$cuda" != OFF ]; then  # nvcc drives no mingw-w64 (cmake/cuda.cmake)
  linux=kernels
  [ "$cuda" != PTX ] || [ -e /proc/driver/nvidia/version ] || linux=release  # as make kernels has it
  TESTS=OFF CUDA=$cuda scripts/build.sh "$linux" millrace_cuda
  options+=(-DMILLRACE_CUDA_OBJECTS="$PWD/build/$linux/CMakeFiles/millrace_cuda.dir/src/kernels/cuda")
fi
if [ "${TESTS:-}" = ON ] || grep -qs -- -DMILLRACE_TESTS=ON "$build/options"; then options+=(-DMILLRACE_TESTS=ON); fi
if [ ! -f "$build/build.ninja" ] || [ "$(cat "$build/options" 2>/dev/null)" != "${options[*]}" ]; then
  echo "Configuring $build"
  mkdir -p "$build"
  # What was found for other options is not what these need; objects stay.
  rm -rf "$build"/CMakeCache.txt "$build"/CMakeFiles/[0-9]*
  cmake --preset "$preset" "${options[@]}" >"$build/configure.log" 2>&1 || { tail -n 20 "$build/configure.log" >&2; exit 1; }
  echo "${options[*]}" >"$build/options"
fi

# How long it takes, by what is not there yet and the seconds that a unit of files and a kernel took on one core.
ninja -C "$build" build.ninja >"$build/configure.log" 2>&1 || { tail -n 20 "$build/configure.log" >&2; exit 1; }
missing() {  # PATTERN TARGET...: how many objects are to be made
  local count=0 object
  for object in $(ninja -C "$build" -t commands "${@:2}" | grep -oP -- " -o \K\S+$1(?= |\$)"); do
    [ -e "$build/$object" ] || count=$((count + 1))
  done
  echo "$count"
}
files=$(missing '\.(cc?|cpp|cxx|hxx)\.(o|obj|gch)' "$@")
kernels=$(missing '\.cu\.o' "$@")
if [ "$((files + kernels))" -gt 0 ]; then
  per_kernel=60
  [ "$cuda" != PTX ] || per_kernel=14
  minutes=$(((files * 9 + kernels * per_kernel) / 60 / $(nproc) + 1))
  echo "Building $build: $files units of C++$([ "$kernels" = 0 ] || echo " and $kernels of CUDA"), about $minutes min on $(nproc) cores"
fi
if [ -t 1 ]; then
  NINJA_STATUS="[%f of %t, %e s] " ninja -C "$build" "$@"
else
  # In a log, a line when it begins and what the compilers say; the whole again where it fails.
  ninja -C "$build" --quiet "$@" 2>&1 | tee "$build/build.log"
fi
