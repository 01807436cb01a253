#include "residency/calibrate.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "device/cpu.h"
#include "device/gpu.h"
#include "device/host_memory.h"
#include "storage/storage.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

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

/// xorshift64: bytes that no disk compresses.
std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

// ---- disk

constexpr std::uint64_t kSlotBytes = 2 * kMiB;  // a huge page
// Few slots on purpose: disks of virtual machines copy through the host's caches, and reads into 16 MiB that are used
// again and again were measured up to 1.4 times as fast as reads into 64 MiB.
constexpr std::uint64_t kSlots = 8;
constexpr std::uint64_t kSmallestFile = 32 * kMiB;

/// A file of random bytes without a name, so that nothing is left however the program ends.
class ScratchFile {
 public:
  static Expected<ScratchFile> make(const fs::path& directory, std::uint64_t bytes) {
    ScratchFile file;
    std::string path = (directory / "millrace-calibrate-XXXXXX").string();
    const int fd = mkstemp(path.data());
    if (fd < 0) {
      return error(Code::io_error, "cannot write a scratch file in {} ({}): name a model file to measure instead",
                   directory.string(), std::strerror(errno));
    }
    file.fd_ = fd;
    unlink(path.c_str());
    MR_RETURN_IF_ERROR(fill(fd, bytes, path));
    return file;
  }
  ScratchFile() = default;
  ScratchFile(ScratchFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ScratchFile& operator=(ScratchFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ScratchFile() {
    if (fd_ >= 0) close(fd_);
  }
  /// Opens it again, while this object lives.
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  static Status fill(int fd, std::uint64_t bytes, const std::string& path) {
    std::vector<std::uint64_t> block(kSlotBytes / 8);
    std::uint64_t state = 0x9e3779b97f4a7c15u;
    for (std::uint64_t written = 0; written < bytes;) {
      for (std::uint64_t& word : block) word = next_random(state);
      const ssize_t result = write(fd, block.data(), kSlotBytes);
      if (result < 0 && errno == EINTR) continue;
      if (result <= 0) return error(Code::io_error, "writing {} failed: {}", path, std::strerror(errno));
      written += static_cast<std::uint64_t>(result);
    }
    if (fsync(fd) != 0) return error(Code::io_error, "writing {} failed: {}", path, std::strerror(errno));
    // Where O_DIRECT is refused, what the page cache holds of the file must not be measured.
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return {};
  }
  int fd_ = -1;
};

/// Reads a file in order, round and round, each measurement where the one before stopped.
class DiskProbe {
 public:
  static Expected<DiskProbe> make(const std::string& path) {
    DiskProbe probe;
    probe.path_ = path;
    std::error_code code;
    probe.tiles_ = fs::file_size(path, code) / kSlotBytes;
    if (code) return error(Code::not_found, "{}: {}", path, code.message());
    MR_ASSIGN_OR_RETURN(probe.memory_, device::HostBuffer::reserve(kSlots * kSlotBytes, device::Pages::huge));
    std::memset(probe.memory_.data(), 1, probe.memory_.bytes());
    return probe;
  }

  /// Bytes per second with this backend at this depth. Errors: unsupported where the backend is not offered.
  Expected<double> rate(storage::BackendKind kind, int depth, double seconds) {
    storage::OpenOptions options;
    options.kind = kind;
    options.threads = options.queue_depth = depth;
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<storage::Backend> backend, storage::open_backend({path_}, options));
    std::array<storage::Completion, kSlots> completions;
    std::uint64_t started = 0;
    Status status;
    const auto begin = Clock::now();
    for (; seconds_since(begin) < seconds && status.ok(); ++started) {
      const std::uint64_t slot = started % kSlots;
      if (started >= kSlots) status = completions[slot].wait();
      const storage::Read read = {.file = 0,
                                  .offset = next_tile_ * kSlotBytes,
                                  .bytes = kSlotBytes,
                                  .destination = memory_.data() + slot * kSlotBytes};
      backend->submit({&read, 1}, completions[slot]);
      next_tile_ = (next_tile_ + 1) % tiles_;
    }
    for (storage::Completion& completion : completions) {
      if (const Status last = completion.wait(); status.ok()) status = last;
    }
    if (!status.ok()) return status;
    return static_cast<double>(started * kSlotBytes) / seconds_since(begin);
  }

 private:
  std::string path_;
  device::HostBuffer memory_;
  std::uint64_t tiles_ = 0, next_tile_ = 0;
};

/// The best rate over backends and depths, each deepened until it gains no more.
Expected<double> disk_rate(const std::string& path, double seconds) {
  MR_ASSIGN_OR_RETURN(DiskProbe probe, DiskProbe::make(path));
  double best = 0;
  constexpr std::array kinds = {storage::BackendKind::io_uring, storage::BackendKind::pread_direct};
  for (const storage::BackendKind kind : kinds) {
    double before = 0;
    for (const int depth : {4, 8, 16, 32}) {
      // Disks of virtual machines change their rate from one moment to the next.
      const Expected<double> rate = probe.rate(kind, depth, seconds * 0.4);
      if (!rate.ok() && rate.status().code() == Code::unsupported) break;
      if (!rate.ok()) return rate.status();
      best = std::max(best, *rate);
      if (*rate < before * 1.03) break;
      before = *rate;
    }
  }
  if (best > 0) return best;
  log::warn("calibrate: no O_DIRECT on the disk of {}; what is measured may come from the page cache", path);
  return probe.rate(storage::BackendKind::pread_buffered, 8, seconds);
}

/// The file to time for options.path: itself, or a scratch file beside it.
Expected<double> measure_disk(const CalibrateOptions& options) {
  const fs::path path = options.path.empty() ? "." : options.path;
  std::error_code code;
  const bool directory = fs::is_directory(path, code);
  if (!directory && !fs::exists(path, code)) {
    return error(Code::not_found,
                 "{}: no such file or directory; name a model file or a directory on the disk to measure",
                 path.string());
  }
  if (!directory && fs::file_size(path, code) >= kSmallestFile && !code) {
    return disk_rate(path.string(), options.seconds_each);
  }
  const fs::path beside = directory ? path : fs::absolute(path).parent_path();
  MR_ASSIGN_OR_RETURN(const ScratchFile scratch,
                      ScratchFile::make(beside, std::max(options.scratch_bytes, kSmallestFile)));
  return disk_rate(scratch.path(), options.seconds_each);
}

// ---- memory and kernels

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
    pool_.parallel_for(bytes, static_cast<std::int64_t>(kSlotBytes), [&](std::int64_t begin, std::int64_t end, int) {
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
