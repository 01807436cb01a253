// A model some of whose tensors lie in another file, in another type: what a change of a few matrices does is measured
// without writing the whole model anew.
// Thread-safety: pure function.
#pragma once

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::modelfile {

/// `model` with each tensor of `over`, a single file, in the place of its own of that name, and with the scales
/// (scale_name() of modelfile/mixtures.h) that those bring along. Metadata stay the model's.
/// Errors: invalid_argument (a tensor that the model has not, or has in another shape).
Expected<Model> lay_over(Model model, const Model& over);

}  // namespace millrace::modelfile
