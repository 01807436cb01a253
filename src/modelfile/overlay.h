// A model some of whose tensors lie in another file, in another type: what a change of a few matrices does is measured
// without writing the whole model anew.
// Thread-safety: pure function.
#pragma once

#include <functional>
#include <string_view>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::modelfile {

/// Which tensors of a file that is laid over a model the model need not have; empty: none.
using MayAdd = std::function<bool(std::string_view name)>;

/// `model` with each tensor of `over`, a single file, in the place of its own of that name, and with the scales
/// (scale_name() of modelfile/mixtures.h) that those bring along. Metadata stay the model's.
/// Errors: invalid_argument (a tensor that the model has not and `over` may not add, or that has another shape).
Expected<Model> lay_over(Model model, const Model& over, const MayAdd& may_add = {});

}  // namespace millrace::modelfile
