// What a GPU's memory and its link to the host really move.
#include <algorithm>

#include "device/cuda_runtime.h"
#include "residency/calibrate.h"

namespace millrace::residency {
namespace {

constexpr std::size_t kMostBytes = std::size_t{512} << 20;
constexpr std::size_t kHostBytes = std::size_t{64} << 20;
constexpr int kCopies = 16;

/// Bytes a second of the copies that `copy` puts on the stream, the best of three rounds.
template <typename Copy>
Expected<double> rate(const device::Stream& stream, std::size_t bytes, Copy copy) {
  MR_ASSIGN_OR_RETURN(const device::Event begin, device::Event::create(true));
  MR_ASSIGN_OR_RETURN(const device::Event end, device::Event::create(true));
  double best = 0;
  for (int round = 0; round < 4; ++round) {  // the first one warms up
    MR_CUDA(cudaEventRecord(begin.get(), stream.get()));
    for (int i = 0; i < kCopies; ++i) MR_CUDA(copy());
    MR_CUDA(cudaEventRecord(end.get(), stream.get()));
    MR_CUDA(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    MR_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (round > 0 && milliseconds > 0)
      best = std::max(best, static_cast<double>(bytes) * kCopies / (static_cast<double>(milliseconds) * 1e-3));
  }
  return best;
}

}  // namespace

Status measure_gpu(Rates& rates) {
  MR_ASSIGN_OR_RETURN(const device::VramState state, device::vram_state());
  const std::size_t bytes = std::min<std::size_t>(kMostBytes, state.free_bytes / 4);
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer from, device::DeviceBuffer::allocate(bytes));
  MR_ASSIGN_OR_RETURN(const device::DeviceBuffer to, device::DeviceBuffer::allocate(bytes));
  MR_ASSIGN_OR_RETURN(const device::Stream stream, device::Stream::create());
  MR_ASSIGN_OR_RETURN(rates.device_memory, rate(stream, 2 * bytes, [&] {
                        return cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream.get());
                      }));
  const std::size_t host_bytes = std::min(kHostBytes, bytes);
  MR_ASSIGN_OR_RETURN(const device::PinnedBuffer host, device::PinnedBuffer::allocate(host_bytes));
  MR_ASSIGN_OR_RETURN(rates.host_to_device, rate(stream, host_bytes, [&] {
                        return cudaMemcpyAsync(to.data(), host.data(), host_bytes, cudaMemcpyHostToDevice,
                                               stream.get());
                      }));
  return {};
}

}  // namespace millrace::residency
