// Contract in delta_chunks.h. Two kernels. The first makes what does not depend on states, of all chunks at once: a
// block has a key head of a chunk. The second goes through a sequence's chunks in order. A warp has 16 columns (values)
// of a head's matrix in registers, transposed: as what products add to, and as the left side of the next ones. So
// nothing of states and differences goes through shared memory. Keys, queries, T and P come there for all warps, and
// values for each, a chunk ahead.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/capability.h"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/recurrent.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kRows = kChunkRows, kTile = 8, kRowTiles = kRows / kTile;
constexpr int kTileColumns = 16;  // of a product's left side
constexpr int kSquare = kRows * kRows;

/// Matrices of halves in shared memory and in the workspace: rows of kWidth, whose eights lie where those of eight rows
/// come from different banks.
template <int kWidth>
__device__ __forceinline__ int swizzled(int row, int eight) {
  return row * kWidth + (eight ^ row % kTile) * kTile;
}

/// What the first kernel makes of a run's value head.
struct Made {
  __half t[kSquare], p[kSquare];
  float decay[kRows], rest[kRows], beta[kRows];  // G, and G[last] / G
};
/// And of its key head.
template <int kKeys>
struct Vectors {
  __half query[kRows * kKeys], key[kRows * kKeys];
};
template <int kKeys>
__device__ __forceinline__ Vectors<kKeys>& vectors_of(const DeltaChunksCall& call, int run, int key_head) {
  return reinterpret_cast<Vectors<kKeys>*>(
      call.workspace)[static_cast<std::int64_t>(run) * call.rule.key_heads + key_head];
}
template <int kKeys>
__device__ __forceinline__ Made& made_of(const DeltaChunksCall& call, int run, int head) {
  auto* const made = reinterpret_cast<Made*>(&vectors_of<kKeys>(call, call.rule.runs.count, 0));
  return made[static_cast<std::int64_t>(run) * call.rule.value_heads + head];
}

__device__ __forceinline__ std::int64_t stride_of(const DeltaRuleCall& rule) {
  return 2 * rule.key_heads * rule.key_dim + rule.value_heads * rule.value_dim;
}

// ---------------------------------------------------------------------------------------------------------------------
// Products: lane 4 g + t has of a result [16, 8] (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).

using Left = std::uint32_t[4];  // [16, 16]

__device__ __forceinline__ std::uint32_t two_halves(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(both);
}
/// Two results beside each other as the left side of the next product.
__device__ __forceinline__ void as_left(const float (&first)[4], const float (&second)[4], Left& a) {
  a[0] = two_halves(first[0], first[1]), a[1] = two_halves(first[2], first[3]);
  a[2] = two_halves(second[0], second[1]), a[3] = two_halves(second[2], second[3]);
}
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(std::uint32_t address, std::uint32_t (&m)[4]) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
  }
}

/// A swizzled matrix of halves, as a lane reads sixteens of it.
template <int kWidth>
class Halves {
 public:
  __device__ __forceinline__ explicit Halves(const __half* matrix, int lane)
      : rows_(shared_address(matrix + swizzled<kWidth>(lane / 16 * 8 + lane % 8, lane / 8 % 2))),
        columns_(shared_address(matrix + swizzled<kWidth>(lane / 8 % 2 * 8 + lane % 8, lane / 16))),
        left_(shared_address(matrix + swizzled<kWidth>(lane % 16, lane / 16))) {}
  /// Rows 16 `row` and on, columns 16 `column` and on, as the right sides of two products with rows as their columns.
  __device__ __forceinline__ void by_rows(int row, int column, std::uint32_t (&m)[4]) const {
    load_matrices<false>(at(rows_, row, column), m);
  }
  /// Likewise with columns as their columns.
  __device__ __forceinline__ void by_columns(int row, int column, std::uint32_t (&m)[4]) const {
    load_matrices<true>(at(columns_, row, column), m);
  }
  __device__ __forceinline__ void left(int row, int column, Left& a) const {
    load_matrices<false>(at(left_, row, column), a);
  }

 private:
  /// An eight's number is in bits of the address that nothing else is in.
  __device__ __forceinline__ static std::uint32_t at(std::uint32_t base, int row, int column) {
    return (base ^ static_cast<std::uint32_t>(column * 32)) + static_cast<std::uint32_t>(row * 16 * kWidth * 2);
  }
  std::uint32_t rows_, columns_, left_;
};

