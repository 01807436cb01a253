// The cache of one sequence: a table of blocks for each group of its layout (kv/layout.h), and its length; snapshot and
// restore.
//
// A block holds kBlockTokens tokens of all layers of one group. Blocks come from a BlockPool, whose memory the Budget
// grants block by block. A group with a window releases the blocks before it: their entries in the table become empty.
//
// A group with states has the state after the last token, which a pass reads, and room for the state that the pass
// writes, so that a failed pass has changed nothing. Checkpoints are in the table, each in the entry of the block after
// whose last token it was taken; a pass writes those that reserve() made room for. A sequence can rewind to a
// checkpoint, and other sequences can continue from it. Thread-safety: one thread writes a sequence; during a pass
// several may read it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/host_memory.h"
#include "kv/layout.h"
#include "residency/budget.h"

namespace millrace::kv {

class SequenceState;

/// Memory for blocks on a device. Only the device's executor uses the addresses.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  /// Allocates a block. press: other holders may be asked to shrink. Errors: out_of_budget.
  virtual Expected<std::byte*> allocate(bool press) = 0;
  virtual void release(std::byte* block) = 0;
  virtual void trim() {}  // returns memory without blocks in use
  virtual Status read(const std::byte* block, std::byte* out, std::size_t bytes) = 0;
  virtual Status write(std::byte* block, const std::byte* in, std::size_t bytes) = 0;
  virtual Status copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
};

/// A pool of blocks for each group of a layout; the blocks of a group have one size. Free blocks are kept for reuse and
/// returned to the budget by trim(). A block may have several users (sequences with a common prefix, the prefix cache)
/// and is freed when the last one releases it. INVARIANT: a block with more than one user is never written.
class BlockPool {
 public:
  /// Blocks in host memory. `budget` outlives the pool. Reserves nothing yet.
  BlockPool(Layout layout, residency::Budget& budget);
  /// Blocks in `memory`, one for each group, which reserves them itself. They are not zeroed.
  BlockPool(Layout layout, std::vector<std::unique_ptr<BlockMemory>> memory);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  const Layout& layout() const;
  std::size_t groups() const { return layout().groups().size(); }
  Expected<std::byte*> allocate(std::size_t group);  // zeroed, one user. Errors: out_of_budget
  /// The same, but only memory of ended conversations is reclaimed for it.
  Expected<std::byte*> allocate_spare(std::size_t group);
  void retain(std::size_t group, std::byte* block);   // adds a user
  void release(std::size_t group, std::byte* block);  // removes a user
  std::int64_t users(std::size_t group, const std::byte* block) const;
  void trim();  // returns the memory of free blocks
  std::int64_t blocks_in_use(std::size_t group) const;
  std::int64_t blocks_in_use() const;  // of all groups
  /// The largest number of blocks of a group at a time; 0: as many as the budget grants.
  void set_bound(std::size_t group, std::int64_t blocks);
  std::int64_t bound(std::size_t group) const;
  /// Called if there is no room for a block of a group, before the budget reclaims other memory: releases a block that
  /// no pass uses, or returns false. Empty removes the function.
  using Reclaimer = std::function<bool(std::size_t group)>;
  void set_reclaimer(Reclaimer let_go);
  bool on_host() const;  // a block's address is its bytes
  /// The sequences that have their blocks here, by SequenceState::number(). Valid until one begins or ends.
  const std::map<std::uint64_t, const SequenceState*>& sequences() const;
  /// Blocks (BlockName::number) that are kept for later sequences, so that other ranks can keep the same ones.
  void keep(std::uint64_t number);
  void drop(std::uint64_t number);
  const std::set<std::uint64_t>& kept() const;
  /// Copies a block's bytes, from host or device memory. Errors: io_error.
  Status read(std::size_t group, const std::byte* block, std::byte* out) const;
  Status write(std::size_t group, std::byte* block, const std::byte* in);
  Status copy(std::size_t group, std::byte* to, const std::byte* from);

 private:
  friend class SequenceState;
  std::map<std::uint64_t, const SequenceState*>& living();

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A block of each group, in the order of the layout's groups; null where the group's window has passed it.
using Blocks = std::span<std::byte* const>;

/// A unique name of the blocks, one per group, at one place of a sequence. Shared blocks have the same number in all
/// sequences.
struct BlockName {
  std::uint64_t number = 0;
  std::uint64_t copied = 0;  // the number of the blocks that these were copied from, or 0
  friend bool operator==(const BlockName&, const BlockName&) = default;
};

class SequenceState {
 public:
  explicit SequenceState(std::shared_ptr<BlockPool> pool);
  ~SequenceState();
  SequenceState(SequenceState&&) noexcept;
  SequenceState& operator=(SequenceState&&) noexcept;

