// What a family of checkpoints is called, by its own files and by GGUF's: names of tensors, keys of config.json, and in
// which order rows stand. A family is a table and, for what no row of a table says, two functions. The tables are read
// in both directions: convert.cpp and export.cpp know nothing of a family beside them.
// Thread-safety: constants and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "convert/config.h"
#include "convert/header.h"

namespace millrace::convert {

/// How a checkpoint's tensors make one of a GGUF file.
enum class Form : std::uint8_t {
  same,
  norm,        // Family::norm_shift is added
  queries,     // rows of heads: where Family::neighbours, halves of a head come to stand side by side; halves: apart
  keys,        // the same of KV heads
  experts,     // one matrix an expert (* in the name), joined to [experts, rows, cols]
  padded,      // as many rows as the vocabulary has: those that are missing are the first once more
  first_half,  // of the rows of each expert's matrix, or of one matrix: gates in front of ups
  second_half,
  even,  // each second row (or number of a bias), from the first or the second on
  odd,
  turned,  // [experts, inputs, outputs]: a matrix's columns are rows here
  even_turned,
  odd_turned,
  first_half_turned,  // of the columns
  second_half_turned,
  vector,          // [1, n] as [n]
  behind_padding,  // a table's rows but the first two: RoBERTa counts positions from its padding's id, which is 1, on
  taps,            // a convolution's [channels, 1, taps], or MLX's [channels, taps, 1], without the one
  column,          // [n] as [n, 1]
  groups,          // [n] as [groups, n / groups]
  decay,           // -exp(x)
  decay_column,    // the same, as [n, 1]
  latent_keys,     // of each head's rows of kv_b_proj those for keys, turned
  latent_values,
  transposed,   // [inputs, outputs]: the matrix's columns are rows here
  grouped_qkv,  // of each KV head its queries' rows, its key's and its value's, as all q, k, v
  mixed_qkv,    // Qwen3-Next's projections, one key head after the other, as q, k, v
  mixed_z,      // and z
  tiled_qkv,    // Qwen3.5's value heads: head h reads key head h mod key heads
  tiled_taps,
  tiled_heads,  // rows of value heads
  tiled_each,   // one row or number a value head
  tiled_decay,
  tiled_columns,
};

/// A tensor: `theirs` with # for the layer's number and * for an expert's, `ours` with # for the layer's. Of rows with
/// one `ours` the first is the one that is exported.
struct NameRule {
  std::string_view theirs, ours;
  Form form = Form::same;
};
using Names = std::span<const NameRule>;

/// A key of config.json and of GGUF (there with the architecture before it) that hold the same. What config.json lacks
/// is left out.
struct KeyRule {
  enum class Kind : std::uint8_t { integer, number, flag };
  std::string_view theirs, ours;
  Kind kind = Kind::integer;
};
using Keys = std::span<const KeyRule>;

struct Family {
  std::string_view model_type;    // in config.json
  std::string_view model_class;   // in its "architectures", for export
  std::string_view architecture;  // GGUF's
  std::string_view mixture = "";  // GGUF's of those with experts, where it is another
  std::span<const Names> names;
  std::array<Keys, 3> keys = {};       // beside those that all have
  std::string_view config_class = "";  // the class of transformers that reads its config.json; empty: model_type's
  bool neighbours = false;             // GGUF turns channels (2i, 2i + 1), the checkpoint (i, i + n / 2)
  bool halves = false;                 // the other way round, of the n that are turned
  float norm_shift = 0;
  std::string_view prefix = "";   // of names that checkpoints may leave out
  std::string_view wrapper = "";  // of names in checkpoints that have a head, too: the rules leave it out
  std::span<const std::string_view> unused = {};  // what names begin with that are left out, behind the wrapper
  bool has_head = true;                           // false: an encoder's, which gives states
  bool draft_apart = false;   // the block that guesses is "mtp." in the checkpoint, not a layer behind the last
  std::string_view pre = "";  // the name of its pre-tokenizer, where several cut alike
  /// Brings what config.json spells in several ways into one, before any key is read.
  void (*prepare)(Config& config) = nullptr;
  /// The family of those without experts, where their tensors go by other names.
  const Family* dense = nullptr;
  /// The family of those with a classifier's head, of a class that ends in "ForSequenceClassification".
  const Family* classifier = nullptr;
  /// What no row of `keys` says, into GGUF's keys and back. Errors by Config::fail(); of the way back by return.
  void (*read)(Config& config, Header& header) = nullptr;
  Status (*write)(const Header& header, nlohmann::json& config) = nullptr;
  /// Of families that share an architecture: whether a GGUF file is exported as this one. nullptr: always.
  bool (*matches)(const Header& header) = nullptr;
};

/// nullptr: none. `model_type` is that of the text model, in one that sees, too.
const Family* family_of_checkpoint(std::string_view model_type);
const Family* family_of_file(const Header& header);
/// GGUF's architecture of a checkpoint of this family.
std::string architecture_of(const Family& family, const Config& config);
/// A list of layers' kinds by the names of transformers 5, whichever the file has.
std::vector<std::string> layer_kinds(Config& config, std::string_view key);
/// Of architectures whose readers know of no window: a context no longer than it. Says so.
void shorten_to_window(Config& config, Header& header);
/// Which layers attend, those with KV heads, as config.json's layer_types has it; and how many heads these have.
void write_layer_types(const Header& header, std::string_view attends, std::string_view other, nlohmann::json& config);
/// Of layers of which each `period`-th attends to all: their layer_types.
nlohmann::json periodic_layer_types(const Header& header, std::int64_t period, std::string_view other);
/// Which channels of a head turn by a picture's time, height and width: of Qwen's models that see.
void read_sections(Config& config, Header& header);
void write_sections(const Header& header, bool interleaved, nlohmann::json& config);
/// The window of layers and which of them have one, as GGUF has it: a period where layer_types has one, else a list.
void read_windows(Config& config, Header& header);
void write_windows(const Header& header, std::int64_t usual_period, nlohmann::json& config);
/// Of Qwen's keys for layers that are no mixture: there are none.
void expect_mixtures_alone(Config& config);
void write_mixtures_alone(const Header& header, nlohmann::json& config);
/// Keys that nearly all families have.
Keys common_keys();
/// The model types there are, for messages.
std::string known_families();

// Each family's file has its table.
extern const Family kLlama, kLlama4, kMistral, kMinistral3, kMixtral;
extern const Family kSmolLm3, kArcee, kErnie45, kGlm4, kGlm4v, kChatGlm, kGemma, kHunyuanDense, kOlmo2, kOlmo3,
    kExaone4;
extern const Family kCohere, kCohere2, kCohere2Moe, kStableLm, kStarCoder2, kNemotron, kPhi2, kJais2;
extern const Family kGpt2, kGptBigCode, kGptNeox, kFalcon, kBloom, kMpt;
extern const Family kOlmoe, kErnie45Moe, kDots1, kDeepSeek, kBailingMoe2, kHunyuanMoe, kHyV3, kExaoneMoe, kAfmoe,
    kPhiMoe;
extern const Family kQwen2, kQwen2Vl, kQwen2Moe, kQwen3, kQwen3Moe, kQwen3Vl, kQwen3VlMoe, kSeedOss;
extern const Family kQwen3Next, kQwen35, kQwen35Moe;
extern const Family kGemma2, kGemma3, kGemma3n, kGemma4;
extern const Family kGptOss;
extern const Family kGranite, kGraniteMoe, kGraniteMoeShared, kGraniteHybrid, kGraniteHybridDense, kMiniCpm;
extern const Family kPhi3;
extern const Family kGlm4Moe, kMiniMaxM2;
extern const Family kDeepSeekV2, kDeepSeekV3, kKimiK2, kGlm4MoeLite;
extern const Family kDeepSeekV32, kGlmMoeDsa, kMistral4;
extern const Family kLfm2, kLfm2Moe;
extern const Family kBert, kXlmRoberta, kRoberta, kNomicBert, kModernBert, kEuroBert;
extern const Family kMamba2;
extern const Family kNemotronH;

}  // namespace millrace::convert