// ---------------------------------------------------------------------------------------------------------------------
// What does not depend on states

/// Two value heads at once, a pair of warps each; of products 16 rows a warp.
constexpr int kPreparers = 128, kHeadsAtOnce = kPreparers / kRows;
static_assert(kRows == kPreparers / kWarp * kTileColumns && kRows == 2 * kWarp);

template <int kKeys>
struct Preparing {
  union {
    Vectors<kKeys> vectors;
    struct {
      float a[kSquare];  // A transposed
      float t[kSquare];
    } of[kHeadsAtOnce];
  };
  float dots[2][kSquare];           // queries with keys, keys with keys
  float logs[kHeadsAtOnce][kRows];  // of G, to the base 2
};

/// Queries and keys of a chunk, here and for the other kernel. Rows and keys that are not there are zeros: nothing
/// comes of them.
template <int kKeys>
__device__ __forceinline__ void take_vectors(Vectors<kKeys>& here, Vectors<kKeys>& there, const float* first,
                                             std::int64_t stride, std::int64_t queries, int rows, int keys) {
  constexpr int kEights = kKeys / kTile, kAll = 2 * kRows * kEights, kAtOnce = 4;
  static_assert(kAll % (kAtOnce * kPreparers) == 0);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kAll; i += kAtOnce * kPreparers) {
    float4 four[kAtOnce][2];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = i + j * kPreparers, row = at / kEights % kRows;
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        const int key = at % kEights * kTile + 4 * f;
        const float* const from = first + row * stride + at / (kAll / 2) * queries + key;
        four[j][f] = row < rows && key < keys ? *reinterpret_cast<const float4*>(from) : make_float4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = i + j * kPreparers, row = at / kEights % kRows;
      const int to = at / (kAll / 2) * kRows * kKeys + swizzled<kKeys>(row, at % kEights);
      const float4 &low = four[j][0], &high = four[j][1];
      const uint4 halves = {two_halves(low.x, low.y), two_halves(low.z, low.w), two_halves(high.x, high.y),
                            two_halves(high.z, high.w)};
      *reinterpret_cast<uint4*>(here.query + to) = halves;
      *reinterpret_cast<uint4*>(there.query + to) = halves;
    }
  }
}

/// The 16 rows of a warp of both products.
template <int kKeys>
__device__ __forceinline__ void make_dots(Preparing<kKeys>& s, int warp, int lane) {
  const Halves<kKeys> keys(s.vectors.key, lane);
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const Halves<kKeys> lefts(which == 0 ? s.vectors.query : s.vectors.key, lane);
    float sum[kRowTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      Left a;
      lefts.left(warp, k, a);
#pragma unroll
      for (int n = 0; n < kRowTiles; n += 2) {
        std::uint32_t b[4];
        keys.by_rows(n / 2, k, b);
        multiply_halves(sum[n], a, b[0], b[1]);
        multiply_halves(sum[n + 1], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      float* const to = s.dots[which] + (warp * kTileColumns + lane / 4) * kRows + n * kTile + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = make_float2(sum[n][0], sum[n][1]);
      *reinterpret_cast<float2*>(to + 8 * kRows) = make_float2(sum[n][2], sum[n][3]);
    }
  }
}

/// Column `column` of T, the inverse of 1 + A, by substitution, 16 rows at a time. Those before the warp's first column
/// are zeros, and not written.
__device__ __forceinline__ void invert(const float* a, float* t, int column) {
  constexpr int kAtOnce = 16;
  const int start = column / kWarp * kWarp;
  const auto take = [&](int l, int first, float(&of)[kAtOnce]) {  // rows `first` on of column l of A
#pragma unroll
    for (int r = 0; r < kAtOnce; r += 4) {
      const float4 four = *reinterpret_cast<const float4*>(a + l * kRows + first + r);
      of[r] = four.x, of[r + 1] = four.y, of[r + 2] = four.z, of[r + 3] = four.w;
    }
  };
#pragma unroll 1
  for (int first = start; first < kRows; first += kAtOnce) {
    float x[kAtOnce], of[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) x[r] = first + r == column ? 1.0f : 0.0f;
#pragma unroll 4
    for (int l = start; l < first; ++l) {
      const float known = -t[l * kRows + column];
      take(l, first, of);
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) x[r] = __fmaf_rn(of[r], known, x[r]);
    }
#pragma unroll
    for (int l = 0; l < kAtOnce; ++l) {
      take(first + l, first, of);
#pragma unroll
      for (int r = l + 1; r < kAtOnce; ++r) x[r] = __fmaf_rn(of[r], -x[l], x[r]);
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) t[(first + r) * kRows + column] = x[r];
  }
}

