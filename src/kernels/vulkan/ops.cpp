// The ops of kernels/gpu by Vulkan's kernels: calls become push constants and workgroups. What a dense decoder needs is
// here; lacking.cpp has the rest, which no pass reaches (exec's check_gpu asks kernels/gpu/offer.h).
#include "kernels/gpu/ops.h"

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/gpu/draw.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/heads.h"
#include "kernels/rotation.h"
#include "kernels/vulkan/kernels.h"

namespace millrace::kernels::gpu {

namespace {

using device::StreamRef;
using vulkan::address;
using vulkan::broken;
using vulkan::Dispatch;
using vulkan::Groups;
using vulkan::groups_of;
using vulkan::Kernel;
using vulkan::kMostGroups;
using vulkan::put;

Status no_dtype(DType dtype) {
  return error(Code::unsupported, "Vulkan's kernels do not read {} yet; use --device cpu", info(dtype).name);
}

enum class Operation : std::uint32_t {  // elementwise.comp
  sum,
  gate,
  scale,
  add_scaled,
  product,
  over_sigmoid,
  sigmoid_of_row,
  activate,
  cap,
};

struct Rows {
  float* x;
  std::int64_t x_stride;
  const float* y;
  std::int64_t y_stride;
  std::int64_t rows, cols;
};

Status elementwise(Operation operation, const Rows& rows, float factor, Activation activation, StreamRef stream) {
  if (rows.rows <= 0 || rows.cols <= 0) return {};
  if (activation == Activation::limited || activation == Activation::bounded) return broken("this gate");
  struct {
    std::uint64_t x, y;
    std::int64_t x_stride, y_stride;
    std::uint32_t rows, cols;
    float factor;
  } arguments{};
  arguments.x = address(rows.x);
  arguments.y = address(rows.y);
  arguments.x_stride = rows.x_stride;
  arguments.y_stride = rows.y_stride;
  arguments.rows = static_cast<std::uint32_t>(rows.rows);
  arguments.cols = static_cast<std::uint32_t>(rows.cols);
  arguments.factor = factor;
  const Groups groups{std::min(groups_of(rows.cols, 64), kMostGroups), std::min(rows.rows, kMostGroups)};
  return put(stream, vulkan::dispatch(vulkan::kElementwise, arguments, groups,
                                      {static_cast<std::uint32_t>(operation), static_cast<std::uint32_t>(activation)}));
}

// --- Products ---

struct ProductArguments {
  std::uint64_t weight, up, bias, up_bias, x, q, scales, y, y_q, y_scales;
  std::uint32_t rows, cols, x_rows, x_stride, y_stride, effect, activation;
};

ProductArguments product_arguments(const MatmulCall& call, const Product& product) {
  ProductArguments arguments{};
  arguments.weight = address(product.weight.address);
  arguments.bias = address(product.bias);
  arguments.x = address(call.x);
  arguments.q = address(call.x_q8.q);
  arguments.scales = address(call.x_q8.scale);
  arguments.y = address(product.y);
  arguments.rows = static_cast<std::uint32_t>(product.weight.rows);
  arguments.cols = static_cast<std::uint32_t>(call.cols);
  arguments.x_rows = static_cast<std::uint32_t>(call.x_rows);
  arguments.x_stride = static_cast<std::uint32_t>(call.x_stride);
  arguments.y_stride = static_cast<std::uint32_t>(product.y_stride);
  arguments.effect = static_cast<std::uint32_t>(call.effect);
  arguments.activation = static_cast<std::uint32_t>(call.activation);
  return arguments;
}

/// How row_product.comp is cut up: the constants of its pipeline.
struct RowProduct {
  std::uint32_t threads, rows, segments;
};
/// For a device and a matrix; none: the kernel does not take it. blocks: results become int8 there.
std::optional<RowProduct> row_product_of(const device::vulkan::Offer& offer, const Matrix& weight, std::int64_t cols,
                                         bool blocks) {
  constexpr std::int64_t kSegmentCols = 256, kSharedBytes = 44 * 1024, kManyGroups = 1024, kMostSteps = 8;
  if (cols % kSegmentCols != 0 || vulkan::row_product_kernel(weight.dtype) == nullptr) return std::nullopt;
  const auto& type = info(weight.dtype);
  const std::int64_t segments = cols / kSegmentCols;
  const std::int64_t segment_bytes = kSegmentCols / type.block_elements * type.block_bytes;
  for (const std::int64_t threads : {256, 128, 64}) {
    if (threads < segments) return std::nullopt;
    const std::int64_t lanes = threads / segments;
    const std::int64_t steps = std::clamp<std::int64_t>(weight.rows / (lanes * kManyGroups), 1, kMostSteps);
    const std::int64_t rows = blocks ? 32 : lanes * steps;
    const std::int64_t shared = lanes * segments * segment_bytes + 32 + 4 * threads + 8 * rows;
    if (threads <= offer.group_threads && shared <= std::min<std::int64_t>(offer.shared_bytes, kSharedBytes))
      return RowProduct{static_cast<std::uint32_t>(threads), static_cast<std::uint32_t>(rows),
                        static_cast<std::uint32_t>(segments)};
  }
  return std::nullopt;
}

/// By packed dot products; none: product.comp takes this one.
std::optional<Dispatch> packed_product(const device::vulkan::Offer& offer, const MatmulCall& call, const Matrix& weight,
                                       const ProductArguments& arguments) {
  constexpr std::uint32_t kTileShared = 24 * 1024;  // tile_product.comp
  constexpr std::int64_t kTileRows = 64, kTileSide = 16;
  if (!offer.packed_dots) return std::nullopt;
  if (call.x_rows == 1) {
    const auto cut = row_product_of(offer, weight, call.cols, call.y_q8.q != nullptr);
    if (!cut) return std::nullopt;
    return vulkan::dispatch(*vulkan::row_product_kernel(weight.dtype), arguments, {groups_of(weight.rows, cut->rows)},
                            {cut->threads, cut->rows, cut->segments});
  }
  const Kernel* const kernel = vulkan::tile_product_kernel(weight.dtype);
  if (kernel == nullptr || offer.shared_bytes < kTileShared) return std::nullopt;
  const std::int64_t of_x = call.x_rows <= kTileSide ? 1 : call.x_rows <= 2 * kTileSide ? 2 : 4;  // of a thread
  return vulkan::dispatch(*kernel, arguments,
                          {groups_of(call.x_rows, kTileSide * of_x), groups_of(weight.rows, kTileRows)},
                          {static_cast<std::uint32_t>(of_x)});
}

Status products(const MatmulCall& call, StreamRef stream) {
  constexpr std::int64_t kRows = 32, kTile = 4;  // product.comp
  if (call.x_rows <= 0) return {};
  if (call.also.count > 0 || call.y_bf16 != nullptr || call.of_prompt()) return broken("this form of a product");
  const bool gated = call.effect == Effect::gated;
  if (gated && (call.count != 2 || call.products[0].weight.dtype != call.products[1].weight.dtype))
    return broken("a gate and an up of different types");
  if (call.y_q8.q != nullptr && (!gated || call.products[0].weight.rows % kRows != 0))
    return broken("the int8 form of this product");
  MR_ASSIGN_OR_RETURN(const device::vulkan::Driver* const driver, device::vulkan::Driver::get());
  const device::vulkan::Offer& offer = driver->offer;
  std::vector<Dispatch> dispatches;
  for (int p = 0; p < (gated ? 1 : call.count); ++p) {
    const Product& product = call.products[p];
    const Kernel* const kernel = vulkan::product_kernel(product.weight.dtype);
    if (kernel == nullptr) return no_dtype(product.weight.dtype);
    ProductArguments arguments = product_arguments(call, product);
    if (gated) {
      arguments.up = address(call.products[1].weight.address);
      arguments.up_bias = address(call.products[1].bias);
      arguments.y_q = address(call.y_q8.q);
      arguments.y_scales = address(call.y_q8.scale);
    }
    if (std::optional<Dispatch> packed = packed_product(offer, call, product.weight, arguments)) {
      dispatches.push_back(std::move(*packed));
      continue;
    }
    const Groups groups{groups_of(product.weight.rows, kRows), groups_of(call.x_rows, kTile)};
    dispatches.push_back(vulkan::dispatch(*kernel, arguments, groups));
  }
  return device::vulkan::launch(stream, dispatches);
}

}  // namespace

Status matvec(const MatmulCall& call, StreamRef stream) { return products(call, stream); }
Status matmul(const MatmulCall& call, StreamRef stream) { return products(call, stream); }

// --- Row ops ---

Status embed(const Matrix& table, const std::int32_t* tokens, std::int32_t rows, std::int32_t cols, float* out,
             StreamRef stream) {
  if (rows <= 0) return {};
  const Kernel* const kernel = vulkan::embed_kernel(table.dtype);
  if (kernel == nullptr) return no_dtype(table.dtype);
  struct {
    std::uint64_t table, tokens, out;
    std::int32_t rows, cols;
  } const arguments{address(table.address), address(tokens), address(out), rows, cols};
  const std::int64_t work = info(table.dtype).block_elements == 1 ? cols : cols / 32;
  return put(stream, vulkan::dispatch(*kernel, arguments, {groups_of(work, 64), rows}));
}

Status rms_norm(const NormCall& call, StreamRef stream) {
  if (call.rows <= 0) return {};
  if (call.out_bf16 != nullptr) return broken("a norm in bfloat16");
  struct {
    std::uint64_t x, x_index, weight, out, q, scales;
    std::int32_t rows, cols;
    float eps;
  } const arguments{address(call.x),
                    address(call.x_index),
                    address(call.weight),
                    address(call.out),
                    address(call.out_q8.q),
                    address(call.out_q8.scale),
                    call.rows,
                    call.cols,
                    call.eps};
  return put(stream, vulkan::dispatch(vulkan::kRmsNorm, arguments, {call.rows}));
}
Status rms_norm(const float* x, const std::int32_t* x_index, const std::byte* const* weight, std::int32_t rows,
                std::int32_t cols, float eps, float* out, Q8 q8, StreamRef stream) {
  return rms_norm(NormCall{x, x_index, weight, rows, cols, eps, out, q8, nullptr}, stream);
}

Status quantize_q8(const float* x, std::int64_t x_stride, std::int32_t rows, std::int32_t cols, Q8 out,
                   StreamRef stream) {
  if (rows <= 0) return {};
  struct {
    std::uint64_t x, q, scales;
    std::int64_t x_stride;
    std::int32_t row_blocks;
  } const arguments{address(x), address(out.q), address(out.scale), x_stride, cols / 32};
  return put(stream, vulkan::dispatch(vulkan::kQuantize, arguments, {groups_of(cols / 32, 64), rows}));
}

Status add(float* x, const float* y, std::int64_t n, StreamRef stream) {
  return elementwise(Operation::sum, {x, 0, y, 0, 1, n}, 1, Activation::silu, stream);
}
Status gate_mul(Activation activation, float /*limit*/, float* gate, const float* up, std::int64_t n,
                StreamRef stream) {
  return elementwise(Operation::gate, {gate, 0, up, 0, 1, n}, 1, activation, stream);
}
Status gate_rows(Activation activation, float /*limit*/, float* gate, const float* up, std::int64_t up_stride,
                 std::int32_t rows, std::int32_t cols, StreamRef stream) {
  return elementwise(Operation::gate, {gate, cols, up, up_stride, rows, cols}, 1, activation, stream);
}
Status scale(float* x, float factor, std::int64_t n, StreamRef stream) {
  return elementwise(Operation::scale, {x, 0, x, 0, 1, n}, factor, Activation::silu, stream);
}
Status add_scaled(float* x, const float* y, float factor, std::int64_t n, StreamRef stream) {
  return elementwise(Operation::add_scaled, {x, 0, y, 0, 1, n}, factor, Activation::silu, stream);
}
Status multiply(float* x, const float* y, std::int64_t n, StreamRef stream) {
  return elementwise(Operation::product, {x, 0, y, 0, 1, n}, 1, Activation::silu, stream);
}

Status sigmoid_gate(float* x, const float* gate, std::int64_t n, StreamRef stream) {
  return elementwise(Operation::over_sigmoid, {x, 0, gate, 0, 1, n}, 1, Activation::silu, stream);
}
Status sigmoid_gate_rows(float* x, const float* gate, std::int32_t rows, std::int32_t cols, StreamRef stream) {
  return elementwise(Operation::sigmoid_of_row, {x, cols, gate, 1, rows, cols}, 1, Activation::silu, stream);
}
Status activate(Activation activation, float* x, std::int64_t n, StreamRef stream) {
  return elementwise(Operation::activate, {x, 0, x, 0, 1, n}, 1, activation, stream);
}
Status softcap(float* x, float cap, std::int64_t n, StreamRef stream) {
  return elementwise(Operation::cap, {x, 0, x, 0, 1, n}, cap, Activation::silu, stream);
}

Status gather_rows(const float* x, const std::int32_t* index, std::int32_t rows, std::int32_t cols, float* out,
                   StreamRef stream) {
  if (rows <= 0) return {};
  struct {
    std::uint64_t x, index, out;
    std::int32_t cols;
  } const arguments{address(x), address(index), address(out), cols};
  const Groups groups{std::min(groups_of(cols, 64), kMostGroups), rows};
  return put(stream, vulkan::dispatch(vulkan::kGatherRows, arguments, groups));
}

// --- Heads and attention ---

namespace {

bool keeps_integers(const KvView& kv) { return kv.dtype == DType::q8_0 || kv.dtype == DType::q4_0; }
bool is_kept(const KvView& kv) { return kv.dtype == DType::f32 || kv.dtype == DType::f16 || keeps_integers(kv); }
std::uint32_t two(std::int64_t low, std::int64_t high) {
  return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16;
}
float factor_of(std::int32_t rotation) { return rotation > 0 ? rotation_factor(rotation) : 1.0f; }

}  // namespace

Status rope_store(const RopeStoreCall& call, StreamRef stream) {
  if (call.rows.rows <= 0) return {};
  const KvView& kv = call.kv;
  if (!is_kept(kv)) return broken("this type of KV");
  constexpr std::uint32_t kNeox = 1, kNormalizeV = 2;  // rope_store.comp
  struct {
    std::uint64_t q, k, v, q_norm, k_norm, cos_sin, table, sequence, position;
    std::uint32_t heads, dims, rotary, flags, k_offset, v_offset, head_bytes, max_blocks;
    float eps, factor;
  } arguments{};
  arguments.q = address(call.q);
  arguments.k = address(call.k);
  arguments.v = address(call.v);
  arguments.q_norm = address(call.q_norm);
  arguments.k_norm = address(call.k_norm);
  arguments.cos_sin = address(call.cos_sin);
  arguments.table = address(kv.blocks.table);
  arguments.sequence = address(call.rows.sequence);
  arguments.position = address(call.rows.position);
  const std::int32_t kv_heads = call.k == nullptr ? 0 : kv.kv_heads;
  arguments.heads = two(call.heads, kv_heads);
  arguments.dims = two(kv.head_dim, kv.rotation);
  arguments.rotary = static_cast<std::uint32_t>(call.rotary);
  arguments.flags = (call.neox ? kNeox : 0) | (call.normalize_v ? kNormalizeV : 0);
  arguments.k_offset = static_cast<std::uint32_t>(kv.blocks.k_offset);
  arguments.v_offset = static_cast<std::uint32_t>(kv.blocks.v_offset);
  arguments.head_bytes = static_cast<std::uint32_t>(kv.blocks.head_bytes);
  arguments.max_blocks = static_cast<std::uint32_t>(kv.max_blocks);
  arguments.eps = call.eps;
  arguments.factor = factor_of(kv.rotation);
  const std::int64_t heads = std::int64_t{call.heads} + 2 * kv_heads;
  if (heads == 0) return {};
  return put(stream, vulkan::dispatch(vulkan::kRopeStore, arguments, {heads, call.rows.rows},
                                      {static_cast<std::uint32_t>(kv.dtype)}));
}

std::int32_t attention_tile_rows(std::int32_t group) { return std::max(64 / group, 1); }
std::size_t attention_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                                      std::int32_t max_position) {
  const std::int64_t parts = groups_of(max_position, kAttentionChunk);  // attention.comp
  return static_cast<std::size_t>(parts * rows * heads * (2 + head_dim)) * sizeof(float) + 256;
}
Status attention(const AttentionCall& call, StreamRef stream) {
  if (call.rows.rows <= 0) return {};
  const KvView& kv = call.kv;
  if (!is_kept(kv)) return broken("this type of KV");
  if (keeps_integers(kv) ? kv.head_dim % 32 != 0 : kv.rotation > 0) return broken("this form of KV");
  if (call.out_q8.q != nullptr && kv.head_dim % 32 != 0) return broken("int8 blocks across heads");
  struct {
    std::uint64_t q, out, out_q, out_scales, table, sequence, position, sinks, seen, parts;
    std::uint32_t heads, dims, k_offset, v_offset, head_bytes, max_blocks, window;
    float scale, factor;
    std::uint32_t most_parts;
  } arguments{};
  arguments.q = address(call.q);
  arguments.out = address(call.out);
  arguments.out_q = address(call.out_q8.q);
  arguments.out_scales = address(call.out_q8.scale);
  arguments.table = address(kv.blocks.table);
  arguments.sequence = address(call.rows.sequence);
  arguments.position = address(call.rows.position);
  arguments.sinks = address(call.sinks);
  arguments.seen = address(call.seen);
  arguments.heads = two(call.heads, kv.kv_heads);
  arguments.dims = two(kv.head_dim, kv.rotation);
  arguments.k_offset = static_cast<std::uint32_t>(kv.blocks.k_offset);
  arguments.v_offset = static_cast<std::uint32_t>(kv.blocks.v_offset);
  arguments.head_bytes = static_cast<std::uint32_t>(kv.blocks.head_bytes);
  arguments.max_blocks = static_cast<std::uint32_t>(kv.max_blocks);
  arguments.window = static_cast<std::uint32_t>(call.window);
  arguments.scale = call.scale;
  arguments.factor = factor_of(kv.rotation);
  // Few rows are cut into chunks, but for those with a window.
  const bool cut = call.tiles == nullptr && call.workspace != nullptr && call.window == 0;
  const std::int64_t parts = cut ? groups_of(call.max_position, kAttentionChunk) : 1;
  enum Part : std::uint32_t { whole, chunk_alone, joined };  // attention.comp
  const auto launch = [&](Part part, std::int64_t z) {
    return put(stream, vulkan::dispatch(vulkan::kAttention, arguments, {call.heads, call.rows.rows, z},
                                        {static_cast<std::uint32_t>(kv.dtype), part}));
  };
  if (parts <= 1) return launch(whole, 1);
  arguments.parts = address(call.workspace);
  arguments.most_parts = static_cast<std::uint32_t>(parts);
  MR_RETURN_IF_ERROR(launch(chunk_alone, parts));
  return launch(joined, 1);
}

