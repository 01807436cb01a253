// Products with quantized weights, written once for every vector width; matmul_avx2.h and matmul_avx512.cpp supply
// the vector type `V` and include this. Everything here is a template over a V with internal linkage, so that no code
// built for one instruction set can be linked into another.
//
// How it works. V::kRows weight rows at a time are packed into a *panel*: lanes are weight rows, so that no sum ever
// runs across lanes. A panel is a list of blocks of 32 columns; a block is eight vectors of bytes (vector j, lane n:
// columns 4j..4j+3 of row n) and then the scales of the block, one float a lane each. Activations are gathered into
// *tiles* of R rows, block by block, with what the kind of format needs of their sums. Where a panel's block meets a
// tile's, R vectors of terms arise, to be added to the contract's lane (block % 32).
//   Few x rows: eight blocks of the panel are packed, used at once and forgotten; the 32 lanes lie in the L1 cache as
// 32 x R vectors, and weights are read once, in order, straight from the file's blocks.
//   Many x rows: whole panels are packed, and their blocks sorted by lane, the lanes in the order in which the
//   contract's
// tree wants them: a lane's sum then lives in registers, and a small stack of vectors is all that the tree needs. The
// tree's upper levels split the lanes into up to eight *classes* (lane % classes) of independent sums, so that one
// class of a panel stays in the L1 cache while tile after tile passes by.
//
// What V offers: I (int32 lanes) and F (float lanes); kRows; kSigned (bytes of 8-bit weights are kept signed, not
// offset by 128); kTile (the largest R), kFew (x rows that go without whole panels); columns, dot, and the plain
// arithmetic used below.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"
#include "tensor/blocks.h"
#include "tensor/grid_blocks.h"
#include "tensor/grids.h"

namespace millrace::kernels::panel {

constexpr int kChunk = 8;           // blocks
constexpr int kLanes = 32;          // of the numerics contract
constexpr int kMagic = 0x4b400000;  // 1.5 * 2^23 as bits: added to a small integer, it is that integer plus 1.5 * 2^23
constexpr float kMagicFloat = 12582912.0F;

/// What a block of 32 weights looks like to the contract, and so what lies in a panel and a tile beside the bytes:
///   kind       scales of the panel         sums of the tile (u0, u1)
///   scaled     d                           -offset * S, int
///   with_min   d, m (signed)               S, float
///   halves     d, sc0, sc1, -magic * sc0   magic - offset * S16_0, magic - offset * S16_1, int
///   half_mins  d, -dmin, m0, m1            S16_0, S16_1, float
enum class Kind { scaled, with_min, halves, half_mins };
static constexpr int scale_count(Kind kind) { return kind == Kind::scaled ? 1 : kind == Kind::with_min ? 2 : 4; }

/// Bytes of a block of a tile of `rows` rows: q [rows][32], then dx, u0, u1 [rows].
static constexpr std::int64_t tile_block_bytes(std::int64_t rows) { return rows * (32 + 4 + 4 + 4); }

/// Lines about to be overwritten: stores retire in order, and so each that misses would hold up all others.
static inline __attribute__((always_inline)) void prefetch_to_write(const std::uint8_t* p, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 1, 3);
}

// ---------------------------------------------------------------------------------------------------------------------
// Weights.

/// V::kRows weight rows from row n0 on; rows past the end repeat the last one.
template <class V>
struct Rows {
  const std::byte* at[V::kRows];
  std::int64_t ahead;  // from a row to its like in the next panel
  int count;
  Rows() = default;  // for who finds them himself
  Rows(const MatmulArgs& args, std::int64_t stride, std::int64_t n0) : ahead(V::kRows * stride) {
    count = args.weight_rows - n0 < V::kRows ? static_cast<int>(args.weight_rows - n0) : V::kRows;
    for (int r = 0; r < V::kRows; ++r) at[r] = args.weight + (n0 + (r < count ? r : count - 1)) * stride;
  }
};

/// Four bytes a lane from sixteen bytes of every row. Asks for the next panel's, a few lines at a time: more at once
/// than the core has fill buffers would stop it.
template <class V>
inline __attribute__((always_inline)) void columns(const Rows<V>& rows, std::int64_t offset, typename V::I out[4]) {
  constexpr int kLines = V::kRows / 4;  // sixteen bytes are a quarter of a line
  const std::byte* const* from = rows.at + (offset >> 4) % 4 * kLines;
#pragma GCC unroll 4
  for (int i = 0; i < kLines; ++i) __builtin_prefetch(from[i] + offset + rows.ahead, 0, 2);
  V::columns(rows.at, offset, out);
}

// ---------------------------------------------------------------------------------------------------------------------
// Packing. A format has
//   kKind, kOffset (subtracted from every byte of the panel), kMax16 (how many sums of two byte products with |x| <=
//   127 fit into int16; 0: bytes are signed), and pack(rows, chunk, n, out): packs blocks [8 chunk, 8 chunk + n) of the
//   rows.

template <class V>
struct Out {  // one block of a panel under construction
  std::uint8_t* at;
  void bytes(int j, typename V::I v) const { V::store(at + j * V::kBytes, v); }
  void scale(int i, typename V::F v) const { V::store_float(at + (8 + i) * V::kBytes, v); }
};

template <class V>
typename V::I and_bytes(typename V::I v, int mask) {
  return V::and_(v, V::set1(mask * 0x01010101));
}

/// Byte `i` of every lane, as an int.
template <class V, int i>
typename V::I byte_of(typename V::I v) {
  return V::and_(V::template srl<8 * i>(v), V::set1(255));
}

template <class V, int i>
typename V::I signed_byte_of(typename V::I v) {
  return V::template sra<24>(V::template sll<24 - 8 * i>(v));
}

/// Sixteen bytes of every row to 32 nibbles: low ones are columns 0..15, high ones 16..31 of a block.
template <class V>
void nibble_columns(const Rows<V>& rows, std::int64_t offset, typename V::I q[8]) {
  typename V::I raw[4];
  columns<V>(rows, offset, raw);
  for (int j = 0; j < 4; ++j) {
    q[j] = and_bytes<V>(raw[j], 15);
    q[j + 4] = and_bytes<V>(V::template srl<4>(raw[j]), 15);
  }
}

/// The same field of `n` blocks of every row: [8][kRows].
template <class V, typename T>
struct Fields {
  alignas(64) T at[kChunk][V::kRows];
  Fields(const Rows<V>& rows, std::int64_t offset, std::int64_t stride, int n) {
    for (int r = 0; r < V::kRows; ++r) {
      const std::byte* field = rows.at[r] + offset;
      for (int i = 0; i < n; ++i, field += stride) std::memcpy(&at[i][r], field, sizeof(T));
    }
  }
};

