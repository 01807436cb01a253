// Products with F32, F16 and BF16 weights, written once for every vector width; see matmul_panel.h on `V` and linkage.
//
// The lanes of the numerics contract are the vectors' lanes: kVectors = 32 / V::kRows vectors of sums for each pair of
// a weight row and an x row. A register tile is kW x kX pairs; where the registers do not hold all vectors of that many
// pairs, the columns are passed over several times, some lanes each. With many x rows, weights are widened to float32
// once, into the workspace.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/fused.h"
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

/// Where a register tile stands. Sums pass from one stretch of columns to the next through `sums`, kW x kX x 32 floats.
struct Stretch {
  std::int64_t from, to;  // columns; from is a multiple of 32
  bool first, last;
  float* sums;
};

/// The columns [whole, cols) past the last multiple of 32, added to a pair's lanes.
template <class V, class Format>
void add_rest(const std::byte* w, const float* x, std::int64_t whole, std::int64_t cols, typename V::F* lanes) {
  constexpr int kVectors = 32 / V::kRows;
  alignas(64) float all[32];
  for (int v = 0; v < kVectors; ++v) V::store_float(all + v * V::kRows, lanes[v]);
  for (std::int64_t k = whole; k < cols; ++k) all[k % 32] = fused(element<V, Format>(w, k), x[k], all[k % 32]);
  for (int v = 0; v < kVectors; ++v) lanes[v] = V::load_float(all + v * V::kRows);
}

/// y[x][w] for kW weight rows from `w` on and kX x rows.
template <class V, class Format, int kW, int kX>
void tile(const std::byte* w, std::int64_t w_stride, const float* const* x, const Stretch& stretch, float* const* y) {
  using F = typename V::F;
  constexpr int kVectors = 32 / V::kRows;
  static_assert(kW == V::kFloatRows || kW == 1);
  constexpr int kTogether = kVectors * kW * kX <= V::kRegisters * 3 / 4 ? kVectors : kVectors / 2;
  const std::int64_t whole = stretch.to / 32 * 32;
  const bool first = stretch.first, last = stretch.last;
  F lanes[kW * kX][kVectors];
#pragma GCC unroll 4
  for (int pass = 0; pass < kVectors; pass += kTogether) {
    const auto saved = [&](int i) {
      return stretch.sums + ((i / kTogether) * kVectors + pass + i % kTogether) * V::kRows;
    };
    F sum[kW * kX * kTogether];
#pragma GCC unroll 32
    for (int i = 0; i < kW * kX * kTogether; ++i) {
      sum[i] = first ? V::set1_float(0) : V::load_float(saved(i));
    }
    for (std::int64_t k = stretch.from + pass * V::kRows; k < whole; k += 32) {
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
          F weight = Format::load(w + n * w_stride + (k + h * V::kRows) * Format::kBytes);
          asm("" : "+v"(weight));  // one load, then a register: GCC would load it kX times, and loads are the limit
#pragma GCC unroll 16
          for (int i = 0; i < kX; ++i) {
            F& to = sum[(n * kX + i) * kTogether + h];
            to = V::fma(weight, xs[i], to);
          }
        }
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < kW * kX * kTogether; ++i) {
      if (last) {
        lanes[i / kTogether][pass + i % kTogether] = sum[i];
      } else {
        V::store_float(saved(i), sum[i]);
      }
    }
  }
  if (!last) return;
  if (whole < stretch.to) {
    for (int pair = 0; pair < kW * kX; ++pair)
      add_rest<V, Format>(w + pair / kX * w_stride, x[pair % kX], whole, stretch.to, lanes[pair]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kX; ++i) {
    if constexpr (kW == V::kFloatRows) {
      V::add_lanes_of_rows(lanes + i, kX, y[i]);
    } else {
      y[i][0] = V::add_32_lanes(lanes[i]);
    }
  }
}

constexpr int kMaxX = 3;
constexpr std::int64_t kNarrow = 9;  // x rows for which weights are widened anew each time; for more a copy is cheaper
constexpr std::int64_t kStretch = 1024;  // columns
constexpr std::int64_t kPass = 168;      // x rows that pass by at a time

/// Weight rows [n0, n0 + kW), lying at `w`, with x rows [r0, r1). sums: (r1 - r0) x kW x 32 floats if there are more
/// than kMaxX x rows: then a stretch of the weights stays in the L1 cache while all x rows pass by.
template <class V, class Format, int kW>
void weight_rows(const MatmulArgs& args, const std::byte* w, std::int64_t w_stride, std::int64_t n0, std::int64_t r0,
                 std::int64_t r1, float* sums) {
  const std::int64_t step = r1 - r0 > kMaxX ? kStretch : args.cols;
  for (std::int64_t k = 0; k < args.cols; k += step) {
    Stretch stretch{k, args.cols - k < step ? args.cols : k + step, k == 0, args.cols - k <= step, nullptr};
    for (std::int64_t r = r0, count; r < r1; r += count) {
      const std::int64_t calls = (r1 - r + kMaxX - 1) / kMaxX;
      count = (r1 - r + calls - 1) / calls;  // two and two, not three and one
      const float* x[kMaxX];
      float* y[kMaxX];
      for (std::int64_t i = 0; i < count; ++i) {
        x[i] = args.x + (args.x_index ? args.x_index[r + i] : r + i) * args.x_stride;
        y[i] = args.y + (r + i) * args.y_stride + n0;
      }
      stretch.sums = sums + (r - r0) * kW * 32;
      if (count == 3) tile<V, Format, kW, 3>(w, w_stride, x, stretch, y);
      if (count == 2) tile<V, Format, kW, 2>(w, w_stride, x, stretch, y);
      if (count == 1) tile<V, Format, kW, 1>(w, w_stride, x, stretch, y);
    }
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
  constexpr std::int64_t kPassBytes = 1 << 20;  // of x, in half an L2 cache while all weight rows pass by
  const std::int64_t stride = args.cols * Format::kBytes;
  const bool widened = Format::kBytes != 4 && args.x_rows > kNarrow;
  float* sums = reinterpret_cast<float*>(args.workspace);
  float* wide = sums + kPass * kW * 32;
  const std::int64_t fit = kPassBytes / 4 / args.cols / kMaxX * kMaxX;
  const std::int64_t pass = fit < 8 * kMaxX ? 8 * kMaxX : fit < kPass ? fit : kPass;
  for (std::int64_t r0 = 0; r0 < args.x_rows; r0 += pass) {
    const std::int64_t r1 = args.x_rows - r0 < pass ? args.x_rows : r0 + pass;
    std::int64_t n = 0;
    for (; n + kW <= args.weight_rows; n += kW) {
      const std::byte* w = args.weight + n * stride;
      if (widened) {
        widen<V, Format, kW>(w, stride, args.cols, wide);
        weight_rows<V, F32<V>, kW>(args, reinterpret_cast<const std::byte*>(wide), args.cols * 4, n, r0, r1, sums);
      } else {
        weight_rows<V, Format, kW>(args, w, stride, n, r0, r1, sums);
      }
    }
    for (; n < args.weight_rows; ++n)
      weight_rows<V, Format, 1>(args, args.weight + n * stride, stride, n, r0, r1, sums);
  }
}

/// Bytes of workspace.
template <class V>
std::int64_t workspace_bytes(std::int64_t cols) {
  return kPass * V::kFloatRows * 32 * 4 + V::kFloatRows * cols * 4;
}

}  // namespace millrace::kernels::floats
