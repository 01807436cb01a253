#include "convert/convert.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "base/log.h"
#include "convert/config.h"
#include "convert/family.h"
#include "convert/forms.h"
#include "convert/header.h"
#include "convert/mapping.h"
#include "convert/pooling.h"
#include "convert/rope.h"
#include "convert/stored.h"
#include "convert/tokenizer.h"
#include "model/model.h"
#include "modelfile/escape.h"
#include "modelfile/gguf_writer.h"
#include "modelfile/safetensors.h"
#include "tensor/codec.h"
#include "tensor/matrices.h"
#include "text/tokenizer.h"

namespace millrace::convert {

namespace fs = std::filesystem;

using modelfile::Value;
using nlohmann::json;

namespace {

constexpr std::int64_t kMostLayers = 10'000, kMostDraftBlocks = 16;

/// The language model's part of config.json.
struct ModelConfig {
  json config;
  std::string type;
  const Family* family = nullptr;
};

/// The text_config of a vision model, completed by keys of the whole config that it lacks.
Expected<ModelConfig> read_model_config(const fs::path& folder) {
  std::error_code ignored;
  const fs::path path = folder / "config.json";
  if (!fs::exists(path, ignored))
    return error(Code::not_found, "{}: there is no config.json beside the weights; give a checkpoint's folder",
                 modelfile::escape(folder.empty() ? "." : folder.string()));
  ModelConfig model;
  MR_ASSIGN_OR_RETURN(model.config, read_json(path.string()));
  json& config = model.config;
  model.type = Config(config).text("model_type", "");
  for (const char* part : {"text_config", "llm_config", "language_config"}) {
    if (!config.contains(part) || !config[part].is_object()) continue;
    json text = config[part];
    for (const auto& [key, value] : config.items())
      if (key != part && !text.contains(key)) text[key] = value;
    if (const std::string own = Config(text).text("model_type", ""); family_of_checkpoint(own) != nullptr)
      model.type = own;
    config = std::move(text);
    break;
  }
  model.family = family_of_checkpoint(model.type);
  if (model.family != nullptr) return model;
  return error(Code::unsupported, "{}: models of type '{}' are not converted by this version; it knows {}",
               modelfile::escape(path.string()), modelfile::escape(model.type, 60), known_families());
}

/// A tensor of the output file.
struct Planned {
  Target target;
  DType dtype = DType::f32;
  int factors = -1;  // index of the tensor with the factors that its weights are divided by; -1: none
};

class Converter {
 public:
  Converter(std::string in, std::string out, const ConvertOptions& options)
      : in_(std::move(in)), out_(std::move(out)), options_(options), header_(metadata_, "") {}

  Expected<ConvertReport> run() {
    MR_RETURN_IF_ERROR(open());
    MR_RETURN_IF_ERROR(read_config());
    MR_RETURN_IF_ERROR(read_pooling(checkpoint_.folder(), header_));
    MR_RETURN_IF_ERROR(plan_tensors());
    MR_RETURN_IF_ERROR(
        read_tokenizer(checkpoint_.folder(), *config_, header_.integer("vocab_size"), family_->pre, metadata_));
    modelfile::Writer writer(out_);
    MR_RETURN_IF_ERROR(write_header(writer));
    MR_RETURN_IF_ERROR(write_factors(writer));
    MR_RETURN_IF_ERROR(check_header(writer));
    if (options_.header_only) {
      MR_RETURN_IF_ERROR(options_.header_only(writer.paths().front() + ".partial"));
      return std::move(report_);
    }
    MR_RETURN_IF_ERROR(write_tensors(writer));
    MR_RETURN_IF_ERROR(writer.finish());
    report_.bytes = writer.file_bytes().front();
    return std::move(report_);
  }

