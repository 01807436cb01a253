// How long the GPU's products take at the shapes of real models, beside the rate of the device's memory.
//
//   millrace_cuda_products [--model 8b|70b] [--dtype NAME] [--head NAME] [--rows N,N,...] [--shapes]
//
// A line a product and number of rows: microseconds, GB/s of weights, and their share of what a copy inside the
// device's memory moves (bytes read and written). Weights rotate among copies that are together larger than the L2
// cache, so that they come from memory; launches stand in a graph, as a pass has them. `pass` is the sum over a pass
// of the whole model: its layers' products and the head. --shapes: matmul()'s kernels one by one, by their number in
// Shape and, behind those, ThinShape (kernels/cuda/matmul*_launch.cuh), instead of the one that is chosen.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/launchers.h"
#include "tensor/codec.h"

namespace millrace::kernels::cuda {
extern int matmul_forced_shape;
}

namespace {

using namespace millrace;
using namespace millrace::kernels::cuda;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "{}: {}\n", what, cudaGetErrorString(error));
  std::exit(1);
}

std::byte* allocate(std::size_t bytes) {
  void* p = nullptr;
  check(cudaMalloc(&p, bytes + 256), "cudaMalloc");
  return static_cast<std::byte*>(p);
}

/// A model's products of a layer, and how many layers; Llama's names.
struct Model {
  std::string_view name;
  int layers, dim, kv_rows, hidden, vocab;
};
constexpr Model kModels[] = {{"8b", 32, 4096, 1024, 14336, 128256}, {"70b", 80, 8192, 1024, 28672, 128256}};

struct Options {
  const Model* model = &kModels[0];
  DType dtype = DType::q4_k, head = DType::q6_k;
  std::vector<int> rows = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64};
  bool shapes = false;
};

struct Case {
  std::string_view name;
  std::vector<int> weights;  // rows of each matrix
  int cols;
  Effect effect;
  DType dtype;
  int in_pass;  // how often a pass has it
};

std::vector<Case> cases_of(const Options& o) {
  const Model& m = *o.model;
  return {{"qkv", {m.dim, m.kv_rows, m.kv_rows}, m.dim, Effect::store, o.dtype, m.layers},
          {"o", {m.dim}, m.dim, Effect::add, o.dtype, m.layers},
          {"gate_up", {m.hidden, m.hidden}, m.dim, Effect::gated, o.dtype, m.layers},
          {"down", {m.dim}, m.hidden, Effect::add, o.dtype, m.layers},
          {"head", {m.vocab}, m.dim, Effect::store, o.head, 1}};
}

constexpr int kMostRows = 512, kLaunches = 32;
constexpr std::size_t kRotated = std::size_t{320} << 20;  // bytes of weights that launches rotate among, at least

/// Random bytes without exponent bits in whatever float16 a dtype sees: no subnormals, infinities or NaNs.
void fill(std::byte* to, std::size_t bytes) {
  constexpr std::size_t kBlock = std::size_t{16} << 20;
  static const std::vector<std::uint64_t> random = [] {
    std::vector<std::uint64_t> words(kBlock / 8);
    std::mt19937_64 rng(1);
    for (auto& word : words) word = (rng() & 0x877f877f877f877fULL) | 0x1040104010401040ULL;
    return words;
  }();
  for (std::size_t at = 0; at < bytes; at += kBlock)
    check(cudaMemcpy(to + at, random.data(), std::min(kBlock, bytes - at), cudaMemcpyHostToDevice), "cudaMemcpy");
}

