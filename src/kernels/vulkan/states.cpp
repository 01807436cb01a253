// Layers with a state, by Vulkan's kernels.
#include <algorithm>

#include "kernels/gpu/heads.h"
#include "kernels/gpu/recurrent.h"
#include "kernels/vulkan/kernels.h"

namespace millrace::kernels::gpu {

namespace {

using device::StreamRef;
using vulkan::address;
using vulkan::broken;
using vulkan::groups_of;
using vulkan::kMostGroups;
using vulkan::put;

/// What state_rows.comp goes through: of the delta rule, or of a scan.
struct StateRows {
  std::uint64_t run, first_run;
  std::int64_t offset;
  std::uint64_t x, step, decay, skip, out;
  std::int32_t groups, heads, keys, head_dim, tiled;
  float scale;
};
enum class Rule : std::uint32_t { delta, scan };

Status go_through(const StateRuns& runs, StateRows arguments, Rule rule, StreamRef stream) {
  if (runs.sequences <= 0) return {};
  if (arguments.keys > kMostStateKeys || arguments.keys % 2 != 0) return broken("states with so many keys");
  arguments.run = address(runs.run);
  arguments.first_run = address(runs.first_run);
  constexpr std::int32_t kParts = 8;  // state_rows.comp: threads that share a column's keys
  std::uint32_t each = 4;
  while (static_cast<std::int32_t>(each) * kParts < arguments.keys) each *= 2;
  return put(stream, vulkan::dispatch(vulkan::kStateRows, arguments,
                                      {groups_of(arguments.head_dim, kStateLanes), arguments.heads, runs.sequences},
                                      {each, static_cast<std::uint32_t>(rule)}));
}

}  // namespace

Status convolve(const ConvolveCall& call, StreamRef stream) {
  if (call.runs.count <= 0 || call.channels <= 0) return {};
  if (call.taps < 2 || call.taps > kMostTaps || call.heads * kConvolvedHead > call.channels || call.out != nullptr)
    return broken("this convolution");
  struct {
    std::uint64_t run, x, weight, bias, borders;
    std::int64_t offset;
    std::int32_t channels, heads, silu;
    float eps;
  } const arguments{address(call.runs.run), address(call.x), address(call.weight), address(call.bias),
                    address(call.borders),  call.offset,     call.channels,        call.heads,
                    call.silu ? 1 : 0,      call.eps};
  constexpr std::int64_t kThreads = kConvolvedHead;  // convolve.comp: a head's norm is a workgroup's
  const auto launch = [&](bool keeps_borders) {
    return put(stream,
               vulkan::dispatch(vulkan::kConvolve, arguments, {groups_of(call.channels, kThreads), call.runs.count},
                                {static_cast<std::uint32_t>(call.taps), keeps_borders ? 1u : 0u}));
  };
  if (call.borders != nullptr) MR_RETURN_IF_ERROR(launch(true));
  return launch(false);
}

Status delta_rule(const DeltaRuleCall& call, StreamRef stream) {
  if (call.channel_decays) return broken("a decay for each key");
  StateRows rows{};
  rows.offset = call.offset;
  rows.x = address(call.qkv);
  rows.step = address(call.beta);
  rows.decay = address(call.decay);
  rows.out = address(call.out);
  rows.groups = call.key_heads;
  rows.heads = call.value_heads;
  rows.keys = call.key_dim;
  rows.head_dim = call.value_dim;
  rows.tiled = call.tiled ? 1 : 0;
  rows.scale = call.scale;
  return go_through(call.runs, rows, Rule::delta, stream);
}

Status scan(const ScanCall& call, StreamRef stream) {
  StateRows rows{};
  rows.offset = call.offset;
  rows.x = address(call.x);
  rows.step = address(call.step);
  rows.decay = address(call.decay);
  rows.skip = address(call.skip);
  rows.out = address(call.out);
  rows.groups = call.groups;
  rows.heads = call.heads;
  rows.keys = call.keys;
  rows.head_dim = call.head_dim;
  return go_through(call.runs, rows, Rule::scan, stream);
}

Status time_step(float* decay, float* step, const std::byte* const* a, const std::byte* const* bias, std::int32_t rows,
                 std::int32_t cols, std::int32_t together, float bound, StreamRef stream) {
  const std::int64_t elements = std::int64_t{rows} * cols;
  if (elements <= 0) return {};
  if (together != 1 || bound != 0) return broken("factors that neighbours share, or decays with a bound");
  struct {
    std::uint64_t decay, step, a, bias;
    std::uint32_t elements, cols;
  } const arguments{address(decay),
                    address(step),
                    address(a),
                    address(bias),
                    static_cast<std::uint32_t>(elements),
                    static_cast<std::uint32_t>(cols)};
  return put(stream, vulkan::dispatch(vulkan::kTimeStep, arguments, {std::min(groups_of(elements, 64), kMostGroups)}));
}

Status l2_norm_heads(float* x, std::int64_t cols, std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                     float eps, StreamRef stream) {
  const std::int64_t all = std::int64_t{rows} * heads;
  if (all <= 0) return {};
  struct {
    std::uint64_t x;
    std::int64_t cols;
    std::int32_t all_heads, heads, head_dim;
    float eps;
  } const arguments{address(x), cols, static_cast<std::int32_t>(all), heads, head_dim, eps};
  constexpr std::int64_t kHeads = 4;  // of a workgroup
  return put(stream, vulkan::dispatch(vulkan::kL2Norm, arguments, vulkan::spread(groups_of(all, kHeads))));
}

}  // namespace millrace::kernels::gpu