 private:
  Status open();
  Status read_config();
  Status plan_tensors();
  Status plan_head(const Mapping& mapping, const std::vector<NamedTensor>& tensors, const Geometry& geometry);
  Status check_head(bool tied);
  Status check_labels() const;
  Status plan_group(const Group& group, const std::vector<NamedTensor>& tensors, const Geometry& geometry);
  Status read_key(std::string_view key, const Source& source);
  Status multiply(const NameRule& rule, Target& target);
  Expected<DType> kept_dtype(const Target& target, const std::vector<Stored>& parts) const;
  void plan_factors();
  Status write_header(modelfile::Writer& writer);
  Status write_factors(modelfile::Writer& writer);
  Status write_factor(std::size_t index, modelfile::Writer& writer) const;
  Status check_header(const modelfile::Writer& writer) const;
  Status write_tensors(modelfile::Writer& writer);
  Expected<std::vector<float>> importance_of(const Planned& planned, std::int64_t& unknown) const;

  const std::string in_, out_;
  const ConvertOptions& options_;
  modelfile::Checkpoint checkpoint_;
  std::vector<modelfile::File> files_;
  std::unique_ptr<Config> config_;
  const Family* family_ = nullptr;
  Metadata metadata_;
  Header header_;
  std::vector<Factors> factors_;
  std::vector<Source> sources_;
  std::vector<Planned> planned_;
  ConvertReport report_;
};

/// Reads config.json first, so that a folder without one gets that error.
Status Converter::open() {
  std::error_code ignored;
  if (!fs::exists(in_, ignored))
    return error(Code::not_found, "{}: no such file or folder; check the path", modelfile::escape(in_));
  MR_ASSIGN_OR_RETURN(ModelConfig model,
                      read_model_config(fs::is_directory(in_, ignored) ? fs::path(in_) : fs::path(in_).parent_path()));
  family_ = model.family;
  report_.model_type = model.type;
  const std::string_view own = family_->config_class.empty() ? family_->model_type : family_->config_class;
  config_ = std::make_unique<Config>(std::move(model.config), config_class(own));
  if (family_->prepare != nullptr) family_->prepare(*config_);
  if (family_->dense != nullptr && !config_->has("num_local_experts")) family_ = family_->dense;
  const auto classes = config_->texts("architectures");
  if (family_->classifier != nullptr && !classes.empty() && classes.front().ends_with("ForSequenceClassification"))
    family_ = family_->classifier;
  MR_ASSIGN_OR_RETURN(checkpoint_, modelfile::Checkpoint::open(in_));
  MR_ASSIGN_OR_RETURN(files_, modelfile::open_files(checkpoint_.paths()));
  return {};
}

Status Converter::read_config() {
  Config& config = *config_;
  report_.architecture = architecture_of(*family_, config);
  metadata_["general.architecture"] = Value(report_.architecture);
  const std::string folder =
      fs::absolute(checkpoint_.folder().empty() ? "." : checkpoint_.folder()).lexically_normal().filename().string();
  metadata_["general.name"] = Value(options_.name.empty() ? folder : options_.name);
  header_ = Header(metadata_, report_.architecture);
  config.required("num_hidden_layers", 1, kMostLayers);
  config.required("hidden_size", 1, 1 << 20);
  set_keys(common_keys(), config, header_);
  for (const Keys keys : family_->keys) set_keys(keys, config, header_);
  set_heads(config, header_);
  factors_ = read_rotations(config, header_);
  if (family_->read != nullptr) family_->read(config, header_);
  config.refuse_the_rest();
  return config.status();
}

/// MLX stores weight + 1 for norms in checkpoints whose convolutions are [channels, taps, 1]; MLX itself distinguishes
/// them that way.
bool norms_are_shifted(const std::vector<NamedTensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const NamedTensor& tensor) {
    const auto& shape = tensor.stored.shape;
    return tensor.name.ends_with("conv1d.weight") && shape.size() == 3 && shape[1] > 1 && shape[2] == 1;
  });
}

