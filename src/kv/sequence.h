// What one sequence remembers: its KV blocks, format, length; snapshot and restore.
//
// A block holds kBlockTokens tokens of ALL layers, so that a sequence grows by one allocation. Inside a block, for each
// layer: K as [kv_heads, head_dim, kBlockTokens] (channel-major, so that SIMD lanes are keys), then V as
// [kv_heads, kBlockTokens, head_dim]. In q8_0 a head's part is its int8 values in that order, then their float16
// scales, one for 32 channels of a token: [head_dim / 32, kBlockTokens] of K, [kBlockTokens, head_dim / 32] of V.
// Blocks come from a BlockPool, whose memory the Budget grants block by block. Thread-safety: one thread writes a
// sequence; during a pass several may read it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/host_memory.h"
#include "residency/budget.h"
#include "tensor/dtype.h"

namespace millrace::kv {

constexpr std::int64_t kBlockTokens = 64;

struct KvShape {
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0;
  DType dtype = DType::f16;              // f16, f32 or, where head_dim is a multiple of 32, q8_0
  std::int64_t bytes_per_token() const;  // K and V, all layers
  std::int64_t block_bytes() const { return bytes_per_token() * kBlockTokens; }
  friend bool operator==(const KvShape&, const KvShape&) = default;
};

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
};

/// Blocks of one size; free ones are kept for reuse and given back to the budget on trim(). A block may have several
/// users (sequences with a common beginning, the cache of beginnings): it goes back when the last one lets go of it.
/// INVARIANT: a block with more than one user is never written.
class BlockPool {
 public:
  /// Blocks in host memory. `budget` outlives the pool. Reserves nothing yet.
  BlockPool(KvShape shape, residency::Budget& budget);
  /// Blocks in `memory`, which grants them itself. Not zeroed there.
  BlockPool(KvShape shape, std::unique_ptr<BlockMemory> memory);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  const KvShape& shape() const;
  Expected<std::byte*> allocate();  // zeroed, one user. Errors: out_of_budget
  void retain(std::byte* block);    // one user more
  void release(std::byte* block);   // one user less
  std::int64_t users(const std::byte* block) const;
  void trim();  // gives free blocks' memory back
  std::int64_t blocks_in_use() const;
  /// At most so many blocks at a time; 0: as many as the budget grants.
  void set_bound(std::int64_t blocks);
  std::int64_t bound() const;
  /// Asked when there is no room, before the budget makes anybody else give way: lets go of one block that nobody
  /// computes with, or returns false. Empty removes it.
  void set_reclaimer(std::function<bool()> let_go);
  bool on_host() const;  // a block's address is its bytes
  /// A block's bytes, wherever it lies. Errors: io_error.
  Status read(const std::byte* block, std::byte* out) const;
  Status write(std::byte* block, const std::byte* in);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class SequenceState {
 public:
  explicit SequenceState(std::shared_ptr<BlockPool> pool);
  ~SequenceState();
  SequenceState(SequenceState&&) noexcept;
  SequenceState& operator=(SequenceState&&) noexcept;

  const KvShape& shape() const;
  std::int64_t length() const { return length_; }  // tokens whose K and V are complete

  /// Makes room for positions [0, tokens), and a copy of a shared block where positions from length() on lie in it.
  /// Errors: out_of_budget, io_error; nothing changes then.
  Status reserve(std::int64_t tokens);
  /// Goes on with a whole block of another sequence that began with the same tokens; it is shared, not copied.
  /// REQUIRES: length() is a multiple of kBlockTokens and nothing is reserved beyond it.
  void share(std::byte* block);
  /// Goes on with the first `tokens` positions of such a block, copied. REQUIRES: as share().
  /// Errors: out_of_budget, io_error; nothing changes then.
  Status copy(const std::byte* block, std::int64_t tokens);
  /// Declares the first `tokens` positions complete (after a pass). REQUIRES: reserved.
  void set_length(std::int64_t tokens);
  /// Forgets positions from `tokens` on; blocks no longer needed go back.
  void truncate(std::int64_t tokens);

  /// K and V of (layer, kv_head) in block i: K [head_dim, kBlockTokens], V [kBlockTokens, head_dim].
  std::byte* k(std::int64_t block, std::int64_t layer, std::int64_t kv_head) const;
  std::byte* v(std::int64_t block, std::int64_t layer, std::int64_t kv_head) const;
  std::int64_t blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  /// Where block i lies, for executors that keep tables of blocks.
  std::byte* block(std::int64_t i) const { return blocks_[static_cast<std::size_t>(i)]; }

  /// The whole state as bytes with shape, length and a checksum; restore refuses (corrupt) what is not its own or
  /// was damaged, and leaves the sequence as it was.
  Expected<std::vector<std::byte>> snapshot() const;
  Status restore(const std::vector<std::byte>& bytes);

 private:
  Status own_last_block();

  std::shared_ptr<BlockPool> pool_;
  std::vector<std::byte*> blocks_;
  std::int64_t length_ = 0;
};

/// The tokens of one pass: of many sequences, each sequence's tokens together and in ascending position.
struct BatchRow {
  std::int32_t token = 0;
  std::int32_t sequence = 0;  // index into Batch::sequences
  std::int32_t position = 0;
  bool wants_logits = false;
  bool prompt = false;  // not generated: an executor may have products of their own for such rows
};
struct Batch {
  std::vector<SequenceState*> sequences;
  std::vector<BatchRow> rows;
  bool wants_hidden = false;  // the model's final states of the rows are read after the pass
};

}  // namespace millrace::kv
