// The launches of an indexer: its queries and keys, and the choice of the keys that attention sees.
#include "exec/gpu/emitter.h"

namespace millrace::exec {

gpu::IndexView GpuExecutor::Emitter::index_view(std::int64_t layer) const {
  const kv::Layout& layout = ops.kv_layout();
  const kv::Group& group = layout.group_of(layer);
  gpu::IndexView view;
  view.table = row_data<const std::byte*>(ops.pass_rows_.blocks[layout.place(layer).group]);
  view.offset = layout.offset(layer, kv::Part::index, 0);
  view.max_blocks = static_cast<std::int32_t>(max_blocks(ops.shape_));
  view.dim = static_cast<std::int32_t>(group.index_dim);
  view.dtype = group.index_dtype();
  return view;
}

void GpuExecutor::Emitter::emit_index(const Launch& l) {
  const Step &norm = step(l.first), &queries = step(l.first + 1), &store = step(l.first + 3);
  const Rope& rope = ops.program_->ropes[static_cast<std::size_t>(queries.rope)];
  overwritten(queries.out);
  overwritten(store.a);
  gpu::IndexStoreCall call;
  call.rows = row_view();
  call.index = index_view(store.layer);
  call.q = data(queries.out);
  call.heads = static_cast<std::int32_t>(queries.heads);
  call.key = data(norm.a);
  call.weight = vector(norm.weight);
  call.bias = vector(norm.weight2);
  call.eps = norm.eps;
  call.cos_sin =
      row_data<float>(ops.pass_rows_.cos_sin[static_cast<std::size_t>(queries.rope)]) + window.first * rope.rotary;
  call.rotary = static_cast<std::int32_t>(rope.rotary);
  call.first = rope.last ? call.index.dim - call.rotary : 0;
  call.neox = rope.neox;
  if (status.ok()) check(gpu::store_index(call, stream), "store_index");
}

void GpuExecutor::Emitter::emit_choice(const Launch& l) {
  const Step& s = step(l.end - 1);
  if (!chooses(s.indexer.top_k)) return;
  overwritten(s.out);
  gpu::ChooseKeysCall call;
  call.rows = row_view();
  call.index = index_view(s.layer);
  call.q = data(s.a);
  call.weights = data(s.b);
  if (l.end - l.first > 1) call.factor = step(l.first).factor;
  call.heads = static_cast<std::int32_t>(s.indexer.heads);
  call.top_k = static_cast<std::int32_t>(s.indexer.top_k);
  call.chosen = reinterpret_cast<std::int32_t*>(data(s.out));
  call.max_position = static_cast<std::int32_t>(ops.position_bound_);
  call.prompt = window.prompt;
  call.workspace = ops.at(ops.layout_.attention_workspace);
  call.workspace_bytes = ops.layout_.attention_workspace_bytes;
  check(gpu::choose_keys(call, stream), "choose_keys");
}

}  // namespace millrace::exec
