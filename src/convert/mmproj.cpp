#include "convert/mmproj.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "convert/header.h"
#include "convert/mmproj_names.h"
#include "convert/stored.h"
#include "model/tower.h"
#include "modelfile/escape.h"
#include "modelfile/gguf_writer.h"
#include "modelfile/safetensors.h"
#include "tensor/codec.h"

namespace millrace::convert {

namespace fs = std::filesystem;

namespace {

using modelfile::Value;

constexpr std::array<std::string_view, 4> kBounds = {"input_min", "input_max", "output_min", "output_max"};

/// A name with its number replaced as in the rules, and the number.
struct TowerName {
  std::string pattern;
  std::int64_t number = -1;
};

void drop(std::string& name, std::string_view what, std::string_view by) {
  if (const std::size_t at = name.find(what); at != std::string::npos) name.replace(at, what.size(), by);
}

/// Removes the prefix, which depends on the version of transformers.
TowerName parse(std::string_view given) {
  TowerName parsed{std::string(given)};
  std::string& name = parsed.pattern;
  if (name.starts_with("model.")) name.erase(0, 6);
  drop(name, "vision_tower.vision_model.", "vision_tower.");
  drop(name, ".linear.", ".");
  for (const std::string_view stem : {".layers.", ".layer.", ".blocks.", ".deepstack_merger_list."}) {
    const std::size_t at = name.find(stem);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + stem.size(), end = std::min(name.find('.', begin), name.size());
    const std::string digits = name.substr(begin, end - begin);
    if (digits.empty() || digits.size() > 4 || digits.find_first_not_of("0123456789") != std::string::npos) continue;
    parsed.number = std::stoll(digits);
    name.replace(begin, end - begin, "#");
    break;
  }
  return parsed;
}

bool sees(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  constexpr std::array<std::string_view, 8> kFronts = {"visual.",       "vision_tower.",   "vision_model.",
                                                       "connector.",    "mlp1.",           "multi_modal_projector.",
                                                       "embed_vision.", "vision_embedder."};
  return std::any_of(kFronts.begin(), kFronts.end(), [&](std::string_view front) { return name.starts_with(front); });
}

bool is_bound(std::string_view name) {
  return std::any_of(kBounds.begin(), kBounds.end(), [&](std::string_view bound) { return name.ends_with(bound); });
}

struct PlannedTower {
  Target target;
  DType dtype = DType::f32;
};

/// The type of most weights. Position embeddings are always floats.
DType most_of_tower(const std::vector<PlannedTower>& planned) {
  std::map<DType, std::int64_t> elements;
  for (const PlannedTower& one : planned)
    if (one.target.name != "v.position_embd.weight") elements[one.dtype] += one.target.rows * one.target.cols;
  DType most = DType::f32;
  for (const auto& [dtype, count] : elements)
    if (count > elements[most]) most = dtype;
  return most;
}

class TowerConverter {
 public:
  TowerConverter(std::string in, std::string model, const ConvertOptions& options)
      : in_(std::move(in)), model_(std::move(model)), options_(options), header_(metadata_, "clip") {}

  Expected<MmprojReport> run() {
    MR_RETURN_IF_ERROR(open());
    if (family_ == nullptr) return std::move(report_);
    Status planned = plan();
    if (planned.code() == Code::unsupported) {
      report_.left_out = planned.message();
      return std::move(report_);
    }
    MR_RETURN_IF_ERROR(std::move(planned));
    MR_RETURN_IF_ERROR(write());
    return std::move(report_);
  }

 private:
  Status open();
  Status plan();
  Status read_keys();
  Config pixels_config() const;
  void read_pixels(Config& config);
  Status plan_tensor(const modelfile::CheckpointTensor& tensor);
  Status make(const TowerRule& rule, const std::string& name, const Stored& stored);
  Status make_alike(const TowerRule& rule, std::string name, const Stored& stored);
  Status make_thirds(const std::string& name, const Stored& stored);
  Status make_frames(const std::string& name, const Stored& stored);
  Status make_pixels(const std::string& name, const Stored& stored);
  Status make_tables(const std::string& name, const Stored& stored);
  Status make_square(const std::string& name, const Stored& stored);
  Status add(std::string name, Target target);
  Expected<std::string> our_name(const TowerRule& rule, const TowerName& theirs, std::string_view ending) const;
  DType dtype_for(const Target& target, DType stored) const;
  Status write();
  Status write_header(modelfile::Writer& writer);

