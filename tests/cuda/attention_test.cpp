// Attention on the GPU: both paths against a plain host version of the contract in ops.h, bit for bit, and
// that against softmax in double precision. Over f16 the contract leaves sums of sixteen to the tensor cores: there the
// paths must agree with one another bit for bit, and with the host's version closely.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "cuda/on_device.h"
#include "kernels/cuda/capability.h"
#include "kernels/cuda/launchers.h"
#include "kernels/gpu/offer.h"
#include "kernels/kernels.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/kv_codec.h"

namespace millrace::kernels::cuda {
namespace {

using test::Array;
using test::normal_floats;
using test::ok;
using test::same;
using test::same_bits;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool in_integers(DType dtype) { return dtype == DType::q8_0 || dtype == DType::q4_0 || kv_has_few_bits(dtype); }

/// By its code in few bits.
int level_of(DType dtype, int code) {
  if (dtype == DType::q2_0) return static_cast<std::int8_t>(kKvLevels2 >> 8 * code);
  const auto magnitude = static_cast<int>(kKvLevels3 >> 8 * (code & 3) & 255);
  return (code & 4) != 0 ? -magnitude : magnitude;
}

struct Case {
  int heads, kv_heads, head_dim;
  DType dtype;
  int window;
  /// Rows in order: runs of consecutive positions of a sequence, {sequence, first position, rows}.
  struct Run {
    int sequence, first, rows;
  };
  std::vector<Run> runs;
  int max_position;
  bool sinks = false;
  bool rotated = false;
  bool ahead = false;  // rows see other keys than their positions say, behind them, too (AttentionCall::seen)
  bool chunks = false;
  float cap = 0;
  bool leans = false;  // heads have slopes
  std::int64_t rotation() const { return rotated ? rotation_span(head_dim) : 0; }
};

std::string name(const Case& c) {
  return ::testing::PrintToString(c.heads) + "/" + ::testing::PrintToString(c.kv_heads) + " heads of " +
         ::testing::PrintToString(c.head_dim) + " " + std::string(info(c.dtype).name) + ", window " +
         ::testing::PrintToString(c.window) + (c.sinks ? ", sinks" : "") + (c.rotated ? ", rotated" : "") +
         ", first row at " + ::testing::PrintToString(c.runs[0].first);
}

/// A pass over a cache of random keys and values. What no row sees is NaN, blocks that no row sees have no address.
class Pass {
 public:
  Pass(const Case& c, std::uint32_t seed) : c_(c), random_(seed) {
    for (const auto& run : c.runs) {
      for (int i = 0; i < run.rows; ++i) sequence_.push_back(run.sequence), position_.push_back(run.first + i);
    }
    rows_ = static_cast<int>(position_.size());
    for (const auto& run : c.runs) {
      const auto among = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); };
      for (int i = run.first; c.ahead && i < run.first + run.rows; ++i)
        seen_.push_back({among(0, i), among(i, run.first + run.rows - 1)});
    }
    q_ = normal_floats(size(), random_);
    for (std::size_t i = 0; i < q_.size() && in_integers(c.dtype); ++i) {  // also groups of nothing, and of very little
      if (i / 32 % 7 == 3) q_[i] = 0;
      if (i / 32 % 11 == 5) q_[i] *= i / 32 % 2 == 0 ? 1e-34f : 1e-12f;
    }
    fill(cache_, false);
    if (few_bits()) fill(plain_, true);
    make_tiles();
    if (c.sinks) sinks_ = normal_floats(static_cast<std::size_t>(c.heads), random_);
    for (float& sink : sinks_) sink *= 6;  // below and above the keys' scores
    for (int h = 0; h < c.heads && c.leans; ++h) slopes_.push_back(std::exp2(-static_cast<float>(h % 9)));
  }

  /// Multiplies the queries of a row and head.
  void scale_query(int row, int head, float factor) {
    for (int d = 0; d < c_.head_dim; ++d) q_[index(row, head) + static_cast<std::size_t>(d)] *= factor;
  }
  void set_query(int row, int head, int channel, float value) {
    q_[index(row, head) + static_cast<std::size_t>(channel)] = value;
  }

  /// What the contract says.
  std::vector<float> want() const {
    std::vector<float> out(size());
    for (int r = 0; r < rows_; ++r) {
      for (int h = 0; h < c_.heads; ++h) {
        attend(r, h, &out[index(r, h)]);
        if (c_.rotated) rotate(&out[index(r, h)]);
      }
    }
    return out;
  }
  /// The largest error of `out` against softmax in double precision, relative to the largest value.
  double error(const std::vector<float>& out) const {
    double worst = 0;
    for (int r = 0; r < rows_; ++r) {
      for (int h = 0; h < c_.heads; ++h) {
        auto exact = attend_in_double(r, h);
        if (c_.rotated) {
          std::vector<float> turned(exact.begin(), exact.end());
          rotate(turned.data());
          exact.assign(turned.begin(), turned.end());
        }
        for (int d = 0; d < c_.head_dim; ++d) {
          worst = std::max(
              worst, std::abs(exact[static_cast<std::size_t>(d)] - out[index(r, h) + static_cast<std::size_t>(d)]));
        }
      }
    }
    return worst;
  }

