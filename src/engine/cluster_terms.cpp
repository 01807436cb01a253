#include "engine/cluster_terms.h"

#include <algorithm>

#include "base/bytes.h"
#include "device/gpu.h"
#include "engine/setup.h"
#include "kv/model_identity.h"

namespace millrace::engine {

using link::MessageKind;
using link::Reader;
using link::Writer;

ClusterTerms ClusterTerms::of(const EngineOptions& options) {
  return {options.demand.context_tokens,
          options.demand.batch_tokens,
          options.demand.max_sequences,
          options.demand.kv_tokens,
          options.demand.chunk_tokens,
          options.demand.logit_rows,
          options.demand.fewer_sequences ? 1 : 0,
          options.kv.prompt_cache.empty() ? 0 : 1,
          static_cast<std::int64_t>(options.kv.dtype),
          static_cast<std::int64_t>(options.kv.rotation)};
}

void ClusterTerms::apply(EngineOptions& options) const {
  options.demand.context_tokens = context_tokens;
  options.demand.batch_tokens = batch_tokens;
  options.demand.max_sequences = max_sequences;
  options.demand.kv_tokens = kv_tokens;
  options.demand.chunk_tokens = chunk_tokens;
  options.demand.logit_rows = logit_rows;
  options.demand.fewer_sequences = fewer_sequences != 0;
  if (keeps_prompts == 0) options.kv.prompt_cache.clear();
  options.kv.dtype = static_cast<DType>(kv_dtype);
  options.kv.rotation = static_cast<kv::Rotation>(kv_rotation);
}

ClusterTerms ClusterTerms::with(const Limits& limits) const {
  ClusterTerms terms = *this;
  terms.context_tokens = limits.context_tokens;
  terms.batch_tokens = limits.batch_tokens;
  terms.max_sequences = limits.sequences;
  terms.kv_tokens = limits.kv_tokens;
  terms.fewer_sequences = 0;
  return terms;
}

void leave_out_what_is_off(EngineOptions& options) {
  if (options.device.choice == DeviceChoice::automatic) options.device.choice = DeviceChoice::cpu;
  options.experts.pack = "off";
}

void choose_gpu(const link::Link& link, EngineOptions& options) {
  if (options.device.choice != DeviceChoice::cuda || options.device.gpu_named) return;
  const auto gpus = device::gpus();
  if (!gpus.ok()) return;  // whoever opens the model says so
  int before = 0;
  for (int rank = 0; rank < link.rank(); ++rank) before += link.host(rank) == link.host(link.rank()) ? 1 : 0;
  options.device.gpu = (*gpus)[static_cast<std::size_t>(before) % gpus->size()].index;
}

std::uint64_t room_for_layers(const EngineOptions& options) {
  if (options.device.choice != DeviceChoice::cuda) return ram_of(options);
  std::uint64_t bytes = 0;
  if (const auto gpus = device::gpus(); gpus.ok())
    for (const device::Gpu& gpu : *gpus)
      if (gpu.index == options.device.gpu) bytes = gpu.total_bytes;
  return options.memory.vram_bytes > 0 ? std::min(bytes, options.memory.vram_bytes) : bytes;
}

Expected<std::string> identity_of(const EngineOptions& options, const modelfile::Model& file) {
  if (!options.model.identity.empty()) return options.model.identity;
  return kv::copy_identity(file);
}

void write_open(const std::string& identity, const ClusterTerms& terms, std::vector<std::byte>& message) {
  Writer writer(message, MessageKind::open);
  writer.number(link::kProtocol);
  writer.text(identity);
  writer.array(std::span(&terms, 1));
}

void write_plan(const model::Stage& stage, std::vector<std::byte>& message) {
  Writer(message, MessageKind::plan).array(std::span(&stage, 1));
}

void write_load(const ClusterTerms& terms, std::vector<std::byte>& message) {
  Writer(message, MessageKind::load).array(std::span(&terms, 1));
}

void ClusterReply::write(std::vector<std::byte>& message) const {
  Writer writer(message, MessageKind::reply);
  writer.number(status.code());
  writer.text(status.message());
  writer.number(room_bytes);
  writer.text(numerics);
  writer.number(std::uint32_t{at_home});
  writer.number(std::uint32_t{keeps_prompts});
  for (const std::int64_t limit :
       {limits.context_tokens, limits.batch_tokens, limits.sequences, limits.kv_tokens, limits.logit_rows})
    writer.number(limit);
}

Expected<ClusterReply> ClusterReply::read(std::span<const std::byte> message) {
  Reader reader(message);
  if (reader.kind() != MessageKind::reply) return error(Code::corrupt, "an answer was awaited, and it is none");
  ClusterReply reply;
  const auto code = reader.number<Code>();
  reply.status = Status(code, reader.text());
  if (!reply.status.ok() && reader.status().ok()) return reply;  // of another version, maybe, whose rest is not known
  reply.room_bytes = reader.number<std::uint64_t>();
  reply.numerics = reader.text();
  reply.at_home = reader.number<std::uint32_t>() != 0;
  reply.keeps_prompts = reader.number<std::uint32_t>() != 0;
  for (std::int64_t* const limit : {&reply.limits.context_tokens, &reply.limits.batch_tokens, &reply.limits.sequences,
                                    &reply.limits.kv_tokens, &reply.limits.logit_rows})
    *limit = reader.number<std::int64_t>();
  MR_RETURN_IF_ERROR(reader.status());
  return reply;
}

Expected<Limits> find_limits(const EngineOptions& options) {
  constexpr std::uint64_t kSpare = 2 * kMiB;
  EngineOptions asked = options;
  asked.kv.prompt_cache.clear();  // no limit depends on it
  EngineOptions careful = asked;
  careful.memory.ram_taken_bytes += kSpare;
  Expected<Parts> parts = assemble_plan(careful);
  if (parts.status().code() == Code::out_of_budget) parts = assemble_plan(asked);
  if (!parts.ok()) return parts.status();
  return parts->limits;
}

bool all_at_home(const Parts& parts) {
  const residency::UnitTable& table = parts.model->units();
  std::int64_t expert_tiles = 0;  // of which a cache holds some
  for (std::size_t i = 0; i < table.units().size(); ++i) {
    const residency::Unit& unit = table.units()[i];
    if (unit.by_rows || parts.plan.homes[i] != residency::Tier::disk) continue;
    if (unit.expert < 0) return false;
    const auto [first, last] = table.tiles_of(static_cast<std::int32_t>(i));
    expert_tiles += last - first;
  }
  return expert_tiles <= parts.plan.expert_slots;
}

void take_least(const Limits& other, Limits& limits) {
  limits.context_tokens = std::min(limits.context_tokens, other.context_tokens);
  limits.batch_tokens = std::min(limits.batch_tokens, other.batch_tokens);
  limits.sequences = std::min(limits.sequences, other.sequences);
  limits.kv_tokens = std::min(limits.kv_tokens, other.kv_tokens);
  limits.logit_rows = std::min(limits.logit_rows, other.logit_rows);
}

}  // namespace millrace::engine
