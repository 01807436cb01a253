// Measures this machine (disk, RAM, GPU, decode and prompt kernels) and keeps the rates per machine and disk, so that
// its plans use measured rates.
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
  const kernels::Table* kernels = nullptr;  // nullptr: the CPU's rates except `ram` stay 0
  double seconds_each = 1.0;                // for each of four measurements; up to three times as long for the disk
  bool disk_only = false;                   // the other rates stay 0
  // The most that is read, less if memory is short: far more than any CPU cache holds.
  std::uint64_t memory_bytes = 2048u << 20;
  std::uint64_t scratch_bytes = 512u << 20;
};

/// Receives what is being measured, and the progress of the whole from 0 to 1.
using CalibrateProgress = std::function<void(std::string_view what, double done)>;

/// The memory and time of measure_gpu.
struct GpuEffort {
  std::uint64_t device_bytes = 1024u << 20;  // of GPU memory, at most; less if that is short
  std::uint64_t host_bytes = 256u << 20;     // page-locked; more than the CPU's cache holds
  int copies = 8, rounds = 4;                // for each rate; the first round warms up
  double busy_seconds = 0.5;                 // of the measurement with both at once
};

/// Work for the CPU while a link is measured; empty functions: none.
struct HostWork {
  std::function<std::uint64_t()> decode;    // decodes a row with weights in RAM; returns their bytes
  std::function<std::uint64_t()> few_rows;  // computes products of a few rows; returns the multiply-accumulates
};

/// Fills rates.gpu, rates.device_memory (a copy within the current GPU: bytes read and written) and
/// rates.host_to_device (from page-locked memory in large pieces). If `work` is set, a thread repeats it during further
/// copies, which fills rates.host_to_device_busy, rates.cpu_decode_busy and rates.cpu_few_macs. Takes about a second.
/// Errors: unsupported (no GPU, or built without CUDA), out_of_budget, io_error.
Status measure_gpu(Rates& rates, const HostWork& work = {}, const GpuEffort& effort = {});

/// Fills rates.device_prefill_macs from one product of 2,048 rows with Q4_K weights, as in a prompt. Takes a fraction
/// of a second and 120 MB of GPU memory. Errors: as measure_gpu.
Status measure_gpu_products(Rates& rates);

/// Calls `use` with page-locked memory of this size, of the kind that holds layers in RAM for the current GPU. Errors:
/// those of `use` and of measure_gpu.
Status with_page_locked(std::uint64_t bytes, const std::function<Status(std::span<std::byte>)>& use);

/// Measures the bytes per second that several GPUs together read from page-locked memory at the same time: less than
/// the sum of their links if RAM or the path to them is slower. Errors: as measure_gpu.
Expected<double> measure_links(const std::vector<int>& gpus);

/// Threads that compute the CPU's part of a pass beside a GPU. `asked`: 0 for the default. A CPU with many processors
/// leaves one to the thread that launches kernels: that thread would interrupt another in the middle of its rows, and
/// all threads wait for those. processors: of the machine planned for; 0: those that this process may use.
int threads_beside_gpu(int asked, int processors = 0);
/// Measures this machine, in about twelve times seconds_each and the time to write a scratch file if one is needed. GPU
/// rates stay 0 without a GPU. Errors: not_found, io_error, out_of_budget.
Expected<Rates> calibrate(const CalibrateOptions& options, const CalibrateProgress& progress = nullptr);

/// The machine and disk that rates measured for `path` (a file or directory) belong to, for example
/// "AMD EPYC 9B14, 2 processors; disk vda". Errors: not_found.
Expected<std::string> machine_key(const std::string& path);

/// $XDG_CACHE_HOME/millrace/rates.json, or the same under ~/.cache. Errors: not_found without a home.
Expected<std::string> rates_file();

/// The rates kept for this machine and the disk of `path`. Errors: not_found (never calibrated), corrupt.
Expected<Rates> load_rates(const std::string& path);
/// Saves the rates beside those of other machines and disks. Brief rates never replace calibrated ones. An unreadable
/// file is replaced. Errors: io_error.
Status save_rates(const std::string& path, const Rates& rates);

}  // namespace millrace::residency
