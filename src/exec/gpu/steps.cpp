// The walk over a pass's steps, in windows where it has several, and the launches of rows and attention.
#include <algorithm>

#include "exec/gpu/emitter.h"

namespace millrace::exec {

gpu::KvView GpuExecutor::Emitter::kv_view(std::int64_t layer) const {
  const kv::Layout& layout = ops.kv_layout();
  const kv::Group& group = layout.group_of(layer);
  const auto table = [&](std::size_t number) {
    return reinterpret_cast<const std::byte* const*>(ops.at(ops.layout_.rows + ops.pass_rows_.blocks[number]));
  };
  gpu::KvView view;
  // Heads of K are as large as V's, where there are keys: check_gpu().
  view.blocks = {table(layout.place(layer).group), layout.offset(layer, kv::Part::k, 0),
                 layout.offset(layer, kv::Part::v, 0), group.v_head_bytes()};
  const std::size_t plain = layout.plain_group(layer);
  if (plain != kv::Place::kNowhere) {
    view.plain = {table(plain), layout.plain_offset(layer, kv::Part::k, 0), layout.plain_offset(layer, kv::Part::v, 0),
                  layout.groups()[plain].v_head_bytes()};
  }
  view.max_blocks = static_cast<std::int32_t>(max_blocks(ops.shape_));
  view.dtype = group.dtype;
  view.kv_heads = static_cast<std::int32_t>(group.kv_heads);
  view.head_dim = static_cast<std::int32_t>(group.v_dim);
  view.rotation = static_cast<std::int32_t>(group.rotation());
  return view;
}

gpu::GatherCall GpuExecutor::Emitter::gather_call(const Step& s, Act own) const {
  const Peers& peers = ops.peers_;
  const auto index = static_cast<std::size_t>(&s - ops.program_->steps.data());
  gpu::GatherCall call;
  call.own = data(own);
  call.rows = rows(own);
  call.devices = static_cast<std::int32_t>(peers.devices.size());
  call.index = peers.index;
  call.one_device = peers.one_device;
  call.through_host = peers.through_host;
  for (int d = 0; d < call.devices; ++d) {
    const Peers::Device& peer = peers.devices[static_cast<std::size_t>(d)];
    // Their programs differ in their columns alone.
    const Program& program = peer.programs[ops.batch_->wants_hidden ? 1 : 0];
    call.targets[d].first = static_cast<std::int32_t>(program.steps[index].first);
    call.targets[d].own_cols = static_cast<std::int32_t>(program.buffer(own).cols);
    call.targets[d].state = peer.gather_state;
    call.targets[d].words = peer.gather_words;
  }
  call.failed = peers.failed;
  return call;
}

gpu::GatherCall GpuExecutor::Emitter::gather_call(const Launch& l, const Step& s) {
  overwritten(s.out);
  overwritten(l.out);
  gpu::GatherCall call = gather_call(s, s.a);
  call.cols = static_cast<std::int32_t>(cols(l.out));
  call.add = l.adds;
  call.meets_first = l.meets_first;
  const std::int64_t first_row = buffer(l.out).rows == Rows::whole ? window.first : 0;
  for (int d = 0; d < call.devices; ++d) {
    const Peers::Device& peer = ops.peers_.devices[static_cast<std::size_t>(d)];
    gpu::GatherCall::Target& target = call.targets[d];
    const std::uint64_t out = peer.layout.buffers[static_cast<std::size_t>(l.out.buffer)];
    std::byte* const input = peer.at(peer.layout.inputs[kGatheredInput]);
    if (l.leaves.floats) target.out = peer.floats_at(out) + first_row * cols(l.out);
    if (l.leaves.q8) target.q8 = gpu::q8_at(input, call.rows, call.cols);
    if (l.leaves.bf16) target.bf16 = reinterpret_cast<gpu::Bf16*>(input);
  }
  if (l.leaves.q8) (void)make_q8(kGatheredInput, l.out);
  if (l.leaves.bf16) (void)make_bf16(kGatheredInput, l.out);
  return call;
}

void GpuExecutor::Emitter::emit_gather(const Launch& l) {
  check(gpu::gather(gather_call(l, step(l.first)), stream), "gather");
}

void GpuExecutor::Emitter::emit_norm(const Launch& l, Act x, const std::int32_t* x_index) {
  const Step& s = step(l.end - 1);
  overwritten(s.out);
  gpu::NormCall call;
  call.x = data(x);
  call.x_index = x_index;
  call.weight = vector(s.weight);
  if (!status.ok()) return;
  call.rows = rows(s.out);
  call.cols = static_cast<std::int32_t>(cols(s.out));
  call.eps = s.eps;
  if (l.leaves.floats) call.out = data(s.out);
  if (l.leaves.q8) call.out_q8 = make_q8(0, s.out);
  if (l.leaves.bf16) call.out_bf16 = make_bf16(1, s.out);
  check(gpu::rms_norm(call, stream), "rms_norm");
}

void GpuExecutor::Emitter::emit_select(const Launch& l) {
  const Step& s = step(l.first);
  const auto* index = row_data<std::int32_t>(ops.pass_rows_.logit_row);
  if (ops.logit_rows_ == 0) return;
  if (l.kind == Launch::Kind::select_norm) return emit_norm(l, s.a, index);
  overwritten(s.out);
  check(gpu::gather_rows(data(s.a), index, rows(s.out), static_cast<std::int32_t>(cols(s.out)), data(s.out), stream),
        "gather_rows");
}

void GpuExecutor::Emitter::emit_heads(const Launch& l) {
  gpu::RopeStoreCall call;
  Act k, v;
  WeightRef norm_of_q, norm_of_k;
  const Step& store = step(l.end - 1);
  const bool stores = store.kind == Kind::store_kv;  // else the keys are another layer's
  if (stores) k = store.a, v = store.b;
  for (std::size_t i = l.first; i < l.end; ++i) {
    const Step& s = step(i);
    const bool of_k = stores && s.out == k;
    if (s.kind == Kind::rms_norm_heads) {
      call.eps = s.eps;
      if (stores && s.out == v)
        call.normalize_v = true;
      else
        (of_k ? norm_of_k : norm_of_q) = s.weight;
    }
    if (s.kind != Kind::rope) continue;
    const Rope& rope = ops.program_->ropes[static_cast<std::size_t>(s.rope)];
    call.rotary = static_cast<std::int32_t>(rope.rotary);
    call.neox = rope.neox;
    call.cos_sin =
        row_data<float>(ops.pass_rows_.cos_sin[static_cast<std::size_t>(s.rope)]) + window.first * rope.rotary;
  }
  call.rows = row_view();
  call.kv = kv_view(stores ? store.layer : behind(l).layer);
  if (l.out.buffer >= 0) {
    call.q = data(l.out);
    call.heads = static_cast<std::int32_t>(cols(l.out) / call.kv.head_dim);
  }
  if (l.out.buffer < 0 && call.kv.rotation > 0) {  // queries that do not turn are still rotated, as their keys are
    const Step& attends = behind(l);
    call.q = padded(attends.a, attends.attention.heads, attends.layer, 0);
    call.heads = static_cast<std::int32_t>(attends.attention.heads);
  }
  if (stores) {
    call.k = padded(k, call.kv.kv_heads, store.layer, 1);
    call.v = padded(v, call.kv.kv_heads, store.layer, 2);
  }
  call.q_norm = vector(norm_of_q);
  call.k_norm = vector(norm_of_k);
  if (!status.ok()) return;
  check(gpu::rope_store(call, stream), "rope_store");
}

void GpuExecutor::Emitter::emit_heads_norm(const Step& s) {
  overwritten(s.out);
  const std::byte* const* weight = vector(s.weight);
  if (!status.ok()) return;
  if (ops.shape_.whole_rows || s.weight.none())
    return check(
        gpu::norm_heads(data(s.out), weight, static_cast<std::int32_t>(rows(s.out) * (cols(s.out) / s.head_dim)),
                        static_cast<std::int32_t>(s.head_dim), s.eps, stream),
        "norm_heads");
  if (ops.part(s.weight).cols > s.head_dim)  // each head has its own
    return check(
        gpu::rms_norm_groups(data(s.out), weight, rows(s.out), static_cast<std::int32_t>(cols(s.out) / s.head_dim),
                             static_cast<std::int32_t>(s.head_dim), s.eps, stream),
        "rms_norm");
  const auto heads = static_cast<std::int32_t>(rows(s.out) * (cols(s.out) / s.head_dim));
  check(gpu::rms_norm(data(s.out), nullptr, weight, heads, static_cast<std::int32_t>(s.head_dim), s.eps, data(s.out),
                      {}, stream),
        "rms_norm");
}

gpu::GatedNormCall GpuExecutor::Emitter::gated_norm_call(const Launch& l, const Step& norm, const Step& gate) {
  overwritten(norm.out);
  overwritten(gate.out);
  gpu::GatedNormCall call;
  call.x = data(norm.out);
  call.gate = data(gate.out);
  call.weight = vector(norm.weight);
  call.rows = rows(gate.out);
  call.head_dim = static_cast<std::int32_t>(norm.head_dim);
  call.heads = static_cast<std::int32_t>(cols(gate.out) / norm.head_dim);
  call.eps = norm.eps;
  call.activation = gate.activation;
  if (l.leaves.floats) call.out = data(gate.out);
  if (l.leaves.q8) call.out_q8 = make_q8(1, gate.out);
  if (l.leaves.bf16) call.out_bf16 = make_bf16(1, gate.out);
  return call;
}

void GpuExecutor::Emitter::emit_gated_norm(const Launch& l) {
  const gpu::GatedNormCall call = gated_norm_call(l, step(l.end - 2), step(l.end - 1));
  if (status.ok()) check(gpu::gated_norm(call, stream), "gated_norm");
}

/// Maybe the latent's norm; RoPE of the shared key, its store behind the latent, and RoPE of the queries.
void GpuExecutor::Emitter::emit_latent(const Launch& l) {
  const Step &turned = step(l.end - 3), &store = step(l.end - 2), &queries = step(l.end - 1);
  const Rope& rope = ops.program_->ropes[static_cast<std::size_t>(queries.rope)];
  if (!rope.last || turned.rope != queries.rope) return broken("this RoPE beside a latent");
  overwritten(queries.out);
  gpu::LatentStoreCall call;
  call.rows = row_view();
  call.kv = kv_view(store.layer);
  call.q = data(queries.out);
  call.heads = static_cast<std::int32_t>(queries.heads);
  call.q_head = static_cast<std::int32_t>(queries.head_dim);
  call.c = data(store.a);
  if (const Step& norm = step(l.first); norm.kind == Kind::rms_norm) {
    call.c = data(norm.a);
    call.norm = vector(norm.weight);
    call.eps = norm.eps;
  }
  call.key = data(store.b);
  call.cos_sin =
      row_data<float>(ops.pass_rows_.cos_sin[static_cast<std::size_t>(queries.rope)]) + window.first * rope.rotary;
  call.rotary = static_cast<std::int32_t>(rope.rotary);
  call.neox = rope.neox;
  if (status.ok()) check(gpu::store_latent(call, stream), "store_latent");
}

void GpuExecutor::Emitter::emit_head_product(const Step& s) {
  const bool parts = s.head_weights.parts;
  const auto weight_of = [&](std::int64_t head) {
    return WeightRef{s.weight.unit, s.weight.part + static_cast<std::int32_t>(head)};
  };
  overwritten(s.out);
  gpu::HeadProductCall call;
  call.weight = matrix(s.weight);
  for (std::int64_t head = 0; head < (parts ? s.heads : 1); ++head) {
    if (host_rows(weight_of(head)) > 0) return broken("heads' matrices whose rows the processor shares");
    if (head > 0) matrix(weight_of(head));
  }
  if (!status.ok()) return;
  call.x = data(s.a);
  call.out = data(s.out);
  call.rows = rows(s.out);
  call.heads = static_cast<std::int32_t>(s.heads);
  call.n = parts ? call.weight.rows : call.weight.rows / call.heads;
  call.k = static_cast<std::int32_t>(ops.part(s.weight).cols);
  call.x_head = static_cast<std::int32_t>(cols(s.a) / s.heads);
  call.parts = parts;
  call.transposed = s.head_weights.transposed;
  call.prompt = in_bf16_prompt(s.out);
  check(gpu::head_product(call, stream), "head_product");
}

void GpuExecutor::Emitter::emit_latent_attention(const Step& s) {
  overwritten(s.out);
  gpu::LatentAttentionCall call;
  call.rows = row_view();
  call.kv = kv_view(s.layer);
  call.q = data(s.a);
  call.heads = static_cast<std::int32_t>(s.attention.heads);
  call.scale = s.attention.scale;
  call.v_dim = static_cast<std::int32_t>(s.attention.v_dim());
  call.out = data(s.out);
  call.max_position = static_cast<std::int32_t>(ops.position_bound_);
  call.prompt = in_bf16_prompt(s.out);
  if (chooses(s.attention.selected)) {
    call.chosen = reinterpret_cast<const std::int32_t*>(data(s.b));
    call.top_k = static_cast<std::int32_t>(s.attention.selected);
  }
  call.workspace = ops.at(ops.layout_.attention_workspace);
  call.workspace_bytes = ops.layout_.attention_workspace_bytes;
  check(gpu::latent_attention(call, stream), "latent_attention");
}

void GpuExecutor::Emitter::emit_attention(const Launch& l) {
  const Step& s = step(l.first);
  if (s.attention.latent_values > 0) return emit_latent_attention(s);
  overwritten(s.out);
  gpu::AttentionCall call;
  call.rows = row_view();
  call.kv = kv_view(s.layer);
  const bool pads = call.kv.head_dim != s.attention.v_dim() || call.kv.head_dim != s.attention.head_dim;
  // Queries of a rotated cache have been padded and rotated when their keys were stored.
  call.q =
      pads && call.kv.rotation > 0 ? ops.at<float>(ops.layout_.padded[0]) : padded(s.a, s.attention.heads, s.layer, 0);
  call.heads = static_cast<std::int32_t>(s.attention.heads);
  call.scale = s.attention.scale;
  call.window = static_cast<std::int32_t>(s.attention.window);
  call.chunks = s.attention.chunks;
  call.cap = s.attention.cap;
  if (!s.attention.slopes.empty()) call.slopes = ops.at<float>(ops.layout_.slopes);
  if (ops.sees_ahead_ && s.attention.sees_ahead()) {
    const auto sight = std::find_if(ops.sights_.begin(), ops.sights_.end(),
                                    [&](const Attention& one) { return one.sees_as(s.attention); });
    call.seen = row_data<gpu::SeenKeys>(ops.pass_rows_.seen) + (sight - ops.sights_.begin()) * ops.rows_ + window.first;
  }
  call.sinks = vector(s.attention.sinks);
  if (!status.ok()) return;
  call.floats = l.leaves.floats;
  call.out = l.leaves.floats || call.kv.rotation > 0 ? data(s.out) : nullptr;
  if (l.leaves.q8) call.out_q8 = make_q8(1, s.out);
  if (pads) call.out = ops.at<float>(ops.layout_.padded[1]);  // the keys are stored
  call.max_position = static_cast<std::int32_t>(ops.position_bound_);
  if (!ops.few_rows()) {
    call.tiles = row_data<gpu::RowTile>(ops.pass_rows_.tiles) + window.first_tile;
    call.tile_count = static_cast<std::int32_t>(window.tiles);
  }
  call.workspace = ops.at(ops.layout_.attention_workspace);
  check(gpu::attention(call, stream), "attention");
  if (!pads) return;
  gpu::PickCall own;
  own.x = call.out;
  own.cols = std::int64_t{call.heads} * call.kv.head_dim;
  own.rows = rows(s.out);
  own.heads = call.heads;
  own.head_dim = static_cast<std::int32_t>(s.attention.v_dim());
  own.out[0] = data(s.out);
  check(gpu::pick_heads(own, stream), "pick");
}

void GpuExecutor::Emitter::emit_whole() {
  if (!ops.windows_.empty()) window = ops.windows_.front();
  for (std::size_t block = 0; block < ops.program_->blocks.size(); ++block) emit_block(block);
}

void GpuExecutor::Emitter::emit_in_windows() {
  // Rows that want logits are few, and lie in all windows; a program without any has no such block.
  const std::size_t blocks = ops.program_->blocks.size() + (ops.shape_.whole_rows ? 1 : 0);
  for (std::size_t block = 0; block + 1 < blocks; ++block) {
    for (const Window& part : ops.windows_) {
      window = part;
      last = &part == &ops.windows_.back();
      for (Form& form : forms) form = {};
      emit_block(block);
    }
  }
  window = {0, ops.rows_, 0, 0};
  if (blocks > 0 && !ops.shape_.whole_rows) emit_block(blocks - 1);
}

void GpuExecutor::Emitter::emit_block(std::size_t block) {
  for (const Launch& launch : ops.launches(window.prompt)[block]) {
    if (status.ok() && ops.cancelled_ && !ops.few_rows() && ops.cancelled_())
      status = error(Code::cancelled, "stopped");
    if (!status.ok()) return;
    emit(launch);
    if (last && status.ok() && !ops.options_.aside) status = ops.weights_.let_go(stream);
  }
}

/// Columns [first, first + out's cols) of the states of the window's rows that are a picture's, into these rows of out.
void GpuExecutor::Emitter::bring_pictures(Act out, std::int64_t first) {
  const bool together = cols(out) == ops.picture_cols_;  // else other layers' columns lie between
  for_pictures([&](std::int64_t row, std::int64_t count, const float* states) {
    for (std::int64_t r = 0; r < count; r += together ? count : 1)
      check(
          device::copy_to_device(data(out) + (row + r) * cols(out), states + r * ops.picture_cols_ + first,
                                 static_cast<std::size_t>((together ? count : 1) * cols(out)) * sizeof(float), stream),
          "a picture's rows");
  });
}

void GpuExecutor::Emitter::add_pictures(const Step& s) {
  const Act scratch = s.products[0].out;
  bring_pictures(scratch, s.first);
  for_pictures([&](std::int64_t row, std::int64_t count, const float* /*states*/) {
    const std::int64_t at = row * cols(s.out);
    check(gpu::add(data(s.out) + at, data(scratch) + at, count * cols(s.out), stream), "add");
  });
}

/// use(row of the window, rows, their states) of each run of a picture's rows in the window.
template <typename Use>
void GpuExecutor::Emitter::for_pictures(const Use& use) {
  const std::int64_t begin = window.first, end = window.first + window.rows;
  for (const PictureRun& run : ops.pictures_) {
    const std::int64_t from = std::max(begin, run.first), to = std::min(end, run.first + run.rows);
    if (from < to && status.ok()) use(from - begin, to - from, run.states + (from - run.first) * ops.picture_cols_);
  }
}

void GpuExecutor::Emitter::emit(const Launch& launch) {
  using Kind = Launch::Kind;
  const Step& s = step(launch.first);
  const device::ProfilerRange range(name(launch.kind).data());
  switch (launch.kind) {
    case Kind::embed:
      overwritten(s.out);
      check(gpu::embed(matrix(s.weight), s.row_of == RowOf::token ? row_view().token : row_view().position, rows(s.out),
                       static_cast<std::int32_t>(cols(s.out)), data(s.out), stream),
            "embed");
      if (s.factor != 1) check(gpu::scale(data(s.out), s.factor, rows(s.out) * cols(s.out), stream), "scale");
      if (s.by_picture) bring_pictures(s.out, 0);
      weight_bytes = 0;  // rows of a table, not the table
      break;
    case Kind::norm:
      if (rows(s.out) > 0) emit_norm(launch, s.a, nullptr);
      break;
    case Kind::temper:
      overwritten(s.out);
      check(
          gpu::temper(data(s.out), row_view().position, s.temperature.scale,
                      static_cast<std::int32_t>(s.temperature.period), static_cast<std::int32_t>(s.temperature.offset),
                      rows(s.out), static_cast<std::int32_t>(cols(s.out)), stream),
          "temper");
      break;
    case Kind::heads:
      emit_heads(launch);
      break;
    case Kind::heads_norm:
      emit_heads_norm(s);
      break;
    case Kind::gated_norm:
      emit_gated_norm(launch);
      break;
    case Kind::latent:
      emit_latent(launch);
      break;
    case Kind::index:
      emit_index(launch);
      break;
    case Kind::choose_keys:
      emit_choice(launch);
      break;
    case Kind::head_product:
      emit_head_product(s);
      break;
    case Kind::gate:
      overwritten(s.out);
      check(gpu::gate_rows(s.activation, s.limit, data(s.out), data(s.b) + s.layer * cols(s.out), cols(s.b),
                           rows(s.out), static_cast<std::int32_t>(cols(s.out)), stream),
            "gate");
      break;
    case Kind::add:
      overwritten(s.out);
      check(s.factor == 1 ? gpu::add(data(s.a), data(s.b), rows(s.a) * cols(s.a), stream)
                          : gpu::add_scaled(data(s.a), data(s.b), s.factor, rows(s.a) * cols(s.a), stream),
            "add");
      break;
    case Kind::scale:
      overwritten(s.out);
      if (s.weight.none())
        check(gpu::scale(data(s.out), s.factor, rows(s.out) * cols(s.out), stream), "scale");
      else if (const std::byte* const* scalar = vector(s.weight), * const* bias = vector(s.weight2); status.ok())
        check(gpu::scale_by(data(s.out), scalar, bias, rows(s.out), static_cast<std::int32_t>(cols(s.out)), stream),
              "scale");
      break;
    case Kind::copy:
      overwritten(s.out);
      check(device::copy_on_device(data(s.out), data(s.a),
                                   static_cast<std::size_t>(rows(s.a) * cols(s.a)) * sizeof(float), stream),
            "copy");
      break;
    case Kind::product:
      emit_product(launch);
      break;
    case Kind::gated:
    case Kind::gate_and_up:
      emit_gated(launch);
      break;
    case Kind::activate:
    case Kind::pick_heads:
    case Kind::multiply:
    case Kind::largest:
    case Kind::sigmoid_gate:
    case Kind::l2_norm:
    case Kind::time_step:
    case Kind::convolve:
    case Kind::delta_rule:
    case Kind::delta_net:
    case Kind::scan:
      emit_rows(launch);
      break;
    case Kind::attention:
      emit_attention(launch);
      break;
    case Kind::experts:
      emit_moe(launch);
      break;
    case Kind::select_rows:
    case Kind::select_norm:
      emit_select(launch);
      break;
    case Kind::logits:
      emit_logits(s);
      break;
    case Kind::hidden:
      break;
    case Kind::given:
      overwritten(s.out);
      check(device::copy_to_device(data(s.out), ops.given_row(window.first),
                                   static_cast<std::size_t>(rows(s.out) * cols(s.out)) * sizeof(float), stream),
            "given");
      break;
    case Kind::gather:
      emit_gather(launch);
      break;
    case Kind::layer_norm:
    case Kind::turn:
    case Kind::merge_rows:
    case Kind::mean_rows:
    case Kind::clamp:
    case Kind::standardize:
    case Kind::join:
      emit_whole_rows(launch);
      break;
    case Kind::add_picture:
      if (ops.pictures_.empty()) break;  // nothing is overwritten
      overwritten(s.out);
      overwritten(s.products[0].out);
      add_pictures(s);
      break;
  }
}

Status GpuExecutor::emit() {
  Emitter emitter{*this, stream_};
  if (windows_.size() > 1)
    emitter.emit_in_windows();
  else
    emitter.emit_whole();
  if (emitter.status.ok() && split()) emitter.status = share_->finish();
  if (emitter.status.ok() && shares_experts() && leads_experts()) emitter.status = expert_share_->finish();
  if (emitter.status.ok() && !options_.aside) emitter.status = weights_.end_pass(stream_);
  if (!few_rows() || !options_.graphs) device::count_kernels(emitter.launches);
  pass_weight_bytes_ = emitter.weight_bytes;
  return emitter.status;
}

}  // namespace millrace::exec
