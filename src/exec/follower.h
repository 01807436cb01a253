// A rank behind the first one of a pipeline (exec/pipeline.h), while a model is open: takes passes, computes its stage
// and sends them on.
//
// It keeps a sequence of its own for each of rank 0's, by number. Before a pass it brings them all to what rank 0 says:
// those that rank 0 has no more are gone, longer ones are rewound, and what a pass computed counts once rank 0 has
// believed it, or goes on behind it. So every group has here as many blocks of a sequence as it would have there, and
// no more.
//
// Where sequences share blocks on rank 0, or something is kept of those that ended, rank 0 names the blocks of each
// sequence and those that are kept, and the same is shared and kept here, of all layers of this rank.
//
// A prompt's KV may come from the disk: before rank 0 goes on with such blocks, all ranks load theirs, and hold them
// until a pass names them or names them no more.
//
// Where a pass fails, those behind it are on their way already, with the same sequences and with others. What they have
// of those that failed is lost, and is not computed here or further on; the others do not notice.
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
  std::function<Status()> health;       // of storage, asked after each pass
  StageShape shape;
  kv::PromptCache* prompts = nullptr;  // of the stage's layers; null: none
};

class Follower {
 public:
  explicit Follower(FollowerParts parts) : parts_(std::move(parts)) {}
  ~Follower() { let_go_but({}); }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  /// Takes memory for messages of such passes. Errors: out_of_budget.
  Status prepare(const PassLimits& limits);
  /// A message of MessageKind::pass: computes it and sends it on, or its result or failure to rank 0. Errors: those of
  /// the link alone.
  Status take(std::span<const std::byte> message);
  /// Messages of MessageKind::recall and keep: loads or writes KV, as far as there is any, and sends them on, or what
  /// came of it to rank 0. Errors: those of the link alone.
  Status recall(std::span<const std::byte> message);
  Status keep(std::span<const std::byte> message);
  /// Rank 0 gives this pass and those before it up, which may come yet.
  void cancel(std::uint64_t pass) { given_up_ = std::max(given_up_, pass); }

 private:
  /// One of rank 0's sequences, as this rank's layers remember it.
  struct Mirror {
    kv::SequenceState state;
    std::int64_t computed = 0;         // tokens that passes have been through, the last one maybe in vain
    std::vector<kv::BlockName> names;  // of its blocks on rank 0; maybe more than it has here

    /// How many of the first blocks are those that rank 0 names. A copy of the last one is the same so far.
    std::int64_t agreed(std::span<const kv::BlockName> others) const;
  };

  /// Blocks, one of each group, that are held here.
  using Held = std::vector<std::byte*>;

  /// What became of a sequence in a pass that failed here.
  struct Failure {
    std::uint64_t pass = 0;
    std::int64_t length = 0;  // before the pass
    Status status;
  };

  /// What rank 0 says of all sequences, and which other blocks are kept.
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
