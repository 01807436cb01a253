// How a pass becomes launches on a stream: the walk over the list that exec/fusion.h made of its steps. steps.cpp
// holds the walk, rows and attention, products.cpp the products, mixtures.cpp mixtures, states.cpp
// layers with a state.
#pragma once

#include "base/bytes.h"
#include "exec/gpu/executor_impl.h"
#include "kernels/gpu/delta_chunks.h"
#include "kernels/gpu/delta_step.h"
#include "kernels/gpu/draw.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/heads.h"
#include "kernels/gpu/indexer.h"
#include "kernels/gpu/latent.h"
#include "kernels/gpu/low_rank.h"
#include "kernels/gpu/prompt_int8.h"
#include "kernels/gpu/recurrent.h"
#include "kernels/gpu/whole_rows.h"

namespace millrace::exec {

namespace gpu = kernels::gpu;

/// Walks the launches of a pass once and puts them on the stream. What the list says of steps, this does to memory: it
/// waits for weights, keeps the forms of activations, and has the processor's part handed over.
struct GpuExecutor::Emitter {
  using Kind = Step::Kind;

  GpuExecutor& ops;
  device::StreamRef stream;
  Window window = {};  // the rows that are worked
  bool last = true;    // no window comes behind it in this block
  Status status = {};
  std::uint64_t launches = 0, weight_bytes = 0;
  /// What lies in layout.inputs[i]: the int8 or bfloat16 form of a buffer's rows.
  struct Form {
    Act of;
    bool bf16 = false;
    std::int64_t rows = 0;  // for how many it is laid out
  };
  Form forms[kInputs] = {};
  Form rounded = {};        // what lies in layout.rounded
  gpu::HalfRows half = {};  // the input of the next product, where that is matmul_half()
  // Of the latest launch of an adapter before a product: MatmulCall::ready, and how many launches there were with it.
  const std::int32_t* told = nullptr;
  std::uint64_t told_at = 0;
  std::size_t fronts = 0;  // such launches

  const Step& step(std::size_t i) const { return ops.program_->steps[i]; }
  /// What comes behind the last of a launch's steps.
  const Step& behind(const Launch& launch) const { return step(launch.end); }

  void check(Status launched, const char* what) {
    ++launches;
    if (!launched.ok() && status.ok()) status = std::move(launched);
    if (status.ok()) status = ops.mark("kernel", what);
  }
  void broken(const char* what) {
    if (status.ok()) status = error(Code::internal, "the GPU's executor cannot do this step: {}", what);
  }

  // --- Where things lie ---

  const Buffer& buffer(Act act) const { return ops.program_->buffer(act); }
  std::int64_t cols(Act act) const { return buffer(act).cols; }
  std::int32_t rows(Act act) const {
    const Rows of = buffer(act).rows;
    return static_cast<std::int32_t>(of == Rows::logits   ? ops.logit_rows_
                                     : of == Rows::merged ? window.rows / ops.shape_.merge
                                                          : window.rows);
  }
  float* data(Act act) const {
    float* const first = ops.at<float>(ops.layout_.buffers[static_cast<std::size_t>(act.buffer)]);
    const Rows of = buffer(act).rows;
    return of == Rows::whole    ? first + window.first * cols(act)
           : of == Rows::merged ? first + window.first / ops.shape_.merge * cols(act)
                                : first;
  }
  template <typename T>
  const T* row_data(std::uint64_t offset) const {
    return ops.at<T>(ops.layout_.rows + offset);
  }
  gpu::RowView row_view() const {
    return {static_cast<std::int32_t>(window.rows), row_data<std::int32_t>(ops.pass_rows_.token) + window.first,
            row_data<std::int32_t>(ops.pass_rows_.sequence) + window.first,
            row_data<std::int32_t>(ops.pass_rows_.position) + window.first};
  }
  /// Before a launch that reads a weight: it may have to come first. Where it does not come, nothing that reads it is
  /// launched: its entry may hold no address yet.
  void need(WeightRef ref) {
    if (status.ok()) status = ops.weights_.acquire(ref, stream);
  }
  gpu::Matrix matrix(WeightRef ref) {
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
  gpu::KvView kv_view(std::int64_t layer) const;

  // --- The forms of activations that products with quantized weights take ---

  /// Whether products of `x` with weights of `dtype` are those of prompts. Rows that want logits are few, and never
  /// are.
  bool in_prompt(Act x, DType dtype) const {
    return window.prompt && buffer(x).rows != Rows::logits && gpu::has_prompt_product(ops.prompt_products_, dtype);
  }
  /// Whether what has floats or latents for weights goes a prompt's way with `x`, in bfloat16.
  bool in_bf16_prompt(Act x) const { return in_prompt(x, DType::q8_0); }

  gpu::Q8 q8_memory(int slot, std::int64_t rows, std::int64_t cols) const {
    return gpu::q8_at(ops.at(ops.layout_.inputs[slot]), rows, cols);
  }
  /// Memory for the int8 form of `act`, which a launch is about to fill.
  gpu::Q8 make_q8(int slot, Act act) {
    forms[slot] = {act, false, rows(act)};
    return q8_memory(slot, rows(act), cols(act));
  }
  gpu::Bf16* make_bf16(int slot, Act act) {
    forms[slot] = {act, true, rows(act)};
    return ops.at<gpu::Bf16>(ops.layout_.inputs[slot]);
  }
  void overwritten(Act act) {
    for (Form& form : forms)
      if (form.of.buffer == act.buffer) form = {};
    if (rounded.of.buffer == act.buffer) rounded = {};
  }
  /// The slot that holds this form of `act`; -1: none does.
  int slot_of(Act act, bool bf16) const {
    for (int slot = 0; slot < kInputs; ++slot)
      if (forms[slot].of.buffer == act.buffer && forms[slot].bf16 == bf16) return slot;
    return -1;
  }
  /// One that does not hold the form of `x` that a product reads.
  int slot_beside(Act x, bool bf16) const { return slot_of(x, bf16) == 0 ? 1 : 0; }
  /// The int8 form of `act`, made now if no launch has left it behind.
  gpu::Q8 q8(Act act);
  /// Its bfloat16 form, likewise.
  const gpu::Bf16* bf16(Act act);
  /// The form of a prompt's int8 products, made of the bfloat16 one where a launch has left that behind.
  gpu::PromptInt8 prompt_int8(Act act);

  // --- Products (products.cpp) ---

  static bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }
  void launch(gpu::MatmulCall& call);
  /// With the form of `x` that products with such weights read.
  gpu::MatmulCall call_for(Act x, DType dtype) { return call_for(x, dtype, in_prompt(x, dtype)); }
  gpu::MatmulCall call_for(Act x, DType dtype, bool prompt);

