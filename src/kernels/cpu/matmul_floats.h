// Products with F32, F16 and BF16 weights, written once for every vector width; see matmul_panel.h on `V` and linkage.
//
// The lanes of the numerics contract are the vectors' lanes: kVectors = 32 / V::kRows vectors of sums for each pair of
// a weight row and an x row. A register tile is kW x kX pairs; where the registers do not hold all vectors of that many
// pairs, the columns are passed over several times, some lanes each. With many x rows, weights are widened to float32
// once, into the workspace.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

namespace millrace::kernels::floats {

template <class V>
struct F32 {
  static constexpr int kBytes = 4;
  static typename V::F load(const std::byte* p) { return V::load_float(p); }
};
template <class V>
struct F16 {
  static constexpr int kBytes = 2;
  static typename V::F load(const std::byte* p) { return V::halves(p); }
};
template <class V>
struct BF16 {
  static constexpr int kBytes = 2;
  static typename V::F load(const std::byte* p) { return V::bfloats(p); }
};

/// Element k of a row, for the columns past the last multiple of 32.
template <class V, class Format>
float element(const std::byte* row, std::int64_t k) {
  alignas(64) std::byte padded[V::kBytes] = {};
  std::memcpy(padded, row + k * Format::kBytes, Format::kBytes);
  alignas(64) float lanes[V::kRows];
  V::store_float(lanes, Format::load(padded));
  return lanes[0];
}

/// y[x][w] for kW weight rows from `w` on and kX x rows.
template <class V, class Format, int kW, int kX>
void tile(const std::byte* w, std::int64_t w_stride, const float* const* x, std::int64_t cols, float* const* y) {
  using F = typename V::F;
  constexpr int kVectors = 32 / V::kRows;
  constexpr int kTogether = kVectors * kW * kX <= V::kRegisters * 3 / 4 ? kVectors : kVectors / 2;
  const std::int64_t whole = cols / 32 * 32;
  F lanes[kW][kX][kVectors];
  for (int pass = 0; pass < kVectors; pass += kTogether) {
    F sum[kW][kX][kTogether];
#pragma GCC unroll 16
    for (int i = 0; i < kW * kX * kTogether; ++i)
      sum[i / kTogether / kX][i / kTogether % kX][i % kTogether] = V::set1_float(0);
    for (std::int64_t k = pass * V::kRows; k < whole; k += 32) {
      if (Format::kBytes == 2 && pass == 0) {
        // Straight from the file's rows (32 columns are a line): the next kW rows into the L2 cache, what comes soon
        // into the L1.
#pragma GCC unroll 16
        for (int n = 0; n < kW; ++n) {
          __builtin_prefetch(w + (n + kW) * w_stride + k * Format::kBytes, 0, 2);
          __builtin_prefetch(w + n * w_stride + k * Format::kBytes + 512, 0, 3);
        }
      }
#pragma GCC unroll 16
      for (int h = 0; h < kTogether; ++h) {
        F xs[kX];
#pragma GCC unroll 16
        for (int i = 0; i < kX; ++i) xs[i] = V::load_float(x[i] + k + h * V::kRows);
#pragma GCC unroll 16
        for (int n = 0; n < kW; ++n) {
          const F weight = Format::load(w + n * w_stride + (k + h * V::kRows) * Format::kBytes);
#pragma GCC unroll 16
          for (int i = 0; i < kX; ++i) sum[n][i][h] = V::fma(weight, xs[i], sum[n][i][h]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kW * kX * kTogether; ++i) {
      lanes[i / kTogether / kX][i / kTogether % kX][pass + i % kTogether] =
          sum[i / kTogether / kX][i / kTogether % kX][i % kTogether];
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < kW; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kX; ++i) {
      if (whole < cols) {
        alignas(64) float all[32];
        for (int v = 0; v < kVectors; ++v) V::store_float(all + v * V::kRows, lanes[n][i][v]);
        for (std::int64_t k = whole; k < cols; ++k) {
          all[k % 32] = __builtin_fmaf(element<V, Format>(w + n * w_stride, k), x[i][k], all[k % 32]);
        }
        for (int v = 0; v < kVectors; ++v) lanes[n][i][v] = V::load_float(all + v * V::kRows);
      }
      y[i][n] = V::add_32_lanes(lanes[n][i]);
    }
  }
}

constexpr int kMaxX = 3;

/// Weight rows [n0, n0 + kW), lying at `w`, with x rows [r0, r1).
template <class V, class Format, int kW>
void weight_rows(const MatmulArgs& args, const std::byte* w, std::int64_t w_stride, std::int64_t n0, std::int64_t r0,
                 std::int64_t r1) {
  while (r0 < r1) {
    const int count = r1 - r0 < kMaxX ? static_cast<int>(r1 - r0) : kMaxX;
    const float* x[kMaxX];
    float* y[kMaxX];
    for (int i = 0; i < count; ++i) {
      const std::int64_t row = args.x_index ? args.x_index[r0 + i] : r0 + i;
      x[i] = args.x + row * args.x_stride;
      y[i] = args.y + (r0 + i) * args.y_stride + n0;
    }
    if (count == 3) tile<V, Format, kW, 3>(w, w_stride, x, args.cols, y);
    if (count == 2) tile<V, Format, kW, 2>(w, w_stride, x, args.cols, y);
    if (count == 1) tile<V, Format, kW, 1>(w, w_stride, x, args.cols, y);
    r0 += count;
  }
}

/// kW rows of weights to float32.
template <class V, class Format, int kW>
void widen(const std::byte* w, std::int64_t w_stride, std::int64_t cols, float* out) {
  for (int n = 0; n < kW; ++n, w += w_stride, out += cols) {
    const std::int64_t whole = cols / V::kRows * V::kRows;
    for (std::int64_t k = 0; k < whole; k += V::kRows) V::store_float(out + k, Format::load(w + k * Format::kBytes));
    for (std::int64_t k = whole; k < cols; ++k) out[k] = element<V, Format>(w, k);
  }
}

template <class V, class Format>
void product(const MatmulArgs& args) {
  constexpr int kW = V::kFloatRows;
  constexpr std::int64_t kPassBytes = 1 << 20;  // of x rows, while all weight rows pass by: half an L2 cache
  const std::int64_t stride = args.cols * Format::kBytes;
  const bool widened = Format::kBytes != 4 && args.x_rows > kMaxX;
  float* wide = reinterpret_cast<float*>(args.workspace);
  const std::int64_t fit = kPassBytes / 4 / args.cols / kMaxX * kMaxX;
  const std::int64_t pass = fit > 16 * kMaxX ? fit : 16 * kMaxX;
  for (std::int64_t r0 = 0; r0 < args.x_rows; r0 += pass) {
    const std::int64_t r1 = args.x_rows - r0 < pass ? args.x_rows : r0 + pass;
    std::int64_t n = 0;
    for (; n + kW <= args.weight_rows; n += kW) {
      const std::byte* w = args.weight + n * stride;
      if (widened) {
        widen<V, Format, kW>(w, stride, args.cols, wide);
        weight_rows<V, F32<V>, kW>(args, args.workspace, args.cols * 4, n, r0, r1);
      } else {
        weight_rows<V, Format, kW>(args, w, stride, n, r0, r1);
      }
    }
    for (; n < args.weight_rows; ++n) weight_rows<V, Format, 1>(args, args.weight + n * stride, stride, n, r0, r1);
  }
}

/// Bytes of workspace.
template <class V>
std::int64_t workspace_bytes(std::int64_t cols) {
  return V::kFloatRows * cols * 4;
}

}  // namespace millrace::kernels::floats
