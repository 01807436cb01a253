// The contract of every op that computes, and the table of functions that implement it for one instruction set.
//
// ref/    plain float (double accumulation): what the mathematics says. Checked against by tolerance.
// cpu/    one table per Isa: plain, avx2, avx_vnni, avx512. All of them give the SAME BITS; tests compare for equality.
//
// NUMERICS (the summation order is part of the contract; a row of a result depends on that row's inputs alone, and
// on the CPU there is a single class: 1 row or 1000 rows give the same bits. matmul_segments, last below, is the GPU's
// class on the CPU, for rows of a matrix whose other rows a GPU computes).
//  * A dot product over K is a sum of terms t_0..t_{n-1}. Lane l (0 <= l < 32) adds the terms n with n % 32 == l in
//    ascending order, starting from +0, each by one fma. The 32 lanes are then added as a tree: lane l += lane l+16 for
//    l < 16, then +8, +4, +2, +1.
//  * Float weights (F32, F16, BF16): one term an element, acc = fma(w, x, acc), w widened exactly, x float32.
//  * Quantized weights: x is first quantized to int8 in blocks of 32 (quantize_q8). One term a block b of 32 elements;
//    I, J, M are exact integers, S16 the sums of x's int8 over 16 elements, S = S16[2b] + S16[2b+1]:
//      Q4_0 Q5_0 Q8_0 IQ4_NL MXFP4 Q1_0 Q2_0:
//                                    acc = fma(d*dx, I, acc)
//      Q4_1 Q5_1:                    acc = fma(d*dx, I, acc); acc = fma(m*dx, S, acc)
//      Q4_K Q5_K:                    acc = fma((d*sc)*dx, I, acc); acc = fma(-((dmin*m)*dx), S, acc)
//      IQ4_XS, and with step for d IQ2_XXS IQ3_XXS IQ3_S IQ1_S TQ1_0 TQ2_0:
//                                    acc = fma((d*ls)*dx, I, acc)
//      Q6_K Q3_K, and with step for d IQ2_XS IQ2_S IQ1_M:
//                                    acc = fma(d*dx, J, acc),  J = sc0*I0 + sc1*I1 over the two halves of 16
//      NVFP4:                        acc = fma(dx, J, acc),    J as there with sc half the scales, rounded once
//      Q2_K:                         acc = fma(d*dx, J, acc); acc = fma(-(dmin*dx), M, acc),  M = m0*S16_0 + m1*S16_1
//    (products in parentheses are rounded to float32 first; MXFP4's d is half its power-of-two scale and its codebook
//    the doubled integers, and so are NVFP4's scales and codebook; I, J, M, S are converted to float32, exact or
//    rounded to nearest even; step, scale and value of weights on a grid: tensor/grids.h.)
//  * exp is kernels::exp_f32 (one polynomial, the same bits everywhere), never the library's.
//  * matmul_segments has the bits of the GPU's products (kernels/gpu/ops.h, all but those of prompts), of the
//    same int8 activations. K is cut into segments of 256 elements at absolute positions (the last may be shorter). In
//    a segment one accumulator starts at +0 and takes the terms in ascending order; the segments' sums are then added
//    in ascending order to a total that starts at +0. Float weights: a term an element, as above. Quantized weights: a
//    term a block b of 32, but in Q2_K, Q3_K, Q6_K, IQ2_XS, IQ2_S, IQ1_M and NVFP4 a term a half block h of 16, with
//    I_h its exact integer:
//      Q4_0 Q5_0 Q8_0 IQ4_NL MXFP4 Q1_0 Q2_0:
//                                    acc = fma(d*dx, I, acc)
//      Q4_1 Q5_1:                    acc = fma(d*dx, I, acc); acc = fma(m, dx*S, acc)
//      Q4_K Q5_K:                    acc = fma((d*sc)*dx, I, acc); acc = fma(-(dmin*m), dx*S, acc)
//      IQ4_XS and those beside it:   acc = fma((d*ls)*dx, I, acc)
//      Q6_K and those beside it:     acc = fma((d*sc_h)*dx, I_h, acc)
//      NVFP4:                        acc = fma(sc_h*dx, I_h, acc)
//      Q2_K:                         acc = fma((d*sc_h)*dx, I_h, acc); acc = fma(-(dmin*m_h), dx*S16_h, acc)
//    gate_mul, add and quantize_q8 have the GPU's bits as they are.
//
// Thread-safety: pure functions. Nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu.h"
#include "kernels/activation.h"
#include "kernels/recurrent.h"
#include "kernels/rotation.h"
#include "tensor/dtype.h"

