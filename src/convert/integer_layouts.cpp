#include "convert/integer_layouts.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "modelfile/escape.h"
#include "tensor/blocks.h"

namespace millrace::convert {
namespace {

using modelfile::CheckpointTensor;
using modelfile::Element;
using Shape = std::vector<std::int64_t>;

std::string shown(const CheckpointTensor& tensor) { return modelfile::escape(tensor.name, 120); }

std::string text_of(std::span<const std::int64_t> shape) {
  std::string text;
  for (const std::int64_t dim : shape) text += (text.empty() ? "" : " x ") + std::to_string(dim);
  return text.empty() ? "one number" : text;
}

Status wrong_shape(const CheckpointTensor& tensor, std::string_view wanted) {
  return error(Code::corrupt, "tensor '{}' is {}, but {} is expected", shown(tensor), text_of(tensor.shape), wanted);
}

Status expect_shape(const CheckpointTensor& tensor, std::span<const std::int64_t> shape) {
  return std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end())
             ? Status()
             : wrong_shape(tensor, text_of(shape));
}

bool is_word(Element element) { return element == Element::u32 || element == Element::i32; }

Status expect_words(const CheckpointTensor& tensor) {
  return is_word(tensor.element) ? Status()
                                 : error(Code::corrupt, "tensor '{}' holds {}, but words of 32 bits are expected",
                                         shown(tensor), element_name(tensor.element));
}

std::string_view without(std::string_view name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

/// With the group that each column's is, if these are whole numbers of groups.
Status check_groups(const CheckpointTensor& tensor, const Integers& integers) {
  if (integers.groups > 0 && integers.cols % integers.groups == 0) return {};
  return error(Code::corrupt, "tensor '{}' has {} columns, which are not {} groups of one size", shown(tensor),
               integers.cols, integers.groups);
}

NamedTensor named(std::string name, Shape shape, Integers integers) {
  NamedTensor result{std::move(name), {}};
  Source& source = result.stored.source;
  const std::int64_t each = integers.cols / integers.groups;
  if (integers.group_of.empty()) integers.in_blocks = each % kBlock == 0;
  integers.name = result.name;
  result.stored.shape = std::move(shape);
  source.name = result.name;
  source.rows = integers.rows;
  source.cols = integers.cols;
  source.packing = Packing::integers;
  source.dtype = best_blocks(integers);
  source.integers = std::make_shared<const Integers>(std::move(integers));
  return result;
}

}  // namespace

Status IntegerLayouts::check_config() {
  Config quantization = config_.within("quantization_config");
  method_ = quantization.text("quant_method", "");
  MR_RETURN_IF_ERROR(quantization.status());
  constexpr std::array<std::string_view, 8> kKnown = {"",         "fp8",  "mxfp4", "mxfp8", "compressed-tensors",
                                                      "modelopt", "gptq", "awq"};
  if (std::find(kKnown.begin(), kKnown.end(), method_) == kKnown.end())
    return error(
        Code::unsupported,
        "quant_method in config.json is '{}', which this version does not read; download the model in BF16, F16, "
        "FP8, GPTQ or AWQ",
        modelfile::escape(method_, 40));
  if (method_ != "gptq" && method_ != "awq") return {};
  bits_ = quantization.optional("bits", 4, 1, 32);
  if (bits_ != 4 && (bits_ != 8 || method_ == "awq"))
    quantization.fail(error(Code::unsupported, "bits in config.json is {}: {} is read with {} bits", bits_, method_,
                            method_ == "awq" ? "4" : "4 or 8"));
  if (method_ == "awq") {
    std::string version = quantization.text("version", "gemm");
    std::transform(version.begin(), version.end(), version.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    if (version != "gemm")
      quantization.fail(error(Code::unsupported, "version of AWQ in config.json is '{}': this version reads gemm",
                              modelfile::escape(version, 40)));
    return quantization.status();
  }
  const std::string format = quantization.text("checkpoint_format", "gptq");
  zeros_are_one_less_ = format != "gptq_v2";
  may_be_symmetric_ = quantization.flag("sym", true);
  if ((format != "gptq" && format != "gptq_v2") || quantization.flag("is_marlin_format", false))
    quantization.fail(error(Code::unsupported,
                            "checkpoint_format of GPTQ in config.json is '{}': this version reads gptq and gptq_v2",
                            modelfile::escape(format == "gptq" ? "marlin" : format, 40)));
  return quantization.status();
}

bool IntegerLayouts::has(std::string_view stem, std::string_view suffix) const {
  return checkpoint_.find(std::string(stem) + std::string(suffix)) != nullptr;
}

Expected<const CheckpointTensor*> IntegerLayouts::beside(const Tensor& tensor, std::string_view stem,
                                                         std::string_view suffix) const {
  const std::string name = std::string(stem) + std::string(suffix);
  if (const Tensor* found = checkpoint_.find(name)) return found;
  return error(Code::corrupt, "tensor '{}' holds integers, but '{}' is missing", shown(tensor),
               modelfile::escape(name, 120));
}

Packed IntegerLayouts::packed(const Tensor& tensor, WordOrder order) const {
  Packed packed;
  packed.file = &file_of(tensor);
  packed.offset = tensor.offset;
  packed.order = order;
  return packed;
}

Expected<GroupFloats> IntegerLayouts::floats(const Tensor& tensor, std::span<const std::int64_t> shape,
                                             bool turned) const {
  MR_RETURN_IF_ERROR(expect_shape(tensor, shape));
  GroupFloats floats;
  floats.file = &file_of(tensor);
  floats.offset = tensor.offset;
  floats.turned = turned;
  switch (tensor.element) {
    case Element::f32:
      floats.dtype = DType::f32;
      return floats;
    case Element::f16:
      floats.dtype = DType::f16;
      return floats;
    case Element::bf16:
      floats.dtype = DType::bf16;
      return floats;
    default:
      return error(Code::unsupported, "tensor '{}' holds {}, which are not scales", shown(tensor),
                   element_name(tensor.element));
  }
}

Expected<std::vector<std::int64_t>> IntegerLayouts::whole_numbers(const Tensor& tensor, std::int64_t count) const {
  MR_RETURN_IF_ERROR(expect_shape(tensor, std::array{count}));
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  if (tensor.element == Element::i64) {
    MR_RETURN_IF_ERROR(file_of(tensor).read_at(tensor.offset, std::as_writable_bytes(std::span(numbers))));
  } else if (tensor.element == Element::i32) {
    std::vector<std::int32_t> small(numbers.size());
    MR_RETURN_IF_ERROR(file_of(tensor).read_at(tensor.offset, std::as_writable_bytes(std::span(small))));
    std::copy(small.begin(), small.end(), numbers.begin());
  } else {
    return error(Code::corrupt, "tensor '{}' holds {}, but whole numbers are expected", shown(tensor),
                 element_name(tensor.element));
  }
  return numbers;
}

/// Ends at the first word that is another.
Expected<bool> IntegerLayouts::is_filled_with(const Tensor& tensor, std::uint32_t word) const {
  std::vector<std::uint32_t> words;
  for (std::uint64_t at = 0; at + sizeof word <= tensor.bytes; at += words.size() * sizeof word) {
    words.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kMiB, tensor.bytes - at) / sizeof word));
    MR_RETURN_IF_ERROR(file_of(tensor).read_at(tensor.offset + at, std::as_writable_bytes(std::span(words))));
    if (std::any_of(words.begin(), words.end(), [&](std::uint32_t other) { return other != word; })) return false;
  }
  return true;
}

