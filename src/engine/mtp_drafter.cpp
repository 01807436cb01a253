#include "engine/mtp_drafter.h"

#include <algorithm>
#include <utility>

#include "engine/setup.h"

namespace millrace::engine {

using text::TokenId;

namespace {

constexpr std::int64_t kWaitingRows = 64;  // of a request, at most: states that were not gone through yet

}  // namespace

exec::PassLimits mtp_limits(const Limits& limits) {
  exec::PassLimits pass;
  pass.max_sequences = pass.max_logit_rows = limits.sequences;
  pass.max_rows = std::max(kWaitingRows, 2 * limits.sequences);
  pass.max_positions = limits.context_tokens;
  pass.kv_dtype = limits.kv_dtype;
  return pass;
}

exec::PassLimits mtp_fusion_limits() {
  exec::PassLimits pass;
  pass.max_sequences = 1;
  pass.max_rows = pass.max_positions = kWaitingRows;
  return pass;
}

std::uint64_t mtp_waiting_bytes(const Limits& limits, const model::Model& model) {
  const model::DraftPasses& passes = *model.draft_passes();
  const std::int64_t rows = limits.sequences * kWaitingRows + mtp_limits(limits).max_rows;
  const std::int64_t tap_rows = passes.taps > 0 ? kWaitingRows * (1 + passes.taps) : 0;
  const std::int64_t floats = rows * passes.dim + tap_rows * model.hyperparameters().model_dim;
  return static_cast<std::uint64_t>(floats) * sizeof(float);
}

/// Of a request: KV of the positions from `base` on; states behind those, and the tokens behind each of them.
struct MtpDrafter::Known {
  explicit Known(std::shared_ptr<kv::BlockPool> pool) : state(std::move(pool)) {}
  /// Positions that are known, in KV or waiting.
  std::int64_t end() const { return base + state.length() + std::ssize(tokens); }
  /// Knows nothing, and goes on at this position.
  void restart(std::int64_t position) {
    state.rewind(0);
    states.clear();
    tokens.clear();
    base = position;
  }
  /// Forgets positions from this one on. REQUIRES: position >= base.
  void cut(std::int64_t position, std::int64_t dim) {
    const std::int64_t waiting = std::max<std::int64_t>(0, position - base - state.length());
    tokens.resize(static_cast<std::size_t>(std::min(waiting, std::ssize(tokens))));
    states.resize(tokens.size() * static_cast<std::size_t>(dim));
    if (position - base < state.length()) base = position - state.rewind(position - base);
  }

