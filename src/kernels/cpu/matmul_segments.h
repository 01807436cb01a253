// Products whose sums run as the GPU's do (NUMERICS of kernels.h, matmul_segments), written once for every vector
// width; see matmul_panel.h on `V`, on formats, and on linkage.
//
// How it works. Lanes are segments of 256 columns, so that a segment's terms follow each other in one lane and no sum
// runs across lanes. V::kRows segments of a weight row are packed into a *panel*, by the functions that pack as many
// rows elsewhere: they lie one behind the other, so that weights are read once and in order. Rows of fewer segments
// than there are lanes share a panel. A *line* is what the panels side by side hold: one row, or those that share one.
// Activations are arranged in the same lanes, once for many calls (MatmulArgs::x_name). A few lines at a time are
// packed and meet a few rows of activations at a time, panel by panel; what is left is a sum a segment, and those are
// added. Lanes without a segment, and what a short segment lacks, are zeros on both sides.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/arranged_segments.h"
#include "kernels/cpu/matmul_panel.h"
#include "kernels/kernels.h"
#include "tensor/blocks.h"

namespace millrace::kernels::segments {

using panel::Kind;
using panel::Rows;

constexpr std::int64_t kSegment = 256;  // columns
constexpr int kBlocks = 8;              // of 32 columns
alignas(64) static constexpr std::byte kZeros[kSegment * 4] = {};

/// Which segments lie in which lane.
template <class V>
struct Lanes {
  std::int64_t segments;  // of a row
  std::int64_t panels;    // of a line
  std::int64_t rows;      // of a line
  explicit Lanes(std::int64_t cols)
      : segments((cols + kSegment - 1) / kSegment),
        panels((segments + V::kRows - 1) / V::kRows),
        rows(segments < V::kRows ? V::kRows / segments : 1) {}
};

/// Rows of something that has as many bytes for each segment.
struct Strip {
  const std::byte* first;
  std::int64_t rows, stride;  // bytes from row to row
  std::int64_t row_bytes, segment_bytes;
};

/// Where the segments of a panel begin. A short one is copied to `padded` [V::kRows][segment_bytes].
template <class V>
void find_segments(const Strip& strip, const Lanes<V>& lanes, std::int64_t panel, std::byte* padded,
                   const std::byte** at) {
  std::int64_t row = 0, segment = panel * V::kRows;
  for (int lane = 0; lane < V::kRows; ++lane, ++segment) {
    if (segment == lanes.segments && lanes.panels == 1) {
      segment = 0;
      ++row;
    }
    at[lane] = kZeros;
    if (segment >= lanes.segments || row >= strip.rows) continue;
    const std::int64_t offset = segment * strip.segment_bytes;
    at[lane] = strip.first + row * strip.stride + offset;
    const std::int64_t left = strip.row_bytes - offset;
    if (left >= strip.segment_bytes) continue;
    std::byte* const copy = padded + lane * strip.segment_bytes;
    std::memcpy(copy, at[lane], static_cast<std::size_t>(left));
    std::memset(copy + left, 0, static_cast<std::size_t>(strip.segment_bytes - left));
    at[lane] = copy;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Quantized weights. What lies in a block of a panel and of arranged activations beside the bytes, in lanes:
//   kind       scales of the panel         numbers of the activations
//   scaled     ws                          dx, -offset * S, int
//   with_min   ws, -wm                     dx, dx * S
//   halves     d, sc0, sc1                 dx, -offset * S16_0, -offset * S16_1, int   (ws = d * sc)
//   half_mins  ws0, ws1, -wm0, -wm1        dx, dx * S16_0, dx * S16_1

/// Q2_K with its scales apart from its weights.
template <class V>
struct Q2_K {
  static constexpr Kind kKind = Kind::half_mins;
  static constexpr int kOffset = 0, kMax16 = 8, kBlockBytes = 84;

  template <int part>
  static void pack_part(const typename V::I low[8], typename V::F d, typename V::F dmin, typename V::I four_scales,
                        std::uint8_t* const* out) {
    const panel::Out<V> block{out[part]};
    for (int j = 0; j < 8; ++j) block.bytes(j, panel::and_bytes<V>(V::template srl<2 * (part % 4)>(low[j]), 3));
    const typename V::I s[2] = {panel::byte_of<V, 2 * (part % 2)>(four_scales),
                                panel::byte_of<V, 2 * (part % 2) + 1>(four_scales)};
    for (int h = 0; h < 2; ++h) {
      block.scale(h, V::mul(d, V::to_float(V::and_(s[h], V::set1(15)))));
      block.scale(2 + h, V::negate(V::mul(dmin, V::to_float(V::template srl<4>(s[h])))));
    }
  }

  static void pack(const Rows<V>& rows, std::int64_t chunk, int, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kBlockBytes;
    const panel::Fields<V, std::uint32_t> both(rows, start + 80, 0, 1);
    const typename V::I dd = V::load(both.at[0]);
    const typename V::F d = V::half(dd), dmin = V::half(V::template srl<16>(dd));
    typename V::I scales[4], low[8];
    panel::columns<V>(rows, start, scales);
    panel::columns<V>(rows, start + 16, low);
    panel::columns<V>(rows, start + 32, low + 4);
    pack_part<0>(low, d, dmin, scales[0], out);
    pack_part<1>(low, d, dmin, scales[0], out);
    pack_part<2>(low, d, dmin, scales[1], out);
    pack_part<3>(low, d, dmin, scales[1], out);
    panel::columns<V>(rows, start + 48, low);
    panel::columns<V>(rows, start + 64, low + 4);
    pack_part<4>(low, d, dmin, scales[2], out);
    pack_part<5>(low, d, dmin, scales[2], out);
    pack_part<6>(low, d, dmin, scales[3], out);
    pack_part<7>(low, d, dmin, scales[3], out);
  }
};

/// `Format` packs (matmul_panel.h).
template <class V, class Format>
struct Quantized {
  using I = typename V::I;
  using F = typename V::F;
  static constexpr Kind kKind = Format::kKind;
  static constexpr int kArrangement = static_cast<int>(kKind) * 256 + Format::kOffset;
  static constexpr std::int64_t kSegmentBytes = Format::kBlockBytes * (kBlocks / panel::parts_of<Format>());
  static constexpr std::int64_t kBlockBytes = V::block_bytes(kKind), kPanelBytes = kBlocks * kBlockBytes;
  static constexpr std::int64_t kXBlockBytes = 11 * V::kBytes, kXPanelBytes = kBlocks * kXBlockBytes;
  static constexpr int kMostX = 8, kLines = 4;

  static std::int64_t row_bytes(std::int64_t cols) { return cols / 32 * kSegmentBytes / kBlocks; }

  static void pack(const Rows<V>& rows, std::uint8_t* out) {
    std::uint8_t* blocks[kBlocks];
    for (int b = 0; b < kBlocks; ++b) blocks[b] = out + b * kBlockBytes;
    Format::pack(rows, 0, kBlocks, blocks);
  }

  /// The two numbers of a block beside dx.
  static void put_sums(F dx, I s0, I s1, std::uint8_t* numbers) {
    const auto offset = [](I sum) { return V::mul32(sum, V::set1(-Format::kOffset)); };
    if constexpr (kKind == Kind::scaled) V::store(numbers, offset(V::add(s0, s1)));
    if constexpr (kKind == Kind::with_min) V::store_float(numbers, V::mul(dx, V::to_float(V::add(s0, s1))));
    if constexpr (kKind == Kind::halves) {
      V::store(numbers, offset(s0));
      V::store(numbers + V::kBytes, offset(s1));
    }
    if constexpr (kKind == Kind::half_mins) {
      V::store_float(numbers, V::mul(dx, V::to_float(s0)));
      V::store_float(numbers + V::kBytes, V::mul(dx, V::to_float(s1)));
    }
  }

  /// Row `row` of x as the lanes of a panel want it.
  static void arrange(const MatmulArgs& args, std::int64_t row, const Lanes<V>& lanes, std::int64_t panel,
                      std::uint8_t* out) {
    constexpr std::int64_t kQ = kSegment, kD = kBlocks * 4, kSums = kBlocks * 8;  // bytes of a segment
    std::byte padded[V::kRows * (kQ + kD + kSums)];
    const std::byte *q[V::kRows], *d[V::kRows], *sums[V::kRows];
    const std::int64_t blocks = args.cols / 32, first = row * blocks;
    const auto find = [&](const void* all, std::int64_t block_bytes, std::byte* copies, const std::byte** at) {
      const auto* from = static_cast<const std::byte*>(all) + first * block_bytes;
      find_segments<V>({from, lanes.rows, 0, blocks * block_bytes, kBlocks * block_bytes}, lanes, panel, copies, at);
    };
    find(args.x_q8.q, 32, padded, q);
    find(args.x_q8.d, 4, padded + V::kRows * kQ, d);
    find(args.x_q8.sum16, 8, padded + V::kRows * (kQ + kD), sums);
    for (int b = 0; b < kBlocks; ++b) {
      I bytes[8];
      V::columns(q, 32 * b, bytes);
      V::columns(q, 32 * b + 16, bytes + 4);
      for (int j = 0; j < 8; ++j) V::store(out + b * kXBlockBytes + j * V::kBytes, bytes[j]);
    }
    for (int b = 0; b < kBlocks; b += 2) {
      I scales[4], s[4];
      V::columns(d, 16 * (b / 4), scales);
      V::columns(sums, 8 * b, s);
      for (int i = 0; i < 2; ++i) {
        const F dx = V::as_float(scales[b % 4 + i]);
        std::uint8_t* const numbers = out + (b + i) * kXBlockBytes + 8 * V::kBytes;
        V::store_float(numbers, dx);
        put_sums(dx, s[2 * i], s[2 * i + 1], numbers + V::kBytes);
      }
    }
  }

  /// One block of a panel with that of R rows of x, each x_bytes behind the one before: its terms, added to sum[R].
  template <int R>
  static inline __attribute__((always_inline)) void add_block(const std::uint8_t* w, const std::uint8_t* x,
                                                              std::int64_t x_bytes, F sum[R]) {
    const auto scale = [w](int i) { return V::load_float(w + (8 + i) * V::kBytes); };
    const auto number = [x, x_bytes](int r, int i) { return x + r * x_bytes + (8 + i) * V::kBytes; };
    const auto bytes = [x, x_bytes](int r, int j) { return V::load(x + r * x_bytes + j * V::kBytes); };
    constexpr bool kTwo = kKind == Kind::halves || kKind == Kind::half_mins;
    constexpr bool kMins = kKind == Kind::with_min || kKind == Kind::half_mins;
#pragma GCC unroll 2
    for (int half = 0; half < (kTwo ? 2 : 1); ++half) {
      I dot[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) dot[r] = kMins ? V::set1(0) : V::load(number(r, 1 + half));
      if (!kTwo) V::template dot<R, 0, 8, Format::kMax16>(dot, w, bytes);
      if (kTwo && half == 0) V::template dot<R, 0, 4, Format::kMax16>(dot, w, bytes);
      if (kTwo && half == 1) V::template dot<R, 4, 8, Format::kMax16>(dot, w, bytes);
      const F ws = kKind == Kind::halves ? V::mul(scale(0), scale(1 + half)) : scale(half);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        sum[r] = V::fma(V::mul(ws, V::load_float(number(r, 0))), V::to_float(dot[r]), sum[r]);
        if (kMins) sum[r] = V::fma(scale(kTwo ? 2 + half : 1), V::load_float(number(r, 1 + half)), sum[r]);
      }
    }
  }

  /// `lines` packed panels with R rows of x: a vector of segments' sums for each pair, R of them to every line's
  /// `sums`.
  template <int R>
  static void add(const std::uint8_t* packed, int lines, const std::uint8_t* x, std::int64_t x_bytes, float* sums,
                  std::int64_t line_floats, std::int64_t row_floats) {
    for (int line = 0; line < lines; ++line, packed += kPanelBytes, sums += line_floats) {
      F sum[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r] = V::set1_float(0);
      for (int b = 0; b < kBlocks; ++b) add_block<R>(packed + b * kBlockBytes, x + b * kXBlockBytes, x_bytes, sum);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) V::store_float(sums + r * row_floats, sum[r]);
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Float weights: a panel is 256 vectors of floats, and so are its activations.

/// widen(v, i): element i of those that lie in four bytes a lane.
template <class V>
struct F32 {
  static constexpr int kBytes = 4;
  static typename V::F widen(typename V::I v, int) { return V::as_float(v); }
};
template <class V>
struct F16 {
  static constexpr int kBytes = 2;
  static typename V::F widen(typename V::I v, int i) { return V::half(i == 0 ? v : V::template srl<16>(v)); }
};
template <class V>
struct BF16 {
  static constexpr int kBytes = 2;
  static typename V::F widen(typename V::I v, int i) {
    return V::as_float(i == 0 ? V::template sll<16>(v) : V::and_(v, V::set1(static_cast<int>(0xffff0000))));
  }
};

template <class V, class Format>
struct Floats {
  using F = typename V::F;
  static constexpr int kArrangement = -1;
  static constexpr std::int64_t kSegmentBytes = kSegment * Format::kBytes;
  static constexpr std::int64_t kPanelBytes = kSegment * V::kBytes, kXPanelBytes = kPanelBytes;
  static constexpr int kMostX = 4, kLines = 2;

  static std::int64_t row_bytes(std::int64_t cols) { return cols * Format::kBytes; }

  static void pack(const Rows<V>& rows, std::uint8_t* out) {
    for (std::int64_t offset = 0; offset < kSegmentBytes; offset += 16) {
      typename V::I four[4];
      panel::columns<V>(rows, offset, four);
      for (int j = 0; j < 4; ++j) {
        for (int i = 0; i < 4 / Format::kBytes; ++i, out += V::kBytes) {
          V::store_float(out, Format::widen(four[j], i));
        }
      }
    }
  }

  static void arrange(const MatmulArgs& args, std::int64_t row, const Lanes<V>& lanes, std::int64_t panel,
                      std::uint8_t* out) {
    std::byte padded[V::kRows * kSegment * 4];
    const std::byte* at[V::kRows];
    const auto* from = reinterpret_cast<const std::byte*>(args.x + row * args.x_stride);
    find_segments<V>({from, lanes.rows, 0, args.cols * 4, kSegment * 4}, lanes, panel, padded, at);
    for (std::int64_t k = 0; k < kSegment; k += 4) {
      typename V::I four[4];
      V::columns(at, 4 * k, four);
      for (int j = 0; j < 4; ++j) V::store(out + (k + j) * V::kBytes, four[j]);
    }
  }

  /// kL panels side by side: a lane's sum is one long chain, and only others fill the time that it waits.
  template <int R, int kL>
  static void add_lines(const std::uint8_t* packed, const std::uint8_t* x, std::int64_t x_bytes, F sum[kL * R]) {
    for (std::int64_t at = 0; at < kPanelBytes; at += V::kBytes) {
      F xs[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) xs[r] = V::load_float(x + r * x_bytes + at);
#pragma GCC unroll 2
      for (int line = 0; line < kL; ++line) {
        const F w = V::load_float(packed + line * kPanelBytes + at);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[line * R + r] = V::fma(w, xs[r], sum[line * R + r]);
      }
    }
  }

  template <int R>
  static void add(const std::uint8_t* packed, int lines, const std::uint8_t* x, std::int64_t x_bytes, float* sums,
                  std::int64_t line_floats, std::int64_t row_floats) {
    static_assert(kLines == 2);
    F sum[kLines * R];
#pragma GCC unroll 8
    for (int i = 0; i < kLines * R; ++i) sum[i] = V::set1_float(0);
    if (lines == 2) {
      add_lines<R, 2>(packed, x, x_bytes, sum);
    } else {
      add_lines<R, 1>(packed, x, x_bytes, sum);
    }
    for (int line = 0; line < lines; ++line) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) V::store_float(sums + line * line_floats + r * row_floats, sum[line * R + r]);
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// The product

/// Workspace: Arranged, arranged activations, packed panels, sums, padded segments.
template <class V, class W>
struct Layout {
  std::int64_t x, packed, sums, padded, bytes;  // offsets
  std::int64_t x_bytes, sum_floats;             // of a row of x; of a pair of a line and a row of x
  explicit Layout(const Lanes<V>& lanes) {
    x_bytes = lanes.panels * W::kXPanelBytes;
    sum_floats = lanes.panels * V::kRows;
    x = kArrangedBytes;
    packed = x + W::kMostX * x_bytes;
    sums = packed + W::kLines * W::kPanelBytes;
    padded = sums + W::kLines * W::kMostX * sum_floats * 4;
    bytes = padded + (V::kRows * W::kSegmentBytes + 63) / 64 * 64;
  }
};

/// x rows [r0, r0 + count), unless they lie there already.
template <class V, class W>
void arrange(const MatmulArgs& args, const Lanes<V>& lanes, const Layout<V, W>& layout, std::int64_t r0, int count) {
  auto& there = *reinterpret_cast<Arranged*>(args.workspace);
  const auto source = [&](std::int64_t r) { return args.x_index ? args.x_index[r] : r; };
  const bool named = args.x_index == nullptr || args.x_rows == 1;  // others pick rows as they like
  const Arranged wanted{named ? args.x_name : 0, W::kArrangement, count, args.cols, source(r0)};
  if (wanted.name != 0 && std::memcmp(&there, &wanted, sizeof wanted) == 0) return;
  for (int r = 0; r < count; ++r) {
    auto* const out = reinterpret_cast<std::uint8_t*>(args.workspace) + layout.x + r * layout.x_bytes;
    for (std::int64_t p = 0; p < lanes.panels; ++p)
      W::arrange(args, source(r0 + r), lanes, p, out + p * W::kXPanelBytes);
  }
  there = wanted;
}

/// The rows of one line with `count` rows of x, from their segments' sums.
template <class V>
void add_segments(const float* sums, std::int64_t row_floats, std::int64_t segments, std::int64_t rows, int count,
                  float* y, std::int64_t y_stride) {
  for (std::int64_t n = 0; n < rows; ++n, sums += segments) {
    for (int r = 0; r < count; ++r) {
      float total = 0;
      for (std::int64_t s = 0; s < segments; ++s) total += sums[r * row_floats + s];
      y[r * y_stride + n] = total;
    }
  }
}

template <class V, class W>
void product(const MatmulArgs& args) {
  const Lanes<V> lanes(args.cols);
  const Layout<V, W> layout(lanes);
  const std::int64_t row_bytes = W::row_bytes(args.cols), line_rows = lanes.rows;
  auto* const work = reinterpret_cast<std::uint8_t*>(args.workspace);
  std::uint8_t* const packed = work + layout.packed;
  auto* const sums = reinterpret_cast<float*>(work + layout.sums);
  const std::int64_t line_floats = W::kMostX * layout.sum_floats;
  for (std::int64_t r0 = 0; r0 < args.x_rows; r0 += W::kMostX) {
    const int count = args.x_rows - r0 < W::kMostX ? static_cast<int>(args.x_rows - r0) : W::kMostX;
    arrange<V, W>(args, lanes, layout, r0, count);
    for (std::int64_t n0 = 0; n0 < args.weight_rows; n0 += W::kLines * line_rows) {
      const std::int64_t left = args.weight_rows - n0;
      const int lines = left < W::kLines * line_rows ? static_cast<int>((left + line_rows - 1) / line_rows) : W::kLines;
      for (std::int64_t p = 0; p < lanes.panels; ++p) {
        for (int line = 0; line < lines; ++line) {
          const std::int64_t n = n0 + line * line_rows;
          Rows<V> rows;
          const std::int64_t count = args.weight_rows - n < line_rows ? args.weight_rows - n : line_rows;
          find_segments<V>({args.weight + n * row_bytes, count, row_bytes, row_bytes, W::kSegmentBytes}, lanes, p,
                           reinterpret_cast<std::byte*>(work + layout.padded), rows.at);
          rows.ahead = p + 1 < lanes.panels ? V::kRows * W::kSegmentBytes
                                            : W::kLines * line_rows * row_bytes - p * V::kRows * W::kSegmentBytes;
          W::pack(rows, packed + line * W::kPanelBytes);
        }
        const std::uint8_t* x = work + layout.x + p * W::kXPanelBytes;
        float* to = sums + p * V::kRows;
        for (int r = 0, tile; r < count; r += tile, x += tile * layout.x_bytes, to += tile * layout.sum_floats) {
          tile = count - r >= 4 ? 4 : count - r >= 2 ? 2 : 1;
          const auto add = [&]<int R>() {
            W::template add<R>(packed, lines, x, layout.x_bytes, to, line_floats, layout.sum_floats);
          };
          if (tile == 4) add.template operator()<4>();
          if (tile == 2) add.template operator()<2>();
          if (tile == 1) add.template operator()<1>();
        }
      }
      for (int line = 0; line < lines; ++line) {
        const std::int64_t n = n0 + line * line_rows;
        const std::int64_t rows = args.weight_rows - n < line_rows ? args.weight_rows - n : line_rows;
        add_segments<V>(sums + line * line_floats, layout.sum_floats, lanes.segments, rows, count,
                        args.y + r0 * args.y_stride + n, args.y_stride);
      }
    }
  }
}

template <class V>
std::int64_t workspace_bytes(std::int64_t cols) {
  const Lanes<V> lanes(cols);
  // Of quantized formats none has a larger panel or segment than these.
  const std::int64_t quantized = Layout<V, Quantized<V, Q2_K<V>>>(lanes).bytes + V::kRows * 272;
  const std::int64_t floats = Layout<V, Floats<V, F32<V>>>(lanes).bytes;
  return quantized > floats ? quantized : floats;
}

/// REQUIRES: a dtype that is computable.
template <class V>
void multiply(const MatmulArgs& args) {
  switch (args.dtype) {
    case DType::f32:
      return product<V, Floats<V, F32<V>>>(args);
    case DType::f16:
      return product<V, Floats<V, F16<V>>>(args);
    case DType::bf16:
      return product<V, Floats<V, BF16<V>>>(args);
    case DType::q4_0:
      return product<V, Quantized<V, panel::Q4_0<V>>>(args);
    case DType::q4_1:
      return product<V, Quantized<V, panel::Q4_1<V>>>(args);
    case DType::q5_0:
      return product<V, Quantized<V, panel::Q5<V, false>>>(args);
    case DType::q5_1:
      return product<V, Quantized<V, panel::Q5<V, true>>>(args);
    case DType::q8_0:
      return product<V, Quantized<V, panel::Q8_0<V>>>(args);
    case DType::q2_k:
      return product<V, Quantized<V, Q2_K<V>>>(args);
    case DType::q3_k:
      return product<V, Quantized<V, panel::Q3_K<V>>>(args);
    case DType::q4_k:
      return product<V, Quantized<V, panel::K4<V, false>>>(args);
    case DType::q5_k:
      return product<V, Quantized<V, panel::K4<V, true>>>(args);
    case DType::q6_k:
      return product<V, Quantized<V, panel::Q6_K<V>>>(args);
    case DType::iq4_nl:
      return product<V, Quantized<V, panel::IQ4_NL<V>>>(args);
    case DType::iq4_xs:
      return product<V, Quantized<V, panel::IQ4_XS<V>>>(args);
    case DType::mxfp4:
      return product<V, Quantized<V, panel::MXFP4<V>>>(args);
    case DType::nvfp4:
      return product<V, Quantized<V, panel::NVFP4<V>>>(args);
    case DType::q1_0:
      return product<V, Quantized<V, panel::Fields16<V, 1>>>(args);
    case DType::q2_0:
      return product<V, Quantized<V, panel::Fields16<V, 2>>>(args);
    default:
      with_grid_block(args.dtype, [&]<typename Block>() { product<V, Quantized<V, panel::OnGrid<V, Block>>>(args); });
  }
}

}  // namespace millrace::kernels::segments
