// How fast one core multiplies with weights of each dtype, on each instruction set, beside what the core can do.
//
//   millrace_matmul_bench [--benchmark_filter=REGEX]
//
// Names are dtype/isa/K/rows. Runs are short and repeated, and the fastest counts: other programs on the machine only
// ever slow a run. GB/s counts bytes of weights; GMAC/s multiply-adds. `Streamed` reads more weights than the caches
// hold, the rest works on 2 MiB of them again and again. `Segments` is matmul_segments, by turns with matmul on the
// same weights, and says how much of matmul's rate it reaches. Peak/* are the machine's own limits, measured the same
// way.
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "tensor/codec.h"

namespace {

using namespace millrace;
using namespace millrace::kernels;
using device::Isa;

/// Seconds that this thread has computed. (Wall time would count other programs' turns.)
double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Seconds of the fastest of many runs of each of `works`, by turns.
template <std::size_t kWorks>
std::array<double, kWorks> fastest(const std::array<std::function<void()>, kWorks>& works) {
  std::array<double, kWorks> best;
  best.fill(1e9);
  const double end = now() + 0.2 * kWorks;
  for (int run = 0; run < 5 || now() < end; ++run) {
    for (std::size_t i = 0; i < kWorks; ++i) {
      const double start = now();
      works[i]();
      best[i] = std::min(best[i], now() - start);
    }
  }
  return best;
}
double fastest(const std::function<void()>& work) { return fastest<1>({work})[0]; }

std::vector<std::byte> random_bytes(std::size_t bytes) {
  std::vector<std::byte> memory(bytes);
  std::mt19937_64 rng(1);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    // No exponent bits, in whatever float16 or float32 a dtype sees: subnormals and NaNs would be slow.
    const std::uint64_t value = (rng() & 0x077f077f077f077fULL) | 0x3040304030403040ULL;
    std::memcpy(memory.data() + i, &value, 8);
  }
  return memory;
}

/// The products of an instruction set, and what they need.
struct Products {
  void (*matmul)(const MatmulArgs&);
  std::int64_t (*workspace)(std::int64_t);
  void (*segments)(const MatmulArgs&);
  std::int64_t (*segments_workspace)(std::int64_t);
};

Products products_of(Isa isa) {
  if (isa == Isa::avx512)
    return {avx512::matmul, avx512::matmul_workspace_bytes, avx512::matmul_segments,
            avx512::matmul_segments_workspace_bytes};
  if (isa == Isa::avx_vnni)
    return {avx_vnni::matmul, avx_vnni::matmul_workspace_bytes, avx_vnni::matmul_segments,
            avx_vnni::matmul_segments_workspace_bytes};
  if (isa == Isa::avx2)
    return {avx2::matmul, avx2::matmul_workspace_bytes, avx2::matmul_segments, avx2::matmul_segments_workspace_bytes};
  return {plain::matmul, plain::matmul_workspace_bytes, plain::matmul_segments, plain::matmul_segments_workspace_bytes};
}

std::byte* align64(std::vector<std::byte>& memory) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) & ~std::uintptr_t{63});
}

/// Weights and activations, and calls over all of them as an executor hands them out.
class Bench {
 public:
  Bench(DType dtype, Isa isa, std::int64_t cols, std::int64_t x_rows, bool streamed)
      : products_(products_of(isa)),
        stride_(row_bytes(dtype, cols)),
        chunks_(std::max<std::int64_t>(1, (streamed      ? 1LL << 28
                                           : x_rows > 64 ? 1
                                                         : 1 << 20) /
                                              (stride_ * kChunk))),
        weight_(random_bytes(static_cast<std::size_t>(stride_ * kChunk * chunks_))),
        x_(static_cast<std::size_t>(x_rows * cols)),
        y_(static_cast<std::size_t>(x_rows * kChunk)),
        q8_memory_(static_cast<std::size_t>(q8_bytes(x_rows, cols))),
        workspace_(static_cast<std::size_t>(products_.workspace(cols) + 64)),
        segments_workspace_(static_cast<std::size_t>(products_.segments_workspace(cols) + 64)) {
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>(i % 17) - 8.0F;
    args_.dtype = dtype;
    args_.weight_rows = kChunk;
    args_.cols = cols;
    args_.x = x_.data();
    args_.x_stride = cols;
    args_.x_q8 = q8_rows_at(q8_memory_.data(), x_rows, cols);
    args_.x_rows = x_rows;
    args_.x_name = 1;  // it never changes
    args_.y = y_.data();
    args_.y_stride = kChunk;
    plain::quantize_q8(x_.data(), cols, x_rows, cols, args_.x_q8);
  }

  std::function<void()> matmul() {
    return [this] { all(products_.matmul, workspace_); };
  }
  std::function<void()> segments() {
    return [this] { all(products_.segments, segments_workspace_); };
  }
  void tell(benchmark::State& state, double seconds) const {
    const double rows = static_cast<double>(kChunk * chunks_);
    state.counters["GB/s"] = rows * static_cast<double>(stride_) / seconds * 1e-9;
    state.counters["GMAC/s"] = rows * static_cast<double>(args_.cols * args_.x_rows) / seconds * 1e-9;
    state.SetIterationTime(seconds);
  }