  kv::SequenceState state;
  std::int64_t base = 0;
  std::vector<float> states;  // [tokens, dim]
  std::vector<TokenId> tokens;
};

Expected<std::unique_ptr<MtpDrafter>> MtpDrafter::make(Parts& target, std::unique_ptr<HostDraft> host) {
  residency::Budget& budget = host != nullptr ? *host->budget : *target.budget;
  std::unique_ptr<MtpDrafter> drafter(new MtpDrafter(target, budget, std::move(host)));
  MR_RETURN_IF_ERROR(drafter->prepare(target, budget));
  return drafter;
}

MtpDrafter::MtpDrafter(Parts& target, residency::Budget& budget, std::unique_ptr<HostDraft> host)
    : passes_(*target.model->draft_passes()),
      dim_(passes_.dim),
      model_dim_(target.model->hyperparameters().model_dim),
      sequences_(target.limits.sequences),
      most_rows_(mtp_limits(target.limits).max_rows),
      host_(std::move(host)),
      pool_(std::make_shared<kv::BlockPool>(
          passes_.program.layout.with(target.kv_dtype, kv::kOnHost, target.kv_rotation), budget)) {
  for (std::size_t group = 0; group < pool_->groups(); ++group)
    pool_->set_bound(group, kv::most_blocks(pool_->layout().groups()[group], kv_load(target.limits)));
}

Status MtpDrafter::prepare(Parts& target, residency::Budget& budget) {
  exec::CpuOptions options;
  options.isa = host_ != nullptr ? host_->isa : target.isa;
  options.embedding_rows_from_disk = true;
  options.aside = true;
  residency::WeightStore& store = host_ != nullptr ? *host_->store : *target.store;
  ThreadPool& threads = host_ != nullptr ? *host_->pool : *target.pool;
  executor_ = exec::make_cpu_executor(store, threads, budget, options);
  MR_RETURN_IF_ERROR(executor_->prepare(passes_.program, mtp_limits(target.limits)));
  MR_ASSIGN_OR_RETURN(waiting_, budget.reserve("states for guesses", mtp_waiting_bytes(target.limits, *target.model)));
  given_.reserve(static_cast<std::size_t>(most_rows_ * dim_));
  if (!passes_.fusion) return {};
  fusion_ = exec::make_cpu_executor(store, threads, budget, options);
  MR_RETURN_IF_ERROR(fusion_->prepare(*passes_.fusion, mtp_fusion_limits()));
  tap_.resize(static_cast<std::size_t>(kWaitingRows * model_dim_));
  taps_.resize(tap_.size() * static_cast<std::size_t>(passes_.taps));
  unremembered_.emplace(std::make_shared<kv::BlockPool>(passes_.fusion->layout, budget));
  return {};
}

MtpDrafter::~MtpDrafter() { known_.clear(); }

void MtpDrafter::forget(std::uint64_t request) {
  if (known_.erase(request) > 0) pool_->trim();
}

/// The first `rows` of those that wait, into the batch, at so many positions behind what is in KV. False: there is no
/// room for them.
bool MtpDrafter::add_rows(Known& known, std::int64_t ahead, std::int64_t rows, bool wants_logits, kv::Batch& batch) {
  const std::int64_t first = known.state.length() + ahead;
  if (!known.state.reserve(first + rows).ok()) return false;
  const auto sequence = static_cast<std::int32_t>(batch.sequences.size());
  for (std::int64_t i = 0; i < rows; ++i)
    batch.rows.push_back({known.tokens[static_cast<std::size_t>(i)], sequence, static_cast<std::int32_t>(first + i),
                          wants_logits && i + 1 == rows, false});
  given_.insert(given_.end(), known.states.begin(), known.states.begin() + rows * dim_);
  batch.sequences.push_back(&known.state);
  return true;
}

Status MtpDrafter::run(kv::Batch& batch, const std::function<bool()>& stop) {
  batch.given = given_.data();
  Status status = executor_->run(batch, stop);
  given_.clear();
  return status;
}

/// Goes through all that waits. What there is no room for is forgotten.
Status MtpDrafter::catch_up(Known& known) {
  while (!known.tokens.empty()) {
    const std::int64_t rows = std::min(std::ssize(known.tokens), most_rows_);
    kv::Batch batch;
    if (!add_rows(known, 0, rows, false, batch)) {
      known.restart(known.end());
      return {};
    }
    if (Status status = run(batch, {}); !status.ok()) return status;
    known.state.set_length(known.state.length() + rows);
    known.tokens.erase(known.tokens.begin(), known.tokens.begin() + rows);
    known.states.erase(known.states.begin(), known.states.begin() + rows * dim_);
  }
  return {};
}

/// Of rows of the model's last pass, what the block or the head reads. REQUIRES: no more rows than may wait.
Status MtpDrafter::read_states(const exec::Executor& executor, std::int64_t first_row, std::int64_t rows, float* out) {
  if (fusion_ == nullptr) return executor.read_hidden(first_row, rows, out);
  const std::int64_t stride = passes_.taps * model_dim_;
  for (std::int64_t tap = 0; tap < passes_.taps; ++tap) {
    MR_RETURN_IF_ERROR(executor.read_tap(tap, first_row, rows, tap_.data()));
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(tap_.data() + row * model_dim_, model_dim_, taps_.data() + row * stride + tap * model_dim_);
  }
  MR_RETURN_IF_ERROR(unremembered_->reserve(kWaitingRows));
  kv::Batch batch;
  batch.sequences = {&*unremembered_};
  batch.given = taps_.data();
  batch.wants_hidden = true;
  for (std::int64_t row = 0; row < rows; ++row)
    batch.rows.push_back({0, 0, static_cast<std::int32_t>(row), false, true});
  MR_RETURN_IF_ERROR(fusion_->run(batch, {}));
  return fusion_->read_hidden(0, rows, out);
}

Status MtpDrafter::take(const Computed& computed, const exec::Executor& executor) {
  auto& one = known_[computed.request];
  if (one == nullptr) one = std::make_unique<Known>(pool_);
  Known& known = *one;
  if (computed.first < known.base || computed.first > known.end())
    known.restart(computed.first);
  else
    known.cut(computed.first, dim_);
  for (std::int64_t done = 0; done < computed.rows;) {
    const std::int64_t rows = std::min(computed.rows - done, kWaitingRows - std::ssize(known.tokens));
    const std::size_t held = known.states.size();
    known.states.reserve(static_cast<std::size_t>(kWaitingRows * dim_));
    known.states.resize(held + static_cast<std::size_t>(rows * dim_));
    MR_RETURN_IF_ERROR(read_states(executor, computed.first_row + done, rows, known.states.data() + held));
    const auto behind = computed.tokens.begin() + computed.first + done + 1;
    known.tokens.insert(known.tokens.end(), behind, behind + rows);
    done += rows;
    if (std::ssize(known.tokens) == kWaitingRows) MR_RETURN_IF_ERROR(catch_up(known));
  }
  return {};
}

Status MtpDrafter::passed(std::span<const Computed> computed, const exec::Executor& executor) {
  for (const Computed& one : computed)
    if (one.rows > 0) MR_RETURN_IF_ERROR(take(one, executor));
  return {};
}

/// A row of a pass gave a guess: the states that it left stand in the model's place for the next one.
void MtpDrafter::go_on(Guessing& one, std::int64_t row, std::int64_t logit_row) {
  Known& known = *one.known;
  DraftAsk& ask = *one.ask;
  const exec::Logits logits = executor_->last_logits();
  const float* const found = logits.data + logit_row * logits.vocab;
  auto guess = static_cast<TokenId>(passes_.token(std::max_element(found, found + logits.vocab) - found));
  if (ask.guesses.size() < ask.choices.size()) guess = ask.choices[ask.guesses.size()];
  ask.guesses.push_back(guess);
  known.tokens.assign(1, guess);
  known.states.resize(static_cast<std::size_t>(dim_));
  if (!executor_->read_hidden(row, 1, known.states.data()).ok()) ask.most = std::ssize(ask.guesses);
}

/// One pass: what waits of each request, as far as there is room; a guess for those of which all went along.
Status MtpDrafter::pass(std::vector<Guessing>& guessing, const std::function<bool()>& stop) {
  kv::Batch batch;
  batch.wants_hidden = true;
  auto others = std::ssize(guessing);
  for (Guessing& one : guessing) {
    --others;
    const std::int64_t waiting = std::ssize(one.known->tokens);
    // Behind the first guess rows are of guesses, and their KV is written again.
    const std::int64_t ahead = std::max<std::int64_t>(0, std::ssize(one.ask->guesses) - 1);
    one.rows = std::min(waiting, most_rows_ - std::ssize(batch.rows) - others);
    const bool room = one.rows > 0 && std::ssize(batch.sequences) < sequences_;
    if (!room || !add_rows(*one.known, ahead, one.rows, one.rows == waiting, batch)) one.rows = 0;
  }
  std::erase_if(guessing, [](const Guessing& one) { return one.rows == 0; });
  if (guessing.empty()) return {};
  MR_RETURN_IF_ERROR(run(batch, stop));
  std::int64_t row = 0, logit_row = 0;
  for (Guessing& one : guessing) {
    Known& known = *one.known;
    row += one.rows;
    if (one.ask->guesses.empty()) known.state.set_length(known.state.length() + one.rows);
    if (one.rows == std::ssize(known.tokens)) {
      go_on(one, row - 1, logit_row++);
    } else {
      known.tokens.erase(known.tokens.begin(), known.tokens.begin() + one.rows);
      known.states.erase(known.states.begin(), known.states.begin() + one.rows * dim_);
    }
  }
  std::erase_if(guessing, [](const Guessing& one) { return std::ssize(one.ask->guesses) >= one.ask->most; });
  return {};
}

Status MtpDrafter::propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) {
  std::vector<Guessing> guessing;
  for (DraftAsk& ask : asks) {
    const auto found = known_.find(ask.request);
    if (ask.most <= 0 || found == known_.end()) continue;
    Known& known = *found->second;
    if (!known.tokens.empty() && known.end() + 1 == std::ssize(ask.tokens)) guessing.push_back({&ask, &known});
  }
  Status status;
  while (status.ok() && !guessing.empty()) status = pass(guessing, stop);
  for (DraftAsk& ask : asks) {
    if (ask.guesses.empty()) continue;
    Known& known = *known_.at(ask.request);  // what waits is of guesses
    known.tokens.clear();
    known.states.clear();
    if (status.code() == Code::cancelled) ask.guesses.clear();
  }
  return status.code() == Code::cancelled ? Status() : status;
}

}  // namespace millrace::engine
