#include "residency/kernel_probe.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "base/random.h"
#include "tensor/dtype.h"

namespace millrace::residency {
namespace {

/// Reads all of it once, by all threads.
void read_all(ThreadPool& pool, std::span<const std::byte> memory) {
  constexpr std::int64_t piece = static_cast<std::int64_t>(device::kHugePageBytes);
  std::atomic<std::uint64_t> sum{0};
  pool.parallel_for(static_cast<std::int64_t>(memory.size()), piece, [&](std::int64_t begin, std::int64_t end, int) {
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

}  // namespace

double measure_ram(ThreadPool& pool, std::span<const std::byte> memory, double seconds, double faster) {
  return static_cast<double>(memory.size()) / call_seconds(seconds, faster, [&] { read_all(pool, memory); })[0];
}

/// An eighth of the memory after the other, so that no cache has what comes next.
class KernelProbe::Parts {
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

std::int64_t KernelProbe::rows_in(std::uint64_t memory_bytes, DType dtype) {
  return static_cast<std::int64_t>(memory_bytes) / millrace::row_bytes(dtype, kCols) / kGrain * kGrain;
}

/// Of the type with the shortest rows.
std::int64_t KernelProbe::most_rows(std::uint64_t memory_bytes) {
  std::int64_t most = 0;
  for (const DTypeInfo& known : all_dtypes())
    if (known.computable) most = std::max(most, rows_in(memory_bytes, known.dtype));
  return most;
}

std::uint64_t KernelProbe::workspace_bytes(const kernels::Table& table) {
  return round_up(static_cast<std::uint64_t>(
                      std::max(table.matmul_workspace_bytes(kCols), table.matmul_segments_workspace_bytes(kCols))),
                  device::kPageBytes);
}

std::uint64_t KernelProbe::beside_bytes(const kernels::Table& table, int threads, std::uint64_t memory_bytes) {
  const auto results = static_cast<std::uint64_t>(std::max(kPromptRows * kPanelRows, most_rows(memory_bytes)));
  constexpr std::uint64_t kInputs = kPromptRows * kCols;
  return kInputs * 4 + kInputs + kInputs / 32 * 4 + kInputs / 16 * 4 + results * 4 +
         workspace_bytes(table) * static_cast<std::uint64_t>(threads) + 6 * device::kPageBytes;
}

KernelProbe::KernelProbe(const kernels::Table& table, ThreadPool& pool, std::span<std::byte> memory, double faster)
    : table_(table),
      pool_(pool),
      memory_(memory),
      faster_(faster),
      row_bytes_(millrace::row_bytes(DType::q4_k, kCols)),
      rows_(rows_in(memory.size(), DType::q4_k)),
      workspace_bytes_(static_cast<std::int64_t>(workspace_bytes(table))) {}

Status KernelProbe::prepare() {
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  MR_ASSIGN_OR_RETURN(x_, device::HostBuffer::reserve(bytes(kPromptRows * kCols * 4), device::Pages::normal));
  MR_ASSIGN_OR_RETURN(q_, device::HostBuffer::reserve(bytes(kPromptRows * kCols), device::Pages::normal));
  MR_ASSIGN_OR_RETURN(d_, device::HostBuffer::reserve(bytes(kPromptRows * kCols / 32 * 4), device::Pages::normal));
  MR_ASSIGN_OR_RETURN(sums_, device::HostBuffer::reserve(bytes(kPromptRows * kCols / 16 * 4), device::Pages::normal));
  MR_ASSIGN_OR_RETURN(
      y_, device::HostBuffer::reserve(bytes(std::max(kPromptRows * kPanelRows, most_rows(memory_.size())) * 4),
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

void KernelProbe::round_row() { table_.quantize_q8(reinterpret_cast<const float*>(x_.data()), kCols, 1, kCols, x_q8_); }

std::uint64_t KernelProbe::decode() {
  product(rows_, 1);
  return static_cast<std::uint64_t>(rows_ * row_bytes_);
}

double KernelProbe::decode_rate(double seconds) {
  return static_cast<double>(rows_ * row_bytes_) / one_call(seconds, [&] { product(rows_, 1); });
}

double KernelProbe::product_seconds(double seconds, double rate) {
  constexpr std::int64_t kTogether = 64;
  const std::int64_t rows = std::min(rows_, 2 * kGrain * pool_.threads());
  std::int64_t first = 0;
  const auto work = [&] {
    for (std::int64_t i = 0; i < kTogether; ++i) {
      round_row();
      product(rows, 1, {.first = i % 2 == 0 ? first : rows_ - rows - first});
      if (i % 2 == 1) first = 2 * (first + 2 * rows) <= rows_ ? first + rows : 0;
    }
  };
  const double each = one_call(seconds, work) / static_cast<double>(kTogether);
  return std::max(0.0, each - static_cast<double>(rows * row_bytes_) / rate);
}

std::uint64_t KernelProbe::few_rows() {
  const std::int64_t rows = std::max(kGrain, rows_ / kFewRows);
  product(rows, kFewRows, From{}, table_.matmul_segments);
  return static_cast<std::uint64_t>(rows * kCols * kFewRows);
}

HostWork KernelProbe::work() {
  return {[this] { return decode(); }, [this] { return few_rows(); }};
}

double KernelProbe::prompt_rate(double seconds) {
  const std::int64_t rows = std::min(kPanelRows, rows_);
  return static_cast<double>(rows * kCols * kPromptRows) / one_call(seconds, [&] { product(rows, kPromptRows); });
}

double KernelProbe::rows_rate(double seconds) {
  Parts parts(memory_.size(), DType::q4_k);
  return static_cast<double>(parts.rows() * kCols * kFewRows) /
         one_call(seconds, [&] { product(parts.rows(), kFewRows, parts.next()); });
}

TypeRates KernelProbe::of_type(DType dtype, const Rates& known, double seconds) {
  Parts parts(memory_.size(), dtype), usual(memory_.size(), DType::q4_k);
  const auto faster = [&](std::int64_t x_rows, std::int64_t rows, std::int64_t usual_rows) {
    if ((x_rows == kFewRows ? known.cpu_rows_macs : x_rows == kPromptRows ? known.cpu_prefill_macs : 1) <= 0)
      return 0.0;
    const bool prompt = x_rows == kPromptRows;  // its weights stay in the caches
    const auto [own, other] = call_seconds(
        seconds, faster_, [&] { product(rows, x_rows, prompt ? From{.dtype = dtype} : parts.next()); },
        [&] { product(usual_rows, x_rows, prompt ? From{} : usual.next()); });
    return static_cast<double>(rows) / own / (static_cast<double>(usual_rows) / other);  // in weights
  };
  const double bytes = static_cast<double>(millrace::row_bytes(dtype, kCols)) / static_cast<double>(row_bytes_);
  const std::int64_t panel = std::min(kPanelRows, rows_in(memory_.size(), dtype));
  return {.dtype = dtype,
          .decode = known.cpu_decode * bytes * faster(1, parts.rows(), usual.rows()),
          .rows_macs = known.cpu_rows_macs * faster(kFewRows, parts.rows(), usual.rows()),
          .prefill_macs = known.cpu_prefill_macs * faster(kPromptRows, panel, std::min(kPanelRows, rows_))};
}

/// Random bytes that are harmless as weights of every type: each pair is a float16 or bfloat16, each four a float32,
/// and each byte an exponent, of an ordinary number.
void KernelProbe::fill_weights() {
  constexpr std::uint64_t kVaries = 0x1f1f1f1f1f1f1f1fu, kLeast = 0x1818181818181818u;
  const auto bytes = static_cast<std::int64_t>(memory_.size());
  pool_.parallel_for(bytes, 2 * static_cast<std::int64_t>(kMiB), [&](std::int64_t begin, std::int64_t end, int) {
    std::uint64_t state = 0x2545f4914f6cdd1du + static_cast<std::uint64_t>(begin);
    for (std::byte* at = memory_.data() + begin; at + 8 <= memory_.data() + end; at += 8) {
      const std::uint64_t word = (next_random(state) & kVaries) + kLeast;
      std::memcpy(at, &word, 8);
    }
  });
}

void KernelProbe::product(std::int64_t rows, std::int64_t x_rows, From from,
                          void (*matmul)(const kernels::MatmulArgs&)) {
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

}  // namespace millrace::residency
