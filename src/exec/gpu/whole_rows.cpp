// LayerNorm, heads that are turned where they lie, and the launches of programs whose rows all see each other: vision
// towers.
#include "exec/gpu/emitter.h"

namespace millrace::exec {

float* GpuExecutor::Emitter::padded(Act x, std::int64_t heads, std::int64_t layer, int place) {
  const std::int64_t kept = ops.kv_layout().group_of(layer).v_dim, own = cols(x) / heads;
  if (kept == own) return data(x);
  auto* const out = ops.at<float>(ops.layout_.padded[place]);
  check(gpu::place_columns({data(x), rows(x) * heads, own, out, kept, 0, true}, stream), "pad");
  return out;
}

void GpuExecutor::Emitter::emit_turn(const Step& s) {
  const Rope& rope = ops.program_->ropes[static_cast<std::size_t>(s.rope)];
  gpu::TurnCall call;
  call.x = data(s.out);
  call.cos_sin = row_data<float>(ops.pass_rows_.cos_sin[static_cast<std::size_t>(s.rope)]) + window.first * rope.rotary;
  call.rows = rows(s.out);
  call.heads = static_cast<std::int32_t>(s.heads);
  call.head_dim = static_cast<std::int32_t>(s.head_dim);
  call.rotary = static_cast<std::int32_t>(rope.rotary);
  call.first = rope.last ? static_cast<std::int32_t>(s.head_dim - rope.rotary) : 0;
  call.neox = rope.neox;
  check(gpu::turn_heads(call, stream), "turn");
}

void GpuExecutor::Emitter::emit_join(const Step& s) {
  const std::int64_t first = cols(s.a);
  check(gpu::place_columns({data(s.a), rows(s.a), first, data(s.out), cols(s.out), 0, false}, stream), "join");
  check(gpu::place_columns({data(s.b), rows(s.b), cols(s.b), data(s.out), cols(s.out), first, false}, stream), "join");
}

void GpuExecutor::Emitter::emit_whole_rows(const Launch& launch) {
  using Kind = Launch::Kind;
  const Step& s = step(launch.first);
  const auto width = static_cast<std::int32_t>(cols(s.out));
  overwritten(s.out);
  switch (launch.kind) {
    case Kind::layer_norm: {
      const std::byte *const *const weight = vector(s.weight), *const *const bias = vector(s.weight2);
      if (!status.ok() || rows(s.out) == 0) return;
      return check(gpu::layer_norm(data(s.a), weight, bias, rows(s.out), width, s.eps, data(s.out), stream),
                   "layer_norm");
    }
    case Kind::turn:
      return emit_turn(s);
    case Kind::merge_rows:
      return check(gpu::merge_rows(data(s.a), rows(s.a), static_cast<std::int32_t>(cols(s.a)),
                                   static_cast<std::int32_t>(ops.shape_.merge), s.by_channel, data(s.out), stream),
                   "merge_rows");
    case Kind::mean_rows:
      return check(
          gpu::mean_rows(data(s.a), rows(s.a), width, static_cast<std::int32_t>(ops.shape_.merge), data(s.out), stream),
          "mean_rows");
    case Kind::clamp:
      return check(gpu::clamp(data(s.out), s.least, s.most, std::int64_t{rows(s.out)} * width, stream), "clamp");
    case Kind::standardize: {
      const std::byte *const *const bias = vector(s.weight), *const *const scale = vector(s.weight2);
      if (!status.ok()) return;
      return check(gpu::standardize(data(s.out), bias, scale, rows(s.out), width, stream), "standardize");
    }
    case Kind::join:
      return emit_join(s);
    default:
      return broken("whole rows of this kind");
  }
}

}  // namespace millrace::exec
