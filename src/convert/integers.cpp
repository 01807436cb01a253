#include "convert/integers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "modelfile/escape.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/nibbles.h"

namespace millrace::convert {
namespace {

constexpr std::int64_t kPanelNumbers = 1 << 21, kMostPanelRows = 512, kWord = 4;
constexpr std::int64_t kBesideRow = 64;  // rows of 2^n columns would share the lines of a cache
constexpr int kInterleaved[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/// Rows [first, first + count) of a [rows, cols] matrix, into out [count, stride].
class Unpacker {
 public:
  Unpacker(const Packed& packed, int bits, std::int64_t rows, std::int64_t cols, std::vector<std::byte>& bytes)
      : packed_(packed), bits_(bits), each_(32 / bits), rows_(rows), cols_(cols), bytes_(bytes) {}

  Status unpack(std::int64_t first, std::int64_t count, std::int64_t stride, std::uint8_t* out) {
    switch (packed_.order) {
      case WordOrder::cols_of_row:
        return cols_of_row(first, count, stride, out);
      case WordOrder::rows_of_col:
        return rows_of_col(first, count, stride, out);
      case WordOrder::turned_cols:
        return turned_cols(first, count, stride, out);
      case WordOrder::turned_rows:
      case WordOrder::turned_interleaved:
        return turned_rows(first, count, stride, out);
    }
    return {};
  }

 private:
  Status read(std::int64_t place, std::int64_t bytes) {
    bytes_.resize(static_cast<std::size_t>(bytes));
    return packed_.file->read_at(packed_.offset + static_cast<std::uint64_t>(place), bytes_);
  }
  std::uint32_t word(std::int64_t i) const {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes_.data() + i * kWord, kWord);
    return value + packed_.add;
  }
  std::uint8_t number(std::uint32_t word, int i) const {
    return static_cast<std::uint8_t>(word >> (bits_ * i) & ((1U << bits_) - 1));
  }

  /// Words are little-endian, so that numbers stand in the order of bytes.
  Status cols_of_row(std::int64_t first, std::int64_t count, std::int64_t stride, std::uint8_t* out) {
    const std::int64_t each = cols_ * bits_ / 8;
    MR_RETURN_IF_ERROR(read(first * each, count * each));
    const std::uint8_t sign = packed_.has_signs ? 0x80 : 0;
    for (std::int64_t r = 0; r < count; ++r) {
      const std::byte* from = bytes_.data() + r * each;
      std::uint8_t* to = out + r * stride;
      for (std::int64_t i = 0; i < each; ++i) {
        const auto byte = static_cast<std::uint8_t>(from[i]);
        if (bits_ == 8) {
          to[i] = byte ^ sign;
        } else {
          to[2 * i] = byte & 15;
          to[2 * i + 1] = byte >> 4;
        }
      }
    }
    return {};
  }

  Status rows_of_col(std::int64_t first, std::int64_t count, std::int64_t stride, std::uint8_t* out) {
    const std::int64_t begin = first / each_, end = (first + count + each_ - 1) / each_;
    MR_RETURN_IF_ERROR(read(begin * cols_ * kWord, (end - begin) * cols_ * kWord));
    for (std::int64_t r = 0; r < count; ++r)
      for (std::int64_t c = 0; c < cols_; ++c)
        out[r * stride + c] =
            number(word(((first + r) / each_ - begin) * cols_ + c), static_cast<int>((first + r) % each_));
    return {};
  }

  Status turned_cols(std::int64_t first, std::int64_t count, std::int64_t stride, std::uint8_t* out) {
    for (std::int64_t w = 0; w < cols_ / each_; ++w) {
      MR_RETURN_IF_ERROR(read((w * rows_ + first) * kWord, count * kWord));
      for (std::int64_t r = 0; r < count; ++r) {
        const std::uint32_t bits = word(r);
        for (int i = 0; i < each_; ++i) out[r * stride + w * each_ + i] = number(bits, i);
      }
    }
    return {};
  }

  Status turned_rows(std::int64_t first, std::int64_t count, std::int64_t stride, std::uint8_t* out) {
    // Panels begin and end with whole words.
    const bool interleaved = packed_.order == WordOrder::turned_interleaved;
    const std::int64_t words = count / each_;
    std::int64_t places[8];
    for (int i = 0; i < each_; ++i) places[i] = (interleaved ? kInterleaved[i] : i) * stride;
    for (std::int64_t c = 0; c < cols_; ++c) {
      MR_RETURN_IF_ERROR(read((c * (rows_ / each_) + first / each_) * kWord, words * kWord));
      for (std::int64_t w = 0; w < words; ++w) {
        const std::uint32_t bits = word(w);
        std::uint8_t* to = out + w * each_ * stride + c;
        for (int i = 0; i < each_; ++i) to[places[i]] = number(bits, i);
      }
    }
    return {};
  }

  const Packed& packed_;
  const int bits_, each_;
  const std::int64_t rows_, cols_;
  std::vector<std::byte>& bytes_;
};

/// Floats of rows [first, first + count), into out [count, groups].
Status read_floats(const Integers& integers, const GroupFloats& floats, std::int64_t first, std::int64_t count,
                   std::vector<std::byte>& bytes, std::vector<float>& out) {
  const std::int64_t groups = integers.groups, each = row_bytes(floats.dtype, 1);
  const auto read = [&](std::int64_t place, std::int64_t numbers, float* to) {
    bytes.resize(static_cast<std::size_t>(numbers * each));
    MR_RETURN_IF_ERROR(floats.file->read_at(floats.offset + static_cast<std::uint64_t>(place * each), bytes));
    decode_row(floats.dtype, bytes.data(), numbers, to);
    return Status();
  };
  out.resize(static_cast<std::size_t>(count * groups));
  if (floats.one) {
    MR_RETURN_IF_ERROR(read(0, 1, out.data()));
    std::fill(out.begin() + 1, out.end(), out.front());
  } else if (!floats.turned) {
    MR_RETURN_IF_ERROR(read(first * groups, count * groups, out.data()));
  } else {
    std::vector<float> of_group(static_cast<std::size_t>(count));
    for (std::int64_t g = 0; g < groups; ++g) {
      MR_RETURN_IF_ERROR(read(g * integers.rows + first, count, of_group.data()));
      for (std::int64_t r = 0; r < count; ++r)
        out[static_cast<std::size_t>(r * groups + g)] = of_group[static_cast<std::size_t>(r)];
    }
  }
  if (range_of(out).finite) return {};
  return error(Code::corrupt, "tensor '{}' has a scale that is NaN or infinite; download the checkpoint again",
               modelfile::escape(integers.name, 120));
}

Status read_shifts(const Integers& integers, std::int64_t first, std::int64_t count, Panel& panel) {
  if (integers.offsets.file != nullptr)
    return read_floats(integers, integers.offsets, first, count, panel.bytes, panel.shifts);
  panel.shifts.assign(static_cast<std::size_t>(count * integers.groups), static_cast<float>(integers.zero));
  if (integers.zeros.file == nullptr) return {};
  std::vector<std::uint8_t> zeros(panel.shifts.size());
  MR_RETURN_IF_ERROR(Unpacker(integers.zeros, integers.bits, integers.rows, integers.groups, panel.bytes)
                         .unpack(first, count, integers.groups, zeros.data()));
  std::copy(zeros.begin(), zeros.end(), panel.shifts.begin());
  return {};
}

/// Group by group: the numbers of columns that stand side by side in it, the place of their scale.
template <typename Part>
void each_group(const Integers& integers, std::int64_t col, std::int64_t count, const Part& part) {
  const std::int64_t each = integers.cols / integers.groups;
  for (std::int64_t at = col; at < col + count;) {
    std::int64_t end = at + 1, group = at / each;
    if (integers.group_of.empty())
      end = std::min(col + count, (group + 1) * each);
    else
      group = integers.group_of[static_cast<std::size_t>(at)];
    part(at, end, group);
    at = end;
  }
}

}  // namespace

std::int64_t panel_rows(std::int64_t cols) {
  const auto rows = std::clamp<std::int64_t>(kPanelNumbers / std::max<std::int64_t>(1, cols), 8, kMostPanelRows);
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows)));
}