  const Layout& layout() const;
  /// Unique among all sequences, past ones included. A move transfers it and leaves 0.
  std::uint64_t number() const { return number_; }
  std::int64_t length() const { return length_; }  // tokens whose K and V are complete

  /// Makes room for positions [0, tokens), and copies a shared block that contains positions from length() on. A group
  /// with a window takes room for the positions of the pass beside those that it sees. Errors: out_of_budget, io_error;
  /// nothing changes then. internal: goes_on(length()) is false.
  Status reserve(std::int64_t tokens);
  /// Continues with whole blocks of another sequence that began with the same tokens; they are shared, not copied. If
  /// one is null, a group with a window releases the blocks before it, and a group with states has no state of this
  /// length. number: BlockName's; 0: no sequence has the blocks yet. REQUIRES: length() is a multiple of kBlockTokens
  /// and nothing is reserved beyond it.
  void share(Blocks blocks, std::uint64_t number);
  /// Continues with a copy of the first `tokens` positions of such blocks. REQUIRES: as share(), and none is null; the
  /// layout has no states, because states exist only for whole blocks.
  /// Errors: out_of_budget, io_error; nothing changes then.
  Status copy(Blocks blocks, std::uint64_t number, std::int64_t tokens);
  /// Declares the first `tokens` positions complete (after a pass that ended there). REQUIRES: reserved.
  void set_length(std::int64_t tokens);
  /// Releases the blocks that no token from length() on sees, and checkpoints beyond kMostCheckpoints.
  void forget_behind_windows();
  /// Releases all checkpoints, because another holder keeps them.
  void forget_checkpoints();
  /// Removes positions from `tokens` on, and as many before it as are needed to continue: back to the nearest
  /// checkpoint if there are states, or to 0 if a window has released what a token there would see. Returns the new
  /// length, at most `tokens`; blocks that are no longer needed are freed.
  std::int64_t rewind(std::int64_t tokens);
  /// Requests a checkpoint after the first `tokens` positions, a multiple of kBlockTokens, when a pass reaches it,
  /// because other sequences diverge there or a prompt ends. Of the requested checkpoints, the last one is kept
  /// longest.
  void want_checkpoint(std::int64_t tokens);
  /// Whether everything complete that a token at this position sees is available.
  bool goes_on(std::int64_t position) const;
  /// Whether a token at this position can be computed: what it sees is available, and there is room for its results.
  bool holds(std::int64_t position) const;

  /// K and V of (layer, kv_head) in block i: K [k_dim, kBlockTokens], V [kBlockTokens, v_dim].
  /// REQUIRES: the layer's group holds block i.
  std::byte* k(std::int64_t i, std::int64_t layer, std::int64_t kv_head) const {
    return at(i, layer, Part::k, kv_head);
  }
  std::byte* v(std::int64_t i, std::int64_t layer, std::int64_t kv_head) const {
    return at(i, layer, Part::v, kv_head);
  }
  /// The index keys of a layer in block i, [index_dim, kBlockTokens].
  std::byte* index(std::int64_t i, std::int64_t layer) const { return at(i, layer, Part::index, 0); }
  /// K or V in the plain group, of layers that have one. REQUIRES: it holds block i.
  std::byte* plain(std::int64_t i, std::int64_t layer, Part part, std::int64_t kv_head) const {
    const Layout& layout = this->layout();
    return block(layout.plain_group(layer), i) + layout.plain_offset(layer, part, kv_head);
  }
  /// A layer's state after length() tokens, which a pass reads; null: zeros. REQUIRES: the group has states.
  const float* state(std::int64_t layer) const { return state_at(layer, states_of(layer).now); }
  /// Where a pass writes the state after its last token. REQUIRES: reserved.
  float* next_state(std::int64_t layer) const { return state_at(layer, states_of(layer).next); }
  /// Where a pass writes the state after block i when it reaches it; null: nowhere.
  float* checkpoint(std::int64_t i, std::int64_t layer) const {
    return state_at(layer, block(layout().place(layer).group, i));
  }

  /// Blocks of a group with states, for executors that keep tables of them: the one behind length() tokens (null:
  /// zeros), and the one that a pass makes.
  const std::byte* state_block(std::size_t group) const { return states_[group].now; }
  std::byte* next_state_block(std::size_t group) const { return states_[group].next; }

  std::int64_t blocks() const { return blocks_; }                       // of each group, those let go of among them
  const std::vector<BlockName>& block_names() const { return names_; }  // blocks() of them
  /// Where block i of a group lies, for executors that keep tables of blocks; null: let go of, or no checkpoint.
  std::byte* block(std::size_t group, std::int64_t i) const {
    return tables_[group].blocks[static_cast<std::size_t>(i)];
  }

