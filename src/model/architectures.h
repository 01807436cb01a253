// The architectures registry.cpp chooses from. To add one: write its file, declare its maker here, name it there.
#pragma once

#include <memory>

#include "base/status.h"
#include "model/model.h"
#include "modelfile/gguf.h"

namespace millrace::model {

Expected<std::unique_ptr<Model>> make_llama(const modelfile::Model& file, const LoadOptions& options);
Expected<std::unique_ptr<Model>> make_qwen3moe(const modelfile::Model& file, const LoadOptions& options);

}  // namespace millrace::model