  struct Result {
    std::vector<float> out;
    std::vector<std::int8_t> q;
    std::vector<Q8Scale> scale;
  };
  /// By tiles or row by row; max_position as the case has it or larger. Runs twice and gives the second result.
  Result run(bool tiled, int max_position, bool with_f32) const {
    const Array<std::byte> memory(cache_.bytes), plain_memory(plain_.bytes);
    const auto addresses = [&](const Store& store, const Array<std::byte>& bytes) {
      std::vector<const std::byte*> blocks;
      for (const std::int64_t place : store.places)
        blocks.push_back(place < 0 ? nullptr : bytes.get() + place * block_bytes(store));
      return blocks;
    };
    const Array<const std::byte*> blocks_at(addresses(cache_, memory)), plain_at(addresses(plain_, plain_memory));
    const Array<float> q(q_), out(size());
    const Array<std::int32_t> sequence(sequence_), position(position_);
    const Array<RowTile> tiles(tiles_);
    const std::size_t bytes = attention_workspace_bytes(rows_, c_.heads, c_.head_dim, max_position);
    const Array<std::byte> workspace(bytes);
    const Array<std::int8_t> q8(size());
    const Array<Q8Scale> scale(size() / 32);
    AttentionCall call;
    call.rows = {rows_, nullptr, sequence.get(), position.get()};
    const Array<SeenKeys> seen(seen_);
    if (c_.ahead) call.seen = seen.get();
    const auto blocks_of = [&](const Store& store, const std::byte* const* table) {
      return KvView::Blocks{table, store.k_offset, v_offset(store), head_bytes(store)};
    };
    call.kv.blocks = blocks_of(cache_, blocks_at.get());
    if (few_bits()) call.kv.plain = blocks_of(plain_, plain_at.get());
    call.kv.max_blocks = max_blocks();
    call.kv.dtype = c_.dtype;
    call.kv.kv_heads = c_.kv_heads;
    call.kv.head_dim = c_.head_dim;
    call.kv.rotation = static_cast<std::int32_t>(c_.rotation());
    call.q = q.get();
    call.heads = c_.heads;
    call.scale = scale_();
    call.window = c_.window;
    call.chunks = c_.chunks;
    call.cap = c_.cap;
    const Array<float> slopes(slopes_);
    if (c_.leans) call.slopes = slopes.get();
    call.floats = with_f32;
    call.out = with_f32 || c_.rotated ? out.get() : nullptr;
    if (quantized()) call.out_q8 = {q8.get(), scale.get()};
    const Array<float> sinks(sinks_);
    const test::Entry sinks_at(reinterpret_cast<const std::byte*>(sinks.get()));
    if (c_.sinks) call.sinks = sinks_at.get();
    call.max_position = max_position;
    if (tiled) call.tiles = tiles.get(), call.tile_count = static_cast<std::int32_t>(tiles_.size());
    call.workspace = workspace.get();
    ok(attention(call, nullptr));
    ok(attention(call, nullptr));
    return {out.host(), q8.host(), scale.host()};
  }
  ::testing::AssertionResult quantizes(const Result& result, const std::vector<float>& x) const {
    if (!quantized()) return ::testing::AssertionSuccess();
    const std::int64_t cols = c_.heads * c_.head_dim;
    std::vector<std::byte> memory(static_cast<std::size_t>(kernels::q8_bytes(rows_, cols)));
    const Q8Rows want = kernels::q8_rows_at(memory.data(), rows_, cols);
    kernels::table(device::Isa::plain).quantize_q8(x.data(), cols, rows_, cols, want);
    for (std::size_t i = 0; i < result.q.size(); ++i) {
      if (result.q[i] != want.q[i]) return ::testing::AssertionFailure() << "int8 " << i << " differs";
    }
    for (std::size_t b = 0; b < result.scale.size(); ++b) {
      const Q8Scale& s = result.scale[b];
      if (!same(s.d, want.d[b]) || s.s16[0] != want.sum16[2 * b] || s.s16[1] != want.sum16[2 * b + 1]) {
        return ::testing::AssertionFailure() << "scale " << b << " differs";
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  /// Blocks of one format: the cache's, or the plain ones beside one of few bits.
  struct Store {
    DType dtype;
    std::int64_t k_offset;
    std::vector<std::byte> bytes;
    std::vector<float> keys, values;   // as they read: [sequences, max_blocks * 64, kv_heads, head_dim]
    std::vector<std::int64_t> places;  // [sequences, max_blocks], -1: none
  };

  void rotate(float* head) const { kernels::table(device::Isa::plain).rotate(head, c_.head_dim, c_.rotation()); }
  bool quantized() const { return c_.heads * c_.head_dim % 32 == 0; }
  std::size_t size() const {
    return static_cast<std::size_t>(rows_) * static_cast<std::size_t>(c_.heads * c_.head_dim);
  }
  std::size_t index(int row, int head) const { return static_cast<std::size_t>((row * c_.heads + head) * c_.head_dim); }
  int group() const { return c_.heads / c_.kv_heads; }
  float scale_() const { return 1 / std::sqrt(static_cast<float>(c_.head_dim)); }
  int max_blocks() const { return (c_.max_position + 63) / 64; }
  std::int64_t head_bytes(const Store& store) const { return 64 * kv_row_bytes(store.dtype, c_.head_dim); }
  std::int64_t v_offset(const Store& store) const { return store.k_offset + head_bytes(store) * c_.kv_heads; }
  std::int64_t block_bytes(const Store& store) const { return v_offset(store) + head_bytes(store) * c_.kv_heads; }
  bool few_bits() const { return kv_has_few_bits(c_.dtype); }
  bool sees_plain(int row, int key) const {
    return few_bits() && (key / 64 == 0 || key / 64 == position_[static_cast<std::size_t>(row)] / 64);
  }
  const Store& store_of(int row, int key) const { return sees_plain(row, key) ? plain_ : cache_; }
  /// Where a head's keys or values begin in a block.
  std::int64_t part_at(const Store& store, std::int64_t place, int head, bool is_key) const {
    return place * block_bytes(store) + (is_key ? store.k_offset : v_offset(store)) + head * head_bytes(store);
  }
  int last_key(int row) const {
    return c_.ahead ? seen_[static_cast<std::size_t>(row)].last : position_[static_cast<std::size_t>(row)];
  }
  int first_key(int row) const {
    if (c_.ahead) return seen_[static_cast<std::size_t>(row)].first;
    if (c_.chunks) return position_[static_cast<std::size_t>(row)] / c_.window * c_.window;
    return c_.window > 0 ? std::max(position_[static_cast<std::size_t>(row)] - c_.window + 1, 0) : 0;
  }

  /// plain: with what rows see in plain blocks, else with the rest.
  void fill(Store& store, bool plain) {
    const int sequences = 1 + *std::max_element(sequence_.begin(), sequence_.end());
    const std::size_t entries = static_cast<std::size_t>(sequences * max_blocks());
    std::vector<std::vector<bool>> seen(static_cast<std::size_t>(sequences));
    for (auto& s : seen) s.resize(static_cast<std::size_t>(max_blocks()) * 64);
    store.places.assign(entries, -1);
    for (int r = 0; r < rows_; ++r) {
      const auto s = static_cast<std::size_t>(sequence_[static_cast<std::size_t>(r)]);
      for (int key = first_key(r); key <= last_key(r); ++key) {
        if (sees_plain(r, key) != plain) continue;
        seen[s][static_cast<std::size_t>(key)] = true;
        store.places[s * static_cast<std::size_t>(max_blocks()) + static_cast<std::size_t>(key / 64)] = 0;
      }
    }
    std::vector<std::int64_t> order;
    for (const std::int64_t p : store.places) {
      if (p == 0) order.push_back(static_cast<std::int64_t>(order.size()));
    }
    std::shuffle(order.begin(), order.end(), random_);
    store.bytes.assign(order.size() * static_cast<std::size_t>(block_bytes(store)), std::byte{0xff});  // all NaN
    store.keys.resize(entries * 64 * static_cast<std::size_t>(c_.kv_heads * c_.head_dim));
    store.values.resize(store.keys.size());
    std::size_t next = 0;
    for (std::size_t entry = 0; entry < entries; ++entry) {
      if (store.places[entry] < 0) continue;
      store.places[entry] = order[next++];
      const auto s = entry / static_cast<std::size_t>(max_blocks());
      const int first = static_cast<int>(entry % static_cast<std::size_t>(max_blocks())) * 64;
      std::normal_distribution<float> normal;
      for (int slot = 0; slot < 64; ++slot) {
        if (!seen[s][static_cast<std::size_t>(first + slot)]) continue;
        const auto dim = static_cast<std::size_t>(c_.head_dim);
        std::size_t at = (entry * 64 + static_cast<std::size_t>(slot)) * static_cast<std::size_t>(c_.kv_heads) * dim;
        std::vector<float> key(dim), value(dim);
        // In q8_0 some values so small that their scale is subnormal, or 0.
        const float size = in_integers(c_.dtype) && slot % 5 == 3 ? std::ldexp(1.0f, -slot % 29) : 1;
        for (int h = 0; h < c_.kv_heads; ++h, at += dim) {
          for (std::size_t d = 0; d < dim; ++d) key[d] = 2 * normal(random_), value[d] = size * normal(random_);
          put(store, part_at(store, store.places[entry], h, true), slot, true, key, &store.keys[at]);
          put(store, part_at(store, store.places[entry], h, false), slot, false, value, &store.values[at]);
        }
      }
    }
  }
  // Stores a head of a token's key or value in the cache, as kv/sequence.h lays it, and in `read` as it reads there.
  void put(Store& store, std::int64_t at, int slot, bool is_key, const std::vector<float>& x, float* read) const {
    std::byte* const part = store.bytes.data() + at;
    if (kv_has_few_bits(store.dtype)) return put_few_bits(store.dtype, part, slot, is_key, x, read);
    const int dim = c_.head_dim, groups = dim / 32;
    BlockQ8_0 block = {};
    for (int d = 0; d < dim; ++d) {
      const int i = is_key ? d * 64 + slot : slot * dim + d;
      const float value = x[static_cast<std::size_t>(d)];
      const std::uint16_t half = f32_to_f16(value);
      if (store.dtype == DType::f32) {
        std::memcpy(part + i * 4, &value, 4);
        read[d] = value;
      } else if (store.dtype == DType::f16) {
        std::memcpy(part + i * 2, &half, 2);
        read[d] = f16_to_f32(half);
      } else if (store.dtype == DType::q4_0) {
        const int g = d / 32, scale = is_key ? g * 64 + slot : slot * groups + g, c = d % 32;
        const KvGroup group = encode_kv_q4(x.data() + 32 * g);
        std::memcpy(part + 32 * dim + 2 * scale, &group.d, 2);
        std::byte& two = part[nibbles_at(d, slot, is_key)];
        const auto nibble = static_cast<std::byte>(group.q[c] & 15);
        two = c < 16 ? (two & std::byte{0xf0}) | nibble : (two & std::byte{0x0f}) | nibble << 4;
        read[d] = f16_to_f32(group.d) * static_cast<float>(group.q[c]);
      } else {
        const int g = d / 32, scale = is_key ? g * 64 + slot : slot * groups + g;
        if (d % 32 == 0) {
          encode_row(DType::q8_0, x.data() + d, 32, reinterpret_cast<std::byte*>(&block));
          std::memcpy(part + 64 * dim + 2 * scale, &block.d, 2);
        }
        std::memcpy(part + i, &block.qs[d % 32], 1);
        read[d] = f16_to_f32(block.d) * static_cast<float>(block.qs[d % 32]);
      }
    }
  }
  void put_few_bits(DType dtype, std::byte* part, int slot, bool is_key, const std::vector<float>& x,
                    float* read) const {
    const auto group = static_cast<int>(kv_few_group(c_.head_dim));
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(group));
    for (int d = 0; d < c_.head_dim; ++d) {
      const int c = d % group;
      if (c == 0) {
        const std::uint16_t scale = encode_kv_few(dtype, x.data() + d, group, codes.data());
        std::memcpy(part + few_scale_at(dtype, d, slot, is_key), &scale, 2);
      }
      const int code = codes[static_cast<std::size_t>(c)], shift = c / (group / 4) * 2, sign = c / (group / 8);
      std::byte& field = part[field_at(d, slot, is_key)];
      field = (field & ~(std::byte{3} << shift)) | static_cast<std::byte>(code & 3) << shift;
      if (dtype == DType::q3_k) {
        std::byte& signs = part[sign_at(d, slot, is_key)];
        signs = (signs & ~(std::byte{1} << sign)) | static_cast<std::byte>(code >> 2) << sign;
      }
      read[d] = few_scale(dtype, part, d, slot, is_key) * static_cast<float>(level_of(dtype, code));
    }
  }
  // Where a head's part has a channel's field of a token, its sign and its scale.
  std::int64_t field_at(int d, int slot, bool is_key) const {
    const std::int64_t group = kv_few_group(c_.head_dim), row = d / group * (group / 4) + d % (group / 4);
    return is_key ? row * 64 + slot : std::int64_t{slot} * c_.head_dim / 4 + row;
  }
  std::int64_t sign_at(int d, int slot, bool is_key) const {
    const std::int64_t group = kv_few_group(c_.head_dim), row = d / group * (group / 8) + d % (group / 8);
    return 16 * c_.head_dim + (is_key ? row * 64 + slot : std::int64_t{slot} * c_.head_dim / 8 + row);
  }
  std::int64_t few_scale_at(DType dtype, int d, int slot, bool is_key) const {
    const std::int64_t group = kv_few_group(c_.head_dim), groups = c_.head_dim / group;
    return (dtype == DType::q3_k ? 24 : 16) * c_.head_dim +
           2 * (is_key ? d / group * 64 + slot : slot * groups + d / group);
  }
  float few_scale(DType dtype, const std::byte* part, int d, int slot, bool is_key) const {
    std::uint16_t half = 0;
    std::memcpy(&half, part + few_scale_at(dtype, d, slot, is_key), 2);
    return f16_to_f32(half);
  }
  /// The byte of a head's part in which a channel of a token has a nibble.
  std::int64_t nibbles_at(int d, int slot, bool is_key) const {
    const std::int64_t row = d / 32 * 16 + d % 16;
    return is_key ? row * 64 + slot : std::int64_t{slot} * c_.head_dim / 2 + row;
  }
  // Head `head` of a key or value of row r's sequence, widened: [head_dim].
  const float* key_at(int r, int key, int head) const { return wide(store_of(r, key).keys, r, key, head); }
  const float* value_at(int r, int key, int head) const { return wide(store_of(r, key).values, r, key, head); }
  const float* wide(const std::vector<float>& all, int r, int key, int head) const {
    const auto token = static_cast<std::size_t>(sequence_[static_cast<std::size_t>(r)] * max_blocks() * 64 + key);
    return &all[(token * static_cast<std::size_t>(c_.kv_heads) + static_cast<std::size_t>(head)) *
                static_cast<std::size_t>(c_.head_dim)];
  }

  void make_tiles() {
    int row = 0;
    for (const auto& run : c_.runs) {
      for (int i = 0, rows = 0; i < run.rows; i += rows) {
        rows = std::min(run.rows - i, attention_tile_rows(group()));
        if (few_bits()) rows = std::min(rows, 64 - (run.first + i) % 64);  // of one block
        tiles_.push_back({row + i, rows, run.sequence, run.first + i + rows - 1});
      }
      row += run.rows;
    }
  }

  /// A head of a key or value of row r's sequence as it is kept in integers.
  struct Quantized {
    std::vector<std::int64_t> values;
    std::vector<float> scales;
    std::int64_t value(int d) const { return values[static_cast<std::size_t>(d)]; }
    float scale(int g) const { return scales[static_cast<std::size_t>(g)]; }
  };
  Quantized quantized_at(int r, int key, int head, bool is_key) const {
    const auto entry = static_cast<std::size_t>(sequence_[static_cast<std::size_t>(r)] * max_blocks() + key / 64);
    const Store& store = store_of(r, key);
    const std::byte* part = store.bytes.data() + part_at(store, store.places[entry], head, is_key);
    const bool nibbles = store.dtype == DType::q4_0;
    const int slot = key % 64, groups = c_.head_dim / 32;
    Quantized read;
    if (kv_has_few_bits(store.dtype)) {
      const auto group = static_cast<int>(kv_few_group(c_.head_dim));
      for (int d = 0; d < c_.head_dim; ++d) {
        const int c = d % group;
        int code = static_cast<int>(part[field_at(d, slot, is_key)]) >> c / (group / 4) * 2 & 3;
        if (store.dtype == DType::q3_k)
          code |= (static_cast<int>(part[sign_at(d, slot, is_key)]) >> c / (group / 8) & 1) << 2;
        read.values.push_back(level_of(store.dtype, code));
        if (d % 32 == 0) read.scales.push_back(few_scale(store.dtype, part, d, slot, is_key));
      }
      return read;
    }
    for (int d = 0; d < c_.head_dim; ++d) {
      const std::int64_t at = nibbles  ? nibbles_at(d, slot, is_key)
                              : is_key ? d * 64 + slot
                                       : std::int64_t{slot} * c_.head_dim + d;
      const auto byte = static_cast<std::int8_t>(part[at]);
      read.values.push_back(!nibbles ? byte : d % 32 < 16 ? static_cast<std::int8_t>(byte << 4) >> 4 : byte >> 4);
    }
    for (int g = 0; g < groups; ++g) {
      std::uint16_t half = 0;
      std::memcpy(&half, part + 64 * c_.head_dim / (nibbles ? 2 : 1) + 2 * (is_key ? g * 64 + slot : slot * groups + g),
                  2);
      read.scales.push_back(f16_to_f32(half));
    }
    return read;
  }
  /// Factors of int8 in two digits: integers, and what one of them counts.
  struct Digits {
    std::vector<std::int64_t> integers;
    float unit = 0;
  };
  static Digits digits_of(const std::vector<float>& x) {
    Digits digits;
    digits.integers.resize(x.size());
    float most = 0;
    for (const float v : x) {
      if (!std::isfinite(v)) digits.unit = std::numeric_limits<float>::quiet_NaN();
      most = std::max(most, std::abs(v));
    }
    if (std::isnan(digits.unit) || most < 0x1p-100f) return digits;
    digits.unit = most / 32512;
    const float inverse = 32512 / most;
    for (std::size_t i = 0; i < x.size(); ++i)
      digits.integers[i] = std::lrint(double{x[i]} * double{inverse});  // the product is exact
    return digits;
  }
  // The scores of keys [begin, end), times scale, in `scores`.
  void score_quantized(int r, int h, int begin, int end, float* scores) const {
    const float* q = &q_[index(r, h)];
    std::vector<Digits> groups;
    for (int d = 0; d < c_.head_dim; d += 32) groups.push_back(digits_of({q + d, q + d + 32}));
    for (int key = begin; key < end; ++key) {
      const Quantized k = quantized_at(r, key, h / group(), true);
      float s = 0;
      for (int g = 0; g < c_.head_dim / 32; ++g) {
        const Digits& digits = groups[static_cast<std::size_t>(g)];
        std::int64_t sum = 0;
        for (int i = 0; i < 32; ++i) sum += digits.integers[static_cast<std::size_t>(i)] * k.value(32 * g + i);
        s = test::fused(static_cast<float>(sum), digits.unit * k.scale(g), s);
      }
      scores[key % kAttentionChunk] = s * scale_();
    }
  }
  // The weighted values of keys [begin, end).
  void add_quantized(int r, int h, int begin, int end, const float* weights, std::vector<float>& acc) const {
    std::vector<Quantized> values;
    for (int key = begin; key < end; ++key) values.push_back(quantized_at(r, key, h / group(), false));
    const auto value_of = [&](int key) -> const Quantized& { return values[static_cast<std::size_t>(key - begin)]; };
    for (int g = 0; g < c_.head_dim / 32; ++g) {
      std::vector<float> scaled;
      for (int key = begin; key < end; ++key) {
        const float product = weights[key % kAttentionChunk] * value_of(key).scale(g);
        scaled.push_back(c_.dtype != DType::q4_0 ? std::fmax(product, 0.0f) : product);
      }
      const Digits digits = digits_of(scaled);
      for (int d = 32 * g; d < 32 * g + 32; ++d) {
        std::int64_t sum = 0;
        for (int key = begin; key < end; ++key)
          sum += digits.integers[static_cast<std::size_t>(key - begin)] * value_of(key).value(d);
        acc[static_cast<std::size_t>(d)] = static_cast<float>(sum) * digits.unit;
      }
    }
  }

  /// As it is multiplied.
  std::vector<float> query(int r, int h) const {
    const auto first = q_.begin() + static_cast<std::ptrdiff_t>(index(r, h));
    std::vector<float> q(first, first + c_.head_dim);
    if (c_.dtype != DType::f16 || !gpu::offer().numerics.starts_with("cuda")) return q;
    float most = 0;
    for (const float x : q) most = std::max(most, std::abs(x));
    const int up = most < 0x1p-100f ? -1000 : 10 - std::ilogb(most);
    for (float& x : q) x = std::ldexp(f16_to_f32(f32_to_f16(std::ldexp(x, up))), most < 0x1p-100f ? 0 : -up);
    return q;
  }

  /// What a scaled score becomes by the cap and the head's slope.
  template <typename T>
  T bent(T score, int r, int h, int key) const {
    const auto cap = static_cast<T>(c_.cap);
    if constexpr (std::is_same_v<T, float>) {
      const float y = score / cap;
      if (cap > 0) score = cap * (1.0f - 2.0f / (1.0f + exp_f32(y + y)));
    } else if (cap > 0) {
      score = cap * std::tanh(score / cap);
    }
    if (!c_.leans) return score;
    const int distance = std::abs(position_[static_cast<std::size_t>(r)] - key);
    return test::fused(static_cast<T>(slopes_[static_cast<std::size_t>(h)]), -static_cast<T>(distance), score);
  }

  void attend(int r, int h, float* out) const {
    const bool quantized = in_integers(c_.dtype);
    const int newest = last_key(r), oldest = first_key(r), kv = h / group();
    const std::vector<float> q = query(r, h);
    float most = c_.sinks ? sinks_[static_cast<std::size_t>(h)] : -kInfinity, total = c_.sinks ? 1 : 0;
    std::vector<float> sum(static_cast<std::size_t>(c_.head_dim)), acc(sum.size());
    for (int chunk = oldest / kAttentionChunk; chunk <= newest / kAttentionChunk; ++chunk) {
      const int begin = std::max(oldest, chunk * kAttentionChunk);
      const int end = std::min(newest + 1, (chunk + 1) * kAttentionChunk);
      float e[kAttentionChunk], m = -kInfinity, lanes[32] = {};
      if (quantized) score_quantized(r, h, begin, end, e);
      for (int key = begin; key < end; ++key) {
        float s = 0;
        for (int d = 0; d < c_.head_dim && !quantized; ++d) s = test::fused(q[d], key_at(r, key, kv)[d], s);
        if (!quantized) e[key % kAttentionChunk] = s * scale_();
        e[key % kAttentionChunk] = bent(e[key % kAttentionChunk], r, h, key);
        m = std::max(m, e[key % kAttentionChunk]);
      }
      std::fill(acc.begin(), acc.end(), 0.0f);
      for (int key = begin; key < end; ++key) {
        float& weight = e[key % kAttentionChunk];
        weight = exp_f32(weight - m);
        if (c_.dtype == DType::f16) weight = f16_to_f32(f32_to_f16(weight));
        lanes[key % 32] += weight;
        for (int d = 0; d < c_.head_dim && !quantized; ++d) {
          acc[static_cast<std::size_t>(d)] =
              test::fused(weight, value_at(r, key, kv)[d], acc[static_cast<std::size_t>(d)]);
        }
      }
      if (quantized) add_quantized(r, h, begin, end, e, acc);
      for (int half = 16; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
      }
      const float now = std::max(most, m), before = exp_f32(most - now), joins = exp_f32(m - now);
      total = test::fused(total, before, lanes[0] * joins);
      for (std::size_t d = 0; d < sum.size(); ++d) sum[d] = test::fused(sum[d], before, acc[d] * joins);
      most = now;
    }
    for (std::size_t d = 0; d < sum.size(); ++d) out[d] = sum[d] / total;
  }

  std::vector<double> attend_in_double(int r, int h) const {
    const int newest = last_key(r), kv = h / group();
    const std::vector<float> q = query(r, h);
    std::vector<double> scores, sum(static_cast<std::size_t>(c_.head_dim));
    double most = -1e300, total = 0;
    for (int key = first_key(r); key <= newest; ++key) {
      double s = 0;
      for (int d = 0; d < c_.head_dim; ++d) s += static_cast<double>(q[d]) * key_at(r, key, kv)[d];
      scores.push_back(bent(s * scale_(), r, h, key));
      most = std::max(most, scores.back());
    }
    if (c_.sinks) {
      const double sink = sinks_[static_cast<std::size_t>(h)];
      most = std::max(most, sink);
      total = std::exp(sink - most);
    }
    for (int key = first_key(r); key <= newest; ++key) {
      const double e = std::exp(scores[static_cast<std::size_t>(key - first_key(r))] - most);
      total += e;
      for (int d = 0; d < c_.head_dim; ++d) sum[static_cast<std::size_t>(d)] += e * value_at(r, key, kv)[d];
    }
    for (double& v : sum) v /= total;
    return sum;
  }

  Case c_;
  std::mt19937 random_;
  int rows_ = 0;
  std::vector<std::int32_t> sequence_, position_;
  std::vector<float> q_;
  Store cache_ = {c_.dtype, 256, {}, {}, {}, {}}, plain_ = {DType::q8_0, 128, {}, {}, {}, {}};
  std::vector<RowTile> tiles_;
  std::vector<SeenKeys> seen_;
  std::vector<float> sinks_, slopes_;  // [heads], or none
};

class CudaAttention : public test::OnDevice {
 protected:
  void check(const Case& c) {
    if (!gpu::offer().keeps(c.dtype) || c.head_dim % gpu::offer().head_step != 0) return;  // refused by check_gpu(), as
    if (block_shared_bytes() < gpu::attention_shared_bytes(c.head_dim, c.dtype)) return;
    if (c.ahead && !has_tiles(c)) return;
    SCOPED_TRACE(name(c));
    check(c, Pass(c, static_cast<std::uint32_t>(c.head_dim * 1000 + c.heads)));
  }
  /// Rows that see keys behind them are in tiles alone, which 7.5 has not for all.
  static bool has_tiles(const Case& c) { return gpu::has_attention_tiles(c.head_dim, c.dtype, block_shared_bytes()); }
  static void check(const Case& c, const Pass& pass) {
    auto want = pass.want();
    // In integers the other factor of a product has 16 bits; in f16 weights have 11, an error of 2^-11 at most of each
    // one's part in values of up to about 4. Two bits have large scales, beside which weights of plain blocks in the
    // same chunk are small and get fewer of the 16.
    const double most = kv_has_few_bits(c.dtype) ? 4e-3
                        : in_integers(c.dtype)   ? 5e-4
                        : c.dtype == DType::f16  ? 1e-3
                                                 : 2e-5;
    EXPECT_LT(pass.error(want), most);
    const auto few = pass.run(false, c.max_position, true);
    if (c.dtype == DType::f16) {
      EXPECT_LT(pass.error(few.out), 1e-3) << "row by row";
      // Scores that differ in their last bits round a weight in a few hundred to another f16.
      EXPECT_LT(root_mean_square(few.out, want), 5e-5) << "row by row, from the host's sums";
      want = few.out;
    }
    EXPECT_TRUE(same_bits(few.out, want)) << "row by row";
    EXPECT_TRUE(pass.quantizes(few, want)) << "row by row";
    const auto roomy = pass.run(false, c.max_position + 6000, false);  // merged by the other kernel, int8 alone
    EXPECT_TRUE(pass.quantizes(roomy, want)) << "row by row, many chunks";
    const auto tiled = pass.run(true, c.max_position, true);
    EXPECT_TRUE(same_bits(tiled.out, want)) << "by tiles";
    EXPECT_TRUE(pass.quantizes(tiled, want)) << "by tiles";
    EXPECT_TRUE(pass.quantizes(pass.run(true, c.max_position, false), want)) << "by tiles, int8 alone";
  }
  /// Of the differences.
  static double root_mean_square(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
    return std::sqrt(sum / static_cast<double>(a.size()));
  }
};

TEST_F(CudaAttention, EveryHeadDim) {
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const DType dtype : {DType::f16, DType::f32, DType::q8_0}) {
      if (head_dim % info(dtype).block_elements != 0) continue;
      for (const bool sinks : {false, true})
        check({8, 2, head_dim, dtype, 0, {{0, 0, 1}, {1, 63, 2}, {2, 100, 75}, {0, 130, 3}}, 256, sinks});
    }
  }
}

