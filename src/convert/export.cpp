#include "convert/export.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "convert/family.h"
#include "convert/forms.h"
#include "convert/header.h"
#include "convert/json_file.h"
#include "convert/mapping.h"
#include "convert/rope.h"
#include "convert/tokenizer.h"
#include "model/model.h"
#include "modelfile/escape.h"
#include "modelfile/gguf.h"
#include "modelfile/safetensors_writer.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/matrices.h"

namespace millrace::convert {

namespace fs = std::filesystem;
using modelfile::Element;
using nlohmann::json;

namespace {

/// A tensor of the checkpoint to write, assembled from parts of the file's tensors.
struct Wanted {
  std::string name;
  std::vector<std::int64_t> shape;  // PyTorch's order
  std::vector<Placed> parts;
  std::int64_t cols = 0;  // as it is gathered
  DType dtype = DType::f32;
  Change change = Change::none;
  std::vector<std::int32_t> columns;
  std::int64_t columns_each = 1;
  std::size_t declared = 0;                // index of its first tensor in the checkpoint; MXFP4 and NVFP4 have several
  Target target;                           // its rows, from those of the file
  float factor = 1;                        // of NVFP4
  std::int64_t lanes = 1;                  // Target::lanes
  std::vector<std::int64_t> numbers = {};  // of a key, in place of all this

  std::int64_t rows() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()) / cols;
  }
};

class Exporter {
 public:
  Exporter(std::string in, std::string out, const ExportOptions& options)
      : in_(std::move(in)), out_(std::move(out)), options_(options) {}

  Expected<ExportReport> run() {
    MR_RETURN_IF_ERROR(open());
    MR_RETURN_IF_ERROR(plan());
    MR_RETURN_IF_ERROR(make_folder());
    const Status written = write();
    std::error_code failure;
    if (written.ok()) fs::rename(partial_, out_, failure);
    if (written.ok() && !failure) return report_;
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
    if (!written.ok()) return written;
    return error(Code::io_error, "{}: cannot give the finished folder its name: {}", modelfile::escape(out_),
                 failure.message());
  }

 private:
  Status open();
  Status plan();
  Status plan_tensor(std::size_t index, const Geometry& geometry);
  void plan_keys();
  Status plan_target(Wanted& wanted);
  Expected<bool> take_factors(std::size_t index);
  const NameRule* rule_for(std::size_t index, std::int64_t& layer) const;
  Status make_folder();
  Status write();
  Expected<json> config() const;
  Expected<std::vector<float>> factors(std::string_view name) const;
  Status declare(modelfile::CheckpointWriter& writer);
  Status write_one(const Wanted& wanted, Work& work, const modelfile::CheckpointWriter& writer);
  Status write_decay(const Wanted& wanted, const modelfile::CheckpointWriter& writer) const;
  bool any_values_are_keys() const;
  std::string torch_dtype() const;
  json quantization_config() const;
  DType dtype_for(const modelfile::TensorInfo& tensor) const;

  const std::string in_, out_;
  const ExportOptions& options_;
  std::string partial_;
  modelfile::Model model_;
  Metadata metadata_;
  std::unique_ptr<Header> header_;
  const Family* family_ = nullptr;
  std::vector<modelfile::File> files_;
  std::vector<Source> sources_;  // tensors of the file
  std::vector<Wanted> wanted_;
  std::map<std::string, std::size_t> by_name_;
  ExportReport report_;
};

/// RoPE factors go to config.json, not to a tensor.
bool is_factors(std::string_view name) { return name.starts_with("rope_"); }

