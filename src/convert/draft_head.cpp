#include "convert/draft_head.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "convert/config.h"
#include "convert/family.h"
#include "convert/forms.h"
#include "convert/header.h"
#include "convert/mapping.h"
#include "convert/rope.h"
#include "convert/stored.h"
#include "model/eagle3.h"
#include "model/model.h"
#include "modelfile/escape.h"
#include "modelfile/gguf_writer.h"
#include "modelfile/safetensors.h"

namespace millrace::convert {

namespace fs = std::filesystem;

using modelfile::Element;
using modelfile::Value;
using nlohmann::json;

namespace {

constexpr std::string_view kTokens = "d2t", kTaken = "t2d";  // the second follows from the first
constexpr std::string_view kMidLayer = "midlayer.", kFirstLayer = "layers.0.";

constexpr NameRule kHeadNames[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"fc.weight", "fc.weight"},
    {"input_norm.weight", "enc.output_norm.weight"},
    {"norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"layers.#.input_layernorm.weight", "blk.#.attn_norm.weight"},
    {"layers.#.hidden_norm.weight", "blk.#.attn_norm_2.weight"},
    {"layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight", Form::queries},
    {"layers.#.self_attn.q_proj.bias", "blk.#.attn_q.bias", Form::queries},
    {"layers.#.self_attn.k_proj.weight", "blk.#.attn_k.weight", Form::keys},
    {"layers.#.self_attn.k_proj.bias", "blk.#.attn_k.bias", Form::keys},
    {"layers.#.self_attn.v_proj.weight", "blk.#.attn_v.weight"},
    {"layers.#.self_attn.v_proj.bias", "blk.#.attn_v.bias"},
    {"layers.#.self_attn.o_proj.weight", "blk.#.attn_output.weight"},
    {"layers.#.post_attention_layernorm.weight", "blk.#.ffn_norm.weight"},
    {"layers.#.mlp.gate_proj.weight", "blk.#.ffn_gate.weight"},
    {"layers.#.mlp.up_proj.weight", "blk.#.ffn_up.weight"},
    {"layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight"},
};
constexpr Names kNames[] = {kHeadNames};
constexpr Family kHead{.model_type = "eagle3",
                       .model_class = "",
                       .architecture = model::kEagle3,
                       .names = kNames,
                       .neighbours = true,
                       .wrapper = "model."};

fs::path folder_of(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? fs::path(path) : fs::path(path).parent_path();
}

/// speculators' type, SpecForge's class, or SafeAILab's: a Llama whose logits are of fewer tokens.
bool is_head(const json& json) {
  Config config(json);
  if (config.has("speculators_model_type")) return config.text("speculators_model_type", "") == model::kEagle3;
  std::vector<std::string> classes = config.texts("architectures");
  std::string name = classes.empty() ? std::string() : std::move(classes.front());
  if (name == "LlamaForCausalLM") return config.has("draft_vocab_size");
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.find(model::kEagle3) != std::string::npos;
}

/// Of the layer, completed by what stands beside it.
json layer_config(json whole) {
  constexpr const char* kLayer = "transformer_layer_config";
  if (!whole.contains(kLayer) || !whole[kLayer].is_object()) return whole;
  json layer = whole[kLayer];
  for (const auto& [key, value] : whole.items())
    if (key != kLayer && !layer.contains(key)) layer[key] = value;
  return layer;
}

/// A tensor of the output file.
struct Planned {
  Target target;
  DType dtype = DType::f32;
};

class HeadConverter {
 public:
  HeadConverter(std::string in, std::string base, std::string out, const ConvertOptions& options)
      : in_(std::move(in)),
        base_path_(std::move(base)),
        out_(std::move(out)),
        options_(options),
        header_(metadata_, std::string(model::kEagle3)) {}

  Expected<DraftHeadReport> run() {
    MR_RETURN_IF_ERROR(open());
    MR_RETURN_IF_ERROR(read_config());
    MR_RETURN_IF_ERROR(read_tokens());
    MR_RETURN_IF_ERROR(plan_tensors());
    modelfile::Writer writer(out_);
    MR_RETURN_IF_ERROR(write_header(writer));
    MR_RETURN_IF_ERROR(check_header(writer));
    MR_RETURN_IF_ERROR(write_tensors(writer));
    MR_RETURN_IF_ERROR(writer.finish());
    report_.bytes = writer.file_bytes().front();
    return std::move(report_);
  }

 private:
  Status open();
  Status read_config();
  void read_target_layers();
  Status read_tokens();
  Status plan_tensors();
  Status write_header(modelfile::Writer& writer);
  Status check_header(const modelfile::Writer& writer) const;
  Status write_tensors(modelfile::Writer& writer);