/// 2^x, as the device has it: 22 bits.
__device__ __forceinline__ float power_of(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int kKeys>
__global__ void __launch_bounds__(kPreparers) prepare_chunks_kernel(const __grid_constant__ DeltaChunksCall call) {
  extern __shared__ __align__(256) unsigned char shared[];
  auto& s = *reinterpret_cast<Preparing<kKeys>*>(shared);
  allow_successor();
  const DeltaRuleCall& rule = call.rule;
  const StateRun run = rule.runs.run[blockIdx.x];
  const int number = static_cast<int>(blockIdx.x), key_head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  wait_for_predecessor();
  if (run.rows == 0) return;
  const std::int64_t stride = stride_of(rule);
  take_vectors(s.vectors, vectors_of<kKeys>(call, number, key_head),
               rule.qkv + run.first_row * stride + key_head * rule.key_dim, stride, rule.key_heads * rule.key_dim,
               run.rows, rule.key_dim);
  __syncthreads();
  make_dots(s, thread / kWarp, lane);

  const int group = rule.value_heads / rule.key_heads, place = thread / kRows, row = thread % kRows;
  float* const logs = s.logs[place];
  for (int i = place; i - place < group; i += kHeadsAtOnce) {
    const bool works = i < group;
    const int head = rule.tiled ? i * rule.key_heads + key_head : key_head * group + i;
    float log = 0, beta = 0;
    if (works && row < run.rows) {
      const std::int64_t gate = (run.first_row + row) * static_cast<std::int64_t>(rule.value_heads) + head;
      log = log2f(max_or_nan(rule.decay[gate], 1e-37f));
      beta = over_sigmoid(1.0f, rule.beta[gate]);
    }
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const float before = __shfl_up_sync(kAllLanes, log, step);
      if (lane >= step) log += before;
    }
    logs[row] = log;
    __syncthreads();
    if (row >= kWarp) log += logs[kWarp - 1];
    __syncthreads();
    logs[row] = log;
    __syncthreads();  // dots and logarithms are there, and nobody reads vectors or the heads before
    Made& made = made_of<kKeys>(call, number, works ? head : 0);
    if (works) {
      made.decay[row] = power_of(log);
      made.rest[row] = power_of(logs[kRows - 1] - log);
      made.beta[row] = beta;
      // The thread's row of A, and its column of P.
#pragma unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float ratio = power_of(r < row ? log - logs[r] : logs[r] - log);
        s.of[place].a[r * kRows + row] = r < row ? beta * (ratio * s.dots[1][r * kRows + row]) : 0;
        const float p = r < row ? 0 : ratio * s.dots[0][r * kRows + row];
        made.p[swizzled<kRows>(r, row / kTile) + row % kTile] = __float2half_rn(p);
      }
    }
    __syncthreads();
    if (works) {
      float* const t = s.of[place].t;
      invert(s.of[place].a, t, row);
#pragma unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float x = r < row / kWarp * kWarp ? 0 : t[r * kRows + row];
        made.t[swizzled<kRows>(r, row / kTile) + row % kTile] = __float2half_rn(x);
      }
    }
    __syncthreads();
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The states

/// What was written to memory comes before what the copy engine reads and writes there.
__device__ __forceinline__ void before_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

/// What a block of so many warps reads of a chunk.
template <int kKeys, int kWarps>
struct Stage {
  // Of a warp's columns: single ones of rows that are two apart come from different banks.
  static constexpr int kPitch = kTileColumns + 4;
  Vectors<kKeys> vectors;
  Made made;
  float values[kWarps][kRows * kPitch];

