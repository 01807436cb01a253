#!/usr/bin/env bash
# Prints the path of an nvcc that can build the GPU part (12.8 or newer: code for compute capability 12.0), and installs NVIDIA's
# compiler from PyPI into build/toolchain where there is none: 270 MB, no root. Fails, and says why, where neither can be had.
set -euo pipefail
cd "$(dirname "$0")/.."
toolchain=build/toolchain
# What belongs together (nvtx names ranges for profilers); of the runtime the headers alone.
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-nvtx==13.0.85)
least_driver=580  # for CUDA 13

for nvcc in "$(command -v nvcc || true)" "${CUDA_PATH:-}/bin/nvcc" "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
  [ -x "$nvcc" ] || continue
  version=$("$nvcc" --version | sed -nE 's/.*release ([0-9]+\.[0-9]+).*/\1/p')
  if printf '%s\n' 12.8 "$version" | sort -VC; then
    echo "$nvcc"
    exit 0
  fi
  echo "GPU: $nvcc is CUDA $version, too old for this program (12.8 or newer); NVIDIA's compiler from PyPI takes its place" >&2
done

driver=$(sed -nE 's/^NVRM version:.* ([0-9]+)\.[0-9.]+ .*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true)
if [ -n "$driver" ] && [ "$driver" -lt "$least_driver" ]; then
  echo "GPU: the NVIDIA driver is version $driver, and CUDA 13 needs $least_driver or newer. Update the driver, or install a CUDA toolkit from 12.8 on that it supports" >&2
  exit 1
fi

nvcc=$toolchain/nvidia/cu13/bin/nvcc
if [ ! -e "$toolchain/done-${packages[0]#*==}" ]; then
  if ! python3 -m pip --version >/dev/null 2>&1; then scripts/setup.sh pip >&2; fi
  echo "GPU: installing NVIDIA's compiler from PyPI into $toolchain (270 MB)" >&2
  rm -rf "$toolchain"
  mkdir -p "$toolchain"
  if ! PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$toolchain" "${packages[@]}" >"$toolchain/log" 2>&1; then
    tail -n 5 "$toolchain/log" >&2
    echo "GPU: NVIDIA's compiler could not be installed from PyPI" >&2
    exit 1
  fi
  # What programs look for, and Python's packages leave out.
  ln -sfn lib "$toolchain/nvidia/cu13/lib64"
  ln -sf libcudart.so.13 "$toolchain/nvidia/cu13/lib/libcudart.so"
  touch "$toolchain/done-${packages[0]#*==}"
fi
echo "$PWD/$nvcc"
