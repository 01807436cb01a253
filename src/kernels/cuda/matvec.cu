// matvec() and matvec_experts(): the plan of a launch (kernel, units, ring, grid) and the launch.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/gpu.h"
#include "kernels/cuda/capability.h"
#include "kernels/cuda/float_matmul.cuh"
#include "kernels/cuda/matvec_kernel.cuh"

namespace millrace::kernels::cuda {

#ifdef MATVEC_TUNING
MatvecTuning matvec_tuning;
#endif

namespace {

constexpr int kMaxDevices = 64;
constexpr int kSumItems = 64;  // segments, about, that are summed at once

struct DeviceLimits {
  int sms = 0, block_shared = 0, sm_shared = 0;
};

/// Of every device, asked once.
const std::vector<DeviceLimits>& device_limits() {
  static const std::vector<DeviceLimits> all = [] {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    std::vector<DeviceLimits> devices(static_cast<std::size_t>(std::min(count, kMaxDevices)));
    for (int i = 0; i < static_cast<int>(devices.size()); ++i) {
      DeviceLimits& d = devices[static_cast<std::size_t>(i)];
      cudaDeviceGetAttribute(&d.sms, cudaDevAttrMultiProcessorCount, i);
      cudaDeviceGetAttribute(&d.block_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, i);
      cudaDeviceGetAttribute(&d.sm_shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, i);
      if (pretends_less_shared()) {
        d.block_shared = static_cast<int>(device::at_most_block_shared(static_cast<std::uint64_t>(d.block_shared)));
        d.sm_shared = std::min(d.sm_shared, d.block_shared + 1024);
      }
    }
    return devices;
  }();
  return all;
}

constexpr int div_up(int a, int b) { return (a + b - 1) / b; }

MatvecKernel kernel_for(DType dtype, int x_rows, std::int64_t row_bytes, int cols) {
  switch (dtype) {
    case DType::q4_0:
    case DType::q4_1:
    case DType::iq4_nl:
    case DType::mxfp4:
    case DType::nvfp4:
      return matvec_kernel_nibbles(dtype, x_rows, cols % kSegment != 0);
    case DType::q5_0:
    case DType::q5_1:
    case DType::q8_0:
      return matvec_kernel_bytes(dtype, x_rows, cols % kSegment != 0);
    case DType::q1_0:
    case DType::q2_0:
      return matvec_kernel_fields(dtype, x_rows, cols % kSegment != 0);
    case DType::f16:
    case DType::bf16:
    case DType::f32:
      return matvec_kernel_float(dtype, x_rows, row_bytes % 16 != 0);
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
    case DType::iq4_xs:
      return matvec_kernel_super(dtype, x_rows);
    default:
      return matvec_kernel_grid(dtype, x_rows);
  }
}

struct Launch {
  int grid = 0, warps = 0;
  std::size_t shared_bytes = 0;
};

/// Lays shared memory out for a.stages.
void lay_out(MatvecArgs& a, const MatvecKernel& kernel, int granules, Launch& launch) {
  a.block_granules = granules / launch.grid;
  a.blocks_with_one_more = granules % launch.grid;
  const int block_rows = div_up(granules, launch.grid) * a.granule_rows;
  a.warp_rows = div_up(block_rows, launch.warps);
  int x_rows = kernel.rows;
  if (a.chosen != nullptr) {
    // That a range of n things covers at most.
    const auto groups = [](int n, const Divisor& of) {
      const int size = static_cast<int>(of.value);
      return (n - 2 + 2 * size) / size;
    };
    x_rows = groups(groups(block_rows, a.matrix_rows), a.entries_per_x);
  }
  std::size_t at = 0;
  const auto take = [&](std::int64_t bytes) {
    const std::size_t start = at;
    at += static_cast<std::size_t>((bytes + 15) / 16 * 16);
    return static_cast<std::int32_t>(start);
  };
  const std::int64_t warps = launch.warps;
  take(kernel.point_bytes);
  a.ring_at = take(warps * a.stages * 2 * a.half_bytes);
  a.x_at = take(static_cast<std::int64_t>(x_rows) * a.segments * kernel.x_stride);
  a.partial_at = take(warps * a.partial_items * 2 * kernel.rows * 4);
  a.result_at = take(a.y_q8.q != nullptr ? 4 * block_rows * kernel.rows : 0);
  a.barrier_at = take(warps * a.stages * 8);
  launch.shared_bytes = at;
}

/// For experts, whose few rows leave a warp only some tiles: as many warps as have the fewest tiles altogether, because
/// a tile takes its time however few of its lanes have work. Nothing waits in line for the rest of the memory: the
/// kernel after can order nothing before this one ends. False if their memory does not suffice.
bool choose_warps(MatvecArgs& a, const MatvecKernel& kernel, int granules, const DeviceLimits& device, Launch& launch) {
  launch.grid = std::min(granules, device.sms);
  const int block_rows = div_up(granules, launch.grid) * a.granule_rows;
  const int lists = a.effect == MatvecArgs::kPair ? 1 : 2;  // that a warp's rows are split into
  const auto tiles = [&](int warps) {
    return div_up(div_up(div_up(block_rows, warps), lists) * a.segments, a.tile_items);
  };
  int best = 8;
  for (int warps = 9; warps <= matvec_threads(kernel.rows) / 32; ++warps) {
    if (warps * tiles(warps) < best * tiles(best)) best = warps;
  }
  launch.warps = best;
  for (a.stages = std::min(3, tiles(best) + 1); a.stages >= std::min(2, tiles(best)); --a.stages) {
    lay_out(a, kernel, granules, launch);
    if (launch.shared_bytes <= static_cast<std::size_t>(device.block_shared)) return true;
  }
  return false;
}

/// Picks warps, stages and grid; false if the device's shared memory does not suffice.
bool choose(MatvecArgs& a, const MatvecKernel& kernel, int granules, const DeviceLimits& device, Launch& launch) {
  const auto fits = [&](int warps, int stages, std::size_t budget, int waves) {
    launch.grid = std::min(granules, waves * device.sms);
    launch.warps = warps;
    a.stages = stages;
    lay_out(a, kernel, granules, launch);
    return launch.shared_bytes <= budget;
  };
  const std::size_t all = static_cast<std::size_t>(device.block_shared);
#ifdef MATVEC_TUNING
  if (matvec_tuning.warps != 0) {
    return fits(matvec_tuning.warps, matvec_tuning.stages, all, std::max(matvec_tuning.waves, 1));
  }
#endif
  if (a.chosen != nullptr && choose_warps(a, kernel, granules, device, launch)) return true;
  // About two thirds of an SM's memory in flight reach the device's full rate.
  const std::size_t most = static_cast<std::size_t>(device.sm_shared) * 2 / 3;
  for (int stages = 3; stages >= 2; --stages) {
    if (fits(8, stages, most, 1)) return true;
  }
  for (int warps = 8; warps >= 1; warps /= 2) {
    for (int stages = 3; stages >= 1; --stages) {
      if (fits(warps, stages, all, 1)) return true;
    }
  }
  return fits(1, 1, all, 16) || fits(1, 1, all, 256);
}

/// Plans and launches. cudaErrorInvalidConfiguration: the activations do not fit in shared memory.
cudaError_t launch_matvec(MatvecArgs& a, DType dtype, int x_rows, int entries, cudaStream_t stream) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (device >= static_cast<int>(device_limits().size())) return cudaErrorInvalidDevice;
  const DeviceLimits& limits = device_limits()[static_cast<std::size_t>(device)];
  const MatvecKernel kernel = kernel_for(dtype, x_rows, a.row_bytes, a.cols);
  if (kernel.function == nullptr) return cudaErrorInvalidValue;