  /// Starts the copies of a run's. first: the warp's first column of the window's first row.
  __device__ __forceinline__ void fetch(const DeltaChunksCall& call, int number, int head, const float* first, int warp,
                                        int lane, Arrival& arrival) {
    const DeltaRuleCall& rule = call.rule;
    const StateRun& run = rule.runs.run[number];
    if (warp == 0 && lane == 0) {
      const int key_head = rule.tiled ? head % rule.key_heads : head / (rule.value_heads / rule.key_heads);
      arrival.expect(static_cast<int>(sizeof(vectors) + sizeof(made)));
      arrival.copy(&vectors, reinterpret_cast<const std::byte*>(&vectors_of<kKeys>(call, number, key_head)),
                   sizeof(vectors));
      arrival.copy(&made, reinterpret_cast<const std::byte*>(&made_of<kKeys>(call, number, head)), sizeof(made));
    }
    const std::int64_t stride = stride_of(rule);
    const float* const from = first + run.first_row * stride;
    const int rows = run.rows, four = lane % 4 * 4;
#pragma unroll
    for (int row = lane / 4; row < kRows; row += kWarp / 4)
      copy_16(values[warp] + row * kPitch + four, from + (row < rows ? row * stride : 0) + four, row < rows);
    copies_commit();
  }
};

/// A warp's 16 columns of a matrix, transposed and scaled: tile by tile as results of products.
template <int kKeys>
class Columns {
 public:
  __device__ __forceinline__ explicit Columns(int lane) : lane_(lane), g_(lane / 4), t_(lane % 4) {}

  /// from: the first column and key 0, in a state's layout; null: zeros.
  __device__ __forceinline__ void load(const float* from, int keys) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kTile + 2 * t_ + i % 2;
        s_[tile][i] = from != nullptr && key < keys ? from[key * kStateLanes + g_ + i / 2 * 8] : 0;
      }
    }
  }
  __device__ __forceinline__ void store(float* to, int keys) const {
    const float back = power(exponent_);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kTile + 2 * t_ + i % 2;
        if (key < keys) to[key * kStateLanes + g_ + i / 2 * 8] = back * s_[tile][i];
      }
    }
  }

  /// Through the rows of a chunk. out: of S query and P D, scaled; give back with scale().
  template <int kWarps>
  __device__ __forceinline__ void advance(const Stage<kKeys, kWarps>& stage, int warp, float (&out)[kRowTiles][4]) {
    constexpr int kPitch = Stage<kKeys, kWarps>::kPitch;
    const float* const values = stage.values[warp] + 2 * t_ * kPitch + g_;
    const auto value_at = [&](int n, int i) { return values[(n * kTile + i % 2) * kPitch + i / 2 * 8]; };
    float most = 0;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) most = fmaxf(most, fabsf(value_at(n, i)));
    }
    const float scale = rescale(most);

    const Halves<kKeys> keys(stage.vectors.key, lane_), queries(stage.vectors.query, lane_);
    float read[kRowTiles][4] = {};
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
#pragma unroll
    for (int k = 0; k < kTiles; k += 2) {
      Left a;
      as_left(s_[k], s_[k + 1], a);
#pragma unroll
      for (int n = 0; n < kRowTiles; n += 2) {
        std::uint32_t b[4], c[4];
        keys.by_rows(n / 2, k / 2, b);
        queries.by_rows(n / 2, k / 2, c);
        multiply_halves(read[n], a, b[0], b[1]);
        multiply_halves(read[n + 1], a, b[2], b[3]);
        multiply_halves(out[n], a, c[0], c[1]);
        multiply_halves(out[n + 1], a, c[2], c[3]);
      }
    }
    const Made& made = stage.made;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const float2 decay = two_at(made.decay, n), beta = two_at(made.beta, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float by = i % 2 == 0 ? decay.x : decay.y;
        read[n][i] = (i % 2 == 0 ? beta.x : beta.y) * (scale * value_at(n, i) - by * read[n][i]);
        out[n][i] *= by;
      }
    }
    float difference[kRowTiles][4] = {};
    times_triangle(Halves<kRows>(made.t, lane_), read, difference);
    times_triangle(Halves<kRows>(made.p, lane_), difference, out);
    const float last = made.decay[kRows - 1];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s_[tile][i] *= last;
    }
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const float2 rest = two_at(made.rest, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) difference[n][i] *= i % 2 == 0 ? rest.x : rest.y;
    }
