// The tier below the prefix cache (prefix_cache.h): whole KV blocks of prompts on the disk, so that a slow prompt is
// computed only once, even across runs of the program. Loading a block reads far fewer bytes than a streamed prefill
// moves; only slow prompts are written, so a block that is found is always loaded.
//
// The thread that runs the passes calls; a thread of this class writes. Blocks that wait to be written are retained, so
// that they are not changed: blocks in host memory are written in place, blocks of a device are copied one at a time to
// a buffer that the Budget grants. A caller that needs the room calls let_go().
// An error here never fails a request: without the cache, the prompt is computed.
#pragma once

#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/os/thread.h"
#include "kv/prefix_cache.h"
#include "kv/prompt_store.h"
#include "residency/budget.h"

namespace millrace::kv {

/// The caches of other processes that hold other layers' KV of the same prompts (exec/pipeline.h), each in its own
/// folder.
class PromptsElsewhere {
 public:
  struct Loaded {
    std::int64_t blocks = 0;  // that all have
    bool more = false;        // and may have more of those asked for, in another turn
  };

  virtual ~PromptsElsewhere() = default;
  /// Has all load the last `blocks` blocks of `state`, which holds the first tokens of `tokens`, one at least and then
  /// as long as `seconds` are not over. Errors: io_error (a process is gone).
  virtual Expected<Loaded> load(const SequenceState& state, std::span<const Token> tokens, std::int64_t blocks,
                                double seconds) = 0;
  /// Has all write what their folders lack of the whole blocks of `state` that stand for these tokens, as keep() does.
  virtual Status keep(const SequenceState& state, std::span<const Token> tokens) = 0;
};

class PromptCache {
 public:
  using Clock = std::chrono::steady_clock;
  using Tokens = std::span<const Token>;
  struct Options {
    PromptStore::Options store;
    double least_seconds = 1;  // prompts that are computed faster are not written
  };
  struct Counters {
    PromptStore::Counters store;
    std::uint64_t tokens = 0;  // that extend() gave, ever
  };

  /// `identity`: all that decides the bits of KV (root_key). `budget` outlives the cache and is asked for staging
  /// memory in front of a device. Errors: io_error; invalid_argument (the folder is not to be trusted).
  static Expected<std::unique_ptr<PromptCache>> open(const Options& options, std::string_view identity,
                                                     std::shared_ptr<BlockPool> pool, residency::Budget& budget);
  /// Writes the waiting blocks, for a few seconds at most.
  ~PromptCache();
  PromptCache(const PromptCache&) = delete;
  PromptCache& operator=(const PromptCache&) = delete;

  /// From now on prompts are found and written here and elsewhere; null: here. Every group must keep all it sees.
  void join(PromptsElsewhere* others) { others_ = others; }
  bool asks_others() const { return others_ != nullptr; }

  /// Lets `state`, which holds the first tokens of `tokens`, go on with the blocks the folder has, one at least and
  /// then until `until`, at most to `limit` positions, and only as far as the folder has what every window sees there.
  /// A block that `state` holds in part is loaded whole; where that fails the part is gone. True: there may be more,
  /// and `state` may not go on before this was asked again.
  bool extend(SequenceState& state, Tokens tokens, std::int64_t limit, Clock::time_point until);

  /// Has the whole blocks of `state` written that the folder lacks, if computing them again would take long where every
  /// `at_once` tokens or part of them take `seconds`: a pass over weights that stream costs the same for few. What the
  /// windows of `state` have passed is taken from `tree` (may be null), so that shorter beginnings are of use, too.
  void keep(const SequenceState& state, Tokens tokens, double seconds, std::int64_t at_once,
            PrefixCache* tree = nullptr);

  /// What extend() loads, for whoever has no sequence for it yet: from block `first` of the prompt on as far as the
  /// folder has them, `most` at most, one at least and then until `until`. Each has one of each group, with one user,
  /// the caller. REQUIRES: every group keeps all it sees.
  std::vector<std::vector<std::byte*>> load(Tokens tokens, std::int64_t first, std::int64_t most,
                                            Clock::time_point until);

  /// Releases written blocks, and gives the writer the next block of a device. Must be called between passes.
  void pump();
  bool busy() const;  // blocks wait to be written or to be let go of
  /// Abandons the blocks that wait to be written. False: no block was held.
  bool let_go();

  Counters counters() const;

 private:
  struct Item {
    std::shared_ptr<const std::vector<Token>> tokens;  // of the whole prompt
    std::int64_t index = 0;                            // of the block
    PromptKey key;                                     // of the file
    std::size_t group = 0;
    std::byte* block = nullptr;
    PromptStore::Time used;
    std::uint64_t prompt_bytes = 0;  // on the first block of a prompt: of all of them that are to be written
    PromptStore::Time spared;
  };
  struct Staging {
    residency::Reservation reservation;
    device::HostBuffer memory;
  };

  PromptCache(const Options& options, PromptKey root, std::shared_ptr<BlockPool> pool, residency::Budget& budget);
  PromptBlock file_of(Tokens tokens, std::int64_t index, PromptKey key, std::size_t group) const;
  std::int64_t usable(const SequenceState& state, std::span<const PromptKey> keys, std::int64_t first);
  Status load_block(const PromptBlock& file, std::byte* block, Staging& staging);
  std::vector<PromptKey> keys_of(Tokens tokens, std::int64_t blocks) const;
  Expected<std::vector<std::byte*>> load_groups(Tokens tokens, std::int64_t index, PromptKey key,
                                                const std::vector<bool>& needed, Staging& staging);
  bool load(SequenceState& state, Tokens tokens, std::int64_t index, PromptKey key, std::int64_t end, Staging& staging);
  bool keep_only_what_others_have(SequenceState& state, Tokens tokens, std::int64_t first, double seconds, bool more);
  Expected<Staging> stage() const;
  void work();
  Status write(const Item& item, const std::byte* payload);
  struct Held {
    std::size_t group = 0;
    std::byte* block = nullptr;
  };
  void release(const std::vector<Held>& blocks);
  void give_up(const Status& why) MR_REQUIRES(mutex_);

  const double least_seconds_;
  const PromptKey root_;
  const std::shared_ptr<BlockPool> pool_;
  residency::Budget& budget_;
  std::unique_ptr<PromptStore> store_;
  PromptsElsewhere* others_ = nullptr;
  std::uint64_t tokens_ = 0;
  std::uint64_t room_ = 0;  // the writer's: bytes that the present prompt may still take

  mutable Mutex mutex_;
  CondVar came_, went_;
  std::deque<Item> waiting_ MR_GUARDED_BY(mutex_);   // the first one may be on its way
  std::vector<Held> written_ MR_GUARDED_BY(mutex_);  // to be let go of
  bool writing_ MR_GUARDED_BY(mutex_) = false;       // the first of waiting_ is being written
  bool stop_ MR_GUARDED_BY(mutex_) = false, off_ MR_GUARDED_BY(mutex_) = false;
  Staging staging_;                            // of a device's block
  bool staged_ MR_GUARDED_BY(mutex_) = false;  // staging_ holds the first of waiting_
  os::Thread thread_;
};

}  // namespace millrace::kv