  /// What the processor computes of a step, in the making.
  struct Shared {
    HostShare::Job job;
    gpu::TakeInCall call;
    std::int64_t outputs = 0;
  };
  /// Those rows of a matrix where they lie. swiglu: `up` is the up matrix.
  const float* host_floats(WeightRef ref) const;  // of a vector in RAM; null: none
  HostShare::Matrix host_matrix(WeightRef weight, WeightRef up, WeightRef bias) const;
  /// The processor's rows of a product into `to`.
  void share_rows(Shared& shared, WeightRef weight, WeightRef up, WeightRef bias, Act to);
  /// Before the GPU's launches of the step, also before its weights have come: the input goes to the processor.
  void hand_out(Shared& shared, Act x);
  /// Behind them. The processor begins here at the earliest: all weights of the step have been acquired, so they lie in
  /// RAM.
  void take_in(Shared& shared, bool add);

  /// What a product with this weight gave: floats.
  struct Adapting {
    WeightRef weight;
    float* y = nullptr;
    std::int64_t y_stride = 0;
  };
  gpu::LowRankCall low_rank_call(std::size_t a, std::span<const Adapting> products, Act x) const;
  /// Adds what the pass's adapters give, behind products of `x` (adapters.cpp).
  void adapt(std::span<const Adapting> products, Act x);
  /// What comes of a prompt's gate and up with what the pass's adapter gives, left in bfloat16 alone. False: it is not
  /// one adapter that changes both.
  bool adapt_gates(const Adapting& gate, const Adapting& up, const Step& s);
  /// Of each product of `x` that is about to be launched, Product::addend, made of what the pass's adapter gives where
  /// it has its part before them.
  using Addends = std::array<const float*, gpu::kMostProducts>;
  Addends adapt_before(std::span<const WeightRef> weights, Act x);

  void emit_product(const Launch& launch);
  /// Gate and up, together or apart.
  void emit_gated(const Launch& launch);
  void launch_gated(const Launch& launch);
  void launch_gate_and_up(const Launch& launch);
  void emit_logits(const Step& s);

  // --- Mixtures (mixtures.cpp) ---

