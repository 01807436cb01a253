#include "engine/self_drafter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/setup.h"

namespace millrace::engine {

using text::TokenId;

Status check_self_draft(const exec::Program& program, std::int64_t layers) {
  if (program.layout.has_states())
    return error(
        Code::unsupported,
        "layers of this model keep a state, and there is none behind a guess to go on from; give --draft FILE");
  if (layers < program.layer_count() && program.layer_count() > 1) return {};
  return error(Code::invalid_argument, "the model has {} layer{}; give fewer than that", program.layer_count(),
               program.layer_count() == 1 ? "" : "s");
}

exec::PassLimits self_draft_limits(const Limits& limits) {
  exec::PassLimits pass;
  pass.max_rows = pass.max_sequences = pass.max_logit_rows = limits.sequences;
  pass.max_positions = limits.context_tokens;
  pass.kv_dtype = limits.kv_dtype;
  return pass;
}

std::uint64_t self_draft_host_bytes(const Limits& limits, const model::Hyperparameters& hp) {
  constexpr std::uint64_t kAngles = 8 << 20;
  return kAngles + static_cast<std::uint64_t>(limits.sequences * hp.vocab) * sizeof(float);
}

Expected<std::unique_ptr<SelfDrafter>> SelfDrafter::make(std::int64_t layers, Parts& target) {
  std::unique_ptr<exec::Executor> executor;
  if (target.gpu != nullptr) {
    MR_ASSIGN_OR_RETURN(executor, target.gpu->executor_aside(target));
  } else {
    exec::CpuOptions options;
    options.isa = target.isa;
    options.embedding_rows_from_disk = true;
    options.aside = true;
    executor = exec::make_cpu_executor(*target.store, *target.pool, *target.budget, options);
  }
  MR_RETURN_IF_ERROR(executor->prepare(target.model->program().first_layers(layers), self_draft_limits(target.limits)));
  if (executor->top_logits_limit() > 0) executor->bring_top_logits_only(true);
  return std::unique_ptr<SelfDrafter>(new SelfDrafter(fmt::format("self {} layer{}", layers, layers == 1 ? "" : "s"),
                                                      std::move(executor), target.limits.sequences));
}

SelfDrafter::SelfDrafter(std::string name, std::unique_ptr<exec::Executor> executor, std::int64_t sequences)
    : name_(std::move(name)), executor_(std::move(executor)), sequences_(sequences) {}

TokenId SelfDrafter::likeliest(std::int64_t logit_row) const {
  if (executor_->top_logits_limit() > 0) return executor_->last_top_logits(logit_row).ids.front();
  const exec::Logits logits = executor_->last_logits();
  const float* const row = logits.data + logit_row * logits.vocab;
  return static_cast<TokenId>(std::max_element(row, row + logits.vocab) - row);
}

/// One more guess for each: behind its tokens, or behind its last guess.
Status SelfDrafter::pass(std::vector<DraftAsk*>& asks, const std::function<bool()>& stop) {
  kv::Batch batch;
  std::erase_if(asks, [&](const DraftAsk* ask) {
    const std::int64_t length = std::ssize(ask->tokens) + std::ssize(ask->guesses);
    if (std::ssize(batch.sequences) == sequences_ || !ask->sequence->reserve(length).ok()) return true;
    const TokenId last = ask->guesses.empty() ? ask->tokens.back() : ask->guesses.back();
    batch.rows.push_back(
        {last, static_cast<std::int32_t>(batch.sequences.size()), static_cast<std::int32_t>(length - 1), true, false});
    batch.sequences.push_back(ask->sequence);
    return false;
  });
  if (asks.empty()) return {};
  MR_RETURN_IF_ERROR(executor_->run(batch, stop));
  for (std::size_t i = 0; i < asks.size(); ++i) {
    DraftAsk& ask = *asks[i];
    const TokenId guess = likeliest(static_cast<std::int64_t>(i));
    const std::size_t place = ask.guesses.size();
    ask.guesses.push_back(place < ask.choices.size() ? ask.choices[place] : guess);
  }
  std::erase_if(asks, [](const DraftAsk* ask) { return std::ssize(ask->guesses) == ask->most; });
  return {};
}

Status SelfDrafter::propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) {
  std::vector<DraftAsk*> guessing;
  for (DraftAsk& ask : asks) {
    const bool one_waits = ask.sequence != nullptr && ask.sequence->length() + 1 == std::ssize(ask.tokens);
    if (one_waits && ask.most > 0) guessing.push_back(&ask);
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