  const std::string in_, base_path_, out_;
  const ConvertOptions& options_;
  modelfile::Model base_;
  model::Hyperparameters target_;
  modelfile::Checkpoint checkpoint_;
  std::vector<modelfile::File> files_;
  std::unique_ptr<Config> config_;
  Metadata metadata_;
  Header header_;
  std::vector<std::int64_t> tokens_;  // of the model, by the head's; empty: the same
  std::vector<Factors> factors_;
  std::vector<Source> sources_;
  std::vector<Planned> planned_;
  DraftHeadReport report_;
};

Status HeadConverter::open() {
  MR_ASSIGN_OR_RETURN(base_, modelfile::Model::open(base_path_));
  {
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model, model::load(base_, {}));
    target_ = model->hyperparameters();
  }
  MR_ASSIGN_OR_RETURN(report_.architecture, base_.get_string("general.architecture"));
  MR_ASSIGN_OR_RETURN(json whole, read_json((folder_of(in_) / "config.json").string()));
  config_ = std::make_unique<Config>(layer_config(std::move(whole)), config_class("llama"));
  MR_ASSIGN_OR_RETURN(checkpoint_, modelfile::Checkpoint::open(in_));
  MR_ASSIGN_OR_RETURN(files_, modelfile::open_files(checkpoint_.paths()));
  return {};
}

/// speculators counts layers whose inputs are read, eagle_config (SGLang, ModelOpt) those whose results are.
void HeadConverter::read_target_layers() {
  std::vector<std::int64_t>& layers = report_.target_layers;
  Config older = config_->within("eagle_config");
  constexpr const char* kKey = "eagle_aux_hidden_state_layer_ids";
  const bool before = config_->has(kKey);
  const std::vector<double> named = before ? config_->numbers(kKey) : older.numbers(kKey);
  for (const double layer : named) layers.push_back(static_cast<std::int64_t>(layer) + (before ? 0 : 1));
  if (layers.empty()) layers = {2, target_.layers / 2, target_.layers - 3};
  header_.set_integers("target_layers", layers);
  for (const char* key : {"use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm"})
    older.expect(key, true);
  older.expect("use_mtp_layernorm", false);
  config_->fail(older.status());
}

Status HeadConverter::read_config() {
  Config& config = *config_;
  metadata_["general.architecture"] = Value(std::string(model::kEagle3));
  const std::string folder =
      fs::absolute(checkpoint_.folder().empty() ? "." : checkpoint_.folder()).lexically_normal().filename().string();
  metadata_["general.name"] = Value(options_.name.empty() ? folder : options_.name);
  config.expect("num_hidden_layers", 1);
  config.required("hidden_size", 1, 1 << 20);
  set_keys(common_keys(), config, header_);
  header_.set_integer("block_count", 1);
  header_.set_integer("vocab_size", target_.vocab);
  set_heads(config, header_);
  header_.set_integer("rope.dimension_count", header_.integer("attention.key_length"));
  factors_ = read_rotations(config, header_);
  config.expect("hidden_act", "silu");
  for (const char* key : {"fc_norm", "norm_output"}) config.expect(key, false);
  header_.set("norm_before_residual", config.flag("norm_before_residual", false));
  header_.set("norm_before_fc", config.flag("norm_before_fc", checkpoint_.find("input_norm.weight") != nullptr));
  read_target_layers();
  config.refuse_the_rest();
  for (const auto& [key, value] : base_.metadata())
    if (key.starts_with("tokenizer.")) metadata_[key] = value;
  return config.status();
}

Status HeadConverter::read_tokens() {
  const modelfile::CheckpointTensor* const table = checkpoint_.find(kTokens);
  if (table == nullptr) return {};
  if (table->shape.size() != 1 || (table->element != Element::i64 && table->element != Element::i32))
    return error(Code::corrupt, "tensor '{}' holds {}, not a vector of I64; fetch the head again", kTokens,
                 element_name(table->element));
  std::vector<std::byte> bytes(table->bytes);
  MR_RETURN_IF_ERROR(files_[static_cast<std::size_t>(table->file)].read_at(table->offset, bytes));
  const auto step = static_cast<std::size_t>(element_bytes(table->element));
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    std::int64_t distance = 0;
    if (table->element == Element::i64) {
      std::memcpy(&distance, bytes.data() + at, step);
    } else {
      std::int32_t narrow = 0;
      std::memcpy(&narrow, bytes.data() + at, step);
      distance = narrow;
    }
    const std::int64_t own = std::ssize(tokens_);
    if (distance < -own || distance >= target_.vocab - own)
      return error(Code::invalid_argument,
                   "token {} of the head is {} behind itself in the model's vocabulary, which has {}; name the model "
                   "that it was trained for with --base",
                   own, distance, target_.vocab);
    tokens_.push_back(own + distance);
  }
  return {};
}

