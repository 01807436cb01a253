// The decoder that every architecture made of attention and feed-forwards shares: lists the units of a DecoderSpec in
// pass order and records each layer as named ops. A new kind of layer is a field of the spec and a line here.
#pragma once

#include <memory>

#include "base/status.h"
#include "model/layer_spec.h"
#include "model/model.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// Errors: not_found, corrupt, unsupported (a tensor, named: missing, of another shape, or one that the spec has no use
/// for and that would be needed for right tokens).
Expected<std::unique_ptr<Model>> make_decoder(const modelfile::Model& file, const LoadOptions& options,
                                              Hyperparameters hp, const DecoderSpec& spec);

}  // namespace millrace::model
