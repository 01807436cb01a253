// Mixtures of experts with a gate, chosen by a softmax, by Vulkan's kernels.
#include "kernels/gpu/heads.h"
#include "kernels/gpu/ops.h"
#include "kernels/vulkan/kernels.h"

namespace millrace::kernels::gpu {

namespace {

using device::StreamRef;
using vulkan::address;
using vulkan::Dispatch;

constexpr std::int64_t kRows = 32;  // of a workgroup: products.glsl

std::int64_t groups_for(std::int64_t work, std::int64_t each) { return (work + each - 1) / each; }
Status launch_one(StreamRef stream, const Dispatch& one) { return device::vulkan::launch(stream, {&one, 1}); }

/// sorted: entries come in the order of their experts, and those of experts [0, call.experts) alone.
Status multiply_experts(const ExpertCall& call, bool sorted, StreamRef stream) {
  if (call.entries <= 0) return {};
  const vulkan::Kernel* const kernel = vulkan::chosen_product_kernel(call.dtype);
  const bool gated = call.effect == Effect::gated;
  if (kernel == nullptr || (gated && call.up_dtype != call.dtype) || call.bias != nullptr || call.up_bias != nullptr ||
      call.scale != nullptr || call.up_scale != nullptr || (call.y_q8.q != nullptr && call.rows % kRows != 0))
    return error(Code::internal, "no Vulkan kernel takes these experts");
  struct {
    std::uint64_t weight, up, shared, shared_up, chosen, expert_first, x, q, scales, y, y_q, y_scales;
    std::uint32_t rows, cols, entries_per_x, address_stride, places, experts, effect, activation;
  } arguments{};
  arguments.weight = address(call.weight);
  arguments.up = address(call.up);
  arguments.shared = address(call.shared);
  arguments.shared_up = address(call.shared_up);
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
  arguments.places = static_cast<std::uint32_t>(call.places);
  arguments.experts = static_cast<std::uint32_t>(call.experts);
  arguments.effect = static_cast<std::uint32_t>(call.effect);
  arguments.activation = static_cast<std::uint32_t>(call.activation);
  return launch_one(stream, vulkan::dispatch(*kernel, arguments, {groups_for(call.rows, kRows), call.entries}));
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
  return launch_one(stream, vulkan::dispatch(vulkan::kRoute, arguments, {rows}));
}

Status sort_entries(const std::int32_t* chosen, std::int32_t entries, std::int32_t experts, std::int32_t* sorted,
                    std::int32_t* expert_first, StreamRef stream) {
  struct {
    std::uint64_t chosen, sorted, expert_first;
    std::int32_t entries, experts;
  } const arguments{address(chosen), address(sorted), address(expert_first), entries, experts};
  return launch_one(stream, vulkan::dispatch(vulkan::kSortEntries, arguments, {experts}));
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
  return launch_one(stream, vulkan::dispatch(vulkan::kCombine, arguments, {groups_for(call.cols, 64), call.rows}));
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