  void route(const Experts& experts, const float* scores, std::int32_t* chosen, float* weights);
  void reroute(std::int64_t layer, std::int32_t* chosen);
  gpu::ExpertCall expert_call(const Experts& experts, int part_index);
  /// few: the entries are read one by one.
  void launch(const gpu::ExpertCall& call, bool few);
  /// The router's scores, and beside them the product that a shared expert's gate is made of; null: there is none.
  void emit_router(const Step& s, const Step* gate);
  /// An expert that all rows share, in launches of its own: the first two steps.
  void emit_shared_expert(const Launch& launch);
  /// The products of the chosen experts. joined: with the one that all rows share, its first two steps; or null.
  void make_expert_calls(const Step& s, const Launch* joined, gpu::ExpertCall& hidden, gpu::ExpertCall& down);
  /// What the experts gave becomes the mixture's result. joined: the shared one's lies behind those of its row.
  void combine(const Launch& launch, const Step& s, const float* expert_out, bool joined);
  void emit_moe(const Launch& launch);
  /// The rows and their experts go to the processor, before the GPU's own launches; its results come behind them.
  void hand_out_experts(const Step& s, std::uint32_t number);
  /// While the processor computes with those that have no slot: what the next mixture's router says of the residual
  /// stream as it is now goes to the processor, too. What it was asked about; null: nothing.
  const Experts* ask_next_router(const Experts& experts, std::uint32_t number);
  /// The addresses that the GPU's own launches read: slots, and some experts in RAM.
  void claim_experts(const Experts& experts, gpu::ExpertCall& hidden, gpu::ExpertCall& down);
  /// Of a mixture's result, the column where this device's own begin.
  std::int64_t first_of_result(const Step& s) const;
  void take_in_experts(const Step& s, std::uint32_t number, const Experts* ahead);
  /// Between them, of experts without a gate: of all entries, or of the experts of a wave.
  void activate(const gpu::ExpertCall& hidden, const gpu::ExpertCall& down, bool of_wave);
  /// Between them, beside other GPUs: what all devices made of the hidden layers becomes the input of `down`.
  void gather_hidden(const Step& s, const gpu::ExpertCall& down, bool of_wave);
  /// hidden and down wave by wave, as the experts come.
  void launch_waves(const Step& s, gpu::ExpertCall hidden, gpu::ExpertCall down);

  // --- Rows and attention ---

  /// A step that gathers what all devices made, `own` being this one's: all but where it goes.
  gpu::GatherCall gather_call(const Step& s, Act own) const;
  /// The same with where it goes. s: the launch's step that gathers.
  gpu::GatherCall gather_call(const Launch& launch, const Step& s);
  void emit_gather(const Launch& launch);
  /// What a prompt's product makes, and what gathers it behind: it goes straight to where all need it, in all devices'
  /// memory, if the devices can reach each other and columns are aligned; else to this device's own columns.
  void launch_gathered(gpu::MatmulCall& call, const Launch& launch);

  /// x_index: which rows of x, of a launch that gathers them; null: all.
  void emit_norm(const Launch& l, Act x, const std::int32_t* x_index);
  void emit_select(const Launch& launch);
  template <typename Use>
  void for_pictures(const Use& use);
  void bring_pictures(Act out, std::int64_t first);
  void add_pictures(const Step& s);
  void emit_heads(const Launch& launch);
  void emit_heads_norm(const Step& s);
  /// x [rows, heads of head_dim] with as many channels a head as the cache keeps of the layer: x itself, or a copy with
  /// zeros behind each head's, in layout.padded[place].
  float* padded(Act x, std::int64_t heads, std::int64_t layer, int place);
  gpu::GatedNormCall gated_norm_call(const Launch& launch, const Step& norm, const Step& gate);
  void emit_gated_norm(const Launch& launch);
  void emit_latent(const Launch& l);
  void emit_head_product(const Step& s);
  void emit_latent_attention(const Step& s);
  // selected.cpp
  gpu::IndexView index_view(std::int64_t layer) const;
  void emit_index(const Launch& l);
  void emit_choice(const Launch& l);
  /// Whether rows of the pass may see more keys than are chosen. Else nothing is chosen, and rows see all.
  bool chooses(std::int64_t top_k) const { return top_k > 0 && ops.position_bound_ > top_k; }
  void emit_attention(const Launch& launch);

  // --- Layers with a state, and gates (states.cpp) ---

  /// The runs of the window's rows over the states of a layer's group.
  gpu::StateRuns state_runs(std::int64_t layer, bool& borders) const;
  void emit_sigmoid_gate(const Launch& launch);
  void emit_pick(const Launch& launch);
  void emit_time_step(const Step& s);
  gpu::ConvolveCall convolve_call(const Step& s);
  void emit_convolution(const Step& s);
  void emit_l2_norm(const Step& s);
  gpu::DeltaRuleCall delta_rule_call(const Step& s);
  /// Whether a rule's rows are a prompt's, which go by chunks.
  bool by_chunks(const Step& s) const;
  void emit_delta_rule(const Step& s);
  void emit_delta_net(const Launch& launch);
  void emit_scan(const Step& s);
  /// Those of one kernel that needs no more than its step.
  void emit_rows(const Launch& launch);

  // --- What programs alone do whose rows all see each other (whole_rows.cpp) ---

  void emit_turn(const Step& s);
  void emit_join(const Step& s);
  void emit_whole_rows(const Launch& launch);

  // --- The walk ---

  /// All blocks, the pass as one window.
  void emit_whole();
  /// Block by block, and the windows one after the other for each: its weights come once, and the activations of one
  /// window are all that is kept beside the residual stream.
  void emit_in_windows();
  void emit_block(std::size_t block);
  void emit(const Launch& launch);
};

}  // namespace millrace::exec
