#include "convert/gather.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "modelfile/escape.h"
#include "modelfile/mixtures.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/float8.h"
#include "tensor/matrices.h"

namespace millrace::convert {
namespace {

Status not_finite(const Source& source) {
  return error(Code::corrupt, "tensor '{}' holds a weight that is NaN or infinite; download the checkpoint again",
               modelfile::escape(source.name, 120));
}

/// True if all elements are finite.
template <typename T, T kExponent>
bool all_finite(const std::byte* bytes, std::int64_t count) {
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    T bits;
    std::memcpy(&bits, bytes + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    finite &= (bits & kExponent) != kExponent;
  }
  return finite;
}

bool all_finite(DType dtype, const std::byte* bytes, std::int64_t count) {
  switch (dtype) {
    case DType::f32:
      return all_finite<std::uint32_t, 0x7f800000>(bytes, count);
    case DType::f16:
      return all_finite<std::uint16_t, 0x7c00>(bytes, count);
    case DType::bf16:
      return all_finite<std::uint16_t, 0x7f80>(bytes, count);
    default:
      return true;
  }
}

std::span<std::byte> room(Scratch& scratch, std::int64_t bytes) {
  if (scratch.bytes.size() < static_cast<std::size_t>(bytes)) scratch.bytes.resize(static_cast<std::size_t>(bytes));
  return std::span(scratch.bytes).first(static_cast<std::size_t>(bytes));
}

Status multiply_by_scales(const Source& source, std::int64_t row, std::int64_t col, std::int64_t count,
                          Scratch& scratch, float* out) {
  const Scales& scales = source.scales;
  const std::int64_t first = col / scales.cols_each, last = (col + count - 1) / scales.cols_each;
  const std::int64_t each = scales.exponents ? 1 : row_bytes(scales.dtype, 1);
  const std::int64_t at = row / scales.rows_each * scales.cols + first;
  const auto bytes = room(scratch, (last - first + 1) * each);
  MR_RETURN_IF_ERROR(scales.file->read_at(scales.offset + static_cast<std::uint64_t>(at * each), bytes));
  scratch.scales.resize(static_cast<std::size_t>(last - first + 1));
  if (!scales.exponents) decode_row(scales.dtype, bytes.data(), last - first + 1, scratch.scales.data());
  for (std::size_t i = 0; scales.exponents && i < bytes.size(); ++i) {
    if (bytes[i] == std::byte{0xff}) return not_finite(source);
    scratch.scales[i] = std::ldexp(1.0F, std::to_integer<int>(bytes[i]) - 127);
  }
  for (std::int64_t i = 0; i < count; ++i)
    out[i] *= scratch.scales[static_cast<std::size_t>((col + i) / scales.cols_each - first)];
  return {};
}

/// Elements [col, col + count) of a row of 8-bit floats.
Status read_eights(const Source& source, std::int64_t row, std::int64_t col, std::int64_t count, Scratch& scratch,
                   float* out) {
  const auto bytes = room(scratch, count);
  MR_RETURN_IF_ERROR(source.file->read_at(source.offset + static_cast<std::uint64_t>(row * source.cols + col), bytes));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::uint8_t>(bytes[static_cast<std::size_t>(i)]);
    out[i] = source.packing == Packing::e4m3 ? e4m3_to_float(bits) : e5m2_to_float(bits);
  }
  return source.scales.file == nullptr ? Status() : multiply_by_scales(source, row, col, count, scratch, out);
}

/// Reorders the nibbles of 32 elements from adjacent pairs to GGUF's order: element i beside element i + 16.
void repack_nibbles(const std::byte* pairs, std::uint8_t* out) {
  const auto nibble = [&](int i) { return static_cast<std::uint8_t>(pairs[i / 2]) >> (i % 2 * 4) & 0xf; };
  for (int i = 0; i < kBlock / 2; ++i) out[i] = static_cast<std::uint8_t>(nibble(i) | nibble(i + kBlock / 2) << 4);
}

Status read_mxfp4(const Source& source, std::int64_t first, std::int64_t blocks, Scratch& scratch, std::byte* out) {
  const auto bytes = room(scratch, blocks * (kBlock / 2 + 1));
  const auto nibbles = bytes.first(static_cast<std::size_t>(blocks * (kBlock / 2)));
  const auto exponents = bytes.subspan(nibbles.size());
  MR_RETURN_IF_ERROR(source.file->read_at(source.offset + static_cast<std::uint64_t>(first * (kBlock / 2)), nibbles));
  MR_RETURN_IF_ERROR(source.scales.file->read_at(source.scales.offset + static_cast<std::uint64_t>(first), exponents));
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::byte exponent = exponents[static_cast<std::size_t>(b)];
    if (exponent == std::byte{0xff}) return not_finite(source);
    BlockMXFP4 block{};
    block.e = static_cast<std::uint8_t>(exponent);
    repack_nibbles(nibbles.data() + b * (kBlock / 2), block.qs);
    std::memcpy(out + b * static_cast<std::int64_t>(sizeof block), &block, sizeof block);
  }
  return {};
}

