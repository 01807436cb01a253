#include "engine/model_drafter.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/setup.h"
#include "modelfile/gguf.h"

namespace millrace::engine {

using text::TokenId;

namespace {

constexpr std::int64_t kPromptRows = 128;   // of a pass that reads a prompt
constexpr std::int64_t kManySequences = 8;  // where the planner is to say how many there are
constexpr std::int64_t kTokensOfEach = 1024;
// Tokens that came since the last guesses; more are read as a prompt is.
constexpr std::int64_t kFewTokens = kMostDrafts + 1;

}  // namespace

Expected<std::int64_t> check_vocabulary(const std::string& path, const std::string& draft_path) {
  const auto tokens_of = [&](const std::string& file) -> Expected<std::vector<std::string>> {
    MR_ASSIGN_OR_RETURN(const modelfile::Model model, modelfile::Model::open(file));
    return model.get_strings(kVocabularyKey);
  };
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> tokens, tokens_of(path));
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> drafts, tokens_of(draft_path));
  if (tokens.size() != drafts.size())
    return error(Code::invalid_argument,
                 "its vocabulary has {} tokens, the model's has {}; use a draft model with the same vocabulary",
                 drafts.size(), tokens.size());
  const auto other = std::mismatch(tokens.begin(), tokens.end(), drafts.begin()).first;
  if (other == tokens.end()) return std::ssize(tokens);
  return error(Code::invalid_argument,
               "its vocabulary differs from the model's at token {}; use a draft model with the same vocabulary",
               other - tokens.begin());
}

namespace {

/// The options and the bytes of passes on the CPU. Errors: out_of_budget, those of a plan.
Status plan_on_cpu(DraftModelPlan& plan) {
  EngineOptions& draft = plan.options;
  const std::uint64_t ram = draft.memory.ram_bytes;
  // Twice: passes of few rows are enough for a small one, and the planner bounds them by the memory there is.
  for (int i = 0; i < 2; ++i) {
    MR_ASSIGN_OR_RETURN(Parts parts, assemble_plan(draft));
    const residency::PlanOptions& planned = parts.plan_options;
    const std::uint64_t weights = std::max(parts.plan.weight_memory_bytes(), parts.model->units().total_bytes());
    draft.memory.ram_bytes = planned.fixed_bytes + planned.most_kv_bytes + weights;
    draft.demand.context_tokens = parts.limits.context_tokens;
    draft.demand.batch_tokens = parts.limits.batch_tokens;
    draft.memory.tile_bytes = parts.limits.tile_bytes;
    plan.cpu_plan = std::move(parts.plan);
  }
  plan.bytes = draft.memory.ram_bytes + kDraftMargin;
  if (plan.bytes <= ram / 2) return {};
  return error(Code::out_of_budget, "it takes {} of RAM with its KV, more than half of {}", format_bytes(plan.bytes),
               format_bytes(ram));
}

}  // namespace

/// Of a request: KV, and the tokens that it is of, guesses among them.
struct ModelDrafter::Known {
  explicit Known(std::shared_ptr<kv::BlockPool> pool) : state(std::move(pool)) {}
  kv::SequenceState state;
  std::vector<TokenId> tokens;
};

Expected<DraftModelPlan> plan_draft_model(const EngineOptions& options) {
  DraftModelPlan plan;
  MR_ASSIGN_OR_RETURN(plan.vocab, check_vocabulary(options.model.path, options.speculate.draft_model));
  EngineOptions& draft = plan.wanted;
  draft.model.path = options.speculate.draft_model;
  draft.device.choice = DeviceChoice::cpu;
  draft.device.gpu = options.device.gpu;  // where the large one is on a GPU
  draft.memory.exact_budget = true;       // the program is the engine's
  draft.memory.ram_bytes = ram_of(options);
  draft.demand.context_tokens = options.demand.context_tokens > 0 ? options.demand.context_tokens : kAutomaticContext;
  {
    modelfile::OpenOptions no_words;
    no_words.skip_vocabulary = true;
    MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(draft.model.path, no_words));
    MR_ASSIGN_OR_RETURN(const auto model, model::load(file, {}));
    draft.demand.context_tokens = std::min(draft.demand.context_tokens, model->hyperparameters().context_length);
  }
  draft.demand.max_sequences = options.demand.max_sequences > 0 ? options.demand.max_sequences : kManySequences;
  // A request that there is no room for is answered without guesses.
  draft.demand.kv_tokens = std::max(draft.demand.context_tokens, draft.demand.max_sequences * kTokensOfEach);
  draft.demand.batch_tokens = std::max(kPromptRows, draft.demand.max_sequences);
  draft.device.threads = options.device.threads;
  draft.device.isa = options.device.isa;
  draft.device.best_isa = options.device.best_isa;
  draft.storage.backend = options.storage.backend;
  draft.kv.dtype = info(options.kv.dtype).block_elements > 1 ? DType::f16 : options.kv.dtype;
  plan.options = draft;
  plan.on_cpu = plan_on_cpu(plan);
  return plan;
}

DraftHabits draft_habits(const SpeculateOptions& speculate) {
  return {speculate.acceptance, speculate.mode == SpeculateOptions::Mode::fixed ? speculate.drafts : 0};
}

Expected<std::unique_ptr<ModelDrafter>> ModelDrafter::load(const DraftModelPlan& plan, Parts& target) {
  auto parts = target.draft.place == DraftPlace::gpu ? assemble_gpu_draft(plan, target) : assemble(plan.options);
  if (!parts.ok()) return parts.status();
  return std::unique_ptr<ModelDrafter>(new ModelDrafter(std::make_unique<Parts>(std::move(*parts)), plan.vocab));
}

