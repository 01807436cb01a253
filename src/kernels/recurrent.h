// The contract of what layers with a state compute: a causal convolution over channels, the gated delta rule, and the
// selective scan. A header of its own, because the layout of a state is part of it. Sources: Mamba (arXiv:2312.00752)
// for the convolution, Gated Delta Networks (arXiv:2412.06464), Kimi Linear (arXiv:2510.26692) for the rule whose
// decays differ by channel, Mamba-2 (arXiv:2405.21060) for the scan.
// Mamba's own scan (the first) is one head whose values each have a step, and for each key a decay.
//
// NUMERICS. Rows are worked one after the other, whatever shares a pass with them; channels, heads and values are
// independent of each other. So a row's bits follow from its sequence's rows up to it alone.
//  * Convolution: a channel's taps are added in ascending order (the oldest input first), each by one fma, from +0 on.
//  * A head of the delta rule keeps a matrix S [keys, values]. For each value, with sums over the keys by one fma each,
//    of even keys in one and of odd ones in another, from +0 on, ascending, added last (even + odd):
//      read = sum over k of (g S[k]) key[k];  d = beta (value - read);  S[k] = fma(d, key[k], g S[k]);
//      out = sum over k of S[k] query[k]
//    products in parentheses are rounded to float32 first. g is the head's, or g[k], one for each key.
//  * A head of the scan keeps a matrix S [keys, values], too; its keys are the state's channels. For each value:
//      S[k] = fma((step value), b[k], (g S[k]));  out = fma(skip, value, sum over k of S[k] c[k])
//    with the delta rule's sum.
//  * In Mamba's, step and skip are a value's own, and so is g[k] = e^(step a[k]), with step = ln(1 + e^x) of what is
//    given: max(x, 0) + 2 z (1 + z^2/3 + z^4/5 + ... + z^16/17), z = y / (2 + y), y = e^-|x|, in float32 by fma.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

namespace millrace::kernels {

/// Values of a head that are worked together: a state's matrix lies as [values / kStateLanes, keys, kStateLanes].
constexpr std::int64_t kStateLanes = 32;
/// In a scan, which has smaller heads, too: as [values / lanes, keys, lanes]. REQUIRES: a multiple of kScanLanes.
constexpr std::int64_t kScanLanes = 16;
constexpr std::int64_t scan_lanes(std::int64_t values) { return values % kStateLanes == 0 ? kStateLanes : kScanLanes; }
constexpr std::int64_t kMostTaps = 8;

/// out[r, c] = act(sum over t of weight[c, t] * input[r - taps + 1 + t, c] + bias[c]) for channels [first, last), where
/// inputs before row 0 are those of `before`.
struct ConvolutionArgs {
  float* x = nullptr;    // [rows, x_stride]: inputs
  float* out = nullptr;  // [rows, out_stride]: results; null: they replace the inputs
  std::int64_t x_stride = 0, out_stride = 0, rows = 0;
  const float* weight = nullptr;  // [channels, taps]
  const float* bias = nullptr;    // [channels]; null: none
  bool silu = false;              // results go through it
  std::int64_t taps = 0;          // 2 to kMostTaps
  std::int64_t channels = 0;      // of a row of before and after
  const float* before = nullptr;  // [taps - 1, channels]: the inputs before row 0, the oldest first; null: zeros
  float* after = nullptr;         // [taps - 1, channels], likewise behind the last row; not `before`
  std::int64_t first = 0, last = 0;
};

/// One head's rows, for values [first, first + kStateLanes) of it.
struct DeltaRuleArgs {
  const float *query = nullptr, *key = nullptr;  // [rows, qkv_stride], keys of each, normalised
  const float* value = nullptr;                  // [rows, qkv_stride], the lanes' first
  std::int64_t qkv_stride = 0;
  const float* beta = nullptr;   // [rows, gate_stride]
  const float* decay = nullptr;  // [rows, decay_stride]: g of the head, or of each of its keys
  std::int64_t gate_stride = 0, decay_stride = 0;
  bool channel_decays = false;  // each key has a g
  float* out = nullptr;         // [rows, out_stride], the lanes' first
  std::int64_t out_stride = 0;
  std::int64_t rows = 0, keys = 0;  // without rows the state goes on as it is; keys: even
  float scale = 1;                  // of the queries
  const float* before = nullptr;    // [keys, kStateLanes]: the state before row 0; null: zeros
  float* after = nullptr;           // [keys, kStateLanes]: behind the last row; may be `before`
};

/// One head's rows, for so many values of it as scan_lanes() says.
struct ScanArgs {
  const float *value = nullptr, *b = nullptr, *c = nullptr;  // [rows, x_stride]: the lanes' first; keys of the others
  std::int64_t x_stride = 0;
  const float *step = nullptr, *decay = nullptr;  // [rows, head_stride]: how far a row goes, and g
  std::int64_t head_stride = 0;
  float skip = 0;        // of the value that goes by the state
  float* out = nullptr;  // [rows, out_stride], the lanes' first
  std::int64_t out_stride = 0;
  std::int64_t rows = 0, keys = 0, lanes = 0;  // without rows the state goes on as it is; keys: even
  const float* before = nullptr;               // [keys, lanes]: the state before row 0; null: zeros
  float* after = nullptr;                      // [keys, lanes]: behind the last row; may be `before`
};

/// So many channels of Mamba's scan, as scan_lanes() of all of them says.
struct SelectiveScanArgs {
  const float *value = nullptr, *step = nullptr;  // [rows, stride], the lanes' first; steps before their softplus
  std::int64_t stride = 0;
  const float *b = nullptr, *c = nullptr;  // [rows, key_stride], keys of each
  std::int64_t key_stride = 0;
  const float *a = nullptr, *skip = nullptr;   // [lanes, keys]; [lanes]
  float* out = nullptr;                        // [rows, stride], the lanes' first; not `value`
  std::int64_t rows = 0, keys = 0, lanes = 0;  // keys: even, kMostSelectiveKeys at most
  const float* before = nullptr;               // [keys, lanes]: the state before row 0; null: zeros
  float* after = nullptr;                      // [keys, lanes]: behind the last row; may be `before`
};
constexpr std::int64_t kMostSelectiveKeys = 64;

/// ln(1 + e^x), and 1 / (1 + e^-x); the same bits everywhere.
float softplus_f32(float x);
float sigmoid_f32(float x);

}  // namespace millrace::kernels
