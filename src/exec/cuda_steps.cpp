// The walk over a pass's steps, in windows where it has several, and the launches of rows and attention.
#include "exec/cuda_emitter.h"

namespace millrace::exec {

cuda::KvView CudaExecutor::Emitter::kv_view(std::int64_t layer) const {
  const kv::Layout& layout = ops.batch_->sequences.front()->layout();
  const kv::Group& group = layout.group_of(layer);
  const std::uint64_t table = ops.pass_rows_.blocks[layout.place(layer).group];
  return {reinterpret_cast<const std::byte* const*>(ops.at(ops.layout_.rows + table)),
          static_cast<std::int32_t>(max_blocks(ops.shape_)),
          layout.offset(layer, kv::Part::k, 0),
          layout.offset(layer, kv::Part::v, 0),
          group.k_head_bytes(),  // and of V: Layout::check()
          group.dtype,
          static_cast<std::int32_t>(group.kv_heads),
          static_cast<std::int32_t>(group.k_dim)};
}

void CudaExecutor::Emitter::emit_norm(const Step& s, Act x, const std::int32_t* x_index) {
  const Wanted later = wanted(s.out, next);
  overwritten(s.out);
  const bool both = !ops.options_.fuse;
  cuda::Q8 q8_out;
  if (later.q8 && !both) q8_out = make_q8(0, s.out);
  const bool floats = later.floats || later.bf16 || both || !later.q8;
  const std::byte* const* weight = vector(s.weight);
  if (!status.ok()) return;
  check(cuda::rms_norm(data(x), x_index, weight, rows(s.out), static_cast<std::int32_t>(cols(s.out)), s.eps,
                       floats ? data(s.out) : nullptr, q8_out, stream),
        "rms_norm");
}

void CudaExecutor::Emitter::emit_select(const Step& s) {
  const auto* index = row_data<std::int32_t>(ops.pass_rows_.logit_row);
  const bool norm_follows = ops.options_.fuse && next + 1 < count() && step(next + 1).kind == Kind::rms_norm &&
                            step(next + 1).a.buffer == s.out.buffer && step(next + 1).out.buffer == s.out.buffer;
  if (ops.logit_rows_ == 0) return;
  if (norm_follows) {
    ++next;
    emit_norm(step(next), s.a, index);
    return;
  }
  overwritten(s.out);
  check(cuda::gather_rows(data(s.a), index, rows(s.out), static_cast<std::int32_t>(cols(s.out)), data(s.out), stream),
        "gather_rows");
}

void CudaExecutor::Emitter::emit_rope_store() {
  cuda::RopeStoreCall call;
  Act q, k, v;
  WeightRef norm_of_q, norm_of_k;
  std::size_t i = next;
  while (i < count() && (step(i).kind == Kind::rope || step(i).kind == Kind::rms_norm_heads)) ++i;
  if (i == count()) return broken("RoPE without attention");
  const bool stores = step(i).kind == Kind::store_kv;  // else the keys are another layer's
  if (stores) k = step(i).a, v = step(i).b;
  for (std::size_t j = next; j < i; ++j) {
    const Step& s = step(j);
    const bool of_k = stores && s.out.buffer == k.buffer;
    if (s.kind == Kind::rms_norm_heads) {
      call.eps = s.eps;
      if (stores && s.out.buffer == v.buffer) {
        if (!s.weight.none()) return broken("values normalised with a weight");
        call.normalize_v = true;
        continue;
      }
      (of_k ? norm_of_k : norm_of_q) = s.weight;
      continue;
    }
    if (!of_k) {
      q = s.out;
      call.heads = static_cast<std::int32_t>(s.heads);
    }
    const Rope& rope = ops.program_->ropes[static_cast<std::size_t>(s.rope)];
    call.rotary = static_cast<std::int32_t>(rope.rotary);
    call.neox = rope.neox;
    call.cos_sin =
        row_data<float>(ops.pass_rows_.cos_sin[static_cast<std::size_t>(s.rope)]) + window.first * rope.rotary;
  }
  if (q.buffer < 0) return broken("keys without queries");
  call.rows = row_view();
  call.kv = kv_view(step(i).layer);
  call.q = data(q);
  if (stores) call.k = data(k), call.v = data(v);
  call.q_norm = vector(norm_of_q);
  call.k_norm = vector(norm_of_k);
  if (!status.ok()) return;
  check(cuda::rope_store(call, stream), "rope_store");
  next = stores ? i : i - 1;
}

void CudaExecutor::Emitter::emit_attention(const Step& s) {
  const Wanted later = wanted(s.out, next);
  overwritten(s.out);
  cuda::AttentionCall call;
  call.rows = row_view();
  call.kv = kv_view(s.layer);
  call.q = data(s.a);
  call.heads = static_cast<std::int32_t>(s.attention.heads);
  call.scale = s.attention.scale;
  call.window = static_cast<std::int32_t>(s.attention.window);
  call.sinks = vector(s.attention.sinks);
  if (!status.ok()) return;
  call.out = later.floats || later.bf16 || !later.q8 ? data(s.out) : nullptr;
  if (later.q8) call.out_q8 = make_q8(1, s.out);
  call.max_position = static_cast<std::int32_t>(ops.position_bound_);
  if (!ops.few_rows()) {
    call.tiles = row_data<int4>(ops.pass_rows_.tiles) + window.first_tile;
    call.tile_count = static_cast<std::int32_t>(window.tiles);
  }
  call.workspace = ops.at(ops.layout_.attention_workspace);
  check(cuda::attention(call, stream), "attention");
}

void CudaExecutor::Emitter::emit_whole() {
  if (!ops.windows_.empty()) window = ops.windows_.front();
  emit_until(count());
}

void CudaExecutor::Emitter::emit_in_windows() {
  while (next < count() && status.ok()) {
    const std::size_t first = next, end = ops.program_->block_end(first);
    if (end == count()) {  // rows that want logits are few, and lie in all windows
      window = {0, ops.rows_, 0, 0};
      emit_until(end);
      return;
    }
    for (const Window& part : ops.windows_) {
      next = first;
      window = part;
      last = &part == &ops.windows_.back();
      forms[0] = forms[1] = {};
      emit_until(end);
    }
  }
}

void CudaExecutor::Emitter::emit_until(std::size_t end) {
  for (; next < end && status.ok(); ++next) {
    if (ops.cancelled_ && !ops.few_rows() && ops.cancelled_()) {
      status = error(Code::cancelled, "stopped");
      return;
    }
    emit_step();
    if (last && status.ok()) status = ops.weights_.let_go(stream);
  }
}

void CudaExecutor::Emitter::emit_step() {
  const Step& s = step(next);
  const device::ProfilerRange range(name(s.kind).data());
  switch (s.kind) {
    case Kind::embed:
      overwritten(s.out);
      check(cuda::embed(matrix(s.weight), row_view().token, rows(s.out), static_cast<std::int32_t>(cols(s.out)),
                        data(s.out), stream),
            "embed");
      if (s.factor != 1) check(cuda::scale(data(s.out), s.factor, rows(s.out) * cols(s.out), stream), "scale");
      weight_bytes = 0;  // rows of a table, not the table
      break;
    case Kind::rms_norm:
      if (rows(s.out) > 0) emit_norm(s, s.a, nullptr);
      break;
    case Kind::temper:
      overwritten(s.out);
      check(cuda::temper(data(s.out), row_view().position, s.temperature.scale,
                         static_cast<std::int32_t>(s.temperature.period), rows(s.out),
                         static_cast<std::int32_t>(cols(s.out)), stream),
            "temper");
      break;
    case Kind::rms_norm_heads:
    case Kind::rope:
      emit_rope_store();
      break;
    case Kind::store_kv:
      broken("keys that were not rotated");
      break;
    case Kind::add:
      overwritten(s.out);
      check(s.factor == 1 ? cuda::add(data(s.a), data(s.b), rows(s.a) * cols(s.a), stream)
                          : cuda::add_scaled(data(s.a), data(s.b), s.factor, rows(s.a) * cols(s.a), stream),
            "add");
      break;
    case Kind::scale:
      overwritten(s.out);
      if (s.weight.none())
        check(cuda::scale(data(s.out), s.factor, rows(s.out) * cols(s.out), stream), "scale");
      else if (const std::byte* const* scalar = vector(s.weight); status.ok())
        check(cuda::scale_by(data(s.out), scalar, rows(s.out) * cols(s.out), stream), "scale");
      break;
    case Kind::copy:
      overwritten(s.out);
      check(cudaMemcpyAsync(data(s.out), data(s.a), static_cast<std::size_t>(rows(s.a) * cols(s.a)) * sizeof(float),
                            cudaMemcpyDeviceToDevice, stream),
            "copy");
      break;
    case Kind::matmul:
      emit_matmul(s);
      break;
    case Kind::gated:
      emit_gated(s);
      break;
    case Kind::attention:
      emit_attention(s);
      break;
    case Kind::moe:
      emit_moe(s);
      break;
    case Kind::select_rows:
      emit_select(s);
      break;
    case Kind::logits:
      emit_logits(s);
      break;
    case Kind::hidden:
      break;
  }
}

Status CudaExecutor::emit() {
  Emitter emitter{*this, stream_.get()};
  if (windows_.size() > 1)
    emitter.emit_in_windows();
  else
    emitter.emit_whole();
  if (emitter.status.ok() && split()) emitter.status = share_->finish();
  if (emitter.status.ok()) emitter.status = weights_.end_pass(stream_.get());
  if (!few_rows() || !options_.graphs) device::count_kernels(emitter.launches);
  pass_weight_bytes_ = emitter.weight_bytes;
  return emitter.status;
}

}  // namespace millrace::exec
