// An indexer's queries, keys and choice by the processor's kernels, whose bits the contract names.
#include "kernels/gpu/indexer.h"

#include <algorithm>
#include <vector>

#include "kernels.h"

namespace millrace::kernels::gpu {

namespace {

using simulated::at;
using simulated::cpu;

constexpr std::int64_t kSlots = 64;  // tokens of a block

std::byte* block_of(const IndexView& index, int sequence, std::int64_t block) {
  return const_cast<std::byte*>(index.table[std::int64_t{sequence} * index.max_blocks + block]) + index.offset;
}

void store(const IndexStoreCall& call) {
  const std::int64_t dim = call.index.dim;
  std::vector<float> key(static_cast<std::size_t>(dim));
  for (std::int64_t r = 0; r < call.rows.rows; ++r) {
    const float* const angles = call.cos_sin + r * call.rotary;
    for (std::int64_t h = 0; h < call.heads; ++h)
      cpu().rope(call.q + (r * call.heads + h) * dim + call.first, angles, call.rotary, call.neox);
    cpu().layer_norm(call.key + r * dim, at(call.weight), at(call.bias), 1, dim, call.eps, key.data());
    cpu().rope(key.data() + call.first, angles, call.rotary, call.neox);
    std::byte* const block = block_of(call.index, call.rows.sequence[r], call.rows.position[r] / kSlots);
    const std::int64_t slot = call.rows.position[r] % kSlots;
    for (std::int64_t c = 0; c < dim; ++c) {
      if (call.index.dtype == DType::f32)
        reinterpret_cast<float*>(block)[c * kSlots + slot] = key[static_cast<std::size_t>(c)];
      else
        reinterpret_cast<std::uint16_t*>(block)[c * kSlots + slot] = f32_to_f16(key[static_cast<std::size_t>(c)]);
    }
  }
}

void choose(const ChooseKeysCall& call) {
  std::vector<float> weights(static_cast<std::size_t>(call.heads)), scores, scratch;
  std::vector<const std::byte*> blocks;
  for (std::int64_t r = 0; r < call.rows.rows; ++r) {
    const std::int64_t keys = call.rows.position[r] + 1;
    std::int32_t* const chosen = call.chosen + r * call.top_k;
    if (keys <= call.top_k) {
      for (std::int32_t i = 0; i < keys; ++i) chosen[i] = i;
      continue;
    }
    blocks.clear();
    for (std::int64_t b = 0; b * kSlots < keys; ++b) blocks.push_back(block_of(call.index, call.rows.sequence[r], b));
    for (std::int64_t h = 0; h < call.heads; ++h)
      weights[static_cast<std::size_t>(h)] = call.weights[r * call.heads + h] * call.factor;
    scores.resize(blocks.size() * kSlots);
    scratch.resize(scores.size());
    IndexScoresArgs args;
    args.q = call.q + r * call.heads * call.index.dim;
    args.weights = weights.data();
    args.heads = call.heads;
    args.dim = call.index.dim;
    args.dtype = call.index.dtype;
    args.blocks = blocks.data();
    args.count = static_cast<std::int64_t>(blocks.size());
    args.out = scores.data();
    cpu().index_scores(args);
    largest(scores.data(), keys, call.top_k, scratch.data(), chosen);
  }
}

}  // namespace

Status store_index(const IndexStoreCall& call, device::StreamRef stream) {
  if (call.index.dim > kMostIndexDim || call.index.dim % kIndexDimStep != 0 || call.weight == nullptr)
    return simulated::refused();
  return simulated::launch(stream, call, store);
}
std::size_t choose_workspace_bytes(std::int32_t, std::int32_t) { return 256; }
Status choose_keys(const ChooseKeysCall& call, device::StreamRef stream) {
  if (call.index.dim % kIndexDimStep != 0 || call.heads <= 0 || call.top_k <= 0) return simulated::refused();
  return simulated::launch(stream, call, choose);
}

}  // namespace millrace::kernels::gpu
