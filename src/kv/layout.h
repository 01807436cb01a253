// The layout of a sequence's cache: which layers store K and V, their sizes, how long and in which memory. A model
// declares what each of its layers stores; layers with the same needs form a group, and each group has its own blocks.
//
// Inside a block, for each layer of the group: K as [kv_heads, k_dim, kBlockTokens] (channel-major, so that SIMD lanes
// are keys), then V as [kv_heads, kBlockTokens, v_dim]. In q8_0 a head's part is its int8 values in that order, then
// their float16 scales, one for 32 channels of a token: [k_dim / 32, kBlockTokens] of K, [kBlockTokens, v_dim / 32] of
// V. In q4_0, nibbles in two's complement replace the int8 values: of a scale's 32 channels, channel c < 16 has
// the low nibble of a byte and channel c + 16 the high one, so that K is [k_dim / 32, 16, kBlockTokens] bytes and V
// [kBlockTokens, v_dim / 32, 16]; scales follow as in q8_0. In few bits (tensor/kv_codec.h: q3_k and q2_0), with g
// channels to a scale, of which channel c + k * g / 4 (c < g / 4) has bits 2k and 2k + 1 of a byte and channel c + k *
// g / 8 (c < g / 8) sign bit k of one: K is [k_dim / g, g / 4, kBlockTokens] bytes, signs [k_dim / g, g / 8,
// kBlockTokens] and scales [k_dim / g, kBlockTokens], V the same with kBlockTokens in front. A latent, from which all
// heads take their keys and their values, lies as a value does, [kBlockTokens, v_dim], and its k_dim is 0.
// Where an indexer chooses the keys that a token sees, a layer's last part in a block are its index keys, one a token
// for all heads, as [index_dim, kBlockTokens] in f16; in f32 where keys and values are.
//
// Formats of few bits lose least for distant tokens. So a group in such a format has a second group, its `plain` group,
// with the same keys and values in more bits: for a sequence's first block, which all tokens attend to, and for the
// block that contains the token itself. Tokens read those blocks from the plain group, so a token's result depends only
// on its position, not on the pass that computed it. Plain blocks are in f16 in host memory, and in q8_0 on a device,
// rotated like their group: levels of few bits are small integers, so that on a device both products are of integers,
// and a plain block takes half the bytes. The additional loss of q8_0 is a hundredth of that of q3.
//
// A layer may store one state for all tokens so far instead of data per token. A block of such a group holds the states
// of its layers after some token: block i of a sequence is a checkpoint after the last token of block i, and there are
// few of them.
//
// A layer may also keep one row for each `ratio` tokens (compressed attention). A row lies in the block of the last
// token that it is made of, so that blocks are shared, released and read back as those of all other groups are. A block
// has Group::rows() rows in the place of kBlockTokens: [rows, v_dim] of latents, [index_dim, rows] of index keys; with
// more tokens to a row than to a block, one row, in every block in which a row ends. What rows are made of is kept for
// as long as the next row needs it: `inputs`, float32 [kBlockTokens, v_dim], with a window. A sequence that goes back
// over tokens which had completed a row finds those inputs in the window, and makes the row anew. Thread-safety:
// values.
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
constexpr int kOnHost = -1;  // instead of a device's index

