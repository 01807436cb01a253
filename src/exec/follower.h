// A rank of a pipeline (exec/pipeline.h) other than the first, while a model is open: it receives passes, computes its
// stage and forwards them.
//
// It keeps a sequence for each sequence of rank 0, by number. Before a pass it synchronises them with rank 0: it
// removes those that rank 0 has removed, rewinds longer ones, and treats the tokens of an earlier pass as valid once
// rank 0 has confirmed them or continues after them. So each group has as many blocks of a sequence here as on rank 0.
//
// If sequences share blocks on rank 0, or blocks of ended sequences are kept, rank 0 names the blocks of each sequence
// and those that are kept, and this rank shares and keeps the same blocks for its layers.
//
// A prompt's KV may come from the disk: before rank 0 continues from such blocks, all ranks load theirs, and hold them
// until a pass names them or stops naming them.
//
// If a pass fails, later passes are already in flight, with the same sequences and with others. Their rows of the
// failed sequences are lost and are not computed here or on later ranks; other sequences are not affected.
// Thread-safety: one thread calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "exec/executor.h"
#include "exec/stage_message.h"
#include "kv/prompt_cache.h"
#include "link/inbox.h"
#include "link/link.h"

namespace millrace::exec {

struct FollowerParts {
  link::Link& link;                     // these outlive the follower
  link::Inbox& inbox;                   //
  Executor& executor;                   // of the stage, prepared
  std::shared_ptr<kv::BlockPool> pool;  //
  residency::Budget& budget;            //
  std::function<Status()> health;       // of storage, checked after each pass
  StageShape shape;
  kv::PromptCache* prompts = nullptr;  // of the stage's layers; null: none
};

class Follower {
 public:
  explicit Follower(FollowerParts parts) : parts_(std::move(parts)) {}
  ~Follower() { let_go_but({}); }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  /// Reserves memory for messages of such passes. Errors: out_of_budget.
  Status prepare(const PassLimits& limits);
  /// Handles a message of MessageKind::pass: computes the stage and forwards the pass, or sends the result or failure
  /// to rank 0. Errors: only those of the link.
  Status take(std::span<const std::byte> message);
  /// Handles messages of MessageKind::recall and keep: loads or writes KV, as far as there is any, and forwards the
  /// message, or sends the outcome to rank 0. Errors: only those of the link.
  Status recall(std::span<const std::byte> message);
  Status keep(std::span<const std::byte> message);
  /// Rank 0 abandons this pass and those before it, some of which may still arrive.
  void cancel(std::uint64_t pass) { given_up_ = std::max(given_up_, pass); }

 private:
  /// A sequence of rank 0, with the KV of this rank's layers.
  struct Mirror {
    kv::SequenceState state;
    std::int64_t computed = 0;         // tokens computed by passes, of which the last one may have failed elsewhere
    std::vector<kv::BlockName> names;  // of its blocks on rank 0; maybe more than it has here

    /// How many leading blocks are those that rank 0 names. A copy of the last one counts as the same.
    std::int64_t agreed(std::span<const kv::BlockName> others) const;
  };

  /// Blocks, one of each group, that are held here.
  using Held = std::vector<std::byte*>;

  /// The state of a sequence after a pass failed here.
  struct Failure {
    std::uint64_t pass = 0;
    std::int64_t length = 0;  // before the pass
    Status status;
  };

  /// Rank 0's description of all sequences, and of other blocks that are kept.
  struct Named {
    struct Sequence {
      std::vector<kv::BlockName> names;  // of its blocks
      std::int64_t agreed = 0;           // of them, from the first on, are here
    };
    std::vector<Sequence> sequences;
    std::set<std::uint64_t> kept;
    bool ended = false;  // sequences have
  };

  Status compute(std::span<const float> residual);
  Named settle(const StagePass& pass);
  std::int64_t load(const StageRecall& recall, bool& more);
  Status mark_lost();
  Status align();
  Status align_one(Mirror& mirror, std::int64_t length, const Named::Sequence& named);
  Status share(Mirror& mirror, std::int64_t length, std::span<const kv::BlockName> names);
  void hold(const std::set<std::uint64_t>& wanted);
  void let_go_but(const std::set<std::uint64_t>& wanted);
  Status reserve();
  const float* take_rows(std::span<const float> residual);
  Status read_states(float* out) const;
  void remember_failure(const Status& status);
  Status answer();
  bool last() const { return parts_.link.rank() == parts_.link.size() - 1; }

  FollowerParts parts_;
  residency::Reservation reservation_;
  std::map<std::uint64_t, Mirror> mirrors_;
  std::map<std::uint64_t, Held> held_;  // what rank 0 keeps, by kv::BlockName::number
  std::uint64_t given_up_ = 0;
  std::map<std::uint64_t, Failure> failures_;  // by sequence, as long as passes behind them may come
  StagePass pass_;
  kv::Batch batch_;                                  // what is computed of it
  std::vector<std::int64_t> places_, logit_places_;  // of those rows, and of their logits, in the pass
  std::vector<std::byte> message_;                   // that goes
};

}  // namespace millrace::exec