template <class V>
struct Q4_0 {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 8, kMax16 = 8, kBlockBytes = 18;
  static void pack(const Rows<V>& rows, std::int64_t chunk, int n, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kChunk * kBlockBytes;
    const Fields<V, std::uint16_t> d(rows, start, kBlockBytes, n);
    for (int i = 0; i < n; ++i) {
      const Out<V> block{out[i]};
      typename V::I q[8];
      nibble_columns<V>(rows, start + i * kBlockBytes + 2, q);
      for (int j = 0; j < 8; ++j) block.bytes(j, q[j]);
      block.scale(0, V::halves(d.at[i]));
    }
  }
};

template <class V>
struct Q4_1 {
  static constexpr Kind kKind = Kind::with_min;
  static constexpr int kOffset = 0, kMax16 = 8, kBlockBytes = 20;
  static void pack(const Rows<V>& rows, std::int64_t chunk, int n, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kChunk * kBlockBytes;
    const Fields<V, std::uint16_t> d(rows, start, kBlockBytes, n), m(rows, start + 2, kBlockBytes, n);
    for (int i = 0; i < n; ++i) {
      const Out<V> block{out[i]};
      typename V::I q[8];
      nibble_columns<V>(rows, start + i * kBlockBytes + 4, q);
      for (int j = 0; j < 8; ++j) block.bytes(j, q[j]);
      block.scale(0, V::halves(d.at[i]));
      block.scale(1, V::halves(m.at[i]));
    }
  }
};

/// Bits 4j..4j+3 of every lane to bit 4 of the four bytes.
template <class V>
typename V::I fifth_bits(typename V::I qh, int j) {
  const typename V::I four = V::and_(V::srl_by(qh, 4 * j), V::set1(15));
  return V::template sll<4>(and_bytes<V>(V::mul32(four, V::set1(0x00204081)), 1));
}

template <class V, bool kHasMin>
struct Q5 {
  static constexpr Kind kKind = kHasMin ? Kind::with_min : Kind::scaled;
  static constexpr int kOffset = kHasMin ? 0 : 16, kMax16 = 4, kBlockBytes = kHasMin ? 24 : 22;
  static void pack(const Rows<V>& rows, std::int64_t chunk, int n, std::uint8_t* const* out) {
    constexpr int kHigh = kHasMin ? 4 : 2;
    const std::int64_t start = chunk * kChunk * kBlockBytes;
    const Fields<V, std::uint16_t> d(rows, start, kBlockBytes, n), m(rows, start + 2, kBlockBytes, n);
    const Fields<V, std::uint32_t> high(rows, start + kHigh, kBlockBytes, n);
    for (int i = 0; i < n; ++i) {
      const Out<V> block{out[i]};
      typename V::I q[8];
      nibble_columns<V>(rows, start + i * kBlockBytes + kHigh + 4, q);
      const typename V::I qh = V::load(high.at[i]);
      for (int j = 0; j < 8; ++j) block.bytes(j, V::or_(q[j], fifth_bits<V>(qh, j)));
      block.scale(0, V::halves(d.at[i]));
      if constexpr (kHasMin) block.scale(1, V::halves(m.at[i]));
    }
  }
};

template <class V>
struct Q8_0 {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = V::kSigned ? 0 : 128, kMax16 = V::kSigned ? 0 : 1, kBlockBytes = 34;
  static void pack(const Rows<V>& rows, std::int64_t chunk, int n, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kChunk * kBlockBytes;
    const Fields<V, std::uint16_t> d(rows, start, kBlockBytes, n);
    const typename V::I flip = V::set1(V::kSigned ? 0 : static_cast<int>(0x80808080));
    for (int i = 0; i < n; ++i) {
      const Out<V> block{out[i]};
      typename V::I q[8];
      columns<V>(rows, start + i * kBlockBytes + 2, q);
      columns<V>(rows, start + i * kBlockBytes + 18, q + 4);
      for (int j = 0; j < 8; ++j) block.bytes(j, V::xor_(q[j], flip));
      block.scale(0, V::halves(d.at[i]));
    }
  }
};

/// The IQ4 codebook as the panel wants it: offset by 128 unless signed.
template <class V>
typename V::I iq4_levels(typename V::I nibbles) {
  return V::xor_(V::lookup(kIq4Codebook, nibbles), V::set1(V::kSigned ? 0 : static_cast<int>(0x80808080)));
}

template <class V>
struct IQ4_NL {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = V::kSigned ? 0 : 128, kMax16 = V::kSigned ? 0 : 1, kBlockBytes = 18;
  static void pack(const Rows<V>& rows, std::int64_t chunk, int n, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kChunk * kBlockBytes;
    const Fields<V, std::uint16_t> d(rows, start, kBlockBytes, n);
    for (int i = 0; i < n; ++i) {
      const Out<V> block{out[i]};
      typename V::I q[8];
      nibble_columns<V>(rows, start + i * kBlockBytes + 2, q);
      for (int j = 0; j < 8; ++j) block.bytes(j, iq4_levels<V>(q[j]));
      block.scale(0, V::halves(d.at[i]));
    }
  }
};

/// Half of the E8M0 scale in the low byte of every lane, 2^(e - 128), which may be subnormal: as 2^(e/2 - 64) times
/// 2^((e + 1)/2 - 64), whose product is exact.
template <class V>
typename V::F halved_power(typename V::I v) {
  const typename V::I e = byte_of<V, 0>(v);
  const auto power = [](typename V::I n) {
    return V::as_float(V::template sll<23>(V::add(V::template srl<1>(n), V::set1(63))));
  };
  return V::mul(power(e), power(V::add(e, V::set1(1))));
}

template <class V>
struct MXFP4 {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 12, kMax16 = 4, kBlockBytes = 17;
  alignas(16) static constexpr std::int8_t kLevels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  static void pack(const Rows<V>& rows, std::int64_t chunk, int n, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kChunk * kBlockBytes;
    const Fields<V, std::uint32_t> e(rows, start, kBlockBytes, n);  // and three bytes more
    for (int i = 0; i < n; ++i) {
      const Out<V> block{out[i]};
      typename V::I q[8];
      nibble_columns<V>(rows, start + i * kBlockBytes + 1, q);
      for (int j = 0; j < 8; ++j) block.bytes(j, V::lookup(kLevels, q[j]));
      block.scale(0, halved_power<V>(V::load(e.at[i])));
    }
  }
};

/// Halves of the UE4M3 scales (tensor/blocks.h) in the four bytes of every lane, by way of float16.
template <class V>
struct ScalesUE4M3 {
  typename V::I bits;
  explicit ScalesUE4M3(typename V::I four) {
    const typename V::I seven = and_bytes<V>(four, 127);
    // Bit 7 of a byte's successor is set where the byte is 127, which counts as 0.
    const typename V::I none = and_bytes<V>(V::template srl<7>(V::add_bytes(seven, V::set1(0x01010101))), 1);
    bits = V::xor_(seven, V::mul16(none, V::set1(0x007f007f)));
  }
  template <int i>
  typename V::F at() const {
    return V::mul(V::half(V::template sll<7>(byte_of<V, i>(bits))), V::set1_float(kUe4m3Unit));
  }
};

