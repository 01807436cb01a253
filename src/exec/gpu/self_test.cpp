#include "exec/gpu/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <tuple>

#include "base/mutex.h"
#include "device/device.h"
#include "device/host_memory.h"
#include "exec/gpu/executor.h"
#include "exec/program.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/ops.h"
#include "kernels/gpu/plainer.h"
#include "kernels/gpu/prompt_int8.h"
#include "kernels/kernels.h"
#include "tensor/codec.h"
#include "tensor/kv_codec.h"

namespace millrace::exec {

namespace gpu = kernels::gpu;
using gpu::Family;

namespace {

constexpr std::int64_t kCols = 768;         // three segments of a product's sum
constexpr std::int64_t kDistinctRows = 40;  // of weights; larger matrices repeat them
constexpr std::int64_t kMostRows = 150;     // of activations: more than any tile has
constexpr std::int64_t kKeys = 150;         // more than a chunk of attention's, three blocks of the cache
constexpr std::int64_t kMostGroup = 8;      // heads for each of two KV heads
constexpr float kNearPrompt = 0.05f;        // relative error of a product whose activations have 8 bits a segment
using device::DeviceBuffer;

std::vector<float> normal_floats(std::int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> floats(static_cast<std::size_t>(count));
  for (float& value : floats) value = normal(random);
  return floats;
}

Expected<DeviceBuffer> on_device(const void* from, std::size_t bytes) {
  MR_ASSIGN_OR_RETURN(DeviceBuffer memory, DeviceBuffer::allocate(bytes + 512));  // products read beyond the last row
  MR_RETURN_IF_ERROR(device::clear_device(memory));
  MR_RETURN_IF_ERROR(device::write_device(memory.data(), from, bytes));
  return memory;
}
Expected<DeviceBuffer> on_device(const std::vector<float>& floats) {
  return on_device(floats.data(), floats.size() * sizeof(float));
}

/// |got - want| / |want|; infinite where one is not finite.
double error_of(const float* got, const float* want, std::int64_t count) {
  double off = 0, all = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    off += std::pow(static_cast<double>(got[i]) - want[i], 2);
    all += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::isfinite(off) ? std::sqrt(off / std::max(all, 1e-30)) : INFINITY;
}

/// The products of random activations with a matrix of a dtype, whose rows repeat, as the processor computes them.
class Products {
 public:
  Products(DType dtype, std::int64_t tall) : dtype_(dtype), tall_(tall) {}

  Status prepare() {
    std::mt19937 random(20261130);
    const auto row = static_cast<std::size_t>(row_bytes(dtype_, kCols));
    std::vector<std::byte> weights(row * static_cast<std::size_t>(tall_));
    for (std::int64_t r = 0; r < kDistinctRows; ++r) {
      std::vector<float> floats = normal_floats(kCols, random);
      for (float& value : floats) value *= 0.05f;
      encode_row(dtype_, floats.data(), kCols, weights.data() + static_cast<std::size_t>(r) * row);
    }
    const std::size_t distinct = row * kDistinctRows;
    for (std::size_t at = distinct; at < weights.size(); at += distinct)
      std::memcpy(weights.data() + at, weights.data(), std::min(distinct, weights.size() - at));

    const std::vector<float> x = normal_floats(kMostRows * kCols, random);
    const kernels::Table& cpu = kernels::table(device::best_isa());
    const auto reserve = [](std::int64_t bytes) {
      return device::HostBuffer::reserve(static_cast<std::size_t>(bytes), device::Pages::normal);
    };
    MR_ASSIGN_OR_RETURN(const device::HostBuffer q8, reserve(kernels::q8_bytes(kMostRows, kCols)));
    MR_ASSIGN_OR_RETURN(const device::HostBuffer workspace, reserve(cpu.matmul_segments_workspace_bytes(kCols)));
    want_.resize(static_cast<std::size_t>(kMostRows * kDistinctRows));
    kernels::MatmulArgs args;
    args.dtype = dtype_;
    args.weight = weights.data();
    args.weight_rows = kDistinctRows;
    args.cols = kCols;
    args.x = x.data();
    args.x_stride = kCols;
    args.x_rows = kMostRows;
    if (kernels::uses_q8(dtype_)) {
      args.x_q8 = kernels::q8_rows_at(q8.data(), kMostRows, kCols);
      cpu.quantize_q8(x.data(), kCols, kMostRows, kCols, args.x_q8);
    }
    args.y = want_.data();
    args.y_stride = kDistinctRows;
    args.workspace = workspace.data();
    cpu.matmul_segments(args);

    MR_ASSIGN_OR_RETURN(weights_, on_device(weights.data(), weights.size()));
    const std::byte* const entry = weights_.data();
    MR_ASSIGN_OR_RETURN(entry_, on_device(&entry, sizeof(entry)));
    MR_ASSIGN_OR_RETURN(x_, on_device(x));
    MR_ASSIGN_OR_RETURN(q8_, DeviceBuffer::allocate(gpu::q8_bytes(kMostRows, kCols)));
    MR_ASSIGN_OR_RETURN(rounded_, DeviceBuffer::allocate(std::max(gpu::prompt_int8_bytes(kMostRows, kCols),
                                                                  gpu::bf16_bytes(kMostRows, kCols))));
    MR_ASSIGN_OR_RETURN(y_, DeviceBuffer::allocate(static_cast<std::size_t>(kMostRows * tall_) * sizeof(float)));
    return gpu::quantize_q8(floats(x_), kCols, kMostRows, kCols, gpu::q8_at(q8_.data(), kMostRows, kCols), {});
  }

