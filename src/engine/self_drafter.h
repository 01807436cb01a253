// The model's own first layers guess: those that stay at home, then the last norm and the head. A guess is a pass of an
// executor of its own over the same weights, the same threads and the request's own KV. Rows that it writes lie behind
// the sequence's length; the pass that verifies writes them again, with the same bits, before anybody reads them. It
// takes the likeliest token each time, whatever the request's sampler does. Thread-safety: the thread that runs the
// passes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/drafter.h"
#include "engine/limits.h"
#include "exec/executor.h"
#include "exec/program.h"
#include "model/model.h"

namespace millrace::engine {

struct Parts;

/// Can a program's first `layers` layers (0: some of them) guess over the sequences of its passes? Errors: unsupported
/// (layers that keep a state: there is one behind the last token, and none behind a guess), invalid_argument (it has no
/// more layers than that).
Status check_self_draft(const exec::Program& program, std::int64_t layers);
/// How large its passes are: a row of each sequence, and its logits.
exec::PassLimits self_draft_limits(const Limits& limits);
/// RAM that they take where a GPU computes: page-locked logits, angles.
std::uint64_t self_draft_host_bytes(const Limits& limits, const model::Hyperparameters& hp);

class SelfDrafter final : public Drafter {
 public:
  /// `layers`: the target's first ones, which its plan keeps at home. `target` outlives the drafter. REQUIRES: it has
  /// as many. Errors: out_of_budget.
  static Expected<std::unique_ptr<SelfDrafter>> make(std::int64_t layers, Parts& target);

  std::string_view name() const override { return name_; }
  bool is_free() const override { return false; }
  /// Requests whose KV has no room behind them get fewer guesses; so do those with more than one token to compute.
  Status propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) override;
  void accepted(std::uint64_t, std::int64_t, std::int64_t) override {}
  void forget(std::uint64_t) override {}

 private:
  SelfDrafter(std::string name, std::unique_ptr<exec::Executor> executor, std::int64_t sequences);
  Status pass(std::vector<DraftAsk*>& asks, const std::function<bool()>& stop);
  text::TokenId likeliest(std::int64_t logit_row) const;

  const std::string name_;
  const std::unique_ptr<exec::Executor> executor_;
  const std::int64_t sequences_;  // of a pass
};

}  // namespace millrace::engine
