// The contract of what some architectures do beside the usual: factors on embeddings, sums and logits, caps on logits,
// routers other than a softmax over all experts, heads of 512. Rules as in ops.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"

namespace millrace::kernels::gpu {

Status scale(float* x, float factor, std::int64_t n, device::StreamRef stream);  // x *= factor
Status add_scaled(float* x, const float* y, float factor, std::int64_t n,
                  device::StreamRef stream);  // fma(factor, y, x)
/// x [rows, cols] times 1 + scale * ln(floor((position + offset) / period) + 1), each row by its position.
Status temper(float* x, const std::int32_t* position, float scale, std::int32_t period, std::int32_t offset,
              std::int32_t rows, std::int32_t cols, device::StreamRef stream);
/// gate [rows, cols] = gated(gate, up), a row of `up` up_stride floats behind the one before it. limit: of
/// Activation::limited and bounded.
Status gate_rows(Activation activation, float limit, float* gate, const float* up, std::int64_t up_stride,
                 std::int32_t rows, std::int32_t cols, device::StreamRef stream);
/// x [rows, cols] = x * the number at `scalar`, the entry of a float32 vector of one; then + bias, the entry of a
/// float32 [cols], or none.
Status scale_by(float* x, const std::byte* const* scalar, const std::byte* const* bias, std::int64_t rows,
                std::int32_t cols, device::StreamRef stream);
/// x = cap * tanh(x / cap), with the CPU's bits.
Status softcap(float* x, float cap, std::int64_t n, device::StreamRef stream);

/// Rows of x [rows, cols] into columns [first, first + cols) of those of out [rows, out_cols]; clear_behind: the
/// columns behind become zero.
struct PlaceCall {
  const float* x = nullptr;
  std::int64_t rows = 0, cols = 0;
  float* out = nullptr;
  std::int64_t out_cols = 0, first = 0;
  bool clear_behind = false;
};
Status place_columns(const PlaceCall& call, device::StreamRef stream);

/// Heads of so many channels go through attention's tiles (AttentionCall::seen).
constexpr std::int64_t kTileHeadDims[] = {64, 80, 96, 128, 256};
constexpr std::int64_t kMostTileHeadDim = 256;
/// attention() takes heads of so many channels in f16 alone.
constexpr std::int32_t kWideHeadDim = 512;
/// Shared memory of a block in which it reads them a chunk at a time, else by halves (attention_wide.cu): less than the
/// 163 KiB of compute capability 8.0, more than the 99 KiB of 8.6, 8.9 and 12.0.
constexpr std::size_t kWideHeadShared = 160 * 1024;
/// Bytes of shared memory that a block of every device since 8.0 may have when it asks for them, and of one of 7.5,
/// whose kernels then take smaller tiles, or none.
constexpr std::size_t kLeastBlockShared = 99 * 1024, kSmallBlockShared = 64 * 1024;
/// Bytes of shared memory of a block that attention() over heads of so many channels takes at least: 64 KiB of 7.5, 99
/// of 8.6, or kWideHeadShared.
constexpr std::size_t attention_shared_bytes(std::int64_t head_dim, DType kv_dtype) {
  if (kv_dtype == DType::f32)
    return head_dim >= 256 ? kWideHeadShared : head_dim > 96 ? kLeastBlockShared : kSmallBlockShared;
  return kv_dtype == DType::f16 && head_dim >= 256 ? kLeastBlockShared : kSmallBlockShared;
}
/// Whether attention() works heads of so many channels in tiles (AttentionCall::tiles): wider ones are too many
/// registers, and K or V in floats, and heads of 256, too much for the shared memory of 7.5. Else rows in tiles go
/// singly, and may not see keys behind them (AttentionCall::seen).
constexpr bool has_attention_tiles(std::int64_t head_dim, DType kv_dtype, std::size_t block_shared_bytes) {
  if (block_shared_bytes < kLeastBlockShared) return kv_dtype != DType::f32 && head_dim <= 128;
  return head_dim <= kMostTileHeadDim;
}

/// Whether products of such inputs take addends (Product::addend): a block's shared memory holds a row of theirs.
constexpr bool has_addends(DType weight, std::int64_t cols, std::size_t block_shared_bytes) {
  const bool floats = weight == DType::f32 || weight == DType::f16 || weight == DType::bf16;
  const std::int64_t most = floats ? 16384 : 32768;
  return cols <= (block_shared_bytes < kLeastBlockShared ? most / 2 : most);
}

/// Tokens that candidates() and the sampler behind it can choose among; fewer with a block's 64 KiB of shared memory
/// of 7.5.
constexpr std::int32_t kMostVocab = 768'000;
constexpr std::int32_t most_vocab(std::size_t block_shared_bytes) {
  return block_shared_bytes < kLeastBlockShared ? 448'000 : kMostVocab;
}

/// probabilities = gating(scores[r]); chosen: the top_k largest of probability + bias in descending order (ties: the
/// smaller index), among the groups_used groups (of `groups`, of neighbours) whose two best sum up to most; weights:
/// their probabilities, divided by their sum (2^-14 at least) if normalize, times scale, times the expert's output
/// scale. The sums are of the chosen in that order.
struct ChooseCall {
  enum class Gating : std::uint8_t {
    softmax,         // of all scores: lane l of 32 sums experts l, l + 32, ..., the lanes by a tree (16, 8, 4, 2, 1)
    sigmoid,         // 1 / (1 + e^-score)
    softmax_chosen,  // the scores themselves choose; the weights are a softmax over those chosen
    // Likewise; a weight is the chosen one's share of a softmax over those not chosen before it whose scores s come
    // near its own, t: (t - s) / max(|s|, t) is not above 0.02, or not a number. Without groups, normalize and bias;
    // scale 1. A weight is 1 / the sum of e^(s - t): lane l of 32 sums experts l, l + 32, ..., the lanes by a tree (16,
    // 8, 4, 2, 1).
    sparse_mixer,
  };
  const float* scores = nullptr;                  // [rows, experts]
  std::int32_t rows = 0, experts = 0, top_k = 0;  // experts <= 1024, top_k <= 32
  Gating gating = Gating::sigmoid;
  const std::byte* const* bias = nullptr;    // entry of a float32 [experts] vector, or none
  std::int32_t groups = 1, groups_used = 1;  // at most 64 groups
  bool normalize = true;
  float scale = 1;
  const std::byte* const* output_scale = nullptr;  // entry of a float32 [experts] vector, or none
  const std::byte* const* hidden_scale = nullptr;  // likewise, behind it
  std::int32_t* chosen = nullptr;                  // [rows, top_k]
  float* weights = nullptr;                        // [rows, top_k]
};
Status choose(const ChooseCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu
