#include "model/control_vector.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include "model/unit_builder.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf_writer.h"
#include "tensor/codec.h"

namespace millrace::model {
namespace {

using modelfile::TensorInfo;

constexpr std::string_view kDirection = "direction.";
constexpr std::uint64_t kMostHeaderBytes = 8u << 20;

/// By layer, ascending.
using Sums = std::map<std::int64_t, std::vector<float>>;

/// The layer of a direction; nullopt: the tensor is none.
std::optional<std::int64_t> layer_of(std::string_view name) {
  if (!name.starts_with(kDirection)) return std::nullopt;
  name.remove_prefix(kDirection.size());
  std::int64_t layer = 0;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (failure != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return layer;
}

/// The model's numbers that directions must fit.
struct Shape {
  std::int64_t dim = 0, layers = 0;
};

Expected<Shape> shape_of(const modelfile::Model& base) {
  Shape shape;
  MR_ASSIGN_OR_RETURN(const std::string architecture, base.get_string("general.architecture"));
  MR_ASSIGN_OR_RETURN(shape.dim, base.get_int(architecture + ".embedding_length"));
  MR_ASSIGN_OR_RETURN(shape.layers, base.get_int(architecture + ".block_count"));
  MR_ASSIGN_OR_RETURN(const std::int64_t guessing, base.get_int_or(architecture + ".nextn_predict_layers", 0));
  shape.layers -= guessing;
  return shape;
}

/// Refuses a tensor that is no direction of the model's.
Expected<std::int64_t> checked_layer(const TensorInfo& tensor, const Shape& shape) {
  const std::string shown = modelfile::escape(tensor.name, 60);
  const auto layer = layer_of(tensor.name);
  if (!layer || !info(tensor.dtype).computable)
    return error(Code::unsupported, "'{}' ({}) is no direction.N, and control vectors have these alone", shown,
                 info(tensor.dtype).name);
  if (tensor.shape.size() != 1 || tensor.cols() != shape.dim)
    return error(Code::invalid_argument,
                 "'{}' has {} channels, and the model's stream {}: it is another model's control vector", shown,
                 tensor.cols(), shape.dim);
  if (*layer < 1 || *layer >= shape.layers)
    return error(Code::invalid_argument, "'{}': the model has layers 1 to {} behind which a direction may be added",
                 shown, shape.layers - 1);
  return *layer;
}

/// Adds a file's directions of the layers from `first` to `last`. Errors: as write_control().
Status add_file(const ControlVector& vector, const Shape& shape, std::int64_t first, std::int64_t last, Sums& sums) {
  if (!std::isfinite(vector.scale))
    return error(Code::invalid_argument, "its scale is no number; give one such as 0.8");
  GrantedBytes memory(kMostHeaderBytes, nullptr);
  modelfile::OpenOptions options;
  options.memory = &memory;
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(vector.path, options));
  MR_ASSIGN_OR_RETURN(const std::vector<modelfile::File> files, modelfile::open_files(file.paths()));
  if (file.tensors().empty()) return error(Code::unsupported, "it has no tensors, so it is no control vector");
  std::vector<std::byte> bytes;
  std::vector<float> floats(static_cast<std::size_t>(shape.dim));
  for (const TensorInfo& tensor : file.tensors()) {
    MR_ASSIGN_OR_RETURN(const std::int64_t layer, checked_layer(tensor, shape));
    if (layer < first || layer > last) continue;
    bytes.resize(tensor.bytes);
    MR_RETURN_IF_ERROR(files[static_cast<std::size_t>(tensor.file)].read_at(tensor.offset, bytes));
    decode_row(tensor.dtype, bytes.data(), shape.dim, floats.data());
    std::vector<float>& sum = sums.try_emplace(layer, floats.size(), 0.0F).first->second;
    for (std::size_t i = 0; i < floats.size(); ++i) sum[i] += vector.scale * floats[i];
    if (!std::all_of(sum.begin(), sum.end(), [](float number) { return std::isfinite(number); }))
      return error(Code::corrupt, "'{}' has numbers that are not finite; fetch the file again",
                   modelfile::escape(tensor.name, 60));
  }
  return {};
}

Status write(const Sums& sums, std::int64_t dim, const std::string& out) {
  modelfile::Writer writer(out);
  MR_RETURN_IF_ERROR(writer.add("general.type", modelfile::Value(std::string("control"))));
  std::uint64_t digest = 0;
  for (const auto& [layer, sum] : sums)
    digest = XXH3_64bits_withSeed(sum.data(), sum.size() * sizeof(float), digest + static_cast<std::uint64_t>(layer));
  MR_RETURN_IF_ERROR(writer.add("control.digest", modelfile::Value(digest)));
  for (const auto& [layer, sum] : sums) {
    const auto index = static_cast<int>(layer);
    MR_RETURN_IF_ERROR(writer.declare(layer_tensor(index, kControlOne), DType::f32, {1}));
    MR_RETURN_IF_ERROR(writer.declare(layer_tensor(index, kControlSum), DType::f32, {dim}));
  }
  MR_RETURN_IF_ERROR(writer.begin());
  constexpr float kOne = 1;
  for (const auto& [layer, sum] : sums) {
    MR_RETURN_IF_ERROR(writer.write_tensor_data(std::as_bytes(std::span(&kOne, 1))));
    MR_RETURN_IF_ERROR(writer.write_tensor_data(std::as_bytes(std::span(sum))));
  }
  return writer.finish();
}

}  // namespace

bool is_control_tensor(std::string_view name) { return name.ends_with(kControlSum) || name.ends_with(kControlOne); }

Expected<ControlReport> write_control(const modelfile::Model& base, const ControlOptions& options,
                                      const std::string& out) {
  MR_ASSIGN_OR_RETURN(const Shape shape, shape_of(base));
  const std::int64_t last = options.last_layer < 0 ? shape.layers - 1 : std::min(options.last_layer, shape.layers - 1);
  if (options.first_layer < 1 || options.first_layer > last)
    return error(Code::invalid_argument, "there are no layers from {} to {}; name some from 1 to {}",
                 options.first_layer, options.last_layer < 0 ? last : options.last_layer, shape.layers - 1);
  Sums sums;
  for (const ControlVector& vector : options.vectors)
    if (const Status added = add_file(vector, shape, options.first_layer, last, sums); !added.ok())
      return added.with_context(modelfile::escape(vector.path, 200));
  if (sums.empty())
    return error(Code::invalid_argument, "the control vectors have no directions of layers {} to {}",
                 options.first_layer, last);
  MR_RETURN_IF_ERROR(write(sums, shape.dim, out));
  return ControlReport{std::ssize(sums), sums.begin()->first, sums.rbegin()->first};
}

}  // namespace millrace::model