TEST_F(CudaAttention, HeadsOf512InF16) {
  for (const int group : {1, 2, 8, 9})
    for (const int window : {0, 200})
      check(
          {2 * group, 2, 512, DType::f16, window, {{0, 0, 1}, {1, 63, 2}, {2, 100, 75}, {0, 330, 3}}, 384, group == 2});
}

TEST_F(CudaAttention, EveryGroup) {
  const int shapes[][2] = {{4, 4}, {4, 2}, {6, 2}, {10, 2}, {7, 1}, {16, 2}, {16, 1}, {71, 1}, {128, 1}};
  for (const auto& [heads, kv_heads] : shapes) {
    for (const DType dtype : {DType::f16, DType::q8_0}) {
      check({heads, kv_heads, 64, dtype, 0, {{0, 120, 17}, {1, 5, 1}, {2, 300, 2}}, 384});
    }
  }
}

TEST_F(CudaAttention, GroupsOfEveryHeadDim) {  // with groups of 1, 2, 4 and 8 heads the kernels differ
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const int group : {1, 2, 3, 4, 8, 17}) {
      for (const DType dtype : {DType::f16, DType::q8_0}) {
        if (head_dim % info(dtype).block_elements != 0) continue;
        check({2 * group, 2, head_dim, dtype, 0, {{0, 391, 1}, {1, 127, 3}, {2, 64, 9}}, 512});
      }
    }
  }
}

