// What Vulkan's kernels take on a device, by its own clock, at the shapes of a Llama of 8B: a line each, with the bytes
// of weights that it read. Weights are no model's: speed does not depend on them. Usage: millrace_vulkan_kernels
// [device]
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "device/vulkan/driver.h"
#include "kernels/gpu/heads.h"
#include "kernels/gpu/ops.h"
#include "tensor/dtype.h"

namespace {

using namespace millrace;
using namespace millrace::kernels::gpu;
using device::DeviceBuffer;

constexpr std::int64_t kDim = 4096, kFf = 14336, kVocab = 128256, kHeads = 32, kKvHeads = 8, kHeadDim = 128;

[[noreturn]] void give_up(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
void check(const Status& status) {
  if (!status.ok()) give_up(status);
}
template <typename T>
T take(Expected<T> got) {
  if (!got.ok()) give_up(got.status());
  return std::move(*got);
}

DeviceBuffer filled(std::int64_t bytes, std::uint8_t value) {
  DeviceBuffer buffer = take(DeviceBuffer::allocate(static_cast<std::size_t>(bytes)));
  check(device::fill_device(buffer.data(), value, static_cast<std::size_t>(bytes), {}));
  return buffer;
}
template <typename T>
DeviceBuffer array(const std::vector<T>& values) {
  DeviceBuffer buffer = take(DeviceBuffer::allocate(values.size() * sizeof(T)));
  check(device::write_device(buffer.data(), values.data(), values.size() * sizeof(T)));
  return buffer;
}
template <typename T>
T* at(const DeviceBuffer& buffer) {
  return reinterpret_cast<T*>(buffer.data());
}

class Bench {
 public:
  Bench()
      : stream_(take(device::Stream::create())),
        begin_(take(device::Event::create(true))),
        end_(take(device::Event::create(true))) {}

  /// bytes: of weights that one run reads.
  void time(const std::string& name, double bytes, const std::function<Status(int, device::StreamRef)>& run) {
    constexpr int kRuns = 20;
    constexpr double kWarmUs = 100'000;  // until the device's clock has settled
    check(run(0, stream_));              // makes pipelines
    check(stream_.synchronise());
    check(device::RecordedPass::begin(stream_));  // so that the host's work is not in it
    for (int i = 0; i < kRuns; ++i) check(run(i, stream_));
    const device::RecordedPass pass = take(device::RecordedPass::end(stream_));
    double us = 0;
    for (double all = 0; all < kWarmUs; all += us * kRuns) {
      check(device::record(begin_, stream_));
      check(pass.launch(stream_));
      check(device::record(end_, stream_));
      check(stream_.synchronise());
      us = double{take(device::milliseconds(begin_, end_))} * 1e3 / kRuns;
    }
    std::printf("%-52s %9.1f us", name.c_str(), us);
    if (bytes > 0) std::printf("  %7.0f GB/s", bytes / us * 1e-3);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  device::Stream stream_;
  device::Event begin_, end_;
};

/// Several matrices one after the other, so that no cache keeps them.
struct Weights {
  Weights(DType of, std::int64_t r, std::int64_t c)
      : dtype(of),
        rows(r),
        cols(c),
        bytes(static_cast<std::int64_t>(row_bytes(of, c)) * r),
        count(std::max<std::int64_t>(2, (std::int64_t{400} << 20) / bytes)),
        memory(filled((bytes + 1024) * count, 0x11)) {
    std::vector<const std::byte*> entries;
    for (std::int64_t i = 0; i < count; ++i) entries.push_back(memory.data() + i * ((bytes + 511) / 256 * 256));
    table = array(entries);
  }
  Matrix matrix(int i) const {
    return {at<const std::byte* const>(table) + i % count, dtype, static_cast<std::int32_t>(rows)};
  }
  DType dtype;
  std::int64_t rows, cols, bytes, count;
  DeviceBuffer memory, table;
};

void products(Bench& bench, std::int32_t x_rows) {
  const DeviceBuffer x = filled(static_cast<std::int64_t>(q8_bytes(x_rows, kFf)), 0x11);
  const DeviceBuffer y = filled(std::int64_t{4} * x_rows * (x_rows > 1 ? kFf : kVocab), 0);
  const DeviceBuffer y_q = filled(static_cast<std::int64_t>(q8_bytes(x_rows, kFf)), 0);
  struct Shape {
    DType dtype;
    std::int64_t rows, cols;
    Effect effect;
  };
  for (const Shape& shape :
       {Shape{DType::q4_k, kDim, kDim, Effect::add}, Shape{DType::q4_k, kDim / 4, kDim, Effect::store},
        Shape{DType::q4_k, kFf, kDim, Effect::gated}, Shape{DType::q4_k, kDim, kFf, Effect::add},
        Shape{DType::q6_k, kDim, kFf, Effect::add}, Shape{DType::q6_k, kVocab, kDim, Effect::store},
        Shape{DType::q8_0, kFf, kDim, Effect::gated}, Shape{DType::q8_0, kDim, kFf, Effect::add},
        Shape{DType::q4_0, kDim, kFf, Effect::add}, Shape{DType::iq4_xs, kDim, kFf, Effect::add}}) {
    if (x_rows > 1 && shape.rows == kVocab) continue;
    const Weights weights(shape.dtype, shape.rows, shape.cols);
    MatmulCall call;
    call.count = shape.effect == Effect::gated ? 2 : 1;
    call.effect = shape.effect;
    call.cols = static_cast<std::int32_t>(shape.cols);
    call.x_rows = x_rows;
    call.x_q8 = q8_at(x.data(), x_rows, shape.cols);
    if (shape.effect == Effect::gated) call.y_q8 = q8_at(y_q.data(), x_rows, shape.rows);
    const char* const kinds[] = {"store", "add", "gated"};
    const std::string name = fmt::format("{} x {} {}x{} {}", x_rows, info(shape.dtype).name, shape.rows, shape.cols,
                                         kinds[static_cast<int>(shape.effect)]);
    bench.time(name, static_cast<double>(weights.bytes * call.count), [&](int i, device::StreamRef stream) {
      for (int p = 0; p < call.count; ++p)
        call.products[p] = {weights.matrix(call.count * i + p), nullptr,
                            shape.effect == Effect::gated ? nullptr : at<float>(y), shape.rows};
      return matmul(call, stream);
    });
  }
}

void others(Bench& bench, std::int32_t rows) {
  const std::string prefix = fmt::format("{} x ", rows);
  const DeviceBuffer x = filled(4 * rows * kDim, 0x3c), q8 = filled(static_cast<std::int64_t>(q8_bytes(rows, kDim)), 0);
  const DeviceBuffer weight = filled(4 * kDim, 0x3c);
  const DeviceBuffer entry = array(std::vector<const std::byte*>{weight.data()});
  bench.time(prefix + "add of 4096", 0,
             [&](int, device::StreamRef stream) { return add(at<float>(x), at<float>(weight), kDim, stream); });
  bench.time(prefix + "rms_norm of 4096 to int8", 0, [&](int, device::StreamRef stream) {
    return rms_norm(at<float>(x), nullptr, at<const std::byte* const>(entry), rows, kDim, 1e-5f, nullptr,
                    q8_at(q8.data(), rows, kDim), stream);
  });
  for (const DType dtype : {DType::f16, DType::q8_0}) {
    for (const std::int32_t last : {511, 4095}) {
      constexpr std::int32_t kBlocks = 64;
      const std::int64_t head_bytes = dtype == DType::f16 ? 64 * kHeadDim * 2 : 64 * kHeadDim + 64 * kHeadDim / 32 * 2;
      const std::int64_t block = 2 * kKvHeads * head_bytes;
      const DeviceBuffer kv = filled(block * kBlocks, 0x21);
      std::vector<const std::byte*> blocks;
      for (int i = 0; i < kBlocks; ++i) blocks.push_back(kv.data() + i * block);
      const DeviceBuffer table = array(blocks), sequence = filled(4 * rows, 0);
      std::vector<std::int32_t> positions;
      for (std::int32_t r = 0; r < rows; ++r) positions.push_back(std::max(last - rows + 1 + r, 0));
      const DeviceBuffer position = array(positions), q = filled(4 * rows * kHeads * kHeadDim, 0x3c);
      const DeviceBuffer k = filled(4 * rows * kKvHeads * kHeadDim, 0x3c), angles = filled(4 * rows * kHeadDim, 0x3c);
      const DeviceBuffer out = filled(static_cast<std::int64_t>(q8_bytes(rows, kHeads * kHeadDim)), 0);
      AttentionCall call;
      call.rows = {rows, nullptr, at<std::int32_t>(sequence), at<std::int32_t>(position)};
      call.kv.blocks = {at<const std::byte* const>(table), 0, kKvHeads * head_bytes, head_bytes};
      call.kv.max_blocks = kBlocks;
      call.kv.dtype = dtype;
      call.kv.kv_heads = kKvHeads;
      call.kv.head_dim = kHeadDim;
      call.q = at<float>(q);
      call.heads = kHeads;
      call.scale = 0.088f;
      call.out_q8 = q8_at(out.data(), rows, kHeads * kHeadDim);
      call.floats = false;
      call.max_position = kBlocks * 64;
      const DeviceBuffer workspace = filled(
          static_cast<std::int64_t>(attention_workspace_bytes(rows > 8 ? 1 : rows, kHeads, kHeadDim, kBlocks * 64)), 0);
      if (rows <= 8) call.workspace = workspace.data();  // more lie in tiles
      const std::string of = fmt::format(" {} at {}", info(dtype).name, last);
      bench.time(prefix + "attention" + of, 0, [&](int, device::StreamRef stream) { return attention(call, stream); });
      if (last > 511) continue;
      RopeStoreCall store;
      store.rows = call.rows;
      store.kv = call.kv;
      store.q = at<float>(q);
      store.k = store.v = at<float>(k);
      store.heads = kHeads;
      store.cos_sin = at<float>(angles);
      store.rotary = kHeadDim;
      bench.time(prefix + "rope_store" + of, 0,
                 [&](int, device::StreamRef stream) { return rope_store(store, stream); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  check(device::use_gpu(argc > 1 ? std::atoi(argv[1]) : 0));
  const auto* const driver = take(device::vulkan::Driver::get());
  std::printf("%s, %s; shared memory of a workgroup %u, an allocation %llu MB, queues %u of family %u\n",
              driver->offer.name.c_str(), driver->offer.driver.c_str(), driver->offer.shared_bytes,
              static_cast<unsigned long long>(driver->offer.piece_bytes >> 20), driver->offer.queues,
              driver->offer.queue_family);
  Bench bench;
  products(bench, 1);
  others(bench, 1);
  for (const std::int32_t rows : {8, 512}) products(bench, rows);
  others(bench, 512);
  const DeviceBuffer logits = filled(4 * kVocab, 0x3c), found = filled(sizeof(Candidates), 0);
  const DeviceBuffer workspace = filled(static_cast<std::int64_t>(sample_workspace_bytes(1, kVocab)), 0);
  bench.time("candidates of 128256", 0, [&](int, device::StreamRef stream) {
    return candidates(at<float>(logits), 1, kVocab, at<Candidates>(found), workspace.data(), stream);
  });
  return 0;
}