  /// The relative error of products of so many rows of activations with so many of weights.
  Expected<double> error(std::int64_t x_rows, std::int64_t weight_rows, gpu::PromptProducts prompt) const {
    gpu::MatmulCall call;
    call.count = 1;
    call.cols = kCols;
    call.x_rows = static_cast<std::int32_t>(x_rows);
    call.x = floats(x_);
    call.x_stride = kCols;
    call.x_q8 = gpu::q8_at(q8_.data(), kMostRows, kCols);
    call.products[0] = {
        {reinterpret_cast<const std::byte* const*>(entry_.data()), dtype_, static_cast<std::int32_t>(weight_rows)},
        nullptr,
        floats(y_),
        weight_rows};
    if (prompt == gpu::PromptProducts::int8) {
      call.x_rounded = gpu::prompt_int8_at(rounded_.data(), x_rows, kCols);
      MR_RETURN_IF_ERROR(gpu::round_prompt(floats(x_), call.x_rows, kCols, call.x_rounded, {}));
    } else if (prompt == gpu::PromptProducts::bf16) {
      auto* const rounded = reinterpret_cast<gpu::Bf16*>(rounded_.data());
      MR_RETURN_IF_ERROR(gpu::to_bf16(floats(x_), x_rows * kCols, rounded, {}));
      call.x_bf16 = rounded;
    }
    MR_RETURN_IF_ERROR(prompt != gpu::PromptProducts::none ? gpu::matmul_prompt(call, {})
                       : x_rows <= gpu::kMatvecRows        ? gpu::matvec(call, {})
                                                           : gpu::matmul(call, {}));
    std::vector<float> got(static_cast<std::size_t>(x_rows * weight_rows));
    MR_RETURN_IF_ERROR(device::read_device(got.data(), y_.data(), got.size() * sizeof(float)));
    double worst = 0;
    for (std::int64_t r = 0; r < x_rows; ++r)
      for (std::int64_t n = 0; n < weight_rows; n += kDistinctRows)
        worst = std::max(worst, error_of(got.data() + r * weight_rows + n, want_.data() + r * kDistinctRows,
                                         std::min(kDistinctRows, weight_rows - n)));
    return worst;
  }

  /// Whether such products of few rows of weights and of many are the processor's, bit for bit or (of prompts) nearly.
  Expected<bool> right(std::int64_t x_rows, gpu::PromptProducts prompt) const {
    for (const std::int64_t weight_rows : {kDistinctRows, tall_}) {
      MR_ASSIGN_OR_RETURN(const double off, error(x_rows, weight_rows, prompt));
      if (off > (prompt == gpu::PromptProducts::none ? 0 : kNearPrompt)) return false;
    }
    return true;
  }

 private:
  static float* floats(const DeviceBuffer& memory) { return reinterpret_cast<float*>(memory.data()); }