Status Exporter::open() {
  MR_ASSIGN_OR_RETURN(model_, modelfile::Model::open(in_));
  if (const auto loaded = model::load(model_, {}); !loaded.ok()) return loaded.status();
  metadata_ = model_.metadata();
  MR_ASSIGN_OR_RETURN(report_.architecture, model_.get_string("general.architecture"));
  header_ = std::make_unique<Header>(metadata_, report_.architecture);
  family_ = family_of_file(*header_);
  if (family_ == nullptr)
    return error(Code::unsupported, "models of architecture '{}' are not exported by this version",
                 modelfile::escape(report_.architecture, 60));
  report_.model_type = family_->model_type;
  MR_ASSIGN_OR_RETURN(files_, modelfile::open_files(model_.paths()));
  return {};
}

/// Keeps floats, MXFP4 in gpt-oss's layout, and NVFP4 in ModelOpt's.
DType Exporter::dtype_for(const modelfile::TensorInfo& tensor) const {
  const bool mxfp4 = tensor.dtype == DType::mxfp4 && family_ == &kGptOss, nvfp4 = tensor.dtype == DType::nvfp4;
  return info(tensor.dtype).block_elements == 1 || mxfp4 || nvfp4 ? tensor.dtype : options_.quantized;
}

/// The family's first rule that can be written; for gpt-oss's experts, the rule for MXFP4 or for floats.
const NameRule* Exporter::rule_for(std::size_t index, std::int64_t& layer) const {
  const modelfile::TensorInfo& tensor = model_.tensors()[index];
  for (const OurName& name : rules_of(tensor.name, *family_)) {
    const bool mxfp4 = name.rule->theirs.ends_with("_mxfp4");
    if (mxfp4 && tensor.dtype != DType::mxfp4) continue;
    layer = name.layer < 0 && family_->layer_of != nullptr ? family_->layer_of(*header_) : name.layer;
    return name.rule;
  }
  return nullptr;
}

Status Exporter::plan_tensor(std::size_t index, const Geometry& geometry) {
  const modelfile::TensorInfo& tensor = model_.tensors()[index];
  std::int64_t layer = -1;
  const NameRule* rule = rule_for(index, layer);
  if (rule == nullptr)
    return error(Code::unsupported, "tensor '{}' is unknown for models of type {}", modelfile::escape(tensor.name, 80),
                 family_->model_type);
  auto shape = their_shape(*rule, geometry, tensor.shape);
  if (!shape.ok()) return shape.status().with_context(modelfile::escape(tensor.name, 80));
  if ((rule->form == Form::integers) != (tensor.dtype == DType::i32))
    return error(Code::unsupported, "tensor '{}' is {}, which is not exported", modelfile::escape(tensor.name, 80),
                 info(tensor.dtype).name);
  // Builds the GGUF tensor from the checkpoint's tensors, which do not exist yet, and inverts the result.
  const std::size_t count = rule->form == Form::experts ? static_cast<std::size_t>(geometry.experts) : 1;
  Stored stored;
  stored.shape = *shape;
  stored.source.name = tensor.name;
  stored.source.cols = shape->back();
  stored.source.rows = 1;
  for (std::size_t i = 0; i + 1 < shape->size(); ++i) stored.source.rows *= (*shape)[i];
  std::vector<Source> theirs;
  MR_ASSIGN_OR_RETURN(Target target, build(*rule, geometry, std::vector<Stored>(count, stored), theirs));
  MR_RETURN_IF_ERROR(check_target(target, theirs));
  if (target.shape != tensor.shape)
    return error(Code::corrupt, "tensor '{}' has a shape that no checkpoint of its kind gives",
                 modelfile::escape(tensor.name, 80));

  Source& ours = sources_[index];
  ours.rows = target.rows;
  ours.cols = target.cols;
  const auto placed = invert(target, 0, count, static_cast<std::int32_t>(index));
  for (std::size_t part = 0; part < count; ++part) {
    const std::string name = their_name(*rule, *family_, header_->layers(), layer, static_cast<std::int64_t>(part));
    const auto [at, is_new] = by_name_.emplace(name, wanted_.size());
    if (is_new)
      wanted_.push_back({name, *shape, {}, theirs[part].cols, dtype_for(tensor), Change::none, {}, 1, 0, {}, 1});
    Wanted& wanted = wanted_[at->second];
    if (wanted.shape != *shape || wanted.cols != theirs[part].cols)
      return error(Code::corrupt, "tensor '{}' does not fit the others of '{}'", modelfile::escape(tensor.name, 80),
                   name);
    if (wanted.dtype != dtype_for(tensor)) wanted.dtype = DType::f32;
    for (Placed one : placed[part]) {
      one.first += one.lane * wanted.rows();
      wanted.lanes = one.lanes;
      wanted.parts.push_back(one);
    }
    wanted.change = target.change == Change::plus_one    ? Change::minus_one
                    : target.change == Change::minus_exp ? Change::log_of_minus
                    : target.change == Change::exp       ? Change::log
                                                         : Change::none;
    wanted.columns.resize(target.columns.size());
    for (std::size_t i = 0; i < target.columns.size(); ++i)
      wanted.columns[static_cast<std::size_t>(target.columns[i])] = static_cast<std::int32_t>(i);
    wanted.columns_each = target.columns_each;
  }
  return {};
}