Status check_scale(const Source& source, std::uint8_t scale) {
  if ((scale & 0x7f) == 0x7f) return not_finite(source);
  if (scale > 0x7f)
    return error(Code::corrupt, "tensor '{}' has a negative scale, which NVFP4 has not",
                 modelfile::escape(source.name, 120));
  return {};
}

/// Reads the nibbles and scales of `groups` groups of 16 numbers, from group `first`.
struct Nvfp4Groups {
  std::span<std::byte> nibbles, scales;
  std::uint8_t nibble(std::int64_t i) const {
    return static_cast<std::uint8_t>(nibbles[static_cast<std::size_t>(i / 2)]) >> (i % 2 * 4) & 0xf;
  }
  std::uint8_t scale(std::int64_t group) const {
    return static_cast<std::uint8_t>(scales[static_cast<std::size_t>(group)]);
  }
};

Expected<Nvfp4Groups> read_nvfp4_groups(const Source& source, std::int64_t first, std::int64_t groups,
                                        Scratch& scratch) {
  constexpr std::int64_t kBytes = kNvfp4Group / 2;
  const auto bytes = room(scratch, groups * (kBytes + 1));
  const Nvfp4Groups read{bytes.first(static_cast<std::size_t>(groups * kBytes)),
                         bytes.subspan(static_cast<std::size_t>(groups * kBytes))};
  MR_RETURN_IF_ERROR(source.file->read_at(source.offset + static_cast<std::uint64_t>(first * kBytes), read.nibbles));
  MR_RETURN_IF_ERROR(
      source.scales.file->read_at(source.scales.offset + static_cast<std::uint64_t>(first), read.scales));
  for (std::int64_t g = 0; g < groups; ++g) MR_RETURN_IF_ERROR(check_scale(source, read.scale(g)));
  return read;
}

/// Whole blocks, not multiplied by the factor.
Status read_nvfp4(const Source& source, std::int64_t first, std::int64_t blocks, Scratch& scratch, std::byte* out) {
  constexpr int kSubs = kNvfp4Block / kNvfp4Group;
  MR_ASSIGN_OR_RETURN(const Nvfp4Groups read, read_nvfp4_groups(source, first * kSubs, blocks * kSubs, scratch));
  for (std::int64_t b = 0; b < blocks; ++b) {
    BlockNVFP4 block{};
    for (int s = 0; s < kSubs; ++s) {
      const std::int64_t at = b * kNvfp4Block + s * kNvfp4Group;
      block.d[s] = read.scale(b * kSubs + s);
      for (int i = 0; i < 8; ++i)
        block.qs[8 * s + i] = static_cast<std::uint8_t>(read.nibble(at + i) | read.nibble(at + 8 + i) << 4);
    }
    std::memcpy(out + b * static_cast<std::int64_t>(sizeof block), &block, sizeof block);
  }
  return {};
}