Status Converter::plan_tensors() {
  const std::int64_t layers = header_.integer("block_count");
  MR_ASSIGN_OR_RETURN(const std::vector<NamedTensor> tensors, stored_tensors(checkpoint_, files_, *config_));
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  const bool tied = config_->flag("tie_word_embeddings", false);
  MR_RETURN_IF_ERROR(config_->status());
  MR_ASSIGN_OR_RETURN(const Mapping mapping, map_names(names, *family_, layers, kMostDraftBlocks));
  metadata_.erase(header_.name("nextn_predict_layers"));
  if (mapping.draft_blocks > 0) {
    header_.set_integer("nextn_predict_layers", mapping.draft_blocks);
    header_.set_integer("block_count", layers + mapping.draft_blocks);
  }
  if (mapping.hears > 0) report_.left_out.push_back(fmt::format("{} tensors of what hears", mapping.hears));
  if (mapping.unused > 0)
    report_.left_out.push_back(fmt::format("{} tensors of {}", mapping.unused,
                                           family_->has_head
                                               ? "MTP blocks, with which this version does not draft for such models"
                                               : "heads and poolers, which no sentence vector goes through"));
  Geometry geometry = geometry_of(header_, *family_);
  if (norms_are_shifted(tensors)) geometry.norm_shift = 0;
  for (const Group& group : mapping.groups)
    if (family_->takes == nullptr || family_->takes(*group.rule, group.layer, header_))
      MR_RETURN_IF_ERROR(plan_group(group, tensors, geometry));
  if (tied && family_->multiply != nullptr) MR_RETURN_IF_ERROR(plan_head(mapping, tensors, geometry));
  const auto table = std::find_if(planned_.begin(), planned_.end(),
                                  [](const Planned& one) { return one.target.name == "token_embd.weight"; });
  if (table == planned_.end())
    return error(Code::corrupt, "the checkpoint has no embedding; download all of its files");
  if (family_->has_head) MR_RETURN_IF_ERROR(check_head(tied));
  MR_RETURN_IF_ERROR(check_labels());
  header_.set_integer("vocab_size", table->target.shape.back());
  return {};
}

/// A tied head that is multiplied by another number than the embedding becomes a tensor of its own.
Status Converter::plan_head(const Mapping& mapping, const std::vector<NamedTensor>& tensors, const Geometry& geometry) {
  static constexpr NameRule kHead{"lm_head.weight", "output.weight"};
  Group head;
  for (const Group& group : mapping.groups) {
    if (group.rule->ours == kHead.ours) return {};
    if (group.rule->ours == "token_embd.weight") head = group;
  }
  if (head.parts.empty()) return {};
  const auto of_table = family_->multiply(head.rule->theirs, *config_, header_),
             of_head = family_->multiply(kHead.theirs, *config_, header_);
  if (of_table == of_head) return {};
  head.rule = &kHead;
  return plan_group(head, tensors, geometry);
}

/// True if both targets hold the same numbers.
Expected<bool> same_numbers(const Target& a, const Target& b, std::span<const Source> sources) {
  if (a.rows != b.rows || a.cols != b.cols) return false;
  const std::int64_t step = std::max<std::int64_t>(1, (1 << 18) / a.cols);
  std::vector<float> of_a, of_b;
  Scratch scratch;
  for (std::int64_t row = 0; row < a.rows; row += step) {
    const std::int64_t rows = std::min(step, a.rows - row);
    of_a.resize(static_cast<std::size_t>(rows * a.cols));
    of_b.resize(of_a.size());
    MR_RETURN_IF_ERROR(gather_floats(a, sources, row, rows, scratch, of_a.data()));
    MR_RETURN_IF_ERROR(gather_floats(b, sources, row, rows, scratch, of_b.data()));
    if (of_a != of_b) return false;
  }
  return true;
}

/// Some checkpoints with tied embeddings also contain a head, which transformers then uses. A head that equals the
/// embedding is not written.
Status Converter::check_head(bool tied) {
  const auto find = [&](std::string_view name) {
    return std::find_if(planned_.begin(), planned_.end(), [&](const Planned& one) { return one.target.name == name; });
  };
  const auto head = find("output.weight");
  if (head == planned_.end()) {
    if (tied || report_.model_type != family_->model_type) return {};  // vision models have it in the whole config
    return error(Code::corrupt,
                 "the checkpoint has no lm_head.weight, and config.json does not tie it to the embedding "
                 "(tie_word_embeddings); download all of its files");
  }
  if (!tied) return {};
  MR_ASSIGN_OR_RETURN(const bool same, same_numbers(find("token_embd.weight")->target, head->target, sources_));
  if (same) planned_.erase(head);
  return {};
}

