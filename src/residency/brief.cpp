#include "residency/brief.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "device/gpu.h"
#include "device/host_memory.h"
#include "residency/calibrate_parts.h"
#include "residency/kernel_probe.h"

namespace millrace::residency {
namespace {

constexpr double kDiskSeconds = 0.3, kEachSeconds = 0.1;
constexpr std::uint64_t kDiskPart = 16;   // of the model's bytes, one of so many is read
constexpr std::uint64_t kMemoryPart = 4;  // and computed with at once, so that small models are not waited for
constexpr double kLeastPart = 0.05;       // of the weights: types below it go at the usual rate
// Of memory: more than the caches of processors keep; page-locked memory takes its time, and is of large machines.
constexpr std::uint64_t kMostHostBytes = 256 * kMiB, kMostLockedBytes = 1024 * kMiB, kLeastHostBytes = 16 * kMiB;

/// Types of weights that are worth a measurement, most bytes first, Q4_K aside, which others are measured beside.
std::vector<DType> types_of(const std::vector<TypeWeights>& weights) {
  double all = 0;
  for (const TypeWeights& part : weights) all += part.bytes;
  std::vector<TypeWeights> large;
  for (const TypeWeights& part : weights)
    if (part.dtype != DType::q4_k && part.bytes >= kLeastPart * all && info(part.dtype).computable)
      large.push_back(part);
  std::sort(large.begin(), large.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::vector<DType> types;
  for (const TypeWeights& part : large) types.push_back(part.dtype);
  return types;
}

bool knows_type(const Rates& rates, DType dtype) {
  return std::any_of(rates.types.begin(), rates.types.end(), [&](const TypeRates& of) { return of.dtype == dtype; });
}

/// A calibration of an older version knows one type; it is believed as it is.
bool lacks_types(const Rates& rates, const BriefOptions& options) {
  if (!rates.brief && rates.cpu_decode > 0) return false;
  const std::vector<DType> types = types_of(options.weights);
  return std::any_of(types.begin(), types.end(), [&](DType dtype) { return !knows_type(rates, dtype); });
}

bool lacks_processor(const Rates& rates, const BriefOptions& options) {
  return options.kernels != nullptr && (rates.cpu_decode <= 0 || lacks_types(rates, options));
}
bool lacks_gpu(const Rates& rates, const BriefOptions& options) {
  return options.gpu && (rates.host_to_device <= 0 || rates.device_memory <= 0);
}

class Measurement {
 public:
  Measurement(const Rates& known, const BriefOptions& options) : options_(options), rates_(known) {}

  Expected<Rates> run() {
    MR_ASSIGN_OR_RETURN(const std::string machine, machine_key(options_.paths.front()));
    if (rates_.disk <= 0) part("the disk", disk());
    if (rates_.disk > 0)
      most_seconds_ = std::min(most_seconds_, static_cast<double>(options_.model_bytes) / rates_.disk);
    if (lacks_processor(rates_, options_) || lacks_gpu(rates_, options_)) part("the processor", processor());
    if (rates_.known()) rates_.machine = machine;
    return rates_;
  }

 private:
  /// A part that was not measured is no reason to fail.
  static void part(std::string_view what, const Status& status) {
    if (!status.ok()) log::info("rates of {} not measured: {}", what, status.message());
  }
  bool has_time() const { return seconds_since(begin_) < most_seconds_; }
  /// For one of several measurements to come.
  double each() const { return std::clamp((most_seconds_ - seconds_since(begin_)) / 16, 0.005, kEachSeconds); }

  /// Of the host's memory, for copies to the GPU.
  std::uint64_t link_bytes() const { return options_.gpu ? options_.host_bytes / 4 : 0; }

  Status disk() {
    MR_ASSIGN_OR_RETURN(const DiskRates disk, measure_disk_briefly(options_.paths, options_.storage, kDiskSeconds,
                                                                   options_.model_bytes / kDiskPart));
    rates_.disk = disk.bytes_per_second;
    rates_.disk_latency = disk.latency_seconds;
    rates_.brief = true;
    return {};
  }

  Status processor() {
    const int threads = options_.gpu           ? threads_beside_gpu(options_.threads)
                        : options_.threads > 0 ? options_.threads
                                               : ThreadPool::usable_processors();
    const std::uint64_t most =
        std::min(options_.gpu ? kMostLockedBytes : kMostHostBytes, options_.model_bytes / kMemoryPart);
    const std::uint64_t bytes = round_down(std::min(most, options_.host_bytes / 2), device::kHugePageBytes);
    const std::uint64_t beside = KernelProbe::beside_bytes(*options_.kernels, threads, bytes);
    if (bytes < kLeastHostBytes || bytes + beside + link_bytes() > options_.host_bytes)
      return error(Code::out_of_budget, "{} of RAM are too little to measure with", format_bytes(options_.host_bytes));
    ThreadPool pool({.threads = threads});
    if (options_.gpu)
      return with_page_locked(bytes, [&](std::span<std::byte> memory) { return compute(pool, memory); });
    MR_ASSIGN_OR_RETURN(const device::HostBuffer memory, device::HostBuffer::reserve(bytes, device::Pages::huge));
    return compute(pool, {memory.data(), memory.bytes()});
  }

  Status compute(ThreadPool& pool, std::span<std::byte> memory) {
    KernelProbe probe(*options_.kernels, pool, memory, kTypical);
    MR_RETURN_IF_ERROR(probe.prepare());  // touches all of it
    const bool unknown = rates_.cpu_decode <= 0;
    rates_.brief = true;
    if (unknown) rates_.cpu_decode = probe.decode_rate(each());
    if (lacks_gpu(rates_, options_)) part("the GPU", gpu(probe));
    if (rates_.cpu_rows_macs <= 0 && has_time()) rates_.cpu_rows_macs = probe.rows_rate(each());
    if (rates_.cpu_prefill_macs <= 0 && has_time()) rates_.cpu_prefill_macs = probe.prompt_rate(each());
    for (const DType dtype : types_of(options_.weights))
      if (!knows_type(rates_, dtype)) rates_.types.push_back(probe.of_type(dtype, rates_, each() / 2));
    if (rates_.cpu_product <= 0 && has_time()) rates_.cpu_product = probe.product_seconds(each(), rates_.cpu_decode);
    if (unknown && has_time()) rates_.ram = measure_ram(pool, memory, each(), kTypical);
    rates_.ram = std::max(rates_.ram, rates_.cpu_decode);
    return {};
  }

  Status gpu(KernelProbe& probe) {
    constexpr std::uint64_t kLeastBytes = 64 * kMiB;  // less is moved before a rate is reached
    GpuEffort effort;
    effort.device_bytes = std::min(effort.device_bytes, options_.device_bytes);
    effort.host_bytes = round_down(std::min(effort.host_bytes, link_bytes()), device::kHugePageBytes);
    effort.copies = 4;
    effort.rounds = 2;
    effort.busy_seconds = 2 * each();
    if (std::min(effort.device_bytes / 2, effort.host_bytes) < kLeastBytes)
      return error(Code::out_of_budget, "{} of RAM and {} of VRAM are too little to measure with",
                   format_bytes(options_.host_bytes), format_bytes(options_.device_bytes));
    MR_RETURN_IF_ERROR(measure_gpu(rates_, probe.work(), effort));
    return has_time() ? measure_gpu_products(rates_) : Status();
  }

  const BriefOptions& options_;
  const Clock::time_point begin_ = Clock::now();
  double most_seconds_ = kMostBriefSeconds;
  Rates rates_;
};

}  // namespace

bool lacks_rates(const Rates& rates, const BriefOptions& options) {
  return rates.disk <= 0 || lacks_processor(rates, options) || lacks_gpu(rates, options);
}

Expected<Rates> measure_briefly(const Rates& known, const BriefOptions& options) {
  return Measurement(known, options).run();
}

}  // namespace millrace::residency
