// What one sequence remembers: a table of blocks for each group of its layout (kv/layout.h), and its length; snapshot
// and restore.
//
// A block holds kBlockTokens tokens of all layers of one group. Blocks come from a BlockPool, whose memory the Budget
// grants block by block. A group with a window lets go of the blocks behind it: their places in the table stay, empty.
//
// Of a group with states there is the state behind the last token, which a pass reads, and room for the one that it
// makes: a pass that fails has changed nothing. Checkpoints stand in the table, each in the place of the block whose
// last token it lies behind; a pass writes those that reserve() made room for as it goes by. They are what a sequence
// can rewind to and what others can go on from.
// Thread-safety: one thread writes a sequence; during a pass several may read it.
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

/// Memory of blocks that do not lie in host memory: a device's. Addresses are only ever given to its executor.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  /// One block. press: others may have to give way for it. Errors: out_of_budget.
  virtual Expected<std::byte*> allocate(bool press) = 0;
  virtual void release(std::byte* block) = 0;
  virtual void trim() {}  // gives memory without blocks in use back
  virtual Status read(const std::byte* block, std::byte* out, std::size_t bytes) = 0;
  virtual Status write(std::byte* block, const std::byte* in, std::size_t bytes) = 0;
  virtual Status copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
};

/// Blocks of each group of a layout, by its number; of one size in a group. Free ones are kept for reuse and given back
/// to the budget on trim(). A block may have several users (sequences with a common beginning, the cache of
/// beginnings): it goes back when the last one lets go of it. INVARIANT: a block with more than one user is never
/// written.
class BlockPool {
 public:
  /// Blocks in host memory. `budget` outlives the pool. Reserves nothing yet.
  BlockPool(Layout layout, residency::Budget& budget);
  /// Blocks in `memory`, one for each group, which grants them itself. Not zeroed there.
  BlockPool(Layout layout, std::vector<std::unique_ptr<BlockMemory>> memory);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  const Layout& layout() const;
  std::size_t groups() const { return layout().groups().size(); }
  Expected<std::byte*> allocate(std::size_t group);  // zeroed, one user. Errors: out_of_budget
  /// The same, but nobody gives way for it except what is kept of ended conversations.
  Expected<std::byte*> allocate_spare(std::size_t group);
  void retain(std::size_t group, std::byte* block);   // one user more
  void release(std::size_t group, std::byte* block);  // one user less
  std::int64_t users(std::size_t group, const std::byte* block) const;
  void trim();  // gives free blocks' memory back
  std::int64_t blocks_in_use(std::size_t group) const;
  std::int64_t blocks_in_use() const;  // of all groups
  /// At most so many blocks of a group at a time; 0: as many as the budget grants.
  void set_bound(std::size_t group, std::int64_t blocks);
  std::int64_t bound(std::size_t group) const;
  /// Asked when there is no room for a block of a group, before the budget makes anybody else give way: lets go of one
  /// of its blocks that nobody computes with, or returns false. Empty removes it.
  using Reclaimer = std::function<bool(std::size_t group)>;
  void set_reclaimer(Reclaimer let_go);
  bool on_host() const;  // a block's address is its bytes
  /// The sequences that have their blocks here, by SequenceState::number(). Valid until one begins or ends.
  const std::map<std::uint64_t, const SequenceState*>& sequences() const;
  /// Blocks (BlockName::number) that somebody beside the sequences keeps for others: so whoever keeps the same
  /// elsewhere knows which.
  void keep(std::uint64_t number);
  void drop(std::uint64_t number);
  const std::set<std::uint64_t>& kept() const;
  /// A block's bytes, wherever it lies. Errors: io_error.
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

/// What tells the blocks of one place in a sequence, one of each group, from all others there ever are. Shared ones
/// have one number in all sequences.
struct BlockName {
  std::uint64_t number = 0;
  std::uint64_t copied = 0;  // the number of those that they began as a copy of, or 0
  friend bool operator==(const BlockName&, const BlockName&) = default;
};

class SequenceState {
 public:
  explicit SequenceState(std::shared_ptr<BlockPool> pool);
  ~SequenceState();
  SequenceState(SequenceState&&) noexcept;
  SequenceState& operator=(SequenceState&&) noexcept;

