// Steps become launches. Neighbours are fused where the launch that does both gives the same bits as one after the
// other: which results a later step reads, and in which form, is looked up in the recorded list, never guessed.
#include <algorithm>

#include "base/bytes.h"
#include "exec/cuda_ops_impl.h"

namespace millrace::exec {
namespace {

namespace cuda = kernels::cuda;

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

constexpr std::int64_t kMatvecEntries = 64;  // experts of so many entries are read one by one

}  // namespace

/// Walks the recorded steps once and puts their launches on the stream.
struct CudaOps::Emitter {
  using Kind = Step::Kind;

  CudaOps& ops;
  cudaStream_t stream;
  Window window = {};    // the rows that are worked
  bool last = true;      // no window comes behind it in this block
  std::size_t next = 0;  // the step being emitted
  Status status = {};
  std::uint64_t launches = 0, weight_bytes = 0;
  /// What lies in layout.inputs[i]: the int8 or bfloat16 form of a buffer's rows.
  struct Form {
    Act of;
    bool bf16 = false;
    std::int64_t rows = 0;  // for how many it is laid out
  };
  Form forms[2] = {};

  const Step& step(std::size_t i) const { return ops.steps_[i]; }
  std::size_t count() const { return ops.step_count_; }

  void check(cudaError_t code, const char* what) {
    ++launches;
    if (code != cudaSuccess && status.ok()) status = device::cuda_status(code, what);
    if (status.ok()) status = ops.mark("kernel", what);
  }
  void broken(const char* what) {
    if (status.ok()) status = error(Code::internal, "the CUDA executor cannot do this step: {}", what);
  }

  // --- Where things lie ---

  std::int64_t cols(Act act) const { return ops.shape_.buffers[static_cast<std::size_t>(act.buffer)].cols; }
  std::int32_t rows(Act act) const {
    const bool few = ops.shape_.buffers[static_cast<std::size_t>(act.buffer)].logit_rows_only;
    return static_cast<std::int32_t>(few ? ops.logit_rows_ : window.rows);
  }
  float* data(Act act) const {
    const auto buffer = static_cast<std::size_t>(act.buffer);
    float* const first = ops.at<float>(ops.layout_.buffers[buffer]);
    return ops.shape_.buffers[buffer].whole_pass ? first + window.first * ops.shape_.buffers[buffer].cols : first;
  }
  template <typename T>
  const T* row_data(std::uint64_t offset) const {
    return ops.at<T>(ops.layout_.rows + offset);
  }
  cuda::RowView row_view() const {
    return {static_cast<std::int32_t>(window.rows), row_data<std::int32_t>(ops.pass_rows_.token) + window.first,
            row_data<std::int32_t>(ops.pass_rows_.sequence) + window.first,
            row_data<std::int32_t>(ops.pass_rows_.position) + window.first};
  }
  /// Before a launch that reads a weight: it may have to come first. Where it does not come, nothing that reads it is
  /// launched: its entry may hold no address yet.
  void need(WeightRef ref) {
    if (status.ok()) status = ops.weights_.acquire(ref, stream);
  }
  cuda::Matrix matrix(WeightRef ref) {
    need(ref);
    const residency::Part& part = ops.part(ref);
    if (last) weight_bytes += part.bytes();
    const std::int64_t rows = ops.split() ? ops.weights_.device_rows(ref) : part.rows;
    return {ops.weights_.entry(ref), part.dtype, static_cast<std::int32_t>(rows)};
  }
  /// Rows of the matrix that the processor computes in this pass.
  std::int64_t host_rows(WeightRef ref) const {
    return ops.split() ? ops.part(ref).rows - ops.weights_.device_rows(ref) : 0;
  }
  const std::byte* const* vector(WeightRef ref) {
    if (ref.none()) return nullptr;
    need(ref);
    return ops.weights_.entry(ref);
  }
  cuda::KvView kv_view(std::int64_t layer) const {
    const kv::KvShape& shape = ops.batch_->sequences.front()->shape();
    const std::int64_t head_bytes = shape.block_bytes() / (2 * shape.layers * shape.kv_heads);
    const std::int64_t first = 2 * layer * shape.kv_heads * head_bytes;
    return {reinterpret_cast<const std::byte* const*>(ops.at(ops.layout_.rows + ops.pass_rows_.blocks)),
            static_cast<std::int32_t>(max_blocks(ops.shape_)),
            first,
            first + shape.kv_heads * head_bytes,
            head_bytes,
            shape.dtype,
            static_cast<std::int32_t>(shape.kv_heads),
            static_cast<std::int32_t>(shape.head_dim)};
  }

