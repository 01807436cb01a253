// Importance matrices: how much each column of a model's matrices matters, as the squares of what it was multiplied by,
// summed over a text. A quantizer that has one spends its error where little goes in.
//
// Written as GGUF in llama.cpp's present form: general.type "imatrix", for each tensor NAME.in_sum2 [cols, matrices]
// and NAME.counts [1, matrices] in float32, and the keys imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size.
// Read in that form and in the older one of .dat files: int32 entries; for each int32 length, name, int32 calls, int32
// values and the values (means times calls); then, maybe, int32 chunks, int32 length and the data set's name.
// Thread-safety: values, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::modelfile {

/// Of one tensor: of a mixture's experts, one matrix after the other.
struct ImportanceEntry {
  std::vector<float> sums;    // [matrices, cols]: squares summed over the rows that went in; finite, not negative
  std::vector<float> counts;  // [matrices] or [1]: those rows; whole parts of `sums` belong to each
};

struct ImportanceMatrix {
  std::vector<std::string> datasets;                            // names of the texts
  std::uint32_t chunk_count = 0, chunk_size = 0;                // windows of the text and tokens in each; 0: not known
  std::map<std::string, ImportanceEntry, std::less<>> entries;  // by the tensor's name, "blk.0.attn_q.weight"
};

/// Reads either form; takes memory for what the file holds. Errors: not_found, io_error; corrupt (sums without counts,
/// numbers that are negative or not finite, a count that does not divide its sums, a file of neither form);
/// unsupported (no float32; a GGUF file that is no importance matrix). All name the file.
Expected<ImportanceMatrix> read_imatrix(const std::string& path);

/// The same from bytes in memory; `name` is for messages.
Expected<ImportanceMatrix> parse_imatrix(std::span<const std::byte> bytes, const std::string& name);

/// Writes the GGUF form, replacing a file of that name. Errors: invalid_argument (no entries, or entries that
/// read_imatrix() would refuse); io_error.
Status write_imatrix(const ImportanceMatrix& matrix, const std::string& path);

/// What a square error counts in each column of `tensor`: [matrices, cols], the mean of its squares. A matrix that saw
/// no rows has ones. Errors: invalid_argument (the entry has other columns or matrices: of another model).
Expected<std::vector<float>> column_weights(const ImportanceEntry& entry, const TensorInfo& tensor);

/// The same by rows of the tensor, whose matrices follow each other; nothing where all columns count alike.
class ColumnImportance {
 public:
  /// Without an entry for the tensor, or without a matrix (null), all count alike. Errors: those of column_weights().
  static Expected<ColumnImportance> of(const TensorInfo& tensor, const ImportanceMatrix* importance);
  bool alike() const { return weights_.empty(); }
  /// [cols], or null.
  const float* of_row(std::int64_t row) const {
    return weights_.empty() ? nullptr : weights_.data() + row / rows_ * cols_;
  }

 private:
  std::vector<float> weights_;  // [matrices, cols]
  std::int64_t cols_ = 1, rows_ = 1;
};

}  // namespace millrace::modelfile
