// The contract of every op that computes on a GPU. Launchers only: they put work on a stream and return.
//
// NUMERICS. A row of a result depends on that row's inputs and the weights alone, never on how many rows, tiles or
// blocks share the launch. Everything is of one class (matvec and matmul of the same row give the same bits), but for
// matmul_prompt(), which is one of its own.
//  * Activations that meet quantized weights are int8 in blocks of 32: d = amax / 127, q = round to nearest even of
//    x * (1 / d) (all zero where d is 0); exactly what the CPU's quantize_q8 gives. `s` are exact sums of q.
//  * A dot product over K is cut into segments of 256 elements at absolute positions (the last may be shorter). In a
//    segment one accumulator starts at +0 and takes terms in ascending order; segments' sums are then added in
//    ascending order to a total that starts at +0.
//  * Float weights (F32, F16, BF16): a term an element, acc = fma(w, x, acc), w widened exactly.
//  * Quantized weights: a term a scale group g: 32 elements, or 16 for Q2_K, Q3_K, Q6_K, IQ2_XS, IQ2_S, IQ1_M,
//    NVFP4. I is the exact integer dot product of the group's int8 weights (offsets such as Q4_0's -8 included) and x's
//    int8:
//      acc = fma(ws * dx, I, acc), and then, where the dtype has mins, acc = fma(-wm, dx * S, acc)
//    ws is the group's float scale (d; d*sc; MXFP4, NVFP4: half the scale), wm its min (-m for Q4_1 and Q5_1; dmin*m),
//    S the sum of x's int8 over the group. Each product named here is rounded to float once.
//  * matmul_prompt(): x and the weights (fma(ws, q, -wm), or ws * q where there are no mins, in float) are rounded to
//    bfloat16, and a dot product is a chain of steps of 16 elements in ascending order, from +0, in float sums of the
//    tensor core: how the device adds the sixteen is its own affair.
//    By int8 (PromptProducts): x is rounded as prompt_int8.h says; a segment's sum is, in float, total = mins + total,
//    the products of tf32(-wm) and tf32(d * S) of eight groups (Q2_K: twice eight) as the tensor core adds them, and
//    then fma(dw * d, I, total) with dw the super-block's scale and I the exact sum of each group's integer scale times
//    its integer dot product; segments in ascending order, from +0.
//  * exp is exp_f32 of kernels.h, operation for operation, and so are the gates (Activation). No fast-math anywhere:
//    kernels are compiled with --fmad=false and say fma where they mean it.
//  * Attention: keys in chunks of kAttentionChunk at absolute positions; see attention().
//
// Weights are found through a table in device memory: `address` points at the entry that holds where the matrix lies
// now, so that a captured graph keeps working when weights move. Matrices are GGUF blocks as in the file, rows dense,
// first byte 256-byte aligned, with at least 256 readable bytes after the last.
// Activations are dense row-major float32, 256-byte aligned, unless a stride is named.
// Thread-safety: pure but for the stream. Errors: a launcher returns the launch's error; bad arguments are our own bug.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/activation.h"
#include "tensor/dtype.h"

namespace millrace::kernels::gpu {

constexpr int kSegment = 256;
constexpr int kMatvecRows = 4;                           // rows of activations that matvec takes at most
constexpr int kMostProducts = 4, kMostTileProducts = 3;  // of a call
constexpr int kAttentionChunk = 128;                     // keys
constexpr int kCandidates = 64;                          // that the sampler gets

/// Of 32 activations.
struct alignas(16) Q8Scale {
  float d;              // scale
  float ds;             // d * s, rounded once
  std::int32_t s;       // sum of the 32 int8
  std::int16_t s16[2];  // sums of the first and the last 16
};

/// Activations as int8. q: [rows, cols]; scale: [rows, cols / 32].
struct Q8 {
  std::int8_t* q = nullptr;
  Q8Scale* scale = nullptr;
};
constexpr std::size_t q8_bytes(std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(rows * cols + rows * (cols / 32) * static_cast<std::int64_t>(sizeof(Q8Scale))) + 512;
}
inline Q8 q8_at(std::byte* memory, std::int64_t rows, std::int64_t cols) {
  const std::size_t q_bytes = (static_cast<std::size_t>(rows * cols) + 255) / 256 * 256;
  return {reinterpret_cast<std::int8_t*>(memory), reinterpret_cast<Q8Scale*>(memory + q_bytes)};
}

/// A bfloat16's bits.
using Bf16 = std::uint16_t;

/// A prompt's activations as int8 with a scale for 256 elements: prompt_int8.h has the layout.
struct PromptInt8 {
  std::int8_t* q = nullptr;
  float* scales = nullptr;

