#include "app/measure/groups.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>

#include "base/bytes.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf_writer.h"
#include "modelfile/quantize.h"
#include "tensor/codec.h"
#include "tensor/matrices.h"

namespace millrace::measure {
namespace {

using modelfile::TensorInfo;

constexpr std::int64_t kSampledWeights = 1 << 20;

std::string group_name(const std::string& tensor, bool tied) {
  if (tensor == "output.weight" || (tied && tensor == "token_embd.weight")) return "head";
  if (tensor == "token_embd.weight") return "embedding";
  constexpr std::string_view kLayer = "blk.";
  const std::size_t dot = tensor.starts_with(kLayer) ? tensor.find('.', kLayer.size()) : std::string::npos;
  if (dot == std::string::npos) return tensor;
  const std::string_view part = std::string_view(tensor).substr(dot);
  const char* const group = part.starts_with(".ffn_down")                                       ? ".down"
                            : part.starts_with(".ffn_")                                         ? ".ffn"
                            : part.starts_with(".attn_v.") || part.starts_with(".attn_output.") ? ".values"
                                                                                                : ".attention";
  return tensor.substr(0, dot) + group;
}

/// As it lies in the file.
Status read_row(const std::vector<modelfile::File>& files, const TensorInfo& tensor, std::int64_t row,
                std::vector<std::byte>& out) {
  const std::int64_t bytes = row_bytes(tensor.dtype, tensor.cols());
  out.resize(static_cast<std::size_t>(bytes));
  return files[static_cast<std::size_t>(tensor.file)].read_at(tensor.offset + static_cast<std::uint64_t>(row * bytes),
                                                              out);
}

struct Squares {
  double lost = 0, all = 0;
};

/// Of one row as it comes back from `dtype`. `scaled`: whether a number stands beside its matrix. The row's own largest
/// magnitude finds it here: what matters of it is that no scale of a block is a small one.
Squares squares_of_row(const TensorInfo& tensor, const std::byte* bytes, DType dtype, bool scaled,
                       const float* columns) {
  const std::int64_t cols = tensor.cols();
  std::vector<float> weights(static_cast<std::size_t>(cols)), rounded(weights.size());
  std::vector<std::byte> encoded(static_cast<std::size_t>(row_bytes(dtype, cols)));
  decode_row(tensor.dtype, bytes, cols, weights.data());
  if (scaled) {
    const float factor = nvfp4_factor(range_of(weights).largest);
    for (float& weight : weights) weight /= factor;
  }
  encode_row(dtype, weights.data(), cols, encoded.data(), columns);
  decode_row(dtype, encoded.data(), cols, rounded.data());
  Squares squares;
  for (std::size_t c = 0; c < weights.size(); ++c) {
    const double lost = static_cast<double>(weights[c]) - rounded[c], counts = columns != nullptr ? columns[c] : 1;
    squares.lost += counts * lost * lost;
    squares.all += counts * static_cast<double>(weights[c]) * weights[c];
  }
  return squares;
}

}  // namespace

std::int64_t Group::elements() const {
  std::int64_t all = 0;
  for (const TensorInfo* tensor : tensors) all += tensor->cols() * tensor->rows();
  return all;
}

std::vector<Group> groups_of(const modelfile::Model& model) {
  const bool tied = model.find("output.weight") == nullptr;
  std::vector<Group> groups;
  std::map<std::string, std::size_t> places;
  for (const TensorInfo& tensor : model.tensors()) {
    if (!info(tensor.dtype).computable || modelfile::stays_float(tensor)) continue;
    const std::string name = group_name(tensor.name, tied);
    const auto [found, is_new] = places.emplace(name, groups.size());
    if (is_new) groups.push_back({name, {}});
    groups[found->second].tensors.push_back(&tensor);
  }
  return groups;
}

std::uint64_t file_bytes_as(const TensorInfo& tensor, DType dtype) {
  std::uint64_t bytes =
      round_up(static_cast<std::uint64_t>(tensor.rows() * row_bytes(dtype, tensor.cols())), kTensorAlignment);
  if (dtype == DType::nvfp4 && dtype != tensor.dtype && modelfile::may_have_scale(tensor.name)) {
    const std::int64_t matrices = matrices_of(tensor.shape);
    bytes += modelfile::entry_bytes({modelfile::scale_name(tensor.name), DType::f32, {matrices}, 0, 0, 0}) +
             round_up(static_cast<std::uint64_t>(matrices) * sizeof(float), kTensorAlignment);
  }
  return bytes;
}

std::uint64_t bytes_as(const Group& group, DType dtype) {
  std::uint64_t bytes = 0;
  for (const TensorInfo* tensor : group.tensors)
    bytes += file_bytes_as(*tensor, modelfile::fitting_dtype(dtype, tensor->cols()));
  return bytes;
}

Expected<double> rounding_error(const modelfile::Model& model, const Group& group, DType dtype, ThreadPool& pool,
                                const modelfile::ImportanceMatrix* importance) {
  MR_ASSIGN_OR_RETURN(const std::vector<modelfile::File> files, modelfile::open_files(model.paths()));
  double sum = 0;
  for (const TensorInfo* tensor : group.tensors) {
    const std::int64_t rows = tensor->rows();
    const std::int64_t sampled =
        std::clamp<std::int64_t>(kSampledWeights / std::max<std::int64_t>(1, tensor->cols()), 1, rows);
    const DType used = modelfile::fitting_dtype(dtype, tensor->cols());
    const bool scaled = modelfile::gets_scale(model, *tensor, used);
    MR_ASSIGN_OR_RETURN(const auto columns, modelfile::ColumnImportance::of(*tensor, importance));
    std::vector<Squares> of_row(static_cast<std::size_t>(sampled));
    std::vector<Status> of_thread(static_cast<std::size_t>(pool.threads()));
    pool.parallel_for(sampled, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      Status& status = of_thread[static_cast<std::size_t>(thread)];
      std::vector<std::byte> bytes;
      for (std::int64_t i = begin; i < end && status.ok(); ++i) {
        const std::int64_t row = i * rows / sampled;
        status = read_row(files, *tensor, row, bytes);
        if (status.ok())
          of_row[static_cast<std::size_t>(i)] =
              squares_of_row(*tensor, bytes.data(), used, scaled, columns.of_row(row));
      }
    });
    for (const Status& status : of_thread) MR_RETURN_IF_ERROR(status);
    Squares squares;
    for (const Squares& row : of_row) {
      squares.lost += row.lost;
      squares.all += row.all;
    }
    if (squares.all > 0) sum += squares.lost / squares.all;
  }
  return sum / static_cast<double>(group.tensors.size());
}

Status write_overlay(const modelfile::Model& model, std::span<const Group* const> groups, DType dtype,
                     const std::string& path, int threads, const std::atomic<bool>* cancel,
                     const modelfile::ImportanceMatrix* importance) {
  modelfile::QuantizeOptions options{
      .importance = importance, .threads = threads, .only_named = true, .cancel = cancel};
  for (const Group* group : groups)
    for (const TensorInfo* tensor : group->tensors)
      options.types.emplace(tensor->name, modelfile::fitting_dtype(dtype, tensor->cols()));
  return modelfile::quantize(model.paths().front(), path, options);
}

}  // namespace millrace::measure
