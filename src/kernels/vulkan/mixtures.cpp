// Mixtures of experts by Vulkan's kernels.
#include "kernels/gpu/gates.h"
#include "kernels/gpu/heads.h"
#include "kernels/gpu/ops.h"
#include "kernels/vulkan/kernels.h"

namespace millrace::kernels::gpu {

namespace {

using device::StreamRef;
using vulkan::address;
using vulkan::groups_of;
using vulkan::put;

constexpr std::int64_t kRows = 32;  // of a workgroup: products.glsl

/// sorted: entries come in the order of their experts, and those of experts [0, call.experts) alone.
Status multiply_experts(const ExpertCall& call, bool sorted, StreamRef stream) {
  if (call.entries <= 0) return {};
  const vulkan::Kernel* const kernel = vulkan::chosen_product_kernel(call.dtype);
  const bool gated = call.effect == Effect::gated;
  const bool biased = call.bias != nullptr || call.up_bias != nullptr;
  if (kernel == nullptr || (gated && call.up_dtype != call.dtype) || (biased && call.shared != nullptr) ||
      call.scale != nullptr || call.up_scale != nullptr || (call.y_q8.q != nullptr && call.rows % kRows != 0))
    return vulkan::broken("these experts");
  struct {
    std::uint64_t weight, up, shared_or_bias, shared_or_bias_up, chosen, expert_first, x, q, scales, y, y_q, y_scales;
    std::uint32_t rows, cols, entries_per_x, address_stride, places_or_bias_stride, experts, effect, activation;
  } arguments{};
  arguments.weight = address(call.weight);
  arguments.up = address(call.up);
  arguments.shared_or_bias = address(biased ? call.bias : call.shared);
  arguments.shared_or_bias_up = address(biased ? call.up_bias : call.shared_up);
  arguments.chosen = address(sorted ? call.sorted : call.chosen);
  arguments.expert_first = address(sorted ? call.expert_first : nullptr);
  arguments.x = address(call.x);
  arguments.q = address(call.x_q8.q);
  arguments.scales = address(call.x_q8.scale);
  arguments.y = address(call.y);
  arguments.y_q = address(call.y_q8.q);
  arguments.y_scales = address(call.y_q8.scale);
  arguments.rows = static_cast<std::uint32_t>(call.rows);
  arguments.cols = static_cast<std::uint32_t>(call.cols);
  arguments.entries_per_x = static_cast<std::uint32_t>(call.entries_per_x);
  arguments.address_stride = static_cast<std::uint32_t>(call.address_stride);
  arguments.places_or_bias_stride = static_cast<std::uint32_t>(biased ? call.bias_stride : call.places);
  arguments.experts = static_cast<std::uint32_t>(call.experts);
  arguments.effect = static_cast<std::uint32_t>(call.effect);
  arguments.activation = static_cast<std::uint32_t>(call.activation);
  return put(stream,
             vulkan::dispatch(*kernel, arguments, {groups_of(call.rows, kRows), call.entries}, {biased ? 1u : 0u}));
}

}  // namespace

Status matvec_experts(const ExpertCall& call, StreamRef stream) { return multiply_experts(call, false, stream); }
Status matmul_experts(const ExpertCall& call, StreamRef stream) { return multiply_experts(call, true, stream); }

Status route(const float* scores, std::int32_t rows, std::int32_t experts, std::int32_t top_k, bool normalize,
             float scale, std::int32_t* chosen, float* weights, StreamRef stream) {
  if (rows <= 0) return {};
  constexpr std::int32_t kMostExperts = 1024, kMostChosen = 32;  // route.comp
  if (experts > kMostExperts || top_k > kMostChosen)
    return error(Code::internal, "no Vulkan kernel routes to {} of {} experts", top_k, experts);
  struct {
    std::uint64_t scores, chosen, weights;
    std::int32_t experts, top_k, normalize;
    float scale;
  } const arguments{address(scores), address(chosen), address(weights), experts, top_k, normalize ? 1 : 0, scale};
  return put(stream, vulkan::dispatch(vulkan::kRoute, arguments, {rows}));
}

Status choose(const ChooseCall& call, StreamRef stream) {
  if (call.rows <= 0) return {};
  constexpr std::int32_t kMostExperts = 1024, kMostChosen = 32, kMostGroupsOfExperts = 64;  // choose.comp
  if (call.experts > kMostExperts || call.top_k > kMostChosen || call.groups > kMostGroupsOfExperts)
    return error(Code::internal, "no Vulkan kernel routes to {} of {} experts", call.top_k, call.experts);
  struct {
    std::uint64_t scores, bias, output_scale, hidden_scale, chosen, weights;
    std::int32_t experts, top_k, groups, groups_used, normalize;
    float scale;
  } const arguments{address(call.scores),
                    address(call.bias),
                    address(call.output_scale),
                    address(call.hidden_scale),
                    address(call.chosen),
                    address(call.weights),
                    call.experts,
                    call.top_k,
                    call.groups,
                    call.groups_used,
                    call.normalize ? 1 : 0,
                    call.scale};
  return put(stream,
             vulkan::dispatch(vulkan::kChoose, arguments, {call.rows}, {static_cast<std::uint32_t>(call.gating)}));
}

Status activate_entries(const ActivateEntriesCall& call, StreamRef stream) {
  if (call.entries <= 0 || call.cols <= 0) return {};
  struct {
    std::uint64_t x, q, scales, sorted, expert_first;
    std::int32_t cols, experts;
  } const arguments{address(call.x),      address(call.q8.q),         address(call.q8.scale),
                    address(call.sorted), address(call.expert_first), call.cols,
                    call.experts};
  return put(stream, vulkan::dispatch(vulkan::kActivateEntries, arguments, {groups_of(call.cols, 512), call.entries},
                                      {static_cast<std::uint32_t>(call.activation)}));
}

Status sort_entries(const std::int32_t* chosen, std::int32_t entries, std::int32_t experts, std::int32_t* sorted,
                    std::int32_t* expert_first, StreamRef stream) {
  struct {
    std::uint64_t chosen, sorted, expert_first;
    std::int32_t entries, experts;
  } const arguments{address(chosen), address(sorted), address(expert_first), entries, experts};
  return put(stream, vulkan::dispatch(vulkan::kSortEntries, arguments, {experts}));
}

Status combine(const CombineCall& call, StreamRef stream) {
  if (call.rows <= 0) return {};
  struct {
    std::uint64_t expert_out, weights, shared, shared_gate, y;
    std::int64_t shared_stride;
    std::int32_t top_k, places, cols, residual;
  } const arguments{address(call.expert_out),
                    address(call.weights),
                    address(call.shared),
                    address(call.shared_gate),
                    address(call.y),
                    call.shared_stride,
                    call.top_k,
                    call.places,
                    call.cols,
                    call.residual ? 1 : 0};
  return put(stream, vulkan::dispatch(vulkan::kCombine, arguments, {groups_of(call.cols, 64), call.rows}));
}
Status combine_experts(const float* expert_out, const float* weights, std::int32_t rows, std::int32_t top_k,
                       std::int32_t cols, bool residual, float* y, StreamRef stream) {
  CombineCall call;
  call.expert_out = expert_out;
  call.weights = weights;
  call.rows = rows;
  call.top_k = call.places = top_k;
  call.cols = cols;
  call.residual = residual;
  call.y = y;
  return combine(call, stream);
}

}  // namespace millrace::kernels::gpu