  static constexpr std::int64_t padded_rows(std::int64_t rows) { return (rows + 127) / 128 * 128; }
  static constexpr std::int64_t segments(std::int64_t cols) { return (cols + kSegment - 1) / kSegment; }
};
constexpr std::size_t bf16_bytes(std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(rows * cols) * sizeof(Bf16);
}

/// A matrix by its entry in the device's table of addresses.
struct Matrix {
  const std::byte* const* address = nullptr;
  DType dtype = DType::f32;
  std::int32_t rows = 0;
};

enum class Effect : std::uint8_t {
  store,  // y = x w^T (+ bias or addend)
  add,    // y = y + (x w^T (+ bias or addend)): the residual stream
  gated,  // y = gated(x w0^T (+ bias or addend), x w1^T ...): exactly two products, the gate's and the up's, of equal
          // shape, with biases or with addends
};

struct Product {
  Matrix weight;
  const std::byte* const* bias = nullptr;  // entry of a float32 [rows] vector, or none
  float* y = nullptr;                      // [x_rows, weight rows], y_stride floats apart; gated: the first's counts
  std::int64_t y_stride = 0;
  /// For matvec, where has_addends() and there is no bias: [x_rows, weight rows], dense; or none.
  const float* addend = nullptr;
};

constexpr int kMostGpus = 8;

/// Other devices' memory that a product's result goes to as well, which this one may write to: in the strides of its
/// own, and in the same forms.
struct ProductCopies {
  struct Copy {
    float* y = nullptr;
    Bf16* y_bf16 = nullptr;
  };
  Copy copies[kMostGpus - 1];
  std::int32_t count = 0;
};

/// Products of one input with several weights in one launch.
struct MatmulCall {
  Product products[kMostProducts];  // of matmul and matmul_prompt kMostTileProducts
  int count = 0;
  Effect effect = Effect::store;
  Activation activation = Activation::silu;  // gated
  float limit = 0;                           // of Activation::limited and bounded
  std::int32_t cols = 0;                     // a multiple of the dtype's block, and of 32 for quantized dtypes
  std::int32_t x_rows = 0;
  const float* x = nullptr;  // [x_rows, cols], x_stride floats apart: for float dtypes
  std::int64_t x_stride = 0;
  Q8 x_q8;  // [x_rows, cols]: for quantized dtypes
  Q8 y_q8;  // gated: if set, the result is also (y set) or only (y null) quantized here, [x_rows, rows]
  // For matmul_prompt: by int8 (prompt_int8.h), or bfloat16, dense.
  PromptInt8 x_rounded;
  const Bf16* x_bf16 = nullptr;
  bool of_prompt() const { return x_rounded.q != nullptr || x_bf16 != nullptr; }
  Bf16* y_bf16 = nullptr;
  std::int32_t y_bf16_cols = 0;  // of the buffer that y_bf16 is part of; 0: `rows`, the result alone
  ProductCopies also;            // of one product, or a pair
  /// For matvec with addends: becomes 1 when all but these, which the kernel before makes, may be read. None: that
  /// kernel's end is waited for.
  const std::int32_t* ready = nullptr;
};

/// A product of rows with the experts chosen for them, in one launch. An entry is a (row, place) pair; entry e is row
/// e / top_k and place e % top_k. All experts have the same shape and, by matrix, the same dtype.
struct ExpertCall {
  const std::byte* const* weight = nullptr;  // entry of expert 0's matrix; expert i's is weight[i * address_stride]
  const std::byte* const* up = nullptr;      // gated: the up matrices, with the same stride
  std::int32_t address_stride = 0;
  const std::byte* const* bias = nullptr;  // entry of float32 for `weight`, `rows` of each expert; or none
  const std::byte* const* up_bias = nullptr;
  std::int32_t bias_stride = 0;  // floats from an expert's biases to the next one's: rows, or more
  /// Entries of float32 [experts], which multiply products with `weight`, or with `up`, before a bias is added; or
  /// none.
  const std::byte *const *scale = nullptr, *const *up_scale = nullptr;
  DType dtype = DType::f32, up_dtype = DType::f32;
  Effect effect = Effect::store;  // store or gated
  Activation activation = Activation::silu;
  float limit = 0;                  // of Activation::limited and bounded
  std::int32_t rows = 0, cols = 0;  // of a matrix
  std::int32_t entries = 0, experts = 0;
  const std::int32_t* chosen = nullptr;  // [entries] expert of each entry
  std::int32_t entries_per_x = 1;        // entry e reads x row e / entries_per_x (top_k, or 1)
  /// For matvec_experts: a matrix beside the experts', with their shape and dtypes, that every row goes through, and
  /// its up; null: none. A row then has `places` entries, the last of them this matrix's, where chosen is [rows, places
  /// - 1], and there are no biases and scales.
  const std::byte *const *shared = nullptr, *const *shared_up = nullptr;
  std::int32_t places = 0;
  /// For matmul_experts: entries sorted by expert (sort_entries).
  const std::int32_t* sorted = nullptr;        // [entries] entry numbers, by expert, ascending within one
  const std::int32_t* expert_first = nullptr;  // [experts + 1] into sorted
  const float* x = nullptr;                    // float dtypes: [*, cols], dense
  Q8 x_q8;
  float* y = nullptr;  // [entries, rows], by entry; may be null if y_q8 is set
  Q8 y_q8;
};

// --- Products (matvec.cu, matmul.cu). Every dtype that computes. ---

/// x_rows <= kMatvecRows. Reads each weight once; bound by device memory.
Status matvec(const MatmulCall& call, device::StreamRef stream);
/// Any x_rows; tensor cores for quantized dtypes.
Status matmul(const MatmulCall& call, device::StreamRef stream);
/// Any x_rows, x_rounded or x_bf16 as prompt_products() says; all products of one dtype that has them
/// (has_prompt_product()). Bound by the tensor cores. gated: SiLU, with limits or without, or GELU.
Status matmul_prompt(const MatmulCall& call, device::StreamRef stream);
/// What the current device multiplies a prompt's rows by.
enum class PromptProducts : std::uint8_t {
  none,  // matmul()
  int8,  // code for 8.0 and later: quantized dtypes whose groups have integer scales, Q2_K to Q6_K and IQ4_XS
  bf16,  // compute capability 9.0, and the program was built for it (sm_90a): every quantized dtype
};
PromptProducts prompt_products();
constexpr bool has_prompt_product(PromptProducts products, DType dtype) {
  switch (dtype) {
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
    case DType::iq4_xs:
      return products != PromptProducts::none;
    default:
      return products == PromptProducts::bf16;
  }
}
/// For few entries (decode): each entry reads its expert's matrix.
Status matvec_experts(const ExpertCall& call, device::StreamRef stream);
/// For many entries (prompts, batches): each touched expert is read once for all its entries, as far as tiles allow.
Status matmul_experts(const ExpertCall& call, device::StreamRef stream);

// --- Row ops (rows.cu) ---

/// out[r] = the table's row tokens[r], decoded. Any dtype. cols as in the table.
Status embed(const Matrix& table, const std::int32_t* tokens, std::int32_t rows, std::int32_t cols, float* out,
             device::StreamRef stream);
/// out[r] = x[r] / rms(x[r]) * weight, and its int8 form. out or q8.q may be null (then it is not written).
/// x_index: if set, output row r reads x[x_index[r]]. weight: entry of a float32 vector.
Status rms_norm(const float* x, const std::int32_t* x_index, const std::byte* const* weight, std::int32_t rows,
                std::int32_t cols, float eps, float* out, Q8 q8, device::StreamRef stream);
Status quantize_q8(const float* x, std::int64_t x_stride, std::int32_t rows, std::int32_t cols, Q8 out,
                   device::StreamRef stream);
/// To nearest even. n: a multiple of 8.
Status to_bf16(const float* x, std::int64_t n, Bf16* out, device::StreamRef stream);
Status add(float* x, const float* y, std::int64_t n, device::StreamRef stream);  // x += y
/// gate = gated(gate, up). limit: of Activation::limited and bounded.
Status gate_mul(Activation activation, float limit, float* gate, const float* up, std::int64_t n,
                device::StreamRef stream);
/// out[r] = x[index[r]]
Status gather_rows(const float* x, const std::int32_t* index, std::int32_t rows, std::int32_t cols, float* out,
                   device::StreamRef stream);

/// Where the keys and values of a layer lie: blocks of 64 tokens, K [head_dim, 64] and V [64, head_dim] a head. In
/// q8_0 those are int8 and their float16 scales follow, K's as [head_dim / 32, 64] and V's as [64, head_dim / 32]; in
/// q4_0 nibbles, K's as [head_dim / 32, 16, 64] and V's as [64, head_dim / 32, 16] bytes; in few bits (q3_k and q2_0)
/// fields, signs and scales: see kv/layout.h. Blocks and offsets are multiples of 16 bytes.
///
/// Of few bits there are plain blocks beside, in q8_0: a row sees its sequence's first block, and the one that it lies
/// in itself, there.
struct KvView {
  /// Blocks of one kind.
  struct Blocks {
    const std::byte* const* table = nullptr;  // device: [sequences, max_blocks] addresses
    std::int64_t k_offset = 0, v_offset = 0;  // bytes from a block's start to this layer's head 0
    std::int64_t head_bytes = 0;              // between heads
  };
  Blocks blocks;
  Blocks plain;  // of few bits alone
  std::int32_t max_blocks = 0;
  DType dtype = DType::f16;  // f16, f32 or, where head_dim is a multiple of 32, q8_0, q4_0, q3_k or q2_0
  std::int32_t kv_heads = 0, head_dim = 0;
  /// Not in f16 and f32: the span by which keys and values are rotated (kernels/rotation.h), or 0.
  std::int32_t rotation = 0;
};

/// Of every row of the pass, in device memory. Kernels read this, tables of addresses and of blocks, weights, angles
/// and keys of earlier passes while earlier kernels of the stream may still run: they are written by copies, never by
/// kernels of the same pass.
struct RowView {
  std::int32_t rows = 0;
  const std::int32_t* token = nullptr;
  const std::int32_t* sequence = nullptr;
  const std::int32_t* position = nullptr;
};

/// Prepares queries and stores keys and values, in one launch: heads' RMS norm where a weight is given (Qwen3), and of
/// the values without one where it is asked for (Gemma 4), RoPE by cos_sin ([rows, rotary / 2] pairs), then q [rows,
/// heads * head_dim] in place and k, v [rows, kv_heads * head_dim] into the cache at each row's position; as q8_0 with
/// the bits of encode_row (tensor/codec.h), as q4_0 with those of encode_kv_q4 (tensor/kv_codec.h), as few bits with
/// those of encode_kv_few, and then into the plain block of the position as q8_0, too. Where the cache is rotated, q, k
/// and v are, by the bits of kernels/rotation.h, k and q after RoPE. head_dim: a multiple of 4, at most 512.
struct RopeStoreCall {
  RowView rows;
  KvView kv;
  float* q = nullptr;
  const float* k = nullptr;  // null: queries alone, whose keys another layer stores
  const float* v = nullptr;
  std::int32_t heads = 0;
  const std::byte* const* q_norm = nullptr;  // entry of float32 [head_dim], or none
  const std::byte* const* k_norm = nullptr;
  bool normalize_v = false;
  float eps = 0;
  const float* cos_sin = nullptr;
  std::int32_t rotary = 0;
  bool neox = false;
};
Status rope_store(const RopeStoreCall& call, device::StreamRef stream);

/// Heads of x, [heads, head_dim] over all rows, rotated by pieces of `span` (at least 32, a divisor of head_dim, which
/// is 512 at most): in place where the floats are wanted, and their int8 form, if out is set.
Status rotate_heads(float* x, std::int32_t heads, std::int32_t head_dim, std::int32_t span, bool floats, Q8 out,
                    device::StreamRef stream);

// --- Attention (attention.cu) ---

/// out[r, h] = softmax(scale * q[r, h] K^T) V over the keys that row r sees: positions (p - window, p], p its position;
/// window 0: all. By chunks, those of its own chunk of `window` positions, up to p. Chunks of kAttentionChunk keys at
/// absolute positions, each: scores by ascending channel, one fma each, then times scale; then, if cap > 0, softcap()
/// of them (gates.h), and with slopes s_j = fma(slopes[h], -|p - j|, s_j); m = their maximum over visible keys; e_j =
/// exp(s_j - m); l = sum of e_j, key j to lane j % 32 in ascending order, lanes by a tree (16, 8, 4, 2, 1); acc = sum
/// over j ascending of fma(e_j, v_j, acc) from +0. Keys a row does not see enter nothing. Chunks are merged in
/// ascending order into (M, L, A) that start at (-inf, 0, 0):
///   M' = max(M, m); L = fma(L, exp(M - M'), l * exp(m - M')); A likewise; at the end A / L. (exp(-inf) is 0.)
/// A head with a sink s starts at (s, 1, 0): one more key, before all others, whose value is zero.
/// Over f16 the two products are mma.m16n8k16 with float32 sums, sixteen terms a step from +0, and how the device adds
/// those is its own affair; which term has which of the sixteen places says attention_half.cuh. Scores: q 2^n, n such
/// that its largest magnitude is in [1024, 2048) (0 where that is below 2^-100), is rounded to f16, as keys are; step t
/// has every (head_dim / 16)-th channel from t on; then times (scale 2^-n). Queries that are not finite make NaN. e_j
/// is the device's own exponential (within 2^-19), rounded to f16 before it is summed and multiplied. Values: step t
/// has keys 16 t to 16 t + 15; keys a row does not see count as zero times zero, and so do values that only other rows
/// of its tile see, unless those are not finite. Over q8_0 and q4_0 the products are of integers, exact sums I that are
/// rounded to float32 once: those of the cache, and the other factors f of a set as f * (32512 / a) to nearest even, a
/// being their largest magnitude; such an integer counts u = a / 32512 (where a < 2^-100 they are zero; queries that
/// are not finite make NaN). Scores: a set is 32 channels of q; s = fma(I, u * d, s) by ascending sets from +0, d being
/// the key's scale; then times scale. Values: a set is e_j d_j over the chunk's keys for 32 channels, d_j being their
/// scales; acc = I * u. Where the cache is rotated, q is (rope_store), and the result is rotated at the end. Over few
/// bits the same, their levels being the integers and a scale that of all sets within its channels; and of the blocks
/// that a row sees in plain ones those are q8_0. Rows of one sequence that are worked together.
struct alignas(16) RowTile {
  std::int32_t first_row = 0, rows = 0, sequence = 0, last_position = 0;
};

/// Positions that a row sees, from the first to the last; the last is its own, or behind it.
struct alignas(8) SeenKeys {
  std::int32_t first = 0, last = 0;
};

struct AttentionCall {
  RowView rows;
  /// [rows]: what rows see, in place of what position and window say. Only with tiles, and heads of up to 256.
  const SeenKeys* seen = nullptr;
  KvView kv;
  const float* q = nullptr;  // [rows, heads * head_dim]
  std::int32_t heads = 0;
  float scale = 1;
  std::int32_t window = 0;
  bool chunks = false;                      // with a window, and without `seen`
  float cap = 0;                            // 0: scores have none
  const float* slopes = nullptr;            // [heads], or none
  const std::byte* const* sinks = nullptr;  // entry of float32 [heads], or none
  float* out = nullptr;  // [rows, heads * head_dim]; may be null if out_q8 is set and the cache is not rotated
  Q8 out_q8;             // its int8 form, if set
  bool floats = true;    // out is wanted; else, over a rotated cache, it is only room
  /// Host's bound on the positions of the pass: every position < max_position. A captured graph keeps it, so it is a
  /// multiple of kAttentionChunk with room.
  std::int32_t max_position = 0;
  /// For many rows: tiles of rows of one sequence, made by the host (device memory). attention_tile_rows() says how
  /// many rows a tile has at most. Over few bits a tile's rows lie in one block. None: rows are few and worked one by
  /// one.
  const RowTile* tiles = nullptr;
  std::int32_t tile_count = 0;
  std::byte* workspace = nullptr;  // attention_workspace_bytes()
};
/// Rows of a tile at most, for `group` = heads / kv_heads.
std::int32_t attention_tile_rows(std::int32_t group);
/// For `rows` rows worked one by one; max_position 0: for rows in tiles, which take little.
std::size_t attention_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                                      std::int32_t max_position);
/// head_dim 64, 80 (in f16 and f32 alone), 96, 128, 256; in f16 512 (rows singly, 64 at
/// once).
Status attention(const AttentionCall& call, device::StreamRef stream);

