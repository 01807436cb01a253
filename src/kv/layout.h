// What a sequence remembers, as data: which layers keep K and V, of what size, for how long and where. A model says
// what each of its layers keeps; layers that keep alike share a group, and a group's tokens lie in blocks of their own.
//
// Inside a block, for each layer of the group: K as [kv_heads, k_dim, kBlockTokens] (channel-major, so that SIMD lanes
// are keys), then V as [kv_heads, kBlockTokens, v_dim]. In q8_0 a head's part is its int8 values in that order, then
// their float16 scales, one for 32 channels of a token: [k_dim / 32, kBlockTokens] of K, [kBlockTokens, v_dim / 32] of
// V. In q4_0 nibbles lie in place of the int8 values, in two's complement: of a scale's 32 channels, channel c < 16 has
// the low nibble of a byte and channel c + 16 the high one, so that K is [k_dim / 32, 16, kBlockTokens] bytes and V
// [kBlockTokens, v_dim / 32, 16]; scales follow as in q8_0. In few bits (tensor/kv_codec.h: q3_k and q2_0), with g
// channels to a scale, of which channel c + k * g / 4 (c < g / 4) has bits 2k and 2k + 1 of a byte and channel c + k *
// g / 8 (c < g / 8) sign bit k of one: K is [k_dim / g, g / 4, kBlockTokens] bytes, signs [k_dim / g, g / 8,
// kBlockTokens] and scales [k_dim / g, kBlockTokens], V the same with kBlockTokens in front. A latent, from which all
// heads take their keys and their values, lies as a value does, [kBlockTokens, v_dim], and its k_dim is 0.
// Where an indexer chooses the keys that a token sees, a layer's last part in a block are its index keys, one a token
// for all heads, as [index_dim, kBlockTokens] in f16; in f32 where keys and values are.
//
// Few bits cost least where they are far away: of a group in them a second one, its `plain` group, has the same keys
// and values of a sequence's first block, where all tokens look, and of the block that a token itself lies in. Tokens
// see these there. So a token's result depends on its position alone, not on which pass it came in. In host memory they
// are in f16, in a device's in q8_0, rotated as their group is: levels of few bits are small integers, so that there
// the products with both are of integers, and a plain block takes half the bytes. What q8_0 then costs is a hundredth
// of what q3 does.
//
// A layer may keep one state of all tokens so far instead of something of each. Such a group's block holds the states
// of its layers behind some token: block i of a sequence is a checkpoint behind the last token of block i, and there
// are few of them. Thread-safety: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/recurrent.h"
#include "kernels/rotation.h"
#include "tensor/dtype.h"
#include "tensor/kv_codec.h"