TEST_F(CudaAttention, Windows) {
  for (const int window : {1, 17, 64, 128, 200, 1000}) {
    for (const DType dtype : {DType::f16, DType::q8_0}) {
      check({4, 2, 64, dtype, window, {{0, 0, 3}, {1, 250, 40}, {2, 511, 2}, {3, 700, 33}}, 768, window % 2 == 0});
    }
    for (const DType dtype : {DType::f16, DType::q8_0}) {
      check({8, 1, 128, dtype, window, {{0, 0, 3}, {1, 251, 9}, {2, 701, 3}}, 768});
    }
  }
}

TEST_F(CudaAttention, CapsAndSlopesOfScores) {
  if (!gpu::offer().rare_layers) GTEST_SKIP() << "refused by check_gpu()";
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const DType dtype : {DType::f16, DType::f32, DType::q8_0, DType::q4_0}) {
      if (head_dim % info(dtype).block_elements != 0) continue;
      for (const bool leans : {false, true}) {
        Case c{8, 2, head_dim, dtype, 0, {{0, 0, 1}, {1, 63, 2}, {2, 100, 75}, {0, 330, 3}}, 384, head_dim == 96};
        c.leans = leans;
        if (!leans || head_dim == 128) c.cap = 3;
        c.window = head_dim == 256 ? 200 : 0;
        check(c);
      }
    }
  }
  Case wide{4, 2, 512, DType::f16, 0, {{0, 0, 1}, {2, 100, 75}, {0, 330, 3}}, 384};
  wide.cap = 3, wide.leans = true;
  check(wide);
}

