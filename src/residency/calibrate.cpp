#include "residency/calibrate.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "device/cpu.h"
#include "device/gpu.h"
#include "device/host_memory.h"
#include "residency/calibrate_parts.h"

namespace millrace::residency {
namespace {

/// Calls all works by turns until `seconds` have passed, at least three times; the time that each takes when the
/// machine is let alone, in seconds: the one that a fifth of the calls stay under, for others' work only ever makes it
/// slower.
template <typename... Work>
std::array<double, sizeof...(Work)> undisturbed_seconds_of(double seconds, Work... works) {
  std::array<std::vector<double>, sizeof...(Work)> times;
  const auto call = [](std::vector<double>& of_work, const auto& work) {
    const auto start = Clock::now();
    work();
    of_work.push_back(seconds_since(start));
  };
  for (const auto begin = Clock::now(); times[0].size() < 3 || seconds_since(begin) < seconds;) {
    std::size_t i = 0;
    (call(times[i++], works), ...);
  }
  std::array<double, sizeof...(Work)> result;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const std::size_t fifth = times[i].size() / 5;
    std::nth_element(times[i].begin(), times[i].begin() + static_cast<std::ptrdiff_t>(fifth), times[i].end());
    result[i] = times[i][fifth];
  }
  return result;
}
template <typename Work>
double undisturbed_seconds(double seconds, Work work) {
  return undisturbed_seconds_of(seconds, work)[0];
}

/// As much as may be read at once: far more than the caches hold, and no danger to anybody.
std::uint64_t working_bytes(const CalibrateOptions& options) {
  const device::MemoryLimits limits = device::memory_limits();
  const std::uint64_t room = std::min(limits.available_bytes, limits.cgroup_bytes) / 4;
  return std::max(round_down(std::min(options.memory_bytes, room), device::kHugePageBytes), device::kHugePageBytes);
}

/// Reads all of it once, by all threads.
void read_all(ThreadPool& pool, const device::HostBuffer& memory) {
  constexpr std::int64_t piece = static_cast<std::int64_t>(device::kHugePageBytes);
  std::atomic<std::uint64_t> sum{0};
  pool.parallel_for(static_cast<std::int64_t>(memory.bytes()), piece, [&](std::int64_t begin, std::int64_t end, int) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(memory.data());
    std::array<std::uint64_t, 8> lanes{};
    for (std::int64_t i = begin / 8; i + 8 <= end / 8; i += 8) {
      for (std::int64_t j = 0; j < 8; ++j) lanes[static_cast<std::size_t>(j)] += words[i + j];
    }
    sum += std::accumulate(lanes.begin(), lanes.end(), std::uint64_t{0});
  });
  // Stored where the compiler cannot see that nobody asks, or it would not read at all.
  volatile std::uint64_t seen = sum;
  (void)seen;
}

double measure_ram(ThreadPool& pool, const device::HostBuffer& memory, double seconds) {
  return static_cast<double>(memory.bytes()) / undisturbed_seconds(seconds, [&] { read_all(pool, memory); });
}

/// The products of a model over memory that all threads share: with Q4_K weights, and in short with those of any type.
class KernelProbe {
 public:
  static constexpr std::int64_t kCols = 4096;
  static constexpr std::int64_t kPromptRows = 256;
  static constexpr std::int64_t kFewRows = kSplitRows;
  static constexpr std::int64_t kPanelRows = 1024;  // weight rows of the prompt's product
  static constexpr std::int64_t kGrain = 32;        // weight rows a thread takes at once

  KernelProbe(const kernels::Table& table, ThreadPool& pool, const device::HostBuffer& memory)
      : table_(table),
        pool_(pool),
        memory_(memory),
        row_bytes_(millrace::row_bytes(DType::q4_k, kCols)),
        rows_(rows_in(memory.bytes(), DType::q4_k)),
        workspace_bytes_(static_cast<std::int64_t>(
            round_up(static_cast<std::uint64_t>(
                         std::max(table.matmul_workspace_bytes(kCols), table.matmul_segments_workspace_bytes(kCols))),
                     device::kPageBytes))) {}