Status read_panel(const Integers& integers, std::int64_t row, Panel& panel) {
  if (panel.of == &integers && row >= panel.first && row < panel.first + panel.rows) return {};
  const std::int64_t most = panel_rows(integers.cols), first = row / most * most;
  const std::int64_t count = std::min(most, integers.rows - first);
  panel.of = nullptr;
  panel.first = first;
  panel.rows = count;
  panel.stride = integers.cols + kBesideRow;
  panel.numbers.resize(static_cast<std::size_t>(count * panel.stride));
  MR_RETURN_IF_ERROR(Unpacker(integers.numbers, integers.bits, integers.rows, integers.cols, panel.bytes)
                         .unpack(first, count, panel.stride, panel.numbers.data()));
  MR_RETURN_IF_ERROR(read_floats(integers, integers.scales, first, count, panel.bytes, panel.scales));
  MR_RETURN_IF_ERROR(read_shifts(integers, first, count, panel));
  panel.of = &integers;
  return {};
}

bool has_blocks(const Integers& integers, DType dtype) {
  const bool offsets = integers.offsets.file != nullptr, zeros = integers.zeros.file != nullptr;
  if (!integers.in_blocks || integers.cols % kBlock != 0) return false;
  switch (dtype) {
    case DType::q4_0:
      return integers.bits == 4 && !offsets && !zeros && integers.zero == 8;
    case DType::q4_1:
      return integers.bits == 4;
    case DType::q8_0:
      return !offsets && (integers.bits == 4 || (!zeros && integers.zero == 128));
    default:
      return false;
  }
}

