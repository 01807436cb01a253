#include "convert/stored.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "convert/integer_layouts.h"
#include "convert/mapping.h"
#include "modelfile/escape.h"
#include "tensor/blocks.h"

namespace millrace::convert {
namespace {

using modelfile::Checkpoint;
using modelfile::CheckpointTensor;
using modelfile::Element;

constexpr std::string_view kPacked = "_packed";  // compressed-tensors' word behind the name of what has 4 bits
constexpr std::string_view kWeight = ".weight", kScale = ".scale";  // DeepSeek V4 has NAME.weight and NAME.scale
constexpr std::string_view kBlocks = "_blocks", kExponents = "_scales", kMark = "_mxfp4";

std::optional<DType> dtype_of(Element element) {
  switch (element) {
    case Element::f32:
      return DType::f32;
    case Element::f16:
      return DType::f16;
    case Element::bf16:
      return DType::bf16;
    case Element::f64:
      return DType::f64;
    default:
      return std::nullopt;
  }
}

std::int64_t rows_of(std::span<const std::int64_t> shape) {
  if (shape.empty()) return 1;
  return std::accumulate(shape.begin(), shape.end() - 1, std::int64_t{1}, std::multiplies<>());
}

/// Reads one tensor of a checkpoint as a source.
class Reader {
 public:
  Reader(const Checkpoint& checkpoint, const std::vector<modelfile::File>& files, const Config& config)
      : checkpoint_(checkpoint), files_(files) {
    const auto block = config.within("quantization_config").numbers("weight_block_size");
    if (block.size() == 2) {
      block_rows_ = static_cast<std::int64_t>(std::clamp(block[0], 0.0, 65536.0));
      block_cols_ = static_cast<std::int64_t>(std::clamp(block[1], 0.0, 65536.0));
    }
  }

  Expected<NamedTensor> read(const CheckpointTensor& tensor) const {
    NamedTensor named{tensor.name, {}};
    Source& source = named.stored.source;
    source.name = tensor.name;
    source.file = &file_of(tensor);
    source.offset = tensor.offset;
    named.stored.shape = tensor.shape;
    source.rows = rows_of(tensor.shape);
    source.cols = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (tensor.elements() == 0) return error(Code::corrupt, "tensor '{}' is empty", shown(tensor));
    if (const auto dtype = dtype_of(tensor.element)) {
      source.dtype = *dtype;
      return named;
    }
    if (tensor.element == Element::i64 || tensor.element == Element::i32) {  // for Form::integers alone
      source.dtype = tensor.element == Element::i64 ? DType::i64 : DType::i32;
      return named;
    }
    if (tensor.element == Element::f8_e4m3 || tensor.element == Element::f8_e5m2) {
      source.packing = tensor.element == Element::f8_e4m3 ? Packing::e4m3 : Packing::e5m2;
      source.dtype = DType::bf16;
      MR_RETURN_IF_ERROR(find_scales(tensor, source));
      return named;
    }
    if (tensor.element == Element::u8 && tensor.name.ends_with(kBlocks)) {
      MR_RETURN_IF_ERROR(read_mxfp4(tensor, named));
      return named;
    }
    if (tensor.element == Element::u8 && nvfp4_scales(tensor) != nullptr) {
      MR_RETURN_IF_ERROR(read_nvfp4(tensor, named));
      return named;
    }
    if (tensor.element == Element::u8 || tensor.element == Element::i8) {
      if (const CheckpointTensor* exponents = scales_of(stem_of(tensor));
          exponents != nullptr && is_exponents(*exponents)) {
        MR_RETURN_IF_ERROR(read_pairs(tensor, *exponents, named));
        return named;
      }
    }
    return error(
        Code::unsupported,
        "tensor '{}' holds {}: weights quantized in such a way are not read; download the model in BF16, F16, FP8, "
        "GPTQ or AWQ",
        shown(tensor), element_name(tensor.element));
  }

  /// True if it is part of another tensor.
  bool is_beside(const CheckpointTensor& tensor) const {
    for (const std::string_view ending : {"_scale_inv", "_global_scale", "_scale_2", "_scale"}) {
      if (!tensor.name.ends_with(ending)) continue;
      const std::string stem = tensor.name.substr(0, tensor.name.size() - ending.size());
      return checkpoint_.find(stem) != nullptr || checkpoint_.find(stem + std::string(kPacked)) != nullptr;
    }
    if (tensor.name.ends_with(kScale) && is_exponents(tensor))
      return checkpoint_.find(tensor.name.substr(0, tensor.name.size() - kScale.size()) + std::string(kWeight)) !=
             nullptr;
    if (!tensor.name.ends_with(kExponents)) return false;
    const std::string stem = tensor.name.substr(0, tensor.name.size() - kExponents.size());
    return checkpoint_.find(stem + std::string(kBlocks)) != nullptr;
  }

