// The ops of kernels/gpu by CUDA's launchers.
#include <algorithm>

#include "device/cuda_runtime.h"
#include "kernels/cuda/launchers.h"
#include "kernels/gpu/offer.h"
#include "kernels/gpu/plainer.h"

namespace millrace::kernels::gpu {

using device::cuda_status;
using device::cuda_stream;
using device::StreamRef;

const Offer& offer() {
  static constexpr Offer kOffer{.name = "the GPU part", .numerics = "cuda 6"};
  return kOffer;
}

Status matvec(const MatmulCall& call, StreamRef stream) {
  return cuda_status(cuda::matvec(call, cuda_stream(stream)), "matvec");
}

/// Rows [first, first + count) of a product with quantized weights.
static MatmulCall rows_of(MatmulCall call, std::int32_t first, std::int32_t count) {
  const auto q8_from = [](Q8 q8, std::int64_t row, std::int64_t cols) {
    return q8.q == nullptr ? q8 : Q8{q8.q + row * cols, q8.scale + row * (cols / 32)};
  };
  call.x_rows = count;
  if (call.x != nullptr) call.x += first * call.x_stride;
  call.x_q8 = q8_from(call.x_q8, first, call.cols);
  call.y_q8 = q8_from(call.y_q8, first, call.products[0].weight.rows);
  for (int p = 0; p < call.count; ++p)
    if (float*& y = call.products[p].y; y != nullptr) y += first * call.products[p].y_stride;
  for (int i = 0; i < call.also.count; ++i)
    if (float*& y = call.also.copies[i].y; y != nullptr) y += first * call.products[0].y_stride;
  return call;
}

Status matmul(const MatmulCall& call, StreamRef stream) {
  if (does_without(Family::product_tiles)) {
    for (std::int32_t row = 0; row < call.x_rows; row += kMatvecRows)
      MR_RETURN_IF_ERROR(matvec(rows_of(call, row, std::min(kMatvecRows, call.x_rows - row)), stream));
    return {};
  }
  return cuda_status(cuda::matmul(call, cuda_stream(stream)), "matmul");
}
Status matmul_prompt(const MatmulCall& call, StreamRef stream) {
  return cuda_status(cuda::matmul_prompt(call, cuda_stream(stream)), "matmul_prompt");
}
PromptProducts prompt_products() { return cuda::prompt_products(); }
Status add_low_rank(const LowRankCall& call, StreamRef stream) {
  return cuda_status(cuda::add_low_rank(call, cuda_stream(stream)), "add_low_rank");
}
Status matvec_experts(const ExpertCall& call, StreamRef stream) {
  return cuda_status(cuda::matvec_experts(call, cuda_stream(stream)), "matvec_experts");
}
Status matmul_experts(const ExpertCall& call, StreamRef stream) {
  return cuda_status(cuda::matmul_experts(call, cuda_stream(stream)), "matmul_experts");
}
Status embed(const Matrix& table, const std::int32_t* tokens, std::int32_t rows, std::int32_t cols, float* out,
             StreamRef stream) {
  return cuda_status(cuda::embed(table, tokens, rows, cols, out, cuda_stream(stream)), "embed");
}
Status rms_norm(const float* x, const std::int32_t* x_index, const std::byte* const* weight, std::int32_t rows,
                std::int32_t cols, float eps, float* out, Q8 q8, StreamRef stream) {
  return cuda_status(cuda::rms_norm(x, x_index, weight, rows, cols, eps, out, q8, cuda_stream(stream)), "rms_norm");
}
Status quantize_q8(const float* x, std::int64_t x_stride, std::int32_t rows, std::int32_t cols, Q8 out,
                   StreamRef stream) {
  return cuda_status(cuda::quantize_q8(x, x_stride, rows, cols, out, cuda_stream(stream)), "quantize_q8");
}
Status to_bf16(const float* x, std::int64_t n, Bf16* out, StreamRef stream) {
  return cuda_status(cuda::to_bf16(x, n, out, cuda_stream(stream)), "to_bf16");
}
Status add(float* x, const float* y, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::add(x, y, n, cuda_stream(stream)), "add");
}
Status gate_mul(Activation activation, float limit, float* gate, const float* up, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::gate_mul(activation, limit, gate, up, n, cuda_stream(stream)), "gate_mul");
}
Status gather_rows(const float* x, const std::int32_t* index, std::int32_t rows, std::int32_t cols, float* out,
                   StreamRef stream) {
  return cuda_status(cuda::gather_rows(x, index, rows, cols, out, cuda_stream(stream)), "gather_rows");
}
Status rope_store(const RopeStoreCall& call, StreamRef stream) {
  return cuda_status(cuda::rope_store(call, cuda_stream(stream)), "rope_store");
}
Status rotate_heads(float* x, std::int32_t heads, std::int32_t head_dim, std::int32_t span, bool floats, Q8 out,
                    StreamRef stream) {
  return cuda_status(cuda::rotate_heads(x, heads, head_dim, span, floats, out, cuda_stream(stream)), "rotate_heads");
}
std::int32_t attention_tile_rows(std::int32_t group) { return cuda::attention_tile_rows(group); }
std::size_t attention_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                                      std::int32_t max_position) {
  return cuda::attention_workspace_bytes(rows, heads, head_dim, max_position);
}
Status attention(const AttentionCall& call, StreamRef stream) {
  return cuda_status(cuda::attention(call, cuda_stream(stream)), "attention");
}
Status route(const float* scores, std::int32_t rows, std::int32_t experts, std::int32_t top_k, bool normalize,
             float scale, std::int32_t* chosen, float* weights, StreamRef stream) {
  return cuda_status(cuda::route(scores, rows, experts, top_k, normalize, scale, chosen, weights, cuda_stream(stream)),
                     "route");
}
Status sort_entries(const std::int32_t* chosen, std::int32_t entries, std::int32_t experts, std::int32_t* sorted,
                    std::int32_t* expert_first, StreamRef stream) {
  return cuda_status(cuda::sort_entries(chosen, entries, experts, sorted, expert_first, cuda_stream(stream)),
                     "sort_entries");
}
Status combine_experts(const float* expert_out, const float* weights, std::int32_t rows, std::int32_t top_k,
                       std::int32_t cols, bool residual, float* y, StreamRef stream) {
  return cuda_status(cuda::combine_experts(expert_out, weights, rows, top_k, cols, residual, y, cuda_stream(stream)),
                     "combine_experts");
}
std::size_t sample_workspace_bytes(std::int32_t rows, std::int32_t vocab) {
  return cuda::sample_workspace_bytes(rows, vocab);
}
Status candidates(const float* logits, std::int32_t rows, std::int32_t vocab, Candidates* out, std::byte* workspace,
                  StreamRef stream) {
  return cuda_status(cuda::candidates(logits, rows, vocab, out, workspace, cuda_stream(stream)), "candidates");
}
Status scale(float* x, float factor, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::scale(x, factor, n, cuda_stream(stream)), "scale");
}
Status add_scaled(float* x, const float* y, float factor, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::add_scaled(x, y, factor, n, cuda_stream(stream)), "add_scaled");
}
Status temper(float* x, const std::int32_t* position, float scale, std::int32_t period, std::int32_t offset,
              std::int32_t rows, std::int32_t cols, StreamRef stream) {
  return cuda_status(cuda::temper(x, position, scale, period, offset, rows, cols, cuda_stream(stream)), "temper");
}
Status gate_rows(Activation activation, float limit, float* gate, const float* up, std::int64_t up_stride,
                 std::int32_t rows, std::int32_t cols, StreamRef stream) {
  return cuda_status(cuda::gate_rows(activation, limit, gate, up, up_stride, rows, cols, cuda_stream(stream)),
                     "gate_rows");
}
Status scale_by(float* x, const std::byte* const* scalar, const std::byte* const* bias, std::int64_t rows,
                std::int32_t cols, StreamRef stream) {
  return cuda_status(cuda::scale_by(x, scalar, bias, rows, cols, cuda_stream(stream)), "scale_by");
}
Status softcap(float* x, float cap, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::softcap(x, cap, n, cuda_stream(stream)), "softcap");
}
Status place_columns(const PlaceCall& call, StreamRef stream) {
  return cuda_status(cuda::place_columns(call, cuda_stream(stream)), "place_columns");
}
Status choose(const ChooseCall& call, StreamRef stream) {
  return cuda_status(cuda::choose(call, cuda_stream(stream)), "choose");
}
Status pick_heads(const PickCall& call, StreamRef stream) {
  return cuda_status(cuda::pick_heads(call, cuda_stream(stream)), "pick_heads");
}
Status xielu(const Xielu& shape, float* x, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::xielu(shape, x, n, cuda_stream(stream)), "xielu");
}
Status largest(const float* x, std::int32_t rows, std::int32_t cols, float* out, StreamRef stream) {
  return cuda_status(cuda::largest(x, rows, cols, out, cuda_stream(stream)), "largest");
}
Status multiply(float* x, const float* y, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::multiply(x, y, n, cuda_stream(stream)), "multiply");
}
Status sigmoid_gate(float* x, const float* gate, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::sigmoid_gate(x, gate, n, cuda_stream(stream)), "sigmoid_gate");
}
Status sigmoid_gate(const SigmoidGateCall& call, StreamRef stream) {
  return cuda_status(cuda::sigmoid_gate(call, cuda_stream(stream)), "sigmoid_gate");
}
Status sigmoid_gate_rows(float* x, const float* gate, std::int32_t rows, std::int32_t cols, StreamRef stream) {
  return cuda_status(cuda::sigmoid_gate_rows(x, gate, rows, cols, cuda_stream(stream)), "sigmoid_gate_rows");
}
Status l2_norm_heads(float* x, std::int64_t cols, std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                     float eps, StreamRef stream) {
  return cuda_status(cuda::l2_norm_heads(x, cols, rows, heads, head_dim, eps, cuda_stream(stream)), "l2_norm_heads");
}
Status time_step(float* decay, float* step, const std::byte* const* a, const std::byte* const* bias, std::int32_t rows,
                 std::int32_t cols, std::int32_t together, float bound, StreamRef stream) {
  return cuda_status(cuda::time_step(decay, step, a, bias, rows, cols, together, bound, cuda_stream(stream)),
                     "time_step");
}
Status rms_norm_groups(float* x, const std::byte* const* weight, std::int32_t rows, std::int32_t groups,
                       std::int32_t dim, float eps, StreamRef stream) {
  return cuda_status(cuda::rms_norm_groups(x, weight, rows, groups, dim, eps, cuda_stream(stream)), "rms_norm_groups");
}
Status rms_norm(const NormCall& call, StreamRef stream) {
  return cuda_status(cuda::rms_norm(call, cuda_stream(stream)), "rms_norm");
}
Status gated_norm(const GatedNormCall& call, StreamRef stream) {
  return cuda_status(cuda::gated_norm(call, cuda_stream(stream)), "gated_norm");
}
Status activate(Activation activation, float* x, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::activate(activation, x, n, cuda_stream(stream)), "activate");
}
Status activate_entries(const ActivateEntriesCall& call, StreamRef stream) {
  return cuda_status(cuda::activate_entries(call, cuda_stream(stream)), "activate_entries");
}
Status combine(const CombineCall& call, StreamRef stream) {
  return cuda_status(cuda::combine(call, cuda_stream(stream)), "combine");
}
Status store_latent(const LatentStoreCall& call, StreamRef stream) {
  return cuda_status(cuda::store_latent(call, cuda_stream(stream)), "store_latent");
}
Status head_product(const HeadProductCall& call, StreamRef stream) {
  return cuda_status(cuda::head_product(call, cuda_stream(stream)), "head_product");
}
std::size_t latent_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t v_dim,
                                   std::int32_t max_position) {
  return cuda::latent_workspace_bytes(rows, heads, v_dim, max_position);
}
Status latent_attention(const LatentAttentionCall& call, StreamRef stream) {
  return cuda_status(cuda::latent_attention(call, cuda_stream(stream)), "latent_attention");
}
Status store_index(const IndexStoreCall& call, StreamRef stream) {
  return cuda_status(cuda::store_index(call, cuda_stream(stream)), "store_index");
}
std::size_t choose_workspace_bytes(std::int32_t rows, std::int32_t max_position) {
  return cuda::choose_workspace_bytes(rows, max_position);
}
Status choose_keys(const ChooseKeysCall& call, StreamRef stream) {
  return cuda_status(cuda::choose_keys(call, cuda_stream(stream)), "choose_keys");
}
Status convolve(const ConvolveCall& call, StreamRef stream) {
  return cuda_status(cuda::convolve(call, cuda_stream(stream)), "convolve");
}
Status delta_rule(const DeltaRuleCall& call, StreamRef stream) {
  return cuda_status(cuda::delta_rule(call, cuda_stream(stream)), "delta_rule");
}
Status scan(const ScanCall& call, StreamRef stream) {
  return cuda_status(cuda::scan(call, cuda_stream(stream)), "scan");
}
Status delta_step(const DeltaStepCall& call, StreamRef stream) {
  return cuda_status(cuda::delta_step(call, cuda_stream(stream)), "delta_step");
}
bool has_delta_chunks() { return cuda::has_delta_chunks(); }
std::size_t delta_chunks_workspace_bytes(std::int64_t runs, std::int64_t key_heads, std::int64_t value_heads,
                                         std::int64_t key_dim) {
  return cuda::delta_chunks_workspace_bytes(runs, key_heads, value_heads, key_dim);
}
Status delta_chunks(const DeltaChunksCall& call, StreamRef stream) {
  return cuda_status(cuda::delta_chunks(call, cuda_stream(stream)), "delta_chunks");
}
Status hand_out(const float* from, std::int64_t count, float* to, std::uint32_t* flag, std::uint32_t number,
                std::uint32_t* arrived, StreamRef stream) {
  return cuda_status(cuda::hand_out(from, count, to, flag, number, arrived, cuda_stream(stream)), "hand_out");
}
Status hand_out_experts(const HandOutExpertsCall& call, StreamRef stream) {
  return cuda_status(cuda::hand_out_experts(call, cuda_stream(stream)), "hand_out_experts");
}
Status take_in(const TakeInCall& call, StreamRef stream) {
  return cuda_status(cuda::take_in(call, cuda_stream(stream)), "take_in");
}
Status claim_experts(const ClaimExpertsCall& call, StreamRef stream) {
  return cuda_status(cuda::claim_experts(call, cuda_stream(stream)), "claim_experts");
}
Status take_in_experts(const TakeInExpertsCall& call, StreamRef stream) {
  return cuda_status(cuda::take_in_experts(call, cuda_stream(stream)), "take_in_experts");
}
Status gather(const GatherCall& call, StreamRef stream) {
  return cuda_status(cuda::gather(call, cuda_stream(stream)), "gather");
}
Status meet(const GatherCall& call, StreamRef stream) {
  return cuda_status(cuda::meet(call, cuda_stream(stream)), "meet");
}
Status draw(const float* logits, std::int32_t rows, std::int32_t vocab, const DrawRule* rules, const Candidates* found,
            std::int32_t* drawn, StreamRef stream) {
  return cuda_status(cuda::draw(logits, rows, vocab, rules, found, drawn, cuda_stream(stream)), "draw");
}
Status round_prompt(const Bf16* x, std::int32_t rows, std::int32_t cols, PromptInt8 out, StreamRef stream) {
  return cuda_status(cuda::round_prompt(x, rows, cols, out, cuda_stream(stream)), "round_prompt");
}
Status round_prompt(const float* x, std::int32_t rows, std::int32_t cols, PromptInt8 out, StreamRef stream) {
  return cuda_status(cuda::round_prompt(x, rows, cols, out, cuda_stream(stream)), "round_prompt");
}
Status layer_norm(const float* x, const std::byte* const* weight, const std::byte* const* bias, std::int32_t rows,
                  std::int32_t cols, float eps, float* out, StreamRef stream) {
  return cuda_status(cuda::layer_norm(x, weight, bias, rows, cols, eps, out, cuda_stream(stream)), "layer_norm");
}
Status norm_heads(float* x, const std::byte* const* weight, std::int32_t heads, std::int32_t head_dim, float eps,
                  StreamRef stream) {
  return cuda_status(cuda::norm_heads(x, weight, heads, head_dim, eps, cuda_stream(stream)), "norm_heads");
}
Status turn_heads(const TurnCall& call, StreamRef stream) {
  return cuda_status(cuda::turn_heads(call, cuda_stream(stream)), "turn_heads");
}
Status clamp(float* x, float least, float most, std::int64_t n, StreamRef stream) {
  return cuda_status(cuda::clamp(x, least, most, n, cuda_stream(stream)), "clamp");
}
Status standardize(float* x, const std::byte* const* bias, const std::byte* const* scale, std::int64_t rows,
                   std::int32_t cols, StreamRef stream) {
  return cuda_status(cuda::standardize(x, bias, scale, rows, cols, cuda_stream(stream)), "standardize");
}
Status merge_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, bool by_channel, float* out,
                  StreamRef stream) {
  return cuda_status(cuda::merge_rows(x, rows, cols, merge, by_channel, out, cuda_stream(stream)), "merge_rows");
}
Status mean_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, float* out,
                 StreamRef stream) {
  return cuda_status(cuda::mean_rows(x, rows, cols, merge, out, cuda_stream(stream)), "mean_rows");
}
Status to_half_rows(const float* x, std::int32_t rows, std::int32_t cols, HalfRows out, StreamRef stream) {
  return cuda_status(cuda::to_half_rows(x, rows, cols, out, cuda_stream(stream)), "to_half_rows");
}
Status matmul_half(const MatmulCall& call, HalfRows x, StreamRef stream) {
  return cuda_status(cuda::matmul_half(call, x, cuda_stream(stream)), "matmul_half");
}

}  // namespace millrace::kernels::gpu