  a.segments = div_up(a.cols, kSegment);
  a.tile_items = kernel.weight_stride <= 304 ? 32 : kernel.weight_stride <= 640 ? 16 : 8;
#ifdef MATVEC_TUNING
  if (matvec_tuning.tile_items != 0) a.tile_items = matvec_tuning.tile_items;
#endif
  a.tile_rows = a.tile_items / a.segments;
  a.tile_segments = a.tile_items % a.segments;
  a.by_segments = Divisor(a.segments);
  a.by_row_blocks = Divisor(std::max(a.cols / 32, 1));
  a.sum_rows = std::clamp(kSumItems / a.segments, 1, 16 / kernel.rows);
#ifdef MATVEC_TUNING
  if (matvec_tuning.sum_rows != 0) a.sum_rows = matvec_tuning.sum_rows;
#endif
#ifdef MATVEC_TUNING
  a.stamps = matvec_tuning.stamps;
  a.early = matvec_tuning.early;
  if (matvec_tuning.stamps != nullptr) matvec_tuning.stamps += 8 * 1024;
#endif
  a.by_sum_rows = Divisor(a.sum_rows);
  a.partial_items = div_up(a.sum_rows * a.segments + a.tile_items, a.segments) * a.segments;
  a.half_bytes = (a.tile_items * kernel.weight_stride + 32 + 15) / 16 * 16;
  a.granule_rows = a.y_q8.q != nullptr ? 32 : 1;
  int rows = a.first_row[a.products];
  if (rows == 0) return cudaSuccess;
  a.matrix_rows = Divisor(rows);
  rows *= entries;
  const int granules = div_up(rows, a.granule_rows);
  Launch plan;
  if (!choose(a, kernel, granules, limits, plan)) return cudaErrorInvalidConfiguration;

