// The file of a model's substitutes (residency/substitutes.h): a GGUF of the layers' matrices alone, in a low type,
// that names the model it belongs to. quantize() writes it where QuantizeOptions::substitute_of says so. Thread-safety:
// pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "modelfile/gguf_writer.h"

namespace millrace::modelfile {

/// The key of the model's identity (kv/model_identity.h).
constexpr std::string_view kSubstituteOf = "millrace.substitute.of";

/// Whether a tensor is a matrix of a layer, or a layer's experts' matrices.
bool can_be_substituted(const TensorInfo& tensor);

/// The metadata of such a file, but for its type.
Status add_substitute_metadata(const Model& model, std::string_view identity, Writer& writer);

}  // namespace millrace::modelfile
