// A small model that guesses for a large one: on the CPU, beside whoever computes that, with weights, activations and
// KV in RAM. Its vocabulary is the large one's. It takes the likeliest token each time, whatever the request's sampler
// does. Thread-safety: the thread that runs the passes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/drafter.h"
#include "engine/engine.h"

namespace millrace::engine {

struct Parts;

/// What a draft model takes, found without reading a weight.
struct DraftModelPlan {
  EngineOptions options;    // of passes of its own
  std::uint64_t bytes = 0;  // of RAM, when all its KV is there
};
/// For the engine that these options make: REQUIRES options.speculate.draft_model is not empty.
/// Errors: invalid_argument (another vocabulary); out_of_budget (more than half of the RAM); those of opening a model.
Expected<DraftModelPlan> plan_draft_model(const EngineOptions& options);

class ModelDrafter final : public Drafter {
 public:
  /// Reads the weights. Errors: as Engine::create.
  static Expected<std::unique_ptr<ModelDrafter>> load(const DraftModelPlan& plan);
  ~ModelDrafter() override;

  std::string_view name() const override { return name_; }
  bool is_free() const override { return false; }
  /// Requests that it has no KV for, or that are longer than its context, get no guesses.
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
    bool whole = false;     // they are all that is missing: the pass gives a guess
  };

  explicit ModelDrafter(std::unique_ptr<Parts> parts);
  bool begin(DraftAsk& ask, Guessing& guessing);
  Status pass(std::vector<Guessing>& guessing, const std::function<bool()>& stop);
  text::TokenId likeliest(std::int64_t logit_row) const;

  std::unique_ptr<Parts> parts_;
  std::string name_;
  const std::int64_t vocab_;
  std::map<std::uint64_t, std::unique_ptr<Known>> known_;
};

}  // namespace millrace::engine
