// What a GPU's memory and its link to the host really move.
#include "residency/calibrate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/gpu.h"
#include "kernels/gpu/ops.h"
#include "kernels/gpu/prompt_int8.h"
#include "tensor/dtype.h"

namespace millrace::residency {
namespace {

/// Bytes a second of the copies that `copy` puts on the stream, in the best round.
template <typename Copy>
Expected<double> rate(const device::Stream& stream, std::size_t bytes, const GpuEffort& effort, Copy copy) {
  MR_ASSIGN_OR_RETURN(const device::Event begin, device::Event::create(true));
  MR_ASSIGN_OR_RETURN(const device::Event end, device::Event::create(true));
  double best = 0;
  for (int round = 0; round < effort.rounds; ++round) {  // the first one warms up
    MR_RETURN_IF_ERROR(device::record(begin, stream));
    for (int i = 0; i < effort.copies; ++i) MR_RETURN_IF_ERROR(copy());
    MR_RETURN_IF_ERROR(device::record(end, stream));
    MR_RETURN_IF_ERROR(device::wait(end));
    MR_ASSIGN_OR_RETURN(const float ms, device::milliseconds(begin, end));
    if (round > 0 && ms > 0)
      best = std::max(best, static_cast<double>(bytes) * effort.copies / (static_cast<double>(ms) * 1e-3));
  }
  return best;
}

/// The name of the GPU that this thread uses.
Expected<std::string> gpu_name() {
  MR_ASSIGN_OR_RETURN(const int index, device::present_gpu());
  MR_ASSIGN_OR_RETURN(device::Gpu gpu, device::gpu(index));
  return std::move(gpu.name);
}

/// What the link and the processor did side by side, a second.
struct Both {
  double copied = 0, worked = 0;
};

/// Copies with work() going on all the time.
Expected<Both> measure_both(const device::Stream& stream, const device::PinnedBuffer& host, std::byte* to,
                            std::size_t bytes, const std::function<std::uint64_t()>& work, double busy_seconds) {
  constexpr int kAtOnce = 4;  // so that the link rests for next to nothing between them
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  std::atomic<bool> ended{false};
  double worked = 0, working = 0;
  std::thread worker([&] {
    work();  // its threads wake
    const auto begin = Clock::now();
    while (!ended) worked += static_cast<double>(work());
    working = seconds(begin);
  });
  Status copied;
  double copies = 0;
  const auto begin = Clock::now();
  while (copied.ok() && seconds(begin) < busy_seconds) {
    for (int i = 0; i < kAtOnce && copied.ok(); ++i, ++copies)
      copied = device::copy_to_device(to, host.data(), bytes, stream);
    if (copied.ok()) copied = stream.synchronise();
  }
  const double copying = seconds(begin);
  ended = true;
  worker.join();
  MR_RETURN_IF_ERROR(copied);
  return Both{static_cast<double>(bytes) * copies / copying, working > 0 ? worked / working : 0};
}

}  // namespace

Status with_page_locked(std::uint64_t bytes, const std::function<Status(std::span<std::byte>)>& use) {
  MR_ASSIGN_OR_RETURN(const device::PinnedBuffer memory, device::PinnedBuffer::allocate(bytes));
  return use({memory.data(), memory.bytes()});
}

Expected<double> measure_links(const std::vector<int>& gpus) {
  constexpr std::size_t kBytes = 256u << 20;  // more than the processor's cache keeps
  constexpr int kCopies = 16;
  struct Link {
    device::DeviceBuffer to;
    device::PinnedBuffer from;
    device::Stream stream;
  };
  std::vector<Link> links(gpus.size());
  for (std::size_t g = 0; g < gpus.size(); ++g) {
    const device::OnGpu on(gpus[g]);
    MR_ASSIGN_OR_RETURN(links[g].to, device::DeviceBuffer::allocate(kBytes));
    MR_ASSIGN_OR_RETURN(links[g].from, device::PinnedBuffer::allocate(kBytes));
    MR_ASSIGN_OR_RETURN(links[g].stream, device::Stream::create());
  }
  double best = 0;
  for (int round = 0; round < 6; ++round) {  // the first one warms up
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCopies; ++i)
      for (std::size_t g = 0; g < gpus.size(); ++g) {
        const device::OnGpu on(gpus[g]);
        MR_RETURN_IF_ERROR(device::copy_to_device(links[g].to.data(), links[g].from.data(), kBytes, links[g].stream));
      }
    for (const Link& link : links) MR_RETURN_IF_ERROR(link.stream.synchronise());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (round > 0)
      best = std::max(best, static_cast<double>(kBytes) * kCopies * static_cast<double>(gpus.size()) / seconds);
  }
  return best;
}