#pragma unroll
    for (int k = 0; k < kRowTiles; k += 2) {
      Left a;
      as_left(difference[k], difference[k + 1], a);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        std::uint32_t b[4];
        keys.by_columns(k / 2, n / 2, b);
        multiply_halves(s_[n], a, b[0], b[1]);
        multiply_halves(s_[n + 1], a, b[2], b[3]);
      }
    }
  }
  __device__ __forceinline__ float scale() const { return power(exponent_); }

 private:
  static constexpr int kTiles = kKeys / kTile;

  __device__ __forceinline__ static float power(int exponent) { return __int_as_float((exponent + 127) << 23); }
  __device__ __forceinline__ float2 two_at(const float* rows, int n) const {
    return *reinterpret_cast<const float2*>(rows + n * kTile + 2 * t_);
  }
  /// to += m by the rows of a lower triangle.
  __device__ __forceinline__ void times_triangle(const Halves<kRows>& triangle, const float (&m)[kRowTiles][4],
                                                 float (&to)[kRowTiles][4]) const {
#pragma unroll
    for (int k = 0; k < kRowTiles; k += 2) {
      Left a;
      as_left(m[k], m[k + 1], a);
#pragma unroll
      for (int n = k; n < kRowTiles; n += 2) {
        std::uint32_t b[4];
        triangle.by_rows(n / 2, k / 2, b);
        multiply_halves(to[n], a, b[0], b[1]);
        multiply_halves(to[n + 1], a, b[2], b[3]);
      }
    }
  }
  /// The matrix by the power of two that brings what a chunk may come to near 2^9: no key is longer than 1, so that no
  /// sum with one is above sqrt(keys) of the matrix' largest, and no difference above that and sqrt(rows) of the
  /// largest value more. values: the lane's largest. Returns what values are to be multiplied with.
  __device__ __forceinline__ float rescale(float values) {
    constexpr float kOfMatrix = 12, kOfValues = 10;
    static_assert(kOfMatrix * kOfMatrix >= kKeys && kOfValues * kOfValues >= kRows);
    float matrix = 0;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) matrix = fmaxf(matrix, fabsf(s_[tile][i]));
    }
    float most = fmaxf(kOfMatrix * power(exponent_) * matrix, kOfValues * values);
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    constexpr int kMost = 60;  // of an exponent: what is smaller or larger has no more bits, or none
    const int exponent = min(max((__float_as_int(most) >> 23) - 127 - 9, -kMost), kMost);
    if (exponent != exponent_) {
      const float by = power(exponent_ - exponent);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s_[tile][i] *= by;
      }
      exponent_ = exponent;
    }
    return power(-exponent);
  }

  const int lane_, g_, t_;
  int exponent_ = 0;  // the matrix is 2^exponent times what is here
  float s_[kTiles][4];
};

/// Halves wants its matrices at multiples of their rows.
template <int kKeys, int kWarps>
struct Going {
  static_assert(sizeof(Vectors<kKeys>) % 256 == 0 && sizeof(Stage<kKeys, kWarps>) % 256 == 0);
  Stage<kKeys, kWarps> stages[2];
  Arrival arrivals[2];
};