/// Keys that checkpoints have as tensors.
void Exporter::plan_keys() {
  for (const Names& names : family_->names)
    for (const NameRule& rule : names) {
      if (rule.form != Form::key) continue;
      std::vector<std::int64_t> numbers = header_->integers(rule.ours);
      if (numbers.empty()) continue;
      Wanted wanted;
      wanted.name = their_name(rule, *family_, header_->layers(), family_->layer_of(*header_), -1);
      wanted.shape = {std::ssize(numbers)};
      wanted.numbers = std::move(numbers);
      wanted_.push_back(std::move(wanted));
    }
}

/// True if the tensor is NAME.scale, the factors of NAME.weight's matrices, or a scale of activations, which is not
/// exported. Errors: corrupt, io_error.
Expected<bool> Exporter::take_factors(std::size_t index) {
  const modelfile::TensorInfo& tensor = model_.tensors()[index];
  constexpr std::string_view kScale = ".scale";
  const std::string_view name = tensor.name;
  if (name.ends_with(".input_scale")) return true;
  std::int64_t layer = -1;
  if (!name.ends_with(kScale) || rule_for(index, layer) != nullptr) return false;
  const modelfile::TensorInfo* weight =
      model_.find(std::string(name.substr(0, name.size() - kScale.size())) + ".weight");
  if (weight == nullptr) return false;
  MR_ASSIGN_OR_RETURN(std::vector<float> numbers, factors(tensor.name));
  const std::int64_t matrices = matrices_of(weight->shape);
  if (std::ssize(numbers) != matrices)
    return error(Code::corrupt, "tensor '{}' holds {} numbers for {} matrices", modelfile::escape(name, 80),
                 numbers.size(), matrices);
  sources_[static_cast<std::size_t>(weight - model_.tensors().data())].factors = std::move(numbers);
  return true;
}

/// Orders a tensor's rows, and decides if it can stay NVFP4, which needs whole blocks with one factor.
Status Exporter::plan_target(Wanted& wanted) {
  std::sort(wanted.parts.begin(), wanted.parts.end(),
            [](const Placed& a, const Placed& b) { return a.first < b.first; });
  Target& target = wanted.target;
  target.name = wanted.name;
  target.shape = wanted.shape;
  target.cols = wanted.cols;
  target.rows = wanted.rows();
  target.change = wanted.change;
  target.columns = wanted.columns;
  target.columns_each = wanted.columns_each;
  target.lanes = wanted.lanes;
  target.factor_beside = true;
  std::int64_t row = 0;
  for (const Placed& part : wanted.parts) {
    if (part.first != row) return error(Code::corrupt, "the file lacks a part of '{}'", wanted.name);
    target.runs.push_back(part.run);
    row += part.run.rows;
  }
  MR_RETURN_IF_ERROR(check_target(target, sources_));
  if (wanted.dtype != DType::nvfp4) return {};
  const std::vector<float> factor = factors_of(target, sources_);
  if (factor.empty() || !is_copy(target, sources_, DType::nvfp4)) {
    wanted.dtype = options_.quantized;
    ++report_.decoded;
  } else {
    wanted.factor = factor.front();
  }
  return {};
}

