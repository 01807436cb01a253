#include "cuda_kernels/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cuda_kernels/device.h"

namespace millrace::bench {

using kernels::cuda::Matrix;
using kernels::cuda::Q8;

namespace {

constexpr std::size_t kMostPool = std::size_t{8} << 30, kHostPool = std::size_t{64} << 20;
constexpr int kTimes = 21, kWarmUps = 3;
constexpr std::int64_t kBetween = 512;  // bytes behind an array, which launchers may read

std::int64_t rounded(std::int64_t bytes) { return (bytes + kBetween + 255) / 256 * 256; }

}  // namespace

void check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "cuda_kernels: {}: {}\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// --- Memory ---

Pool::Pool() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  constexpr std::size_t kLeft = std::size_t{3} << 30;  // for what the rates are measured with
  bytes_ = std::min(kMostPool, free > 2 * kLeft ? free - kLeft : free / 2);
  check(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes_), "cudaMalloc");
  check(cudaHostAlloc(reinterpret_cast<void**>(&host_), kHostPool, cudaHostAllocMapped), "cudaHostAlloc");
}

Pool::~Pool() {
  cudaFree(memory_);
  cudaFreeHost(host_);
}

std::byte* Pool::take(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(rounded(bytes));
  if (size > bytes_ - used_) return nullptr;
  return memory_ + std::exchange(used_, used_ + size);
}

std::byte* Pool::take_host(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(rounded(bytes));
  if (size > kHostPool - host_used_) return nullptr;
  std::byte* const at = host_ + std::exchange(host_used_, host_used_ + size);
  std::memset(at, 0, size);
  return at;
}

std::byte* Case::allocate(std::int64_t bytes, int times, bool floats) {
  std::byte* const at = pool_.take(bytes);
  if (at == nullptr) {
    too_large_ = true;
    return nullptr;
  }
  bytes_ += static_cast<double>(bytes) * times;
  if (floats)
    check(fill_floats(reinterpret_cast<float*>(at), static_cast<std::size_t>(bytes) / sizeof(float), nullptr), "fill");
  else
    check(fill_weights(at, static_cast<std::size_t>(rounded(bytes)), nullptr), "fill");
  return at;
}

void* Case::put(const void* from, std::int64_t bytes, int times) {
  std::byte* const at = allocate(bytes, times, false);
  if (at != nullptr) check(cudaMemcpy(at, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice), "cudaMemcpy");
  return at;
}

std::byte* Case::pool_host(std::int64_t bytes) {
  std::byte* const at = pool_.take_host(bytes);
  too_large_ = too_large_ || at == nullptr;
  return at;
}

Matrix Case::matrix(DType dtype, int rows, int cols) {
  const std::vector<const std::byte*> address = {reads<std::byte>(row_bytes(dtype, cols) * rows)};
  return {holds(address), dtype, rows};
}

const std::byte* const* Case::vector(std::int64_t count, std::int64_t read) {
  const std::vector<const std::byte*> address = {reinterpret_cast<const std::byte*>(room<float>(count))};
  moves(static_cast<double>(read < 0 ? count : read) * sizeof(float));
  return holds(address);
}

const std::byte* const* Case::matrices(DType dtype, int rows, int cols, int count) {
  const std::int64_t each = rounded(row_bytes(dtype, cols) * rows);
  const auto* at = room<std::byte>(each * count);
  std::vector<const std::byte*> addresses;
  for (int i = 0; i < count; ++i) addresses.push_back(at == nullptr ? nullptr : at + i * each);
  return holds(addresses);
}

Q8 Case::q8_room(int rows, int cols) {
  auto* const at = room<std::byte>(static_cast<std::int64_t>(kernels::cuda::q8_bytes(rows, cols)));
  const std::int64_t blocks = std::int64_t{rows} * (cols / 32);
  moves(static_cast<double>(blocks) * (32 + sizeof(kernels::cuda::Q8Scale)));
  return at == nullptr ? Q8{} : kernels::cuda::q8_at(at, rows, cols);
}

Q8 Case::q8(int rows, int cols) {
  const Q8 q8 = q8_room(rows, cols);
  const float* const x = room<float>(std::int64_t{rows} * cols);
  if (!too_large_) check(kernels::cuda::quantize_q8(x, cols, rows, cols, q8, nullptr), "quantize_q8");
  return q8;
}

std::pair<double, std::string_view> Case::least(const Rates& rates) const {
  return std::max({std::pair<double, std::string_view>{bytes_ / rates.copy_gb * 1e-3, "memory"},
                   {to_host_ / rates.to_host_gb * 1e-3 + from_host_ / rates.from_host_gb * 1e-3, "link"},
                   {bf16_ / rates.bf16_tera * 1e-6 + int8_ / rates.int8_tera * 1e-6, "tensor"}});
}

// --- Times ---

