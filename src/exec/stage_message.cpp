#include "exec/stage_message.h"

#include <algorithm>

namespace millrace::exec {

using link::MessageKind;
using link::Reader;
using link::Writer;

float* StagePass::write(std::int64_t model_dim, std::vector<std::byte>& message) const {
  Writer writer(message, MessageKind::pass);
  writer.number(number);
  writer.number(seconds);
  writer.number(std::uint32_t{wants_hidden});
  writer.array(std::span(sequences));
  writer.array(std::span(rows));
  return writer.floats(rows.size() * static_cast<std::size_t>(model_dim));
}

Status StagePass::read(std::span<const std::byte> message, std::int64_t model_dim, std::span<const float>& residual) {
  Reader reader(message);
  number = reader.number<std::uint64_t>();
  seconds = reader.number<double>();
  wants_hidden = reader.number<std::uint32_t>() != 0;
  const auto all_sequences = reader.array<Sequence>();
  const auto all_rows = reader.array<kv::BatchRow>();
  residual = reader.array<float>();
  MR_RETURN_IF_ERROR(reader.status());
  sequences.assign(all_sequences.begin(), all_sequences.end());
  rows.assign(all_rows.begin(), all_rows.end());
  const bool lengths = std::all_of(sequences.begin(), sequences.end(),
                                   [](const Sequence& sequence) { return sequence.length >= kLost; });
  const bool known = lengths && std::all_of(rows.begin(), rows.end(), [&](const kv::BatchRow& row) {
                       return row.sequence >= 0 && static_cast<std::size_t>(row.sequence) < sequences.size() &&
                              row.position >= 0 && sequences[static_cast<std::size_t>(row.sequence)].length != kAsItIs;
                     });
  if (known && residual.size() == rows.size() * static_cast<std::size_t>(model_dim)) return {};
  rows.clear();
  return error(Code::corrupt, "a pass of {} rows came with {} values of the residual stream", all_rows.size(),
               residual.size());
}

Status StageResult::read(std::span<const std::byte> message) {
  Reader reader(message);
  pass = reader.number<std::uint64_t>();
  seconds = reader.number<double>();
  const auto code = reader.number<Code>();
  status = Status(code, reader.text());
  vocab = reader.number<std::int64_t>();
  logits = reader.array<float>();
  hidden = reader.array<float>();
  return reader.status();
}

void write_failure(std::uint64_t pass, const Status& status, std::vector<std::byte>& message) {
  Writer writer(message, MessageKind::result);
  writer.number(pass);
  writer.number(0.0);
  writer.number(status.code());
  writer.text(status.message());
  writer.number(std::int64_t{0});
  writer.floats(0);
  writer.floats(0);
}

ResultRoom write_result(const StagePass& pass, std::int64_t vocab, std::size_t logits, std::size_t hidden,
                        std::vector<std::byte>& message) {
  Writer writer(message, MessageKind::result);
  writer.number(pass.number);
  writer.number(pass.seconds);
  writer.number(Code::ok);
  writer.text({});
  writer.number(vocab);
  const auto offset = [&](float* place) { return reinterpret_cast<std::byte*>(place) - message.data(); };
  const std::ptrdiff_t of_logits = offset(writer.floats(logits));
  float* const room = writer.floats(hidden);
  return {reinterpret_cast<float*>(message.data() + of_logits), room};
}

void write_cancel(std::uint64_t pass, std::vector<std::byte>& message) {
  Writer(message, MessageKind::cancel).number(pass);
}

std::uint64_t stage_message_bytes(const StageShape& shape, const PassLimits& limits, int passes) {
  constexpr std::int64_t kHead = 4096;
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t pass =
      limits.max_rows * (shape.model_dim * kFloat + static_cast<std::int64_t>(sizeof(kv::BatchRow)));
  const std::int64_t result = (limits.max_logit_rows * shape.vocab + limits.max_rows * shape.model_dim) * kFloat;
  return static_cast<std::uint64_t>(pass + kHead + passes * (std::max(pass, result) + kHead));
}

}  // namespace millrace::exec
