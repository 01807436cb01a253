// The contract of what layers with a state compute on a GPU: a causal convolution over channels, the gated
// delta rule, the selective scan. What they compute and how a state lies says kernels/recurrent.h. Rules as in
// ops.h.
//
// Rows of a window are cut into runs, a sequence's at the borders of its blocks. A kernel goes through a sequence's
// runs in order with the state at hand, and leaves it behind each run that has a place for it.
//
// NUMERICS. Rows are worked one after the other, so that a row's bits follow from its sequence's rows up to it alone.
//  * Convolution: the CPU's bits.
//  * A sum over the keys: eight lanes, key k in lane k / 4 % 8; a lane adds its even keys in one and its odd keys in
//    another, from +0 on, ascending, by one fma each, then even + odd; the lanes by a tree (4, 2, 1).
//  * Delta rule: read = g (sum over k of S[k] key[k]); d = beta (value - read); S[k] = fma(d, key[k], g S[k]); out =
//    scale (sum over k of S[k] query[k]). Products in parentheses and before them are rounded to float32 first. Where
//    each key has a g: read = sum over k of (g[k] S[k]) key[k], and S[k] = fma(d, key[k], g[k] S[k]).
//  * Scan: S[k] = fma((step value), b[k], (g S[k])); out = fma(skip, value, sum over k of S[k] c[k]). So its states
//    have the CPU's bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/ops.h"
#include "kernels/recurrent.h"

namespace millrace::kernels::gpu {

constexpr std::int32_t kMostStateKeys = 256;

/// Rows of one sequence of a window. A sequence's runs follow each other in the table, and their rows in the window.
struct StateRun {
  const std::byte* before = nullptr;   // the group's block with the states before sequence_row; null: zeros
  std::byte* after = nullptr;          // the block that takes those behind the run; null: none does. Maybe `before`
  std::int32_t first_row = 0;          // of the window
  std::int32_t rows = 0;               // maybe none
  std::int32_t sequence_row = 0;       // the sequence's first row of the window
  std::int32_t sequence_has_more = 0;  // whether the sequence has other runs
};

/// In device memory, written by copies and never by kernels of the pass.
struct StateRuns {
  const StateRun* run = nullptr;            // [count]; behind the last of the window there may be empty ones
  const std::int32_t* first_run = nullptr;  // [sequences + 1]: which runs a sequence has
  std::int32_t count = 0, sequences = 0;
};

/// x, or where it is given, out = act(convolution of x), see ConvolutionArgs. Where `heads` are given, the first heads
/// of kConvolvedHead channels then get the length 1, as by l2_norm_heads() (heads.h).
struct ConvolveCall {
  StateRuns runs;
  std::int64_t offset = 0;  // bytes from a block's start to the layer's last inputs, [taps - 1, channels]
  float* x = nullptr;       // [rows, channels]
  float* out = nullptr;     // [rows, out_stride], its first channels; null: in place
  const std::byte* const* weight = nullptr;  // entry of float32 [channels, taps]
  const std::byte* const* bias = nullptr;    // entry of float32 [channels], or none
  bool silu = false;
  std::int32_t taps = 0, channels = 0, out_stride = 0;
  std::int32_t heads = 0;
  float eps = 0;  // of their norm
  /// Scratch, [runs, taps - 1, channels]. May be null where every sequence has one run at most.
  float* borders = nullptr;
};
constexpr std::int32_t kConvolvedHead = 128;
constexpr std::size_t convolve_workspace_bytes(std::int64_t runs, std::int64_t taps, std::int64_t channels) {
  return static_cast<std::size_t>(runs * (taps - 1) * channels) * sizeof(float);
}
Status convolve(const ConvolveCall& call, device::StreamRef stream);

/// out = the rule over every head's state. beta goes through a sigmoid first.
struct DeltaRuleCall {
  StateRuns runs;
  std::int64_t offset = 0;                        // bytes from a block's start to the layer's first matrix
  const float* qkv = nullptr;                     // [rows, query heads | key heads | value heads], q and k normalised
  const float *beta = nullptr, *decay = nullptr;  // [rows, value_heads]
  bool channel_decays = false;                    // decay: [rows, value_heads, key_dim], a g for each key
  float* out = nullptr;                           // [rows, value_heads * value_dim]
  std::int32_t key_heads = 0, value_heads = 0;    // value_heads a multiple of key_heads
  std::int32_t key_dim = 0, value_dim = 0;        // even, at most kMostStateKeys; a multiple of kStateLanes
  bool tiled = false;                             // value head h reads key head h % key_heads; else neighbours share
  float scale = 1;                                // of the queries
};
Status delta_rule(const DeltaRuleCall& call, device::StreamRef stream);

/// out = the scan over every head's state.
struct ScanCall {
  StateRuns runs;
  std::int64_t offset = 0;                        // bytes from a block's start to the layer's first matrix
  const float* x = nullptr;                       // [rows, heads' values | groups' b | groups' c]
  const float *step = nullptr, *decay = nullptr;  // [rows, heads]
  const std::byte* const* skip = nullptr;         // entry of float32 [heads]
  float* out = nullptr;                           // [rows, heads * head_dim]
  std::int32_t heads = 0, head_dim = 0;           // head_dim: a multiple of kScanLanes
  std::int32_t groups = 0, keys = 0;              // keys: even, at most kMostStateKeys
};
Status scan(const ScanCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu
