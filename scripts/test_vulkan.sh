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
# CUDA's tests of ops that Vulkan has, but for those of results in bfloat16 and of a delta net's step in one launch.
kernels='CudaOps.RmsNorm:CudaOps.Quantize*:CudaOps.Elementwise:CudaOps.Silu*:CudaOps.GatherRows:CudaOps.RopeStore:CudaOps.Candidates*:CudaOps.Draws*:CudaOps.Route:CudaOps.SortEntries:CudaOps.CombineExperts:CudaHeads.*:CudaGates.*:CudaRecurrent.*'
attention='CudaAttention.EveryHeadDim:CudaAttention.Windows:CudaAttention.FewBits:CudaAttention.FewBitsInWindows:CudaAttention.RowsThatSee*:CudaAttention.AQuery*'
lacking='CudaHeads.GatesBlocksIntoEveryForm:CudaHeads.ANormLeavesEveryForm:CudaHeads.AGatedNormIsTheNormAndThenTheGate:CudaRecurrent.AStepOfADeltaNetIsFiveLaunches'
# Dense decoders, mixtures, and models with states.
checkpoints='*CheckpointsOnGpu.Answer*/llama_from_ram_to_the_gpu'
checkpoints+=':*CheckpointsOnGpu.StayNearWithRotatedKv/llama_on_the_gpu'
for name in llama qwen2 qwen3 mistral_nemo gemma3 mistral3 qwen3moe glm4moe gpt_oss qwen3next qwen35 qwen35moe lfm2 granitehybrid nemotron_h mamba2; do
  checkpoints+=":*CheckpointsOnGpu.Answer*/${name}_on_the_gpu"
done
exec "$test" --gtest_brief=1 --gtest_filter="${1:-Vulkan*:$kernels:$attention:$checkpoints-$lacking}"