/// The number of blocks for this many tokens.
constexpr std::int64_t blocks_for(std::int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

/// What a layer stores: keys and values per token; a latent per token, from which both are computed; one state for all
/// tokens so far; or nothing, in layers that have only a feed-forward. `inputs`: the numbers per token of which rows
/// for several tokens are made (exec::Compressor), in float32 whatever the format.
enum class Keeps : std::uint8_t { attention, latent, state, nothing, inputs };

/// A layer's state, float32: the last inputs of a causal convolution, [columns, channels], or of several, which share
/// out the channels, one after the other; then a matrix for each head, [heads, keys x values] as kernels/recurrent.h
/// lays it.
struct StateShape {
  std::int64_t columns = 0, channels = 0;
  std::int64_t heads = 0, keys = 0, values = 0;

  std::int64_t convolution_floats() const { return columns * channels; }
  std::int64_t head_floats() const { return keys * values; }
  std::int64_t floats() const { return convolution_floats() + heads * head_floats(); }
  std::int64_t bytes() const { return floats() * static_cast<std::int64_t>(sizeof(float)); }
  friend bool operator==(const StateShape&, const StateShape&) = default;
};

/// The needs of one layer of a model.
struct LayerKv {
  Keeps keeps = Keeps::attention;
  std::int64_t kv_heads = 0, k_dim = 0, v_dim = 0;  // dims of a head
  std::int64_t window = 0;                          // the nearest keys that a token sees, its own among them; 0: all
  std::int64_t reads = -1;     // the earlier layer whose keys and values this one sees; it keeps none then
  StateShape state = {};       // of Keeps::state, and nothing of the above then
  std::int64_t index_dim = 0;  // channels of the index key that is kept of a token; 0: none
  std::int64_t ratio = 1;      // tokens to a row, of Keeps::latent
  bool aligned = false;        // positions are cut into runs as long as the window, and a token sees those of its run
};

/// Whether rows of so many tokens end where blocks do: the ratio divides kBlockTokens, or is a multiple of it.
constexpr bool is_ratio(std::int64_t ratio) {
  return ratio > 0 && (kBlockTokens % ratio == 0 || ratio % kBlockTokens == 0);
}

/// Where row number `row` of so many tokens each lies.
struct RowPlace {
  std::int64_t block = 0, row = 0;  // of the sequence, in the block
};
constexpr RowPlace row_place(std::int64_t row, std::int64_t ratio) {
  const std::int64_t last = (row + 1) * ratio - 1;  // token
  return {last / kBlockTokens, last % kBlockTokens / ratio};
}

/// Layers with the same needs. Their tokens are stored and released together.
struct Group {
  Keeps keeps = Keeps::attention;
  std::int64_t layers = 0, kv_heads = 0, k_dim = 0, v_dim = 0, window = 0;
  DType dtype = DType::f16;  // f16, f32 or, where dims are multiples of 32, q8_0, q4_0, q3_k or q2_0
  int device = kOnHost;      // whose memory the blocks lie in
  StateShape state = {};     // of Keeps::state
  bool rotated = false;      // keys and values are (kernels/rotation.h)
  bool ends = false;         // a plain group: of a sequence its first block, and the one that a token lies in
  std::int64_t index_dim = 0;
  std::int64_t ratio = 1;  // tokens to a row
  bool aligned = false;

  std::int64_t rows() const { return ratio < kBlockTokens ? kBlockTokens / ratio : 1; }  // in a block
  std::int64_t k_head_bytes() const { return kv_row_bytes(dtype, k_dim) * rows(); }      // likewise
  std::int64_t v_head_bytes() const { return kv_row_bytes(dtype, v_dim) * rows(); }
  DType index_dtype() const { return dtype == DType::f32 ? DType::f32 : DType::f16; }
  std::int64_t index_bytes() const { return row_bytes(index_dtype(), index_dim) * rows(); }  // likewise
  std::int64_t layer_bytes() const {
    return is_state() ? state.bytes() : kv_heads * (k_head_bytes() + v_head_bytes()) + index_bytes();
  }
  std::int64_t block_bytes() const { return layers * layer_bytes(); }
  /// The span of keys' and values' rotation, or 0.
  std::int64_t rotation() const { return rotated ? kernels::rotation_span(v_dim) : 0; }
  bool is_state() const { return keeps == Keeps::state; }
  /// Whether a token attends to every earlier token, so that a sequence releases no block.
  bool keeps_all() const { return !is_state() && !ends && window == 0; }
  /// The first position that a token at `position`, or a later one, attends to. For states, this is the last position.
  std::int64_t first_seen(std::int64_t position) const {
    if (is_state()) return position > 0 ? position - 1 : 0;
    if (ends) return position / kBlockTokens * kBlockTokens;  // and block 0
    if (aligned) return position / window * window;
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  friend bool operator==(const Group&, const Group&) = default;
};

/// The place of a layer's keys and values.
struct Place {
  static constexpr std::size_t kNowhere = ~std::size_t{0};  // the group of a layer that keeps nothing

  std::size_t group = 0;
  std::int64_t index = 0;  // among the group's layers
  friend bool operator==(const Place&, const Place&) = default;
};

/// Whether keys and values are rotated before they are quantized.
enum class Rotation : std::uint8_t {
  of_format,  // as kv_is_rotated() returns for the format
  never,      // to measure the effect of the rotation, and for q8_0 if the layout does not allow it
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
  /// Those of the model, and behind them what else of its layers is kept apart.
  std::int64_t layers() const { return static_cast<std::int64_t>(places_.size()); }
  /// Whether the layer exists and stores anything.
  bool keeps(std::int64_t layer) const {
    return layer >= 0 && layer < layers() && place(layer).group != Place::kNowhere;
  }
  // REQUIRES of what follows: keeps(layer).
  const Place& place(std::int64_t layer) const { return places_[static_cast<std::size_t>(layer)]; }
  const Group& group_of(std::int64_t layer) const { return groups_[place(layer).group]; }
  /// The plain group of the layer's; Place::kNowhere: it has none.
  std::size_t plain_group(std::int64_t layer) const { return plain_[place(layer).group]; }
  /// The offset in a block of the layer's group of K or V of a KV head, or of the index keys, which all heads share.
  /// The only definition of these offsets.
  std::int64_t offset(std::int64_t layer, Part part, std::int64_t kv_head) const;
  /// The same in a block of its plain group.
  std::int64_t plain_offset(std::int64_t layer, Part part, std::int64_t kv_head) const {
    return offset_in(groups_[plain_group(layer)], place(layer).index, part, kv_head);
  }
  /// The offset in a block of the layer's group of the layer's state, and of its first matrix.
  /// REQUIRES: the group has states.
  std::int64_t state_offset(std::int64_t layer) const { return place(layer).index * group_of(layer).layer_bytes(); }
  std::int64_t matrices_offset(std::int64_t layer) const {
    return state_offset(layer) + group_of(layer).state.convolution_floats() * static_cast<std::int64_t>(sizeof(float));
  }
  std::int64_t bytes_per_token() const;  // while no window passed it
  bool has_states() const;
  bool has_plain_groups() const;
  /// A description that is different for different layouts: "2 groups: 5 layers x 4 heads x 256 f16, window 512; ...".
  std::string describe() const;
  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  static std::int64_t offset_in(const Group& group, std::int64_t index, Part part, std::int64_t kv_head);

  std::vector<Group> groups_;       // plain ones behind the others
  std::vector<std::size_t> plain_;  // by group: its plain one
  std::vector<Place> places_;       // by layer
};

}  // namespace millrace::kv