/// The kind's d is 1, and sc0 and sc1 are no integers.
template <class V>
struct NVFP4 {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 12, kMax16 = 4, kBlockBytes = 36, kParts = 2;

  template <int part>
  static void pack_part(const Rows<V>& rows, std::int64_t offset, const ScalesUE4M3<V>& scales, std::uint8_t* out) {
    const Out<V> block{out};
    typename V::I raw[4];
    columns<V>(rows, offset + 4 + 16 * part, raw);
    for (int j = 0; j < 8; ++j) {  // eight bytes have the low nibbles of columns 0..7 of a half, and its high ones
      const typename V::I bytes = raw[j / 4 * 2 + j % 2];
      block.bytes(j, V::lookup(MXFP4<V>::kLevels, and_bytes<V>(j % 4 < 2 ? bytes : V::template srl<4>(bytes), 15)));
    }
    const typename V::F sc0 = scales.template at<2 * part>();
    block.scale(0, V::set1_float(1));
    block.scale(1, sc0);
    block.scale(2, scales.template at<2 * part + 1>());
    block.scale(3, V::mul(sc0, V::set1_float(-kMagicFloat)));  // exact: 1.5 * 2^23 * sc needs six bits
  }

  static void pack(const Rows<V>& rows, std::int64_t chunk, int n, std::uint8_t* const* out) {
    const std::int64_t start = chunk * (kChunk / kParts) * kBlockBytes;
    const Fields<V, std::uint32_t> d(rows, start, kBlockBytes, n / kParts);
    for (int i = 0; i < n / kParts; ++i) {
      const ScalesUE4M3<V> scales(V::load(d.at[i]));
      pack_part<0>(rows, start + i * kBlockBytes, scales, out[2 * i]);
      pack_part<1>(rows, start + i * kBlockBytes, scales, out[2 * i + 1]);
    }
  }
};

/// The fields of 1 or 2 bits that neighbouring columns have in the low byte of every lane, in four bytes.
template <class V, int kBits>
typename V::I spread_fields(typename V::I v) {
  if constexpr (kBits == 1) return and_bytes<V>(V::mul32(v, V::set1(0x00204081)), 1);
  const typename V::I nibbles = V::and_(V::or_(v, V::template sll<12>(v)), V::set1(0x000f000f));
  return and_bytes<V>(V::or_(nibbles, V::template sll<6>(nibbles)), 3);
}

/// Q1_0 and Q2_0: a scale, then sixteen bytes of fields in the order of the columns.
template <class V, int kBits>
struct Fields16 {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 1, kMax16 = 8, kBlockBytes = 18, kParts = 4 / kBits;

  template <int part>
  static void pack_part(const typename V::I raw[4], typename V::F d, std::uint8_t* out) {
    const Out<V> block{out};
    const auto four = [&]<int j>() {  // columns 4j .. 4j + 3
      constexpr int kBit = (32 * part + 4 * j) * kBits;
      const typename V::I field = V::and_(V::template srl<kBit % 32>(raw[kBit / 32]), V::set1((1 << 4 * kBits) - 1));
      const typename V::I q = spread_fields<V, kBits>(field);
      block.bytes(j, kBits == 1 ? V::add_bytes(q, q) : q);  // 0 and 2 are -1 and 1
    };
    four.template operator()<0>(), four.template operator()<1>(), four.template operator()<2>();
    four.template operator()<3>(), four.template operator()<4>(), four.template operator()<5>();
    four.template operator()<6>(), four.template operator()<7>();
    block.scale(0, d);
  }

  static void pack(const Rows<V>& rows, std::int64_t chunk, int n, std::uint8_t* const* out) {
    const std::int64_t start = chunk * (kChunk / kParts) * kBlockBytes;
    const Fields<V, std::uint16_t> d(rows, start, kBlockBytes, n / kParts);
    for (int i = 0; i < n / kParts; ++i) {
      typename V::I raw[4];
      columns<V>(rows, start + i * kBlockBytes + 2, raw);
      const typename V::F scale = V::halves(d.at[i]);
      std::uint8_t* const* const parts = out + kParts * i;
      pack_part<0>(raw, scale, parts[0]);
      pack_part<1>(raw, scale, parts[1]);
      if constexpr (kParts == 4) {
        pack_part<2>(raw, scale, parts[2]);
        pack_part<3>(raw, scale, parts[3]);
      }
    }
  }
};

/// An eighth of a super-block whose bytes are nibbles in pairs of 32 columns (Q4_K, Q5_K): columns of part `part`.
template <class V>
void paired_nibbles(const typename V::I raw[8], int part, typename V::I q[8]) {
  for (int j = 0; j < 8; ++j) {
    q[j] = and_bytes<V>(part % 2 == 0 ? raw[j] : V::template srl<4>(raw[j]), 15);
  }
}

/// The sixteen bytes {d, dmin, scales[12]} of Q4_K and Q5_K, of every row: scales and mins of part `part`.
template <class V>
struct ScalesK4 {
  typename V::F d, dmin;
  typename V::I sc[2], m[2];  // four bytes each: parts 0..3 and 4..7
  ScalesK4(const Rows<V>& rows, std::int64_t offset) {
    typename V::I head[4];
    columns<V>(rows, offset, head);
    d = V::half(head[0]);
    dmin = V::half(V::template srl<16>(head[0]));
    const auto top = [](typename V::I v) { return V::template sll<4>(and_bytes<V>(V::template srl<6>(v), 3)); };
    sc[0] = and_bytes<V>(head[1], 63);
    m[0] = and_bytes<V>(head[2], 63);
    sc[1] = V::or_(and_bytes<V>(head[3], 15), top(head[1]));
    m[1] = V::or_(and_bytes<V>(V::template srl<4>(head[3]), 15), top(head[2]));
  }
  void put(int part, const Out<V>& block) const {
    const auto pick = [part](const typename V::I v[2]) {
      return V::to_float(V::and_(V::srl_by(v[part / 4], 8 * (part % 4)), V::set1(255)));
    };
    block.scale(0, V::mul(d, pick(sc)));
    block.scale(1, V::negate(V::mul(dmin, pick(m))));
  }
};