/// Elements [col, col + count) of a row, not multiplied by the factor.
Status read_nvfp4_floats(const Source& source, std::int64_t row, std::int64_t col, std::int64_t count, Scratch& scratch,
                         float* out) {
  const std::int64_t begin = col / kNvfp4Group, end = (col + count + kNvfp4Group - 1) / kNvfp4Group;
  MR_ASSIGN_OR_RETURN(const Nvfp4Groups read,
                      read_nvfp4_groups(source, row * (source.cols / kNvfp4Group) + begin, end - begin, scratch));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = col + i - begin * kNvfp4Group;
    const auto level = static_cast<float>(kMxfp4Codebook[read.nibble(at)]);
    out[i] = ue4m3_half(read.scale(at / kNvfp4Group)) * level;
  }
  return {};
}

/// Elements [col, col + count) of a row. Blocks are decoded whole.
Status read_part(const Source& source, std::int64_t row, std::int64_t col, std::int64_t count, Scratch& scratch,
                 float* out) {
  if (source.packing == Packing::integers) {
    MR_RETURN_IF_ERROR(read_panel(*source.integers, row, scratch.panel));
    row_as_floats(scratch.panel, row, col, count, out);
    return {};
  }
  if (source.packing == Packing::nvfp4) return read_nvfp4_floats(source, row, col, count, scratch, out);
  const bool mxfp4 = source.packing == Packing::mxfp4;
  if (source.packing != Packing::plain && !mxfp4) return read_eights(source, row, col, count, scratch, out);
  const std::int64_t block = info(source.dtype).block_elements;
  const std::int64_t begin = col / block * block, end = (col + count + block - 1) / block * block;
  if (mxfp4) {
    std::vector<std::byte> blocks(static_cast<std::size_t>(row_bytes(source.dtype, end - begin)));
    MR_RETURN_IF_ERROR(
        read_mxfp4(source, (row * source.cols + begin) / kBlock, (end - begin) / kBlock, scratch, blocks.data()));
    std::vector<float> whole(static_cast<std::size_t>(end - begin));
    decode_row(source.dtype, blocks.data(), end - begin, whole.data());
    std::copy_n(whole.data() + (col - begin), count, out);
    return {};
  }
  const auto bytes = room(scratch, row_bytes(source.dtype, end - begin));
  const std::int64_t place = row * row_bytes(source.dtype, source.cols) + row_bytes(source.dtype, begin);
  MR_RETURN_IF_ERROR(source.file->read_at(source.offset + static_cast<std::uint64_t>(place), bytes));
  if (block == 1) {
    decode_row(source.dtype, bytes.data(), count, out);
    return {};
  }
  std::vector<float> whole(static_cast<std::size_t>(end - begin));
  decode_row(source.dtype, bytes.data(), end - begin, whole.data());
  std::copy_n(whole.data() + (col - begin), count, out);
  return {};
}

/// `count` contiguous rows of I64 as I32. Errors: corrupt (a number that I32 does not hold).
Status read_narrowed(const Source& source, std::int64_t row, std::int64_t count, Scratch& scratch, std::byte* out) {
  const std::int64_t each = row_bytes(DType::i64, source.cols);
  const auto bytes = room(scratch, count * each);
  MR_RETURN_IF_ERROR(source.file->read_at(source.offset + static_cast<std::uint64_t>(row * each), bytes));
  for (std::int64_t i = 0; i < count * source.cols; ++i) {
    std::int64_t number = 0;
    std::memcpy(&number, bytes.data() + i * row_bytes(DType::i64, 1), sizeof number);
    const auto narrow = static_cast<std::int32_t>(number);
    if (narrow != number)
      return error(Code::corrupt, "tensor '{}' holds {}, which 32 bits do not hold",
                   modelfile::escape(source.name, 120), number);
    std::memcpy(out + i * row_bytes(DType::i32, 1), &narrow, sizeof narrow);
  }
  return {};
}

