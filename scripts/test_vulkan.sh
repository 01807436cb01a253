#!/usr/bin/env bash
# The GPU part by Vulkan on Mesa's lavapipe: the device, its kernels against the contracts of kernels/gpu, and checkpoints against
# transformers' logits. Usage: scripts/test_vulkan.sh [gtest filter]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build vulkan
TESTS=ON VULKAN=ON scripts/build.sh release millrace_vulkan_test
test=build/release/tests/millrace_vulkan_test
[ -x "$test" ] || { echo "test_vulkan: the build has no Vulkan; see build/release/configure.log" >&2; exit 1; }
export VK_ICD_FILENAMES=${VK_ICD_FILENAMES:-$(ls /usr/share/vulkan/icd.d/lvp_icd.*json)}
# Of CUDA's tests those that Vulkan has kernels for; four dense checkpoints, and a mixture.
kernels='CudaOps.RmsNorm:CudaOps.Quantize*:CudaOps.Elementwise:CudaOps.Silu*:CudaOps.GatherRows:CudaOps.RopeStore:CudaOps.Candidates*:CudaOps.Draws*:CudaOps.Route:CudaOps.SortEntries:CudaOps.CombineExperts'
attention='CudaAttention.EveryHeadDim:CudaAttention.Windows:CudaAttention.RowsThatSee*:CudaAttention.AQuery*'
checkpoints='*CheckpointsOnGpu.Answer*/llama_on_the_gpu:*CheckpointsOnGpu.Answer*/llama_from_ram_to_the_gpu:*CheckpointsOnGpu.Answer*/qwen2_on_the_gpu:*CheckpointsOnGpu.Answer*/qwen3_on_the_gpu:*CheckpointsOnGpu.Answer*/mistral_nemo_on_the_gpu:*CheckpointsOnGpu.Answer*/qwen3moe_on_the_gpu'
exec "$test" --gtest_brief=1 --gtest_filter="${1:-Vulkan*:$kernels:$attention:$checkpoints}"
