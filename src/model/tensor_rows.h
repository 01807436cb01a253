// A few rows of a tensor as numbers, read while a model is opened: what executors never see.
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// Rows [first, first + count), [count, cols]. Errors: unsupported (a dtype that cannot be decoded), io_error, those of
/// opening. REQUIRES: the rows exist.
Expected<std::vector<float>> read_rows(const modelfile::Model& file, const modelfile::TensorInfo& tensor,
                                       std::int64_t first, std::int64_t count);

/// A vector of 64-bit integers. Errors: corrupt (it is none), io_error, those of opening.
Expected<std::vector<std::int64_t>> read_integers(const modelfile::Model& file, const modelfile::TensorInfo& tensor);

/// Whether all scales beside matrices (NAME.scale) are numbers. Errors: corrupt (the tensor, named), io_error.
Status check_scales(const modelfile::Model& file);

}  // namespace millrace::model