template <class V, bool kFifth>
struct K4 {  // Q4_K, and with fifth bits Q5_K
  static constexpr Kind kKind = Kind::with_min;
  static constexpr int kOffset = 0, kMax16 = kFifth ? 4 : 8, kBlockBytes = kFifth ? 176 : 144;
  static void pack(const Rows<V>& rows, std::int64_t chunk, int, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kBlockBytes, qs = start + (kFifth ? 48 : 16);
    const ScalesK4<V> scales(rows, start);
    typename V::I high[8] = {};
    if constexpr (kFifth) {
      columns<V>(rows, start + 16, high);
      columns<V>(rows, start + 32, high + 4);
    }
    for (int pair = 0; pair < 4; ++pair) {
      typename V::I raw[8];
      columns<V>(rows, qs + 32 * pair, raw);
      columns<V>(rows, qs + 32 * pair + 16, raw + 4);
      for (int part = 2 * pair; part < 2 * pair + 2; ++part) {
        const Out<V> block{out[part]};
        typename V::I q[8];
        paired_nibbles<V>(raw, part, q);
        for (int j = 0; j < 8; ++j) {
          if constexpr (kFifth) {
            q[j] = V::or_(q[j], V::template sll<4>(and_bytes<V>(V::srl_by(high[j], part), 1)));
          }
          block.bytes(j, q[j]);
        }
        scales.put(part, block);
      }
    }
  }
};

/// Scales of the two halves of a block, from four signed or unsigned bytes a lane that hold them for two blocks.
template <class V, int part>
void put_halves(const Out<V>& block, typename V::F d, typename V::I four_signed) {
  const typename V::F sc0 = V::to_float(signed_byte_of<V, 2 * (part % 2)>(four_signed));
  const typename V::F sc1 = V::to_float(signed_byte_of<V, 2 * (part % 2) + 1>(four_signed));
  block.scale(0, d);
  block.scale(1, sc0);
  block.scale(2, sc1);
  block.scale(3, V::mul(sc0, V::set1_float(-kMagicFloat)));  // exact: 1.5 * 2^23 * sc needs ten bits
}

template <class V>
struct Q6_K {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 32, kMax16 = 2, kBlockBytes = 210;

  template <int part>
  static void pack_part(const typename V::I low[8], const typename V::I high[8], typename V::F d, typename V::I scales,
                        std::uint8_t* const* out) {
    const Out<V> block{out[part]};
    constexpr int kQuarter = part % 4;
    for (int j = 0; j < 8; ++j) {
      const typename V::I four = and_bytes<V>(kQuarter < 2 ? low[j] : V::template srl<4>(low[j]), 15);
      const typename V::I top = and_bytes<V>(V::template srl<2 * kQuarter>(high[j]), 3);
      block.bytes(j, V::or_(four, V::template sll<4>(top)));
    }
    put_halves<V, part>(block, d, scales);
  }

  static void pack(const Rows<V>& rows, std::int64_t chunk, int, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kBlockBytes;
    const Fields<V, std::uint16_t> d16(rows, start + 208, 0, 1);
    const typename V::F d = V::halves(d16.at[0]);
    typename V::I scales[4];
    columns<V>(rows, start + 192, scales);
    pack_half<0>(rows, start, d, scales, out);
    pack_half<1>(rows, start, d, scales, out);
  }

  template <int half>
  static void pack_half(const Rows<V>& rows, std::int64_t start, typename V::F d, const typename V::I scales[4],
                        std::uint8_t* const* out) {
    typename V::I high[8], even[8], odd[8];
    columns<V>(rows, start + 128 + 32 * half, high);
    columns<V>(rows, start + 128 + 32 * half + 16, high + 4);
    columns<V>(rows, start + 64 * half, even);
    columns<V>(rows, start + 64 * half + 16, even + 4);
    pack_part<4 * half>(even, high, d, scales[2 * half], out);
    pack_part<4 * half + 2>(even, high, d, scales[2 * half + 1], out);
    columns<V>(rows, start + 64 * half + 32, odd);
    columns<V>(rows, start + 64 * half + 48, odd + 4);
    pack_part<4 * half + 1>(odd, high, d, scales[2 * half], out);
    pack_part<4 * half + 3>(odd, high, d, scales[2 * half + 1], out);
  }
};

/// Scales of sub-blocks 4g..4g+3 of Q3_K, as signed bytes. packed: the twelve bytes of every row.
template <class V, int g>
typename V::I scales_q3_k(const typename V::I packed[3]) {
  const typename V::I low = and_bytes<V>(V::template srl<4 * (g / 2)>(packed[g % 2]), 15);
  const typename V::I high = and_bytes<V>(V::template srl<2 * g>(packed[2]), 3);
  return V::add_bytes(V::or_(low, V::template sll<4>(high)), V::set1(static_cast<int>(0xe0e0e0e0)));
}

template <class V>
struct Q3_K {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 4, kMax16 = 8, kBlockBytes = 110;

  template <int part>
  static void pack_part(const typename V::I low[8], const typename V::I mask[8], typename V::F d,
                        const typename V::I packed[3], std::uint8_t* const* out) {
    const Out<V> block{out[part]};
    for (int j = 0; j < 8; ++j) {
      const typename V::I two = and_bytes<V>(V::template srl<2 * (part % 4)>(low[j]), 3);
      const typename V::I third = and_bytes<V>(V::template srl<part>(mask[j]), 1);
      block.bytes(j, V::or_(two, V::template sll<2>(third)));
    }
    put_halves<V, part>(block, d, scales_q3_k<V, part / 2>(packed));
  }

  static void pack(const Rows<V>& rows, std::int64_t chunk, int, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kBlockBytes;
    // Bytes 94..109: two that do not matter, the twelve of the scales, d. (Reading on from 96 would leave the row.)
    typename V::I tail[4], packed[3], mask[8], low[8];
    columns<V>(rows, start + 94, tail);
    for (int i = 0; i < 3; ++i) packed[i] = V::or_(V::template srl<16>(tail[i]), V::template sll<16>(tail[i + 1]));
    const typename V::F d = V::half(V::template srl<16>(tail[3]));
    columns<V>(rows, start, mask);
    columns<V>(rows, start + 16, mask + 4);
    columns<V>(rows, start + 32, low);
    columns<V>(rows, start + 48, low + 4);
    pack_part<0>(low, mask, d, packed, out);
    pack_part<1>(low, mask, d, packed, out);
    pack_part<2>(low, mask, d, packed, out);
    pack_part<3>(low, mask, d, packed, out);
    columns<V>(rows, start + 64, low);
    columns<V>(rows, start + 80, low + 4);
    pack_part<4>(low, mask, d, packed, out);
    pack_part<5>(low, mask, d, packed, out);
    pack_part<6>(low, mask, d, packed, out);
    pack_part<7>(low, mask, d, packed, out);
  }
};

/// Sub-scales (0..15) are multiplied into the weights (0..3): the byte is at most 45, and J is one plain sum.
template <class V>
struct Q2_K {
  static constexpr Kind kKind = Kind::half_mins;
  static constexpr int kOffset = 0, kMax16 = 2, kBlockBytes = 84;