  // --- The forms of activations that products with quantized weights take ---

  /// Whether products with `x` are those of prompts. Rows that want logits are few, and never are.
  bool in_prompt(Act x) const {
    return window.prompt && !ops.shape_.buffers[static_cast<std::size_t>(x.buffer)].logit_rows_only;
  }

  cuda::Q8 q8_memory(int slot, std::int64_t rows, std::int64_t cols) const {
    return cuda::q8_at(ops.at(ops.layout_.inputs[slot]), rows, cols);
  }
  /// Memory for the int8 form of `act`, which a launch is about to fill.
  cuda::Q8 make_q8(int slot, Act act) {
    forms[slot] = {act, false, rows(act)};
    return q8_memory(slot, rows(act), cols(act));
  }
  cuda::Bf16* make_bf16(int slot, Act act) {
    forms[slot] = {act, true, rows(act)};
    return ops.at<cuda::Bf16>(ops.layout_.inputs[slot]);
  }
  void overwritten(Act act) {
    for (Form& form : forms)
      if (form.of.buffer == act.buffer) form = {};
  }
  /// The slot that holds this form of `act`; -1: none does.
  int slot_of(Act act, bool bf16) const {
    for (int slot = 0; slot < 2; ++slot)
      if (forms[slot].of.buffer == act.buffer && forms[slot].bf16 == bf16) return slot;
    return -1;
  }
  /// One that does not hold the form of `x` that a product reads.
  int slot_beside(Act x, bool bf16) const { return slot_of(x, bf16) == 0 ? 1 : 0; }
  /// The int8 form of `act`, made now if no launch has left it behind.
  cuda::Q8 q8(Act act) {
    if (const int slot = slot_of(act, false); slot >= 0) return q8_memory(slot, forms[slot].rows, cols(act));
    const cuda::Q8 made = make_q8(1, act);
    check(cuda::quantize_q8(data(act), cols(act), rows(act), static_cast<std::int32_t>(cols(act)), made, stream),
          "quantize_q8");
    return made;
  }

  /// Its bfloat16 form, likewise.
  const cuda::Bf16* bf16(Act act) {
    if (const int slot = slot_of(act, true); slot >= 0) return ops.at<cuda::Bf16>(ops.layout_.inputs[slot]);
    cuda::Bf16* const made = make_bf16(1, act);
    check(cuda::to_bf16(data(act), rows(act) * cols(act), made, stream), "to_bf16");
    return made;
  }

  // --- What later steps want ---

  /// bf16: made from floats where the launch that writes them cannot.
  struct Wanted {
    bool floats = false, q8 = false, bf16 = false;
  };
  void want(Wanted& wanted, WeightRef weight, bool prompt) const {
    (is_float(ops.part(weight).dtype) ? wanted.floats : prompt ? wanted.bf16 : wanted.q8) = true;
    if (host_rows(weight) > 0) wanted.floats = true;  // to be handed out
  }

