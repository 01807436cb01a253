#include "exec/pipeline.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace millrace::exec {
namespace {

constexpr std::chrono::milliseconds kHearEvery{1};
// Of prompts: so many rows use a weight often enough that reading it costs little beside.
constexpr std::int64_t kPromptPiece = 128;

}  // namespace

PipelineExecutor::PipelineExecutor(PipelineParts parts) : parts_(std::move(parts)) {}

PipelineExecutor::~PipelineExecutor() {
  const auto give_up = [] { return true; };
  Status status;
  // Every pass has its answer before a rank hears of something else.
  while (!under_way_.empty() && status.code() != Code::io_error) status = finish(give_up);
  const link::Writer close(message_, link::MessageKind::close);
  if (const Status sent = parts_.link.send_others(message_); !sent.ok()) log::warn("{}", sent.message());
}

Status PipelineExecutor::takes_pictures(bool /*sees_ahead*/) const {
  return error(Code::unsupported,
               "processes that share a model's layers take no pictures yet; let one compute them all");
}

Status PipelineExecutor::prepare(const Program& program, const PassLimits& limits) {
  MR_RETURN_IF_ERROR(parts_.own->prepare(program, limits));
  return prepare_messages(limits);
}

Status PipelineExecutor::prepare_messages(const PassLimits& limits) {
  reservation_ = {};
  MR_ASSIGN_OR_RETURN(reservation_,
                      parts_.budget.reserve("messages", stage_message_bytes(parts_.shape, limits, parts_.link.size())));
  return {};
}

std::string PipelineExecutor::describe() const {
  return fmt::format("{}, first of {} ranks", parts_.own->describe(), parts_.link.size());
}

std::int64_t PipelineExecutor::prompt_piece() const { return parts_.at_home ? kPromptPiece : 0; }

Status PipelineExecutor::run(const kv::Batch& batch, const std::function<bool()>& cancelled) {
  MR_RETURN_IF_ERROR(begin(batch, cancelled));
  return finish(cancelled);
}

Status PipelineExecutor::begin(const kv::Batch& batch, const std::function<bool()>& cancelled) {
  result_ = {};
  // A rank whose answer is taken while this one computes goes on sooner.
  using Clock = std::chrono::steady_clock;
  Clock::time_point heard = Clock::now();
  Status lost;
  const auto hear_and_ask = [&] {
    if (const auto now = Clock::now(); !under_way_.empty() && now - heard > kHearEvery) {
      heard = now;
      for (Expected<bool> more = true; lost.ok() && more.ok() && *more; lost = more.status()) more = hear();
    }
    return !lost.ok() || (cancelled && cancelled());
  };
  const Status computed = parts_.own->run(batch, hear_and_ask);
  MR_RETURN_IF_ERROR(lost);
  MR_RETURN_IF_ERROR(computed);
  UnderWay pass;
  pass.left = Clock::now();
  MR_RETURN_IF_ERROR(describe_pass(batch));
  float* const residual = pass_.write(parts_.shape.model_dim, message_);
  MR_RETURN_IF_ERROR(parts_.own->read_hidden(0, std::ssize(batch.rows), residual));
  MR_RETURN_IF_ERROR(parts_.link.send(1, message_));
  pass.number = pass_.number;
  for (const kv::SequenceState* const sequence : batch.sequences)
    pass.sequences.push_back({sequence->number(), sequence->blocks()});
  under_way_.push_back(std::move(pass));
  return {};
}

Status PipelineExecutor::finish(const std::function<bool()>& cancelled) {
  if (under_way_.empty()) return error(Code::internal, "no pass is under way");
  result_ = {};
  Status status = await_result(cancelled);
  if (!status.ok()) result_ = {};
  under_way_.pop_front();
  return status;
}

/// Whether a pass is under way with it, and it has what it had then: who gave blocks back, being
/// cancelled, gives them back elsewhere, too.
bool PipelineExecutor::goes_on_as_begun(std::uint64_t number, const kv::SequenceState& sequence) const {
  for (auto pass = under_way_.rbegin(); pass != under_way_.rend(); ++pass)
    for (const UnderWay::Sequence& one : pass->sequences)
      if (one.number == number) return sequence.blocks() >= one.blocks;
  return false;
}

Status PipelineExecutor::describe_pass(const kv::Batch& batch) {
  ++pass_.number;
  pass_.wants_hidden = batch.wants_hidden;
  pass_.rows = batch.rows;
  return describe_sequences(batch);
}

/// Those of the pass first, in the batch's order, so that rows keep their numbers; then the others that live.
Status PipelineExecutor::describe_sequences(const kv::Batch& batch) {
  pass_.sequences.clear();
  pass_.runs.clear();
  const auto add = [&](const kv::SequenceState& sequence) {
    const std::size_t first = pass_.runs.size();
    if (parts_.shares) pass_.add_runs(sequence.block_names());
    pass_.sequences.push_back({sequence.number(), sequence.length(), pass_.runs.size() - first});
  };
  for (const kv::SequenceState* const sequence : batch.sequences) {
    if (sequence->number() == 0) return error(Code::internal, "a sequence of the pass has no number");
    add(*sequence);
  }
  for (const auto& [number, sequence] : parts_.pool->sequences()) {
    if (std::find(batch.sequences.begin(), batch.sequences.end(), sequence) != batch.sequences.end()) continue;
    if (goes_on_as_begun(number, *sequence))
      pass_.sequences.push_back({number, StagePass::kAsItIs, 0});
    else if (sequence->length() > 0)
      add(*sequence);
  }
  if (parts_.shares) pass_.add_runs(parts_.pool->kept());
  return {};
}

