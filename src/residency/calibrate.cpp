#include "residency/calibrate.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "device/cpu.h"
#include "device/gpu.h"
#include "device/host_memory.h"
#include "residency/calibrate_parts.h"
#include "residency/kernel_probe.h"

namespace millrace::residency {
namespace {

/// As much as may be read at once: far more than the caches hold, and no danger to anybody.
std::uint64_t working_bytes(const CalibrateOptions& options) {
  const device::MemoryLimits limits = device::memory_limits();
  const std::uint64_t room = std::min(limits.available_bytes, limits.cgroup_bytes) / 4;
  return std::max(round_down(std::min(options.memory_bytes, room), device::kHugePageBytes), device::kHugePageBytes);
}

/// Every type but Q4_K, as many as a model may have.
std::vector<TypeRates> measure_types(KernelProbe& probe, const Rates& known, double seconds_each,
                                     const CalibrateProgress& tell) {
  constexpr double kShorter = 1.0 / 20;
  constexpr double kBegin = 0.85, kEnd = 0.95;
  std::vector<DType> dtypes;
  for (const DTypeInfo& type : all_dtypes())
    if (type.computable && type.dtype != DType::q4_k) dtypes.push_back(type.dtype);
  std::vector<TypeRates> types;
  for (const DType dtype : dtypes) {
    const double done = static_cast<double>(types.size()) / static_cast<double>(dtypes.size());
    tell(fmt::format("kernels of {}", info(dtype).name), kBegin + (kEnd - kBegin) * done);
    types.push_back(probe.of_type(dtype, known, seconds_each * kShorter));
  }
  return types;
}

/// The GPU, its link, and both beside the processor, which computes from memory like that in which a model's layers
/// wait for the GPU: page-locked, and backed as such memory is. On a machine of several memory nodes other memory is
/// faster.
Status measure_beside_gpu(const CalibrateOptions& options, std::uint64_t memory_bytes, Rates& rates) {
  if (options.kernels == nullptr) return measure_gpu(rates);
  return with_page_locked(memory_bytes, [&](std::span<std::byte> memory) {
    ThreadPool beside({.threads = threads_beside_gpu(options.threads), .pin = true});
    KernelProbe probe(*options.kernels, beside, memory, kUndisturbed);
    MR_RETURN_IF_ERROR(probe.prepare());
    return measure_gpu(rates, probe.work());
  });
}

}  // namespace

Expected<Rates> calibrate(const CalibrateOptions& options, const CalibrateProgress& progress) {
  const auto tell = [&](std::string_view what, double done) {
    if (progress) progress(what, done);
  };
  Rates rates;
  MR_ASSIGN_OR_RETURN(rates.machine, machine_key(options.path));
  tell("disk", 0);
  MR_ASSIGN_OR_RETURN(const DiskRates disk, measure_disk(options));
  rates.disk = disk.bytes_per_second;
  rates.disk_latency = disk.latency_seconds;
  rates.directstorage = disk.directstorage;

  if (options.disk_only) {
    tell("done", 1);
    return rates;
  }
  tell("memory", 0.4);
  ThreadPool pool({.threads = options.threads, .pin = true});
  MR_ASSIGN_OR_RETURN(const device::HostBuffer memory,
                      device::HostBuffer::reserve(working_bytes(options), device::Pages::huge));
  pool.parallel_for(static_cast<std::int64_t>(memory.bytes()), static_cast<std::int64_t>(device::kHugePageBytes),
                    [&](std::int64_t begin, std::int64_t end, int) {
                      std::memset(memory.data() + begin, 1, static_cast<std::size_t>(end - begin));
                    });
  rates.ram = measure_ram(pool, {memory.data(), memory.bytes()}, options.seconds_each, kUndisturbed);

  if (options.kernels != nullptr) {
    tell("decode kernels", 0.6);
    KernelProbe probe(*options.kernels, pool, {memory.data(), memory.bytes()}, kUndisturbed);
    MR_RETURN_IF_ERROR(probe.prepare());
    // Both are reads of the same memory: a decode that seems faster than RAM met a faster moment of the machine.
    rates.cpu_decode = probe.decode_rate(options.seconds_each);
    rates.ram = std::max(rates.ram, rates.cpu_decode);
    rates.cpu_product = probe.product_seconds(options.seconds_each / 2, rates.cpu_decode);
    tell("prompt kernels", 0.8);
    rates.cpu_prefill_macs = probe.prompt_rate(options.seconds_each);
    rates.cpu_rows_macs = probe.rows_rate(options.seconds_each / 2);
    rates.types = measure_types(probe, rates, options.seconds_each, tell);
  }
  if (device::gpus_are_for_auto() && device::gpus().ok()) {
    tell("GPU", 0.95);
    MR_RETURN_IF_ERROR(measure_beside_gpu(options, memory.bytes(), rates));
    if (const Status measured = measure_gpu_products(rates); !measured.ok())
      log::warn("calibrate: {}; the speed of prompts on the GPU is not predicted", measured.message());
  }
  tell("done", 1);
  return rates;
}

int threads_beside_gpu(int asked, int processors) {
  constexpr int kMany = 8;
  if (processors <= 0) processors = ThreadPool::usable_processors();
  return asked > 0 ? asked : processors >= kMany ? processors - 1 : processors;
}

#ifndef MILLRACE_HAS_GPU
Status measure_gpu(Rates& /*rates*/, const HostWork& /*work*/, const GpuEffort& /*effort*/) {
  return device::gpus().status();
}
Status measure_gpu_products(Rates& /*rates*/) { return device::gpus().status(); }
Status with_page_locked(std::uint64_t /*bytes*/, const std::function<Status(std::span<std::byte>)>& /*use*/) {
  return device::gpus().status();
}
Expected<double> measure_links(const std::vector<int>& /*gpus*/) { return device::gpus().status(); }
#endif

}  // namespace millrace::residency
