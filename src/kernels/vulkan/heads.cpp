// Gates, and norms and channels of heads, by Vulkan's kernels.
#include "kernels/gpu/heads.h"

#include <algorithm>

#include "kernels/gpu/gates.h"
#include "kernels/vulkan/kernels.h"

namespace millrace::kernels::gpu {

namespace {

using device::StreamRef;
using vulkan::address;
using vulkan::broken;
using vulkan::Dispatch;
using vulkan::groups_of;
using vulkan::kMostGroups;
using vulkan::put;

constexpr std::int64_t kHeadThreads = 128;  // of a workgroup

}  // namespace

Status rms_norm_groups(float* x, const std::byte* const* weight, std::int32_t rows, std::int32_t groups,
                       std::int32_t dim, float eps, StreamRef stream) {
  if (rows <= 0 || groups <= 0) return {};
  struct {
    std::uint64_t x, weight;
    std::int32_t parts, dim;
    float eps;
  } const arguments{address(x), address(weight), groups, dim, eps};
  return put(stream, vulkan::dispatch(vulkan::kNormParts, arguments, {groups, rows}));
}

Status gated_norm(const GatedNormCall& call, StreamRef stream) {
  const std::int64_t heads = std::int64_t{call.rows} * call.heads;
  if (heads <= 0) return {};
  if (call.out_bf16 != nullptr || call.head_dim % 32 != 0 || call.head_dim > kMostGatedHeadDim)
    return broken("this norm of heads");
  struct {
    std::uint64_t x, gate, weight, out, q, scales;
    std::int32_t all_heads, head_dim;
    float eps;
  } const arguments{address(call.x),
                    address(call.gate),
                    address(call.weight),
                    address(call.out),
                    address(call.out_q8.q),
                    address(call.out_q8.scale),
                    static_cast<std::int32_t>(heads),
                    call.head_dim,
                    call.eps};
  const std::int64_t threads = call.head_dim <= 128 ? 32 : call.head_dim <= 256 ? 64 : kHeadThreads;
  return put(stream,
             vulkan::dispatch(vulkan::kGatedNorm, arguments, vulkan::spread(groups_of(heads, kHeadThreads / threads)),
                              {static_cast<std::uint32_t>(threads), static_cast<std::uint32_t>(call.activation)}));
}

Status sigmoid_gate(const SigmoidGateCall& call, StreamRef stream) {
  if (call.blocks <= 0) return {};
  if (call.out_bf16 != nullptr) return broken("a gate in bfloat16");
  struct {
    std::uint64_t x, gate, out, q, scales;
    std::uint32_t words;
  } const arguments{address(call.x),        address(call.gate),         address(call.out),
                    address(call.out_q8.q), address(call.out_q8.scale), static_cast<std::uint32_t>(call.blocks * 8)};
  const std::int64_t groups = std::min(groups_of(call.blocks * 8, kHeadThreads), kMostGroups);
  return put(stream, vulkan::dispatch(vulkan::kSigmoidGate, arguments, {groups}));
}

Status temper(float* x, const std::int32_t* position, float scale, std::int32_t period, std::int32_t offset,
              std::int32_t rows, std::int32_t cols, StreamRef stream) {
  if (rows <= 0 || cols <= 0) return {};
  if (offset != 0) return broken("temperatures of positions from others than 0");
  struct {
    std::uint64_t x, position;
    std::int32_t cols, period;
    float scale;
  } const arguments{address(x), address(position), cols, period, scale};
  return put(stream, vulkan::dispatch(vulkan::kTemper, arguments, {rows, groups_of(cols, 64)}));
}

Status scale_by(float* x, const std::byte* const* scalar, const std::byte* const* bias, std::int64_t rows,
                std::int32_t cols, StreamRef stream) {
  if (rows <= 0 || cols <= 0) return {};
  struct {
    std::uint64_t x, scalar, bias;
    std::int32_t rows, cols;
  } const arguments{address(x), address(scalar), address(bias), static_cast<std::int32_t>(rows), cols};
  return put(stream, vulkan::dispatch(vulkan::kScaleBy, arguments,
                                      {std::min(groups_of(cols, 64), kMostGroups), std::min(rows, kMostGroups)}));
}

namespace {

struct Columns {  // copy_columns.comp
  std::uint64_t x, to;
  std::int64_t x_stride, to_stride;
  std::uint32_t x_part, to_part, x_first, to_first, rows, heads, width, cols;
};
Dispatch copy_columns(const Columns& columns) {
  const std::int64_t work = std::int64_t{columns.heads} * columns.width;
  return vulkan::dispatch(
      vulkan::kCopyColumns, columns,
      {std::min(groups_of(work, 64), kMostGroups), std::min<std::int64_t>(columns.rows, kMostGroups)});
}

}  // namespace

Status pick_heads(const PickCall& call, StreamRef stream) {
  if (call.rows <= 0) return {};
  std::vector<Dispatch> dispatches;
  for (int i = 0; i < call.count; ++i) {
    Columns columns{};
    columns.x = address(call.x);
    columns.to = address(call.out[i]);
    columns.x_stride = call.cols;
    columns.to_stride = std::int64_t{call.heads} * call.head_dim;
    columns.x_part = static_cast<std::uint32_t>(call.cols / call.heads);
    columns.x_first = static_cast<std::uint32_t>(call.first[i]);
    columns.rows = static_cast<std::uint32_t>(call.rows);
    columns.heads = static_cast<std::uint32_t>(call.heads);
    columns.to_part = columns.width = columns.cols = static_cast<std::uint32_t>(call.head_dim);
    dispatches.push_back(copy_columns(columns));
  }
  return device::vulkan::launch(stream, dispatches);
}

Status place_columns(const PlaceCall& call, StreamRef stream) {
  const std::int64_t width = call.clear_behind ? call.out_cols - call.first : call.cols;
  if (call.rows * width <= 0) return {};
  Columns columns{};
  columns.x = address(call.x);
  columns.to = address(call.out);
  columns.x_stride = call.cols;
  columns.to_stride = call.out_cols;
  columns.to_first = static_cast<std::uint32_t>(call.first);
  columns.rows = static_cast<std::uint32_t>(call.rows);
  columns.heads = 1;
  columns.width = static_cast<std::uint32_t>(width);
  columns.cols = static_cast<std::uint32_t>(call.cols);
  return put(stream, copy_columns(columns));
}

}  // namespace millrace::kernels::gpu