  template <int part>
  static void pack_part(const typename V::I low[8], typename V::F d, typename V::F dmin, typename V::I four_scales,
                        std::uint8_t* const* out) {
    const Out<V> block{out[part]};
    const typename V::I s0 = byte_of<V, 2 * (part % 2)>(four_scales), s1 = byte_of<V, 2 * (part % 2) + 1>(four_scales);
    const auto twice = [](typename V::I s) {  // the scale in both 16-bit halves of a lane
      const typename V::I sc = V::and_(s, V::set1(15));
      return V::or_(sc, V::template sll<16>(sc));
    };
    const typename V::I sc0 = twice(s0), sc1 = twice(s1);
    for (int j = 0; j < 8; ++j) {
      block.bytes(j, V::mul16(and_bytes<V>(V::template srl<2 * (part % 4)>(low[j]), 3), j < 4 ? sc0 : sc1));
    }
    block.scale(0, d);
    block.scale(1, V::negate(dmin));
    block.scale(2, V::to_float(V::template srl<4>(s0)));
    block.scale(3, V::to_float(V::template srl<4>(s1)));
  }

  static void pack(const Rows<V>& rows, std::int64_t chunk, int, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kBlockBytes;
    const Fields<V, std::uint32_t> both(rows, start + 80, 0, 1);
    const typename V::I dd = V::load(both.at[0]);
    const typename V::F d = V::half(dd), dmin = V::half(V::template srl<16>(dd));
    typename V::I scales[4], low[8];
    columns<V>(rows, start, scales);
    columns<V>(rows, start + 16, low);
    columns<V>(rows, start + 32, low + 4);
    pack_part<0>(low, d, dmin, scales[0], out);
    pack_part<1>(low, d, dmin, scales[0], out);
    pack_part<2>(low, d, dmin, scales[1], out);
    pack_part<3>(low, d, dmin, scales[1], out);
    columns<V>(rows, start + 48, low);
    columns<V>(rows, start + 64, low + 4);
    pack_part<4>(low, d, dmin, scales[2], out);
    pack_part<5>(low, d, dmin, scales[2], out);
    pack_part<6>(low, d, dmin, scales[3], out);
    pack_part<7>(low, d, dmin, scales[3], out);
  }
};

template <class V>
struct IQ4_XS {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = V::kSigned ? 0 : 128, kMax16 = V::kSigned ? 0 : 1, kBlockBytes = 136;
  static void pack(const Rows<V>& rows, std::int64_t chunk, int, std::uint8_t* const* out) {
    const std::int64_t start = chunk * kBlockBytes;
    typename V::I head[4];  // d | scales_h << 16, scales_l, and the first eight bytes of qs
    columns<V>(rows, start, head);
    const typename V::F d = V::half(head[0]);
    for (int part = 0; part < 8; ++part) {
      const Out<V> block{out[part]};
      typename V::I q[8];
      nibble_columns<V>(rows, start + 8 + 16 * part, q);
      for (int j = 0; j < 8; ++j) block.bytes(j, iq4_levels<V>(q[j]));
      const typename V::I low = V::and_(V::srl_by(head[1], 4 * part), V::set1(15));
      const typename V::I high = V::and_(V::srl_by(head[0], 16 + 2 * part), V::set1(3));
      const typename V::I scale = V::add(V::or_(low, V::template sll<4>(high)), V::set1(-32));
      block.scale(0, V::mul(d, V::to_float(scale)));
    }
  }
};

/// Weights on a grid (tensor/grids.h). Their values are looked up row by row, eight or four at a time, and then turned.
template <class V, class Block>
struct OnGrid {
  using G = Grid<Block>;
  static constexpr Kind kKind = G::kHalves ? Kind::halves : Kind::scaled;
  static constexpr int kOffset = G::kOffset, kBlockBytes = sizeof(Block), kParts = 8;
  static constexpr int kFit = 32767 / (2 * G::kMost * 127), kMax16 = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  static_assert(kFit >= 1);

  static void pack(const Rows<V>& rows, std::int64_t chunk, int, std::uint8_t* const* out) {
    alignas(64) std::uint8_t values[V::kRows][kSuperBlock];
    alignas(64) std::int32_t scales[16][V::kRows];
    alignas(64) std::uint16_t d[V::kRows];
    const std::byte* at[V::kRows];
    for (int r = 0; r < V::kRows; ++r) {
      const std::byte* const from = rows.at[r] + chunk * kBlockBytes;
      __builtin_prefetch(from + rows.ahead, 0, 2);
      __builtin_prefetch(from + rows.ahead + 64, 0, 2);
      const Block& block = *reinterpret_cast<const Block*>(from);
      for (int part = 0; part < 8; ++part) G::bytes(block, part, values[r] + 32 * part);
      for (int s = 0; s < 16; s += G::kHalves ? 1 : 2) scales[s][r] = G::scale(block, s);
      d[r] = G::d(block);
      at[r] = reinterpret_cast<const std::byte*>(values[r]);
    }
    const typename V::F step = V::mul(V::halves(d), V::set1_float(G::kStep));
    for (int part = 0; part < 8; ++part) {
      const Out<V> block{out[part]};
      typename V::I q[8];
      V::columns(at, 32 * part, q);
      V::columns(at, 32 * part + 16, q + 4);
      for (int j = 0; j < 8; ++j) block.bytes(j, q[j]);
      const typename V::F first = V::to_float(V::load(scales[2 * part]));
      if constexpr (G::kHalves) {
        block.scale(0, step);
        block.scale(1, first);
        block.scale(2, V::to_float(V::load(scales[2 * part + 1])));
        block.scale(3, V::mul(first, V::set1_float(-kMagicFloat)));  // exact, as in put_halves
      } else {
        block.scale(0, V::mul(step, first));
      }
    }
  }
};

/// Blocks of 32 in a block of the file.
template <class Format>
constexpr int parts_of() {
  if constexpr (requires { Format::kParts; }) return Format::kParts;
  return Format::kBlockBytes > 64 ? kChunk : 1;
}

// ---------------------------------------------------------------------------------------------------------------------
// The order of blocks.

/// Which block lies where in a panel and in a tile. Few rows: ascending. Many rows: class by class, in a class lane by
/// lane in the order of the tree (bit-reversed), in a lane ascending.
struct Order {
  int classes = 1;    // a power of two, at most 8; lanes of a class: 32 / classes
  int start[kLanes];  // many rows: position of the first block of a lane
  std::int64_t blocks;

  std::int64_t at(std::int64_t block) const { return start[block % kLanes] + block / kLanes; }
  int lane(int of_class, int leaf) const {
    int reversed = 0;
    for (int bit = 1, value = kLanes / classes / 2; value > 0; bit *= 2, value /= 2) reversed += leaf & bit ? value : 0;
    return of_class + classes * reversed;
  }
  int count(int lane) const { return static_cast<int>((blocks - lane + kLanes - 1) / kLanes); }
};

