// The block behind a model's layers that was trained to guess more tokens (multi-token prediction): from the model's
// final states at a position and the token behind it, it guesses the one that follows, and from its own states the
// next. A head in a file of its own (EAGLE-3) does the same from what three of the model's layers read at a position,
// which a product of its own makes one state of. An executor of its own over the same weights and threads, and KV of
// its own: one layer, in the same format. It sees what the passes compute; of a beginning that came from elsewhere (the
// tree of beginnings, the disk, a session) it has no states, and remembers a request from the first position that a
// pass computed. It takes the likeliest token each time, whatever the request's sampler does. Thread-safety: the thread
// that runs the passes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/drafter.h"
#include "engine/host_draft.h"
#include "engine/limits.h"
#include "exec/executor.h"
#include "kv/sequence.h"
#include "model/model.h"
#include "residency/budget.h"

namespace millrace::engine {

struct Parts;

/// How large its passes are.
exec::PassLimits mtp_limits(const Limits& limits);
/// And those that make states of what layers read.
exec::PassLimits mtp_fusion_limits();
/// What it keeps for each sequence beside its KV: states that it has not gone through yet. REQUIRES: draft_passes().
std::uint64_t mtp_waiting_bytes(const Limits& limits, const model::Model& model);

class MtpDrafter final : public Drafter {
 public:
  /// `target` outlives the drafter. host: of a model on a GPU; null if the model's weights are the CPU executor's,
  /// whose store has the drafter's, too. REQUIRES: the model has draft passes. Errors: out_of_budget.
  static Expected<std::unique_ptr<MtpDrafter>> make(Parts& target, std::unique_ptr<HostDraft> host);
  ~MtpDrafter() override;

  std::string_view name() const override { return fusion_ == nullptr ? "mtp" : "eagle3"; }
  bool is_free() const override { return false; }
  bool wants_states() const override { return true; }
  Status passed(std::span<const Computed> computed, const exec::Executor& executor) override;
  /// Requests that it has no KV for get no guesses.
  Status propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) override;
  void accepted(std::uint64_t, std::int64_t, std::int64_t) override {}
  void forget(std::uint64_t request) override;

 private:
  struct Known;
  /// A request on its way through one propose().
  struct Guessing {
    DraftAsk* ask = nullptr;
    Known* known = nullptr;
    std::int64_t rows = 0;  // in the present pass
  };

  MtpDrafter(Parts& target, residency::Budget& budget, std::unique_ptr<HostDraft> host);
  Status prepare(Parts& target, residency::Budget& budget);
  bool add_rows(Known& known, std::int64_t ahead, std::int64_t rows, bool wants_logits, kv::Batch& batch);
  Status run(kv::Batch& batch, const std::function<bool()>& stop);
  Status catch_up(Known& known);
  Status read_states(const exec::Executor& executor, std::int64_t first_row, std::int64_t rows, float* out);
  Status take(const Computed& computed, const exec::Executor& executor);
  Status pass(std::vector<Guessing>& guessing, const std::function<bool()>& stop);
  void go_on(Guessing& one, std::int64_t row, std::int64_t logit_row);

  const model::DraftPasses& passes_;
  const std::int64_t dim_, model_dim_, sequences_, most_rows_;
  const std::unique_ptr<HostDraft> host_;              // null: all is the model's
  std::unique_ptr<exec::Executor> executor_, fusion_;  // the latter null: the model's final states are read
  residency::Reservation waiting_;
  std::shared_ptr<kv::BlockPool> pool_;
  std::map<std::uint64_t, std::unique_ptr<Known>> known_;
  std::vector<float> given_;                       // of the present pass, [rows, dim]
  std::vector<float> tap_, taps_;                  // [rows, model_dim] of one layer; [rows, taps * model_dim]
  std::optional<kv::SequenceState> unremembered_;  // of rows whose taps become states: nothing is kept of them
};

}  // namespace millrace::engine