/// Reads doubles and rounds them to float after the change, if rounding first would lose bits.
Status read_doubles(const Source& source, std::int64_t row, std::int64_t count, Change change, Scratch& scratch,
                    float* out) {
  const auto bytes = room(scratch, row_bytes(DType::f64, count * source.cols));
  const std::int64_t place = row * row_bytes(DType::f64, source.cols);
  MR_RETURN_IF_ERROR(source.file->read_at(source.offset + static_cast<std::uint64_t>(place), bytes));
  for (std::int64_t i = 0; i < count * source.cols; ++i) {
    double number = 0;
    std::memcpy(&number, bytes.data() + i * static_cast<std::int64_t>(sizeof number), sizeof number);
    out[i] = static_cast<float>(change == Change::minus_exp ? -std::exp(number)
                                : change == Change::exp     ? std::exp(number)
                                                            : number);
  }
  return {};
}

/// `count` contiguous rows from `row`.
Status read_rows(const Source& source, std::int64_t row, std::int64_t count, Change change, Scratch& scratch,
                 float* out) {
  if (source.packing == Packing::plain && source.dtype == DType::f64)
    return read_doubles(source, row, count, change, scratch, out);
  if (source.packing != Packing::plain) {
    for (std::int64_t i = 0; i < count; ++i)
      MR_RETURN_IF_ERROR(read_part(source, row + i, 0, source.cols, scratch, out + i * source.cols));
    return {};
  }
  const std::int64_t bytes_each = row_bytes(source.dtype, source.cols);
  const auto bytes = room(scratch, count * bytes_each);
  MR_RETURN_IF_ERROR(source.file->read_at(source.offset + static_cast<std::uint64_t>(row * bytes_each), bytes));
  decode_row(source.dtype, bytes.data(), count * source.cols, out);
  return {};
}

/// Calls part(run, first row within the run, count, row in the target) for each run's part of [first, first + count).
template <typename Part>
Status each_part(const Target& target, std::int64_t first, std::int64_t count, const Part& part) {
  const auto behind = std::upper_bound(target.begins.begin(), target.begins.end(), first);
  for (auto i = static_cast<std::size_t>(behind - target.begins.begin()) - 1; i < target.runs.size(); ++i) {
    const Run& run = target.runs[i];
    const std::int64_t begin = target.begins[i];
    if (begin >= first + count) break;
    const std::int64_t from = std::max(begin, first), to = std::min(begin + run.rows, first + count);
    MR_RETURN_IF_ERROR(part(run, from - begin, to - from, from - first));
  }
  return {};
}

/// Gathers columns of a matrix as rows.
Status gather_columns(const Target& target, const Source& source, const Run& run, std::int64_t skipped,
                      std::int64_t count, Scratch& scratch, float* out) {
  const std::int64_t col = run.first + skipped * run.step, width = (count - 1) * run.step + 1;
  scratch.floats.resize(static_cast<std::size_t>(width));
  for (std::int64_t j = 0; j < target.cols; ++j) {
    MR_RETURN_IF_ERROR(read_part(source, run.base + j, col, width, scratch, scratch.floats.data()));
    for (std::int64_t k = 0; k < count; ++k)
      out[k * target.cols + j] = scratch.floats[static_cast<std::size_t>(k * run.step)];
  }
  return {};
}

float factor_of(const Source& source, std::int64_t row) {
  const auto matrices = std::ssize(source.factors);
  return matrices == 0 ? source.factor : source.factors[static_cast<std::size_t>(row / (source.rows / matrices))];
}

