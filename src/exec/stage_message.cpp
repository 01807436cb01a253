#include "exec/stage_message.h"

#include <algorithm>

#include "kv/layout.h"

namespace millrace::exec {

using link::MessageKind;
using link::Reader;
using link::Writer;

namespace {

/// Joins the run before it where it can; only from `first` on, where a sequence's begin.
void add_name(std::size_t first, kv::BlockName name, std::vector<StagePass::Run>& runs) {
  if (runs.size() > first && name.copied == 0) {
    StagePass::Run& last = runs.back();
    if (last.first.copied == 0 && last.first.number + last.count == name.number) {
      ++last.count;
      return;
    }
  }
  runs.push_back({name, 1});
}

}  // namespace

void StagePass::add_runs(std::span<const kv::BlockName> names) {
  const std::size_t first = runs.size();
  for (const kv::BlockName& name : names) add_name(first, name, runs);
}

void StagePass::add_runs(const std::set<std::uint64_t>& kept) {
  const std::size_t first = runs.size();
  for (const std::uint64_t number : kept) add_name(first, {number, 0}, runs);
}

std::vector<kv::BlockName> StagePass::names(std::size_t first, std::size_t last) const {
  std::vector<kv::BlockName> names;
  for (std::size_t r = first; r < last; ++r)
    for (std::uint64_t i = 0; i < runs[r].count; ++i) names.push_back({runs[r].first.number + i, runs[r].first.copied});
  return names;
}

void StagePass::write_standing(Writer& writer) const {
  writer.array(std::span(sequences));
  writer.array(std::span(runs));
}

Status StagePass::read_standing(Reader& reader) {
  const auto all_sequences = reader.array<Sequence>();
  const auto all_runs = reader.array<Run>();
  sequences.assign(all_sequences.begin(), all_sequences.end());
  runs.assign(all_runs.begin(), all_runs.end());
  std::uint64_t named = 0;
  const bool lengths = std::all_of(sequences.begin(), sequences.end(), [&](const Sequence& sequence) {
    named += std::min<std::uint64_t>(sequence.runs, runs.size() + 1);
    return sequence.length >= kLost && named <= runs.size();
  });
  constexpr std::uint64_t kMostBlocks = 1 << 24;
  std::uint64_t blocks = 0;
  for (const Run& run : runs) blocks += std::min(run.count, kMostBlocks);
  if (lengths && blocks < kMostBlocks) return reader.status();
  return error(Code::corrupt, "another rank's description of its sequences is inconsistent");
}

float* StagePass::write(std::int64_t model_dim, std::vector<std::byte>& message) const {
  Writer writer(message, MessageKind::pass);
  writer.number(number);
  writer.number(seconds);
  writer.number(std::uint32_t{wants_hidden});
  write_standing(writer);
  writer.array(std::span(rows));
  return writer.floats(rows.size() * static_cast<std::size_t>(model_dim));
}

Status StagePass::read(std::span<const std::byte> message, std::int64_t model_dim, std::span<const float>& residual) {
  Reader reader(message);
  number = reader.number<std::uint64_t>();
  seconds = reader.number<double>();
  wants_hidden = reader.number<std::uint32_t>() != 0;
  rows.clear();
  MR_RETURN_IF_ERROR(read_standing(reader));
  const auto all_rows = reader.array<kv::BatchRow>();
  residual = reader.array<float>();
  MR_RETURN_IF_ERROR(reader.status());
  rows.assign(all_rows.begin(), all_rows.end());
  const bool known = std::all_of(rows.begin(), rows.end(), [&](const kv::BatchRow& row) {
    return row.sequence >= 0 && static_cast<std::size_t>(row.sequence) < sequences.size() && row.position >= 0 &&
           sequences[static_cast<std::size_t>(row.sequence)].length != kAsItIs;
  });
  if (known && residual.size() == rows.size() * static_cast<std::size_t>(model_dim)) return {};
  rows.clear();
  return error(Code::corrupt, "a pass of {} rows came with {} values of the residual stream", all_rows.size(),
               residual.size());
}

void StageRecall::write(std::vector<std::byte>& message) const {
  Writer writer(message, MessageKind::recall);
  standing.write_standing(writer);
  writer.number(sequence);
  writer.number(first);
  writer.number(blocks);
  writer.number(std::uint32_t{more});
  writer.number(seconds);
  writer.array(tokens);
}

Status StageRecall::read(std::span<const std::byte> message) {
  Reader reader(message);
  MR_RETURN_IF_ERROR(standing.read_standing(reader));
  sequence = reader.number<std::uint64_t>();
  first = reader.number<std::int64_t>();
  blocks = reader.number<std::int64_t>();
  more = reader.number<std::uint32_t>() != 0;
  seconds = reader.number<double>();
  tokens = reader.array<std::int32_t>();
  MR_RETURN_IF_ERROR(reader.status());
  const std::int64_t whole = std::ssize(tokens) / kv::kBlockTokens;
  if (first >= 0 && blocks >= 0 && first <= whole && blocks <= whole - first) return {};
  return error(Code::corrupt, "rank 0 asks for blocks {} to {} of a prompt of {} tokens", first, first + blocks,
               tokens.size());
}

void write_recalled(const StageRecall& recall, std::vector<std::byte>& message) {
  Writer writer(message, MessageKind::recalled);
  writer.number(recall.blocks);
  writer.number(std::uint32_t{recall.more});
}

Status read_recalled(std::span<const std::byte> message, StageRecall& recall) {
  Reader reader(message);
  recall.blocks = reader.number<std::int64_t>();
  recall.more = reader.number<std::uint32_t>() != 0;
  return reader.status();
}

void StageKeep::write(std::vector<std::byte>& message) const {
  Writer writer(message, MessageKind::keep);
  writer.number(sequence);
  writer.array(tokens);
}

Status StageKeep::read(std::span<const std::byte> message) {
  Reader reader(message);
  sequence = reader.number<std::uint64_t>();
  tokens = reader.array<std::int32_t>();
  return reader.status();
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
  // Every block may be a run, those of sequences and as many beside them.
  const std::int64_t runs = 2 * limits.max_sequences * kv::blocks_for(limits.max_positions);
  // What sequences hold, and the rows of a pass or the tokens of a prompt.
  const std::int64_t rows =
      limits.max_rows * (shape.model_dim * kFloat + static_cast<std::int64_t>(sizeof(kv::BatchRow)));
  const std::int64_t tokens = limits.max_positions * static_cast<std::int64_t>(sizeof(std::int32_t));
  const std::int64_t pass = std::max(rows, tokens) + runs * static_cast<std::int64_t>(sizeof(StagePass::Run));
  const std::int64_t result = (limits.max_logit_rows * shape.vocab + limits.max_rows * shape.model_dim) * kFloat;
  return static_cast<std::uint64_t>(pass + kHead + passes * (std::max(pass, result) + kHead));
}

}  // namespace millrace::exec
