#include "modelfile/substitute.h"

#include <utility>

#include "modelfile/mixtures.h"

namespace millrace::modelfile {

bool can_be_substituted(const TensorInfo& tensor) {
  return tensor.name.starts_with("blk.") && info(tensor.dtype).computable && !stays_float(tensor);
}

Status add_substitute_metadata(const Model& model, std::string_view identity, Writer& writer) {
  // No architecture that anybody knows: it cannot be run by itself.
  MR_RETURN_IF_ERROR(writer.add("general.architecture", Value(std::string("substitute"))));
  if (const auto name = model.get_string("general.name"); name.ok())
    MR_RETURN_IF_ERROR(writer.add("general.name", Value(*name + " (substitute)")));
  return writer.add(std::string(kSubstituteOf), Value(std::string(identity)));
}

}  // namespace millrace::modelfile