Suite::Suite(std::string filter, bool list) : filter_(std::move(filter)), list_(list) {
  if (list_) return;
  pool_ = std::make_unique<Pool>();
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  events_.resize(2 * kTimes);
  for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  int cache_bytes = 0;
  check(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, 0), "cudaDeviceGetAttribute");
  flushed_bytes_ = 4 * static_cast<std::size_t>(cache_bytes);
  check(cudaMalloc(reinterpret_cast<void**>(&flushed_), flushed_bytes_), "cudaMalloc");
  check(fill_weights(flushed_, flushed_bytes_, stream_), "fill");
  measure_rates();
}

Suite::~Suite() {
  if (list_) return;
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
  cudaFree(flushed_);
  cudaStreamDestroy(stream_);
}

/// The median of so many launches behind emptied caches; negative where the launcher refuses. All are on their way
/// before the first has ended, so that no event waits for the processor.
double Suite::median_us(const Launch& launch, int times) {
  for (int i = 0; i < kWarmUps; ++i)
    if (const cudaError_t error = launch(stream_); error != cudaSuccess) {
      cudaGetLastError();
      fmt::print("{}: refused: {}\n", timed_, cudaGetErrorString(error));
      return -1;
    }
  check(cudaStreamSynchronize(stream_), timed_);
  for (int i = 0; i < times; ++i) {
    check(read_all(flushed_, flushed_bytes_, stream_), "read_all");
    check(cudaEventRecord(events_[static_cast<std::size_t>(2 * i)], stream_), "cudaEventRecord");
    check(launch(stream_), timed_);
    check(cudaEventRecord(events_[static_cast<std::size_t>(2 * i + 1)], stream_), "cudaEventRecord");
  }
  check(cudaStreamSynchronize(stream_), timed_);
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[static_cast<std::size_t>(2 * i)],
                               events_[static_cast<std::size_t>(2 * i + 1)]),
          "cudaEventElapsedTime");
    all.push_back(ms * 1000.0);
  }
  std::nth_element(all.begin(), all.begin() + times / 2, all.end());
  return all[static_cast<std::size_t>(times / 2)];
}

void Suite::measure_rates() {
  constexpr std::size_t kBytes = std::size_t{1} << 30, kLinkBytes = std::size_t{48} << 20;
  std::byte *memory = nullptr, *host = pool_->take_host(kLinkBytes);
  check(cudaMalloc(reinterpret_cast<void**>(&memory), 2 * kBytes), "cudaMalloc");
  const auto copies = [&](std::byte* to, const std::byte* from, std::size_t bytes) {
    return static_cast<double>(bytes) * 1e-3 /
           median_us([=](cudaStream_t s) { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s); }, 5);
  };
  rates_.copy_gb = 2 * copies(memory, memory + kBytes, kBytes);
  rates_.to_host_gb = copies(host, memory, kLinkBytes);
  rates_.from_host_gb = copies(memory, host, kLinkBytes);
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  const auto multiplies = [&](Operands operands) {
    auto* const operations = reinterpret_cast<double*>(memory);
    const double us =
        median_us([=](cudaStream_t s) { return multiply_all(operands, multiprocessors, operations, s); }, 5);
    double each = 0;
    check(cudaMemcpy(&each, operations, sizeof(each), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return each * multiprocessors / us * 1e-6;
  };
  rates_.bf16_tera = multiplies(Operands::bf16);
  rates_.int8_tera = multiplies(Operands::int8);
  auto* const x = reinterpret_cast<float*>(memory);
  rates_.least_us = median_us([=](cudaStream_t s) { return kernels::cuda::add(x, x + 64, 4, s); }, kTimes);
  cudaFree(memory);
  pool_->start_over();
}

void Suite::time(std::string_view launcher, std::string_view shape, int rows,
                 const std::function<Launch(Case&)>& make) {
  const std::string name = fmt::format("{} {}", launcher, shape);
  if (name.find(filter_) == std::string::npos) return;
  if (list_) {
    fmt::print("{}, {} rows\n", name, rows);
    return;
  }
  pool_->start_over();
  timed_ = fmt::format("{}, {} rows", name, rows);
  Case c(*pool_);
  const Launch launch = make(c);
  if (c.too_large()) {
    fmt::print("{}: not enough memory\n", timed_);
    ++failures_;
    return;
  }
  check(cudaDeviceSynchronize(), timed_);
  const double us = median_us(launch, kTimes);
  if (us < 0) {
    ++failures_;
    return;
  }
  const auto [least_us, bound] = c.least(rates_);
  rows_.push_back(
      {std::string(launcher), std::string(shape), rows, us, c.bytes(), c.operations(), least_us, std::string(bound)});
  fmt::print("{:18} {:52} {:4} {:9.1f} {:10.2f} {:7.0f} {:7.1f}  {:4.0f} {}\n", launcher, shape, rows, us,
             c.bytes() * 1e-6, c.bytes() / us * 1e-3, c.operations() / us * 1e-6, 100 * least_us / us, bound);
}

}  // namespace millrace::bench