namespace millrace::kernels {

using device::Isa;

/// Activations quantized to int8. q: [rows, cols]; d: [rows, cols/32] scale = amax/127; sum16: [rows, cols/16] sums of
/// q. Rows are dense (stride = cols). q and d are 64-byte aligned if cols is a multiple of 64 and the base is.
struct Q8Rows {
  std::int8_t* q = nullptr;
  float* d = nullptr;
  std::int32_t* sum16 = nullptr;
};
constexpr std::int64_t q8_bytes(std::int64_t rows, std::int64_t cols) {
  return rows * (cols + cols / 32 * 4 + cols / 16 * 4) + 3 * 64;
}
/// Lays Q8Rows out in memory of q8_bytes(rows, cols) bytes.
Q8Rows q8_rows_at(std::byte* memory, std::int64_t rows, std::int64_t cols);

/// True if products with this dtype take quantized activations (all but F32, F16, BF16).
bool uses_q8(DType dtype);

/// y[r * y_stride + n] = dot(weight row n, x row r) for n in [0, weight_rows), r in [0, x_rows).
struct MatmulArgs {
  DType dtype = DType::f32;
  const std::byte* weight = nullptr;  // [weight_rows] rows of row_bytes(dtype, cols), GGUF blocks, any alignment
  std::int64_t weight_rows = 0;
  std::int64_t cols = 0;     // multiple of the dtype's block (and of 32 for quantized dtypes)
  const float* x = nullptr;  // [*, cols], stride x_stride floats: for float dtypes
  std::int64_t x_stride = 0;
  Q8Rows x_q8;  // [*, cols]: for quantized dtypes
  std::int64_t x_rows = 0;
  const std::int32_t* x_index = nullptr;  // if set, row r of the product reads x row x_index[r]
  // Names what x_q8 holds: calls with the same name and the same workspace may share what they make of it, so that x is
  // arranged once for many tasks. 0: nameless. A name never stands for two things in the life of a workspace.
  std::uint64_t x_name = 0;
  float* y = nullptr;
  std::int64_t y_stride = 0;  // floats
  // As many bytes as the product's function in the table says, 64-byte aligned, owned by the calling thread, zero
  // before its first use; only that product may write it (matmul and matmul_segments share none).
  std::byte* workspace = nullptr;
};

/// Attention of query rows of one sequence and one KV head over the keys in its blocks. Keys are grouped in blocks of
/// kKvBlock tokens at absolute positions; inside a block K lies channel-major (lanes are keys), V token-major.
/// Online softmax runs over the blocks in ascending order within a chunk of kAttentionChunk keys; chunk results are
/// merged in ascending order (attention_merge). Dot order: ascending channel, one fma each. V order: ascending key.
constexpr std::int64_t kKvBlock = 64;
constexpr std::int64_t kMostQuantizedKvDim = 512;
constexpr std::int64_t kMostIndexDim = 256;     // of an index key
constexpr std::int64_t kMostLatentDim = 1024;   // of attention over latents, in any format
constexpr std::int64_t kAttentionChunk = 1024;  // absolute positions, a multiple of kKvBlock

struct AttentionArgs {
  const float* q = nullptr;  // [rows, group, head_dim] at q + r * q_row_stride + g * q_head_stride
  std::int64_t q_row_stride = 0, q_head_stride = 0;
  std::int64_t rows = 0, group = 0;  // group = heads / kv_heads
  std::int64_t head_dim = 0;
  const std::int32_t* positions = nullptr;  // [rows] absolute position; row r sees keys in
                                            // [max(0, positions[r] - window + 1), newest[r]]
  const std::int32_t* newest = nullptr;     // [rows], not before the row's position; null: that position itself
  std::int64_t window = 0;                  // 0: unlimited
  float scale = 1;
  float cap = 0;                  // scaled scores become cap * tanh(score / cap); 0: they stay
  const float* slopes = nullptr;  // [group]: scores lose so much for each token between key and query; may be null
  // f16, f32; q8_0, q4_0, or as tensor/kv_codec.h has them q3_k or q2_0 (head_dim a multiple of 32, at most
  // kMostQuantizedKvDim); over latents f16, f32 or q8_0
  DType kv_dtype = DType::f16;
  // Of a quantized cache: bit i is set where the chunk's block i lies in f16 (rotated as the others are).
  std::uint32_t plain_blocks = 0;
  // Of a quantized cache whose keys and values were rotated: the span. Queries are rotated before they are used, and
  // results are of rotated values: whoever merges them rotates them back. 0: all lie as they are.
  std::int64_t rotation = 0;
  std::int64_t chunk = 0;                      // computes keys [chunk, chunk + 1) * kAttentionChunk only
  const std::byte* const* k_blocks = nullptr;  // the chunk's blocks, its 64 i-th key first: [head_dim, 64]; as
                                               // kv/layout.h lays it
  const std::byte* const* v_blocks = nullptr;  // [64, v_dim]; blocks no row sees are not touched
  // Over latents: k_blocks is null, v_blocks are the latents' [64, head_dim], which are the keys as they are, and
  // whose first v_dim channels are the values. Elsewhere v_dim is of the values, and head_dim where they are quantized.
  std::int64_t v_dim = 0;
  float* latents = nullptr;  // scratch of the calling thread, [64, head_dim]: over latents alone
  float* acc = nullptr;      // out: [rows, group, v_dim] unnormalised, dense
  float* max = nullptr;      // out: [rows, group]
  float* sum = nullptr;      // out: [rows, group]; 0 where the chunk holds no visible key
};

/// Scores of one query with the index keys of blocks: out[s] = sum over heads h, ascending, of weights[h] * max(0, q_h
/// . k_s), each one fma, the sum starting from +0; a dot product as in attention.
struct IndexScoresArgs {
  const float* q = nullptr;                  // [heads, dim]
  const float* weights = nullptr;            // [heads]
  std::int64_t heads = 0, dim = 0;           // at most kMostIndexDim
  DType dtype = DType::f16;                  // of the keys: f16 or f32
  const std::byte* const* blocks = nullptr;  // [dim, kKvBlock] each
  std::int64_t count = 0;                    // blocks
  float* out = nullptr;                      // [count, kKvBlock]
};

struct Table {
  Isa isa;
  void (*quantize_q8)(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t cols, Q8Rows out);
  void (*matmul)(const MatmulArgs& args);
  std::int64_t (*matmul_workspace_bytes)(std::int64_t cols);
  /// The same products with the GPU's bits. Reads each weight from memory once for every 8 rows of x, in order: for
  /// few.
  void (*matmul_segments)(const MatmulArgs& args);
  std::int64_t (*matmul_segments_workspace_bytes)(std::int64_t cols);
  /// out[r] = x[r] / rms(x[r]) * weight; mean of squares by the dot order above. out may be x.
  void (*rms_norm)(const float* x, const float* weight, std::int64_t rows, std::int64_t cols, float eps, float* out);
  /// out[r] = (x[r] - mean) / sqrt(variance + eps) * weight + bias; both means by the dot order above. bias may be
  /// null, out may be x.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, std::int64_t rows, std::int64_t cols,
                     float eps, float* out);
  /// x[r] = max(x[r] - (mean + deviations * standard deviation), 0) in place; both means as layer_norm() has them.
  void (*statistical_top_k)(float* x, std::int64_t rows, std::int64_t cols, float deviations);
  /// x[r] *= rms(like[r]) / sqrt(max(mean of squares of x[r], least)); both means by the dot order above.
  void (*match_rms)(float* x, const float* like, std::int64_t rows, std::int64_t cols, float least);
  /// Rotates pairs in place. x: [head_dim]; cos_sin: [rotary/2, 2]. neox: pair (i, i + rotary/2); else (2i, 2i + 1).
  void (*rope)(float* x, const float* cos_sin, std::int64_t rotary, bool neox);
  /// gate[i] = gated(gate[i], up[i]), see Activation. limit: of Activation::limited and bounded.
  void (*gate_mul)(Activation activation, float limit, float* gate, const float* up, std::int64_t n);
  void (*xielu)(const Xielu& shape, float* x, std::int64_t n);
  void (*add)(float* x, const float* y, std::int64_t n);                  // x += y
  void (*add_scaled)(float* x, const float* y, float w, std::int64_t n);  // x = fma(w, y, x)
  void (*softmax)(float* x, std::int64_t n);                              // in place
  void (*attention_chunk)(const AttentionArgs& args);
  void (*index_scores)(const IndexScoresArgs& args);
  /// out[d] = sum over chunks in order of acc * exp(max - max_all), divided by the total. acc: [chunks, v_dim] with
  /// stride floats between chunks; max, sum: [chunks] with their stride. sink: the score of one more key, first in
  /// order, whose value is zero; -inf: none.
  void (*attention_merge)(const float* acc, std::int64_t acc_stride, const float* max, const float* sum,
                          std::int64_t stat_stride, std::int64_t chunks, std::int64_t v_dim, float sink, float* out);
  /// x[i] = cap * tanh(x[i] / cap), tanh(y) being 1 - 2 / (1 + e^(2 y))
  void (*softcap)(float* x, float cap, std::int64_t n);
  /// In place; n is a multiple of the span, and this of 4. NUMERICS of kernels/rotation.h.
  void (*rotate)(float* x, std::int64_t n, std::int64_t span);
  void (*f32_to_f16_row)(const float* x, std::int64_t n, std::uint16_t* out);
  /// x[r] /= sqrt(sum of squares of x[r] + eps), in place; the sum by the dot order above.
  void (*l2_norm)(float* x, std::int64_t rows, std::int64_t cols, float eps);
  void (*sigmoid_mul)(float* x, const float* gate, std::int64_t n);  // x[i] /= 1 + e^-gate[i]
  void (*convolve)(const ConvolutionArgs& args);                     // kernels/recurrent.h
  void (*delta_rule)(const DeltaRuleArgs& args);
  void (*scan)(const ScanArgs& args);
  void (*selective_scan)(const SelectiveScanArgs& args);
};

/// The table for `isa`. REQUIRES: device::has_isa(isa).
const Table& table(Isa isa);

/// Indices of the k largest of x (ties: the smaller index first), in descending order. k <= n. Same on every Isa.
void top_k(const float* x, std::int64_t n, std::int64_t k, std::int32_t* indices);

/// Indices of the k largest of x[0, n) in ascending order, of equal values the smaller indices; a NaN is less than all.
/// scratch: float [n]. k <= n. Same on every Isa.
void largest(const float* x, std::int64_t n, std::int64_t k, float* scratch, std::int32_t* indices);

/// exp within 2 ulp, correct at 0, underflows to 0, overflows to +inf, NaN stays NaN.
float exp_f32(float x);

}  // namespace millrace::kernels