Status Exporter::plan() {
  const Geometry geometry = geometry_of(*header_, *family_);
  for (const modelfile::TensorInfo& tensor : model_.tensors()) {
    Source source;
    source.name = tensor.name;
    source.file = &files_[static_cast<std::size_t>(tensor.file)];
    source.offset = tensor.offset;
    source.rows = tensor.rows();
    source.cols = tensor.cols();
    source.dtype = tensor.dtype;
    sources_.push_back(source);
  }
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const modelfile::TensorInfo& tensor = model_.tensors()[i];
    if (is_factors(tensor.name)) continue;
    MR_ASSIGN_OR_RETURN(const bool of_another, take_factors(i));
    if (of_another) continue;
    if (!info(tensor.dtype).computable && tensor.dtype != DType::i32)
      return error(Code::unsupported, "tensor '{}' is {}, which is not exported", modelfile::escape(tensor.name, 80),
                   info(tensor.dtype).name);
    MR_RETURN_IF_ERROR(plan_tensor(i, geometry));
    if (info(tensor.dtype).block_elements > 1 && dtype_for(tensor) != tensor.dtype) ++report_.decoded;
  }
  for (Wanted& wanted : wanted_) MR_RETURN_IF_ERROR(plan_target(wanted));
  plan_keys();
  return {};
}

Status Exporter::make_folder() {
  std::error_code ignored;
  if (fs::exists(out_, ignored) && (!fs::is_directory(out_, ignored) || !fs::is_empty(out_, ignored)))
    return error(Code::invalid_argument, "{}: is there and holds something; name a new folder",
                 modelfile::escape(out_));
  std::string stem = out_;
  while (stem.size() > 1 && stem.back() == '/') stem.pop_back();
  partial_ = stem + ".partial";
  std::error_code failure;
  fs::remove_all(partial_, ignored);
  fs::create_directories(partial_, failure);
  if (!failure) return {};
  return error(Code::io_error, "{}: cannot make this folder: {}", modelfile::escape(partial_), failure.message());
}

Expected<std::vector<float>> Exporter::factors(std::string_view name) const {
  std::vector<float> floats;
  const modelfile::TensorInfo* tensor = model_.find(name);
  if (tensor == nullptr) return floats;
  if (tensor->dtype != DType::f32 || tensor->bytes > (1 << 20))
    return error(Code::corrupt, "tensor '{}' holds no factors", name);
  floats.resize(tensor->bytes / sizeof(float));
  MR_RETURN_IF_ERROR(files_[static_cast<std::size_t>(tensor->file)].read_at(tensor->offset,
                                                                            std::as_writable_bytes(std::span(floats))));
  return floats;
}