/// A case's matrices, their table of addresses, and what goes in and out.
class Bench {
 public:
  explicit Bench(const Case& c) : case_(c) {
    std::vector<std::size_t> bytes;
    for (const int rows : c.weights)
      bytes.push_back((static_cast<std::size_t>(row_bytes(c.dtype, c.cols)) * static_cast<std::size_t>(rows) + 511) /
                      256 * 256);
    for (const std::size_t b : bytes) set_bytes_ += b;
    sets_ = static_cast<int>(kRotated / set_bytes_) + 1;
    memory_ = allocate(set_bytes_ * static_cast<std::size_t>(sets_));
    fill(memory_, set_bytes_ * static_cast<std::size_t>(sets_));
    std::vector<const std::byte*> addresses;
    const std::byte* at = memory_;
    for (int i = 0; i < sets_; ++i)
      for (const std::size_t b : bytes) addresses.push_back(std::exchange(at, at + b));
    table_ = reinterpret_cast<const std::byte**>(allocate(addresses.size() * sizeof(addresses[0])));
    check(cudaMemcpy(table_, addresses.data(), addresses.size() * sizeof(addresses[0]), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    int outputs = 0;
    for (const int rows : c.weights) outputs += rows;
    y_ = reinterpret_cast<float*>(allocate(sizeof(float) * kMostRows * static_cast<std::size_t>(outputs)));
    check(cudaMemset(y_, 0, sizeof(float) * kMostRows * static_cast<std::size_t>(outputs)), "cudaMemset");
    x_ = quantized(c.cols);
    if (c.effect == Effect::gated) y_q8_ = quantized(c.weights[0]);
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() {
    cudaStreamDestroy(stream_);
    for (void* p : {static_cast<void*>(memory_), static_cast<void*>(table_), static_cast<void*>(y_),
                    static_cast<void*>(x_.q), static_cast<void*>(y_q8_.q)})
      cudaFree(p);
  }

  std::size_t bytes() const { return set_bytes_; }

  /// Microseconds of a launch: the median of many graphs. Negative: this kernel does not do this product.
  double measure(int rows) {
    if (launch(rows, 0) != cudaSuccess || cudaStreamSynchronize(stream_) != cudaSuccess) return -1;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runs = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < kLaunches; ++i) check(launch(rows, i % sets_), "launch");
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&runs, graph, 0), "cudaGraphInstantiate");
    cudaEvent_t start, end;
    check(cudaEventCreate(&start), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    std::vector<float> times;
    for (int i = 0; i < 13; ++i) {
      check(cudaEventRecord(start, stream_), "cudaEventRecord");
      check(cudaGraphLaunch(runs, stream_), "cudaGraphLaunch");
      check(cudaEventRecord(end, stream_), "cudaEventRecord");
      check(cudaEventSynchronize(end), "cudaEventSynchronize");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, start, end), "cudaEventElapsedTime");
      if (i >= 2) times.push_back(ms);
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(runs);
    cudaGraphDestroy(graph);
    std::nth_element(times.begin(), times.begin() + 5, times.end());
    return times[5] * 1000.0 / kLaunches;
  }