  const std::uint64_t bit = std::uint64_t{1} << device;
  if ((kernel.prepared->load(std::memory_order_acquire) & bit) == 0) {
    const void* function = reinterpret_cast<const void*>(kernel.function);
    // All of it to shared memory, for this kernel and those beside it: an SM changes the split only when it is idle.
    for (const auto& [attribute, value] : {std::pair{cudaFuncAttributeMaxDynamicSharedMemorySize, limits.block_shared},
                                           std::pair{cudaFuncAttributePreferredSharedMemoryCarveout, 100}}) {
      if (const cudaError_t error = cudaFuncSetAttribute(function, attribute, value); error != cudaSuccess)
        return error;
    }
    kernel.prepared->fetch_or(bit, std::memory_order_release);
  }

  return launch(kernel.function, plan.grid, 32 * plan.warps, plan.shared_bytes, stream, a);
}

/// x rows [first, first + count) of the products picked, all of one dtype; call.products are those of a pair. ready: if
/// the launch before is the one that tells it.
cudaError_t matvec_rows(const MatmulCall& call, const Product* const* picked, int products, MatvecArgs::Effect effect,
                        int first, int count, const std::int32_t* ready, cudaStream_t stream) {
  MatvecArgs a{};
  const DType dtype = picked[0]->weight.dtype;
  const auto bias_of = [&](const Product& p) {
    if (p.addend == nullptr) return p.bias;
    a.addends = true;
    return reinterpret_cast<const std::byte* const*>(p.addend + std::int64_t{first} * p.weight.rows);
  };
  a.products = products;
  for (int i = 0; i < products; ++i) {
    const Product& p = *picked[i];
    const Product& target = effect == MatvecArgs::kGated ? call.products[0] : p;
    a.weight[i] = p.weight.address;
    a.bias[i] = bias_of(p);
    a.y_stride[i] = target.y_stride;
    a.y[i] = target.y == nullptr ? nullptr : target.y + first * target.y_stride;
    a.first_row[i + 1] = a.first_row[i] + p.weight.rows;
  }
  if (effect == MatvecArgs::kPair) {
    a.up = call.products[1].weight.address;
    a.bias[1] = bias_of(call.products[1]);
  }
  a.effect = effect;
  a.gate = gate_of(call.activation, call.limit);
  a.ready = ready;
  a.cols = call.cols;
  a.x_rows = count;
  a.row_bytes = row_bytes(dtype, call.cols);
  if (call.x != nullptr) a.x = call.x + first * call.x_stride;
  a.x_stride = call.x_stride;
  const std::int64_t blocks = call.cols / 32, y_blocks = a.first_row[1] / 32;
  if (call.x_q8.q != nullptr) a.x_q8 = {call.x_q8.q + first * call.cols, call.x_q8.scale + first * blocks};
  if (call.y_q8.q != nullptr && effect >= MatvecArgs::kPair) {
    a.y_q8 = {call.y_q8.q + std::int64_t{first} * a.first_row[1], call.y_q8.scale + first * y_blocks};
  }
  const cudaError_t error = launch_matvec(a, dtype, count, 1, stream);
  if (error != cudaErrorInvalidConfiguration) return error;

  // Very long rows: fewer at a time, at last as the product of many rows, which holds none of them whole.
  if (count > 1) {
    const int half = count / 2;
    const cudaError_t done = matvec_rows(call, picked, products, effect, first, half, ready, stream);
    return done != cudaSuccess
               ? done
               : matvec_rows(call, picked, products, effect, first + half, count - half, nullptr, stream);
  }
  if (effect == MatvecArgs::kGated) return error;  // whose gate is computed already
  MatmulCall one = call;
  one.x_rows = 1;
  one.x = a.x;
  one.x_q8 = a.x_q8;
  one.y_q8 = a.y_q8;
  if (effect != MatvecArgs::kPair) {
    one.count = products;
    for (int i = 0; i < products; ++i) one.products[i] = *picked[i];
  }
  if (std::any_of(one.products, one.products + one.count, [](const Product& p) { return p.addend != nullptr; }))
    return cudaErrorInvalidValue;
  for (int i = 0; i < one.count; ++i)
    if (one.products[i].y != nullptr) one.products[i].y += first * one.products[i].y_stride;
  return matmul(one, stream);
}

}  // namespace