  const std::string in_, model_;
  const ConvertOptions& options_;
  modelfile::Checkpoint checkpoint_;
  std::vector<modelfile::File> files_;
  std::unique_ptr<Config> config_, vision_;
  const TowerFamily* family_ = nullptr;
  Metadata metadata_;
  Header header_;
  std::vector<Source> sources_;
  std::vector<PlannedTower> planned_;
  MmprojReport report_;
};

/// nullptr: no vision tower, or one that this version does not support.
Status TowerConverter::open() {
  std::error_code ignored;
  const fs::path folder = fs::is_directory(in_, ignored) ? fs::path(in_) : fs::path(in_).parent_path();
  MR_ASSIGN_OR_RETURN(nlohmann::json json, read_json((folder / "config.json").string()));
  config_ = std::make_unique<Config>(std::move(json));
  MR_ASSIGN_OR_RETURN(checkpoint_, modelfile::Checkpoint::open(in_));
  const auto& tensors = checkpoint_.tensors();
  const auto count = std::count_if(tensors.begin(), tensors.end(), [](const auto& one) { return sees(one.name); });
  if (count == 0) return {};
  const std::string type = config_->text("model_type", "");
  const TowerFamily* const family = tower_family(type);
  if (family == nullptr) {
    report_.left_out =
        fmt::format("{} tensors of the vision tower: this version converts no tower of models of type {}", count,
                    modelfile::escape(type, 60));
    return {};
  }
  family_ = family;
  MR_ASSIGN_OR_RETURN(files_, modelfile::open_files(checkpoint_.paths()));
  return {};
}

Config TowerConverter::pixels_config() const {
  const fs::path folder = checkpoint_.folder();
  nlohmann::json json;
  for (const char* const file : {"preprocessor_config.json", "processor_config.json"}) {
    auto read = read_json((folder / file).string());
    if (!read.ok()) continue;
    json = read->contains("image_processor") && (*read)["image_processor"].is_object() ? (*read)["image_processor"]
                                                                                       : std::move(*read);
    break;
  }
  return Config(json.is_object() ? std::move(json) : nlohmann::json::object());
}

/// The settings of the processor's file, with the published models' defaults.
void TowerConverter::read_pixels(Config& config) {
  const vision::Spec usual = vision::usual_spec(family_->projector);
  const auto channels = [&](const char* key, const std::array<float, 3>& fallback) {
    const auto given = config.numbers(key);
    const bool whole = given.size() == 3;
    std::vector<float> values;
    for (std::size_t c = 0; c < 3; ++c) values.push_back(whole ? static_cast<float>(given[c]) : fallback[c]);
    return values;
  };
  // Gemma 4's towers take pixels in [0, 1] and normalise them themselves.
  const bool raw = family_->projector == vision::Projector::gemma4 || family_->projector == vision::Projector::gemma4u;
  header_.set("vision.image_mean",
              modelfile::array_value(raw ? std::vector<float>{0, 0, 0} : channels("image_mean", usual.mean)));
  header_.set("vision.image_std",
              modelfile::array_value(raw ? std::vector<float>{1, 1, 1} : channels("image_std", usual.deviation)));
  if (usual.resize != vision::Resize::smart || header_.has("vision.image_max_pixels")) return;
  Config size = config.within("size");
  const auto pixels = [&](const char* old, const char* now, std::int64_t fallback) {
    return config.has(old) ? config.optional(old, fallback, 1, 1 << 28) : size.optional(now, fallback, 1, 1 << 28);
  };
  header_.set_integer("vision.image_min_pixels", pixels("min_pixels", "shortest_edge", usual.least_pixels));
  header_.set_integer("vision.image_max_pixels", pixels("max_pixels", "longest_edge", usual.most_pixels));
}

Status TowerConverter::read_keys() {
  metadata_["general.architecture"] = Value(std::string("clip"));
  metadata_["general.type"] = Value(std::string("mmproj"));
  metadata_["general.name"] = Value(options_.name.empty() ? fs::path(model_).stem().string() : options_.name);
  report_.projector = vision::projector_name(family_->projector);
  // In files that may have an audio tower, too, the key is specific to vision.
  const bool own = family_->projector == vision::Projector::gemma4 || family_->projector == vision::Projector::gemma4u;
  header_.set(own ? "vision.projector_type" : "projector_type", report_.projector);
  header_.set("has_vision_encoder", true);
  vision_ = std::make_unique<Config>(config_->within("vision_config"));
  Config text = config_->within(config_->has("llm_config") ? "llm_config" : "text_config");
  Config& has_width = text.has("hidden_size") ? text : *config_;  // configs of 2024 have no text_config
  Config pixels = pixels_config();
  TowerConfig config{*config_, *vision_, pixels, has_width.required("hidden_size", 1, 1 << 20)};
  MR_RETURN_IF_ERROR(has_width.status());
  family_->read(config, header_);
  read_pixels(pixels);
  MR_RETURN_IF_ERROR(vision_->status());
  MR_RETURN_IF_ERROR(pixels.status());
  return config_->status();
}

Status TowerConverter::plan() {
  MR_RETURN_IF_ERROR(read_keys());
  for (const modelfile::CheckpointTensor& tensor : checkpoint_.tensors())
    if (sees(tensor.name)) MR_RETURN_IF_ERROR(plan_tensor(tensor));
  std::stable_sort(planned_.begin(), planned_.end(), [](const PlannedTower& a, const PlannedTower& b) {
    return a.target.name < b.target.name;  // keeps the tensors of a layer together, whichever file has them
  });
  return {};
}

/// `ending`: the rest of the checkpoint's name after the rule's.
Expected<std::string> TowerConverter::our_name(const TowerRule& rule, const TowerName& theirs,
                                               std::string_view ending) const {
  std::string name(rule.ours);
  std::int64_t number = theirs.number;
  if (theirs.pattern.find("deepstack_merger_list") != std::string::npos) {
    const nlohmann::json* const list = vision_->find("deepstack_visual_indexes");
    if (list == nullptr || !list->is_array() || number < 0 || number >= static_cast<std::int64_t>(list->size()) ||
        !(*list)[static_cast<std::size_t>(number)].is_number_integer())
      return error(Code::corrupt, "deepstack_visual_indexes in vision_config has no layer for merger {}", number);
    number = (*list)[static_cast<std::size_t>(number)].get<std::int64_t>();
  }
  if (const std::size_t at = name.find('#'); at != std::string::npos) name.replace(at, 1, std::to_string(number));
  return name + std::string(ending);
}

Status TowerConverter::plan_tensor(const modelfile::CheckpointTensor& tensor) {
  const TowerName name = parse(tensor.name);
  if (name.pattern.ends_with("position_ids") || name.pattern.ends_with("inv_freq")) return {};
  const std::size_t dot = name.pattern.rfind('.');
  const TowerRule* found = nullptr;
  std::string_view ending;
  for (const TowerRule& rule : family_->rules) {
    if (rule.theirs == name.pattern) {
      found = &rule;
      ending = {};
      break;
    }
    if (found != nullptr || dot == std::string::npos || rule.theirs != std::string_view(name.pattern).substr(0, dot))
      continue;
    found = &rule;
    ending = std::string_view(name.pattern).substr(dot);
  }
  if (found == nullptr)
    return error(Code::unsupported, "the vision tower: tensor '{}' is unknown for models of type {}",
                 modelfile::escape(tensor.name, 120), family_->model_type);
  MR_ASSIGN_OR_RETURN(std::string ours, our_name(*found, name, ending));
  MR_ASSIGN_OR_RETURN(NamedTensor named, stored_tensor(checkpoint_, files_, *config_, tensor));
  const Source& source = named.stored.source;
  if (is_bound(ours) && source.rows * source.cols == 1 && source.packing == Packing::plain) {
    float bound = 0;
    std::array<std::byte, 8> bytes{};
    const auto held = std::span(bytes).first(static_cast<std::size_t>(row_bytes(source.dtype, 1)));
    MR_RETURN_IF_ERROR(source.file->read_at(source.offset, held));
    decode_row(source.dtype, held.data(), 1, &bound);
    if (std::isinf(bound)) return {};  // no bound
  }
  return make(*found, ours, named.stored);
}

Status TowerConverter::add(std::string name, Target target) {
  target.name = std::move(name);
  MR_RETURN_IF_ERROR(check_target(target, sources_));
  const DType stored = sources_[static_cast<std::size_t>(target.runs.front().source)].dtype;
  const DType dtype = dtype_for(target, stored);
  planned_.push_back({std::move(target), dtype});
  return {};
}

/// GGUF's order of dimensions is the reverse of PyTorch's.
std::vector<std::int64_t> turned_around(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) return {1};
  return {shape.rbegin(), shape.rend()};
}

Status no_shape(const Stored& stored, std::string_view wanted) {
  return error(Code::corrupt, "tensor '{}' has no shape of {}", modelfile::escape(stored.source.name, 120), wanted);
}

/// A target of whole rows; `theirs`: its shape in PyTorch's order.
Target target_of(const std::vector<std::int64_t>& theirs, std::int64_t rows, std::int64_t cols, Run run) {
  Target target;
  target.shape = turned_around(theirs);
  target.rows = rows;
  target.cols = cols;
  target.runs.push_back(run);
  return target;
}

/// Forms that language models have, too.
Status TowerConverter::make_alike(const TowerRule& rule, std::string name, const Stored& stored) {
  const Form form = rule.form == TowerForm::neighbours ? Form::queries
                    : rule.form == TowerForm::plus_one ? Form::norm
                                                       : Form::same;
  Geometry geometry;
  geometry.neighbours = true;
  geometry.norm_shift = 1;
  geometry.heads = header_.integer("vision.attention.head_count");
  const NameRule as{rule.theirs, rule.ours, form};
  MR_ASSIGN_OR_RETURN(Target target, build(as, geometry, std::span(&stored, 1), sources_));
  return add(std::move(name), std::move(target));
}

Status TowerConverter::make_thirds(const std::string& name, const Stored& stored) {
  std::vector<std::int64_t> third = stored.shape;
  if (third.empty() || third.front() % 3 != 0) return no_shape(stored, "queries, keys and values");
  third.front() /= 3;
  Source& source = sources_.back();
  if (third.size() == 1) std::swap(source.rows, source.cols);
  const std::int64_t rows = source.rows / 3, cols = source.cols;
  const auto place = static_cast<std::int32_t>(sources_.size()) - 1;
  const std::size_t dot = name.rfind('.');
  for (std::int64_t i = 0; i < 3; ++i)
    MR_RETURN_IF_ERROR(add(name.substr(0, dot) + "qkv"[i] + name.substr(dot),
                           target_of(third, rows, cols, {place, i * rows, 1, rows})));
  return {};
}

Status TowerConverter::make_frames(const std::string& name, const Stored& stored) {
  const std::vector<std::int64_t>& shape = stored.shape;
  if (shape.size() != 5 || shape[2] != 2) return no_shape(stored, "filters for two pictures");
  const std::int64_t rows = shape[0] * shape[1], cols = shape[3] * shape[4];
  const auto place = static_cast<std::int32_t>(sources_.size()) - 1;
  sources_.back().rows = 2 * rows;
  sources_.back().cols = cols;
  for (std::int64_t frame = 0; frame < 2; ++frame)
    MR_RETURN_IF_ERROR(add(frame == 0 ? name : name + ".1",
                           target_of({shape[0], shape[1], shape[3], shape[4]}, rows, cols, {place, frame, 2, rows})));
  return {};
}

Status TowerConverter::make_pixels(const std::string& name, const Stored& stored) {
  const Source& source = sources_.back();
  const std::int64_t side = std::llround(std::sqrt(static_cast<double>(source.cols) / 3));
  if (3 * side * side != source.cols) return no_shape(stored, "pixels in three channels");
  const bool filters = family_->projector == vision::Projector::gemma4 || family_->projector == vision::Projector::lfm2;
  Target target = target_of(filters ? std::vector{source.rows, std::int64_t{3}, side, side} : stored.shape, source.rows,
                            source.cols, {static_cast<std::int32_t>(sources_.size()) - 1, 0, 1, source.rows});
  for (std::int64_t c = 0; c < 3; ++c)
    for (std::int64_t at = 0; at < side * side; ++at) target.columns.push_back(static_cast<std::int32_t>(at * 3 + c));
  return add(name, std::move(target));
}

Status TowerConverter::make_tables(const std::string& name, const Stored& stored) {
  const std::vector<std::int64_t>& shape = stored.shape;
  if (shape.size() != 3) return no_shape(stored, "tables of places");
  const auto place = static_cast<std::int32_t>(sources_.size()) - 1;
  Target target = target_of({shape[1], shape[0], shape[2]}, shape[0] * shape[1], shape[2], {});
  target.runs.clear();
  for (std::int64_t axis = 0; axis < shape[1]; ++axis) target.runs.push_back({place, axis, shape[1], shape[0]});
  return add(name, std::move(target));
}

Status TowerConverter::make_square(const std::string& name, const Stored& stored) {
  const std::vector<std::int64_t>& shape = stored.shape;
  if (shape.size() != 3) return no_shape(stored, "places in rows and columns");
  const std::int64_t rows = shape[0] * shape[1];
  return add(name,
             target_of({rows, shape[2]}, rows, shape[2], {static_cast<std::int32_t>(sources_.size()) - 1, 0, 1, rows}));
}

Status TowerConverter::make(const TowerRule& rule, const std::string& name, const Stored& stored) {
  const bool alike =
      rule.form == TowerForm::same || rule.form == TowerForm::plus_one || rule.form == TowerForm::neighbours;
  if (alike) return make_alike(rule, name, stored);
  if (stored.source.packing != Packing::plain)
    return error(Code::unsupported,
                 "the vision tower: tensor '{}' holds numbers with scales, and its rows change places",
                 modelfile::escape(stored.source.name, 120));
  sources_.push_back(stored.source);
  switch (rule.form) {
    case TowerForm::thirds:
      return make_thirds(name, stored);
    case TowerForm::frames:
      return make_frames(name, stored);
    case TowerForm::pixels:
      return make_pixels(name, stored);
    case TowerForm::square:
      return make_square(name, stored);
    default:
      return make_tables(name, stored);
  }
}

/// Towers are small beside their models and lose much quality in few bits: these are the types that are published.
DType TowerConverter::dtype_for(const Target& target, DType stored) const {
  const std::string_view name = target.name;
  const modelfile::TensorInfo tensor{target.name, DType::f32, target.shape, 0, 0, 0};
  if (modelfile::stays_float(tensor) && !name.starts_with("v.patch_embd.weight")) return DType::f32;
  if (name == "v.position_embd.weight") return DType::f32;
  DType wanted = stored == DType::f64 ? DType::f32 : stored;
  if (options_.type) {
    const DType main = modelfile::info(*options_.type).main;
    const bool known = main == DType::f32 || main == DType::bf16 || main == DType::q8_0;
    wanted = known ? main : DType::f16;
  }
  const bool filters = name.starts_with("v.patch_embd.") || name.starts_with("mm.patch_merger.");
  const bool whole = target.cols % info(wanted).block_elements == 0 && target.shape.size() == 2;
  return info(wanted).block_elements > 1 && (filters || !whole) ? DType::f16 : wanted;
}

Status TowerConverter::write_header(modelfile::Writer& writer) {
  const DType type = most_of_tower(planned_);
  report_.type = info(type).name;
  static const std::map<DType, std::uint32_t> kFileTypes = {
      {DType::f32, 0}, {DType::f16, 1}, {DType::q8_0, 7}, {DType::bf16, 32}};
  const auto file_type = kFileTypes.find(type);
  metadata_["general.file_type"] = Value(file_type == kFileTypes.end() ? std::uint32_t{0} : file_type->second);
  if (type == DType::q8_0) metadata_["general.quantization_version"] = Value(std::uint32_t{2});
  MR_RETURN_IF_ERROR(writer.add("general.architecture", metadata_.at("general.architecture")));
  for (const auto& [key, value] : metadata_)
    if (key != "general.architecture") MR_RETURN_IF_ERROR(writer.add(key, value));
  for (const PlannedTower& one : planned_) {
    const Status declared = writer.declare(one.target.name, one.dtype, one.target.shape);
    if (!declared.ok())
      return error(Code::corrupt, "the checkpoint gives {} in two ways: {}", one.target.name, declared.message());
  }
  report_.tensors = planned_.size();
  return writer.begin();
}

Status TowerConverter::write() {
  const fs::path model(model_);
  const fs::path path =
      model.parent_path() / fmt::format("mmproj-{}-{}.gguf", model.stem().string(), info(most_of_tower(planned_)).name);
  modelfile::Writer writer(path.string());
  MR_RETURN_IF_ERROR(write_header(writer));
  {
    MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(writer.paths().front() + ".partial"));
    const auto tower = model::load_tower(file, 1 << 20);
    if (tower.status().code() == Code::unsupported) {
      report_ = {};
      report_.left_out = fmt::format("vision tower: {}", tower.status().message());
      return {};
    }
    if (!tower.ok())
      return error(tower.status().code(), "the converted vision tower cannot run: {}", tower.status().message());
  }
  std::uint64_t total = 0;
  for (const modelfile::TensorInfo& tensor : writer.layout()) total += tensor.bytes;
  Work work(options_.work, total);
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const modelfile::TensorInfo& place = writer.layout()[i];
    const auto put = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
      return writer.write_range(place.file, place.offset + offset, bytes);
    };
    MR_RETURN_IF_ERROR(work.make(planned_[i].target, sources_, planned_[i].dtype, put));
  }
  if (options_.work.progress) options_.work.progress(total, total);
  MR_RETURN_IF_ERROR(writer.finish());
  report_.path = path.string();
  report_.bytes = writer.file_bytes().front();
  return {};
}

}  // namespace

Expected<MmprojReport> convert_mmproj(const std::string& in, const std::string& model, const ConvertOptions& options) {
  return TowerConverter(in, model, options).run();
}

}  // namespace millrace::convert