template <int kKeys, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, 1) delta_chunks_kernel(const __grid_constant__ DeltaChunksCall call) {
  extern __shared__ __align__(256) unsigned char shared[];
  auto& s = *reinterpret_cast<Going<kKeys, kWarps>*>(shared);
  allow_successor();
  const DeltaRuleCall& rule = call.rule;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = static_cast<int>(blockIdx.y), keys = rule.key_dim;
  const int column = head * rule.value_dim + (static_cast<int>(blockIdx.x) * kWarps + warp) * kTileColumns;
  if (threadIdx.x == 0) {
    s.arrivals[0].open();
    s.arrivals[1].open();
  }
  __syncthreads();
  int number = rule.runs.first_run[blockIdx.z];
  const int end = rule.runs.first_run[blockIdx.z + 1];
  wait_for_predecessor();
  before_copies();
  if (number == end) return;
  // Runs without rows only leave the state once more.
  const auto next_with_rows = [&](int from) {
    while (from < end && rule.runs.run[from].rows == 0) ++from;
    return from;
  };
  const float* const values = rule.qkv + 2 * rule.key_heads * keys + column;
  const auto fetch = [&](int run, int stage) {
    if (run < end) s.stages[stage].fetch(call, run, head, values, warp, lane, s.arrivals[stage]);
  };
  int next = next_with_rows(number), chunk = 0;
  fetch(next, 0);
  Columns<kKeys> matrix(lane);
  const std::int64_t width = static_cast<std::int64_t>(rule.value_heads) * rule.value_dim;
  const std::int64_t place =
      static_cast<std::int64_t>(column) / kStateLanes * kStateLanes * keys + column % kStateLanes;
  const std::byte* const before = rule.runs.run[number].before;
  matrix.load(before == nullptr ? nullptr : floats_at(before, rule.offset) + place, keys);
  for (; number < end; ++number) {
    const StateRun run = rule.runs.run[number];
    if (run.rows > 0) {
      const int stage = chunk % 2;
      copies_wait<0>();
      __syncthreads();  // the warp's values are there, and nobody reads the other stage
      next = next_with_rows(number + 1);
      fetch(next, stage ^ 1);
      s.arrivals[stage].await(chunk / 2);
      float out[kRowTiles][4];
      matrix.advance(s.stages[stage], warp, out);
      ++chunk;
      const float scale = rule.scale * matrix.scale();
      float* to = rule.out + (run.first_row + lane % 4 * 2) * width + column + lane / 4;
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n, to += kTile * width) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (n * kTile + lane % 4 * 2 + i % 2 < run.rows) to[i % 2 * width + i / 2 * 8] = scale * out[n][i];
      }
    }
    if (run.after != nullptr) matrix.store(floats_at(run.after, rule.offset) + place, keys);
  }
}

template <int kKeys, int kWarps>
cudaError_t go_through(const DeltaChunksCall& call, cudaStream_t stream) {
  const DeltaRuleCall& rule = call.rule;
  const auto n = [](int count) { return static_cast<unsigned>(count); };
  const dim3 grid(n(rule.value_dim / (kWarps * kTileColumns)), n(rule.value_heads), n(rule.runs.sequences));
  return launch_large(delta_chunks_kernel<kKeys, kWarps>, grid, dim3(kWarps * kWarp), sizeof(Going<kKeys, kWarps>),
                      stream, 1, call);
}

template <int kKeys>
cudaError_t delta_chunks_of(const DeltaChunksCall& call, cudaStream_t stream) {
  const DeltaRuleCall& rule = call.rule;
  const dim3 grid(static_cast<unsigned>(rule.runs.count), static_cast<unsigned>(rule.key_heads));
  const cudaError_t error =
      launch_large(prepare_chunks_kernel<kKeys>, grid, dim3(kPreparers), sizeof(Preparing<kKeys>), stream, 1, call);
  if (error != cudaSuccess) return error;
  if (rule.value_dim % (4 * kTileColumns) != 0) return go_through<kKeys, 2>(call, stream);
  return go_through<kKeys, 4>(call, stream);
}

constexpr int kFewKeys = kMostChunkKeys / 2;

}  // namespace

std::size_t delta_chunks_workspace_bytes(std::int64_t runs, std::int64_t key_heads, std::int64_t value_heads,
                                         std::int64_t key_dim) {
  const std::size_t vectors = key_dim <= kFewKeys ? sizeof(Vectors<kFewKeys>) : sizeof(Vectors<kMostChunkKeys>);
  return static_cast<std::size_t>(runs * key_heads) * vectors +
         static_cast<std::size_t>(runs * value_heads) * sizeof(Made);
}

bool has_delta_chunks() {
  return compiled_capability() >= 90 && block_shared_bytes() >= sizeof(Going<kMostChunkKeys, 4>);
}

cudaError_t delta_chunks(const DeltaChunksCall& call, cudaStream_t stream) {
  if (call.rule.runs.sequences <= 0) return cudaSuccess;
  if (!delta_chunks_fit(call.rule.key_dim, call.rule.value_dim)) return cudaErrorInvalidValue;
  if (call.rule.key_dim <= kFewKeys) return delta_chunks_of<kFewKeys>(call, stream);
  return delta_chunks_of<kMostChunkKeys>(call, stream);
}

}  // namespace millrace::kernels::cuda