Status HeadConverter::plan_tensors() {
  MR_ASSIGN_OR_RETURN(std::vector<NamedTensor> tensors,
                      stored_tensors(checkpoint_, files_, *config_, {kTokens, kTaken}));
  std::vector<std::string> names;
  for (const NamedTensor& tensor : tensors) {
    std::string& name = names.emplace_back(tensor.name);
    if (const std::size_t at = name.find(kMidLayer); at != std::string::npos)
      name.replace(at, kMidLayer.size(), kFirstLayer);
  }
  MR_ASSIGN_OR_RETURN(const Mapping mapping, map_names(names, kHead, 1, 0));
  const Geometry geometry = geometry_of(header_, kHead);
  for (const Group& group : mapping.groups) {
    std::vector<Stored> parts;
    for (const std::size_t part : group.parts) parts.push_back(tensors[part].stored);
    Planned planned;
    MR_ASSIGN_OR_RETURN(planned.target, build(*group.rule, geometry, parts, sources_));
    planned.target.name = our_name(*group.rule, group.layer);
    MR_RETURN_IF_ERROR(check_target(planned.target, sources_));
    const DType stored = parts.front().source.dtype;
    planned.dtype = info(stored).block_elements > 1 ? DType::bf16 : stored;
    if (planned.target.name == "fc.weight") header_.set_integer("target_hidden_size", planned.target.cols / 3);
    planned_.push_back(std::move(planned));
  }
  return {};
}

Status HeadConverter::write_header(modelfile::Writer& writer) {
  std::vector<modelfile::TensorInfo> tensors;
  for (const Planned& one : planned_) tensors.push_back({one.target.name, one.dtype, one.target.shape, 0, 0, 0});
  const modelfile::MixtureContext context = modelfile::mixture_context(tensors);
  for (Planned& one : planned_) one.dtype = output_dtype(one.target, one.dtype, options_.type, context);
  if (options_.type) {
    metadata_["general.quantization_version"] = Value(std::uint32_t{2});
    metadata_["general.file_type"] = Value(modelfile::info(*options_.type).file_type);
  }
  MR_RETURN_IF_ERROR(writer.add("general.architecture", metadata_.at("general.architecture")));
  for (const auto& [key, value] : metadata_)
    if (key != "general.architecture") MR_RETURN_IF_ERROR(writer.add(key, value));
  if (!tokens_.empty()) MR_RETURN_IF_ERROR(writer.declare(std::string(kTokens), DType::i64, {std::ssize(tokens_)}));
  for (const Factors& set : factors_)
    MR_RETURN_IF_ERROR(writer.declare(set.name, DType::f32, {std::ssize(set.floats)}));
  for (const Planned& one : planned_) MR_RETURN_IF_ERROR(writer.declare(one.target.name, one.dtype, one.target.shape));
  MR_RETURN_IF_ERROR(writer.begin());
  report_.tensors = writer.layout().size();
  std::size_t at = 0;
  const auto write = [&](std::span<const std::byte> bytes) {
    const modelfile::TensorInfo& place = writer.layout()[at++];
    return writer.write_range(place.file, place.offset, bytes);
  };
  if (!tokens_.empty()) MR_RETURN_IF_ERROR(write(std::as_bytes(std::span(tokens_))));
  for (const Factors& set : factors_) MR_RETURN_IF_ERROR(write(std::as_bytes(std::span(set.floats))));
  return {};
}

/// Loads the file, which has its header and no weights yet, beside the model.
Status HeadConverter::check_header(const modelfile::Writer& writer) const {
  MR_ASSIGN_OR_RETURN(const modelfile::Model head, modelfile::Model::open(writer.paths().front() + ".partial"));
  model::LoadOptions beside;
  beside.draft_block = true;
  beside.draft_head = &head;
  return model::load(base_, beside).status();
}

Status HeadConverter::write_tensors(modelfile::Writer& writer) {
  const std::size_t first = writer.layout().size() - planned_.size();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < planned_.size(); ++i) total += writer.layout()[first + i].bytes;
  Work work(options_.work, total);
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const modelfile::TensorInfo& place = writer.layout()[first + i];
    const auto write = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
      return writer.write_range(place.file, place.offset + offset, bytes);
    };
    MR_RETURN_IF_ERROR(work.make(planned_[i].target, sources_, planned_[i].dtype, write));
  }
  if (options_.work.progress) options_.work.progress(total, total);
  return {};
}

}  // namespace

bool is_draft_head(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored) && !path.ends_with(".safetensors")) return false;
  const auto config = read_json((folder_of(path) / "config.json").string());
  return config.ok() && is_head(*config);
}

Expected<DraftHeadReport> convert_draft_head(const std::string& in, const std::string& base, const std::string& out,
                                             const ConvertOptions& options) {
  return HeadConverter(in, base, out, options).run();
}

}  // namespace millrace::convert