/// Gathers rows [skipped, skipped + count) of the run to `out`.
void multiply_by_factors(const Target& target, const Source& source, const Run& run, std::int64_t skipped,
                         std::int64_t count, float* out) {
  if (source.factors.empty() && source.factor == 1) return;
  const bool turned = run.base >= 0;
  for (std::int64_t i = 0; i < count; ++i) {
    float* const row = out + i * target.cols;
    const float factor = factor_of(source, turned ? run.base : run.first + (skipped + i) * run.step);
    for (std::int64_t j = 0; j < target.cols; ++j) row[j] *= turned ? factor_of(source, run.base + j) : factor;
  }
}

/// Reorders groups of columns of `bytes_each` bytes.
void sort_columns(const Target& target, std::int64_t count, std::int64_t bytes_each, Scratch& scratch,
                  std::byte* rows) {
  const std::int64_t row_length = static_cast<std::int64_t>(target.columns.size()) * bytes_each;
  const auto row = room(scratch, row_length);
  for (std::int64_t r = 0; r < count; ++r) {
    std::byte* to = rows + r * row_length;
    std::copy_n(to, row_length, row.data());
    for (const std::int32_t group : target.columns) to = std::copy_n(row.data() + group * bytes_each, bytes_each, to);
  }
}

/// Computed in double, so that the inverse restores the same bits.
void apply(Change change, std::span<float> numbers) {
  for (float& x : numbers) {
    switch (change) {
      case Change::none:
        return;
      case Change::plus_one:
        x += 1;
        break;
      case Change::minus_one:
        x -= 1;
        break;
      case Change::exp:
        x = static_cast<float>(std::exp(static_cast<double>(x)));
        break;
      case Change::log:
        x = static_cast<float>(std::log(static_cast<double>(x)));
        break;
      case Change::minus_exp:
        x = static_cast<float>(-std::exp(static_cast<double>(x)));
        break;
      case Change::log_of_minus:
        x = static_cast<float>(std::log(-static_cast<double>(x)));
        break;
    }
  }
}

/// Interleaves the rows of the lanes.
Target lanes_apart(const Target& target) {
  Target apart = target;
  apart.lanes = 1;
  apart.rows *= target.lanes;
  apart.cols /= target.lanes;
  return apart;
}

}  // namespace

DType output_dtype(const Target& target, DType stored, std::optional<modelfile::QuantizeType> type,
                   const modelfile::MixtureContext& context) {
  const DType source = stored == DType::f64 ? DType::f32 : stored;
  const modelfile::TensorInfo tensor{target.name, source, target.shape, 0, 0, 0};
  if (modelfile::stays_float(tensor)) return DType::f32;
  return type && stored != DType::mxfp4 ? modelfile::choose_dtype(*type, tensor, context) : source;
}

Status check_target(Target& target, std::span<const Source> sources) {
  if (target.lanes > 1) {
    Target apart = lanes_apart(target);
    MR_RETURN_IF_ERROR(check_target(apart, sources));
    target.begins = std::move(apart.begins);
    target.piece_rows = std::max<std::int64_t>(1, kPieceElements / target.cols);
    return {};
  }
  target.begins.clear();
  if (target.cols <= 0 || target.cols > kMostCols || target.rows <= 0)
    return error(Code::corrupt, "tensor '{}' would be {} rows of {} numbers, which cannot be",
                 modelfile::escape(target.name, 80), target.rows, target.cols);
  std::int64_t rows = 0;
  target.piece_rows = std::max<std::int64_t>(1, kPieceElements / target.cols);
  for (const Run& run : target.runs) {
    const Source& source = sources[static_cast<std::size_t>(run.source)];
    if (source.packing == Packing::integers) target.piece_rows = panel_rows(source.cols);
    const std::int64_t last = run.first + (run.rows - 1) * run.step;
    const bool turned = run.base >= 0;
    const bool fits = run.rows > 0 && run.first >= 0 && run.step > 0 &&
                      (turned ? last < source.cols && run.base + target.cols <= source.rows
                              : last < source.rows && source.cols == target.cols);
    if (!fits)
      return error(Code::corrupt, "tensor '{}' is {} x {}, which is no shape that '{}' can be made of",
                   modelfile::escape(source.name, 120), source.rows, source.cols, modelfile::escape(target.name, 80));
    target.begins.push_back(rows);
    rows += run.rows;
  }
  if (rows != target.rows)
    return error(Code::corrupt,
                 "tensor '{}' would have {} of its {} rows: a tensor of the checkpoint has a wrong shape",
                 modelfile::escape(target.name, 80), rows, target.rows);
  return {};
}

