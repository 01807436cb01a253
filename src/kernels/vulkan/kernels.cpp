#include "kernels/vulkan/kernels.h"

#include <vulkan_spirv/kernels.h>

namespace millrace::kernels::vulkan {

const Kernel kRmsNorm{"rms_norm", kernel_rms_norm};
const Kernel kQuantize{"quantize", kernel_quantize};
const Kernel kElementwise{"elementwise", kernel_elementwise};
const Kernel kGatherRows{"gather_rows", kernel_gather_rows};
const Kernel kRopeStore{"rope_store", kernel_rope_store};
const Kernel kAttention{"attention", kernel_attention};
const Kernel kCandidates{"candidates", kernel_candidates};
const Kernel kDraw{"draw", kernel_draw};
const Kernel kRoute{"route", kernel_route};
const Kernel kSortEntries{"sort_entries", kernel_sort_entries};
const Kernel kCombine{"combine", kernel_combine};
const Kernel kConvolve{"convolve", kernel_convolve};
const Kernel kStateRows{"state_rows", kernel_state_rows};
const Kernel kTimeStep{"time_step", kernel_time_step};
const Kernel kL2Norm{"l2_norm", kernel_l2_norm};
const Kernel kNormParts{"norm_parts", kernel_norm_parts};
const Kernel kGatedNorm{"gated_norm", kernel_gated_norm};
const Kernel kSigmoidGate{"sigmoid_gate", kernel_sigmoid_gate};
const Kernel kCopyColumns{"copy_columns", kernel_copy_columns};
const Kernel kChoose{"choose", kernel_choose};
const Kernel kActivateEntries{"activate_entries", kernel_activate_entries};
const Kernel kScaleBy{"scale_by", kernel_scale_by};
const Kernel kTemper{"temper", kernel_temper};

namespace {

struct OfDType {
  DType dtype;
  Kernel embed, product, chosen_product;
  Kernel row_product, tile_product;  // of no code, where there are none
};
const OfDType kOfDTypes[] = {
#define MR_VULKAN_OF(name, row_product, tile_product)       \
  {DType::name,                                             \
   {"embed_" #name, kernel_embed_##name},                   \
   {"product_" #name, kernel_product_##name},               \
   {"chosen_product_" #name, kernel_chosen_product_##name}, \
   {"row_product_" #name, row_product},                     \
   {"tile_product_" #name, tile_product}},
#define MR_VULKAN_DTYPE(name, number) MR_VULKAN_OF(name, kernel_row_product_##name, kernel_tile_product_##name)
#define MR_VULKAN_FLOATS(name, number) MR_VULKAN_OF(name, {}, {})
#include "kernels/vulkan/dtypes.def"
#undef MR_VULKAN_DTYPE
#undef MR_VULKAN_OF
};

const OfDType* find(DType dtype) {
  for (const OfDType& one : kOfDTypes)
    if (one.dtype == dtype) return &one;
  return nullptr;
}

}  // namespace

const Kernel* embed_kernel(DType dtype) {
  const OfDType* const found = find(dtype);
  return found == nullptr ? nullptr : &found->embed;
}
const Kernel* product_kernel(DType dtype) {
  const OfDType* const found = find(dtype);
  return found == nullptr ? nullptr : &found->product;
}

const Kernel* chosen_product_kernel(DType dtype) {
  const OfDType* const found = find(dtype);
  return found == nullptr ? nullptr : &found->chosen_product;
}
const Kernel* row_product_kernel(DType dtype) {
  const OfDType* const found = find(dtype);
  return found == nullptr || found->row_product.code.empty() ? nullptr : &found->row_product;
}
const Kernel* tile_product_kernel(DType dtype) {
  const OfDType* const found = find(dtype);
  return found == nullptr || found->tile_product.code.empty() ? nullptr : &found->tile_product;
}

}  // namespace millrace::kernels::vulkan