  const Layout& layout() const;
  /// No other sequence has or had it. It moves along; what was moved from has none, which is 0.
  std::uint64_t number() const { return number_; }
  std::int64_t length() const { return length_; }  // tokens whose K and V are complete

  /// Makes room for positions [0, tokens), and a copy of a shared block where positions from length() on lie in it. A
  /// group with a window takes room for the positions of the pass beside those it sees. Errors: out_of_budget,
  /// io_error; nothing changes then. internal: goes_on(length()) does not hold.
  Status reserve(std::int64_t tokens);
  /// Goes on with whole blocks of another sequence that began with the same tokens; they are shared, not copied. Where
  /// one is null, a group with a window lets go of those before it, and one with states has none of this length.
  /// number: BlockName's; 0: they are no sequence's yet.
  /// REQUIRES: length() is a multiple of kBlockTokens and nothing is reserved beyond it.
  void share(Blocks blocks, std::uint64_t number);
  /// Goes on with the first `tokens` positions of such blocks, copied. REQUIRES: as share(), and none is null; the
  /// layout has no states, which are of whole blocks.
  /// Errors: out_of_budget, io_error; nothing changes then.
  Status copy(Blocks blocks, std::uint64_t number, std::int64_t tokens);
  /// Declares the first `tokens` positions complete (after a pass that ended there). REQUIRES: reserved.
  void set_length(std::int64_t tokens);
  /// Lets go of the blocks that no token from length() on sees, and of checkpoints beyond kMostCheckpoints.
  void forget_behind_windows();
  /// Lets go of all checkpoints: somebody else keeps them.
  void forget_checkpoints();
  /// Forgets positions from `tokens` on, and as many before it as it takes to go on: to the nearest checkpoint where
  /// there are states, to none where a window has lost what a token there would see. Returns the new length, `tokens`
  /// at most; blocks no longer needed go back.
  std::int64_t rewind(std::int64_t tokens);
  /// A checkpoint is wanted behind the first `tokens` positions, a multiple of kBlockTokens, when a pass gets there:
  /// other sequences part from this one there, or a prompt ends. The last one of those wanted stays while there are
  /// others.
  void want_checkpoint(std::int64_t tokens);
  /// Whether all that a token at this position sees, of what is complete, is there.
  bool goes_on(std::int64_t position) const;
  /// Whether a token at this position can be computed: what it sees, and room for what it leaves, is there.
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
  /// A layer's state behind length() tokens, which a pass reads; null: zeros. REQUIRES: the group has states.
  const float* state(std::int64_t layer) const { return state_at(layer, states_of(layer).now); }
  /// Where a pass writes the state behind its last token. REQUIRES: reserved.
  float* next_state(std::int64_t layer) const { return state_at(layer, states_of(layer).next); }
  /// Where a pass writes the one behind block i when it gets there; null: nowhere.
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

  /// The whole state as bytes with layout, length and a checksum; restore refuses (corrupt) what is not its own or
  /// was damaged, and leaves the sequence as it was.
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

/// The tokens of one pass: of many sequences, each sequence's tokens together and in ascending position.
struct BatchRow {
  std::int32_t token = 0;
  std::int32_t sequence = 0;  // index into Batch::sequences
  std::int32_t position = 0;
  bool wants_logits = false;
  bool prompt = false;    // not generated: an executor may have products of their own for such rows
  std::int32_t type = 0;  // of the token: an encoder's second text is of type 1
};

/// What pictures make of a row: of their own, and of text behind them.
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
  bool wants_hidden = false;         // the model's final states of the rows are read after the pass
  const float* given = nullptr;  // [rows, cols], host memory: what the program's passes are handed (exec::Ops::given())
};

}  // namespace millrace::kv