  /// In which forms the steps behind `from` read `act`, until it is written again.
  Wanted wanted(Act act, std::size_t from) const {
    Wanted wanted;
    for (std::size_t i = from + 1; i < count(); ++i) {
      const Step& s = step(i);
      if (s.reads(act)) {
        switch (s.kind) {
          case Kind::matmul:
            for (int p = 0; p < s.product_count; ++p)
              want(wanted, s.products[static_cast<std::size_t>(p)].weight, in_prompt(act));
            break;
          case Kind::swiglu:
            want(wanted, s.weight, in_prompt(act));
            want(wanted, s.weight2, in_prompt(act));
            break;
          case Kind::logits:
            want(wanted, s.weight, false);
            break;
          case Kind::moe:
            want(wanted, s.weight, false);
            want(wanted, {s.experts.first_unit, s.experts.gate_part}, false);
            want(wanted, {s.experts.first_unit, s.experts.up_part}, false);
            break;
          default:
            wanted.floats = true;
        }
      }
      if (s.writes(act)) return wanted;
    }
    return wanted;
  }
  bool read_later(Act act, std::size_t from) const {
    const Wanted later = wanted(act, from);
    return later.floats || later.q8 || later.bf16;
  }

  /// True if the step behind `next` adds `out` to the residual stream and nothing else ever reads `out`.
  bool residual_follows(Act out) const {
    if (!ops.options_.fuse || next + 1 >= count()) return false;
    const Step& add = step(next + 1);
    return add.kind == Kind::add && add.b.buffer == out.buffer && add.a.buffer != out.buffer &&
           !read_later(out, next + 1);
  }

  // --- Products ---

  void launch(cuda::MatmulCall& call) {
    if (!status.ok()) return;
    if (call.x_bf16 != nullptr) return check(cuda::matmul_prompt(call, stream), "matmul, prompt");
    const bool few = call.x_rows <= cuda::kMatvecRows;
    check(few ? cuda::matvec(call, stream) : cuda::matmul(call, stream), few ? "matvec" : "matmul");
  }

  cuda::MatmulCall call_for(Act x, bool floats, bool prompt) {
    cuda::MatmulCall call;
    call.cols = static_cast<std::int32_t>(cols(x));
    call.x_rows = rows(x);
    if (floats) {
      call.x = data(x);
      call.x_stride = cols(x);
    } else if (prompt) {
      call.x_bf16 = bf16(x);
    } else {
      call.x_q8 = q8(x);
    }
    return call;
  }

  /// What the processor computes of a step, in the making.
  struct Shared {
    HostShare::Job job;
    cuda::TakeInCall call;
    std::int64_t outputs = 0;
  };

  /// The processor's rows of a product into `to`. swiglu: `up` is the up matrix.
  void share_rows(Shared& shared, WeightRef weight, WeightRef up, WeightRef bias, Act to) {
    const std::int64_t rows = host_rows(weight), first = ops.part(weight).rows - rows;
    if (rows == 0) return;
    const auto from_row = [&](WeightRef ref) {
      const residency::Part& part = ops.part(ref);
      return ops.weights_.in_ram(ref) + first * row_bytes(part.dtype, part.cols);
    };
    HostShare::Matrix& matrix = shared.job.matrices[static_cast<std::size_t>(shared.job.count++)];
    matrix.weight = from_row(weight);
    matrix.dtype = ops.part(weight).dtype;
    if (!up.none()) {
      matrix.up = from_row(up);
      matrix.up_dtype = ops.part(up).dtype;
    }
    if (!bias.none()) matrix.bias = reinterpret_cast<const float*>(ops.weights_.in_ram(bias)) + first;
    matrix.rows = rows;
    matrix.first_output = shared.outputs;
    shared.call.parts[shared.call.count++] = {ops.share_->device_output() + shared.outputs, data(to) + first, cols(to),
                                              static_cast<std::int32_t>(rows)};
    shared.outputs += window.rows * rows;
  }

