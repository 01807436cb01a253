// An assistant in a file of its own guesses (model/gemma4_assistant.h): from the model's final states at a position and
// the token behind it, over the keys and values that the model has of the request. It keeps no KV and reads no prompt:
// it starts at the position that the last pass computed last. An executor of its own over the same threads; its passes
// write nothing to the request's sequence. It takes the likeliest token each time, whatever the request's sampler does.
// Thread-safety: the thread that runs the passes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/drafter.h"
#include "engine/limits.h"
#include "exec/executor.h"
#include "model/model.h"
#include "residency/budget.h"

namespace millrace::engine {

struct Parts;

/// The states that it keeps of each sequence, and those of a pass. REQUIRES: draft_passes().
std::uint64_t assistant_bytes(const Limits& limits, const model::Model& model);

class AssistantDrafter final : public Drafter {
 public:
  /// `target` outlives the drafter. REQUIRES: its model has draft passes with reads_model, and the CPU computes it.
  /// Errors: out_of_budget.
  static Expected<std::unique_ptr<AssistantDrafter>> make(Parts& target);

  std::string_view name() const override { return "assistant"; }
  bool is_free() const override { return false; }
  bool wants_states() const override { return true; }
  Status passed(std::span<const Computed> computed, const exec::Executor& executor) override;
  /// Requests with more than one token to compute get no guesses; nor do those whose KV has no room for that token.
  Status propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) override;
  void accepted(std::uint64_t, std::int64_t, std::int64_t) override {}
  void forget(std::uint64_t request) override { known_.erase(request); }

 private:
  /// The model's states at a position of a request.
  struct Known {
    std::int64_t position = -1;
    std::vector<float> states;
  };
  /// A request on its way through one propose(): what stands in the place of the model's states for its next guess.
  struct Guessing {
    DraftAsk* ask = nullptr;
    std::vector<float> states;
  };

  AssistantDrafter(const model::DraftPasses& passes, std::unique_ptr<exec::Executor> executor, std::int64_t sequences,
                   residency::Reservation reserved);
  Status pass(std::vector<Guessing>& guessing, const std::function<bool()>& stop);

  const model::DraftPasses& passes_;
  const std::unique_ptr<exec::Executor> executor_;
  const std::int64_t sequences_;  // of a pass
  const residency::Reservation reserved_;
  std::map<std::uint64_t, Known> known_;
};

}  // namespace millrace::engine