Expected<json> Exporter::config() const {
  json config = {
      {"model_type", family_->model_type}, {"architectures", {family_->model_class}}, {"hidden_act", "silu"}};
  const auto set = [&](Keys rules) {
    for (const KeyRule& rule : rules) {
      if (!header_->has(rule.ours) || !header_->integers(rule.ours).empty()) continue;
      switch (rule.kind) {
        case KeyRule::Kind::integer:
          config[std::string(rule.theirs)] = header_->integer(rule.ours);
          break;
        case KeyRule::Kind::number:
          config[std::string(rule.theirs)] = header_->number(rule.ours);
          break;
        case KeyRule::Kind::flag:
          config[std::string(rule.theirs)] = header_->flag(rule.ours);
          break;
      }
    }
  };
  set(common_keys());
  for (const Keys keys : family_->keys) set(keys);
  const modelfile::TensorInfo* table = model_.find("token_embd.weight");
  if (table != nullptr) config["vocab_size"] = table->rows();
  config["num_hidden_layers"] = header_->layers();
  if (header_->has("attention.head_count") && header_->integer("attention.head_count") > 0)
    config["head_dim"] = header_->integer(
        "attention.key_length", header_->integer("embedding_length") / header_->integer("attention.head_count"));
  config["tie_word_embeddings"] = model_.find("output.weight") == nullptr;
  config["attention_bias"] = model_.find("blk.0.attn_q.bias") != nullptr;
  config["mlp_bias"] = false;
  config["use_qk_norm"] = model_.find("blk.0.attn_q_norm.weight") != nullptr;
  if (family_ == &kFalconH1) {
    config["mamba_rms_norm"] = model_.find("blk.0.ssm_norm.weight") != nullptr;
    config["mamba_conv_bias"] = model_.find("blk.0.ssm_conv1d.bias") != nullptr;
  }
  if (const modelfile::TensorInfo* const low = model_.find("blk.0.laurel_l.weight"); low != nullptr)
    config["laurel_rank"] = low->rows();
  if (const modelfile::TensorInfo* const rows = model_.find("per_layer_token_embd.weight");
      rows != nullptr && header_->has("ple.layers"))
    config["make_ngram_vocab_size_divisible_by"] = rows->rows();
  if (any_values_are_keys()) config["attention_k_eq_v"] = true;
  if (const json quantization = quantization_config(); !quantization.is_null())
    config["quantization_config"] = quantization;
  config["torch_dtype"] = torch_dtype();
  MR_RETURN_IF_ERROR(write_rotations(
      *header_, [&](std::string_view name) { return factors(name); }, config));
  for (const auto& [ours, theirs] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token_id"),
                                     std::pair("tokenizer.ggml.eos_token_id", "eos_token_id"),
                                     std::pair("tokenizer.ggml.padding_token_id", "pad_token_id")})
    if (const auto id = model_.get_int(ours); id.ok())
      config[theirs] = *id;
    else
      config[theirs] = nullptr;  // the class's default id may lie outside this vocabulary
  if (family_->write != nullptr) MR_RETURN_IF_ERROR(family_->write(*header_, config));
  // transformers 5 takes rope_scaling before rope_parameters, older versions know it alone: both say the same.
  if (const json rope = config.value("rope_parameters", json()); config.contains("rope_scaling"))
    config["rope_scaling"] = rope.contains("full_attention") ? rope["full_attention"] : rope;
  return config;
}

/// True if some layer has keys but no values.
bool Exporter::any_values_are_keys() const {
  for (std::int64_t i = 0; i < header_->layers(); ++i)
    if (model_.find(fmt::format("blk.{}.attn_k.weight", i)) != nullptr &&
        model_.find(fmt::format("blk.{}.attn_v.weight", i)) == nullptr)
      return true;
  return false;
}

/// The type of most floats; transformers loads all floats as this type.
std::string Exporter::torch_dtype() const {
  std::map<DType, std::int64_t> elements;
  for (const Wanted& wanted : wanted_)
    if (info(wanted.dtype).block_elements == 1) elements[wanted.dtype] += wanted.target.rows * wanted.target.cols;
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == elements.end() || most->first == DType::bf16) return "bfloat16";
  return most->first == DType::f16 ? "float16" : "float32";
}

Element element_of(DType dtype) {
  if (dtype == DType::i32) return Element::i32;
  return dtype == DType::f16 ? Element::f16 : dtype == DType::bf16 ? Element::bf16 : Element::f32;
}