Expected<bool> IntegerLayouts::is_beside(const Tensor& tensor) const {
  const std::string_view name = tensor.name;
  for (const std::string_view suffix : {".scales", ".biases", ".qzeros", ".g_idx"}) {
    if (!name.ends_with(suffix)) continue;
    const CheckpointTensor* words = checkpoint_.find(std::string(without(name, suffix)) + ".weight");
    return has(without(name, suffix), ".qweight") || (words != nullptr && is_word(words->element));
  }
  for (const std::string_view suffix : {"_scale", "_shape", "_zero_point", "_g_idx"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string_view stem = without(name, suffix);
    return has(stem, "_packed") || (stem.ends_with(".weight") && has(stem, ""));
  }
  constexpr std::string_view kBias = ".bias";
  constexpr std::uint64_t kMostBiasBytes = kMiB;
  // Writers of GPTQ give every matrix a bias, also those of models that have none.
  if (!name.ends_with(kBias) || !has(without(name, kBias), ".qweight") || tensor.bytes > kMostBiasBytes) return false;
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  MR_RETURN_IF_ERROR(file_of(tensor).read_at(tensor.offset, bytes));
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

Expected<std::optional<NamedTensor>> IntegerLayouts::read(const Tensor& tensor) const {
  constexpr std::string_view kWeight = ".weight", kWords = ".qweight", kPacked = ".weight_packed";
  const std::string_view name = tensor.name;
  const auto result = [](Expected<NamedTensor> read) -> Expected<std::optional<NamedTensor>> {
    if (!read.ok()) return read.status();
    return std::optional(std::move(*read));
  };
  if (name.ends_with(kWords) && is_word(tensor.element)) {
    if (method_ == "awq") return result(read_awq(tensor, without(name, kWords)));
    if (method_ == "gptq") return result(read_gptq(tensor, without(name, kWords)));
    return error(Code::unsupported, "tensor '{}' holds integers, but config.json does not say how (quant_method)",
                 shown(tensor));
  }
  if (name.ends_with(kPacked) && is_word(tensor.element)) return result(read_packed(tensor, without(name, kPacked)));
  if (!name.ends_with(kWeight)) return std::optional<NamedTensor>();
  if (is_word(tensor.element)) return result(read_mlx(tensor, without(name, kWeight)));
  if (tensor.element == Element::i8 && !has(without(name, kWeight), ".scale"))  // otherwise pairs of 4-bit floats
    return result(read_int8(tensor, without(name, kWeight)));
  return std::optional<NamedTensor>();
}

/// Of a matrix its own, where config.json has it; such an entry says all.
Expected<IntegerLayouts::Grouping> IntegerLayouts::grouping_of(std::string_view stem) const {
  const char* key = config_.has("quantization") ? "quantization" : "quantization_config";
  Config all = config_.within(key);
  const nlohmann::json* own = all.find(stem);
  Config one = own != nullptr && own->is_object() ? all.within(stem) : all;
  if (!one.has("bits"))
    return error(Code::corrupt, "{} in config.json does not say how many bits '{}' has", key,
                 modelfile::escape(std::string(stem), 120));
  Grouping grouping;
  grouping.bits = one.required("bits", 1, 32);
  grouping.columns = one.optional("group_size", 64, 1, 1 << 20);
  grouping.mode = one.text("mode", "affine");
  MR_RETURN_IF_ERROR(one.status());
  return grouping;
}

Expected<NamedTensor> IntegerLayouts::read_mlx(const Tensor& tensor, std::string_view stem) const {
  MR_ASSIGN_OR_RETURN(const Grouping grouping, grouping_of(stem));
  if (grouping.mode == "mxfp4") return read_mlx_mxfp4(tensor, stem);
  if (grouping.mode != "affine" || (grouping.bits != 4 && grouping.bits != 8))
    return error(Code::unsupported, "tensor '{}' has {} bits of mode {}: 4 and 8 of mode affine are read, and mxfp4",
                 shown(tensor), grouping.bits, modelfile::escape(grouping.mode, 20));
  MR_ASSIGN_OR_RETURN(const Tensor* scales, beside(tensor, stem, ".scales"));
  MR_ASSIGN_OR_RETURN(const Tensor* biases, beside(tensor, stem, ".biases"));
  if (tensor.shape.size() < 2) return wrong_shape(tensor, "a matrix");
  Shape shape = tensor.shape;
  shape.back() *= 32 / grouping.bits;
  Integers integers;
  integers.bits = static_cast<int>(grouping.bits);
  integers.cols = shape.back();
  integers.rows = tensor.elements() / tensor.shape.back();
  integers.groups = integers.cols / grouping.columns;
  if (integers.groups * grouping.columns != integers.cols)
    return wrong_shape(tensor, fmt::format("rows of groups of {} numbers of {} bits", grouping.columns, grouping.bits));
  Shape of_groups = tensor.shape;
  of_groups.back() = integers.groups;
  integers.numbers = packed(tensor, WordOrder::cols_of_row);
  MR_ASSIGN_OR_RETURN(integers.scales, floats(*scales, of_groups, false));
  MR_ASSIGN_OR_RETURN(integers.offsets, floats(*biases, of_groups, false));
  return named(tensor.name, std::move(shape), std::move(integers));
}

/// Nibbles and exponents as gpt-oss has them.
Expected<NamedTensor> IntegerLayouts::read_mlx_mxfp4(const Tensor& tensor, std::string_view stem) const {
  MR_ASSIGN_OR_RETURN(const Tensor* exponents, beside(tensor, stem, ".scales"));
  NamedTensor result{tensor.name, {}};
  Shape shape = tensor.shape;
  if (shape.size() < 2 || shape.back() % (kBlock / 8) != 0) return wrong_shape(tensor, "a matrix of blocks of 32");
  shape.back() /= kBlock / 8;
  MR_RETURN_IF_ERROR(expect_shape(*exponents, shape));
  if (exponents->element != Element::u8)
    return error(Code::corrupt, "tensor '{}' holds {}, but exponents of a byte are expected", shown(*exponents),
                 element_name(exponents->element));
  shape.back() *= kBlock;
  Source& source = result.stored.source;
  source.name = tensor.name;
  source.file = &file_of(tensor);
  source.offset = tensor.offset;
  source.cols = shape.back();
  source.rows = tensor.elements() / tensor.shape.back();
  source.packing = Packing::mxfp4;
  source.dtype = DType::mxfp4;
  source.scales.file = &file_of(*exponents);
  source.scales.offset = exponents->offset;
  result.stored.shape = std::move(shape);
  return result;
}

/// Which group each column is of, where they do not stand side by side in order.
Status IntegerLayouts::set_groups(const Tensor& g_idx, Integers& integers) const {
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> groups, whole_numbers(g_idx, integers.cols));
  const std::int64_t each = integers.cols / integers.groups;
  if (std::all_of(groups.begin(), groups.end(), [](std::int64_t group) { return group == -1; })) return {};
  bool sorted = true;
  integers.in_blocks = true;
  for (std::int64_t c = 0; c < integers.cols; ++c) {
    const std::int64_t group = groups[static_cast<std::size_t>(c)];
    if (group < 0 || group >= integers.groups)
      return error(Code::corrupt, "tensor '{}' names group {} of {}", shown(g_idx), group, integers.groups);
    sorted &= group == c / each;
    integers.in_blocks &= group == groups[static_cast<std::size_t>(c / kBlock * kBlock)];
  }
  if (!sorted) integers.group_of.assign(groups.begin(), groups.end());
  return {};
}

Expected<NamedTensor> IntegerLayouts::read_gptq(const Tensor& tensor, std::string_view stem) const {
  MR_ASSIGN_OR_RETURN(const Tensor* scales, beside(tensor, stem, ".scales"));
  MR_ASSIGN_OR_RETURN(const Tensor* zeros, beside(tensor, stem, ".qzeros"));
  if (tensor.shape.size() != 2) return wrong_shape(tensor, "a matrix");
  if (scales->shape.size() != 2) return wrong_shape(*scales, "a matrix");
  const CheckpointTensor* g_idx = checkpoint_.find(std::string(stem) + ".g_idx");
  Integers integers;
  integers.bits = static_cast<int>(bits_);
  integers.rows = tensor.shape[1];
  integers.cols = tensor.shape[0] * 32 / bits_;
  // Single matrices may have other bits than config.json says first.
  if (g_idx != nullptr && g_idx->shape.size() == 1)
    for (const int bits : {4, 8})
      if (g_idx->shape[0] == tensor.shape[0] * 32 / bits) {
        integers.bits = bits;
        integers.cols = g_idx->shape[0];
      }
  const std::int64_t each = 32 / integers.bits;
  if (integers.rows % each != 0) return wrong_shape(tensor, fmt::format("a multiple of {} rows", each));
  integers.groups = scales->shape[0];
  MR_RETURN_IF_ERROR(check_groups(tensor, integers));
  integers.numbers = packed(tensor, WordOrder::turned_cols);
  MR_ASSIGN_OR_RETURN(integers.scales, floats(*scales, std::array{integers.groups, integers.rows}, true));
  MR_RETURN_IF_ERROR(expect_words(*zeros));
  MR_RETURN_IF_ERROR(expect_shape(*zeros, std::array{integers.groups, integers.rows / each}));
  if (g_idx != nullptr) MR_RETURN_IF_ERROR(set_groups(*g_idx, integers));
  const std::uint32_t ones = integers.bits == 4 ? 0x11111111 : 0x01010101;
  const int middle = 1 << (integers.bits - 1);
  const std::uint32_t add = zeros_are_one_less_ ? ones : 0;
  bool symmetric = false;
  if (may_be_symmetric_) {
    MR_ASSIGN_OR_RETURN(symmetric, is_filled_with(*zeros, static_cast<std::uint32_t>(middle) * ones - add));
  }
  if (symmetric) {
    integers.zero = middle;
  } else {
    integers.zeros = packed(*zeros, WordOrder::turned_rows);
    integers.zeros.add = add;
  }
  Shape shape = {integers.rows, integers.cols};
  return named(std::string(stem) + ".weight", std::move(shape), std::move(integers));
}

Expected<NamedTensor> IntegerLayouts::read_awq(const Tensor& tensor, std::string_view stem) const {
  MR_ASSIGN_OR_RETURN(const Tensor* scales, beside(tensor, stem, ".scales"));
  MR_ASSIGN_OR_RETURN(const Tensor* zeros, beside(tensor, stem, ".qzeros"));
  constexpr std::int64_t kEach = 8;
  if (tensor.shape.size() != 2) return wrong_shape(tensor, "a matrix");
  if (scales->shape.size() != 2) return wrong_shape(*scales, "a matrix");
  Integers integers;
  integers.cols = tensor.shape[0];
  integers.rows = tensor.shape[1] * kEach;
  integers.groups = scales->shape[0];
  MR_RETURN_IF_ERROR(check_groups(tensor, integers));
  integers.numbers = packed(tensor, WordOrder::turned_interleaved);
  MR_ASSIGN_OR_RETURN(integers.scales, floats(*scales, std::array{integers.groups, integers.rows}, true));
  MR_RETURN_IF_ERROR(expect_words(*zeros));
  MR_RETURN_IF_ERROR(expect_shape(*zeros, std::array{integers.groups, integers.rows / kEach}));
  integers.zeros = packed(*zeros, WordOrder::turned_interleaved);
  Shape shape = {integers.rows, integers.cols};
  return named(std::string(stem) + ".weight", std::move(shape), std::move(integers));
}

/// One scale for all, one a row, or one a row and group.
Status IntegerLayouts::set_scales_of_rows(const Tensor& tensor, std::string_view stem, Integers& integers) const {
  MR_ASSIGN_OR_RETURN(const Tensor* scales, beside(tensor, stem, ".weight_scale"));
  const Shape& shape = scales->shape;
  const bool one = scales->elements() == 1;
  if (!one && (shape.empty() || shape.size() > 2 || shape[0] != integers.rows))
    return wrong_shape(*scales, fmt::format("a scale for each of {} rows, or for each of their groups", integers.rows));
  integers.groups = one || shape.size() == 1 ? 1 : shape[1];
  MR_RETURN_IF_ERROR(check_groups(tensor, integers));
  MR_ASSIGN_OR_RETURN(integers.scales, floats(*scales, shape, false));
  integers.scales.one = one;
  return {};
}

/// compressed-tensors' zeros, where it has them: as they are, or packed down the rows. Both have half the range taken
/// away, as its numbers have.
Status IntegerLayouts::set_zeros_of_rows(const Tensor& tensor, std::string_view stem, Integers& integers) const {
  integers.zero = 1 << (integers.bits - 1);
  const CheckpointTensor* zeros = checkpoint_.find(std::string(stem) + ".weight_zero_point");
  if (zeros == nullptr) return {};
  const std::int64_t each = 32 / integers.bits;
  if (is_word(zeros->element)) {
    MR_RETURN_IF_ERROR(expect_shape(*zeros, std::array{(integers.rows + each - 1) / each, integers.groups}));
    integers.zeros = packed(*zeros, WordOrder::rows_of_col);
    return {};
  }
  if (zeros->element != Element::i8 || integers.bits != 8 || zeros->elements() != integers.rows * integers.groups)
    return error(Code::unsupported, "tensor '{}' holds {} x {}, which are no zeros of '{}'", shown(*zeros),
                 text_of(zeros->shape), element_name(zeros->element), shown(tensor));
  // Writers store the zeros of what is symmetric, too.
  MR_ASSIGN_OR_RETURN(const bool none, is_filled_with(*zeros, 0));
  if (none && zeros->bytes % sizeof(std::uint32_t) == 0) return {};
  integers.zeros = packed(*zeros, WordOrder::cols_of_row);
  integers.zeros.has_signs = true;
  return {};
}

Expected<NamedTensor> IntegerLayouts::read_packed(const Tensor& tensor, std::string_view stem) const {
  MR_ASSIGN_OR_RETURN(const Tensor* shape_tensor, beside(tensor, stem, ".weight_shape"));
  MR_ASSIGN_OR_RETURN(const Shape shape, whole_numbers(*shape_tensor, 2));
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (tensor.shape.size() != 2 || shape[0] != tensor.shape[0] || shape[1] <= 0 || shape[1] > kMost)
    return wrong_shape(tensor, fmt::format("what '{}' says, {} rows of {},", shown(*shape_tensor), shape[0], shape[1]));
  Integers integers;
  integers.rows = shape[0];
  integers.cols = shape[1];
  integers.bits = 0;
  for (const int bits : {4, 8})
    if (tensor.shape[1] * 32 == integers.cols * bits) integers.bits = bits;
  if (integers.bits == 0)
    return error(Code::unsupported, "tensor '{}' has {} words for rows of {} numbers, which is neither 4 nor 8 bits",
                 shown(tensor), tensor.shape[1], integers.cols);
  integers.numbers = packed(tensor, WordOrder::cols_of_row);
  MR_RETURN_IF_ERROR(set_scales_of_rows(tensor, stem, integers));
  MR_RETURN_IF_ERROR(set_zeros_of_rows(tensor, stem, integers));
  if (const CheckpointTensor* g_idx = checkpoint_.find(std::string(stem) + ".weight_g_idx"))
    MR_RETURN_IF_ERROR(set_groups(*g_idx, integers));
  return named(std::string(stem) + ".weight", shape, std::move(integers));
}

Expected<NamedTensor> IntegerLayouts::read_int8(const Tensor& tensor, std::string_view stem) const {
  if (tensor.shape.size() != 2) return wrong_shape(tensor, "a matrix");
  Integers integers;
  integers.bits = 8;
  integers.rows = tensor.shape[0];
  integers.cols = tensor.shape[1];
  integers.numbers = packed(tensor, WordOrder::cols_of_row);
  integers.numbers.has_signs = true;
  MR_RETURN_IF_ERROR(set_scales_of_rows(tensor, stem, integers));
  MR_RETURN_IF_ERROR(set_zeros_of_rows(tensor, stem, integers));
  return named(tensor.name, tensor.shape, std::move(integers));
}

}  // namespace millrace::convert