  DType dtype_;
  std::int64_t tall_;        // rows of the whole matrix
  std::vector<float> want_;  // [kMostRows, kDistinctRows]
  DeviceBuffer weights_, entry_, x_, q8_, rounded_, y_;
};

/// Attention of a sequence's tokens over the keys before them, which rope_store() has stored, beside sums in double.
class Heads {
 public:
  Heads(SelfTestHeads heads, DType dtype)
      : dim_(heads.head_dim), group_(std::min(heads.group, kMostGroup)), dtype_(dtype) {}

  Status prepare() {
    std::mt19937 random(20261130);
    q_host_ = normal_floats(kKeys * heads() * dim_, random);
    k_host_ = normal_floats(kKeys * kKvHeads * dim_, random);
    v_host_ = normal_floats(kKeys * kKvHeads * dim_, random);
    MR_ASSIGN_OR_RETURN(q_, on_device(q_host_));
    MR_ASSIGN_OR_RETURN(k_, on_device(k_host_));
    MR_ASSIGN_OR_RETURN(v_, on_device(v_host_));
    view_.dtype = dtype_;
    view_.kv_heads = kKvHeads;
    view_.head_dim = static_cast<std::int32_t>(dim_);
    view_.max_blocks = kBlocks;
    view_.blocks.head_bytes = kernels::kKvBlock * kv_row_bytes(dtype_, dim_);
    view_.blocks.v_offset = view_.blocks.head_bytes * kKvHeads;
    const std::int64_t block = 2 * view_.blocks.v_offset;
    MR_ASSIGN_OR_RETURN(cache_, DeviceBuffer::allocate(static_cast<std::size_t>(block * kBlocks)));
    MR_RETURN_IF_ERROR(device::clear_device(cache_));
    const std::byte* table[kBlocks];
    for (std::int64_t i = 0; i < kBlocks; ++i) table[i] = cache_.data() + i * block;
    MR_ASSIGN_OR_RETURN(table_, on_device(table, sizeof(table)));
    view_.blocks.table = reinterpret_cast<const std::byte* const*>(table_.data());
    std::vector<std::int32_t> rows(2 * kKeys, 0);  // sequences, positions
    for (std::int64_t i = 0; i < kKeys; ++i) rows[static_cast<std::size_t>(kKeys + i)] = static_cast<std::int32_t>(i);
    MR_ASSIGN_OR_RETURN(rows_, on_device(rows.data(), rows.size() * sizeof(std::int32_t)));
    std::vector<gpu::RowTile> tiles;
    const std::int64_t each = gpu::attention_tile_rows(static_cast<std::int32_t>(group_));
    for (std::int64_t first = 0; first < kKeys; first += each) {
      const std::int64_t count = std::min(each, kKeys - first);
      tiles.push_back({static_cast<std::int32_t>(first), static_cast<std::int32_t>(count), 0,
                       static_cast<std::int32_t>(first + count - 1)});
    }
    tile_count_ = static_cast<std::int32_t>(tiles.size());
    MR_ASSIGN_OR_RETURN(tiles_, on_device(tiles.data(), tiles.size() * sizeof(gpu::RowTile)));
    MR_ASSIGN_OR_RETURN(out_, DeviceBuffer::allocate(q_host_.size() * sizeof(float)));
    MR_ASSIGN_OR_RETURN(workspace_, DeviceBuffer::allocate(gpu::attention_workspace_bytes(
                                        64, static_cast<std::int32_t>(heads()), view_.head_dim, 256)));
    gpu::RopeStoreCall store;
    store.rows = rows_at(0, kKeys);
    store.kv = view_;
    store.q = reinterpret_cast<float*>(q_.data());
    store.k = reinterpret_cast<const float*>(k_.data());
    store.v = reinterpret_cast<const float*>(v_.data());
    store.heads = static_cast<std::int32_t>(heads());
    store.cos_sin = reinterpret_cast<const float*>(q_.data());  // of which no pair is read
    MR_RETURN_IF_ERROR(gpu::rope_store(store, {}));
    return device::synchronise_gpu();  // attention reads keys of earlier passes while its predecessor runs
  }