template <class V, class Format>
Order tree_order(std::int64_t cols) {
  constexpr std::int64_t kCached = 18 << 10;  // of a panel, to stay in the L1 cache beside the tiles
  Order order;
  order.blocks = cols / 32;
  while (order.classes < 8 && order.blocks / order.classes * V::block_bytes(Format::kKind) > kCached)
    order.classes *= 2;
  int position = 0;
  for (int c = 0; c < order.classes; ++c) {
    for (int leaf = 0; leaf < kLanes / order.classes; ++leaf) {
      const int lane = order.lane(c, leaf);
      order.start[lane] = position;
      position += order.count(lane);
    }
  }
  return order;
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiles of activations.

/// The tile's numbers u0 and u1 (see Kind) of eight blocks, from two sums a block.
template <class V, class Format>
inline __attribute__((always_inline)) void sums_for_kind(const std::int32_t* sum16, std::int32_t* u0,
                                                         std::int32_t* u1) {
  constexpr Kind kKind = Format::kKind;
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum16));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum16 + 8));
  const auto put = [](std::int32_t* to, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); };
  const auto put_float = [&](std::int32_t* to, __m256i v) { put(to, _mm256_castps_si256(_mm256_cvtepi32_ps(v))); };
  const auto scaled = [](__m256i v) { return _mm256_mullo_epi32(v, _mm256_set1_epi32(-Format::kOffset)); };
  if constexpr (kKind == Kind::scaled || kKind == Kind::with_min) {
    const __m256i sums = _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8);
    if constexpr (kKind == Kind::scaled) put(u0, scaled(sums));
    if constexpr (kKind == Kind::with_min) put_float(u0, sums);
  } else {
    const __m256 af = _mm256_castsi256_ps(a), bf = _mm256_castsi256_ps(b);
    const __m256i s0 = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(af, bf, 0x88)), 0xd8);
    const __m256i s1 = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(af, bf, 0xdd)), 0xd8);
    if constexpr (kKind == Kind::halves) {
      put(u0, _mm256_add_epi32(_mm256_set1_epi32(kMagic), scaled(s0)));
      put(u1, _mm256_add_epi32(_mm256_set1_epi32(kMagic), scaled(s1)));
    } else {
      put_float(u0, s0);
      put_float(u1, s1);
    }
  }
}

/// Blocks 8 chunk + i, i < n, of one row of activations, to row r of a tile's blocks at[i].
template <class V, class Format>
inline __attribute__((always_inline)) void tile_chunk(const std::int8_t* q, const float* d, const std::int32_t* sum16,
                                                      int n, int rows, int r, std::uint8_t* const* at) {
  constexpr bool kTwoSums = Format::kKind == Kind::halves || Format::kKind == Kind::half_mins;
  alignas(32) std::int32_t u0[kChunk], u1[kChunk], padded[2 * kChunk] = {};
  if (n < kChunk) {
    std::memcpy(padded, sum16, static_cast<std::size_t>(n) * 8);
    sum16 = padded;
  }
  sums_for_kind<V, Format>(sum16, u0, u1);
  for (int i = 0; i < n; ++i) {
    std::memcpy(at[i] + r * 32, q + 32 * i, 32);
    std::uint8_t* const numbers = at[i] + rows * 32 + r * 4;
    std::memcpy(numbers, d + i, 4);
    std::memcpy(numbers + rows * 4, u0 + i, 4);
    if constexpr (kTwoSums) std::memcpy(numbers + rows * 8, u1 + i, 4);
  }
}

/// Rows [r0, r0 + rows) of the product's x. order: null for ascending.
template <class V, class Format>
void make_tile(const MatmulArgs& args, const Order* order, std::int64_t r0, int rows, std::uint8_t* out) {
  const std::int64_t blocks = args.cols / 32;
  for (std::int64_t b = 0; b < blocks; b += kChunk) {
    const int n = blocks - b < kChunk ? static_cast<int>(blocks - b) : kChunk;
    std::uint8_t* at[kChunk];
    for (int i = 0; i < n; ++i) {
      const std::int64_t next = b + kChunk + i < blocks ? b + kChunk + i : b;
      at[i] = out + (order ? order->at(b + i) : b + i) * tile_block_bytes(rows);
      prefetch_to_write(out + (order ? order->at(next) : next) * tile_block_bytes(rows), tile_block_bytes(rows));
    }
    for (int r = 0; r < rows; ++r) {
      const std::int64_t first = (args.x_index ? args.x_index[r0 + r] : r0 + r) * blocks + b;
      const std::int8_t* q = args.x_q8.q + first * 32;
      const float* d = args.x_q8.d + first;
      const std::int32_t* sum16 = args.x_q8.sum16 + first * 2;
      if (n == kChunk) {
        tile_chunk<V, Format>(q, d, sum16, kChunk, rows, r, at);
      } else {
        tile_chunk<V, Format>(q, d, sum16, n, rows, r, at);
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// A tile meets a panel.

/// One block of a panel with one block of a tile of R rows: adds the term to sum[R].
template <class V, class Format, int R>
inline __attribute__((always_inline)) void add_block(const std::uint8_t* w, const std::uint8_t* x,
                                                     typename V::F sum[R]) {
  using I = typename V::I;
  using F = typename V::F;
  constexpr Kind kKind = Format::kKind;
  const std::uint8_t* dx = x + R * 32;
  const std::uint8_t* u0 = dx + R * 4;
  const std::uint8_t* u1 = u0 + R * 4;
  const auto scale = [w](int i) { return V::load_float(w + (8 + i) * V::kBytes); };
  const auto bytes = [x](int r, int j) { return V::broadcast(x + 32 * r + 4 * j); };
  I dot[R];
  F value[R];
  if constexpr (kKind == Kind::halves) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) dot[r] = V::broadcast(u0 + 4 * r);
    V::template dot<R, 0, 4, Format::kMax16>(dot, w, bytes);
    // (magic + I0) * sc0 - magic * sc0 = sc0 * I0 exactly: every intermediate is a number of 24 bits, or inside the
    // fma. So is J, the sum of the two, but for NVFP4, where it is rounded once.
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) value[r] = V::fma(V::as_float(dot[r]), scale(1), scale(3));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) dot[r] = V::broadcast(u1 + 4 * r);
    V::template dot<R, 4, 8, Format::kMax16>(dot, w, bytes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      value[r] = V::fma(V::sub(V::as_float(dot[r]), V::set1_float(kMagicFloat)), scale(2), value[r]);
    }
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) dot[r] = kKind == Kind::scaled ? V::broadcast(u0 + 4 * r) : V::set1(0);
    V::template dot<R, 0, 8, Format::kMax16>(dot, w, bytes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) value[r] = V::to_float(dot[r]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const F d = V::broadcast_float(dx + 4 * r);
    sum[r] = V::fma(V::mul(scale(0), d), value[r], sum[r]);
    if constexpr (kKind == Kind::with_min) {
      sum[r] = V::fma(V::mul(scale(1), d), V::broadcast_float(u0 + 4 * r), sum[r]);
    } else if constexpr (kKind == Kind::half_mins) {
      // Small integers: exact in any order.
      const F m1 = V::mul(scale(3), V::broadcast_float(u1 + 4 * r));
      sum[r] = V::fma(V::mul(scale(1), d), V::fma(scale(2), V::broadcast_float(u0 + 4 * r), m1), sum[r]);
    }
  }
}

