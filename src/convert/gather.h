// Gathers the rows of a tensor from other files. A checkpoint's tensors and a GGUF file's differ mostly in the order of
// rows. Rows are copied as bytes if only their order changes, and otherwise decoded to floats. Thread-safety: pure
// functions; a Scratch belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "convert/integers.h"
#include "modelfile/file_io.h"
#include "modelfile/mixtures.h"
#include "tensor/dtype.h"

namespace millrace::convert {

/// How a source stores its numbers: elements or blocks of its dtype; 8-bit floats with separate scales; MXFP4 as
/// published (nibbles in one tensor, exponents in another); NVFP4 as published (nibbles, an 8-bit float per
/// 16 numbers, and a factor); or integers in groups.
enum class Packing : std::uint8_t { plain, e4m3, e5m2, mxfp4, nvfp4, integers };

/// Scales of a matrix's blocks in a file. The scale of (row, col) is [row / rows_each, col / cols_each].
struct Scales {
  const modelfile::File* file = nullptr;  // nullptr: none
  std::uint64_t offset = 0;
  DType dtype = DType::f32;  // f32, f16 or bf16; ignored for MXFP4 and NVFP4, which have one byte
  std::int64_t rows_each = 1, cols_each = 1, cols = 1;
  bool exponents = false;  // bytes e that mean 2^(e - 127), instead of floats
};

/// A tensor as a matrix [rows, cols], contiguous in a file that outlives the object.
struct Source {
  std::string name;  // for messages
  const modelfile::File* file = nullptr;
  std::uint64_t offset = 0;
  std::int64_t rows = 0, cols = 0;
  Packing packing = Packing::plain;
  DType dtype = DType::f32;  // of `plain`; otherwise the type to convert to: BF16 for 8-bit floats, MXFP4, blocks
  Scales scales = {};
  float factor = 1;  // multiplies all numbers. The bytes of NVFP4 and of a GGUF tensor do not include it (factors_of())
  std::vector<float> factors = {};  // replaces `factor`, one per matrix of equal size; empty: one for all
  std::shared_ptr<const Integers> integers = nullptr;
};

/// `rows` rows of a source: first, first + step, ... If base >= 0: as many columns, from `first`, of the matrix whose
/// rows begin at `base`; each column becomes a row.
struct Run {
  std::int32_t source = 0;
  std::int64_t first = 0, step = 1, rows = 0, base = -1;
};

/// An operation on each number, which is decoded to a float first.
enum class Change : std::uint8_t { none, plus_one, minus_one, exp, log, minus_exp, log_of_minus };

/// A tensor to write.
struct Target {
  std::string name;                 // in the output file
  std::vector<std::int64_t> shape;  // in the output file's order of dimensions
  std::int64_t rows = 0, cols = 0;  // of the gathered matrix
  std::vector<Run> runs;            // its rows in order; with lanes, each has cols / lanes elements
  Change change = Change::none;
  std::vector<std::int32_t> columns = {};  // the order of groups of columns; empty: unchanged
  std::int64_t columns_each = 1;           // of a group
  std::int64_t lanes = 1;      // interleaved columns: runs list the rows of lane 0, then those of lane 1, ...
  bool factor_beside = false;  // NVFP4: the output file has a factor for the whole tensor, even if it is 1
  std::vector<std::int64_t> begins = {};  // the first row of each run; set by check_target()
  std::int64_t piece_rows = 0;            // rows per piece of work; set by check_target()
};

struct Scratch {
  std::vector<std::byte> bytes;
  std::vector<float> floats, scales;
  Panel panel;
};

/// The most elements that a piece of work gathers. Rows are not split, so one row may be larger, up to kMostCols.
/// Pieces of integers have as many rows as are unpacked at once.
constexpr std::int64_t kPieceElements = 256 * 1024, kMostCols = std::int64_t{1} << 22;

/// The type by quantize's rules, or `stored`, the source's, if weights are kept (no `type`); some tensors are floats in
/// every file, and MXFP4 stays MXFP4.
DType output_dtype(const Target& target, DType stored, std::optional<modelfile::QuantizeType> type,
                   const modelfile::MixtureContext& context);

/// Errors: corrupt (the runs have too few rows, or a source lacks a row: the checkpoint's shapes are wrong; names the
/// tensor).
Status check_target(Target& target, std::span<const Source> sources);

/// The factor of each of a target's matrices that the bytes of NVFP4 do not include. Empty: the matrices have no factor
/// of their own, or one other than 1 in a target whose products are not multiplied by one (model/unit_builder.h).
std::vector<float> factors_of(const Target& target, std::span<const Source> sources);

/// True if all rows of the target can be copied as bytes of `dtype`.
bool is_copy(const Target& target, std::span<const Source> sources, DType dtype);

/// Copies the bytes of rows [first, first + count) to `out` [count, cols]. REQUIRES: is_copy(); check_target() was ok.
/// Errors: io_error; corrupt (NaN or an infinity; names the tensor); unsupported (a scale beyond float16).
Status gather_bytes(const Target& target, std::span<const Source> sources, DType dtype, std::int64_t first,
                    std::int64_t count, Scratch& scratch, std::byte* out);

/// The same, as floats. REQUIRES: check_target() was ok. Errors: io_error, corrupt.
Status gather_floats(const Target& target, std::span<const Source> sources, std::int64_t first, std::int64_t count,
                     Scratch& scratch, float* out);

}  // namespace millrace::convert