  /// Fills the weights and quantizes the activations.
  Status prepare() {
    const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    MR_ASSIGN_OR_RETURN(x_, device::HostBuffer::reserve(bytes(kPromptRows * kCols * 4), device::Pages::normal));
    MR_ASSIGN_OR_RETURN(q_, device::HostBuffer::reserve(bytes(kPromptRows * kCols), device::Pages::normal));
    MR_ASSIGN_OR_RETURN(d_, device::HostBuffer::reserve(bytes(kPromptRows * kCols / 32 * 4), device::Pages::normal));
    MR_ASSIGN_OR_RETURN(sums_, device::HostBuffer::reserve(bytes(kPromptRows * kCols / 16 * 4), device::Pages::normal));
    MR_ASSIGN_OR_RETURN(
        y_, device::HostBuffer::reserve(bytes(std::max(kPromptRows * kPanelRows, most_rows(memory_.bytes())) * 4),
                                        device::Pages::normal));
    MR_ASSIGN_OR_RETURN(workspace_,
                        device::HostBuffer::reserve(bytes(workspace_bytes_ * pool_.threads()), device::Pages::normal));
    std::uint64_t state = 88172645463325252u;
    auto* x = reinterpret_cast<float*>(x_.data());
    for (std::int64_t i = 0; i < kPromptRows * kCols; ++i) {
      x[i] = static_cast<float>(next_random(state) >> 40) / static_cast<float>(1 << 23) - 1;
    }
    x_q8_ = {reinterpret_cast<std::int8_t*>(q_.data()), reinterpret_cast<float*>(d_.data()),
             reinterpret_cast<std::int32_t*>(sums_.data())};
    table_.quantize_q8(x, kCols, kPromptRows, kCols, x_q8_);
    fill_weights();
    return {};
  }
  void round_row() { table_.quantize_q8(reinterpret_cast<const float*>(x_.data()), kCols, 1, kCols, x_q8_); }

  /// One activation row, once: the weight bytes read.
  std::uint64_t decode() {
    product(rows_, 1);
    return static_cast<std::uint64_t>(rows_ * row_bytes_);
  }
  /// Weight bytes per second with one activation row: every weight is read once from memory.
  double decode_rate(double seconds) {
    return static_cast<double>(rows_ * row_bytes_) / undisturbed_seconds(seconds, [&] { product(rows_, 1); });
  }
  /// What a product of few weights takes beside their bytes at that rate: its input is rounded, threads begin together,
  /// find their rows, and end together. Each time other weights, so that no cache has them, and elsewhere, so that the
  /// product before has not asked for them.
  double product_seconds(double seconds, double rate) {
    constexpr std::int64_t kTogether = 64;
    const std::int64_t rows = std::min(rows_, 2 * kGrain * pool_.threads());
    std::int64_t first = 0;
    const double each = undisturbed_seconds(seconds,
                                            [&] {
                                              for (std::int64_t i = 0; i < kTogether; ++i) {
                                                round_row();
                                                product(rows, 1, {.first = i % 2 == 0 ? first : rows_ - rows - first});
                                                if (i % 2 == 1)
                                                  first = 2 * (first + 2 * rows) <= rows_ ? first + rows : 0;
                                              }
                                            }) /
                        static_cast<double>(kTogether);
    return std::max(0.0, each - static_cast<double>(rows * row_bytes_) / rate);
  }
  /// A few activation rows, once, in the GPU's order of sums: the multiply-accumulates.
  std::uint64_t few_rows() {
    const std::int64_t rows = std::max(kGrain, rows_ / kFewRows);
    product(rows, kFewRows, From{}, table_.matmul_segments);
    return static_cast<std::uint64_t>(rows * kCols * kFewRows);
  }
  HostWork work() {
    return {[this] { return decode(); }, [this] { return few_rows(); }};
  }
  /// Multiply-accumulates per second with many activation rows.
  double prompt_rate(double seconds) {
    const std::int64_t rows = std::min(kPanelRows, rows_);
    return static_cast<double>(rows * kCols * kPromptRows) /
           undisturbed_seconds(seconds, [&] { product(rows, kPromptRows); });
  }
  /// Multiply-accumulates per second of a few activation rows with weights from memory.
  double rows_rate(double seconds) {
    Parts parts(memory_.bytes(), DType::q4_k);
    return static_cast<double>(parts.rows() * kCols * kFewRows) /
           undisturbed_seconds(seconds, [&] { product(parts.rows(), kFewRows, parts.next()); });
  }
  /// The rates of a type, by what it takes beside Q4_K, whose rates are known: both by turns over parts of the memory,
  /// so that what others do meanwhile counts for neither. Three measurements of `seconds`.
  TypeRates of_type(DType dtype, const Rates& known, double seconds) {
    Parts parts(memory_.bytes(), dtype), usual(memory_.bytes(), DType::q4_k);
    const auto faster = [&](std::int64_t x_rows, std::int64_t rows, std::int64_t usual_rows) {
      const bool prompt = x_rows == kPromptRows;  // its weights stay in the caches
      const auto [own, other] = undisturbed_seconds_of(
          seconds, [&] { product(rows, x_rows, prompt ? From{.dtype = dtype} : parts.next()); },
          [&] { product(usual_rows, x_rows, prompt ? From{} : usual.next()); });
      return static_cast<double>(rows) / own / (static_cast<double>(usual_rows) / other);  // in weights
    };
    const double bytes = static_cast<double>(millrace::row_bytes(dtype, kCols)) / static_cast<double>(row_bytes_);
    const std::int64_t panel = std::min(kPanelRows, rows_in(memory_.bytes(), dtype));
    return {.dtype = dtype,
            .decode = known.cpu_decode * bytes * faster(1, parts.rows(), usual.rows()),
            .rows_macs = known.cpu_rows_macs * faster(kFewRows, parts.rows(), usual.rows()),
            .prefill_macs = known.cpu_prefill_macs * faster(kPromptRows, panel, std::min(kPanelRows, rows_))};
  }

