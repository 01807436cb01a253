// A model as an executor takes it: hyperparameters, units, and the program of a pass. One file an architecture.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "exec/program.h"
#include "modelfile/gguf.h"
#include "residency/unit.h"

namespace millrace::model {

/// How a text's states become its embedding; numbered as the GGUF key pooling_type is. `first` is what BERT calls CLS;
/// `rank` is the last token's state as it is, for a RankHead; `other` is what this version does not know. Behind it
/// stand those of no file: the first token's state and the mean, as they are.
enum class Pooling : std::uint8_t {
  none = 0,
  mean = 1,
  first = 2,
  last = 3,
  rank = 4,
  other = 5,
  rank_first,
  rank_mean
};

/// Hyperparameters every architecture has, under the field's names; the most of any layer where layers differ.
struct Hyperparameters {
  std::string architecture, name;
  std::int64_t layers = 0, model_dim = 0, ff_dim = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  std::int64_t context_length = 0;
  std::int64_t experts = 0, top_k = 0, expert_ff = 0;  // 0 for dense models; so are heads where no layer attends
  std::int64_t draft_blocks = 0;                       // behind the layers, as the file says: Model::draft_blocks()
  bool beyond_original = false;  // the context asked for is longer than LongRoPE's original one (model/rope.h)
  double rms_eps = 1e-5, rope_theta = 10000;
  std::int64_t rotary = 0;
  std::int64_t value_dim = 0;       // of heads that have keys and values of their own
  Pooling pooling = Pooling::none;  // where the file does not say
  bool causal = true;               // false: tokens see those behind them, so that a model embeds texts and writes none
  std::int64_t deepstack_layers = 0;  // the first ones, behind which rows of pictures add columns of their own
  bool pictures_see_ahead = false;    // a picture's rows see each other, in some layers at least
  std::int64_t most_positions = 0;  // then: no context is longer, because the file has an embedding for each; 0: any is
};

/// Layers [first, last) of a model, which one process of several computes. The first stage has the embedding; those
/// behind it are given the residual stream, [rows, model_dim] (exec::Ops::given()). The last one has the final norm and
/// the head; those before it hand the residual stream over (exec::Ops::hidden()) in every pass.
struct Stage {
  std::int64_t first = 0, last = 0;  // last 0: to the end

  bool whole() const { return first == 0 && last == 0; }
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// Of every matrix the rows that one of `count` GPUs computes; of attention, whole heads. What each made is brought
/// together on all (exec::Ops::gather()) before anybody reads it, so that no sum is cut and no bit depends on `count`.
/// Norms and the embedding are everybody's.
struct Shard {
  std::int64_t index = 0, count = 1;

  bool whole() const { return count == 1; }
};

/// Passes that guess more tokens, over units that stand aside in Model::units(), or in a table of their own.
struct DraftPasses {
  /// A row is a token and, given (exec::Ops::given()), `dim` numbers of the position before it, which is the row's
  /// position: the model's final states, or what `fusion` made of its taps. What it gives are logits of the token
  /// behind, and states that stand in place of those numbers for one guess more. Its layout is of its own layer alone,
  /// unless reads_model.
  exec::Program program;
  /// Of a head in a file of its own: given what the model's tapped layers read, [rows, taps * model_dim], its states
  /// are `dim` numbers a row. It keeps nothing of a sequence.
  std::optional<exec::Program> fusion;
  std::int64_t dim = 0, taps = 0;
  /// The program's layers read the model's keys and values (model/gemma4_assistant.h): its passes are over the model's
  /// sequences and write nothing to them. A row stands at the last position that the sequence has, and its token is the
  /// one behind it, or a guess behind that.
  bool reads_model = false;
  std::vector<std::int32_t> tokens = {};  // the model's token of each logit; empty: all, in their order
  /// LoadOptions::draft_apart: all units of these passes, the model's among them.
  std::optional<residency::UnitTable> units = std::nullopt;

  std::int32_t token(std::int64_t logit) const {
    return tokens.empty() ? static_cast<std::int32_t>(logit) : tokens[static_cast<std::size_t>(logit)];
  }
};

/// What a file holds, ready for an executor. Immutable.
class Model {
 public:
  Model(Hyperparameters hp, residency::UnitTable units, exec::Program program,
        std::vector<residency::Unit> draft_blocks = {}, std::optional<DraftPasses> draft_passes = std::nullopt,
        Stage stage = {})
      : hp_(std::move(hp)),
        units_(std::move(units)),
        program_(std::move(program)),
        draft_blocks_(std::move(draft_blocks)),
        draft_passes_(std::move(draft_passes)),
        stage_(stage) {}

  /// The same model, its weights lying elsewhere. REQUIRES: units as it has them.
  std::unique_ptr<Model> with(residency::UnitTable units) const {
    return std::make_unique<Model>(hp_, std::move(units), program_, draft_blocks_, draft_passes_, stage_);
  }

  /// Of the whole model, also where only a stage of it was loaded.
  const Hyperparameters& hyperparameters() const { return hp_; }
  const residency::UnitTable& units() const { return units_; }
  /// All layers, or those of the stage, for every row of a pass.
  const exec::Program& program() const { return program_; }
  const Stage& stage() const { return stage_; }
  /// Blocks behind the layers that were trained to guess more tokens (nextn_predict_layers), a unit each. No pass uses
  /// them, no plan counts them: their home is the disk.
  const std::vector<residency::Unit>& draft_blocks() const { return draft_blocks_; }
  /// Where LoadOptions asked for them: passes through the first of those blocks, or through a head in a file of its
  /// own. Null: nobody asked.
  const DraftPasses* draft_passes() const { return draft_passes_ ? &*draft_passes_ : nullptr; }

 private:
  Hyperparameters hp_;
  residency::UnitTable units_;
  exec::Program program_;
  std::vector<residency::Unit> draft_blocks_;
  std::optional<DraftPasses> draft_passes_;
  Stage stage_;
};

struct LoadOptions {
  std::uint64_t tile_bytes = 16u << 20;
  std::int64_t context_tokens = 0;  // of a sequence, as asked for; 0: nobody asked
  bool draft_block = false;         // Model::draft_passes() is wanted. Errors then: unsupported (the file has no such
                                    // block, or one that cannot be run)
  Stage stage = {};  // only these layers: units and program have nothing of the others. Errors then: invalid_argument
                     // (there are no such layers), unsupported (more than the residual stream crosses its borders)
  // draft_block: the head to guess with in the block's place (model/eagle3.h, model/gemma4_assistant.h), whose files
  // come behind the model's in the units' numbers. Errors then: also those of read_eagle3() or read_gemma4_assistant().
  const modelfile::Model* draft_head = nullptr;
  bool draft_apart =
      false;         // draft_block: fills in DraftPasses::units, because other memory holds them than the model's
  Shard shard = {};  // only these rows. Errors then: unsupported (the model's layers are of a kind, or have a number of
                     // heads, that is not cut so)
};

/// Reads the file's general.architecture and makes the model. Errors: unsupported (the architecture, named, with those
/// that work), corrupt (a tensor's shape disagrees with the hyperparameters, both named), not_found.
Expected<std::unique_ptr<Model>> load(const modelfile::Model& file, const LoadOptions& options);

/// Errors: unsupported (the model embeds texts and writes none).
Status check_writes(const Hyperparameters& hp);

/// Names that load() knows, for messages and docs.
std::vector<std::string> architectures();

}  // namespace millrace::model