 private:
  static constexpr std::int64_t kChunk = 64;  // weight rows a call

  void all(void (*product)(const MatmulArgs&), std::vector<std::byte>& workspace) {
    args_.workspace = align64(workspace);
    for (std::int64_t c = 0; c < chunks_; ++c) {
      args_.weight = weight_.data() + c * kChunk * stride_;
      product(args_);
    }
  }

  const Products products_;
  const std::int64_t stride_, chunks_;
  const std::vector<std::byte> weight_;
  std::vector<float> x_, y_;
  std::vector<std::byte> q8_memory_, workspace_, segments_workspace_;
  MatmulArgs args_;
};

void bench_matmul(benchmark::State& state, DType dtype, Isa isa, std::int64_t cols, std::int64_t x_rows,
                  bool streamed) {
  Bench bench(dtype, isa, cols, x_rows, streamed);
  for (auto _ : state) bench.tell(state, fastest(bench.matmul()));
}

void bench_segments(benchmark::State& state, DType dtype, Isa isa, std::int64_t cols, std::int64_t x_rows,
                    bool streamed) {
  Bench bench(dtype, isa, cols, x_rows, streamed);
  for (auto _ : state) {
    const auto [matmul, segments] = fastest<2>({bench.matmul(), bench.segments()});
    bench.tell(state, segments);
    state.counters["of matmul"] = matmul / segments;
  }
}

constexpr int kPeakRounds = 1 << 18, kPeakSums = 12;

__attribute__((target("avx512f,avx512vnni"))) void dot_products() {
  __m512i sum[kPeakSums] = {};
  const __m512i a = _mm512_set1_epi8(3);
  for (int i = 0; i < kPeakRounds; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kPeakSums; ++s) asm volatile("vpdpbusd %1, %1, %0" : "+v"(sum[s]) : "v"(a));
  }
}

// The most int8 multiply-adds a second.
void peak_vnni(benchmark::State& state) {
  for (auto _ : state) {
    const double seconds = fastest(dot_products);
    state.counters["GMAC/s"] = 64.0 * kPeakSums * kPeakRounds / seconds * 1e-9;
    state.SetIterationTime(seconds);
  }
}

__attribute__((target("avx512f"))) void read_all(const std::byte* memory, std::size_t bytes) {
  __m512i sum[4] = {};
  for (std::size_t i = 0; i + 256 <= bytes; i += 256) {
#pragma GCC unroll 4
    for (std::size_t s = 0; s < 4; ++s) sum[s] = _mm512_xor_si512(sum[s], _mm512_loadu_si512(memory + i + 64 * s));
  }
  asm volatile("" ::"v"(sum[0]), "v"(sum[1]), "v"(sum[2]), "v"(sum[3]));
}

// Plain reading of `bytes`.
void peak_read(benchmark::State& state, std::size_t bytes) {
  const std::vector<std::byte> memory(bytes, std::byte{1});
  for (auto _ : state) {
    const double seconds = fastest([&] { read_all(memory.data(), bytes); });
    state.counters["GB/s"] = static_cast<double>(bytes) / seconds * 1e-9;
    state.SetIterationTime(seconds);
  }
}

void add(const std::string& name, const std::function<void(benchmark::State&)>& function) {
  benchmark::RegisterBenchmark(name.c_str(), function)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);
}

void register_all() {
  if (device::best_isa() == Isa::avx512) {
    add("Peak/vnni", peak_vnni);
    add("Peak/read/1MiB", [](benchmark::State& state) { peak_read(state, 1 << 20); });
    add("Peak/read/256MiB", [](benchmark::State& state) { peak_read(state, std::size_t{1} << 28); });
  }
  for (const Isa isa : device::kIsas) {
    if (!device::has_isa(isa)) continue;
    for (const DTypeInfo& type : all_dtypes()) {
      if (!type.computable) continue;
      const std::string name = std::string(type.name) + "/" + std::string(device::isa_name(isa)) + "/";
      for (const std::int64_t cols : {2048, 2880, 5632, 8192}) {
        if (cols % type.block_elements != 0) continue;
        for (const std::int64_t rows : {1, 2, 4, 8, 16, 64, 512}) {
          add(name + std::to_string(cols) + "/" + std::to_string(rows),
              [=, dtype = type.dtype](benchmark::State& state) { bench_matmul(state, dtype, isa, cols, rows, false); });
        }
        add(name + std::to_string(cols) + "/1/Streamed",
            [=, dtype = type.dtype](benchmark::State& state) { bench_matmul(state, dtype, isa, cols, 1, true); });
        for (const std::int64_t rows : {1, 2, 4, 8}) {
          for (const bool streamed : {false, true}) {
            add(name + std::to_string(cols) + "/" + std::to_string(rows) + "/Segments" + (streamed ? "/Streamed" : ""),
                [=, dtype = type.dtype](benchmark::State& state) {
                  bench_segments(state, dtype, isa, cols, rows, streamed);
                });
          }
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