  /// The whole state as bytes with layout, length and a checksum. restore refuses (corrupt) a snapshot of another
  /// layout or a damaged one, and leaves the sequence unchanged.
  Expected<std::vector<std::byte>> snapshot() const;
  Status restore(const std::vector<std::byte>& bytes);

 private:
  /// INVARIANT: blocks_ entries, those before `first` null and no others; of states any, and `first` is 0; of plain
  /// groups block 0 may be there.
  struct Table {
    std::vector<std::byte*> blocks;
    std::int64_t first = 0;
  };

  /// Of a group with states. INVARIANT: `now` is the state behind `at` tokens, null where these are none.
  struct States {
    std::byte *now = nullptr, *next = nullptr;
    std::int64_t at = 0;
  };

  std::byte* at(std::int64_t i, std::int64_t layer, Part part, std::int64_t kv_head) const {
    const Layout& layout = this->layout();
    return block(layout.place(layer).group, i) + layout.offset(layer, part, kv_head);
  }
  const States& states_of(std::int64_t layer) const { return states_[layout().place(layer).group]; }
  float* state_at(std::int64_t layer, std::byte* block) const {
    if (block == nullptr) return nullptr;
    return reinterpret_cast<float*>(block + layout().state_offset(layer));
  }
  const Group& group(std::size_t number) const { return layout().groups()[number]; }
  /// Whether a token at this position would see what the group has let go of: the first block, of a plain group, or
  /// what its window has passed.
  bool lost_first(std::size_t group, std::int64_t position) const;
  bool lost_behind(std::size_t group, std::int64_t position) const;
  Expected<std::byte*> copy_of(std::size_t group, const std::byte* block);
  void let_go_before(std::size_t group, std::int64_t first);
  void cut(std::int64_t blocks);
  Status own_last_blocks();
  Status grow(std::int64_t blocks);

  // states.cpp
  std::byte* checkpoint_behind(std::size_t group, std::int64_t tokens) const;
  Status reserve_states();
  void reserve_checkpoint(std::size_t group, std::int64_t tokens);
  void reserve_checkpoints(std::int64_t tokens);
  void advance_states(std::int64_t tokens);
  void take_checkpoints();
  void thin_checkpoints(std::size_t group, std::int64_t most, std::int64_t coming = -1);
  void drop_next_states();
  void set_now(std::size_t group, std::byte* block);

  void enter();

  std::shared_ptr<BlockPool> pool_;
  std::uint64_t number_ = 0;
  std::vector<Table> tables_;   // by group
  std::vector<States> states_;  // by group; empty ones of those without states
  std::vector<BlockName> names_;
  std::int64_t blocks_ = 0, length_ = 0;
  std::vector<std::int64_t> wanted_checkpoints_;  // ascending
};

/// An adapter (exec/adapters.h) and its scale for a row.
struct AdapterScale {
  std::int32_t adapter = 0;  // index among the executor's adapters
  float scale = 1;
  friend bool operator==(const AdapterScale&, const AdapterScale&) = default;
};
/// Different adapters in ascending order, none of scale 0.
using AdapterMix = std::vector<AdapterScale>;

/// The tokens of one pass, from many sequences; each sequence's tokens are contiguous and in ascending position.
struct BatchRow {
  std::int32_t token = 0;
  std::int32_t sequence = 0;  // index into Batch::sequences
  std::int32_t position = 0;
  bool wants_logits = false;
  bool prompt = false;    // not generated: an executor may have products of their own for such rows
  std::int32_t type = 0;  // of the token: an encoder's second text is of type 1
  std::int32_t mix = -1;  // index into Batch::mixes; -1: the row goes through no adapter
};

/// The attributes of a row of a picture, or of text after a picture.
struct PictureRow {
  /// [model_dim], then as many columns for each layer that adds some (exec::Ops::add_picture()); host memory, taken in
  /// place of the token's embedding, unscaled. Null: the row is its token's.
  const float* embedding = nullptr;
  std::array<std::int32_t, 3> shift{};  // by axis: what its rotary place has beyond its position (exec::Rope::axes)
  std::int32_t ahead = 0;               // tokens behind its own that it sees
};
struct Batch {
  std::vector<SequenceState*> sequences;
  std::vector<BatchRow> rows;
  std::vector<PictureRow> pictures;  // of each row; empty: no sequence of the pass has pictures
  std::vector<AdapterMix> mixes;     // that rows name
  bool wants_hidden = false;         // the model's final states of the rows are read after the pass
  const float* given = nullptr;  // [rows, cols], host memory: what the program's passes are handed (exec::Ops::given())
};

}  // namespace millrace::kv