  /// Whether rows' results are near: all in tiles, or the last ones singly.
  Expected<bool> right(bool tiles) const {
    const std::int64_t first = tiles ? 0 : kKeys - 3, width = heads() * dim_;
    gpu::AttentionCall call;
    call.rows = rows_at(first, kKeys - first);
    call.kv = view_;
    call.q = reinterpret_cast<const float*>(q_.data()) + first * width;
    call.heads = static_cast<std::int32_t>(heads());
    call.scale = 1 / std::sqrt(static_cast<float>(dim_));
    call.out = reinterpret_cast<float*>(out_.data());
    call.max_position = 256;
    call.workspace = workspace_.data();
    if (tiles) call.tiles = reinterpret_cast<const gpu::RowTile*>(tiles_.data()), call.tile_count = tile_count_;
    MR_RETURN_IF_ERROR(gpu::attention(call, {}));
    std::vector<float> got(static_cast<std::size_t>((kKeys - first) * width));
    MR_RETURN_IF_ERROR(device::read_device(got.data(), out_.data(), got.size() * sizeof(float)));
    std::vector<float> want(static_cast<std::size_t>(width));
    for (const std::int64_t row : {std::int64_t{0}, std::int64_t{70}, kKeys - 3, kKeys - 1}) {
      if (row < first) continue;
      for (std::int64_t head = 0; head < heads(); ++head) attend(row, head, want.data() + head * dim_);
      if (error_of(got.data() + (row - first) * width, want.data(), width) > near()) return false;
    }
    return true;
  }

 private:
  static constexpr std::int32_t kKvHeads = 2, kBlocks = (kKeys + kernels::kKvBlock - 1) / kernels::kKvBlock;
  std::int64_t heads() const { return kKvHeads * group_; }
  /// How far the format takes a result from the exact one, and some more.
  double near() const { return dtype_ == DType::q8_0 ? 0.05 : 0.02; }
  gpu::RowView rows_at(std::int64_t first, std::int64_t count) const {
    const auto* const rows = reinterpret_cast<const std::int32_t*>(rows_.data());
    return {static_cast<std::int32_t>(count), nullptr, rows + first, rows + kKeys + first};
  }
  void attend(std::int64_t row, std::int64_t head, float* out) const {
    const std::int64_t kv_head = head / group_;
    const float* const q = q_host_.data() + (row * heads() + head) * dim_;
    std::vector<double> weights(static_cast<std::size_t>(row + 1)), sums(static_cast<std::size_t>(dim_));
    double total = 0;
    for (std::int64_t key = 0; key <= row; ++key) {
      const float* const k = k_host_.data() + (key * kKvHeads + kv_head) * dim_;
      double score = 0;
      for (std::int64_t c = 0; c < dim_; ++c) score += static_cast<double>(q[c]) * k[c];
      total += weights[static_cast<std::size_t>(key)] = std::exp(score / std::sqrt(static_cast<double>(dim_)));
    }
    for (std::int64_t key = 0; key <= row; ++key) {
      const float* const v = v_host_.data() + (key * kKvHeads + kv_head) * dim_;
      for (std::int64_t c = 0; c < dim_; ++c)
        sums[static_cast<std::size_t>(c)] += weights[static_cast<std::size_t>(key)] / total * v[c];
    }
    for (std::int64_t c = 0; c < dim_; ++c) out[c] = static_cast<float>(sums[static_cast<std::size_t>(c)]);
  }

