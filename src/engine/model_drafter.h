// A small model that guesses for a large one, with weights, activations and KV of its own: in the GPU's memory, under
// the large model's budgets, or on the CPU, beside whoever computes that, in RAM taken off its budget. Its vocabulary
// is the large one's. It takes the likeliest token each time, whatever the request's sampler does. Thread-safety: the
// thread that runs the passes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "engine/drafter.h"
#include "engine/engine.h"

namespace millrace::engine {

struct Parts;

/// What a draft model takes, found without reading a weight.
struct DraftModelPlan {
  std::int64_t vocab = 0;  // tokens of both models
  EngineOptions wanted;    // of passes of its own, as many as may be
  // On the CPU: those of them that there is room for, RAM when all KV is there, and what a pass is made of.
  EngineOptions options;
  std::uint64_t bytes = 0;
  residency::Plan cpu_plan;
  Status on_cpu;  // why not there: out_of_budget (more than half of the RAM), unsupported
};
/// For the engine that these options make: REQUIRES options.speculate.draft_model is not empty.
/// Errors: invalid_argument (another vocabulary); those of opening a model.
Expected<DraftModelPlan> plan_draft_model(const EngineOptions& options);

/// Whether two files mean the same by each token's id, as guesses do; how many there are. Errors: invalid_argument,
/// those of opening.
Expected<std::int64_t> check_vocabulary(const std::string& path, const std::string& draft_path);
constexpr std::string_view kVocabularyKey = "tokenizer.ggml.tokens";

constexpr std::uint64_t kDraftMargin = 256 * kKiB;  // threads, tables: what a drafter's own budget does not count

/// How guesses are made under these options.
DraftHabits draft_habits(const SpeculateOptions& speculate);

class ModelDrafter final : public Drafter {
 public:
  /// Reads the weights, to where target's seat for it is (Parts::draft): REQUIRES one. On a GPU, target's budgets
  /// outlive it. Errors: as Engine::create.
  static Expected<std::unique_ptr<ModelDrafter>> load(const DraftModelPlan& plan, Parts& target);
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
    bool done = false;      // it has its guesses, or there are none
  };

  ModelDrafter(std::unique_ptr<Parts> parts, std::int64_t vocab);
  bool begin(DraftAsk& ask, Guessing& guessing);
  Status pass(std::vector<Guessing>& guessing, const std::function<bool()>& stop);
  text::TokenId likeliest(std::int64_t logit_row) const;
  void choose(Guessing& one, std::int64_t logit_row);

  std::unique_ptr<Parts> parts_;
  std::string name_;
  const std::int64_t vocab_;
  std::map<std::uint64_t, std::unique_ptr<Known>> known_;
};

}  // namespace millrace::engine
