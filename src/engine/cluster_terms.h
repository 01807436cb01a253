// What ranks agree on while a model is opened: messages of MessageKind::open, plan, load and reply.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/limits.h"
#include "link/link.h"
#include "link/message.h"

namespace millrace::engine {

struct Parts;

/// What decides limits, as rank 0 was asked.
struct ClusterTerms {
  std::int64_t context_tokens = 0, batch_tokens = 0, max_sequences = 0, kv_tokens = 0, chunk_tokens = 0, logit_rows = 0;
  std::int64_t fewer_sequences = 0;  // a truth
  std::int64_t keeps_prompts = 0;    // a truth: on the disk
  std::int64_t kv_dtype = 0, kv_rotation = 0;

  static ClusterTerms of(const EngineOptions& options);
  void apply(EngineOptions& options) const;
  /// The same with limits that were found.
  ClusterTerms with(const Limits& limits) const;
};

/// What every rank goes without, whatever it was asked for.
void leave_out_what_is_off(EngineOptions& options);

/// Of GPUs, where none is named: each process of a host takes the next one.
void choose_gpu(const link::Link& link, EngineOptions& options);

/// Memory that layers may lie in: a GPU's where it computes, else RAM.
std::uint64_t room_for_layers(const EngineOptions& options);

/// What all ranks' files have in common. Errors: io_error, corrupt.
Expected<std::string> identity_of(const EngineOptions& options, const modelfile::Model& file);

void write_open(const std::string& identity, const ClusterTerms& terms, std::vector<std::byte>& message);
void write_plan(const model::Stage& stage, std::vector<std::byte>& message);
void write_load(const ClusterTerms& terms, std::vector<std::byte>& message);

/// The answer to each. room_bytes: to open, room_for_layers(). limits: to plan and load. numerics, at_home: to load,
/// the executor's and whether no weights are read anew in a pass.
struct ClusterReply {
  Status status;
  std::uint64_t room_bytes = 0;
  std::string numerics;
  bool at_home = false;
  bool keeps_prompts = false;  // to load: on the disk
  Limits limits;               // context, batch, sequences, KV and rows of logits

  void write(std::vector<std::byte>& message) const;
  /// Errors: corrupt.
  static Expected<ClusterReply> read(std::span<const std::byte> message);
};

/// The limits that a stage has room for, with some to spare for what the program takes more of by the time the stage is
/// loaded. Errors: those of assemble_plan().
Expected<Limits> find_limits(const EngineOptions& options);

/// Whether no weights of a stage are read anew in a pass, but rows of the embedding.
bool all_at_home(const Parts& parts);

/// Of each number the smaller one.
void take_least(const Limits& other, Limits& limits);

}  // namespace millrace::engine
