// Measures what this machine really does (disk, RAM, decode and prompt kernels) and keeps the figures per machine and
// disk, so that plans are made from rates that were seen and never from a data sheet.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kernels/kernels.h"
#include "residency/plan.h"

namespace millrace::residency {

struct CalibrateOptions {
  std::string path;  // a model file, or a directory on the disk to measure ("": the current one). A directory, or a
                     // file too small to time, gets a scratch file beside it for as long as the measurement runs
  int threads = 0;   // that read RAM and compute; 0: all that this process may use
  const kernels::Table* kernels = nullptr;  // nullptr: the processor's rates but `ram` stay 0
  double seconds_each = 1.0;                // of the four measurements; of the disk's up to three times as long
  bool disk_only = false;                   // the other rates stay 0
  // At most this much is read, less where memory is tight: far more than any processor's cache holds.
  std::uint64_t memory_bytes = 2048u << 20;
  std::uint64_t scratch_bytes = 512u << 20;
};

/// What is being measured now, and how much of the whole is done, 0 to 1.
using CalibrateProgress = std::function<void(std::string_view what, double done)>;

/// What measure_gpu takes and how long.
struct GpuEffort {
  std::uint64_t device_bytes = 1024u << 20;  // of its memory at most; less where that is tight
  std::uint64_t host_bytes = 256u << 20;     // page-locked; more than the processor's cache keeps
  int copies = 8, rounds = 4;                // of each rate; the first round warms up
  double busy_seconds = 0.5;                 // while both go on
};

/// What the processor may do while a link is measured; none where it does nothing.
struct HostWork {
  std::function<std::uint64_t()> decode;    // decodes a row with weights in RAM: how many bytes they had
  std::function<std::uint64_t()> few_rows;  // products of a few rows: how many multiply-accumulates
};

/// Fills rates.gpu, rates.device_memory (a copy within the present GPU: bytes read and written) and
/// rates.host_to_device (from page-locked memory in large pieces). Where `work` is given, a thread does it again and
/// again, and rates.host_to_device_busy, rates.cpu_decode_busy and rates.cpu_few_macs are what both do meanwhile. Takes
/// about a second. Errors: unsupported (no GPU, or built without CUDA), out_of_budget, io_error.
Status measure_gpu(Rates& rates, const HostWork& work = {}, const GpuEffort& effort = {});

/// Fills rates.device_prefill_macs: one product of 2,048 rows with Q4_K weights, as prompts have them on this GPU.
/// A fraction of a second and 120 MB of its memory. Errors: as measure_gpu.
Status measure_gpu_products(Rates& rates);

/// Calls `use` with so much memory of the kind that layers wait in for the present GPU. Errors: those of `use` and of
/// measure_gpu.
Status with_page_locked(std::uint64_t bytes, const std::function<Status(std::span<std::byte>)>& use);

/// Bytes a second that page-locked memory gives to several GPUs at once, all of them together: less than their links
/// carry one by one where RAM or what leads to them is slower. Errors: as measure_gpu.
Expected<double> measure_links(const std::vector<int>& gpus);

/// Threads that compute the processor's part of a pass beside a GPU; `asked`: 0 for as many as are good. Where there
/// are many processors, one is left to the thread that makes the launches: it would interrupt one of the others in the
/// middle of its rows, and all wait for those.
int threads_beside_gpu(int asked);
/// About twelve times seconds_each, and the time to write a scratch file where one is needed. GPU rates stay 0 where
/// there is none. Errors: not_found, io_error, out_of_budget.
Expected<Rates> calibrate(const CalibrateOptions& options, const CalibrateProgress& progress = nullptr);

/// "AMD EPYC 9B14, 2 processors; disk vda": what rates measured for `path` (a file or directory) hold for.
/// Errors: not_found.
Expected<std::string> machine_key(const std::string& path);

/// $XDG_CACHE_HOME/millrace/rates.json, or the same under ~/.cache. Errors: not_found without a home.
Expected<std::string> rates_file();

/// The rates kept for this machine and the disk of `path`. Errors: not_found (never calibrated), corrupt.
Expected<Rates> load_rates(const std::string& path);
/// Keeps them beside those of other machines and disks. Brief rates never take the place of calibrated ones. A file
/// that cannot be understood is replaced. Errors: io_error.
Status save_rates(const std::string& path, const Rates& rates);

}  // namespace millrace::residency
