// How fast one core multiplies with weights of each dtype, on each instruction set, beside what the core can do.
//
//   millrace_matmul_bench [--benchmark_filter=REGEX]
//
// Names are dtype/isa/K/rows. Runs are short and repeated, and the fastest counts: other programs on the machine only
// ever slow a run. GB/s counts bytes of weights; GMAC/s multiply-adds. `Streamed` reads more weights than the caches
// hold, the rest works on 2 MiB of them again and again. Peak/* are the machine's own limits, measured the same way.
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
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

/// Seconds of the fastest of many runs of `work`.
template <typename Work>
double fastest(const Work& work) {
  double best = 1e9;
  const double end = now() + 0.2;
  for (int run = 0; run < 5 || now() < end; ++run) {
    const double start = now();
    work();
    best = std::min(best, now() - start);
  }
  return best;
}

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

void matmul_of(Isa isa, const MatmulArgs& args) {
  if (isa == Isa::avx512) return avx512::matmul(args);
  if (isa == Isa::avx2) return avx2::matmul(args);
  plain::matmul(args);
}

std::int64_t workspace_of(Isa isa, std::int64_t cols) {
  if (isa == Isa::avx512) return avx512::matmul_workspace_bytes(cols);
  if (isa == Isa::avx2) return avx2::matmul_workspace_bytes(cols);
  return plain::matmul_workspace_bytes(cols);
}

std::byte* align64(std::vector<std::byte>& memory) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) & ~std::uintptr_t{63});
}

void bench_matmul(benchmark::State& state, DType dtype, Isa isa, std::int64_t cols, std::int64_t x_rows,
                  bool streamed) {
  const std::int64_t stride = row_bytes(dtype, cols);
  const std::int64_t chunk = 64;  // weight rows a call, as an executor hands them out
  const std::int64_t chunks = std::max<std::int64_t>(1, (streamed      ? 1LL << 28
                                                         : x_rows > 64 ? 1
                                                                       : 1 << 20) /
                                                            (stride * chunk));
  std::vector<std::byte> weight = random_bytes(static_cast<std::size_t>(stride * chunk * chunks));
  std::vector<float> x(static_cast<std::size_t>(x_rows * cols), 0.25F), y(static_cast<std::size_t>(x_rows * chunk));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8.0F;
  std::vector<std::byte> q8_memory(static_cast<std::size_t>(q8_bytes(x_rows, cols)));
  std::vector<std::byte> workspace(static_cast<std::size_t>(workspace_of(isa, cols) + 64));
  MatmulArgs args;
  args.dtype = dtype;
  args.weight_rows = chunk;
  args.cols = cols;
  args.x = x.data();
  args.x_stride = cols;
  args.x_q8 = q8_rows_at(q8_memory.data(), x_rows, cols);
  args.x_rows = x_rows;
  args.y = y.data();
  args.y_stride = chunk;
  args.workspace = align64(workspace);
  plain::quantize_q8(x.data(), cols, x_rows, cols, args.x_q8);
  for (auto _ : state) {
    const double seconds = fastest([&] {
      for (std::int64_t c = 0; c < chunks; ++c) {
        args.weight = weight.data() + c * chunk * stride;
        matmul_of(isa, args);
      }
    });
    const double rows = static_cast<double>(chunk * chunks);
    state.counters["GB/s"] = rows * static_cast<double>(stride) / seconds * 1e-9;
    state.counters["GMAC/s"] = rows * static_cast<double>(cols * x_rows) / seconds * 1e-9;
    state.SetIterationTime(seconds);
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
  for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::plain}) {
    if (isa > device::best_isa()) continue;
    for (const DTypeInfo& type : all_dtypes()) {
      if (!type.computable) continue;
      const std::string name = std::string(type.name) + "/" + std::string(device::isa_name(isa)) + "/";
      for (const std::int64_t cols : {2048, 5632}) {
        for (const std::int64_t rows : {1, 2, 4, 8, 16, 64, 512}) {
          add(name + std::to_string(cols) + "/" + std::to_string(rows),
              [=, dtype = type.dtype](benchmark::State& state) { bench_matmul(state, dtype, isa, cols, rows, false); });
        }
        add(name + std::to_string(cols) + "/1/Streamed",
            [=, dtype = type.dtype](benchmark::State& state) { bench_matmul(state, dtype, isa, cols, 1, true); });
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