  /// Before the GPU's launches of the step, also before its weights have come: the input goes to the processor.
  void hand_out(Shared& shared, Act x) {
    if (shared.job.count == 0) return;
    shared.job.number = ops.share_->next_number();
    shared.job.rows = rows(x);
    shared.job.cols = cols(x);
    check(cuda::hand_out(data(x), window.rows * cols(x), ops.share_->device_input(), ops.share_->device_input_flag(),
                         shared.job.number, ops.share_->arrived(), stream),
          "hand out");
  }
  /// Behind them. The processor begins here at the earliest: all weights of the step have been acquired, so they lie in
  /// RAM.
  void take_in(Shared& shared, bool add) {
    if (shared.job.count == 0 || !status.ok()) return;
    shared.call.rows = static_cast<std::int32_t>(window.rows);
    shared.call.add = add;
    shared.call.flag = ops.share_->device_output_flag();
    shared.call.number = shared.job.number;
    shared.call.seen = ops.share_->seen();
    check(cuda::take_in(shared.call, stream), "take in");
    if (status.ok()) ops.share_->add(shared.job, stream);
  }

  void emit_matmul(const Step& s) {
    Act target = s.products[0].out;
    cuda::Effect effect = cuda::Effect::store;
    const bool residual = s.product_count == 1 && residual_follows(target);
    if (residual) {
      effect = cuda::Effect::add;
      target = step(next + 1).a;
    }
    Shared shared;
    for (int i = 0; i < s.product_count; ++i) {
      const Product& product = s.products[static_cast<std::size_t>(i)];
      share_rows(shared, product.weight, {}, product.bias, residual ? target : product.out);
    }
    hand_out(shared, s.a);
    // Products of one dtype share a launch.
    bool done[3] = {};
    for (int first = 0; first < s.product_count; ++first) {
      if (done[first]) continue;
      const DType dtype = ops.part(s.products[static_cast<std::size_t>(first)].weight).dtype;
      cuda::MatmulCall call = call_for(s.a, is_float(dtype), in_prompt(s.a));
      call.effect = effect;
      for (int i = first; i < s.product_count; ++i) {
        const Product& product = s.products[static_cast<std::size_t>(i)];
        if (done[i] || ops.part(product.weight).dtype != dtype) continue;
        done[i] = true;
        const Act out = residual ? target : product.out;
        call.products[call.count++] = {matrix(product.weight), vector(product.bias), data(out), cols(out)};
        overwritten(out);
      }
      launch(call);
    }
    take_in(shared, residual);
    if (residual) ++next;
  }

  void emit_swiglu(const Step& s) {
    Shared shared;
    share_rows(shared, s.weight, s.weight2, {}, s.out);
    hand_out(shared, s.a);
    launch_swiglu(s, shared.job.count > 0);
    take_in(shared, false);
  }

  /// shared: some columns come from the processor, so that nothing can be made of the whole rows yet.
  void launch_swiglu(const Step& s, bool shared) {
    const DType gate = ops.part(s.weight).dtype, up = ops.part(s.weight2).dtype;
    const Wanted later = wanted(s.out, next);
    const auto out_cols = cols(s.out);
    overwritten(s.out);
    if (gate == up && ops.options_.fuse) {
      cuda::MatmulCall call = call_for(s.a, is_float(gate), in_prompt(s.a));
      call.effect = cuda::Effect::swiglu;
      call.count = 2;
      const bool writes_bf16 = later.bf16 && call.x_bf16 != nullptr;
      const bool floats =
          later.floats || shared || (later.bf16 && !writes_bf16) || (later.q8 && call.x_bf16 != nullptr);
      call.products[0] = {matrix(s.weight), nullptr, floats ? data(s.out) : nullptr, out_cols};
      call.products[1] = {matrix(s.weight2), nullptr, nullptr, out_cols};
      // The input's form lies in slot 0 or 1; the result's goes into the other.
      if (writes_bf16)
        call.y_bf16 = make_bf16(slot_beside(s.a, true), s.out);
      else if (later.q8 && !shared && call.x_bf16 == nullptr)
        call.y_q8 = make_q8(slot_beside(s.a, false), s.out);
      launch(call);
      return;
    }
    const std::uint64_t up_bytes = static_cast<std::uint64_t>(work_rows(ops.shape_) * out_cols) * sizeof(float);
    if (ops.up_scratch_.bytes() < up_bytes) {
      broken("gate and up of different dtypes were not prepared for");
      return;
    }
    auto* const up_out = reinterpret_cast<float*>(ops.up_scratch_.data());
    for (const bool second : {false, true}) {
      cuda::MatmulCall call = call_for(s.a, is_float(second ? up : gate), in_prompt(s.a));
      call.count = 1;
      call.products[0] = {matrix(second ? s.weight2 : s.weight), nullptr, second ? up_out : data(s.out), out_cols};
      launch(call);
    }
    check(cuda::silu_mul(data(s.out), up_out, window.rows * out_cols, stream), "silu_mul");
  }

