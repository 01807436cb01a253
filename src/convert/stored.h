// A checkpoint's tensors as sources. Tensors that belong together (8-bit floats and their scales, MXFP4's blocks and
// exponents, integers with scales and zeros) become one source. Thread-safety: pure functions.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "convert/config.h"
#include "convert/forms.h"
#include "modelfile/file_io.h"
#include "modelfile/safetensors.h"

namespace millrace::convert {

struct NamedTensor {
  std::string name;  // for MXFP4: the part before "_blocks", with "_mxfp4" appended
  Stored stored;
};

/// `files`: those of the checkpoint; they outlive the result. `others`: tensors that hold no weights, and are not part
/// of the result. Errors: unsupported (elements of a type that weights do not have; another quant_method), corrupt
/// (scales missing or of a wrong shape); each names the tensor.
Expected<std::vector<NamedTensor>> stored_tensors(const modelfile::Checkpoint& checkpoint,
                                                  const std::vector<modelfile::File>& files, const Config& config,
                                                  std::initializer_list<std::string_view> others = {});

/// One tensor, which does not hold integers with scales.
Expected<NamedTensor> stored_tensor(const modelfile::Checkpoint& checkpoint, const std::vector<modelfile::File>& files,
                                    const Config& config, const modelfile::CheckpointTensor& tensor);

}  // namespace millrace::convert