/// Only rerankers are converted among classifiers: models with one label, the relevance of a text.
Status Converter::check_labels() const {
  for (const Planned& one : planned_)
    if (one.target.name == "cls.output.weight" && one.target.rows != 1)
      return error(Code::unsupported, "a classifier of {} labels: this version has those that rank texts by one alone",
                   one.target.rows);
  return {};
}

/// Whole numbers where the rule has such, and nowhere else.
Status check_numbers(const NameRule& rule, const std::vector<Stored>& parts) {
  for (const Stored& part : parts) {
    const bool whole = part.source.dtype == DType::i64 || part.source.dtype == DType::i32;
    if (whole == (rule.form == Form::integers || rule.form == Form::key)) continue;
    return error(Code::unsupported, "tensor '{}' holds {}, and {} is expected; download the model in BF16, F16 or FP8",
                 modelfile::escape(part.source.name, 120), info(part.source.dtype).name,
                 whole ? "floats" : "whole numbers");
  }
  return {};
}

Status Converter::plan_group(const Group& group, const std::vector<NamedTensor>& tensors, const Geometry& geometry) {
  std::vector<Stored> parts;
  for (const std::size_t part : group.parts) parts.push_back(tensors[part].stored);
  Planned planned;
  MR_RETURN_IF_ERROR(check_numbers(*group.rule, parts));
  if (group.rule->form == Form::key) return read_key(group.rule->ours, parts.front().source);
  MR_ASSIGN_OR_RETURN(planned.target, build(*group.rule, geometry, parts, sources_));
  planned.target.name = our_name(*group.rule, group.layer);
  if (family_->multiply != nullptr) MR_RETURN_IF_ERROR(multiply(*group.rule, planned.target));
  MR_RETURN_IF_ERROR(check_target(planned.target, sources_));
  MR_ASSIGN_OR_RETURN(planned.dtype, kept_dtype(planned.target, parts));
  planned_.push_back(std::move(planned));
  return {};
}

/// By Family::multiply: parts of a tensor become sources of their own, which have its rows.
Status Converter::multiply(const NameRule& rule, Target& target) {
  const std::vector<Part> parts = family_->multiply(rule.theirs, *config_, header_);
  MR_RETURN_IF_ERROR(config_->status());
  if (parts.empty()) return {};
  const Run whole = target.runs.front();
  const Source source = sources_[static_cast<std::size_t>(whole.source)];
  std::int64_t rows = 0;
  target.runs.clear();
  for (const Part& part : parts) {
    Source own = source;
    own.factor *= static_cast<float>(part.factor);
    const std::int64_t count = part.rows > 0 ? part.rows : whole.rows;
    target.runs.push_back({static_cast<std::int32_t>(sources_.size()), rows, 1, count});
    sources_.push_back(std::move(own));
    rows += count;
  }
  if (rows == whole.rows) return {};
  return error(Code::corrupt, "tensor '{}' has {} rows, but {} are expected", modelfile::escape(source.name, 120),
               whole.rows, rows);
}

/// Takes a few whole numbers from a tensor.
Status Converter::read_key(std::string_view key, const Source& source) {
  constexpr std::int64_t kMost = 4096;
  const std::int64_t count = source.rows * source.cols;
  if (count > kMost)
    return error(Code::corrupt, "tensor '{}' has {} numbers, and {} at most are expected",
                 modelfile::escape(source.name, 120), count, kMost);
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  if (source.dtype == DType::i64) {
    MR_RETURN_IF_ERROR(source.file->read_at(source.offset, std::as_writable_bytes(std::span(numbers))));
  } else {
    std::vector<std::int32_t> narrow(numbers.size());
    MR_RETURN_IF_ERROR(source.file->read_at(source.offset, std::as_writable_bytes(std::span(narrow))));
    std::copy(narrow.begin(), narrow.end(), numbers.begin());
  }
  header_.set_integers(key, numbers);
  return {};
}