std::vector<float> factors_of(const Target& target, std::span<const Source> sources) {
  const std::int64_t matrices = target.factor_beside ? 1 : matrices_of(target.shape);
  const std::int64_t rows =
      std::max<std::int64_t>(1, target.rows / matrices);  // an empty tensor has no factors to read
  std::vector<float> factors(static_cast<std::size_t>(matrices));
  for (std::size_t i = 0; i < target.runs.size(); ++i) {
    const Run& run = target.runs[i];
    const Source& source = sources[static_cast<std::size_t>(run.source)];
    const std::int64_t begin = target.begins[i], end = begin + run.rows;
    const std::int64_t first = run.base >= 0 ? run.base : run.first;
    const std::int64_t last = run.base >= 0 ? run.base + target.cols - 1 : run.first + (run.rows - 1) * run.step;
    const float factor = factor_of(source, first);
    if (factor_of(source, last) != factor) return {};
    for (std::int64_t m = begin / rows; m * rows < end; ++m) {
      float& known = factors[static_cast<std::size_t>(m)];
      if (begin <= m * rows) known = factor;  // runs are in order: here the matrix begins
      if (known != factor) return {};
    }
  }
  const bool plain = std::all_of(factors.begin(), factors.end(), [](float factor) { return factor == 1; });
  const bool multiplied = target.factor_beside || modelfile::may_have_scale(target.name);
  return multiplied || plain ? factors : std::vector<float>();
}

bool is_copy(const Target& target, std::span<const Source> sources, DType dtype) {
  if (target.lanes > 1) return false;
  const bool moves_blocks = target.columns.empty() || target.columns_each % info(dtype).block_elements == 0;
  const bool multiplied = std::any_of(target.runs.begin(), target.runs.end(), [&](const Run& run) {
    const Source& source = sources[static_cast<std::size_t>(run.source)];
    return source.factor != 1 || !source.factors.empty();
  });
  if (multiplied && (dtype != DType::nvfp4 || factors_of(target, sources).empty())) return false;
  return target.change == Change::none && moves_blocks &&
         std::all_of(target.runs.begin(), target.runs.end(), [&](const Run& run) {
           const Source& source = sources[static_cast<std::size_t>(run.source)];
           if (source.packing == Packing::integers) return run.base < 0 && has_blocks(*source.integers, dtype);
           const bool whole =
               source.packing == Packing::plain || source.packing == Packing::mxfp4 || source.packing == Packing::nvfp4;
           const bool narrows = source.dtype == DType::i64 && dtype == DType::i32;
           return run.base < 0 && whole && (source.dtype == dtype || narrows);
         });
}