TEST_F(CudaAttention, ScoresOfKeysBehindTheQueryLeanToo) {
  if (!gpu::offer().rare_layers) GTEST_SKIP() << "refused by check_gpu()";
  for (const DType dtype : {DType::f32, DType::q8_0}) {
    Case c{4, 2, 64, dtype, 0, {{0, 0, 1}, {1, 63, 200}, {0, 130, 3}}, 512};
    c.ahead = c.leans = true;
    if (!has_tiles(c)) continue;
    SCOPED_TRACE(name(c));
    const Pass pass(c, 3);
    EXPECT_TRUE(same_bits(pass.run(true, c.max_position, true).out, pass.want()));
  }
}

TEST_F(CudaAttention, ChunksOfPositions) {
  if (!gpu::offer().rare_layers) GTEST_SKIP() << "refused by check_gpu()";
  for (const int chunk : {1, 17, 64, 128, 200, 1000}) {
    for (const DType dtype : {DType::f16, DType::f32, DType::q8_0}) {
      Case c{8, 2, 128, dtype, chunk, {{0, 0, 3}, {1, 190, 40}, {2, 511, 2}, {3, 700, 33}}, 768, chunk == 64};
      c.chunks = true;
      check(c);
    }
  }
  Case wide{4, 2, 512, DType::f16, 96, {{0, 90, 20}, {1, 300, 3}}, 384};
  wide.chunks = true;
  check(wide);
}