/// The type that keeps the weights of all parts. Blocks that cannot be kept, or have several types, are re-encoded with
/// more bits.
Expected<DType> Converter::kept_dtype(const Target& target, const std::vector<Stored>& parts) const {
  DType dtype = parts.front().source.dtype;
  if (!info(dtype).computable && dtype != DType::f64) return DType::i32;  // check_numbers()
  bool blocks = true;
  for (const Stored& part : parts) {
    const Source& source = part.source;
    blocks &= info(source.dtype).block_elements > 1;
    if (source.dtype != dtype) dtype = DType::f32;
    const bool floats = options_.type || modelfile::stays_float({target.name, DType::f32, target.shape, 0, 0, 0});
    if (source.integers && !source.integers->in_blocks && !floats)
      return error(
          Code::unsupported,
          "tensor '{}' has scales for groups of columns that no block of 32 holds (by g_idx, or smaller): choose "
          "what it becomes with --dtype, such as q8_0 or bf16",
          modelfile::escape(source.name, 120));
  }
  if (!blocks) return dtype;
  for (const DType whole : {dtype, DType::q4_1})
    if (info(whole).block_elements > 1 && is_copy(target, sources_, whole)) return whole;
  return target.cols % info(DType::q8_0).block_elements == 0 ? DType::q8_0 : DType::bf16;
}

/// The type of most weights.
DType most_of(const std::vector<Planned>& planned) {
  std::map<DType, std::int64_t> elements;
  for (const Planned& one : planned) elements[one.dtype] += one.target.rows * one.target.cols;
  DType most = DType::f32;
  for (const auto& [dtype, count] : elements)
    if (count > elements[most]) most = dtype;
  return most;
}

/// general.file_type if weights are kept.
std::uint32_t file_type_of(DType most) {
  static const std::map<DType, std::uint32_t> kTypes = {{DType::f16, 1},   {DType::q4_0, 2},  {DType::q4_1, 3},
                                                        {DType::q8_0, 7},  {DType::bf16, 32}, {DType::mxfp4, 38},
                                                        {DType::nvfp4, 39}};
  const auto type = kTypes.find(most);
  return type == kTypes.end() ? 0 : type->second;
}

/// Adds NAME.scale for each NVFP4 tensor NAME.weight, with one number per matrix, because the bytes of NVFP4 do not
/// include this factor. For tensors encoded here, the factor is found later.
void Converter::plan_factors() {
  for (Planned& one : planned_) {
    if (one.dtype != DType::nvfp4) continue;
    if (!is_copy(one.target, sources_, DType::nvfp4)) {
      if (!modelfile::may_have_scale(one.target.name)) continue;
      one.factors = static_cast<int>(factors_.size());
      const auto matrices = static_cast<std::size_t>(matrices_of(one.target.shape));
      factors_.push_back({modelfile::scale_name(one.target.name), std::vector<float>(matrices, 1.0F)});
      continue;
    }
    std::vector<float> factors = factors_of(one.target, sources_);
    if (std::all_of(factors.begin(), factors.end(), [](float factor) { return factor == 1; })) continue;
    factors_.push_back({modelfile::scale_name(one.target.name), std::move(factors)});
  }
  report_.tensors = planned_.size() + factors_.size();
}

Status Converter::write_header(modelfile::Writer& writer) {
  std::vector<modelfile::TensorInfo> tensors;
  for (const Planned& one : planned_) tensors.push_back({one.target.name, one.dtype, one.target.shape, 0, 0, 0});
  const modelfile::MixtureContext context = modelfile::mixture_context(tensors);
  for (Planned& one : planned_) one.dtype = output_dtype(one.target, one.dtype, options_.type, context);
  plan_factors();
  const DType most = most_of(planned_);
  const std::uint32_t file_type = options_.type ? modelfile::info(*options_.type).file_type : file_type_of(most);
  report_.type = options_.type ? modelfile::info(*options_.type).name : info(most).name;
  const bool blocks = std::any_of(planned_.begin(), planned_.end(),
                                  [](const Planned& one) { return info(one.dtype).block_elements > 1; });
  if (options_.type || blocks) metadata_["general.quantization_version"] = Value(std::uint32_t{2});
  metadata_["general.file_type"] = Value(file_type);
  MR_RETURN_IF_ERROR(writer.add("general.architecture", metadata_.at("general.architecture")));
  for (const auto& [key, value] : metadata_)
    if (key != "general.architecture") MR_RETURN_IF_ERROR(writer.add(key, value));
  for (const Factors& set : factors_)
    MR_RETURN_IF_ERROR(writer.declare(set.name, DType::f32, {static_cast<std::int64_t>(set.floats.size())}));
  for (const Planned& one : planned_) {
    const Status declared = writer.declare(one.target.name, one.dtype, one.target.shape);
    if (!declared.ok())
      return error(Code::corrupt, "the checkpoint gives {} in two ways: {}", one.target.name, declared.message());
  }
  return writer.begin();
}