ModelDrafter::ModelDrafter(std::unique_ptr<Parts> parts, std::int64_t vocab)
    : parts_(std::move(parts)), name_(parts_->model->hyperparameters().name), vocab_(vocab) {
  if (name_.empty()) name_ = "model";
  parts_->tokenizer.reset();  // the large model has one
  if (parts_->executor->top_logits_limit() > 0) parts_->executor->bring_top_logits_only(true);
}

ModelDrafter::~ModelDrafter() { known_.clear(); }

void ModelDrafter::forget(std::uint64_t request) {
  if (known_.erase(request) > 0) parts_->kv_pool->trim();
}

/// Goes back to what the request's tokens and those known here have in common. False: there are no guesses for it.
bool ModelDrafter::begin(DraftAsk& ask, Guessing& guessing) {
  const auto tokens = std::ssize(ask.tokens);
  if (ask.most <= 0 || tokens + ask.most > parts_->limits.context_tokens) return false;
  auto& known = known_[ask.request];
  if (known == nullptr) known = std::make_unique<Known>(parts_->kv_pool);
  // The last one is computed anew for its logits.
  const auto agreed =
      std::mismatch(known->tokens.begin(), known->tokens.end(), ask.tokens.begin(), ask.tokens.end() - 1).first -
      known->tokens.begin();
  known->tokens.resize(static_cast<std::size_t>(known->state.rewind(agreed)));
  ask.read_prompt = tokens - known->state.length() > kFewTokens;
  guessing = {&ask, known.get()};
  return true;
}

/// -1: none of the vocabulary is among the likeliest.
TokenId ModelDrafter::likeliest(std::int64_t logit_row) const {
  if (parts_->executor->top_logits_limit() > 0) {
    const exec::TopLogits top = parts_->executor->last_top_logits(logit_row);
    const auto found = std::find_if(top.ids.begin(), top.ids.end(), [&](TokenId id) { return id >= 0 && id < vocab_; });
    return found != top.ids.end() ? *found : -1;
  }
  const exec::Logits logits = parts_->executor->last_logits();
  const float* const row = logits.data + logit_row * logits.vocab;
  return static_cast<TokenId>(std::max_element(row, row + vocab_) - row);
}

/// The pass's guess for a request; or the one that is to stand in its place.
void ModelDrafter::choose(Guessing& one, std::int64_t logit_row) {
  std::vector<TokenId>& guesses = one.ask->guesses;
  TokenId guess = likeliest(logit_row);
  if (guesses.size() < one.ask->choices.size()) guess = one.ask->choices[guesses.size()];
  if (guess >= 0) guesses.push_back(guess);
  one.done = guess < 0 || std::ssize(guesses) == one.ask->most;
}

/// One pass for all that are not done: the tokens that are missing, as far as there is room, or the last guess.
Status ModelDrafter::pass(std::vector<Guessing>& guessing, const std::function<bool()>& stop) {
  kv::Batch batch;
  auto others = std::ssize(guessing);
  std::int64_t logit_rows = 0;
  for (Guessing& one : guessing) {
    --others;
    kv::SequenceState& state = one.known->state;
    const auto tokens = std::ssize(one.ask->tokens);
    const std::int64_t first = state.length(), end = tokens + std::ssize(one.ask->guesses);
    const std::int64_t room = parts_->limits.batch_tokens - std::ssize(batch.rows) - others;
    one.rows = std::min(end - first, room);
    if (std::ssize(batch.sequences) == parts_->limits.sequences || logit_rows == parts_->limits.logit_rows ||
        !state.reserve(first + one.rows).ok())
      one.rows = 0;
    one.whole = one.rows > 0 && first + one.rows == end;
    for (std::int64_t position = first; position < first + one.rows; ++position) {
      const TokenId token = position < tokens ? one.ask->tokens[static_cast<std::size_t>(position)]
                                              : one.ask->guesses[static_cast<std::size_t>(position - tokens)];
      const bool last = position + 1 == end;
      batch.rows.push_back({token, static_cast<std::int32_t>(batch.sequences.size()),
                            static_cast<std::int32_t>(position), last, one.ask->read_prompt && position < tokens});
      one.known->tokens.push_back(token);
    }
    if (one.rows > 0) batch.sequences.push_back(&state);
    logit_rows += one.whole ? 1 : 0;
  }
  std::erase_if(guessing, [](const Guessing& one) { return one.rows == 0; });
  if (guessing.empty()) return {};
  MR_RETURN_IF_ERROR(parts_->executor->run(batch, stop));
  MR_RETURN_IF_ERROR(parts_->backend->health());
  std::int64_t logit_row = 0;
  for (Guessing& one : guessing) {
    kv::SequenceState& state = one.known->state;
    state.set_length(state.length() + one.rows);
    // Behind guesses it may have to go back, to the end of these tokens at most.
    if (state.length() <= std::ssize(one.ask->tokens)) state.forget_behind_windows();
    if (one.whole) choose(one, logit_row++);
  }
  std::erase_if(guessing, [](const Guessing& one) { return one.done; });
  return {};
}

Status ModelDrafter::propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) {
  std::vector<Guessing> guessing;
  for (DraftAsk& ask : asks)
    if (Guessing one; begin(ask, one)) guessing.push_back(one);
  while (!guessing.empty()) {
    Status status = pass(guessing, stop);
    if (status.code() == Code::cancelled) {
      known_.clear();
      for (DraftAsk& ask : asks) ask.guesses.clear();
      return {};
    }
    MR_RETURN_IF_ERROR(status);
  }
  return {};
}

}  // namespace millrace::engine
