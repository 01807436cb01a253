// How a family of checkpoints maps to GGUF: names of tensors, keys of config.json, and the order of rows. A family is a
// table, and two functions for what a table cannot express. convert.cpp and export.cpp read the tables in opposite
// directions and contain no code for a single family. Thread-safety: constants and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "convert/config.h"
#include "convert/header.h"

namespace millrace::convert {

/// How tensors of a checkpoint become one tensor of a GGUF file.
enum class Form : std::uint8_t {
  same,
  norm,        // Family::norm_shift is added
  queries,     // rows of query heads, reordered for RoPE: Family::neighbours interleaves a head's halves, ::halves
               // separates them
  keys,        // the same for KV heads
  experts,     // one matrix per expert (* in the name), joined to [experts, rows, cols]
  pieces,      // runs of a matrix's rows, in order (* in the name); export writes one
  padded,      // as many rows as the vocabulary: missing rows repeat the first
  first_half,  // of the rows of each expert's matrix, or of one matrix: gates before ups
  second_half,
  even,  // every second row (or element of a bias), from the first or the second
  odd,
  turned,  // [experts, inputs, outputs]: each matrix is transposed
  even_turned,
  odd_turned,
  first_half_turned,  // of the columns
  second_half_turned,
  vector,          // [1, n] as [n]
  positions,       // a table of positions: a row for each of the context, which the texts' limit may shorten
  behind_padding,  // the same without its first two rows: RoBERTa counts positions from its padding id, 1
  taps,            // a convolution's [channels, 1, taps], or MLX's [channels, taps, 1], as [channels, taps]
  integers,        // whole numbers, as I32
  key,             // whole numbers, as the key `ours`
  column,          // [n] as [n, 1]
  groups,          // [n] as [groups, n / groups]
  decay,           // -exp(x)
  decay_column,    // the same, as [n, 1]
  decay_heads,     // the same of [1, 1, n, 1], as [n, 1]
  growth_column,   // exp(x), as [n, 1]
  latent_keys,     // the rows of kv_b_proj for keys, transposed per head
  latent_values,
  transposed,   // [inputs, outputs]: the matrix is transposed
  grouped_qkv,  // per KV head: rows of queries, key, value; becomes all q, all k, all v
  mixed_qkv,    // Qwen3-Next's projections, grouped by key head; becomes all q, all k, all v
  mixed_z,      // the same, of z
  tiled_qkv,    // Qwen3.5's value heads: value head h uses key head h mod key heads
  tiled_taps,
  tiled_heads,  // rows of value heads
  tiled_each,   // one row or element per value head
  tiled_decay,
  tiled_columns,
  index_queries,  // an indexer's rows: those of its heads' queries
  index_key,      // and those of the one key behind them
};

/// Maps the checkpoint's tensor `theirs` (# is the layer's number, * an expert's) to GGUF's `ours`. If several rules
/// have the same `ours`, export uses the first.
struct NameRule {
  std::string_view theirs, ours;
  Form form = Form::same;
};
using Names = std::span<const NameRule>;

/// Maps a key of config.json to a GGUF key (with the architecture as its prefix). A key that config.json lacks is not
/// written.
struct KeyRule {
  enum class Kind : std::uint8_t { integer, number, flag };
  std::string_view theirs, ours;
  Kind kind = Kind::integer;
};
using Keys = std::span<const KeyRule>;

/// So many rows of a tensor, in order, and what their numbers are multiplied by. `rows` 0: all there are.
struct Part {
  std::int64_t rows = 0;
  double factor = 1;
  friend bool operator==(const Part&, const Part&) = default;
};

struct Family {
  std::string_view model_type;    // in config.json
  std::string_view model_class;   // written to "architectures" by export
  std::string_view architecture;  // GGUF's
  std::string_view mixture = "";  // GGUF's for models with experts, if it differs
  std::span<const Names> names;
  std::array<Keys, 4> keys = {};       // in addition to common_keys()
  std::string_view config_class = "";  // the transformers class that reads its config.json; empty: that of model_type
  bool neighbours = false;             // RoPE pairs channels (2i, 2i + 1) in GGUF, (i, i + n / 2) in the checkpoint
  bool halves = false;                 // the opposite, for the n rotated channels
  float norm_shift = 0;
  std::string_view prefix = "";                   // of names; checkpoints may omit it
  std::string_view wrapper = "";                  // of names in checkpoints with a head; rules omit it
  std::span<const std::string_view> unused = {};  // prefixes (after the wrapper) of tensors to skip
  bool has_head = true;                           // false: an encoder, which returns states
  bool draft_apart = false;   // the MTP block is "mtp." in the checkpoint, not a layer after the last
  bool skips_extra = false;   // layers after the last are not read
  std::string_view pre = "";  // the pre-tokenizer to choose if several split text alike
  /// Normalises keys that config.json spells in several ways, before any key is read.
  void (*prepare)(Config& config) = nullptr;
  /// For two rules of one tensor of the checkpoint: whether a layer has the rule's. nullptr: every layer has both.
  bool (*takes)(const NameRule& rule, std::int64_t layer, const Header& header) = nullptr;
  /// What the numbers of a tensor, by the checkpoint's name, are multiplied by; empty: nothing. nullptr: none are.
  std::vector<Part> (*multiply)(std::string_view theirs, Config& config, const Header& header) = nullptr;
  /// The layer of tensors whose names in GGUF have no number. nullptr: there are none in layers.
  std::int64_t (*layer_of)(const Header& header) = nullptr;
  /// The family for models without experts, if their tensors have other names.
  const Family* dense = nullptr;
  /// The family for models with a classification head, whose class ends in "ForSequenceClassification".
  const Family* classifier = nullptr;
  /// Convert what `keys` cannot express, to GGUF's keys and back. read() reports errors by Config::fail().
  void (*read)(Config& config, Header& header) = nullptr;
  Status (*write)(const Header& header, nlohmann::json& config) = nullptr;
  /// For families that share an architecture: true if a GGUF file is exported as this family. nullptr: always.
  bool (*matches)(const Header& header) = nullptr;
};

/// nullptr: unknown. `model_type`: that of the text model, for vision models too.
const Family* family_of_checkpoint(std::string_view model_type);
const Family* family_of_file(const Header& header);
/// The GGUF architecture for a checkpoint of this family.
std::string architecture_of(const Family& family, const Config& config);
/// The list of layer types at `key`, in the names of transformers 5.
std::vector<std::string> layer_kinds(Config& config, std::string_view key);
/// For architectures whose readers support no window: shortens the context to the window, and logs it.
void shorten_to_window(Config& config, Header& header);
/// Writes layer_types (layers with KV heads are `attends`, the rest `other`) and the number of KV heads.
void write_layer_types(const Header& header, std::string_view attends, std::string_view other, nlohmann::json& config);
/// layer_types for layers of which every `period`-th has full attention.
nlohmann::json periodic_layer_types(const Header& header, std::int64_t period, std::string_view other);
/// The RoPE sections of Qwen's vision models: channels rotated by a picture's time, height and width.
void read_sections(Config& config, Header& header);
void write_sections(const Header& header, bool interleaved, nlohmann::json& config);
/// The sliding window and the layers that have one: a period in GGUF if layer_types is periodic, else a list.
void read_windows(Config& config, Header& header);
void write_windows(const Header& header, std::int64_t usual_period, nlohmann::json& config);
/// The number of dense layers before the mixtures: that of mlp_layer_types, or else first_k_dense_replace, or else
/// `usual`. Fails with `unsupported` unless the list's other layers are mixtures.
std::int64_t leading_dense(Config& config, std::int64_t usual);
/// Writes both keys. `usual`: for files without leading_dense_block_count.
void write_leading_dense(const Header& header, nlohmann::json& config, std::int64_t usual = 0);
/// Qwen's keys for dense layers within a mixture: fails unless all layers are mixtures.
void expect_mixtures_alone(Config& config);
void write_mixtures_alone(const Header& header, nlohmann::json& config);
/// Keys that nearly all families have.
Keys common_keys();
/// Sets the keys that config.json has, for which there are rules. Errors: by Config::fail().
void set_keys(Keys rules, Config& config, Header& header);
/// Sets the heads' dims and the KV heads, once the heads are set: the head dim is the model dim divided by the heads,
/// unless config.json has another.
void set_heads(Config& config, Header& header);
/// All model types, for messages.
std::string known_families();

// Each table is in its family's file.
extern const Family kLlama, kLlama4, kMistral, kMinistral3, kMixtral;
extern const Family kSmolLm3, kArcee, kErnie45, kGlm4, kGlm4v, kChatGlm, kGemma, kHunyuanDense, kOlmo2, kOlmo3,
    kExaone4;
extern const Family kCohere, kCohere2, kCohere2Moe, kStableLm, kStarCoder2, kNemotron, kPhi2, kJais2;
extern const Family kGpt2, kGptBigCode, kGptNeox, kFalcon, kFalconH1, kBloom, kMpt;
extern const Family kOlmoe, kErnie45Moe, kDots1, kDeepSeek, kBailingMoe2, kHunyuanMoe, kHyV3, kExaoneMoe, kAfmoe,
    kLaguna, kPhiMoe;
extern const Family kQwen2, kQwen2Vl, kQwen2Moe, kQwen3, kQwen3Moe, kQwen3Vl, kQwen3VlMoe, kSeedOss;
extern const Family kQwen3Next, kQwen35, kQwen35Moe, kQwen4Exp;
extern const Family kGemma2, kGemma3, kGemma3n, kGemma4;
extern const Family kGptOss;
extern const Family kGranite, kGraniteMoe, kGraniteMoeShared, kGraniteHybrid, kGraniteHybridDense, kMiniCpm;
extern const Family kPhi3;
extern const Family kGlm4Moe, kMiniMaxM2, kMiniMaxM3, kMimoV2;
extern const Family kDeepSeekV2, kDeepSeekV3, kKimiK2, kGlm4MoeLite;
extern const Family kDeepSeekV32, kGlmMoeDsa, kMistral4;
extern const Family kKimiLinear, kLing3;
extern const Family kDeepSeekV4, kStep35;
extern const Family kLfm2, kLfm2Moe;
extern const Family kBert, kXlmRoberta, kRoberta, kNomicBert, kModernBert, kEuroBert, kJinaV3;
extern const Family kMamba, kFalconMamba, kJamba, kMamba2;
extern const Family kNemotronH;

}  // namespace millrace::convert
