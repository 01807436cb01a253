#include "convert/adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "convert/config.h"
#include "convert/family.h"
#include "convert/forms.h"
#include "convert/gather.h"
#include "convert/header.h"
#include "convert/mapping.h"
#include "convert/stored.h"
#include "model/adapter.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf_writer.h"
#include "modelfile/safetensors.h"
#include "tensor/codec.h"

namespace millrace::convert {

namespace fs = std::filesystem;
using modelfile::Value;
using nlohmann::json;

namespace {

constexpr const char *kConfig = "adapter_config.json", *kWeights = "adapter_model.safetensors";

constexpr std::uint64_t kBytesAByteOfJson = 24;  // as values, with the copies on the way

fs::path folder_of(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? fs::path(path) : fs::path(path).parent_path();
}

/// A PEFT tensor name, parsed: the module, and which factor (A or B) it is.
struct HalfName {
  std::string module;
  bool a = false, table = false;
};

/// nullopt: not a factor of a LoRA matrix.
std::optional<HalfName> parse_half(std::string_view name) {
  struct Ending {
    std::string_view text;
    bool a, table;
  };
  constexpr Ending kEndings[] = {{".lora_A.weight", true, false},
                                 {".lora_B.weight", false, false},
                                 {".lora_embedding_A", true, true},
                                 {".lora_embedding_B", false, true}};
  for (const Ending& ending : kEndings) {
    if (!name.ends_with(ending.text)) continue;
    name.remove_suffix(ending.text.size());
    if (name.starts_with("base_model.model.")) name.remove_prefix(std::string_view("base_model.model.").size());
    return HalfName{std::string(name), ending.a, ending.table};
  }
  return std::nullopt;
}

/// The scale of the adapter's products, from adapter_config.json.
struct Scaling {
  double alpha = 0;
  bool by_root = false;  // alpha is divided by the square root of the rank (rsLoRA), not by the rank
  std::map<std::string, double> of_modules;

  double alpha_of(const std::string& module) const {
    for (const auto& [ending, own] : of_modules)
      if (module == ending || module.ends_with("." + ending)) return own;
    return alpha;
  }
  double factor_of(const std::string& module, std::int64_t rank) const {
    return alpha_of(module) / (by_root ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
  }
};

Status refuse(std::string_view key, std::string_view what) {
  return error(Code::unsupported,
               "{} ({}) is not supported by this version; merge the adapter with PEFT, and convert "
               "the model",
               key, what);
}

bool says_something(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return false;
  return found->is_boolean() ? found->get<bool>() : !found->is_structured() || !found->empty();
}

Expected<Scaling> read_scaling(const json& config) {
  const auto text = [&](const char* key) {
    return config.contains(key) && config[key].is_string() ? config[key].get<std::string>() : std::string();
  };
  if (const std::string type = text("peft_type"); type != "LORA")
    return error(Code::unsupported, "{}: peft_type is '{}'; this version has LORA alone", kConfig,
                 modelfile::escape(type, 40));
  if (const std::string bias = text("bias"); !bias.empty() && bias != "none") return refuse("bias", "trained biases");
  for (const auto& [key, what] : std::initializer_list<std::pair<const char*, const char*>>{
           {"use_dora", "DoRA"},
           {"modules_to_save", "whole modules beside the matrices"},
           {"alora_invocation_tokens", "aLoRA"},
           {"trainable_token_indices", "tokens of their own"},
           {"lora_bias", "trained biases"},
           {"target_parameters", "parameters of no module"}})
    if (says_something(config, key)) return refuse(key, what);
  Scaling scaling;
  if (!config.contains("lora_alpha") || !config["lora_alpha"].is_number())
    return error(Code::corrupt, "{}: lora_alpha is no number; fetch the adapter again", kConfig);
  scaling.alpha = config["lora_alpha"].get<double>();
  scaling.by_root = says_something(config, "use_rslora");
  if (!says_something(config, "alpha_pattern")) return scaling;
  for (const auto& [key, value] : config["alpha_pattern"].items()) {
    const bool plain =
        std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
    if (!plain || !value.is_number()) return refuse("alpha_pattern", "with " + modelfile::escape(key, 60));
    scaling.of_modules[key] = value.get<double>();
  }
  return scaling;
}

/// A factor to write.
struct Half {
  Target target;
  DType dtype = DType::f32;
  float factor = 1;
};

class AdapterConverter {
 public:
  AdapterConverter(std::string in, std::string base, std::string out, WorkGrant* memory)
      : in_(std::move(in)),
        base_path_(std::move(base)),
        out_(std::move(out)),
        memory_(UINT64_MAX, memory),
        header_(metadata_, "") {}

