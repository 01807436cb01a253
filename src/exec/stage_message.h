// What stages on several ranks tell each other of a pass: what it is, the residual stream on its way through the
// layers, and what came of it. Thread-safety: values.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"
#include "exec/program.h"
#include "kv/sequence.h"
#include "link/message.h"

namespace millrace::exec {

/// Sizes of what crosses the borders.
struct StageShape {
  std::int64_t model_dim = 0, vocab = 0;
};

/// From each rank to the next. It says how all sequences stand, not how they have changed, so that a rank that missed a
/// pass (one before it failed) needs no word about it.
struct StagePass {
  struct Sequence {
    std::uint64_t number = 0;  // kv::SequenceState::number() on rank 0
    std::int64_t length = 0;   // tokens whose K and V are complete before the pass, or one of the following
    std::uint64_t runs = 0;    // of `runs`, which name its blocks on rank 0; 0: nothing is shared
  };
  /// Blocks in a row, of names (kv::BlockName) whose numbers follow each other; a copy stands alone.
  struct Run {
    kv::BlockName first;
    std::uint64_t count = 0;
  };

  /// An earlier pass is under way with it, and none of this one's rows are.
  static constexpr std::int64_t kAsItIs = -1;
  /// A rank before this one failed in an earlier pass with it: nobody waits for its rows any more. They are not
  /// computed, and zeros stand in their place.
  static constexpr std::int64_t kLost = -2;

  std::uint64_t number = 0;  // ascending
  double seconds = 0;        // that ranks behind the first one have computed it so far
  bool wants_hidden = false;
  std::vector<Sequence> sequences;  // all that remember something, and those of the pass
  std::vector<Run> runs;            // of each sequence in their order, then of what is kept beside them
  std::vector<kv::BatchRow> rows;   // BatchRow::sequence is an index into `sequences`

  bool is_lost(const kv::BatchRow& row) const {
    return sequences[static_cast<std::size_t>(row.sequence)].length == kLost;
  }

  /// Behind the runs there are: these blocks, of a sequence or (in ascending order) of those kept.
  void add_runs(std::span<const kv::BlockName> names);
  void add_runs(const std::set<std::uint64_t>& kept);
  /// The blocks that runs [first, last) name.
  std::vector<kv::BlockName> names(std::size_t first, std::size_t last) const;

  /// Sequences and runs alone, and back. Errors: corrupt.
  void write_standing(link::Writer& writer) const;
  Status read_standing(link::Reader& reader);

  /// Puts it into a message; returns where the residual stream of its rows, [rows, model_dim], belongs there.
  float* write(std::int64_t model_dim, std::vector<std::byte>& message) const;
  /// `residual`: as above, in the message. Errors: corrupt; there are no rows then.
  Status read(std::span<const std::byte> message, std::int64_t model_dim, std::span<const float>& residual);
};

/// From each rank to the next: blocks of a prompt that a sequence went on with on rank 0, from the disk there. Each
/// rank loads from its own the KV of its layers.
struct StageRecall {
  StagePass standing;          // without rows: what others have and keep, so that there is room here, too
  std::uint64_t sequence = 0;  // whose first tokens `tokens` are
  std::int64_t first = 0;      // block
  std::int64_t blocks = 0;     // from it on, that all ranks so far have
  bool more = false;           // time was over for a rank that may have more of them
  double seconds = 0;          // that a rank may take, for more than one
  std::span<const std::int32_t> tokens;

  void write(std::vector<std::byte>& message) const;
  /// `tokens` lie in the message. Errors: corrupt.
  Status read(std::span<const std::byte> message);
};
/// What came of it, from the last rank to rank 0.
void write_recalled(const StageRecall& recall, std::vector<std::byte>& message);
/// Of those two, `blocks` and `more`. Errors: corrupt.
Status read_recalled(std::span<const std::byte> message, StageRecall& recall);

/// From each rank to the next: the whole blocks of a sequence that stand for these tokens, its first ones, are to be
/// written to the disk.
struct StageKeep {
  std::uint64_t sequence = 0;
  std::span<const std::int32_t> tokens;

  void write(std::vector<std::byte>& message) const;
  /// `tokens` lie in the message. Errors: corrupt.
  Status read(std::span<const std::byte> message);
};

/// From the last rank, or from one that failed, to rank 0.
struct StageResult {
  std::uint64_t pass = 0;
  double seconds = 0;  // that ranks behind the first one computed
  Status status;
  std::int64_t vocab = 0;
  std::span<const float> logits;  // [rows that want them, vocab]
  std::span<const float> hidden;  // [rows, model_dim] where the pass wants final states

  /// Errors: corrupt.
  Status read(std::span<const std::byte> message);
};
/// A failure, which has neither logits nor states.
void write_failure(std::uint64_t pass, const Status& status, std::vector<std::byte>& message);
/// What came of a pass: room for so many values of logits and of final states.
struct ResultRoom {
  float *logits = nullptr, *hidden = nullptr;
};
ResultRoom write_result(const StagePass& pass, std::int64_t vocab, std::size_t logits, std::size_t hidden,
                        std::vector<std::byte>& message);
/// Gives up the passes up to this one.
void write_cancel(std::uint64_t pass, std::vector<std::byte>& message);

/// Bytes of the largest messages that a rank holds at once, one of each pass under way that came and one that goes:
/// what it reserves.
std::uint64_t stage_message_bytes(const StageShape& shape, const PassLimits& limits, int passes);

}  // namespace millrace::exec
