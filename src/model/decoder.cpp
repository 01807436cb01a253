#include "model/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "model/decoder_impl.h"
#include "model/eagle3.h"
#include "model/gemma4_assistant.h"
#include "model/keys.h"

namespace millrace::model {

RowRange rows_of(const Shard& shard, std::int64_t rows) {
  const auto border = [&](std::int64_t index) {
    return index == shard.count ? rows : rows / kShardStep * index / shard.count * kShardStep;
  };
  return {border(shard.index), border(shard.index + 1) - border(shard.index)};
}

static bool cuts_heads(const AttentionSpec& spec, std::int64_t count) {
  return spec.latent.rank == 0 && spec.index.indexer.top_k == 0 && spec.norm != HeadNorm::together &&
         spec.heads % count == 0 && spec.kv_heads % count == 0 && spec.heads * spec.v_dim() / count % kShardStep == 0;
}

bool cuts_heads(const DecoderSpec& spec, std::int64_t count) {
  return std::all_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& layer) {
    return layer.mixer != Mixer::attention || cuts_heads(layer.attention, count);
  });
}

namespace {

/// The layer of the block that guesses: as the last one that attends.
Expected<LayerSpec> draft_spec(const modelfile::Model& file, const Hyperparameters& hp, const DecoderSpec& spec) {
  if (hp.draft_blocks == 0 || file.find(layer_tensor(static_cast<int>(hp.layers), "nextn.eh_proj.weight")) == nullptr)
    return error(Code::unsupported,
                 "the file has no block that was trained to guess more tokens (multi-token prediction)");
  const auto last = std::find_if(spec.layers.rbegin(), spec.layers.rend(), [](const LayerSpec& layer) {
    return layer.mixer == Mixer::attention && layer.attention.reads < 0;
  });
  if (last == spec.layers.rend() || spec.per_layer_dim > 0 || !spec.guesses)
    return error(Code::unsupported, "this version has no such block of models of {}", hp.architecture);
  return *last;
}

/// Whether every feed-forward can be cut into shards.
Status check_shard(const Shard& shard, const Hyperparameters& hp, const DecoderSpec& spec) {
  if (shard.whole()) return {};
  if (!hp.causal)
    return error(Code::unsupported, "models of {} see tokens behind a token's own, which GPUs do not share out yet",
                 hp.architecture);
  if (shard.index < 0 || shard.index >= shard.count)
    return error(Code::internal, "shard {} of {} is none", shard.index, shard.count);
  if (spec.streams > 1)
    return error(Code::unsupported, "models of {} have several residual streams, which GPUs do not share out yet",
                 hp.architecture);
  std::int64_t least = std::min(hp.model_dim, hp.vocab);
  for (const LayerSpec& layer : spec.layers)
    for (const std::int64_t width :
         {layer.ff_dim, layer.mixture.ff_dim, layer.mixture.shared_ff_dim, layer.mixture.latent_dim})
      if (width > 0) least = std::min(least, width);
  if (least / kShardStep >= shard.count) return {};
  return error(Code::unsupported, "this model's rows cannot be shared out to {} GPUs: one of its matrices has only {}",
               shard.count, least);
}

/// No context is longer than the table of positions, where the model has one.
Status fit_positions(const modelfile::Model& file, const LoadOptions& options, Hyperparameters& hp) {
  const modelfile::TensorInfo* table = file.find("position_embd.weight");
  if (table == nullptr || !hp.causal) return {};  // list_embeddings() misses it; Hyperparameters::most_positions
  if (options.context_tokens > table->rows())
    return error(Code::unsupported, "a context of {} tokens: this model has embeddings of {} positions; use --ctx {}",
                 options.context_tokens, table->rows(), table->rows());
  // Contexts are whole blocks.
  hp.context_length = std::min(hp.context_length, table->rows() / kv::kBlockTokens * kv::kBlockTokens);
  if (hp.context_length > 0) return {};
  return error(Code::unsupported, "position_embd.weight has {} rows (this version wants {} at least)", table->rows(),
               kv::kBlockTokens);
}

/// The stage with its last layer named.
Expected<Stage> check_stage(const Stage& stage, const Hyperparameters& hp, const DecoderSpec& spec) {
  if (stage.whole()) return Stage{0, hp.layers};
  const Stage named{stage.first, stage.last == 0 ? hp.layers : stage.last};
  if (named.first < 0 || named.first >= named.last || named.last > hp.layers)
    return error(Code::invalid_argument, "layers {} to {} are no stage of a model of {} layers", named.first,
                 named.last - 1, hp.layers);
  if (!hp.causal)
    return error(
        Code::unsupported,
        "models of {} cannot be cut into stages: their tokens see those behind them; let one process compute them",
        hp.architecture);
  if (spec.streams > 1 && spec.per_layer_dim == 0)
    return error(Code::unsupported,
                 "models of {} cannot be cut into stages yet: they have several residual streams, of which a stage "
                 "hands over one",
                 hp.architecture);
  if (spec.per_layer_dim > 0)
    return error(Code::unsupported,
                 "models of {} cannot be cut into stages: each layer adds an embedding of its own of every token",
                 hp.architecture);
  bool chose = false;
  for (std::int64_t index = named.first; index < named.last; ++index) {
    const IndexerSpec& chooses = spec.layers[static_cast<std::size_t>(index)].attention.index;
    if (chooses.indexer.top_k > 0 && !chooses.own && !chose)
      return error(Code::unsupported,
                   "no stage may begin with layer {}: layer {} sees the keys that a layer before it chose", named.first,
                   index);
    chose = chose || (chooses.indexer.top_k > 0 && chooses.own);
    const LayerSpec& layer = spec.layers[static_cast<std::size_t>(index)];
    const std::int64_t reads = layer.mixer == Mixer::attention ? layer.attention.reads : -1;
    if (reads >= 0 && reads < named.first)
      return error(Code::unsupported,
                   "no stage may begin with layer {}: layer {} reads the keys and values of layer {} before it",
                   named.first, index, reads);
  }
  return named;
}

/// Whether all layers can do without causality.
Status check_causal(const modelfile::Model& file, const Hyperparameters& hp, const DecoderSpec& spec) {
  if (hp.causal) return {};
  const bool can = std::all_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& layer) {
    return layer.mixer == Mixer::attention && !layer.scans && layer.attention.latent.rank == 0 &&
           !layer.attention.causal;
  });
  if (can) return {};
  return error(
      Code::unsupported,
      "{} is false, but some of the layers of {} cannot see tokens behind a token's own (this version has such "
      "attention over keys and values alone)",
      arch_key(file, "attention.causal"), hp.architecture);
}