TEST_F(CudaAttention, RowsThatSeeKeysBehindThem) {
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const DType dtype : {DType::f16, DType::f32, DType::q8_0}) {
      if (head_dim % info(dtype).block_elements != 0 || head_dim % gpu::offer().head_step != 0) continue;
      Case c{4, head_dim == 64 ? 4 : 2, head_dim, dtype, 0, {{0, 0, 1}, {1, 63, 200}, {2, 100, 75}, {0, 130, 3}}, 512};
      c.ahead = true;
      if (!has_tiles(c)) continue;
      SCOPED_TRACE(name(c));
      const Pass pass(c, static_cast<std::uint32_t>(head_dim));
      const auto tiled = pass.run(true, c.max_position, true);
      EXPECT_LT(pass.error(tiled.out), dtype == DType::f16 ? 1e-3 : dtype == DType::f32 ? 2e-5 : 5e-4);
      if (dtype != DType::f16) {
        EXPECT_TRUE(same_bits(tiled.out, pass.want()));
      }
      EXPECT_TRUE(pass.quantizes(tiled, tiled.out));
    }
  }
}

TEST_F(CudaAttention, RandomShapes) {
  std::mt19937 random(7);
  const auto draw = [&](int first, int last) { return std::uniform_int_distribution<int>(first, last)(random); };
  for (int i = 0; i < 48; ++i) {
    Case c;
    c.dtype = i % 2 == 0 ? DType::q8_0 : DType::f16;
    c.kv_heads = draw(1, 4);
    c.heads = c.kv_heads * draw(1, 9);
    c.head_dim = std::array{64, 96, 128, 256, 80}[static_cast<std::size_t>(draw(0, c.dtype == DType::f16 ? 4 : 3))];
    c.window = draw(0, 2) == 0 ? draw(1, 400) : 0;
    c.sinks = i % 3 == 0;
    int most = 0;
    for (int s = draw(1, 4); s > 0; --s) {
      c.runs.push_back({s - 1, draw(0, 600), draw(1, 20)});
      most = std::max(most, c.runs.back().first + c.runs.back().rows);
    }
    c.max_position = (most + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk;
    check(c);
  }
}

TEST_F(CudaAttention, SeveralChunksABlock) {  // where chunks are many: one after the other, with room for 8,000 keys
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const int window : {0, 1501}) {
      check({6, 2, head_dim, DType::f16, window, {{0, 2030, 8}, {1, 1991, 8}}, 2048});
    }
  }
}