// --- Mixtures (moe.cu) ---

/// probabilities = softmax(scores[r]); chosen: the top_k largest in descending order (ties: the smaller index);
/// weights: their probabilities, divided by their sum if normalize, times scale. scores: [rows, experts], experts <=
/// 1024, top_k <= 32.
Status route(const float* scores, std::int32_t rows, std::int32_t experts, std::int32_t top_k, bool normalize,
             float scale, std::int32_t* chosen, float* weights, device::StreamRef stream);
/// sorted: [entries] and expert_first: [experts + 1], as ExpertCall wants them. Deterministic.
Status sort_entries(const std::int32_t* chosen, std::int32_t entries, std::int32_t experts, std::int32_t* sorted,
                    std::int32_t* expert_first, device::StreamRef stream);
/// y[r] (+)= sum over places k ascending of fma(weights[r, k], expert_out[r * top_k + k], acc) from +0. residual: the
/// sum is added to y, else stored.
Status combine_experts(const float* expert_out, const float* weights, std::int32_t rows, std::int32_t top_k,
                       std::int32_t cols, bool residual, float* y, device::StreamRef stream);

// --- Sampling (sample.cu) ---

/// What the host needs to pick a token by temperature, top-k <= kCandidates, top-p and min-p, or greedily: the largest
/// logits in descending order, ties: the smaller id.
struct Candidates {
  float logit[kCandidates];
  std::int32_t id[kCandidates];
  std::int32_t finite;  // 1: every logit of the row is finite
  std::int32_t count;   // min(vocab, kCandidates)
};
std::size_t sample_workspace_bytes(std::int32_t rows, std::int32_t vocab);
Status candidates(const float* logits, std::int32_t rows, std::int32_t vocab, Candidates* out, std::byte* workspace,
                  device::StreamRef stream);

}  // namespace millrace::kernels::gpu