/// Whether a head in a file of its own can read what the layers read.
Status check_taps(const Hyperparameters& hp, const DecoderSpec& spec) {
  if (hp.causal && spec.streams == 1 && spec.head) return {};
  return error(Code::unsupported, "this version has no head that guesses for models of {}", hp.architecture);
}

/// What the head's passes are. `decoder` has listed the model's units.
Expected<DraftPasses> draft_passes(const modelfile::Model& file, const Eagle3& head, int first_file,
                                   std::int64_t model_dim, const Decoder& decoder, DraftTable& table) {
  const std::int64_t taps = std::ssize(head.taps);
  exec::Ops ops;
  Decoder own(head.hp, head.spec, Stage{0, 1}, Shard(), ops);
  MR_RETURN_IF_ERROR(own.list_draft_head(file, first_file, decoder, taps * model_dim, table));
  own.record_draft_head();
  DraftPasses passes;
  MR_ASSIGN_OR_RETURN(passes.program, ops.finish());
  ops = exec::Ops();
  own.record_fusion(taps * model_dim);
  MR_ASSIGN_OR_RETURN(passes.fusion.emplace(), ops.finish());
  passes.dim = head.hp.model_dim;
  passes.taps = taps;
  passes.tokens = head.tokens;
  return passes;
}