  Expected<AdapterReport> run() {
    MR_RETURN_IF_ERROR(open());
    MR_RETURN_IF_ERROR(pair_halves());
    MR_RETURN_IF_ERROR(plan());
    MR_RETURN_IF_ERROR(write());
    return report_;
  }

 private:
  struct Pair {
    const modelfile::CheckpointTensor *a = nullptr, *b = nullptr;
    bool table = false;
  };

  Status open();
  Status take_memory(const fs::path& file, std::uint64_t most);
  Status pair_halves();
  Status plan();
  Status plan_group(const Group& group, const std::vector<const Pair*>& pairs, const std::vector<std::string>& names,
                    const Geometry& geometry);
  Status add(const NameRule& rule, const Geometry& geometry, const std::vector<Stored>& parts, std::string name,
             float factor);
  Expected<std::vector<Stored>> stored(const std::vector<const modelfile::CheckpointTensor*>& tensors) const;
  Status write();

  const std::string in_, base_path_, out_;
  GrantedBytes memory_;  // outlives what was read
  modelfile::Model base_;
  Metadata metadata_;
  Header header_;
  const Family* family_ = nullptr;
  Scaling scaling_;
  modelfile::Checkpoint checkpoint_;
  std::vector<modelfile::File> files_;
  std::map<std::string, Pair> pairs_;  // by the module's name
  std::vector<Source> sources_;
  std::vector<Half> halves_;
  AdapterReport report_;
};

/// The file's header. Reading checks it.
Expected<std::uint64_t> header_bytes_of(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::open_read(path));
  std::array<std::byte, 8> little_endian;
  MR_RETURN_IF_ERROR(file.read_at(0, little_endian));
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < little_endian.size(); ++i)
    bytes |= static_cast<std::uint64_t>(little_endian[i]) << (8 * i);
  return bytes;
}

/// Reserves memory for the values parsed from a file's first `most` bytes, which are JSON.
Status AdapterConverter::take_memory(const fs::path& file, std::uint64_t most) {
  std::error_code failure;
  const std::uint64_t bytes = std::min<std::uint64_t>(fs::file_size(file, failure), most) * kBytesAByteOfJson;
  if (failure) return error(Code::io_error, "{}: {}", modelfile::escape(file.string()), failure.message());
  if (memory_.grow(bytes)) return {};
  return error(Code::out_of_budget, "{}: reading it takes {} of memory, which is not free",
               modelfile::escape(file.string()), format_bytes(bytes));
}

Status AdapterConverter::open() {
  modelfile::OpenOptions no_words;
  no_words.skip_vocabulary = true;
  no_words.memory = &memory_;
  MR_ASSIGN_OR_RETURN(base_, modelfile::Model::open(base_path_, no_words));
  metadata_ = base_.metadata();
  MR_ASSIGN_OR_RETURN(report_.architecture, base_.get_string("general.architecture"));
  header_ = Header(metadata_, report_.architecture);
  family_ = family_of_file(header_);
  if (family_ == nullptr)
    return error(Code::unsupported, "{}: adapters of models of architecture '{}' are not converted by this version",
                 modelfile::escape(base_path_), modelfile::escape(report_.architecture, 60));
  const fs::path folder = folder_of(in_);
  std::error_code ignored;
  for (const char* name : {kConfig, kWeights})
    if (!fs::exists(folder / name, ignored))
      return error(Code::not_found, "{}: there is no {}; give the folder of an adapter as PEFT saves it",
                   modelfile::escape(folder.empty() ? "." : folder.string()), name);
  MR_RETURN_IF_ERROR(take_memory(folder / kConfig, kMostJsonBytes));
  MR_ASSIGN_OR_RETURN(const json config, read_json((folder / kConfig).string()));
  MR_ASSIGN_OR_RETURN(scaling_, read_scaling(config));
  MR_ASSIGN_OR_RETURN(const std::uint64_t header_bytes, header_bytes_of((folder / kWeights).string()));
  MR_RETURN_IF_ERROR(take_memory(folder / kWeights, header_bytes));
  MR_ASSIGN_OR_RETURN(checkpoint_, modelfile::Checkpoint::open((folder / kWeights).string()));
  MR_ASSIGN_OR_RETURN(files_, modelfile::open_files(checkpoint_.paths()));
  return {};
}

Status AdapterConverter::pair_halves() {
  for (const modelfile::CheckpointTensor& tensor : checkpoint_.tensors()) {
    const auto half = parse_half(tensor.name);
    const std::string shown = modelfile::escape(tensor.name, 120);
    if (!half)
      return error(Code::unsupported, "tensor '{}' is no half of a LoRA matrix, and this version has these alone",
                   shown);
    if (tensor.shape.size() != 2)
      return error(Code::corrupt, "tensor '{}' is no matrix; fetch the adapter again", shown);
    Pair& pair = pairs_[half->module];
    (half->a ? pair.a : pair.b) = &tensor;
    pair.table = pair.table || half->table;
  }
  for (const auto& [module, pair] : pairs_) {
    if (pair.a == nullptr || pair.b == nullptr)
      return error(Code::corrupt, "the adapter has only one half of '{}'; fetch it again",
                   modelfile::escape(module, 120));
    if (pair.a->shape[0] != pair.b->shape[1])
      return error(Code::corrupt, "the halves of '{}' are of ranks {} and {}; fetch the adapter again",
                   modelfile::escape(module, 120), pair.a->shape[0], pair.b->shape[1]);
    report_.most_rank = std::max(report_.most_rank, pair.b->shape[1]);
  }
  if (pairs_.empty()) return error(Code::corrupt, "{}: the adapter has no tensors", modelfile::escape(in_));
  return {};
}

Expected<std::vector<Stored>> AdapterConverter::stored(
    const std::vector<const modelfile::CheckpointTensor*>& tensors) const {
  static const Config kNothing(json::object());
  std::vector<Stored> parts;
  for (const modelfile::CheckpointTensor* tensor : tensors) {
    MR_ASSIGN_OR_RETURN(NamedTensor named, stored_tensor(checkpoint_, files_, kNothing, *tensor));
    parts.push_back(std::move(named.stored));
  }
  return parts;
}

Status AdapterConverter::plan() {
  std::vector<std::string> names;
  std::vector<const Pair*> pairs;
  for (const auto& [module, pair] : pairs_) {
    names.push_back(module + ".weight");
    pairs.push_back(&pair);
  }
  MR_ASSIGN_OR_RETURN(const Mapping mapping, map_names(names, *family_, header_.layers(), 0));
  const Geometry geometry = geometry_of(header_, *family_);
  for (const Group& group : mapping.groups) MR_RETURN_IF_ERROR(plan_group(group, pairs, names, geometry));
  report_.matrices = halves_.size() / 2;
  return {};
}

Status AdapterConverter::plan_group(const Group& group, const std::vector<const Pair*>& pairs,
                                    const std::vector<std::string>& names, const Geometry& geometry) {
  const std::string& first = names[group.parts.front()];
  const std::string shown = modelfile::escape(first, 120);
  Form form = group.rule->form;
  switch (form) {
    case Form::transposed:  // concerns the weights only: factors always have PyTorch's order
      form = Form::same;
      break;
    case Form::same:
    case Form::queries:
    case Form::keys:
    case Form::experts:
    case Form::first_half:
    case Form::second_half:
    case Form::grouped_qkv:
    case Form::mixed_qkv:
    case Form::mixed_z:
    case Form::tiled_qkv:
    case Form::tiled_heads:
    case Form::tiled_each:
      break;
    default:
      return error(Code::unsupported,
                   "'{}' is kept in another form in GGUF files, which two products do not give: "
                   "merge the adapter with PEFT, and convert the model",
                   shown);
  }
  std::vector<const modelfile::CheckpointTensor*> as, bs;
  for (const std::size_t part : group.parts) {
    as.push_back(pairs[part]->a);
    bs.push_back(pairs[part]->b);
  }
  MR_ASSIGN_OR_RETURN(const std::vector<Stored> a, stored(as));
  MR_ASSIGN_OR_RETURN(const std::vector<Stored> b, stored(bs));
  const std::int64_t rank = pairs[group.parts.front()]->b->shape[1];
  const std::string module = first.substr(0, first.size() - std::string_view(".weight").size());
  const double usual = scaling_.alpha == 0 ? 1 : scaling_.alpha / static_cast<double>(rank);
  const auto factor = static_cast<float>(scaling_.factor_of(module, rank) / usual);
  const std::string name = our_name(*group.rule, group.layer);
  const bool table = pairs[group.parts.front()]->table;
  const NameRule of_a{"", "", form == Form::experts ? form : table ? Form::transposed : Form::same};
  const NameRule of_b{"", "", form};
  MR_RETURN_IF_ERROR(add(of_a, geometry, a, name + ".lora_a", 1));
  return add(of_b, geometry, b, name + ".lora_b", factor);
}

Status AdapterConverter::add(const NameRule& rule, const Geometry& geometry, const std::vector<Stored>& parts,
                             std::string name, float factor) {
  Half half;
  MR_ASSIGN_OR_RETURN(half.target, build(rule, geometry, parts, sources_));
  half.target.name = std::move(name);
  MR_RETURN_IF_ERROR(check_target(half.target, sources_));
  half.dtype = parts.front().source.dtype;
  const bool kept = factor == 1 && (half.dtype == DType::f16 || half.dtype == DType::bf16);
  if (!kept) half.dtype = DType::f32;
  half.factor = factor;
  halves_.push_back(std::move(half));
  return {};
}

Status AdapterConverter::write() {
  modelfile::Writer writer(out_);
  MR_RETURN_IF_ERROR(writer.add("general.type", Value(std::string("adapter"))));
  MR_RETURN_IF_ERROR(writer.add("general.architecture", Value(report_.architecture)));
  MR_RETURN_IF_ERROR(writer.add("adapter.type", Value(std::string("lora"))));
  MR_RETURN_IF_ERROR(writer.add("adapter.lora.alpha", Value(static_cast<float>(scaling_.alpha))));
  for (const Half& half : halves_) MR_RETURN_IF_ERROR(writer.declare(half.target.name, half.dtype, half.target.shape));
  MR_RETURN_IF_ERROR(writer.begin());
  {
    MR_ASSIGN_OR_RETURN(modelfile::Model header, modelfile::Model::open(writer.paths().front() + ".partial"));
    MR_ASSIGN_OR_RETURN(const model::AdapterFile adapter, model::AdapterFile::from(std::move(header)));
    MR_RETURN_IF_ERROR(adapter.check(base_));
  }
  Scratch scratch;
  std::vector<float> floats;
  std::vector<std::byte> bytes;
  for (const Half& half : halves_) {
    const Target& target = half.target;
    const std::int64_t step = std::max<std::int64_t>(1, kPieceElements / target.cols);
    for (std::int64_t row = 0; row < target.rows; row += step) {
      const std::int64_t rows = std::min(step, target.rows - row), stride = row_bytes(half.dtype, target.cols);
      floats.resize(static_cast<std::size_t>(rows * target.cols));
      bytes.resize(static_cast<std::size_t>(rows * stride));
      MR_RETURN_IF_ERROR(gather_floats(target, sources_, row, rows, scratch, floats.data()));
      for (float& number : floats) number *= half.factor;
      for (std::int64_t r = 0; r < rows; ++r)
        encode_row(half.dtype, floats.data() + r * target.cols, target.cols, bytes.data() + r * stride);
      MR_RETURN_IF_ERROR(writer.write_tensor_data(bytes));
    }
  }
  MR_RETURN_IF_ERROR(writer.finish());
  report_.bytes = writer.file_bytes().front();
  return {};
}

}  // namespace

bool is_peft_adapter(const std::string& path) {
  std::error_code ignored;
  return (fs::is_directory(path, ignored) || path.ends_with(".safetensors")) &&
         fs::exists(folder_of(path) / kConfig, ignored);
}

Expected<AdapterReport> convert_adapter(const std::string& in, const std::string& base, const std::string& out,
                                        WorkGrant* memory) {
  return AdapterConverter(in, base, out, memory).run();
}

}  // namespace millrace::convert