/// The quantization_config for gpt-oss's MXFP4, or for ModelOpt's NVFP4 with the list of matrices in other types; null
/// if the model has neither.
json Exporter::quantization_config() const {
  if (std::any_of(wanted_.begin(), wanted_.end(), [](const Wanted& one) { return one.dtype == DType::mxfp4; }))
    return {{"quant_method", "mxfp4"}, {"modules_to_not_convert", json::array()}};
  json others = json::array();
  bool any = false;
  for (const Wanted& wanted : wanted_) {
    constexpr std::string_view kWeight = ".weight";
    any |= wanted.dtype == DType::nvfp4;
    if (wanted.dtype != DType::nvfp4 && wanted.shape.size() > 1 && wanted.name.ends_with(kWeight))
      others.push_back(wanted.name.substr(0, wanted.name.size() - kWeight.size()));
  }
  if (!any) return {};
  return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", kNvfp4Group}, {"ignore", others}};
}

Status Exporter::declare(modelfile::CheckpointWriter& writer) {
  std::size_t declared = 0;
  const auto declare_one = [&](const std::string& name, Element element, std::vector<std::int64_t> shape) {
    ++declared;
    return writer.declare(name, element, std::move(shape));
  };
  for (Wanted& wanted : wanted_) {
    wanted.declared = declared;
    std::vector<std::int64_t> shape = wanted.shape;
    if (!wanted.numbers.empty()) {
      MR_RETURN_IF_ERROR(declare_one(wanted.name, Element::i64, shape));
    } else if (wanted.dtype == DType::nvfp4) {
      shape.back() /= 2;
      MR_RETURN_IF_ERROR(declare_one(wanted.name, Element::u8, shape));
      shape.back() = wanted.shape.back() / kNvfp4Group;
      MR_RETURN_IF_ERROR(declare_one(wanted.name + "_scale", Element::f8_e4m3, shape));
      MR_RETURN_IF_ERROR(declare_one(wanted.name + "_scale_2", Element::f32, {}));
    } else if (wanted.dtype == DType::mxfp4) {
      const std::string stem = wanted.name.substr(0, wanted.name.rfind('_'));
      shape.back() /= kBlock;
      MR_RETURN_IF_ERROR(declare_one(stem + "_scales", Element::u8, shape));
      shape.push_back(kBlock / 2);
      MR_RETURN_IF_ERROR(declare_one(stem + "_blocks", Element::u8, shape));
    } else {
      const bool decay = wanted.change == Change::log_of_minus || wanted.change == Change::log;
      MR_RETURN_IF_ERROR(declare_one(wanted.name, decay ? Element::f64 : element_of(wanted.dtype), shape));
    }
  }
  report_.tensors = declared;
  return writer.begin();
}

/// Writes MXFP4 blocks as gpt-oss does: nibbles of adjacent elements in a byte, exponents in another tensor.
Status write_blocks(std::span<const std::byte> bytes, std::uint64_t offset, std::size_t declared,
                    const modelfile::CheckpointWriter& writer) {
  const std::size_t blocks = bytes.size() / sizeof(BlockMXFP4), first = offset / sizeof(BlockMXFP4);
  std::vector<std::byte> exponents(blocks), pairs(blocks * (kBlock / 2));
  for (std::size_t b = 0; b < blocks; ++b) {
    BlockMXFP4 block;
    std::memcpy(&block, bytes.data() + b * sizeof block, sizeof block);
    exponents[b] = static_cast<std::byte>(block.e);
    const auto nibble = [&](int i) { return block.qs[i % (kBlock / 2)] >> (i / (kBlock / 2) * 4) & 0xf; };
    for (int i = 0; i < kBlock / 2; ++i)
      pairs[b * (kBlock / 2) + static_cast<std::size_t>(i)] =
          static_cast<std::byte>(nibble(2 * i) | nibble(2 * i + 1) << 4);
  }
  MR_RETURN_IF_ERROR(writer.write(declared, first, exponents));
  return writer.write(declared + 1, first * (kBlock / 2), pairs);
}