cudaError_t matvec(const MatmulCall& call, cudaStream_t stream) {
  if (call.x_rows == 0 || call.count == 0) return cudaSuccess;
  // They take each other's place.
  const auto added = [](const Product& p) { return p.addend != nullptr; };
  const auto biased = [](const Product& p) { return p.bias != nullptr; };
  const Product *const first = call.products, *const end = first + call.count;
  if (std::any_of(first, end, [&](const Product& p) { return added(p) && biased(p); })) return cudaErrorInvalidValue;
  if (call.effect == Effect::gated) {
    if (std::any_of(first, end, added) && std::any_of(first, end, biased)) return cudaErrorInvalidValue;
    const Product *const gate = &call.products[0], *const up = &call.products[1];
    if (call.products[0].weight.dtype == call.products[1].weight.dtype) {
      return matvec_rows(call, &gate, 1, MatvecArgs::kPair, 0, call.x_rows, call.ready, stream);
    }
    if (call.products[0].y == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = matvec_rows(call, &gate, 1, MatvecArgs::kStore, 0, call.x_rows, call.ready, stream);
    return error != cudaSuccess ? error
                                : matvec_rows(call, &up, 1, MatvecArgs::kGated, 0, call.x_rows, nullptr, stream);
  }
  // One launch a dtype, and another where some have biases and others addends.
  bool done[kMostProducts] = {};
  for (int p = 0; p < call.count; ++p) {
    const Product* picked[kMostProducts];
    int products = 0;
    for (int other = p; other < call.count; ++other) {
      const Product &one = call.products[p], &next = call.products[other];
      if (!done[other] && next.weight.dtype == one.weight.dtype &&
          (next.addend == nullptr) == (one.addend == nullptr)) {
        picked[products++] = &call.products[other];
        done[other] = true;
      }
    }
    if (products == 0) continue;
    const auto effect = call.effect == Effect::add ? MatvecArgs::kAdd : MatvecArgs::kStore;
    const std::int32_t* const ready = p == 0 ? call.ready : nullptr;
    const cudaError_t error = matvec_rows(call, picked, products, effect, 0, call.x_rows, ready, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t matvec_experts(const ExpertCall& call, cudaStream_t stream) {
  if (call.entries == 0) return cudaSuccess;
  if (call.shared != nullptr &&
      (call.bias != nullptr || call.up_bias != nullptr || call.scale != nullptr || call.up_scale != nullptr))
    return cudaErrorInvalidValue;
  const auto launch = [&](const std::byte* const* weight, DType dtype, MatvecArgs::Effect effect) {
    MatvecArgs a{};
    a.products = 1;
    a.weight[0] = weight;
    a.up = call.up;
    a.first_row[1] = call.rows;
    a.y[0] = call.y;
    a.y_stride[0] = call.rows;
    if (effect != MatvecArgs::kStore || call.effect == Effect::store) a.y_q8 = call.y_q8;
    a.effect = effect;
    a.gate = gate_of(call.activation, call.limit);
    a.bias[0] = effect == MatvecArgs::kGated ? call.up_bias : call.bias;
    a.bias[1] = call.up_bias;
    a.scale[0] = effect == MatvecArgs::kGated ? call.up_scale : call.scale;
    a.scale[1] = call.up_scale;
    a.chosen = call.chosen;
    a.address_stride = call.address_stride;
    a.bias_stride = call.bias_stride;
    a.shared[0] = effect == MatvecArgs::kGated ? call.shared_up : call.shared;
    a.shared[1] = call.shared_up;
    if (call.shared != nullptr) a.places = Divisor(call.places);
    a.entries_per_x = Divisor(call.entries_per_x);
    a.x = call.x;
    a.x_stride = call.cols;
    a.x_q8 = call.x_q8;
    a.x_rows = 1;
    a.cols = call.cols;
    a.row_bytes = row_bytes(dtype, call.cols);
    return launch_matvec(a, dtype, 1, call.entries, stream);
  };
  if (call.effect != Effect::gated) return launch(call.weight, call.dtype, MatvecArgs::kStore);
  if (call.dtype == call.up_dtype) return launch(call.weight, call.dtype, MatvecArgs::kPair);
  if (call.y == nullptr) return cudaErrorInvalidValue;
  const cudaError_t error = launch(call.weight, call.dtype, MatvecArgs::kStore);
  return error != cudaSuccess ? error : launch(call.up, call.up_dtype, MatvecArgs::kGated);
}

}  // namespace millrace::kernels::cuda