Status measure_gpu_products(Rates& rates) {
  namespace gpu = kernels::gpu;
  constexpr std::int32_t kCols = 4096, kWeightRows = 8192, kRows = 2048;
  // Finite numbers in every format that looks at them, and bits that switch.
  constexpr int kPattern = 0x33;
  const auto weight_bytes = static_cast<std::size_t>(kWeightRows * row_bytes(DType::q4_k, kCols)) + 256;
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer weights, device::DeviceBuffer::allocate(weight_bytes));
  constexpr std::size_t kInputBytes =
      std::max({gpu::bf16_bytes(kRows, kCols), gpu::q8_bytes(kRows, kCols), gpu::prompt_int8_bytes(kRows, kCols)});
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer x, device::DeviceBuffer::allocate(kInputBytes));
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer y,
                      device::DeviceBuffer::allocate(sizeof(float) * kRows * std::size_t{kWeightRows}));
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer entry, device::DeviceBuffer::allocate(sizeof(std::byte*)));
  MR_ASSIGN_OR_RETURN(const device::Stream stream, device::Stream::create());
  const std::byte* const address = weights.data();
  MR_RETURN_IF_ERROR(device::write_device(entry.data(), &address, sizeof address));
  MR_RETURN_IF_ERROR(device::fill_device(weights.data(), kPattern, weight_bytes, stream));
  MR_RETURN_IF_ERROR(device::fill_device(x.data(), kPattern, x.bytes(), stream));
  gpu::MatmulCall call;
  call.products[0].weight = {reinterpret_cast<const std::byte* const*>(entry.data()), DType::q4_k, kWeightRows};
  call.products[0].y = reinterpret_cast<float*>(y.data());
  call.products[0].y_stride = kWeightRows;
  call.count = 1;
  call.cols = kCols;
  call.x_rows = kRows;
  switch (gpu::prompt_products()) {
    case gpu::PromptProducts::bf16:
      call.x_bf16 = reinterpret_cast<const gpu::Bf16*>(x.data());
      break;
    case gpu::PromptProducts::int8:
      call.x_rounded = gpu::prompt_int8_at(x.data(), kRows, kCols);
      break;
    case gpu::PromptProducts::none:
      call.x_q8 = gpu::q8_at(x.data(), kRows, kCols);
  }
  const auto multiply = [&] { return call.of_prompt() ? gpu::matmul_prompt(call, stream) : gpu::matmul(call, stream); };
  constexpr double kMacs = double{kRows} * kCols * kWeightRows;
  GpuEffort effort;
  MR_ASSIGN_OR_RETURN(rates.device_prefill_macs, rate(stream, static_cast<std::size_t>(kMacs), effort, multiply));
  return {};
}

Status measure_gpu(Rates& rates, const HostWork& work, const GpuEffort& effort) {
  MR_ASSIGN_OR_RETURN(rates.gpu, gpu_name());
  MR_ASSIGN_OR_RETURN(const device::VramState state, device::vram_state());
  const std::size_t bytes = std::min<std::size_t>(effort.device_bytes / 2, state.free_bytes / 4);
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer from, device::DeviceBuffer::allocate(bytes));
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer to, device::DeviceBuffer::allocate(bytes));
  MR_ASSIGN_OR_RETURN(const device::Stream stream, device::Stream::create());
  MR_ASSIGN_OR_RETURN(rates.device_memory, rate(stream, 2 * bytes, effort, [&] {
                        return device::copy_on_device(to.data(), from.data(), bytes, stream);
                      }));
  const std::size_t host_bytes = std::min<std::size_t>(effort.host_bytes, bytes);
  MR_ASSIGN_OR_RETURN(const device::PinnedBuffer host, device::PinnedBuffer::allocate(host_bytes));
  MR_ASSIGN_OR_RETURN(rates.host_to_device, rate(stream, host_bytes, effort, [&] {
                        return device::copy_to_device(to.data(), host.data(), host_bytes, stream);
                      }));
  const auto both = [&](const std::function<std::uint64_t()>& meanwhile) {
    return measure_both(stream, host, to.data(), host_bytes, meanwhile, effort.busy_seconds);
  };
  if (work.decode) {
    MR_ASSIGN_OR_RETURN(const Both reading, both(work.decode));
    rates.host_to_device_busy = reading.copied;
    rates.cpu_decode_busy = reading.worked;
  }
  if (work.few_rows) {
    MR_ASSIGN_OR_RETURN(const Both multiplying, both(work.few_rows));
    rates.cpu_few_macs = multiplying.worked;
  }
  return {};
}

}  // namespace millrace::residency