Status Converter::write_factors(modelfile::Writer& writer) {
  for (std::size_t i = 0; i < factors_.size(); ++i) MR_RETURN_IF_ERROR(write_factor(i, writer));
  return {};
}

Status Converter::write_factor(std::size_t index, modelfile::Writer& writer) const {
  const modelfile::TensorInfo& place = writer.layout()[index];
  return writer.write_range(place.file, place.offset, std::as_bytes(std::span(factors_[index].floats)));
}

/// Loads the file, which has its header and no weights yet, as a model, to find errors in it.
Status Converter::check_header(const modelfile::Writer& writer) const {
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(writer.paths().front() + ".partial"));
  if (const auto tokenizer = text::Tokenizer::from_model(file); !tokenizer.ok()) return tokenizer.status();
  const auto model = model::load(file, {});
  if (model.ok()) return {};
  return error(model.status().code(), "the converted model cannot run: {}", model.status().message());
}

Status Converter::write_tensors(modelfile::Writer& writer) {
  std::uint64_t total = 0;
  for (const modelfile::TensorInfo& tensor : writer.layout()) total += tensor.bytes;
  Work work(options_.work, total);
  std::int64_t unknown = 0;
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const modelfile::TensorInfo& place = writer.layout()[factors_.size() + i];
    const auto write = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
      return writer.write_range(place.file, place.offset + offset, bytes);
    };
    const Planned& one = planned_[i];
    MR_ASSIGN_OR_RETURN(const std::vector<float> importance, importance_of(one, unknown));
    std::span<const float> factors;
    if (one.factors >= 0) {
      std::vector<float>& found = factors_[static_cast<std::size_t>(one.factors)].floats;
      MR_ASSIGN_OR_RETURN(found, work.largest(one.target, sources_, found.size()));
      for (float& factor : found) factor = nvfp4_factor(factor);
      MR_RETURN_IF_ERROR(write_factor(static_cast<std::size_t>(one.factors), writer));
      factors = found;
    }
    MR_RETURN_IF_ERROR(work.make(one.target, sources_, one.dtype, write, importance, factors));
  }
  if (options_.work.progress) options_.work.progress(total, total);
  if (unknown > 0)
    log::warn("the importance matrix has no values for {} matrices; their columns have equal weight", unknown);
  return {};
}

/// Empty: all columns equally. Counts the tensors that will be encoded but are missing in the importance matrix.
Expected<std::vector<float>> Converter::importance_of(const Planned& planned, std::int64_t& unknown) const {
  const bool encoded = info(planned.dtype).block_elements > 1 && !is_copy(planned.target, sources_, planned.dtype);
  if (options_.importance == nullptr || !encoded) return std::vector<float>();
  const auto entry = options_.importance->entries.find(planned.target.name);
  if (entry != options_.importance->entries.end())
    return column_weights(entry->second, {planned.target.name, planned.dtype, planned.target.shape, 0, 0, 0});
  ++unknown;
  return std::vector<float>();
}

}  // namespace

Expected<ConvertReport> convert(const std::string& in, const std::string& out, const ConvertOptions& options) {
  return Converter(in, out, options).run();
}

Status check_model_type(const std::string& folder) { return read_model_config(folder).status(); }

}  // namespace millrace::convert
