// Matrices of 4-bit or 8-bit integers with a scale and a zero point or an offset per group of columns, as MLX, GPTQ,
// AWQ and compressed-tensors store them. They are unpacked a few rows at a time, to GGUF blocks with the same integers
// or to floats. Source: the packing code of these projects. Thread-safety: an Integers is read by many threads; a Panel
// belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "modelfile/file_io.h"
#include "tensor/dtype.h"

namespace millrace::convert {

/// Which numbers share a 32-bit word, the first in its lowest bits. n = 32 / bits.
enum class WordOrder : std::uint8_t {
  cols_of_row,        // [rows, cols / n]
  rows_of_col,        // [rows / n, cols]
  turned_cols,        // [cols / n, rows]: a word has columns of one row, and the matrix of words is transposed
  turned_rows,        // [cols, rows / n]
  turned_interleaved  // [cols, rows / 8], rows in the order 0, 2, 4, 6, 1, 3, 5, 7
};

/// A tensor of words that hold integers.
struct Packed {
  const modelfile::File* file = nullptr;  // nullptr: none
  std::uint64_t offset = 0;
  WordOrder order = WordOrder::cols_of_row;
  std::uint32_t add = 0;   // to each word
  bool has_signs = false;  // 8 bits, cols_of_row: two's complement; 128 is added to each number
};

/// One float per row and group: [rows, groups], or [groups, rows] if turned.
struct GroupFloats {
  const modelfile::File* file = nullptr;  // nullptr: none
  std::uint64_t offset = 0;
  DType dtype = DType::f32;  // f32, f16 or bf16
  bool turned = false;
  bool one = false;  // one number for all
};

/// w = scale * (q - zero), or scale * q + offset if there are offsets.
struct Integers {
  std::string name;  // for messages
  std::int64_t rows = 0, cols = 0, groups = 1;
  int bits = 4;
  Packed numbers, zeros;  // zeros: [rows, groups]
  int zero = 0;           // used if there are neither zeros nor offsets
  GroupFloats scales, offsets;
  std::vector<std::int32_t> group_of = {};  // the group of each column; empty: cols / groups adjacent columns per group
  bool in_blocks = true;                    // any 32 aligned columns belong to one group
};

/// Some rows of a matrix, unpacked.
struct Panel {
  const Integers* of = nullptr;
  std::int64_t first = 0, rows = 0, stride = 0;
  std::vector<std::uint8_t> numbers;  // [rows, stride]
  std::vector<float> scales, shifts;  // [rows, groups]; shifts: the offsets, or the zeros
  std::vector<std::byte> bytes;       // as read
};

/// The number of rows in a panel; a panel's first row is a multiple of it.
std::int64_t panel_rows(std::int64_t cols);

/// Fills the panel with the rows around `row`, unless it has them. Errors: io_error, corrupt (a scale that is NaN or
/// infinite).
Status read_panel(const Integers& integers, std::int64_t row, Panel& panel);

/// True if blocks of `dtype` can hold the same integers; rounding the scales to float16 is then the only loss.
bool has_blocks(const Integers& integers, DType dtype);
/// The smallest type for which has_blocks() is true; Q8_0 if there is none.
DType best_blocks(const Integers& integers);

/// Writes a row as blocks. REQUIRES: the panel has the row; has_blocks(). Errors: unsupported (a scale beyond float16).
Status row_as_blocks(const Panel& panel, std::int64_t row, DType dtype, std::byte* out);
/// Writes columns [col, col + count) of a row as floats. REQUIRES: the panel has the row.
void row_as_floats(const Panel& panel, std::int64_t row, std::int64_t col, std::int64_t count, float* out);

}  // namespace millrace::convert
