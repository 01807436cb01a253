// Matrices of whole numbers of 4 or 8 bits whose groups of columns have a scale and a zero or an offset: how MLX, GPTQ,
// AWQ and compressed-tensors store them. They are unpacked some rows at a time, and become GGUF's blocks of the same
// numbers, or floats. Source: the packing code of each of these projects.
// Thread-safety: an Integers is read by many threads; a Panel belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "modelfile/file_io.h"
#include "tensor/dtype.h"

namespace millrace::convert {

/// Which numbers of a matrix share a word of 32 bits, the first in its lowest bits: n = 32 / bits.
enum class WordOrder : std::uint8_t {
  cols_of_row,        // [rows, cols / n]
  rows_of_col,        // [rows / n, cols]
  turned_cols,        // [cols / n, rows]: columns of a row, but words stand as in the turned matrix
  turned_rows,        // [cols, rows / n]
  turned_interleaved  // [cols, rows / 8], rows in the order 0, 2, 4, 6, 1, 3, 5, 7
};

/// A tensor of words with whole numbers.
struct Packed {
  const modelfile::File* file = nullptr;  // nullptr: none
  std::uint64_t offset = 0;
  WordOrder order = WordOrder::cols_of_row;
  std::uint32_t add = 0;   // to each word
  bool has_signs = false;  // of 8 bits, cols_of_row: in two's complement; 128 is added to each number
};

/// Floats, one for each row and group: [rows, groups], or turned [groups, rows].
struct GroupFloats {
  const modelfile::File* file = nullptr;  // nullptr: none
  std::uint64_t offset = 0;
  DType dtype = DType::f32;  // f32, f16 or bf16
  bool turned = false;
  bool one = false;  // one number for all
};

/// w = scale * (q - zero), or scale * q + offset where there are offsets.
struct Integers {
  std::string name;  // for messages
  std::int64_t rows = 0, cols = 0, groups = 1;
  int bits = 4;
  Packed numbers, zeros;  // zeros: [rows, groups]
  int zero = 0;           // where there are neither zeros nor offsets
  GroupFloats scales, offsets;
  std::vector<std::int32_t> group_of = {};  // of columns; empty: cols / groups side by side have one
  bool in_blocks = true;                    // 32 columns side by side are of one group
};

/// Some rows of it, unpacked.
struct Panel {
  const Integers* of = nullptr;
  std::int64_t first = 0, rows = 0, stride = 0;
  std::vector<std::uint8_t> numbers;  // [rows, stride]
  std::vector<float> scales, shifts;  // [rows, groups]; shifts: the offsets, or the zeros
  std::vector<std::byte> bytes;       // as read
};

/// How many rows are unpacked at a time, beginning with a multiple of that.
std::int64_t panel_rows(std::int64_t cols);

/// Makes the panel one that has `row`. Errors: io_error, corrupt (a scale that is NaN or infinite).
Status read_panel(const Integers& integers, std::int64_t row, Panel& panel);

/// Whether blocks of `dtype` hold the same numbers, with scales that are rounded to float16 and no further loss.
bool has_blocks(const Integers& integers, DType dtype);
/// The smallest of such types; Q8_0 where there is none.
DType best_blocks(const Integers& integers);

/// A row's blocks. REQUIRES: the panel has the row; has_blocks(). Errors: unsupported (a scale beyond float16).
Status row_as_blocks(const Panel& panel, std::int64_t row, DType dtype, std::byte* out);
/// Columns [col, col + count) of a row. REQUIRES: the panel has the row.
void row_as_floats(const Panel& panel, std::int64_t row, std::int64_t col, std::int64_t count, float* out);

}  // namespace millrace::convert