Status gather_bytes(const Target& target, std::span<const Source> sources, DType dtype, std::int64_t first,
                    std::int64_t count, Scratch& scratch, std::byte* out) {
  const auto part = [&](const Run& run, std::int64_t skipped, std::int64_t rows, std::int64_t at) {
    const Source& source = sources[static_cast<std::size_t>(run.source)];
    const bool integers = source.packing == Packing::integers;
    const std::int64_t bytes_each = row_bytes(dtype, source.cols), at_once = run.step == 1 && !integers ? rows : 1;
    for (std::int64_t i = 0; i < rows; i += at_once) {
      const std::int64_t row = run.first + (skipped + i) * run.step;
      std::byte* to = out + (at + i) * bytes_each;
      if (integers) {
        MR_RETURN_IF_ERROR(read_panel(*source.integers, row, scratch.panel));
        MR_RETURN_IF_ERROR(row_as_blocks(scratch.panel, row, dtype, to));
        continue;
      }
      if (source.packing == Packing::mxfp4) {
        MR_RETURN_IF_ERROR(read_mxfp4(source, row * source.cols / kBlock, at_once * source.cols / kBlock, scratch, to));
        continue;
      }
      if (source.packing == Packing::nvfp4) {
        const std::int64_t blocks = source.cols / kNvfp4Block;
        MR_RETURN_IF_ERROR(read_nvfp4(source, row * blocks, at_once * blocks, scratch, to));
        continue;
      }
      if (source.dtype == DType::i64 && dtype == DType::i32) {
        MR_RETURN_IF_ERROR(read_narrowed(source, row, at_once, scratch, to));
        continue;
      }
      const std::span bytes(to, static_cast<std::size_t>(at_once * bytes_each));
      MR_RETURN_IF_ERROR(source.file->read_at(source.offset + static_cast<std::uint64_t>(row * bytes_each), bytes));
      if (!all_finite(source.dtype, to, at_once * source.cols)) return not_finite(source);
    }
    return Status();
  };
  MR_RETURN_IF_ERROR(each_part(target, first, count, part));
  if (!target.columns.empty()) sort_columns(target, count, row_bytes(dtype, target.columns_each), scratch, out);
  return {};
}

Status gather_floats(const Target& target, std::span<const Source> sources, std::int64_t first, std::int64_t count,
                     Scratch& scratch, float* out) {
  if (target.lanes > 1) {
    const Target apart = lanes_apart(target);
    std::vector<float> lane(static_cast<std::size_t>(count * apart.cols));
    for (std::int64_t l = 0; l < target.lanes; ++l) {
      MR_RETURN_IF_ERROR(gather_floats(apart, sources, l * target.rows + first, count, scratch, lane.data()));
      for (std::size_t i = 0; i < lane.size(); ++i) out[static_cast<std::int64_t>(i) * target.lanes + l] = lane[i];
    }
    return {};
  }
  MR_RETURN_IF_ERROR(
      each_part(target, first, count, [&](const Run& run, std::int64_t skipped, std::int64_t rows, std::int64_t at) {
        const Source& source = sources[static_cast<std::size_t>(run.source)];
        float* to = out + at * target.cols;
        if (run.base >= 0) {
          MR_RETURN_IF_ERROR(gather_columns(target, source, run, skipped, rows, scratch, to));
        } else {
          const std::int64_t at_once = run.step == 1 ? rows : 1;
          for (std::int64_t i = 0; i < rows; i += at_once)
            MR_RETURN_IF_ERROR(read_rows(source, run.first + (skipped + i) * run.step, at_once, target.change, scratch,
                                         to + i * target.cols));
        }
        multiply_by_factors(target, source, run, skipped, rows, to);
        bool finite = true;
        for (std::int64_t i = 0; i < rows * target.cols; ++i) finite &= std::isfinite(to[i]);
        return finite ? Status() : not_finite(source);
      }));
  if (!target.columns.empty())
    sort_columns(target, count, row_bytes(DType::f32, target.columns_each), scratch, reinterpret_cast<std::byte*>(out));
  const auto changed_already = [&](const Run& run) {
    const bool grows = target.change == Change::minus_exp || target.change == Change::exp;
    return grows && sources[static_cast<std::size_t>(run.source)].dtype == DType::f64;
  };
  if (std::any_of(target.runs.begin(), target.runs.end(), changed_already)) return {};
  apply(target.change, std::span(out, static_cast<std::size_t>(count * target.cols)));
  return {};
}

}  // namespace millrace::convert