  // --- Rows ---

  void emit_norm(const Step& s, Act x, const std::int32_t* x_index) {
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

  void emit_select(const Step& s) {
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

  /// Heads' norms and RoPE up to the KV store, whatever their order: queries and keys go through them in one launch.
  void emit_rope_store() {
    cuda::RopeStoreCall call;
    Act q, k;
    WeightRef norm_of_q, norm_of_k;
    std::size_t i = next;
    for (; i < count() && step(i).kind != Kind::store_kv; ++i) {
      const Step& s = step(i);
      if (s.kind != Kind::rope && s.kind != Kind::rms_norm_heads)
        return broken("something between RoPE and the KV store");
    }
    if (i == count()) return broken("RoPE without a KV store");
    const Step& store = step(i);
    k = store.a;
    for (std::size_t j = next; j < i; ++j) {
      const Step& s = step(j);
      const bool of_k = s.out.buffer == k.buffer;
      if (s.kind == Kind::rms_norm_heads) {
        (of_k ? norm_of_k : norm_of_q) = s.weight;
        call.eps = s.eps;
        continue;
      }
      if (!of_k) {
        q = s.out;
        call.heads = static_cast<std::int32_t>(s.heads);
      }
      call.rotary = static_cast<std::int32_t>(s.rope.rotary);
      call.neox = s.rope.neox;
    }
    if (q.buffer < 0) return broken("keys without queries");
    call.rows = row_view();
    call.kv = kv_view(store.layer);
    call.q = data(q);
    call.k = data(k);
    call.v = data(store.b);
    call.q_norm = vector(norm_of_q);
    call.k_norm = vector(norm_of_k);
    call.cos_sin = row_data<float>(ops.pass_rows_.cos_sin) + window.first * call.rotary;
    if (!status.ok()) return;
    check(cuda::rope_store(call, stream), "rope_store");
    next = i;
  }

  void emit_attention(const Step& s) {
    const Wanted later = wanted(s.out, next);
    overwritten(s.out);
    cuda::AttentionCall call;
    call.rows = row_view();
    call.kv = kv_view(s.layer);
    call.q = data(s.a);
    call.heads = static_cast<std::int32_t>(s.attention.heads);
    call.scale = s.attention.scale;
    call.window = static_cast<std::int32_t>(s.attention.window);
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

  // --- Mixtures ---

  cuda::ExpertCall expert_call(const Experts& experts, int part_index) {
    const WeightRef ref{experts.first_unit, part_index};
    const residency::Part& part = ops.part(ref);
    const auto& parts = ops.units_.units()[static_cast<std::size_t>(experts.first_unit)].parts;
    cuda::ExpertCall call;
    call.weight = ops.weights_.entry(ref);
    call.address_stride = static_cast<std::int32_t>(parts.size());
    call.dtype = part.dtype;
    call.rows = static_cast<std::int32_t>(part.rows);
    call.cols = static_cast<std::int32_t>(part.cols);
    call.entries = static_cast<std::int32_t>(window.rows * experts.top_k);
    call.experts = experts.count;
    call.chosen = ops.at<std::int32_t>(ops.layout_.chosen);
    call.sorted = ops.at<std::int32_t>(ops.layout_.sorted);
    call.expert_first = ops.at<std::int32_t>(ops.layout_.expert_first);
    weight_bytes += part.bytes() * static_cast<std::uint64_t>(std::min<std::int64_t>(call.entries, experts.count));
    return call;
  }

  void launch(const cuda::ExpertCall& call) {
    if (!status.ok()) return;
    const bool few = call.entries <= kMatvecEntries;
    check(few ? cuda::matvec_experts(call, stream) : cuda::matmul_experts(call, stream),
          few ? "matvec_experts" : "matmul_experts");
  }

  void emit_moe(const Step& s) {
    const Experts& experts = s.experts;
    const auto rows = static_cast<std::int32_t>(window.rows);
    auto* chosen = ops.at<std::int32_t>(ops.layout_.chosen);
    auto* weights = ops.at<float>(ops.layout_.weights);
    auto* scores = ops.at<float>(ops.layout_.scores);
    const std::int64_t entries = window.rows * experts.top_k;

    cuda::MatmulCall router = call_for(s.a, is_float(ops.part(s.weight).dtype), false);
    router.count = 1;
    router.products[0] = {matrix(s.weight), nullptr, scores, experts.count};
    launch(router);
    check(cuda::route(scores, rows, experts.count, experts.top_k, experts.normalize, experts.scale, chosen, weights,
                      stream),
          "route");
    if (entries > kMatvecEntries) {
      check(cuda::sort_entries(chosen, static_cast<std::int32_t>(entries), experts.count,
                               ops.at<std::int32_t>(ops.layout_.sorted), ops.at<std::int32_t>(ops.layout_.expert_first),
                               stream),
            "sort_entries");
    }

    cuda::ExpertCall hidden = expert_call(experts, experts.gate_part);
    const residency::Part& up = ops.part({experts.first_unit, experts.up_part});
    const residency::Part& down_part = ops.part({experts.first_unit, experts.down_part});
    hidden.effect = cuda::Effect::swiglu;
    hidden.up = ops.weights_.entry({experts.first_unit, experts.up_part});
    hidden.up_dtype = up.dtype;
    weight_bytes += up.bytes() * static_cast<std::uint64_t>(std::min<std::int64_t>(entries, experts.count));
    hidden.entries_per_x = experts.top_k;
    if (is_float(hidden.dtype) != is_float(up.dtype)) return broken("experts whose gate and up differ in kind");
    if (is_float(hidden.dtype)) {
      hidden.x = data(s.a);
    } else {
      hidden.x_q8 = q8(s.a);
    }
    cuda::ExpertCall down = expert_call(experts, experts.down_part);
    if (is_float(down_part.dtype)) {
      hidden.y = ops.at<float>(ops.layout_.hidden);
      down.x = hidden.y;
    } else {
      hidden.y_q8 = cuda::q8_at(ops.at(ops.layout_.hidden), entries, hidden.rows);
      down.x_q8 = hidden.y_q8;
    }
    launch(hidden);
    down.y = ops.at<float>(ops.layout_.expert_out);
    launch(down);

    const bool residual = residual_follows(s.out);
    const Act target = residual ? step(next + 1).a : s.out;
    overwritten(target);
    check(cuda::combine_experts(down.y, weights, rows, experts.top_k, static_cast<std::int32_t>(cols(target)), residual,
                                data(target), stream),
          "combine_experts");
    if (residual) ++next;
  }

  // --- The head ---

  void emit_logits(const Step& s) {
    if (ops.logit_rows_ == 0) return;
    auto* out = ops.at<float>(ops.layout_.logits);
    cuda::MatmulCall call = call_for(s.a, is_float(ops.part(s.weight).dtype), false);
    call.count = 1;
    call.products[0] = {matrix(s.weight), nullptr, out, ops.shape_.vocab};
    launch(call);
    if (!ops.top_only_) return;
    check(cuda::candidates(out, static_cast<std::int32_t>(ops.logit_rows_), static_cast<std::int32_t>(ops.shape_.vocab),
                           ops.at<cuda::Candidates>(ops.layout_.candidates), ops.at(ops.layout_.sample_workspace),
                           stream),
          "candidates");
  }

  static const char* name(Kind kind) {
    static constexpr const char* names[] = {"embed",  "norm",     "heads' norm", "add",       "matmul",
                                            "swiglu", "rope, kv", "store kv",    "attention", "moe",
                                            "rows",   "logits",   "states"};
    return names[static_cast<std::size_t>(kind)];
  }

  bool whole(Act act) const {
    return act.buffer >= 0 && ops.shape_.buffers[static_cast<std::size_t>(act.buffer)].whole_pass;
  }

  /// Whether the steps from `from` on need nothing of those before but the residual stream.
  bool begins_anew(std::size_t from) const {
    for (std::size_t b = 0; b < ops.shape_.buffers.size(); ++b) {
      const Act act{static_cast<std::int32_t>(b)};
      if (whole(act) || ops.shape_.buffers[b].logit_rows_only) continue;
      for (std::size_t i = from; i < count(); ++i) {
        if (step(i).reads(act)) return false;
        if (step(i).writes(act)) break;
      }
    }
    return true;
  }

  /// Where the steps end that a window goes through before the next one comes: the attention block of a layer, its
  /// feed-forward, so that the ring fills with the one while all windows go through the other. From the selection of
  /// rows on all steps are of few rows or of the whole pass, and belong together.
  std::size_t block_end(std::size_t from) const {
    if (step(from).kind == Kind::select_rows) return count();
    for (std::size_t i = from + 1; i < count(); ++i) {
      if (step(i).kind == Kind::select_rows) return i;
      if (step(i).kind == Kind::rms_norm && whole(step(i).a) && begins_anew(i)) return i;
    }
    return count();
  }

  /// All steps, the pass as one window.
  void emit_whole() {
    if (!ops.windows_.empty()) window = ops.windows_.front();
    emit_until(count());
  }

  /// Block by block, and the windows one after the other for each: its weights come once, and the activations of one
  /// window are all that is kept beside the residual stream.
  void emit_in_windows() {
    while (next < count() && status.ok()) {
      const std::size_t first = next, end = block_end(first);
      if (step(first).kind == Kind::select_rows) {
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

  void emit_until(std::size_t end) {
    for (; next < end && status.ok(); ++next) {
      if (ops.cancelled_ && !ops.few_rows() && ops.cancelled_()) {
        status = error(Code::cancelled, "stopped");
        return;
      }
      emit_step();
      if (last && status.ok()) status = ops.weights_.let_go(stream);
    }
  }

  void emit_step() {
    const Step& s = step(next);
    const device::ProfilerRange range(name(s.kind));
    switch (s.kind) {
      case Kind::embed:
        overwritten(s.out);
        check(cuda::embed(matrix(s.weight), row_view().token, rows(s.out), static_cast<std::int32_t>(cols(s.out)),
                          data(s.out), stream),
              "embed");
        weight_bytes = 0;  // rows of a table, not the table
        break;
      case Kind::rms_norm:
        if (rows(s.out) > 0) emit_norm(s, s.a, nullptr);
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
        check(cuda::add(data(s.a), data(s.b), rows(s.a) * cols(s.a), stream), "add");
        break;
      case Kind::matmul:
        emit_matmul(s);
        break;
      case Kind::swiglu:
        emit_swiglu(s);
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
};

Status CudaOps::emit() {
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