 private:
  static std::string shown(const CheckpointTensor& tensor) { return modelfile::escape(tensor.name, 120); }
  const modelfile::File& file_of(const CheckpointTensor& tensor) const {
    return files_[static_cast<std::size_t>(tensor.file)];
  }

  /// Scales without a mantissa: a byte e means 2^(e - 127).
  static bool is_exponents(const CheckpointTensor& tensor) {
    return tensor.element == Element::f8_e8m0 || tensor.element == Element::u8;
  }
  /// NAME_scale_inv: per block; NAME_scale, or .scale for .weight: per tensor, row or block. Weights are multiplied by
  /// all of these. nullptr: none.
  const CheckpointTensor* scales_of(const std::string& name) const {
    const CheckpointTensor* found = checkpoint_.find(name + "_scale_inv");
    if (found == nullptr) found = checkpoint_.find(name + "_scale");
    if (found != nullptr || !name.ends_with(kWeight)) return found;
    found = checkpoint_.find(name.substr(0, name.size() - kWeight.size()) + std::string(kScale));
    return found != nullptr && is_exponents(*found) ? found : nullptr;
  }

  Status find_scales(const CheckpointTensor& tensor, Source& source) const {
    const CheckpointTensor* found = scales_of(tensor.name);
    if (found == nullptr)
      return error(Code::corrupt, "tensor '{}' holds 8-bit floats, but no tensor has their scales ({}_scale_inv)",
                   shown(tensor), shown(tensor));
    const bool exponents = is_exponents(*found);
    const auto dtype = exponents ? DType::f32 : dtype_of(found->element);
    if (!dtype || *dtype == DType::f64)
      return error(Code::unsupported, "tensor '{}' holds {}, which are not scales", shown(*found),
                   element_name(found->element));
    source.scales = {&file_of(*found), found->offset, *dtype, source.rows, source.cols, 1, exponents};
    const std::int64_t count = found->elements(), cols = found->shape.empty() ? 1 : found->shape.back();
    if (count == 1) return {};
    const auto parts = [](std::int64_t whole, std::int64_t each) { return (whole + each - 1) / each; };
    if (count == source.rows && cols == 1) {
      source.scales.rows_each = 1;
      return {};
    }
    if (exponents && count == source.rows * cols && cols * kBlock == source.cols) {  // MXFP8
      source.scales.rows_each = 1;
      source.scales.cols_each = kBlock;
      source.scales.cols = cols;
      return {};
    }
    // If a tensor holds several matrices, each has its own blocks.
    const std::int64_t rows = tensor.shape.size() < 2 ? source.rows : tensor.shape[tensor.shape.size() - 2];
    const bool fits = block_rows_ > 0 && block_cols_ > 0 && cols == parts(source.cols, block_cols_) &&
                      count / cols == source.rows / rows * parts(rows, block_rows_) &&
                      (rows == source.rows || rows % block_rows_ == 0);
    if (!fits)
      return error(Code::corrupt, "tensor '{}' has {} scales for {} x {} weights, which are no blocks of {} x {}",
                   shown(*found), count, source.rows, source.cols, block_rows_, block_cols_);
    source.scales.rows_each = block_rows_;
    source.scales.cols_each = block_cols_;
    source.scales.cols = cols;
    return {};
  }

  Status read_mxfp4(const CheckpointTensor& tensor, NamedTensor& named) const {
    const std::string stem = tensor.name.substr(0, tensor.name.size() - kBlocks.size());
    const CheckpointTensor* exponents = checkpoint_.find(stem + std::string(kExponents));
    const std::vector<std::int64_t>& shape = tensor.shape;
    std::vector<std::int64_t> blocks = shape;
    if (!blocks.empty()) blocks.pop_back();
    if (shape.size() < 3 || shape.back() != kBlock / 2 || exponents == nullptr || exponents->element != Element::u8 ||
        exponents->shape != blocks)
      return error(Code::corrupt, "tensor '{}' must hold MXFP4 in blocks of 16 bytes with an exponent each in {}{}",
                   shown(tensor), modelfile::escape(stem, 120), kExponents);
    named.name = stem + std::string(kMark);
    named.stored.shape.assign(shape.begin(), shape.end() - 2);
    named.stored.shape.push_back(shape[shape.size() - 2] * kBlock);
    Source& source = named.stored.source;
    source.packing = Packing::mxfp4;
    source.dtype = DType::mxfp4;
    source.rows = rows_of(named.stored.shape);
    source.cols = named.stored.shape.back();
    source.scales.file = &file_of(*exponents);
    source.scales.offset = exponents->offset;
    return {};
  }

