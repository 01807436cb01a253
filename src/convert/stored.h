// A checkpoint's tensors as sources: what belongs together (8-bit floats and their scales, MXFP4's blocks and
// exponents, integers with scales and zeros) is one. Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "convert/config.h"
#include "convert/forms.h"
#include "modelfile/file_io.h"
#include "modelfile/safetensors.h"

namespace millrace::convert {

struct NamedTensor {
  std::string name;  // of MXFP4: what stands before "_blocks", and "_mxfp4"
  Stored stored;
};

/// `files`: those of the checkpoint, which outlive what is returned. Errors: unsupported (elements that are no weights;
/// another quant_method), corrupt (scales of a wrong shape, or none), each with the name.
Expected<std::vector<NamedTensor>> stored_tensors(const modelfile::Checkpoint& checkpoint,
                                                  const std::vector<modelfile::File>& files, const Config& config);

/// One of them, which is not of integers.
Expected<NamedTensor> stored_tensor(const modelfile::Checkpoint& checkpoint, const std::vector<modelfile::File>& files,
                                    const Config& config, const modelfile::CheckpointTensor& tensor);

}  // namespace millrace::convert