 private:
  /// Weights of a product.
  struct From {
    DType dtype = DType::q4_k;
    std::int64_t first = 0;  // row
  };
  /// An eighth of the memory after the other, so that no cache has what comes next.
  class Parts {
   public:
    Parts(std::uint64_t memory_bytes, DType dtype)
        : dtype_(dtype), all_(rows_in(memory_bytes, dtype)), rows_(std::max(kGrain, all_ / kParts / kGrain * kGrain)) {}
    std::int64_t rows() const { return rows_; }
    From next() {
      const From from{dtype_, first_};
      first_ = first_ + 2 * rows_ <= all_ ? first_ + rows_ : 0;
      return from;
    }

   private:
    static constexpr std::int64_t kParts = 8;
    DType dtype_;
    std::int64_t all_, rows_, first_ = 0;
  };

  static std::int64_t rows_in(std::uint64_t memory_bytes, DType dtype) {
    return static_cast<std::int64_t>(memory_bytes) / millrace::row_bytes(dtype, kCols) / kGrain * kGrain;
  }

  /// Of the type with the shortest rows.
  static std::int64_t most_rows(std::uint64_t memory_bytes) {
    std::int64_t most = 0;
    for (const DTypeInfo& known : all_dtypes())
      if (known.computable) most = std::max(most, rows_in(memory_bytes, known.dtype));
    return most;
  }

  /// Random bytes that are harmless as weights of every type: each pair is a float16 or bfloat16, each four a float32,
  /// and each byte an exponent, of an ordinary number.
  void fill_weights() {
    constexpr std::uint64_t kVaries = 0x1f1f1f1f1f1f1f1fu, kLeast = 0x1818181818181818u;
    const auto bytes = static_cast<std::int64_t>(memory_.bytes());
    pool_.parallel_for(bytes, 2 * static_cast<std::int64_t>(kMiB), [&](std::int64_t begin, std::int64_t end, int) {
      std::uint64_t state = 0x2545f4914f6cdd1du + static_cast<std::uint64_t>(begin);
      for (std::byte* at = memory_.data() + begin; at + 8 <= memory_.data() + end; at += 8) {
        const std::uint64_t word = (next_random(state) & kVaries) + kLeast;
        std::memcpy(at, &word, 8);
      }
    });
  }

  void product(std::int64_t rows, std::int64_t x_rows) { product(rows, x_rows, From{}); }
  void product(std::int64_t rows, std::int64_t x_rows, From from,
               void (*matmul)(const kernels::MatmulArgs&) = nullptr) {
    if (matmul == nullptr) matmul = table_.matmul;
    const std::int64_t row_bytes = millrace::row_bytes(from.dtype, kCols);
    const std::int64_t pieces = (rows + kGrain - 1) / kGrain;
    pool_.parallel_runs(std::span(&pieces, 1), 1, [&](std::size_t, std::int64_t first, std::int64_t last, int thread) {
      const std::int64_t begin = first * kGrain, end = std::min(last * kGrain, rows);
      kernels::MatmulArgs args;
      args.dtype = from.dtype;
      args.weight = memory_.data() + (from.first + begin) * row_bytes;
      args.weight_rows = end - begin;
      args.cols = kCols;
      args.x = reinterpret_cast<const float*>(x_.data());
      args.x_stride = kCols;
      args.x_q8 = x_q8_;
      args.x_rows = x_rows;
      args.x_name = 1;  // it never changes
      args.y = reinterpret_cast<float*>(y_.data()) + begin;
      args.y_stride = rows;
      args.workspace = workspace_.data() + workspace_bytes_ * thread;
      matmul(args);
    });
  }

  const kernels::Table& table_;
  ThreadPool& pool_;
  const device::HostBuffer& memory_;
  const std::int64_t row_bytes_, rows_, workspace_bytes_;
  device::HostBuffer x_, q_, d_, sums_, y_, workspace_;
  kernels::Q8Rows x_q8_;
};

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

}  // namespace

