// The rows of a tensor, gathered from where they lie in other files: what a checkpoint's tensors and a GGUF file's
// differ in is mostly which rows stand where. Rows come as bytes where nothing else changes, else as floats.
// Thread-safety: pure functions; a Scratch belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "convert/integers.h"
#include "modelfile/file_io.h"
#include "tensor/dtype.h"

namespace millrace::convert {

/// How a source keeps its numbers: as elements or blocks of its dtype, as 8-bit floats with scales beside them, as
/// gpt-oss publishes MXFP4 (nibbles in one tensor, exponents in another), as NVFP4 is published (the same with 8-bit
/// floats for 16 numbers each, and a factor), or as integers of groups.
enum class Packing : std::uint8_t { plain, e4m3, e5m2, mxfp4, nvfp4, integers };

/// Scales of blocks of a matrix, floats in a file: that of (row, col) is [row / rows_each, col / cols_each].
struct Scales {
  const modelfile::File* file = nullptr;  // nullptr: none
  std::uint64_t offset = 0;
  DType dtype = DType::f32;  // f32, f16 or bf16; of MXFP4 and NVFP4 one byte, whatever stands here
  std::int64_t rows_each = 1, cols_each = 1, cols = 1;
};

/// A tensor as a matrix [rows, cols], contiguous in a file that outlives it.
struct Source {
  std::string name;  // for messages
  const modelfile::File* file = nullptr;
  std::uint64_t offset = 0;
  std::int64_t rows = 0, cols = 0;
  Packing packing = Packing::plain;
  DType dtype = DType::f32;  // of `plain`; else the type that holds its numbers: BF16 of 8-bit floats, MXFP4, blocks
  Scales scales = {};
  float factor = 1;  // of all numbers. The bytes of NVFP4, and of a GGUF file's tensor, leave it out (factors_of())
  std::vector<float> factors = {};  // of matrices of equal size, one after the other: in its place; empty: one for all
  std::shared_ptr<const Integers> integers = nullptr;
};

/// Rows first, first + step, .. of a source, `rows` of them; or, of a matrix whose rows begin at `base`, so many
/// columns from `first` on, each a row (base < 0: rows are rows).
struct Run {
  std::int32_t source = 0;
  std::int64_t first = 0, step = 1, rows = 0, base = -1;
};

/// What else becomes of each number. What changes is a float.
enum class Change : std::uint8_t { none, plus_one, minus_one, minus_exp, log_of_minus };

/// One tensor to be made.
struct Target {
  std::string name;                 // in the file that is written
  std::vector<std::int64_t> shape;  // in that file's order of dimensions
  std::int64_t rows = 0, cols = 0;  // as it is gathered: its elements are rows x cols
  std::vector<Run> runs;            // its rows in order; of lanes, each row is cols / lanes long
  Change change = Change::none;
  std::vector<std::int32_t> columns = {};  // groups of columns in order; empty: as they come
  std::int64_t columns_each = 1;           // of a group
  std::int64_t lanes = 1;      // columns of so many take turns: runs have the rows of the first, then those of the next
  bool factor_beside = false;  // of NVFP4: the file has one for the whole tensor, whatever it is
  std::vector<std::int64_t> begins = {};  // of runs, where their rows stand: check_target() fills it
  std::int64_t piece_rows = 0;            // the rows of a piece of work; check_target() fills it, too
};

struct Scratch {
  std::vector<std::byte> bytes;
  std::vector<float> floats, scales;
  Panel panel;
};

/// The elements a piece of work gathers at most. Rows are not cut: a row may be larger, up to kMostCols. Of integers,
/// pieces are as long as what is unpacked at a time.
constexpr std::int64_t kPieceElements = 256 * 1024, kMostCols = std::int64_t{1} << 22;

/// Errors: corrupt (rows that the runs do not have, a source that lacks a row: a checkpoint of wrong shapes, named).
Status check_target(Target& target, std::span<const Source> sources);

/// What the numbers of a target's matrices, one after the other, are multiplied by beside what bytes of NVFP4 say.
/// Empty: they have no such number each, or it is not 1 and the target is none whose products are multiplied
/// (model/unit_builder.h).
std::vector<float> factors_of(const Target& target, std::span<const Source> sources);

/// True if all rows of the target can be had as bytes of `dtype`.
bool is_copy(const Target& target, std::span<const Source> sources, DType dtype);

/// Rows [first, first + count) into `out` [count, cols]: their bytes. REQUIRES: is_copy(); the target was checked.
/// Errors: io_error; corrupt (NaN or an infinity: the tensor, named); unsupported (a scale beyond float16).
Status gather_bytes(const Target& target, std::span<const Source> sources, DType dtype, std::int64_t first,
                    std::int64_t count, Scratch& scratch, std::byte* out);

/// The same as floats. REQUIRES: the target was checked. Errors: io_error, corrupt.
Status gather_floats(const Target& target, std::span<const Source> sources, std::int64_t first, std::int64_t count,
                     Scratch& scratch, float* out);

}  // namespace millrace::convert
