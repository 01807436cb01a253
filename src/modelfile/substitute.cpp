#include "modelfile/substitute.h"

#include <utility>

#include "modelfile/quantize.h"

namespace millrace::modelfile {

bool can_be_substituted(const TensorInfo& tensor) {
  // What stays float is F32 in every type; so is nothing else of a layer's.
  return tensor.name.starts_with("blk.") && info(tensor.dtype).computable &&
         choose_dtype(QuantizeType::f16, tensor, {}) != DType::f32;
}

Status add_substitute_metadata(const Model& model, std::string_view identity, Writer& writer) {
  // No architecture that anybody knows: it cannot be run by itself.
  MR_RETURN_IF_ERROR(writer.add("general.architecture", Value(std::string("substitute"))));
  if (const auto name = model.get_string("general.name"); name.ok())
    MR_RETURN_IF_ERROR(writer.add("general.name", Value(*name + " (substitute)")));
  return writer.add(std::string(kSubstituteOf), Value(std::string(identity)));
}

}  // namespace millrace::modelfile