namespace millrace::kv {

constexpr std::int64_t kBlockTokens = 64;
constexpr int kOnHost = -1;  // in place of a device's number

/// Blocks that hold so many tokens.
constexpr std::int64_t blocks_for(std::int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

/// What is kept of a token: its keys and values; a latent that both are made of; or, of all tokens so far, one state.
/// Or nothing: some layers have a feed-forward alone.
enum class Keeps : std::uint8_t { attention, latent, state, nothing };

/// A layer's state, float32: the last inputs of a causal convolution, [columns, channels], then a matrix for each head,
/// [heads, keys x values] as kernels/recurrent.h lays it.
struct StateShape {
  std::int64_t columns = 0, channels = 0;
  std::int64_t heads = 0, keys = 0, values = 0;

  std::int64_t convolution_floats() const { return columns * channels; }
  std::int64_t head_floats() const { return keys * values; }
  std::int64_t floats() const { return convolution_floats() + heads * head_floats(); }
  std::int64_t bytes() const { return floats() * static_cast<std::int64_t>(sizeof(float)); }
  friend bool operator==(const StateShape&, const StateShape&) = default;
};

/// What one layer of a model needs.
struct LayerKv {
  Keeps keeps = Keeps::attention;
  std::int64_t kv_heads = 0, k_dim = 0, v_dim = 0;  // dims of a head
  std::int64_t window = 0;                          // the nearest keys that a token sees, its own among them; 0: all
  std::int64_t reads = -1;     // the earlier layer whose keys and values this one sees; it keeps none then
  StateShape state = {};       // of Keeps::state, and nothing of the above then
  std::int64_t index_dim = 0;  // channels of the index key that is kept of a token; 0: none
};

/// Layers that keep alike. Their tokens come and go together.
struct Group {
  Keeps keeps = Keeps::attention;
  std::int64_t layers = 0, kv_heads = 0, k_dim = 0, v_dim = 0, window = 0;
  DType dtype = DType::f16;  // f16, f32 or, where dims are multiples of 32, q8_0, q4_0, q3_k or q2_0
  int device = kOnHost;      // whose memory the blocks lie in
  StateShape state = {};     // of Keeps::state
  bool rotated = false;      // keys and values are (kernels/rotation.h)
  bool ends = false;         // a plain group: of a sequence its first block, and the one that a token lies in
  std::int64_t index_dim = 0;

  std::int64_t k_head_bytes() const { return kv_row_bytes(dtype, k_dim) * kBlockTokens; }  // in a block
  std::int64_t v_head_bytes() const { return kv_row_bytes(dtype, v_dim) * kBlockTokens; }
  DType index_dtype() const { return dtype == DType::f32 ? DType::f32 : DType::f16; }
  std::int64_t index_bytes() const { return row_bytes(index_dtype(), index_dim) * kBlockTokens; }  // likewise
  std::int64_t layer_bytes() const {
    return is_state() ? state.bytes() : kv_heads * (k_head_bytes() + v_head_bytes()) + index_bytes();
  }
  std::int64_t block_bytes() const { return layers * layer_bytes(); }
  /// The span of keys' and values' rotation, or 0.
  std::int64_t rotation() const { return rotated ? kernels::rotation_span(v_dim) : 0; }
  bool is_state() const { return keeps == Keeps::state; }
  /// Whether a token sees something of every token before it, so that a sequence lets go of no block.
  bool keeps_all() const { return !is_state() && !ends && window == 0; }
  /// The first position of which a token at `position` or a later one sees something. A state is seen as the last
  /// one's.
  std::int64_t first_seen(std::int64_t position) const {
    if (is_state()) return position > 0 ? position - 1 : 0;
    if (ends) return position / kBlockTokens * kBlockTokens;  // and block 0
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  friend bool operator==(const Group&, const Group&) = default;
};

/// Where a layer's keys and values lie.
struct Place {
  static constexpr std::size_t kNowhere = ~std::size_t{0};  // the group of a layer that keeps nothing

  std::size_t group = 0;
  std::int64_t index = 0;  // among the group's layers
  friend bool operator==(const Place&, const Place&) = default;
};

/// Whether keys and values are rotated before they lose bits.
enum class Rotation : std::uint8_t {
  of_format,  // those are that kv_is_rotated() says
  never,      // to measure what it does, and in q8_0 where it cannot be done
};

/// K, V or the index key of a token.
enum class Part : std::uint8_t { k, v, index };

class Layout {
 public:
  Layout() = default;
  /// Groups in the order of their first layers. REQUIRES: a layer that reads another's names one before it, of the same
  /// needs.
  explicit Layout(std::span<const LayerKv> layers);
  /// The same in another format and place.
  Layout with(DType dtype, int device, Rotation rotation = Rotation::of_format) const;

  const std::vector<Group>& groups() const { return groups_; }
  std::int64_t layers() const { return static_cast<std::int64_t>(places_.size()); }  // of the model
  /// Whether there is such a layer, and something is kept of it.
  bool keeps(std::int64_t layer) const {
    return layer >= 0 && layer < layers() && place(layer).group != Place::kNowhere;
  }
  // REQUIRES of what follows: keeps(layer).
  const Place& place(std::int64_t layer) const { return places_[static_cast<std::size_t>(layer)]; }
  const Group& group_of(std::int64_t layer) const { return groups_[place(layer).group]; }
  /// The plain group of the layer's; Place::kNowhere: it has none.
  std::size_t plain_group(std::int64_t layer) const { return plain_[place(layer).group]; }
  /// Bytes from the start of a block of the layer's group to K or V of a KV head, or to its index keys, which all heads
  /// share. The one place that says so.
  std::int64_t offset(std::int64_t layer, Part part, std::int64_t kv_head) const;
  /// The same in a block of its plain group.
  std::int64_t plain_offset(std::int64_t layer, Part part, std::int64_t kv_head) const {
    return offset_in(groups_[plain_group(layer)], place(layer).index, part, kv_head);
  }
  /// Bytes from the start of a block of the layer's group to the layer's state, and to the first matrix of it.
  /// REQUIRES: the group has states.
  std::int64_t state_offset(std::int64_t layer) const { return place(layer).index * group_of(layer).layer_bytes(); }
  std::int64_t matrices_offset(std::int64_t layer) const {
    return state_offset(layer) + group_of(layer).state.convolution_floats() * static_cast<std::int64_t>(sizeof(float));
  }
  std::int64_t bytes_per_token() const;  // while no window passed it
  bool has_states() const;
  bool has_plain_groups() const;
  /// "2 groups: 5 layers x 4 heads x 256 f16, window 512; ...": what tells layouts apart, in words.
  std::string describe() const;
  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  static std::int64_t offset_in(const Group& group, std::int64_t index, Part part, std::int64_t kv_head);

  std::vector<Group> groups_;       // plain ones behind the others
  std::vector<std::size_t> plain_;  // by group: its plain one
  std::vector<Place> places_;       // by layer
};

}  // namespace millrace::kv
