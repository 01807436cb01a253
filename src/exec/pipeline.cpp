#include "exec/pipeline.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace millrace::exec {

PipelineExecutor::PipelineExecutor(PipelineParts parts) : parts_(std::move(parts)) {}

PipelineExecutor::~PipelineExecutor() {
  const link::Writer close(message_, link::MessageKind::close);
  if (const Status sent = parts_.link.send_others(message_); !sent.ok()) log::warn("{}", sent.message());
}

Status PipelineExecutor::prepare(const Program& program, const PassLimits& limits) {
  MR_RETURN_IF_ERROR(parts_.own->prepare(program, limits));
  return prepare_messages(limits);
}

Status PipelineExecutor::prepare_messages(const PassLimits& limits) {
  reservation_ = {};
  MR_ASSIGN_OR_RETURN(reservation_, parts_.budget.reserve("messages", stage_message_bytes(parts_.shape, limits)));
  return {};
}

std::string PipelineExecutor::describe() const {
  return fmt::format("{}, first of {} ranks", parts_.own->describe(), parts_.link.size());
}

Status PipelineExecutor::run(const kv::Batch& batch, const std::function<bool()>& cancelled) {
  result_ = {};
  MR_RETURN_IF_ERROR(parts_.own->run(batch, cancelled));
  MR_RETURN_IF_ERROR(describe_pass(batch));
  float* const residual = pass_.write(parts_.shape.model_dim, message_);
  MR_RETURN_IF_ERROR(parts_.own->read_hidden(0, std::ssize(batch.rows), residual));
  MR_RETURN_IF_ERROR(parts_.link.send(1, message_));
  Status status = await_result(cancelled);
  if (!status.ok()) result_ = {};
  return status;
}

/// Sequences of the pass first, in the batch's order, so that rows keep their numbers; then the others that live.
Status PipelineExecutor::describe_pass(const kv::Batch& batch) {
  ++pass_.number;
  pass_.wants_hidden = batch.wants_hidden;
  pass_.rows = batch.rows;
  pass_.sequences.clear();
  for (const kv::SequenceState* const sequence : batch.sequences) {
    if (sequence->number() == 0) return error(Code::internal, "a sequence of the pass has no number");
    pass_.sequences.push_back({sequence->number(), sequence->length()});
  }
  for (const auto& [number, sequence] : parts_.pool->sequences()) {
    const bool in_batch = std::find(batch.sequences.begin(), batch.sequences.end(), sequence) != batch.sequences.end();
    if (!in_batch && sequence->length() > 0) pass_.sequences.push_back({number, sequence->length()});
  }
  return {};
}

/// Exactly one rank answers: the last one, or the first one that failed. So a pass that is given up is waited for, too,
/// and the next one meets no old answer.
Status PipelineExecutor::await_result(const std::function<bool()>& cancelled) {
  bool gave_up = false;
  link::Pause pause;
  for (;;) {
    MR_ASSIGN_OR_RETURN(const std::optional<int> from, parts_.link.try_receive(answer_));
    if (!from) {
      if (!gave_up && cancelled && cancelled()) {
        gave_up = true;
        MR_RETURN_IF_ERROR(cancel_elsewhere());
      }
      pause.sleep();
      continue;
    }
    if (link::Reader(answer_).kind() != link::MessageKind::result)
      return error(Code::internal, "{} sent something else than what came of a pass", parts_.link.name(*from));
    MR_RETURN_IF_ERROR(result_.read(answer_));
    if (result_.pass != pass_.number)
      return error(Code::internal, "{} answers pass {} in place of {}", parts_.link.name(*from), result_.pass,
                   pass_.number);
    if (result_.status.code() == Code::cancelled || gave_up) return error(Code::cancelled, "cancelled");
    return result_.status.with_context(parts_.link.name(*from));
  }
}

Status PipelineExecutor::cancel_elsewhere() {
  write_cancel(pass_.number, message_);
  return parts_.link.send_others(message_);
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
