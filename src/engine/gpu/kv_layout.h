// What sequences keep on a GPU.
#pragma once

#include "engine/options.h"
#include "exec/gpu/executor.h"
#include "kv/layout.h"
#include "model/model.h"

namespace millrace::engine {

/// The layout of the KV of this model's sequences in the options' format, with heads as wide as the GPU's attention
/// takes them.
inline kv::Layout layout_on_gpu(const model::Model& model, const EngineOptions& options, int device) {
  const exec::Program& program = model.program();
  const bool can = options.kv.dtype != DType::q8_0 || program.turns_queries();
  return exec::gpu_kv_layout(program).with(options.kv.dtype, device, can ? options.kv.rotation : kv::Rotation::never);
}

}  // namespace millrace::engine