Expected<Rates> calibrate(const CalibrateOptions& options, const CalibrateProgress& progress) {
  const auto tell = [&](std::string_view what, double done) {
    if (progress) progress(what, done);
  };
  Rates rates;
  MR_ASSIGN_OR_RETURN(rates.machine, machine_key(options.path));
  tell("disk", 0);
  MR_ASSIGN_OR_RETURN(rates.disk, measure_disk(options));

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
  rates.ram = measure_ram(pool, memory, options.seconds_each);

  std::optional<KernelProbe> probe;
  if (options.kernels != nullptr) {
    tell("decode kernels", 0.6);
    probe.emplace(*options.kernels, pool, memory);
    MR_RETURN_IF_ERROR(probe->prepare());
    // Both are reads of the same memory: a decode that seems faster than RAM met a faster moment of the machine.
    rates.cpu_decode = probe->decode_rate(options.seconds_each);
    rates.ram = std::max(rates.ram, rates.cpu_decode);
    rates.cpu_product = probe->product_seconds(options.seconds_each / 2, rates.cpu_decode);
    tell("prompt kernels", 0.8);
    rates.cpu_prefill_macs = probe->prompt_rate(options.seconds_each);
    rates.cpu_rows_macs = probe->rows_rate(options.seconds_each / 2);
    rates.types = measure_types(*probe, rates, options.seconds_each, tell);
  }
  if (device::gpus().ok()) {
    tell("GPU", 0.95);
    std::optional<ThreadPool> beside;
    if (const int threads = threads_beside_gpu(options.threads); probe && threads != pool.threads()) {
      beside.emplace(ThreadPool::Options{.threads = threads, .pin = true});
      probe.emplace(*options.kernels, *beside, memory);
      MR_RETURN_IF_ERROR(probe->prepare());
    }
    MR_RETURN_IF_ERROR(measure_gpu(rates, probe ? probe->work() : HostWork()));
    if (const Status measured = measure_gpu_products(rates); !measured.ok())
      log::warn("calibrate: {}; the speed of prompts on the GPU is not predicted", measured.message());
  }
  tell("done", 1);
  return rates;
}

int threads_beside_gpu(int asked) {
  constexpr int kMany = 8;
  const int processors = ThreadPool::usable_processors();
  return asked > 0 ? asked : processors >= kMany ? processors - 1 : processors;
}

Expected<Rates> measure_sharing(const kernels::Table& kernels, int threads, std::uint64_t host_bytes,
                                std::uint64_t device_bytes) {
  // A quarter and more of 512 MiB stays in the caches of large processors.
  constexpr std::uint64_t kLeastBytes = 64 * kMiB, kMostWeights = 2048 * kMiB;
  constexpr double kSeconds = 0.1;
  GpuEffort effort;
  effort.device_bytes = std::min(effort.device_bytes, device_bytes);
  effort.host_bytes = round_down(std::min(effort.host_bytes, host_bytes / 4), device::kHugePageBytes);
  effort.copies = 4;
  effort.rounds = 2;
  effort.busy_seconds = kSeconds;
  // A quarter stays for activations and threads.
  const std::uint64_t weights = round_down(std::min(kMostWeights, host_bytes / 2), device::kHugePageBytes);
  if (std::min({effort.device_bytes / 2, effort.host_bytes, weights}) < kLeastBytes)
    return error(Code::out_of_budget, "{} of RAM and {} of VRAM are too little to measure rates with",
                 format_bytes(host_bytes), format_bytes(device_bytes));
  if (const auto found = device::gpus(); !found.ok()) return found.status();
  Rates rates;
  rates.machine = "measured in a moment";
  ThreadPool pool({.threads = threads_beside_gpu(threads), .pin = true});
  MR_ASSIGN_OR_RETURN(const device::HostBuffer memory, device::HostBuffer::reserve(weights, device::Pages::huge));
  KernelProbe probe(kernels, pool, memory);
  MR_RETURN_IF_ERROR(probe.prepare());  // touches all of it
  rates.cpu_decode = rates.ram = probe.decode_rate(kSeconds);
  MR_RETURN_IF_ERROR(measure_gpu(rates, probe.work(), effort));
  return rates;
}

#ifndef MILLRACE_HAS_CUDA
Status measure_gpu(Rates& /*rates*/, const HostWork& /*work*/, const GpuEffort& /*effort*/) {
  return device::gpus().status();
}
Status measure_gpu_products(Rates& /*rates*/) { return device::gpus().status(); }
Expected<double> measure_links(const std::vector<int>& /*gpus*/) { return device::gpus().status(); }
#endif

}  // namespace millrace::residency