/// The same of an assistant.
Expected<DraftPasses> assistant_passes(const modelfile::Model& file, const Gemma4Assistant& assistant, int first_file,
                                       std::int64_t model_dim, const Decoder& decoder, DraftTable& table) {
  exec::Ops ops;
  Decoder own(assistant.hp, assistant.spec, Stage{0, assistant.hp.layers}, Shard(), ops);
  MR_RETURN_IF_ERROR(own.list_assistant(file, first_file, decoder, table));
  own.record_assistant(decoder);
  DraftPasses passes;
  MR_ASSIGN_OR_RETURN(passes.program, ops.finish());
  passes.dim = model_dim;
  passes.reads_model = true;
  return passes;
}

}  // namespace

Expected<std::unique_ptr<Model>> make_decoder(const modelfile::Model& file, const LoadOptions& options,
                                              Hyperparameters hp, const DecoderSpec& spec) {
  exec::Ops ops;
  residency::UnitTable units;
  DecoderSpec all = spec;
  if (spec.position_table) MR_RETURN_IF_ERROR(fit_positions(file, options, hp));
  MR_ASSIGN_OR_RETURN(const Stage stage, check_stage(options.stage, hp, spec));
  MR_RETURN_IF_ERROR(check_shard(options.shard, hp, spec));
  MR_RETURN_IF_ERROR(check_causal(file, hp, spec));
  std::optional<Eagle3> head;
  std::optional<Gemma4Assistant> assistant;
  if (options.draft_block) {
    if (!options.stage.whole() || !options.shard.whole())
      return error(Code::unsupported,
                   "the block that guesses more tokens works with the whole model, not with parts of it");
    if (options.draft_head != nullptr && is_gemma4_assistant(*options.draft_head)) {
      MR_ASSIGN_OR_RETURN(assistant.emplace(), read_gemma4_assistant(*options.draft_head, hp, spec));
    } else if (options.draft_head != nullptr) {
      MR_RETURN_IF_ERROR(check_taps(hp, spec));
      MR_ASSIGN_OR_RETURN(head.emplace(), read_eagle3(*options.draft_head, hp));
      all.taps = head->taps;
    } else {
      MR_ASSIGN_OR_RETURN(const LayerSpec block, draft_spec(file, hp, spec));
      all.layers.push_back(block);
    }
  }
  Decoder decoder(hp, all, stage, options.shard, ops);
  MR_RETURN_IF_ERROR(decoder.list_units(file, units));
  decoder.record();
  MR_ASSIGN_OR_RETURN(exec::Program program, ops.finish());
  std::optional<DraftPasses> draft;
  residency::UnitTable own_units;
  DraftTable table(units, options.draft_apart ? &own_units : nullptr);
  const auto first_file = static_cast<int>(file.paths().size());
  if (assistant) {
    MR_ASSIGN_OR_RETURN(draft.emplace(),
                        assistant_passes(*options.draft_head, *assistant, first_file, hp.model_dim, decoder, table));
  } else if (head) {
    MR_ASSIGN_OR_RETURN(draft.emplace(),
                        draft_passes(*options.draft_head, *head, first_file, hp.model_dim, decoder, table));
  } else if (options.draft_block) {
    MR_RETURN_IF_ERROR(decoder.list_draft_block(file, table));
    ops = exec::Ops();
    decoder.record_draft();
    MR_ASSIGN_OR_RETURN(draft.emplace().program, ops.finish());
    draft->dim = hp.model_dim;
  }
  units.cut(options.tile_bytes);
  if (draft && options.draft_apart) {
    own_units.cut(options.tile_bytes);
    draft->units = std::move(own_units);
  }
  std::vector<residency::Unit> draft_blocks =
      decoder.list_draft_blocks(file, options.draft_block && !head && !assistant ? 1 : 0);
  return std::make_unique<Model>(std::move(hp), std::move(units), std::move(program), std::move(draft_blocks),
                                 std::move(draft), options.stage);
}

}  // namespace millrace::model