TEST_F(CudaAttention, QueriesOfAnySize) {
  const Case c = {8, 2, 128, DType::f16, 0, {{0, 200, 3}, {1, 60, 1}}, 256};
  Pass pass(c, 5);
  pass.scale_query(0, 1, 0x1p-40f);
  pass.scale_query(1, 2, 0x1p-140f);
  pass.scale_query(1, 3, 0);
  pass.scale_query(2, 7, 3000);  // beyond f16
  pass.scale_query(3, 0, 0x1p90f);
  check(c, pass);
}

TEST_F(CudaAttention, AQueryThatIsNotFiniteSpoilsItsHeadAlone) {
  for (const DType dtype : {DType::f16, DType::q8_0}) {
    const Case c = {8, 2, 64, dtype, 0, {{0, 200, 3}}, 256};
    Pass pass(c, 3);
    pass.set_query(1, 2, 40, std::numeric_limits<float>::quiet_NaN());
    pass.set_query(2, 7, 3, -kInfinity);
    const auto few = pass.run(false, c.max_position, true).out;
    for (int i = 0; i < 3 * 8 * 64; ++i) {
      const bool spoilt = i / 64 == 8 + 2 || i / 64 == 16 + 7;
      ASSERT_EQ(std::isnan(few[static_cast<std::size_t>(i)]), spoilt) << "row and head " << i / 64;
    }
    if (in_integers(dtype)) {
      EXPECT_TRUE(same_bits(few, pass.want())) << "row by row";
    }
    EXPECT_TRUE(same_bits(pass.run(true, c.max_position, true).out, few)) << "by tiles";
  }
}