/// Blocks [8 chunk, 8 chunk + n) of a panel and an ascending tile (w and x: those blocks). lanes: [32][R] vectors.
template <class V, class Format, int R>
void add_chunk(const std::uint8_t* w, const std::uint8_t* x, std::int64_t chunk, int n, std::uint8_t* lanes) {
  lanes += chunk * kChunk % kLanes * R * V::kBytes;
  const bool first = chunk * kChunk < kLanes;
  for (int i = 0; i < n; ++i) {
    typename V::F sum[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = first ? V::set1_float(0) : V::load_float(lanes + r * V::kBytes);
    add_block<V, Format, R>(w, x, sum);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) V::store_float(lanes + r * V::kBytes, sum[r]);
    w += V::block_bytes(Format::kKind);
    x += tile_block_bytes(R);
    lanes += R * V::kBytes;
  }
}

/// The contract's tree over n = 2^k vectors v, `stride` bytes apart.
template <class V>
typename V::F add_tree(const std::uint8_t* v, int n, std::int64_t stride) {
  typename V::F sum[kLanes / 2];
  if (n == 1) return V::load_float(v);
  for (int i = 0; i < n / 2; ++i)
    sum[i] = V::add_float(V::load_float(v + i * stride), V::load_float(v + (i + n / 2) * stride));
  for (int width = n / 4; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sum[i] = V::add_float(sum[i], sum[i + width]);
  }
  return sum[0];
}

/// One class of a panel with that of a tile: its sums, R vectors, to out.
template <class V, class Format, int R>
void add_class(const std::uint8_t* w, const std::uint8_t* x, const int* counts, int leaves, std::uint8_t* out) {
  using F = typename V::F;
  alignas(64) std::uint8_t stack[6][R * V::kBytes];
  int top = 0;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    F sum[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = V::set1_float(0);
    for (int i = 0; i < counts[leaf]; ++i) {
      add_block<V, Format, R>(w, x, sum);
      w += V::block_bytes(Format::kKind);
      x += tile_block_bytes(R);
    }
    for (int pending = leaf; pending & 1; pending /= 2) {
      --top;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r] = V::add_float(V::load_float(stack[top] + r * V::kBytes), sum[r]);
    }
    std::uint8_t* to = leaf + 1 == leaves ? out : stack[top++];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) V::store_float(to + r * V::kBytes, sum[r]);
  }
}

/// The largest tile: a block's sums, and where a block has two scales its two dot products, must fit the registers.
template <class V, class Format>
constexpr int kTileLimit = V::kTile > 8 && (Format::kKind == Kind::halves || Format::kKind == Kind::half_mins)
                               ? 8
                               : V::kTile;

/// The largest tile size that is at most `rows`.
template <class V, class Format>
constexpr int tile_rows(std::int64_t rows) {
  if (kTileLimit<V, Format> >= 12 && rows >= 12) return 12;
  if (kTileLimit<V, Format> >= 8 && rows >= 8) return 8;
  return rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
}

/// Calls call.template operator()<R>() with R = rows, a tile size.
template <class V, class Format, class Call>
void with_rows(int rows, Call&& call) {
  if constexpr (kTileLimit<V, Format> >= 12) {
    if (rows == 12) return call.template operator()<12>();
  }
  if constexpr (kTileLimit<V, Format> >= 8) {
    if (rows == 8) return call.template operator()<8>();
  }
  if (rows == 4) return call.template operator()<4>();
  if (rows == 2) return call.template operator()<2>();
  call.template operator()<1>();
}

// ---------------------------------------------------------------------------------------------------------------------
// Workspace: vectors of sums, tiles of up to kTileRows rows, panels.

constexpr int kTileRows = 48;
static constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Rows of x that are tiles at the same time: a multiple of all tile sizes where it can be.
static std::int64_t tile_group(std::int64_t cols) {
  constexpr std::int64_t kBytes = 144 << 10;
  const std::int64_t fit = kBytes / ((cols + 31) / 32 * tile_block_bytes(1));
  return fit >= kTileRows ? kTileRows : fit >= 24 ? 24 : 12;
}
/// Few rows: 32 lanes of V::kFew rows; many: 8 classes of kTileRows rows.
template <class V>
constexpr std::int64_t kSumsBytes = std::int64_t{8} * kTileRows* V::kBytes;
template <class V>
std::int64_t tiles_bytes(std::int64_t cols) {
  static_assert(8 * kTileRows >= kLanes * V::kFew && V::kFew <= 12);
  return aligned(tile_group(cols) * cols / 32 * tile_block_bytes(1));
}
/// Room for panels: one of the largest kind, and up to eight of short rows. (One chunk at least.)
template <class V>
std::int64_t panels_bytes(std::int64_t cols) {
  constexpr std::int64_t kEnough = 400 << 10;
  const std::int64_t one = (cols / 32 + kChunk - 1) / kChunk * kChunk * V::block_bytes(Kind::halves);
  const std::int64_t several = one * 8 < kEnough ? one * 8 : kEnough;
  return one > several ? one : several;
}
template <class V>
std::int64_t workspace_bytes(std::int64_t cols) {
  return kSumsBytes<V> + tiles_bytes<V>(cols) + panels_bytes<V>(cols);
}

template <class V>
struct Workspace {
  std::uint8_t *sums, *tiles, *panels;
  explicit Workspace(const MatmulArgs& args) {
    sums = reinterpret_cast<std::uint8_t*>(args.workspace);
    tiles = sums + kSumsBytes<V>;
    panels = tiles + tiles_bytes<V>(args.cols);
  }
};

/// At most V::kFew x rows.
template <class V, class Format>
void few_rows(const MatmulArgs& args, std::int64_t stride) {
  const Workspace<V> work(args);
  const std::int64_t blocks = args.cols / 32, chunks = (blocks + kChunk - 1) / kChunk;
  const int x_rows = static_cast<int>(args.x_rows);
  for (int r = 0, rows; r < x_rows; r += rows) {
    rows = tile_rows<V, Format>(x_rows - r);
    make_tile<V, Format>(args, nullptr, r, rows, work.tiles + r * blocks * tile_block_bytes(1));
  }
  std::uint8_t* out[kChunk];
  for (int i = 0; i < kChunk; ++i) out[i] = work.panels + i * V::block_bytes(Format::kKind);
  for (std::int64_t n0 = 0; n0 < args.weight_rows; n0 += V::kRows) {
    const Rows<V> weights(args, stride, n0);
    for (std::int64_t c = 0; c < chunks; ++c) {
      const int n = blocks - c * kChunk < kChunk ? static_cast<int>(blocks - c * kChunk) : kChunk;
      Format::pack(weights, c, n, out);
      for (int r = 0, rows; r < x_rows; r += rows) {
        rows = tile_rows<V, Format>(x_rows - r);
        with_rows<V, Format>(rows, [&]<int R>() {
          const std::uint8_t* x = work.tiles + r * blocks * tile_block_bytes(1) + c * kChunk * tile_block_bytes(R);
          add_chunk<V, Format, R>(work.panels, x, c, n, work.sums + r * kLanes * V::kBytes);
        });
      }
    }
    for (int r = 0, rows; r < x_rows; r += rows) {
      rows = tile_rows<V, Format>(x_rows - r);
      std::uint8_t* lanes = work.sums + r * kLanes * V::kBytes;
      for (std::int64_t i = blocks * rows; i < kLanes * rows; ++i)
        V::store_float(lanes + i * V::kBytes, V::set1_float(0));
      for (int i = 0; i < rows; ++i) {
        V::store_partial(args.y + (r + i) * args.y_stride + n0,
                         add_tree<V>(lanes + i * V::kBytes, kLanes, rows * V::kBytes), weights.count);
      }
    }
  }
}

