#include "engine/engine.h"

#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/adapter_mix.h"
#include "engine/cluster.h"
#include "engine/machine_rates.h"
#include "engine/model_drafter.h"
#include "engine/rates_keeper.h"
#include "engine/scheduler.h"
#include "engine/setup.h"
#include "engine/usage_keeper.h"
#include "engine/within.h"

namespace millrace::engine {
namespace {

class SessionImpl final : public Session {
 public:
  explicit SessionImpl(std::shared_ptr<kv::BlockPool> pool)
      : pool_(std::move(pool)), conversation_(std::make_shared<Conversation>(pool_)) {}

  const std::vector<text::TokenId>& tokens() const override { return conversation_->tokens; }
  /// A request that still runs keeps the old conversation to its end.
  void clear() override { conversation_ = std::make_shared<Conversation>(pool_); }
  const std::shared_ptr<Conversation>& conversation() const { return conversation_; }

 private:
  std::shared_ptr<kv::BlockPool> pool_;
  std::shared_ptr<Conversation> conversation_;
};

class EngineImpl final : public Engine {
 public:
  EngineImpl(Parts parts, const EngineOptions& options)
      : parts_(std::move(parts)), scheduler_(parts_, options.speculate), rates_(RatesKeeper::open(options, parts_)) {}
  ~EngineImpl() override {
    if (rates_ != nullptr) rates_->save();
    if (parts_.usage != nullptr) parts_.usage->save([this] { return expert_usage(); });
  }

  Expected<Id> submit(Request request) override {
    return scheduler_.submit(std::move(request), std::make_shared<Conversation>(parts_.kv_pool));
  }
  Expected<Id> submit(Request request, Session& session) override {
    return scheduler_.submit(std::move(request), static_cast<SessionImpl&>(session).conversation());
  }
  bool step() override {
    if (parts_.usage != nullptr) parts_.usage->save_in_time([this] { return expert_usage(); });
    const bool more = scheduler_.step();
    if (rates_ != nullptr) rates_->stepped();
    return more;
  }
  void cancel(Id id) override { scheduler_.cancel(id); }
  void abandon(Id id) override { scheduler_.abandon(id); }
  bool finished(Id id) const override { return scheduler_.finished(id); }
  Result take(Id id) override {
    Result result = scheduler_.take(id);
    if (parts_.prompts != nullptr) parts_.prompts->pump();
    parts_.kv_pool->trim();  // what an ended conversation leaves goes back to the weights
    return result;
  }
  std::unique_ptr<Session> new_session() override { return std::make_unique<SessionImpl>(parts_.kv_pool); }
  void set_stop_flag(const std::atomic<bool>* flag) override { scheduler_.set_stop_flag(flag); }

  const text::Tokenizer& tokenizer() const override { return *parts_.tokenizer; }
  std::shared_ptr<const text::Tokenizer> shared_tokenizer() const override { return parts_.tokenizer; }
  const text::ChatTemplate* chat_template() const override { return parts_.chat_template.get(); }
  Status chat_template_status() const override { return parts_.chat_template_status; }
  PictureEncoder* pictures() const override { return parts_.pictures.get(); }
  const Expected<std::optional<model::RankHead>>& rank_head() const override { return parts_.rank_head; }
  const model::Model& model() const override { return *parts_.model; }
  const residency::Plan& plan() const override { return parts_.plan; }
  const residency::PlanOptions& plan_options() const override { return parts_.plan_options; }
  residency::SavedPlan saved_plan() const override { return engine::saved_plan(parts_); }
  const residency::Rates& rates() const override { return parts_.rates; }
  const DraftSeat& draft_seat() const override { return parts_.draft; }
  void move_routing_on() override {
    if (parts_.routing != nullptr) parts_.routing->move_on();
  }
  const residency::Budget& budget() const override { return *parts_.budget; }
  const residency::WeightStore& store() const override { return *parts_.store; }
  residency::StoreCounters store_counters() const override {
    if (parts_.store != nullptr) return parts_.store->counters();
    residency::StoreCounters counters;
    counters.passes = parts_.executor->counters().passes;
    counters.bytes_used = parts_.executor->counters().weight_bytes;
    counters.host_bytes = parts_.executor->counters().host_bytes;
    counters.host_ns = parts_.executor->counters().host_ns;
    parts_.gpu->add_to(counters);
    return counters;
  }
  const residency::Budget* vram_budget() const override { return parts_.vram.get(); }
  const storage::Backend& storage() const override {
    return parts_.straight != nullptr ? *parts_.straight : *parts_.backend;
  }
  const exec::Executor& executor() const override { return *parts_.executor; }
  LoadCounters load() const override { return scheduler_.load(); }
  bool saving() const override { return parts_.prompts != nullptr && parts_.prompts->busy(); }
  void drop_shared() override {
    if (parts_.prompts != nullptr) parts_.prompts->let_go();
    if (parts_.prefixes != nullptr) parts_.prefixes->clear();
    parts_.kv_pool->trim();
  }
  std::int64_t context_tokens() const override { return parts_.limits.context_tokens; }
  const std::vector<AdapterState>& adapters() const override { return parts_.adapter_states; }
  Status set_adapter_scales(const kv::AdapterMix& scales) override {
    MR_ASSIGN_OR_RETURN(const kv::AdapterMix mix, resolve_mix(scales, parts_.adapter_states));
    for (AdapterState& state : parts_.adapter_states) state.scale = 0;
    for (const kv::AdapterScale& one : mix)
      parts_.adapter_states[static_cast<std::size_t>(one.adapter)].scale = one.scale;
    return {};
  }