TEST_F(CudaAttention, FewBits) {
  for (const bool rotated : {false, true}) {
    for (const int head_dim : {64, 96, 128, 256}) {
      for (const int group : {1, 4, 8, 9}) {
        if (!rotated && group != 4) continue;
        check({2 * group,
               2,
               head_dim,
               DType::q4_0,
               0,
               {{0, 0, 1}, {1, 63, 2}, {2, 100, 9}, {0, 391, 3}},
               512,
               group == 4,
               rotated});
      }
    }
  }
  check({8, 2, 128, DType::q8_0, 0, {{0, 120, 40}, {1, 5, 1}}, 384, false, true});
}

// Beside plain blocks: rows in the first block, in the second and beyond, at ends and beginnings of blocks, and passes
// that go from one into the next.
TEST_F(CudaAttention, ThreeAndTwoBits) {
  for (const DType dtype : {DType::q3_k, DType::q2_0}) {
    for (const int head_dim : {64, 96, 128, 256}) {
      for (const int group : {1, 4, 8, 9}) {
        check({2 * group,
               2,
               head_dim,
               dtype,
               0,
               {{0, 0, 1}, {1, 63, 2}, {2, 100, 9}, {3, 126, 5}, {4, 191, 1}, {5, 192, 1}, {0, 391, 3}},
               512,
               group == 4,
               true});
      }
    }
    check({8, 2, 128, dtype, 0, {{0, 100, 200}, {1, 5, 1}}, 384, false, false});
  }
}

TEST_F(CudaAttention, FewBitsInWindows) {
  for (const DType dtype : {DType::q4_0, DType::q3_k, DType::q2_0})
    for (const int window : {1, 17, 64, 200})
      check({8, 1, 128, dtype, window, {{0, 0, 3}, {1, 251, 9}, {2, 701, 5}, {3, 100, 70}}, 768, false, true});
}

TEST_F(CudaAttention, FewBitsOfLongContexts) {
  for (const DType dtype : {DType::q4_0, DType::q3_k, DType::q2_0}) {
    check({8, 2, 128, dtype, 0, {{0, 2047, 2}, {1, 4095, 1}}, 4096, true, true});
    check({4, 1, 64, dtype, 0, {{0, 9001, 2}}, 16384, false, true});
    check({2, 1, 256, dtype, 0, {{0, 3071, 3}}, 4096, false, true});
    check({8, 2, 128, dtype, 0, {{0, 0, 300}}, 384, false, true});
  }
}

TEST_F(CudaAttention, FewBitsOfRandomShapes) {
  std::mt19937 random(11);
  const auto draw = [&](int first, int last) { return std::uniform_int_distribution<int>(first, last)(random); };
  for (int i = 0; i < 32; ++i) {
    Case c;
    c.dtype = i % 2 == 0 ? DType::q3_k : DType::q2_0;
    c.kv_heads = draw(1, 4);
    c.heads = c.kv_heads * draw(1, 9);
    c.head_dim = std::array{64, 96, 128, 256}[static_cast<std::size_t>(draw(0, 3))];
    c.window = draw(0, 2) == 0 ? draw(1, 400) : 0;
    c.sinks = i % 3 == 0;
    c.rotated = i % 5 != 0;
    int most = 0;
    for (int s = draw(1, 4); s > 0; --s) {
      c.runs.push_back({s - 1, draw(0, 1) == 0 ? draw(0, 600) : 64 * draw(0, 9) + draw(0, 2), draw(1, 70)});
      most = std::max(most, c.runs.back().first + c.runs.back().rows);
    }
    c.max_position = (most + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk;
    check(c);
  }
}

TEST_F(CudaAttention, FewBitsWithoutPlainBlocksAreRefused) {
  AttentionCall call;
  call.rows.rows = 1;
  call.kv.dtype = DType::q3_k;
  call.kv.head_dim = 64;
  call.kv.kv_heads = call.heads = 1;
  EXPECT_EQ(attention(call, nullptr), cudaErrorInvalidValue);
}

TEST_F(CudaAttention, QuantizedHeadsThatAreNoMultipleOf32AreRefused) {
  AttentionCall call;
  call.rows.rows = 1;
  call.kv.dtype = DType::q8_0;
  call.kv.head_dim = 80;
  call.kv.kv_heads = call.heads = 1;
  EXPECT_EQ(attention(call, nullptr), cudaErrorInvalidValue);
}

TEST_F(CudaAttention, ManyChunks) {
  for (const DType dtype : {DType::f16, DType::q8_0}) {
    check({8, 2, 128, dtype, 0, {{0, 2047, 2}, {1, 4095, 1}, {2, 3000, 9}}, 4096, true});
    check({2, 1, 128, dtype, 0, {{0, 9000, 3}}, 16384});
  }
  check({16, 2, 128, DType::q8_0, 0, {{0, 9001, 2}, {1, 4000, 1}}, 16384});
}

TEST_F(CudaAttention, APromptFromItsStart) {
  for (const DType dtype : {DType::f16, DType::q8_0}) check({8, 2, 128, dtype, 0, {{0, 0, 300}}, 384});
}

}  // namespace
}  // namespace millrace::kernels::cuda