/// The same for NVFP4, with the scales of 16 numbers in another tensor.
Status write_nvfp4(std::span<const std::byte> bytes, std::uint64_t offset, std::size_t declared,
                   const modelfile::CheckpointWriter& writer) {
  constexpr std::size_t kPairs = kNvfp4Block / 2, kScales = kNvfp4Block / kNvfp4Group;
  const std::size_t blocks = bytes.size() / sizeof(BlockNVFP4), first = offset / sizeof(BlockNVFP4);
  std::vector<std::byte> scales(blocks * kScales), pairs(blocks * kPairs);
  for (std::size_t b = 0; b < blocks; ++b) {
    BlockNVFP4 block;
    std::memcpy(&block, bytes.data() + b * sizeof block, sizeof block);
    std::memcpy(scales.data() + b * kScales, block.d, kScales);
    const auto nibble = [&](std::size_t i) { return block.qs[i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 0xf; };
    for (std::size_t i = 0; i < kPairs; ++i)
      pairs[b * kPairs + i] = static_cast<std::byte>(nibble(2 * i) | nibble(2 * i + 1) << 4);
  }
  MR_RETURN_IF_ERROR(writer.write(declared, first * kPairs, pairs));
  return writer.write(declared + 1, first * kScales, scales);
}

/// Logarithms in double, so that their exponentials round to the file's numbers.
Status Exporter::write_decay(const Wanted& wanted, const modelfile::CheckpointWriter& writer) const {
  Scratch scratch;
  Target target = wanted.target;
  target.change = Change::none;
  std::vector<float> floats(static_cast<std::size_t>(target.rows * target.cols));
  MR_RETURN_IF_ERROR(gather_floats(target, sources_, 0, target.rows, scratch, floats.data()));
  std::vector<double> logs;
  const float sign = wanted.change == Change::log ? 1 : -1;
  for (const float x : floats) {
    if (!(sign * x > 0))
      return error(Code::corrupt, "tensor '{}' holds {}, which is not a decay",
                   sources_[static_cast<std::size_t>(target.runs.front().source)].name, x);
    logs.push_back(std::log(static_cast<double>(sign * x)));
  }
  return writer.write(wanted.declared, 0, std::as_bytes(std::span(logs)));
}

Status Exporter::write_one(const Wanted& wanted, Work& work, const modelfile::CheckpointWriter& writer) {
  if (!wanted.numbers.empty()) return writer.write(wanted.declared, 0, std::as_bytes(std::span(wanted.numbers)));
  if (wanted.change == Change::log_of_minus || wanted.change == Change::log) return write_decay(wanted, writer);
  if (wanted.dtype == DType::nvfp4)
    MR_RETURN_IF_ERROR(writer.write(wanted.declared + 2, 0, std::as_bytes(std::span(&wanted.factor, 1))));
  return work.make(wanted.target, sources_, wanted.dtype, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    if (wanted.dtype == DType::mxfp4) return write_blocks(bytes, offset, wanted.declared, writer);
    if (wanted.dtype == DType::nvfp4) return write_nvfp4(bytes, offset, wanted.declared, writer);
    return writer.write(wanted.declared, offset, bytes);
  });
}

Status Exporter::write() {
  MR_ASSIGN_OR_RETURN(const json written, config());
  MR_RETURN_IF_ERROR(write_json(partial_ + "/config.json", written));
  MR_RETURN_IF_ERROR(write_tokenizer(metadata_, partial_));
  modelfile::CheckpointWriter writer(partial_, options_.max_shard_bytes);
  MR_RETURN_IF_ERROR(declare(writer));
  Work work(options_.work, writer.bytes());
  for (const Wanted& wanted : wanted_) MR_RETURN_IF_ERROR(write_one(wanted, work, writer));
  MR_RETURN_IF_ERROR(writer.finish());
  if (options_.work.progress) options_.work.progress(writer.bytes(), writer.bytes());
  report_.bytes = writer.bytes();
  report_.shards = writer.shards();
  return {};
}

}  // namespace

Expected<ExportReport> export_checkpoint(const std::string& in, const std::string& out, const ExportOptions& options) {
  return Exporter(in, out, options).run();
}

}  // namespace millrace::convert