  /// MXFP4 as DeepSeek V4 and compressed-tensors have it: two numbers per byte, and an exponent for each 32.
  Status read_pairs(const CheckpointTensor& tensor, const CheckpointTensor& exponents, NamedTensor& named) const {
    std::vector<std::int64_t> shape = tensor.shape, groups = tensor.shape;
    if (!groups.empty()) groups.back() /= kBlock / 2;
    if (shape.size() < 2 || shape.back() % (kBlock / 2) != 0 || exponents.shape != groups)
      return error(Code::corrupt, "tensor '{}' must hold MXFP4, 32 numbers in 16 bytes with an exponent each in '{}'",
                   shown(tensor), shown(exponents));
    shape.back() *= 2;
    named.name = stem_of(tensor);
    named.stored.shape = shape;
    Source& source = named.stored.source;
    source.packing = Packing::mxfp4;
    source.dtype = DType::mxfp4;
    source.cols = shape.back();
    source.scales.file = &file_of(exponents);
    source.scales.offset = exponents.offset;
    return {};
  }

  /// "model.layers.0.mlp.up_proj.weight" from the name in the checkpoint.
  static std::string stem_of(const CheckpointTensor& tensor) {
    const std::string_view name = tensor.name;
    return std::string(name.substr(0, name.size() - (name.ends_with(kPacked) ? kPacked.size() : 0)));
  }
  /// The scales of NVFP4, one 8-bit float per 16 numbers. nullptr: none.
  const CheckpointTensor* nvfp4_scales(const CheckpointTensor& tensor) const {
    const CheckpointTensor* scales = checkpoint_.find(stem_of(tensor) + "_scale");
    return scales != nullptr && scales->element == Element::f8_e4m3 ? scales : nullptr;
  }
  /// ModelOpt's factor of all numbers, or the inverse of compressed-tensors' divisor; 1 if there is none.
  Status read_factor(const std::string& stem, float& factor) const {
    const CheckpointTensor* by = checkpoint_.find(stem + "_scale_2");
    const bool divides = by == nullptr;
    if (divides) by = checkpoint_.find(stem + "_global_scale");
    if (by == nullptr) return {};
    if (by->element != Element::f32 || by->elements() != 1)
      return error(Code::unsupported, "tensor '{}' must hold one F32 number", shown(*by));
    MR_RETURN_IF_ERROR(file_of(*by).read_at(by->offset, std::as_writable_bytes(std::span(&factor, 1))));
    if (divides) factor = 1 / factor;
    if (!std::isfinite(factor) || factor < 0)
      return error(Code::corrupt, "tensor '{}' holds no factor of weights", shown(*by));
    return {};
  }
  Status read_nvfp4(const CheckpointTensor& tensor, NamedTensor& named) const {
    const CheckpointTensor& scales = *nvfp4_scales(tensor);
    std::vector<std::int64_t> shape = tensor.shape, groups = tensor.shape;
    shape.back() *= 2;
    groups.back() /= 8;
    if (shape.size() < 2 || shape.back() % 16 != 0 || scales.shape != groups)
      return error(Code::corrupt, "tensor '{}' must hold NVFP4, 16 numbers in 8 bytes with a scale each in '{}'",
                   shown(tensor), shown(scales));
    named.name = stem_of(tensor);
    named.stored.shape = shape;
    Source& source = named.stored.source;
    source.packing = Packing::nvfp4;
    source.cols = shape.back();
    source.dtype = source.cols % kNvfp4Block == 0 ? DType::nvfp4 : DType::bf16;
    source.scales.file = &file_of(scales);
    source.scales.offset = scales.offset;
    return read_factor(named.name, source.factor);
  }

  const Checkpoint& checkpoint_;
  const std::vector<modelfile::File>& files_;
  std::int64_t block_rows_ = 128, block_cols_ = 128;
};

}  // namespace

Expected<std::vector<NamedTensor>> stored_tensors(const Checkpoint& checkpoint,
                                                  const std::vector<modelfile::File>& files, const Config& config,
                                                  std::initializer_list<std::string_view> others) {
  IntegerLayouts layouts(checkpoint, files, config);
  MR_RETURN_IF_ERROR(layouts.check_config());
  const Reader reader(checkpoint, files, config);
  std::vector<NamedTensor> all;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (reader.is_beside(tensor) || std::find(others.begin(), others.end(), tensor.name) != others.end()) continue;
    MR_ASSIGN_OR_RETURN(const bool of_integers, layouts.is_beside(tensor));
    if (of_integers) continue;
    if (duty_of(tensor.name) != Duty::unknown) {
      all.push_back({tensor.name, {}});  // not read: map_names() counts it
      continue;
    }
    MR_ASSIGN_OR_RETURN(std::optional<NamedTensor> integers, layouts.read(tensor));
    if (integers) {
      all.push_back(std::move(*integers));
      continue;
    }
    MR_ASSIGN_OR_RETURN(NamedTensor named, reader.read(tensor));
    all.push_back(std::move(named));
  }
  return all;
}

Expected<NamedTensor> stored_tensor(const Checkpoint& checkpoint, const std::vector<modelfile::File>& files,
                                    const Config& config, const CheckpointTensor& tensor) {
  return Reader(checkpoint, files, config).read(tensor);
}

}  // namespace millrace::convert
