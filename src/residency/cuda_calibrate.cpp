// What a GPU's memory and its link to the host really move.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda_runtime.h"
#include "device/gpu.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/prompt_int8.h"
#include "residency/calibrate.h"
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
    MR_CUDA(cudaEventRecord(begin.get(), stream.get()));
    for (int i = 0; i < effort.copies; ++i) MR_CUDA(copy());
    MR_CUDA(cudaEventRecord(end.get(), stream.get()));
    MR_CUDA(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    MR_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (round > 0 && milliseconds > 0)
      best = std::max(best, static_cast<double>(bytes) * effort.copies / (static_cast<double>(milliseconds) * 1e-3));
  }
  return best;
}

/// The name of the GPU that this thread uses.
Expected<std::string> present_gpu() {
  int index = 0;
  MR_CUDA(cudaGetDevice(&index));
  MR_ASSIGN_OR_RETURN(const std::vector<device::Gpu> found, device::gpus());
  for (const device::Gpu& gpu : found)
    if (gpu.index == index) return gpu.name;
  return error(Code::unsupported, "GPU {} is not among those here", index);
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
      copied = device::cuda_status(cudaMemcpyAsync(to, host.data(), bytes, cudaMemcpyHostToDevice, stream.get()),
                                   "cudaMemcpyAsync");
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
  namespace cuda = kernels::cuda;
  constexpr std::int32_t kCols = 4096, kWeightRows = 8192, kRows = 2048;
  // Finite numbers in every format that looks at them, and bits that switch.
  constexpr int kPattern = 0x33;
  const auto weight_bytes = static_cast<std::size_t>(kWeightRows * row_bytes(DType::q4_k, kCols)) + 256;
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer weights, device::DeviceBuffer::allocate(weight_bytes));
  constexpr std::size_t kInputBytes =
      std::max({cuda::bf16_bytes(kRows, kCols), cuda::q8_bytes(kRows, kCols), cuda::prompt_int8_bytes(kRows, kCols)});
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer x, device::DeviceBuffer::allocate(kInputBytes));
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer y,
                      device::DeviceBuffer::allocate(sizeof(float) * kRows * std::size_t{kWeightRows}));
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer entry, device::DeviceBuffer::allocate(sizeof(std::byte*)));
  MR_ASSIGN_OR_RETURN(const device::Stream stream, device::Stream::create());
  const std::byte* const address = weights.data();
  MR_RETURN_IF_ERROR(device::write_device(entry.data(), &address, sizeof address));
  MR_CUDA(cudaMemsetAsync(weights.data(), kPattern, weight_bytes, stream.get()));
  MR_CUDA(cudaMemsetAsync(x.data(), kPattern, x.bytes(), stream.get()));
  cuda::MatmulCall call;
  call.products[0].weight = {reinterpret_cast<const std::byte* const*>(entry.data()), DType::q4_k, kWeightRows};
  call.products[0].y = reinterpret_cast<float*>(y.data());
  call.products[0].y_stride = kWeightRows;
  call.count = 1;
  call.cols = kCols;
  call.x_rows = kRows;
  switch (cuda::prompt_products()) {
    case cuda::PromptProducts::bf16:
      call.x_bf16 = reinterpret_cast<const cuda::Bf16*>(x.data());
      break;
    case cuda::PromptProducts::int8:
      call.x_rounded = cuda::prompt_int8_at(x.data(), kRows, kCols);
      break;
    case cuda::PromptProducts::none:
      call.x_q8 = cuda::q8_at(x.data(), kRows, kCols);
  }
  const auto multiply = [&] {
    return call.of_prompt() ? cuda::matmul_prompt(call, stream.get()) : cuda::matmul(call, stream.get());
  };
  constexpr double kMacs = double{kRows} * kCols * kWeightRows;
  GpuEffort effort;
  MR_ASSIGN_OR_RETURN(rates.device_prefill_macs, rate(stream, static_cast<std::size_t>(kMacs), effort, multiply));
  return {};
}

Status measure_gpu(Rates& rates, const HostWork& work, const GpuEffort& effort) {
  MR_ASSIGN_OR_RETURN(rates.gpu, present_gpu());
  MR_ASSIGN_OR_RETURN(const device::VramState state, device::vram_state());
  const std::size_t bytes = std::min<std::size_t>(effort.device_bytes / 2, state.free_bytes / 4);
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer from, device::DeviceBuffer::allocate(bytes));
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer to, device::DeviceBuffer::allocate(bytes));
  MR_ASSIGN_OR_RETURN(const device::Stream stream, device::Stream::create());
  MR_ASSIGN_OR_RETURN(rates.device_memory, rate(stream, 2 * bytes, effort, [&] {
                        return cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream.get());
                      }));
  const std::size_t host_bytes = std::min<std::size_t>(effort.host_bytes, bytes);
  MR_ASSIGN_OR_RETURN(const device::PinnedBuffer host, device::PinnedBuffer::allocate(host_bytes));
  MR_ASSIGN_OR_RETURN(rates.host_to_device, rate(stream, host_bytes, effort, [&] {
                        return cudaMemcpyAsync(to.data(), host.data(), host_bytes, cudaMemcpyHostToDevice,
                                               stream.get());
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
