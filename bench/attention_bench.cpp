// How fast one core attends where every row sees every other, as in a vision tower: keys of many heads, which lie side
// by side and beyond the caches, and tile after tile of queries.
//
//   millrace_attention_bench [--benchmark_filter=REGEX]
//
// Names are isa/head_dim/keys/queries of a tile. GFLOP/s counts the products of scores and of values. Seconds are those
// that the thread has computed, and the fastest of some runs counts: others only ever slow a run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/ops.h"

namespace {

using namespace millrace;
using namespace millrace::kernels;

constexpr std::int64_t kHeads = 16;
constexpr std::int64_t kQueries = 192;  // of each head, in one run

double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::vector<float> random_floats(std::int64_t count, float scale) {
  std::vector<float> x(static_cast<std::size_t>(count));
  std::mt19937 random(1);
  for (float& v : x) v = (static_cast<float>(random() % 2001) - 1000) * 1e-3f * scale;
  return x;
}

/// A layer of a tower as the executor has it: blocks of 64 tokens, in each one head behind the other.
struct Layer {
  Layer(std::int64_t dim, std::int64_t keys)
      : head_dim(dim), blocks((keys + kKvBlock - 1) / kKvBlock), last_key(static_cast<std::int32_t>(keys - 1)) {
    k = random_floats(blocks * kHeads * kKvBlock * dim, 1);
    v = random_floats(blocks * kHeads * kKvBlock * dim, 1);
    q = random_floats(kQueries * kHeads * dim, 3);
    for (std::int64_t head = 0; head < kHeads; ++head) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t at = (block * kHeads + head) * kKvBlock * dim;
        k_blocks.push_back(reinterpret_cast<const std::byte*>(k.data() + at));
        v_blocks.push_back(reinterpret_cast<const std::byte*>(v.data() + at));
      }
    }
  }
  std::int64_t head_dim, blocks;
  std::int32_t last_key;
  std::vector<float> k, v, q;
  std::vector<const std::byte*> k_blocks, v_blocks;
};

/// `rows` queries of a head, from row `first` on, over all keys.
void attend(const Table& table, const Layer& layer, std::int64_t head, std::int64_t first, std::int64_t rows,
            std::vector<float>& memory) {
  const std::int64_t chunk_blocks = kAttentionChunk / kKvBlock, dim = layer.head_dim;
  const std::int64_t chunks = (layer.blocks + chunk_blocks - 1) / chunk_blocks;
  const std::vector<std::int32_t> positions(static_cast<std::size_t>(rows), layer.last_key);
  memory.resize(static_cast<std::size_t>(chunks * rows * (dim + 2) + rows * dim));
  float *acc = memory.data(), *max = acc + chunks * rows * dim, *sum = max + chunks * rows, *out = sum + chunks * rows;
  AttentionArgs args;
  args.q = layer.q.data() + (first * kHeads + head) * dim;
  args.q_row_stride = kHeads * dim;
  args.q_head_stride = args.head_dim = args.v_dim = dim;
  args.rows = rows;
  args.group = 1;
  args.positions = positions.data();
  args.scale = 1 / std::sqrt(static_cast<float>(dim));
  args.kv_dtype = DType::f32;
  for (args.chunk = 0; args.chunk < chunks; ++args.chunk) {
    args.k_blocks = layer.k_blocks.data() + head * layer.blocks + args.chunk * chunk_blocks;
    args.v_blocks = layer.v_blocks.data() + head * layer.blocks + args.chunk * chunk_blocks;
    args.acc = acc + args.chunk * rows * dim;
    args.max = max + args.chunk * rows;
    args.sum = sum + args.chunk * rows;
    table.attention_chunk(args);
  }
  for (std::int64_t i = 0; i < rows; ++i)
    table.attention_merge(acc + i * dim, rows * dim, max + i, sum + i, rows, chunks, dim,
                          -std::numeric_limits<float>::infinity(), out + i * dim);
}

void run(benchmark::State& state, const Table& table, std::int64_t dim, std::int64_t keys, std::int64_t rows) {
  const Layer layer(dim, keys);
  std::vector<float> memory;
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    for (int i = 0; i < 3; ++i) {
      const double start = now();
      for (std::int64_t first = 0; first < kQueries; first += rows)
        for (std::int64_t head = 0; head < kHeads; ++head) attend(table, layer, head, first, rows, memory);
      best = std::min(best, now() - start);
    }
    state.SetIterationTime(best);
  }
  state.counters["GFLOP/s"] = 4e-9 * static_cast<double>(kQueries * kHeads * keys * dim) / best;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Table> tables;
#if defined(__x86_64__)
  if (device::best_isa() >= device::Isa::avx512) tables.push_back(avx512_ops());
  if (device::best_isa() >= device::Isa::avx2) tables.push_back(avx2_ops());
#endif
  for (const Table& table : tables) {
    for (const std::int64_t dim : {64, 72, 80, 128}) {
      for (const std::int64_t keys : {1024, 8160}) {
        for (const std::int64_t rows : {64, 192}) {
          const std::string name = std::string(device::isa_name(table.isa)) + "/" + std::to_string(dim) + "/" +
                                   std::to_string(keys) + "/" + std::to_string(rows);
          benchmark::RegisterBenchmark(name.c_str(),
                                       [=](benchmark::State& state) { run(state, table, dim, keys, rows); })
              ->Iterations(1)
              ->UseManualTime();
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