 private:
  residency::ExpertUsage expert_usage() const {
    return parts_.store != nullptr ? parts_.store->expert_usage() : parts_.gpu->expert_usage();
  }

  Parts parts_;
  Scheduler scheduler_;
  std::unique_ptr<RatesKeeper> rates_;  // null: nothing is learned of rates
};

/// What a draft model needs. Nothing: there is to be none, or the log says why there is none.
std::optional<DraftModelPlan> plan_draft(const EngineOptions& options) {
  const SpeculateOptions& speculate = options.speculate;
  if (speculate.draft_model.empty() || speculate.within != Within::none ||
      speculate.mode == SpeculateOptions::Mode::off)
    return std::nullopt;
  Expected<DraftModelPlan> draft = plan_draft_model(options);
  if (!draft.ok()) {
    log::warn("{} does not guess: {}", options.speculate.draft_model, draft.status().message());
    return std::nullopt;
  }
  return std::move(*draft);
}

/// It guesses first, and others where it fails or has no seat.
void add_draft_model(const DraftModelPlan& plan, Parts& parts, SpeculateOptions& speculate) {
  DraftSeat& seat = parts.draft;
  if (seat.place == DraftPlace::none) return log::warn("{} does not guess: {}", plan.wanted.model.path, seat.words);
  auto loaded = ModelDrafter::load(plan, parts);
  if (!loaded.ok()) {
    seat = {DraftPlace::none, 0, 0, loaded.status().message(), seat.what};
    return log::warn("{} does not guess: {}", plan.wanted.model.path, seat.words);
  }
  log::info("drafts: {} guesses, {}", (*loaded)->name(), seat.words);
  speculate.drafters.insert(speculate.drafters.begin(), std::move(*loaded));
}

Status open_tower(const EngineOptions& options, Parts& parts) {
  const bool sees_ahead = parts.model->hyperparameters().pictures_see_ahead;
  MR_RETURN_IF_ERROR(parts.executor->takes_pictures(sees_ahead));
  if (sees_ahead && parts.kv_pool->layout().has_plain_groups())
    return error(Code::unsupported,
                 "--kv {} is for causal attention, and rows of this model's pictures see each other; use --kv f16",
                 kv_name(options.kv.dtype));
  auto opened = PictureEncoder::open(options, parts.model->hyperparameters(), *parts.budget, parts.tower.get());
  if (!opened.ok()) return opened.status().with_context(options.model.mmproj);
  parts.pictures = std::move(*opened);
  return {};
}

/// The vision tower, where there is to be one.
Status open_pictures(const EngineOptions& options, Parts& parts) {
  if (options.model.mmproj.empty()) return {};
  Status opened = open_tower(options, parts);
  if (opened.code() != Code::unsupported || !options.model.mmproj_found) return opened;
  log::warn("{} sees no pictures: {}", options.model.path, opened.message());
  return {};
}

/// Likewise, of what is part of the model.
void add_within(const EngineOptions& options, Parts& parts, SpeculateOptions& speculate) {
  DraftSeat& seat = parts.draft;
  if (seat.place != DraftPlace::none) {
    auto drafter = make_within(options, parts);
    if (drafter.ok()) {
      log::info("drafts: {} guesses, {}", (*drafter)->name(), seat.words);
      return void(speculate.drafters.insert(speculate.drafters.begin(), std::move(*drafter)));
    }
    seat = {DraftPlace::none, 0, 0, drafter.status().message(), seat.what};
  }
  log::warn("{} is left out: {}", seat.what, seat.words);
}

/// Where control vectors have been tried. Errors: unsupported.
Status check_control_device(const EngineOptions& options) {
  if (options.model.control.empty()) return {};
  if (options.part.cluster != nullptr || options.part.ranks > 1 || !options.part.stage.whole())
    return error(Code::unsupported, "control vectors are for one process, not for several; leave one of both out");
  if (!options.device.gpus_beside.empty())
    return error(Code::unsupported, "control vectors are for one GPU, not for several; name one, or use --device cpu");
  return {};
}

}  // namespace

Expected<std::unique_ptr<Engine>> Engine::create(const EngineOptions& asked) {
  const EngineOptions options = with_head(with_kept_rates(asked));
  if (!options.model.adapters.empty()) MR_RETURN_IF_ERROR(check_adapter_device(options));
  MR_RETURN_IF_ERROR(check_control_device(options));
  if (options.part.cluster != nullptr) {
    MR_ASSIGN_OR_RETURN(Parts parts, assemble_cluster(options));
    MR_RETURN_IF_ERROR(open_pictures(options, parts));
    return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(std::move(parts), options));
  }
  EngineOptions made = options;
  std::optional<DraftModelPlan> draft = plan_draft(made);
  Expected<Parts> parts = assemble(made, draft ? &*draft : nullptr);
  if (draft && parts.status().code() == Code::out_of_budget) {
    log::warn("{} does not guess: with its {} beside it the model does not fit: {}", options.speculate.draft_model,
              format_bytes(draft->bytes), parts.status().message());
    draft.reset();
    parts = assemble(made);
  }
  if (drafts_within(made) && parts.status().code() == Code::out_of_budget) {
    log::warn("{} is left out: with it the model does not fit: {}", name_of(made.speculate.within),
              parts.status().message());
    made.speculate.within = Within::none;
    parts = assemble(made);
  }
  if (!parts.ok()) return parts.status();
  MR_RETURN_IF_ERROR(open_pictures(made, *parts));
  if (drafts_within(made)) add_within(made, *parts, made.speculate);
  if (draft) add_draft_model(*draft, *parts, made.speculate);
  return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(std::move(*parts), made));
}

