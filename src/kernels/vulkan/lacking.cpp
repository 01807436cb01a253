// Launches that Vulkan has no kernels for yet. No pass reaches them: offer() says what is missing, and exec's check_gpu
// refuses such a program by name.
#include "kernels/gpu/delta_chunks.h"
#include "kernels/gpu/delta_step.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/gather.h"
#include "kernels/gpu/heads.h"
#include "kernels/gpu/indexer.h"
#include "kernels/gpu/latent.h"
#include "kernels/gpu/low_rank.h"
#include "kernels/gpu/offer.h"
#include "kernels/gpu/ops.h"
#include "kernels/gpu/prompt_int8.h"
#include "kernels/gpu/recurrent.h"
#include "kernels/gpu/whole_rows.h"
#include "kernels/vulkan/kernels.h"

namespace millrace::kernels::gpu {

namespace {

using device::StreamRef;

Status lacking(const char* launch) { return error(Code::internal, "Vulkan has no kernel for {} yet", launch); }

}  // namespace

const Offer& offer() {
  static const Offer made = [] {
    Offer offer;
    offer.name = "Vulkan's part";
    offer.numerics = "vulkan 1";
    offer.mixed_products = offer.latents = offer.whole_rows = offer.delta_step = offer.channel_decays = false;
    offer.several = offer.host_rows = offer.adapters = offer.rare_layers = false;
    offer.head_step = 32;  // a head's result is whole blocks of int8
    offer.reads = [](DType dtype) { return vulkan::product_kernel(dtype) != nullptr; };
    offer.keeps = [](DType dtype) {
      return dtype == DType::f16 || dtype == DType::f32 || dtype == DType::q8_0 || dtype == DType::q4_0;
    };
    return offer;
  }();
  return made;
}

Status add_low_rank(const LowRankCall&, StreamRef) { return lacking("add_low_rank"); }
bool has_delta_chunks() { return false; }
std::size_t delta_chunks_workspace_bytes(std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return 0; }
Status delta_chunks(const DeltaChunksCall&, StreamRef) { return lacking("delta_chunks"); }
Status delta_step(const DeltaStepCall&, StreamRef) { return lacking("delta_step"); }
Status hand_out(const float*, std::int64_t, float*, std::uint32_t*, std::uint32_t, std::uint32_t*, StreamRef) {
  return lacking("hand_out");
}
Status hand_out_experts(const HandOutExpertsCall&, StreamRef) { return lacking("hand_out_experts"); }
Status take_in(const TakeInCall&, StreamRef) { return lacking("take_in"); }
Status claim_experts(const ClaimExpertsCall&, StreamRef) { return lacking("claim_experts"); }
Status take_in_experts(const TakeInExpertsCall&, StreamRef) { return lacking("take_in_experts"); }
Status gather(const GatherCall&, StreamRef) { return lacking("gather"); }
Status meet(const GatherCall&, StreamRef) { return lacking("meet"); }
Status store_latent(const LatentStoreCall&, StreamRef) { return lacking("store_latent"); }
Status head_product(const HeadProductCall&, StreamRef) { return lacking("head_product"); }
std::size_t latent_workspace_bytes(std::int32_t, std::int32_t, std::int32_t, std::int32_t) { return 0; }
Status latent_attention(const LatentAttentionCall&, StreamRef) { return lacking("latent_attention"); }
Status store_index(const IndexStoreCall&, StreamRef) { return lacking("store_index"); }
std::size_t choose_workspace_bytes(std::int32_t, std::int32_t) { return 0; }
Status choose_keys(const ChooseKeysCall&, StreamRef) { return lacking("choose_keys"); }
Status matmul_prompt(const MatmulCall&, StreamRef) { return lacking("matmul_prompt"); }
PromptProducts prompt_products() { return PromptProducts::none; }
Status to_bf16(const float*, std::int64_t, Bf16*, StreamRef) { return lacking("to_bf16"); }
Status rotate_heads(float*, std::int32_t, std::int32_t, std::int32_t, bool, Q8, StreamRef) {
  return lacking("rotate_heads");
}
Status round_prompt(const Bf16*, std::int32_t, std::int32_t, PromptInt8, StreamRef) { return lacking("round_prompt"); }
Status round_prompt(const float*, std::int32_t, std::int32_t, PromptInt8, StreamRef) { return lacking("round_prompt"); }
Status layer_norm(const float*, const std::byte* const*, const std::byte* const*, std::int32_t, std::int32_t, float,
                  float*, StreamRef) {
  return lacking("layer_norm");
}
Status norm_heads(float*, const std::byte* const*, std::int32_t, std::int32_t, float, StreamRef) {
  return lacking("norm_heads");
}
Status turn_heads(const TurnCall&, StreamRef) { return lacking("turn_heads"); }
Status clamp(float*, float, float, std::int64_t, StreamRef) { return lacking("clamp"); }
Status standardize(float*, const std::byte* const*, const std::byte* const*, std::int64_t, std::int32_t, StreamRef) {
  return lacking("standardize");
}
Status xielu(const Xielu&, float*, std::int64_t, StreamRef) { return lacking("xielu"); }
Status largest(const float*, std::int32_t, std::int32_t, float*, StreamRef) { return lacking("largest"); }
Status merge_rows(const float*, std::int32_t, std::int32_t, std::int32_t, bool, float*, StreamRef) {
  return lacking("merge_rows");
}
Status mean_rows(const float*, std::int32_t, std::int32_t, std::int32_t, float*, StreamRef) {
  return lacking("mean_rows");
}
Status to_half_rows(const float*, std::int32_t, std::int32_t, HalfRows, StreamRef) { return lacking("to_half_rows"); }
Status matmul_half(const MatmulCall&, HalfRows, StreamRef) { return lacking("matmul_half"); }

}  // namespace millrace::kernels::gpu