/// A packed panel (weight rows [n0, n0 + count)) with tiles of x rows [r0, r1), class by class.
template <class V, class Format>
void panel_with_tiles(const MatmulArgs& args, const Order& order, const std::uint8_t* panel, std::int64_t n0, int count,
                      const Workspace<V>& work, std::int64_t r0, std::int64_t r1) {
  const int leaves = kLanes / order.classes;
  for (int c = 0; c < order.classes; ++c) {
    int counts[kLanes];
    for (int leaf = 0; leaf < leaves; ++leaf) counts[leaf] = order.count(order.lane(c, leaf));
    const std::int64_t first = order.start[order.lane(c, 0)];
    const std::uint8_t* w = panel + first * V::block_bytes(Format::kKind);
    std::uint8_t* out = work.sums + c * kTileRows * V::kBytes;
    for (std::int64_t r = r0; r < r1;) {
      const int rows = tile_rows<V, Format>(r1 - r);
      with_rows<V, Format>(rows, [&]<int R>() {
        const std::uint8_t* x =
            work.tiles + (r - r0) * order.blocks * tile_block_bytes(1) + first * tile_block_bytes(R);
        add_class<V, Format, R>(w, x, counts, leaves, out);
      });
      r += rows;
      out += rows * V::kBytes;
    }
  }
  for (std::int64_t r = r0; r < r1; ++r) {
    V::store_partial(args.y + r * args.y_stride + n0,
                     add_tree<V>(work.sums + (r - r0) * V::kBytes, order.classes, kTileRows * V::kBytes), count);
  }
}

template <class V, class Format>
void pack_panel(const MatmulArgs& args, const Order& order, std::int64_t stride, std::int64_t n0, std::uint8_t* panel) {
  const Rows<V> weights(args, stride, n0);
  for (std::int64_t b = 0; b < order.blocks; b += kChunk) {
    const int n = order.blocks - b < kChunk ? static_cast<int>(order.blocks - b) : kChunk;
    std::uint8_t* out[kChunk];
    for (int i = 0; i < n; ++i) {
      const std::int64_t next = b + kChunk + i < order.blocks ? b + kChunk + i : b;
      out[i] = panel + order.at(b + i) * V::block_bytes(Format::kKind);
      prefetch_to_write(panel + order.at(next) * V::block_bytes(Format::kKind), V::block_bytes(Format::kKind));
    }
    Format::pack(weights, b / kChunk, n, out);
  }
}

template <class V, class Format>
void many_rows(const MatmulArgs& args, std::int64_t stride) {
  const Workspace<V> work(args);
  const Order order = tree_order<V, Format>(args.cols);
  const std::int64_t panel_bytes = order.blocks * V::block_bytes(Format::kKind);
  const std::int64_t panels = panels_bytes<V>(args.cols) / panel_bytes * V::kRows, tiles = tile_group(args.cols);
  for (std::int64_t n0 = 0; n0 < args.weight_rows; n0 += panels) {
    const std::int64_t n1 = args.weight_rows - n0 < panels ? args.weight_rows : n0 + panels;
    for (std::int64_t n = n0; n < n1; n += V::kRows) {
      pack_panel<V, Format>(args, order, stride, n, work.panels + (n - n0) / V::kRows * panel_bytes);
    }
    for (std::int64_t r0 = 0; r0 < args.x_rows; r0 += tiles) {
      const std::int64_t r1 = args.x_rows - r0 < tiles ? args.x_rows : r0 + tiles;
      for (std::int64_t r = r0; r < r1;) {
        const int rows = tile_rows<V, Format>(r1 - r);
        make_tile<V, Format>(args, &order, r, rows, work.tiles + (r - r0) * order.blocks * tile_block_bytes(1));
        r += rows;
      }
      for (std::int64_t n = n0; n < n1; n += V::kRows) {
        panel_with_tiles<V, Format>(args, order, work.panels + (n - n0) / V::kRows * panel_bytes, n,
                                    n1 - n < V::kRows ? static_cast<int>(n1 - n) : V::kRows, work, r0, r1);
      }
    }
  }
}

template <class V, class Format>
void product(const MatmulArgs& args) {
  const std::int64_t stride = args.cols / 32 * Format::kBlockBytes / parts_of<Format>();
  if (args.x_rows <= V::kFew) {
    few_rows<V, Format>(args, stride);
  } else {
    many_rows<V, Format>(args, stride);
  }
}

/// REQUIRES: a quantized dtype that is computable.
template <class V>
void quantized(const MatmulArgs& args) {
  switch (args.dtype) {
    case DType::q4_0:
      return product<V, Q4_0<V>>(args);
    case DType::q4_1:
      return product<V, Q4_1<V>>(args);
    case DType::q5_0:
      return product<V, Q5<V, false>>(args);
    case DType::q5_1:
      return product<V, Q5<V, true>>(args);
    case DType::q8_0:
      return product<V, Q8_0<V>>(args);
    case DType::q2_k:
      return product<V, Q2_K<V>>(args);
    case DType::q3_k:
      return product<V, Q3_K<V>>(args);
    case DType::q4_k:
      return product<V, K4<V, false>>(args);
    case DType::q5_k:
      return product<V, K4<V, true>>(args);
    case DType::q6_k:
      return product<V, Q6_K<V>>(args);
    case DType::iq4_nl:
      return product<V, IQ4_NL<V>>(args);
    case DType::iq4_xs:
      return product<V, IQ4_XS<V>>(args);
    case DType::mxfp4:
      return product<V, MXFP4<V>>(args);
    case DType::nvfp4:
      return product<V, NVFP4<V>>(args);
    case DType::q1_0:
      return product<V, Fields16<V, 1>>(args);
    case DType::q2_0:
      return product<V, Fields16<V, 2>>(args);
    default:
      with_grid_block(args.dtype, [&]<typename Block>() { product<V, OnGrid<V, Block>>(args); });
  }
}

}  // namespace millrace::kernels::panel