/// Takes an answer that is here; false: there is none. Answers may overtake each other: a failure comes from any rank.
Expected<bool> PipelineExecutor::hear() {
  MR_ASSIGN_OR_RETURN(const std::optional<int> from, parts_.link.try_receive(answer_));
  if (!from) return false;
  const link::MessageKind kind = link::Reader(answer_).kind();
  if (kind == link::MessageKind::recalled) {
    StageRecall recall;
    MR_RETURN_IF_ERROR(read_recalled(answer_, recall));
    recalled_ = {recall.blocks, recall.more};
    return true;
  }
  if (kind != link::MessageKind::result)
    return error(Code::internal, "{} sent something else than what came of a pass", parts_.link.name(*from));
  StageResult result;
  MR_RETURN_IF_ERROR(result.read(answer_));
  const auto pass = std::find_if(under_way_.begin(), under_way_.end(),
                                 [&](const UnderWay& one) { return one.number == result.pass; });
  if (pass == under_way_.end() || !pass->answer.empty())
    return error(Code::internal, "{} answers pass {}, which is not under way", parts_.link.name(*from), result.pass);
  pass->from = *from;
  std::swap(pass->answer, answer_);
  return true;
}

/// Exactly one rank answers: the last one, or the first one that failed. So a pass that is given up is waited for, too,
/// and the next one meets no old answer.
Status PipelineExecutor::await_result(const std::function<bool()>& cancelled) {
  bool gave_up = false;
  UnderWay& pass = under_way_.front();
  for (link::Pause pause; pass.answer.empty();) {
    MR_ASSIGN_OR_RETURN(const bool heard, hear());
    if (heard) continue;
    if (!gave_up && cancelled && cancelled()) {
      gave_up = true;
      MR_RETURN_IF_ERROR(cancel_elsewhere());
    }
    pause.sleep();
  }
  std::swap(answer_, pass.answer);
  MR_RETURN_IF_ERROR(result_.read(answer_));
  using Seconds = std::chrono::duration<double>;
  const double away = Seconds(std::chrono::steady_clock::now() - pass.left).count();
  elsewhere_ns_ += static_cast<std::uint64_t>(result_.seconds * 1e9);
  between_ns_ += static_cast<std::uint64_t>(std::max(away - result_.seconds, 0.0) * 1e9);
  if (result_.status.code() == Code::cancelled || gave_up) return error(Code::cancelled, "cancelled");
  return result_.status.with_context(parts_.link.name(pass.from));
}

Status PipelineExecutor::cancel_elsewhere() {
  write_cancel(pass_.number, message_);
  return parts_.link.send_others(message_);
}

/// The message goes the way of the passes, so that it finds on each rank what they left. Nobody can cancel this: it
/// takes as long as all the ranks may take, if no pass is under way.
Expected<kv::PromptsElsewhere::Loaded> PipelineExecutor::load(const kv::SequenceState& state,
                                                              std::span<const std::int32_t> tokens, std::int64_t blocks,
                                                              double seconds) {
  MR_RETURN_IF_ERROR(describe_sequences({}));
  StageRecall recall;
  recall.standing.sequences = pass_.sequences;
  recall.standing.runs = pass_.runs;
  recall.sequence = state.number();
  recall.blocks = blocks;
  recall.first = state.length() / kv::kBlockTokens - blocks;
  recall.seconds = seconds;
  recall.tokens = tokens.first(static_cast<std::size_t>(state.length()));
  recall.write(message_);
  recalled_.reset();
  MR_RETURN_IF_ERROR(parts_.link.send(1, message_));
  for (link::Pause pause; !recalled_;) {
    MR_ASSIGN_OR_RETURN(const bool heard, hear());
    if (!heard) pause.sleep();
  }
  return *recalled_;
}

Status PipelineExecutor::keep(const kv::SequenceState& state, std::span<const std::int32_t> tokens) {
  StageKeep{state.number(), tokens}.write(message_);
  return parts_.link.send(1, message_);
}

ExecCounters PipelineExecutor::counters() const {
  ExecCounters counters = parts_.own->counters();
  counters.elsewhere_ns = elsewhere_ns_;
  counters.between_ns = between_ns_;
  return counters;
}

Logits PipelineExecutor::last_logits() const {
  if (result_.vocab == 0) return {};
  return {result_.logits.data(), std::ssize(result_.logits) / result_.vocab, result_.vocab};
}

Status PipelineExecutor::read_hidden(std::int64_t first, std::int64_t rows, float* out) const {
  const std::int64_t dim = parts_.shape.model_dim;
  if (first < 0 || rows < 0 || (first + rows) * dim > std::ssize(result_.hidden))
    return error(Code::internal, "rows {} to {} of a pass have no states", first, first + rows);
  std::copy_n(result_.hidden.data() + first * dim, rows * dim, out);
  return {};
}

}  // namespace millrace::exec
