#include "engine/assistant_drafter.h"

#include <algorithm>
#include <utility>

#include "engine/self_drafter.h"
#include "engine/setup.h"

namespace millrace::engine {

using text::TokenId;

std::uint64_t assistant_bytes(const Limits& limits, const model::Model& model) {
  constexpr std::int64_t kCopies = 3;  // known, on their way, and given to a pass
  return static_cast<std::uint64_t>(kCopies * limits.sequences * model.draft_passes()->dim) * sizeof(float);
}

Expected<std::unique_ptr<AssistantDrafter>> AssistantDrafter::make(Parts& target) {
  const model::DraftPasses& passes = *target.model->draft_passes();
  exec::CpuOptions options;
  options.isa = target.isa;
  options.embedding_rows_from_disk = true;
  options.aside = true;
  auto executor = exec::make_cpu_executor(*target.store, *target.pool, *target.budget, options);
  MR_RETURN_IF_ERROR(executor->prepare(passes.program, self_draft_limits(target.limits)));
  MR_ASSIGN_OR_RETURN(residency::Reservation reserved,
                      target.budget->reserve("states for guesses", assistant_bytes(target.limits, *target.model)));
  return std::unique_ptr<AssistantDrafter>(
      new AssistantDrafter(passes, std::move(executor), target.limits.sequences, std::move(reserved)));
}

AssistantDrafter::AssistantDrafter(const model::DraftPasses& passes, std::unique_ptr<exec::Executor> executor,
                                   std::int64_t sequences, residency::Reservation reserved)
    : passes_(passes), executor_(std::move(executor)), sequences_(sequences), reserved_(std::move(reserved)) {}

Status AssistantDrafter::passed(std::span<const Computed> computed, const exec::Executor& executor) {
  for (const Computed& one : computed) {
    if (one.rows <= 0) continue;
    Known& known = known_[one.request];
    known.position = one.first + one.rows - 1;
    known.states.resize(static_cast<std::size_t>(passes_.dim));
    MR_RETURN_IF_ERROR(executor.read_hidden(one.first_row + one.rows - 1, 1, known.states.data()));
  }
  return {};
}

/// One more guess for each, all at the position of the last token that has keys.
Status AssistantDrafter::pass(std::vector<Guessing>& guessing, const std::function<bool()>& stop) {
  kv::Batch batch;
  batch.wants_hidden = true;
  std::vector<float> given;
  if (std::ssize(guessing) > sequences_) guessing.resize(static_cast<std::size_t>(sequences_));
  for (const Guessing& one : guessing) {
    const DraftAsk& ask = *one.ask;
    const TokenId last = ask.guesses.empty() ? ask.tokens.back() : ask.guesses.back();
    batch.rows.push_back({last, static_cast<std::int32_t>(batch.sequences.size()),
                          static_cast<std::int32_t>(ask.sequence->length() - 1), true, false});
    batch.sequences.push_back(ask.sequence);
    given.insert(given.end(), one.states.begin(), one.states.end());
  }
  batch.given = given.data();
  MR_RETURN_IF_ERROR(executor_->run(batch, stop));
  const exec::Logits logits = executor_->last_logits();
  for (std::size_t i = 0; i < guessing.size(); ++i) {
    DraftAsk& ask = *guessing[i].ask;
    const float* const row = logits.data + static_cast<std::int64_t>(i) * logits.vocab;
    const auto guess = static_cast<TokenId>(std::max_element(row, row + logits.vocab) - row);
    const std::size_t place = ask.guesses.size();
    ask.guesses.push_back(place < ask.choices.size() ? ask.choices[place] : guess);
    MR_RETURN_IF_ERROR(executor_->read_hidden(static_cast<std::int64_t>(i), 1, guessing[i].states.data()));
  }
  std::erase_if(guessing, [](const Guessing& one) { return std::ssize(one.ask->guesses) >= one.ask->most; });
  return {};
}

Status AssistantDrafter::propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) {
  std::vector<Guessing> guessing;
  for (DraftAsk& ask : asks) {
    const auto found = known_.find(ask.request);
    const bool one_waits = ask.sequence != nullptr && ask.sequence->length() + 1 == std::ssize(ask.tokens);
    const bool knows = found != known_.end() && one_waits && found->second.position + 1 == ask.sequence->length();
    if (ask.most > 0 && knows && ask.sequence->reserve(std::ssize(ask.tokens)).ok())
      guessing.push_back({&ask, found->second.states});
  }
  while (!guessing.empty()) {
    const Status status = pass(guessing, stop);
    if (status.code() == Code::cancelled) {
      for (DraftAsk& ask : asks) ask.guesses.clear();
      return {};
    }
    MR_RETURN_IF_ERROR(status);
  }
  return {};
}

}  // namespace millrace::engine