Planned planned_from(Parts parts) {
  residency::SavedPlan saved = saved_plan(parts);
  Planned planned{std::move(parts.plan), parts.plan_options, parts.limits.context_tokens, parts.limits.batch_tokens,
                  std::move(saved)};
  planned.draft = parts.draft;
  for (const residency::Unit& block : parts.model->draft_blocks()) {
    ++planned.draft_blocks;
    planned.draft_block_bytes += block.bytes();
  }
  return planned;
}

Expected<Planned> plan_only(const EngineOptions& asked) {
  const EngineOptions options = with_head(with_kept_rates(asked));
  if (!options.model.adapters.empty()) MR_RETURN_IF_ERROR(check_adapter_device(options));
  MR_RETURN_IF_ERROR(check_control_device(options));
  const std::optional<DraftModelPlan> draft = plan_draft(options);
  MR_ASSIGN_OR_RETURN(Parts parts, assemble_plan(options, draft ? &*draft : nullptr));
  return planned_from(std::move(parts));
}

Result Engine::run(Request request, Session* session, const std::atomic<bool>* stop_flag) {
  const Expected<Id> id = session != nullptr ? submit(std::move(request), *session) : submit(std::move(request));
  if (!id.ok()) {
    Result refused;
    refused.status = id.status();
    return refused;
  }
  set_stop_flag(stop_flag);
  while (!finished(*id) && step()) {
  }
  set_stop_flag(nullptr);
  return take(*id);
}

}  // namespace millrace::engine