// --- Sampling ---

namespace {
std::int64_t candidate_pieces(std::int64_t vocab) { return std::clamp<std::int64_t>(vocab / 4096, 1, 64); }
}  // namespace
std::size_t sample_workspace_bytes(std::int32_t rows, std::int32_t vocab) {
  return static_cast<std::size_t>(rows * candidate_pieces(vocab)) * sizeof(Candidates) + 256;
}
Status candidates(const float* logits, std::int32_t rows, std::int32_t vocab, Candidates* out, std::byte* workspace,
                  StreamRef stream) {
  if (rows <= 0) return {};
  struct {
    std::uint64_t logits, out, found;
    std::int32_t vocab, piece, pieces;
  } arguments{address(logits), address(out), address(workspace), vocab, vocab, 1};
  static_assert(sizeof(Candidates) == (2 * kCandidates + 2) * 4);
  const std::int64_t pieces = workspace == nullptr ? 1 : candidate_pieces(vocab);
  if (pieces == 1) return put(stream, vulkan::dispatch(vulkan::kCandidates, arguments, {1, rows}, {0}));
  arguments.out = arguments.found;
  arguments.piece = static_cast<std::int32_t>(groups_of(vocab, pieces));
  arguments.pieces = static_cast<std::int32_t>(pieces);
  MR_RETURN_IF_ERROR(put(stream, vulkan::dispatch(vulkan::kCandidates, arguments, {pieces, rows}, {0})));
  arguments.out = address(out);
  return put(stream, vulkan::dispatch(vulkan::kCandidates, arguments, {1, rows}, {1}));
}
Status draw(const float* logits, std::int32_t rows, std::int32_t vocab, const DrawRule* rules, const Candidates* found,
            std::int32_t* drawn, StreamRef stream) {
  if (rows <= 0) return {};
  if (vocab > kMostVocab) return broken("so large a vocabulary");
  struct {
    std::uint64_t logits, rules, found, drawn;
    std::int32_t vocab;
  } const arguments{address(logits), address(rules), address(found), address(drawn), vocab};
  return put(stream, vulkan::dispatch(vulkan::kDraw, arguments, {rows}));
}

}  // namespace millrace::kernels::gpu