  std::int64_t dim_, group_;
  DType dtype_;
  std::vector<float> q_host_, k_host_, v_host_;
  gpu::KvView view_;
  std::int32_t tile_count_ = 0;
  DeviceBuffer q_, k_, v_, cache_, table_, rows_, tiles_, out_, workspace_;
};

/// What has passed: device, weights' dtype or heads' channels, their group, and format.
Mutex mutex;
std::set<std::tuple<int, std::int64_t, std::int64_t, DType>> passed MR_GUARDED_BY(mutex);

Status wrong(const device::Gpu& gpu, const std::string& what) {
  return error(
      Code::unsupported,
      "GPU {} ({}) computes {} otherwise than the processor, and nothing else computes them there; use --device "
      "cpu, and please report it",
      gpu.index, gpu.name, what);
}

/// Tries it; where it is wrong, the family is replaced and `what` told.
Status try_or_replace(Family family, const Expected<bool>& right, const std::string& what, std::string_view instead,
                      std::vector<std::string>& told) {
  MR_RETURN_IF_ERROR(right.status());
  if (*right) return {};
  gpu::do_without(family);
  told.push_back(fmt::format("computes {} otherwise than the processor: {}", what, instead));
  return {};
}

Status test_products(DType dtype, const device::Gpu& gpu, std::vector<std::string>& told) {
  Products products(dtype, std::int64_t{128} * std::max(gpu.multiprocessors, 1));
  MR_RETURN_IF_ERROR(products.prepare());
  const std::string name(info(dtype).name);
  MR_ASSIGN_OR_RETURN(const bool single, products.right(1, gpu::PromptProducts::none));
  if (!single) return wrong(gpu, fmt::format("products of {} with single rows", name));
  for (const std::int64_t rows : {std::int64_t{8}, std::int64_t{24}, std::int64_t{64}, kMostRows}) {
    if (gpu::does_without(Family::product_tiles)) break;
    MR_RETURN_IF_ERROR(try_or_replace(Family::product_tiles, products.right(rows, gpu::PromptProducts::none),
                                      fmt::format("products of {} with {} rows", name, rows),
                                      "such products are computed a few rows at a time, which is slow", told));
  }
  if (const gpu::PromptProducts prompt = gpu::prompt_products(); gpu::has_prompt_product(prompt, dtype))
    MR_RETURN_IF_ERROR(try_or_replace(Family::prompt_products, products.right(kMostRows, prompt),
                                      fmt::format("prompts' products of {}", name),
                                      "prompts go through the products of generated tokens, which are slower", told));
  return {};
}

Status test_heads(SelfTestHeads of, DType dtype, const device::Gpu& gpu, std::vector<std::string>& told) {
  Heads heads(of, dtype);
  MR_RETURN_IF_ERROR(heads.prepare());
  const std::string name = fmt::format("attention over {} with heads of {}", info(dtype).name, of.head_dim);
  MR_ASSIGN_OR_RETURN(const bool single, heads.right(false));
  if (!single) return wrong(gpu, name);
  if (gpu::does_without(Family::attention_tiles)) return {};
  return try_or_replace(Family::attention_tiles, heads.right(true), name + " for prompts",
                        "rows go one by one, which is slow for long prompts", told);
}

}  // namespace

SelfTestOf self_test_of(const Program& program, const residency::UnitTable& units, DType kv_dtype) {
  SelfTestOf of;
  of.kv_dtype = kv_dtype;
  std::set<DType> weights;
  for (const WeightRef weight : program.weights()) {
    const residency::Part& part = units.part(weight);
    if (part.rows > 1 && kernels::uses_q8(part.dtype)) weights.insert(part.dtype);
  }
  of.weights.assign(weights.begin(), weights.end());
  of.experts = units.experts() > 0;
  const bool known = kv_dtype == DType::f16 || kv_dtype == DType::f32 || kv_dtype == DType::q8_0;
  if (!known || program.has_whole_rows()) return of;
  const kv::Layout layout = gpu_kv_layout(program);
  std::set<std::pair<std::int64_t, std::int64_t>> heads;
  for (const Step& step : program.steps) {
    const Attention& attention = step.attention;
    if (step.kind != Step::Kind::attention || attention.latent_values > 0 || attention.kv_heads == 0) continue;
    heads.emplace(layout.group_of(step.layer).v_dim, attention.heads / attention.kv_heads);
  }
  for (const auto& [head_dim, group] : heads) of.heads.push_back({head_dim, group});
  return of;
}

void forget_self_tests() {
  const MutexLock lock(mutex);
  passed.clear();
  gpu::do_with_all();
}

Expected<std::vector<std::string>> self_test(const SelfTestOf& of, const device::Gpu& gpu) {
  const MutexLock lock(mutex);
  std::vector<std::string> told;
  for (const DType dtype : of.weights) {
    if (passed.contains({gpu.index, 0, 0, dtype})) continue;
    MR_RETURN_IF_ERROR(test_products(dtype, gpu, told));
    passed.insert({gpu.index, 0, 0, dtype});
  }
  for (const SelfTestHeads& heads : of.heads) {
    const std::tuple key{gpu.index, heads.head_dim, std::min(heads.group, kMostGroup), of.kv_dtype};
    if (passed.contains(key)) continue;
    MR_RETURN_IF_ERROR(test_heads(heads, of.kv_dtype, gpu, told));
    passed.insert(key);
  }
  if (of.experts && gpu::does_without(Family::product_tiles)) return wrong(gpu, "experts' products");
  if (of.pictures && gpu::does_without(Family::attention_tiles)) return wrong(gpu, "attention within pictures");
  return told;
}

}  // namespace millrace::exec