 private:
  static Q8 quantized(int cols) {
    const Q8 q8 = q8_at(allocate(q8_bytes(kMostRows, cols)), kMostRows, cols);
    std::vector<float> x(static_cast<std::size_t>(kMostRows) * static_cast<std::size_t>(cols));
    std::mt19937 rng(2);
    for (float& v : x) v = static_cast<float>(rng() % 4096) / 2048.0F - 1;
    auto* floats = reinterpret_cast<float*>(allocate(x.size() * sizeof(float)));
    check(cudaMemcpy(floats, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(quantize_q8(floats, cols, kMostRows, cols, q8, nullptr), "quantize_q8");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    cudaFree(floats);
    return q8;
  }

  cudaError_t launch(int rows, int set) {
    MatmulCall call;
    call.effect = case_.effect;
    call.cols = case_.cols;
    call.x_rows = rows;
    call.x_q8 = x_;
    call.y_q8 = y_q8_;
    float* y = y_;
    const auto* entry = table_ + static_cast<std::size_t>(set) * case_.weights.size();
    for (const int matrix_rows : case_.weights) {
      Product& product = call.products[call.count++];
      product.weight = {entry++, case_.dtype, matrix_rows};
      product.y = case_.effect == Effect::gated ? nullptr : y;
      product.y_stride = matrix_rows;
      y += std::int64_t{kMostRows} * matrix_rows;
    }
    return rows <= kMatvecRows && matmul_forced_shape < 0 ? matvec(call, stream_) : matmul(call, stream_);
  }

  const Case& case_;
  std::size_t set_bytes_ = 0;
  int sets_ = 0;
  std::byte* memory_ = nullptr;
  const std::byte** table_ = nullptr;
  float* y_ = nullptr;
  Q8 x_, y_q8_;
  cudaStream_t stream_ = nullptr;
};

/// GB/s that a copy inside the device's memory reads and writes.
double device_rate() {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  std::byte* const memory = allocate(2 * kBytes);
  cudaEvent_t start, end;
  check(cudaEventCreate(&start), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  float best = 1e9F;
  for (int i = 0; i < 5; ++i) {
    check(cudaEventRecord(start), "cudaEventRecord");
    check(cudaMemcpyAsync(memory, memory + kBytes, kBytes, cudaMemcpyDeviceToDevice), "cudaMemcpyAsync");
    check(cudaEventRecord(end), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, end), "cudaEventElapsedTime");
    best = std::min(best, ms);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  cudaFree(memory);
  return 2.0 * static_cast<double>(kBytes) / (best * 1e6);
}

[[noreturn]] void usage() {
  fmt::print(stderr,
             "millrace_cuda_products [--model 8b|70b] [--dtype NAME] [--head NAME] [--rows N,N,...] [--shapes]\n");
  std::exit(2);
}

DType dtype_named(std::string_view name) {
  const auto dtype = dtype_from_name(name);
  if (!dtype.ok() || !info(*dtype).computable || info(*dtype).block_elements == 1) usage();
  return *dtype;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--shapes") {
      o.shapes = true;
      continue;
    }
    if (++i == argc) usage();
    const std::string value = argv[i];
    if (name == "--model") {
      const auto* model =
          std::find_if(std::begin(kModels), std::end(kModels), [&](const Model& m) { return m.name == value; });
      if (model == std::end(kModels)) usage();
      o.model = model;
    } else if (name == "--dtype") {
      o.dtype = dtype_named(value);
    } else if (name == "--head") {
      o.head = dtype_named(value);
    } else if (name == "--rows") {
      o.rows.clear();
      for (std::size_t at = 0; at < value.size(); at = std::min(value.find(',', at), value.size() - 1) + 1)
        o.rows.push_back(std::clamp(std::atoi(value.c_str() + at), 1, kMostRows));
    } else {
      usage();
    }
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  const double rate = device_rate();
  fmt::print("{}, {} multiprocessors, copies {:.0f} GB/s\n", device.name, device.multiProcessorCount, rate);
  std::vector<double> pass(options.rows.size());
  for (const Case& c : cases_of(options)) {
    Bench bench(c);
    for (std::size_t i = 0; i < options.rows.size(); ++i) {
      for (int shape = options.shapes ? 0 : -1; shape < (options.shapes ? 12 : 0); ++shape) {
        matmul_forced_shape = shape;
        const double us = bench.measure(options.rows[i]);
        if (us < 0) continue;
        const double rates = static_cast<double>(bench.bytes()) / us * 1e-3;
        fmt::print("{} {:8} {:5} rows {:2}{}: {:8.1f} us {:6.0f} GB/s {:3.0f} %\n", options.model->name, c.name,
                   info(c.dtype).name, options.rows[i], shape < 0 ? "" : fmt::format(" shape {:2}", shape), us, rates,
                   100 * rates / rate);
        pass[i] += us * c.in_pass;
      }
    }
  }
  if (options.shapes) return 0;
  for (std::size_t i = 0; i < pass.size(); ++i)
    fmt::print("{} pass rows {:2}: {:8.1f} us\n", options.model->name, options.rows[i], pass[i]);
}
