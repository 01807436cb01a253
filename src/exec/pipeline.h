// One executor for a model whose layers are distributed over several ranks (link/link.h): rank 0 computes the first
// stage and sends the residual stream to rank 1, each rank sends it to the next, and the last one returns logits to
// rank 0. The bits are those of one process, because every stage computes in the same way. As many passes as there are
// ranks are in flight: while rank 1 computes one pass, rank 0 can compute the next.
//
// Before a rank computes, it brings its sequences to the state that rank 0 describes (exec/follower.h).
// Thread-safety: one thread calls.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "exec/stage_message.h"
#include "kv/prompt_cache.h"
#include "link/link.h"

namespace millrace::exec {

struct PipelineParts {
  link::Link& link;                     // rank 0's; outlives the executor
  std::unique_ptr<Executor> own;        // of the first stage
  std::shared_ptr<kv::BlockPool> pool;  // whose sequences the passes are of
  residency::Budget& budget;            // outlives the executor
  StageShape shape;
  bool at_home = false;         // all weights are resident: no rank reads weights in a pass
  bool shares = false;          // sequences share blocks, and some are kept: all layers of all ranks keep all
  std::shared_ptr<void> claim;  // released when the other ranks know that the model is closed; may be null
};

class PipelineExecutor final : public Executor, public kv::PromptsElsewhere {
 public:
  explicit PipelineExecutor(PipelineParts parts);
  /// Tells the other ranks that the model is closed.
  ~PipelineExecutor() override;

  Status prepare(const Program& program, const PassLimits& limits) override;
  /// Prepares the first stage, and reserves memory for messages. Errors: out_of_budget.
  Status prepare_messages(const PassLimits& limits);
  /// A failure on another rank becomes an error of this pass that names the rank. Errors: also io_error if a rank is
  /// gone.
  Status run(const kv::Batch& batch, const std::function<bool()>& cancelled) override;
  /// One pass per rank, so that all can compute.
  std::int64_t passes() const override { return parts_.link.size(); }
  Status begin(const kv::Batch& batch, const std::function<bool()>& cancelled) override;
  Status finish(const std::function<bool()>& cancelled) override;
  std::int64_t prompt_piece() const override;
  std::int64_t cheap_rows() const override { return parts_.own->cheap_rows(); }
  std::int64_t prompt_chunk() const override { return parts_.own->prompt_chunk(); }
  Status takes_pictures(bool sees_ahead) const override;
  Logits last_logits() const override;
  Status read_hidden(std::int64_t first, std::int64_t rows, float* out) const override;
  /// The counters of the first stage, with the times of the other ranks.
  ExecCounters counters() const override;
  std::string describe() const override;
  std::string_view numerics() const override { return parts_.own->numerics(); }

  Expected<Loaded> load(const kv::SequenceState& state, std::span<const std::int32_t> tokens, std::int64_t blocks,
                        double seconds) override;
  Status keep(const kv::SequenceState& state, std::span<const std::int32_t> tokens) override;

 private:
  /// A pass that the other ranks are computing.
  struct UnderWay {
    std::uint64_t number = 0;
    struct Sequence {
      std::uint64_t number = 0;
      std::int64_t blocks = 0;  // when the pass began
    };
    std::vector<Sequence> sequences;
    std::vector<std::byte> answer;               // empty as long as there is none
    int from = 0;                                // whose it is
    std::chrono::steady_clock::time_point left;  // when the first stage was done
  };

  Status describe_pass(const kv::Batch& batch);
  Status describe_sequences(const kv::Batch& batch);
  bool goes_on_as_begun(std::uint64_t number, const kv::SequenceState& sequence) const;
  Expected<bool> hear();
  Status await_result(const std::function<bool()>& cancelled);
  Status cancel_elsewhere();

  PipelineParts parts_;
  residency::Reservation reservation_;
  StagePass pass_;
  std::deque<UnderWay> under_way_;  // the oldest first
  std::vector<std::byte> message_, answer_;
  std::uint64_t elsewhere_ns_ = 0, between_ns_ = 0;
  StageResult result_;              // of the pass that finished last, in answer_
  std::optional<Loaded> recalled_;  // what others loaded, once they said so
};

}  // namespace millrace::exec