DType best_blocks(const Integers& integers) {
  for (const DType dtype : {DType::q4_0, DType::q4_1})
    if (has_blocks(integers, dtype)) return dtype;
  return DType::q8_0;
}

Status row_as_blocks(const Panel& panel, std::int64_t row, DType dtype, std::byte* out) {
  const Integers& integers = *panel.of;
  const std::uint8_t* numbers = panel.numbers.data() + (row - panel.first) * panel.stride;
  const auto scales_at = static_cast<std::size_t>((row - panel.first) * integers.groups);
  const std::int64_t each = integers.cols / integers.groups, size = info(dtype).block_bytes;
  const bool offsets = integers.offsets.file != nullptr;
  for (std::int64_t col = 0; col < integers.cols; col += kBlock, out += size) {
    const std::int64_t group =
        integers.group_of.empty() ? col / each : integers.group_of[static_cast<std::size_t>(col)];
    const float scale = panel.scales[scales_at + static_cast<std::size_t>(group)];
    const float shift = panel.shifts[scales_at + static_cast<std::size_t>(group)];
    const float least = offsets ? shift : -shift * scale;  // the weight of number 0
    if (std::abs(scale) >= kBeyondHalf || (dtype == DType::q4_1 && std::abs(least) >= kBeyondHalf))
      return error(Code::unsupported, "tensor '{}' has a scale of {}, beyond F16; choose --dtype bf16",
                   modelfile::escape(integers.name, 120), scale);
    if (dtype == DType::q4_0) {
      BlockQ4_0 block{};
      block.d = f32_to_f16(scale);
      pack_nibbles(numbers + col, block.qs);
      std::memcpy(out, &block, sizeof block);
    } else if (dtype == DType::q4_1) {
      BlockQ4_1 block{};
      block.d = f32_to_f16(scale);
      block.m = f32_to_f16(least);
      pack_nibbles(numbers + col, block.qs);
      std::memcpy(out, &block, sizeof block);
    } else {
      BlockQ8_0 block{};
      block.d = f32_to_f16(scale);
      for (int i = 0; i < kBlock; ++i)
        block.qs[i] = static_cast<std::int8_t>(numbers[col + i] - static_cast<int>(shift));
      std::memcpy(out, &block, sizeof block);
    }
  }
  return {};
}

void row_as_floats(const Panel& panel, std::int64_t row, std::int64_t col, std::int64_t count, float* out) {
  const Integers& integers = *panel.of;
  const std::uint8_t* numbers = panel.numbers.data() + (row - panel.first) * panel.stride;
  const auto scales_at = static_cast<std::size_t>((row - panel.first) * integers.groups);
  const bool offsets = integers.offsets.file != nullptr;
  each_group(integers, col, count, [&](std::int64_t begin, std::int64_t end, std::int64_t group) {
    const float scale = panel.scales[scales_at + static_cast<std::size_t>(group)];
    const float shift = panel.shifts[scales_at + static_cast<std::size_t>(group)];
    for (std::int64_t c = begin; c < end; ++c) {
      const auto number = static_cast<float>(numbers[c]);
      out[c - col] = offsets ? scale * number + shift : scale * (number - shift);
    }
  });
}

}  // namespace millrace::convert
