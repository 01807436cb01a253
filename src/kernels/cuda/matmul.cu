// matmul() and matmul_experts(): which kernel with which tile does what, and the launches.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include "kernels/cuda/capability.h"
#include "kernels/cuda/float_matmul.cuh"
#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/matmul_thin_launch.cuh"
#include "kernels/cuda/matmul_tile.cuh"

namespace millrace::kernels::cuda {

/// For measurements: a Shape, or behind those a ThinShape; -1: the one that is chosen.
int matmul_forced_shape = -1;

bool has_large_blocks() { return compiled_capability() == 90; }

int fill_products(const MatmulCall& call, TileProduct (&products)[kMostTileProducts]) {
  int weight_rows = 0;
  for (int i = 0; i < call.count; ++i) {
    const Product& from = call.products[i];
    weight_rows += from.weight.rows;
    if (i == 1 && call.effect == Effect::gated) {
      products[0].up = from.weight.address;
      products[0].up_bias = from.bias;
      continue;
    }
    TileProduct& to = products[i];
    to.weight = from.weight.address;
    to.bias = from.bias;
    to.y = from.y;
    to.y_stride = from.y_stride;
    to.rows = from.weight.rows;
  }
  return weight_rows;
}

namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

cudaError_t launch_dtype(DType dtype, Shape shape, const TileArgs& args, int max_tiles, cudaStream_t stream) {
  return launch_for(dtype, [&](auto of) { return launch_shape<decltype(of)::value>(shape, args, max_tiles, stream); });
}

/// Whether the current device runs Shape::group_128x128.
bool has_group_tiles() {
  static std::atomic<int> known[kMostDevices];  // 1: no, 2: yes
  return known_of_device(known, [](int) { return group_registers<DType::q4_k>() > 100 ? 2 : 1; }) == 2;
}

bool has_halves(DType dtype) {
  switch (dtype) {
    case DType::q2_k:
    case DType::q3_k:
    case DType::q6_k:
    case DType::iq2_xs:
    case DType::iq2_s:
    case DType::iq1_m:
    case DType::nvfp4:
      return true;
    default:
      return false;
  }
}

bool has_small_tile(DType dtype) {
  bool fits = false;
  (void)launch_for(dtype, [&](auto of) {
    fits = SmallTile<decltype(of)::value>::kBytes <= kSmallBlockShared;
    return cudaSuccess;
  });
  return fits;
}

/// The shape that does the work of `shape` for this dtype on this device.
Shape runnable(Shape shape, DType dtype) {
  if (shape == Shape::slim_32x32 || shape == Shape::slim_32x16) return shape;
  if (has_small_blocks()) return has_small_tile(dtype) ? Shape::tile_64x64 : Shape::slim_32x32;
  if (shape == Shape::tile_64x64) shape = Shape::tile_64x128;
  if (!has_large_blocks()) return Shape::tile_64x128;
  if (shape == Shape::tile_64x128) shape = Shape::group_128x128;
  return shape == Shape::group_128x128 && (has_halves(dtype) || !has_group_tiles()) ? Shape::tile_128x128 : shape;
}

/// The shape where has_large_blocks() is false, as measured on an H100 whose blocks were given 99 KiB. Slim ones share
/// K between warps, of which a pair's are few: they have twice the memory.
Shape choose_small_shape(DType dtype, int x_rows, bool tall) {
  if (x_rows <= 16) return Shape::slim_32x16;
  if (has_small_blocks()) return runnable(x_rows <= 32 ? Shape::slim_32x32 : Shape::tile_64x64, dtype);
  if (tall) return x_rows <= 32 ? Shape::slim_32x16 : Shape::tile_64x128;
  if (x_rows <= 32) return Shape::slim_32x32;
  if (x_rows <= 48) return Shape::slim_32x16;
  return x_rows <= 128 ? Shape::slim_32x32 : Shape::tile_64x128;
}

/// The shape for x_rows rows of x and weights of `weight_rows` rows in all, as measured on an H200 (bits do not depend
/// on it). Tall tiles want a block for each multiprocessor; slim ones share K between warps where rows are few.
Shape choose_shape(DType dtype, int x_rows, int weight_rows) {
  if (matmul_forced_shape >= 0) return runnable(static_cast<Shape>(matmul_forced_shape), dtype);
  const int row_tiles = div_up(weight_rows, 128), multiprocessors = multiprocessor_count();
  if (!has_large_blocks()) return choose_small_shape(dtype, x_rows, weight_rows >= 64 * multiprocessors);
  if (x_rows <= 16) return Shape::slim_32x16;
  if (x_rows <= 128 && row_tiles < multiprocessors) return Shape::slim_32x32;
  if (x_rows <= 32) return Shape::tile_128x32;
  if (x_rows <= 64) return Shape::tile_128x64;
  const bool few = 2 * row_tiles * div_up(x_rows, 128) <= multiprocessors;
  return few ? Shape::tile_128x32 : runnable(Shape::group_128x128, dtype);
}

/// Whether slim_32x32 is the faster one for low matrices and 17 rows of x and more: measured with Q4_0, Q8_0 and
/// IQ4_XS, whose weights are as cheap to decode as those of the other two.
bool prefers_slim(DType dtype) {
  switch (dtype) {
    case DType::q4_0:
    case DType::q5_0:
    case DType::q8_0:
    case DType::iq4_nl:
    case DType::iq4_xs:
      return true;
    default:
      return false;
  }
}

/// choose_thin_shape() where has_large_blocks() is false, as measured on an H200 whose blocks were given 99 KiB, with
/// nine dtypes.
std::optional<ThinShape> choose_small_thin_shape(DType dtype, int x_rows, int weight_rows, bool pair) {
  const int multiprocessors = multiprocessor_count();
  const bool low = !pair && weight_rows <= 32 * multiprocessors, many = pair || weight_rows >= 128 * multiprocessors;
  if (x_rows <= 8) return low ? ThinShape::thin_32x8 : ThinShape::thin_64x8;
  if (x_rows <= 16) return low ? ThinShape::thin_32x16 : ThinShape::thin_64x16;
  if (many) return x_rows <= 32 || pair || !has_halves(dtype) ? std::optional(ThinShape::thin_128x32) : std::nullopt;
  if (prefers_slim(dtype)) return std::nullopt;
  return x_rows <= 32 || (low && !has_halves(dtype)) ? ThinShape::thin_64x16 : ThinShape::thin_128x32;
}

/// The thin shape that is faster than choose_shape's, where there is one; as measured on an H100 with Q4_K and Q6_K.
/// Tall tiles where each multiprocessor has one; where even tiles of 32 rows are fewer than multiprocessors, narrow
/// ones that each read the weights (which the L2 cache then has).
std::optional<ThinShape> choose_thin_shape(DType dtype, int x_rows, int weight_rows, bool pair) {
  if (has_small_blocks()) return std::nullopt;
  if (matmul_forced_shape >= 0) {
    if (matmul_forced_shape < kShapes) return std::nullopt;
    return static_cast<ThinShape>(matmul_forced_shape - kShapes);
  }
  if (x_rows > 64) return std::nullopt;
  if (!has_large_blocks()) return choose_small_thin_shape(dtype, x_rows, weight_rows, pair);
  const int multiprocessors = multiprocessor_count();
  const bool tall = pair || weight_rows >= 64 * multiprocessors, low = weight_rows <= 32 * multiprocessors;
  if (x_rows <= 8) return tall ? ThinShape::thin_64x8 : ThinShape::thin_32x8;
  if (x_rows <= 16) return tall ? ThinShape::thin_64x16 : low ? ThinShape::thin_32x8 : ThinShape::thin_32x16;
  const bool many = pair || weight_rows >= 128 * multiprocessors;
  if (many) return x_rows <= 32 || !pair ? std::optional(ThinShape::thin_128x32) : std::nullopt;
  if (x_rows <= 32) return low ? ThinShape::thin_32x16 : ThinShape::thin_64x16;
  return low || x_rows <= 48 ? std::optional(ThinShape::thin_64x16) : std::nullopt;
}

/// The same for experts that have `entries` in all.
Shape choose_expert_shape(DType dtype, int entries, int experts, bool pair) {
  if (matmul_forced_shape >= 0) return runnable(static_cast<Shape>(matmul_forced_shape), dtype);
  const int each = div_up(entries, experts);
  if (!has_large_blocks()) return choose_small_shape(dtype, each, true);
  if (each <= 16) return pair ? Shape::tile_128x32 : Shape::slim_32x16;
  return each <= 96 ? Shape::tile_128x64 : runnable(Shape::group_128x128, dtype);
}

/// Memory of the stream for the rare launches that need some: freed, in the stream's order, with the object.
class StreamFloats {
 public:
  StreamFloats(std::int64_t count, cudaStream_t stream) : stream_(stream) {
    error = cudaMallocAsync(reinterpret_cast<void**>(&data), static_cast<std::size_t>(count) * sizeof(float), stream);
  }
  ~StreamFloats() {
    if (error == cudaSuccess) cudaFreeAsync(data, stream_);
  }
  StreamFloats(const StreamFloats&) = delete;
  StreamFloats& operator=(const StreamFloats&) = delete;

  float* data = nullptr;
  cudaError_t error;

 private:
  cudaStream_t stream_;
};

/// Ends a pair whose halves were computed apart into dense gate and up.
cudaError_t finish_pair(StreamFloats& gate, StreamFloats& up, std::int64_t rows, int cols, Activation activation,
                        float limit, float* y, std::int64_t y_stride, Q8 y_q8, cudaStream_t stream) {
  cudaError_t error = gate_mul(activation, limit, gate.data, up.data, rows * cols, stream);
  if (error == cudaSuccess && y_q8.q != nullptr) {
    error = quantize_q8(gate.data, cols, static_cast<std::int32_t>(rows), cols, y_q8, stream);
  }
  if (error == cudaSuccess && y != nullptr) {
    const std::size_t width = static_cast<std::size_t>(cols) * sizeof(float);
    error = cudaMemcpy2DAsync(y, static_cast<std::size_t>(y_stride) * sizeof(float), gate.data, width, width,
                              static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, stream);
  }
  return error;
}

/// Gate and up of different dtypes: two products, then what joins them.
cudaError_t mixed_pair(const MatmulCall& call, cudaStream_t stream) {
  const std::int32_t rows = call.products[0].weight.rows;
  StreamFloats halves[2] = {{std::int64_t{call.x_rows} * rows, stream}, {std::int64_t{call.x_rows} * rows, stream}};
  for (int i = 0; i < 2; ++i) {
    if (halves[i].error != cudaSuccess) return halves[i].error;
    MatmulCall half = call;
    half.products[0] = call.products[i];
    half.products[0].y = halves[i].data;
    half.products[0].y_stride = rows;
    half.count = 1;
    half.effect = Effect::store;
    half.y_q8 = {};
    if (const cudaError_t error = matmul(half, stream); error != cudaSuccess) return error;
  }
  return finish_pair(halves[0], halves[1], call.x_rows, rows, call.activation, call.limit, call.products[0].y,
                     call.products[0].y_stride, call.y_q8, stream);
}

cudaError_t mixed_pair(const ExpertCall& call, cudaStream_t stream) {
  const std::int64_t count = std::int64_t{call.entries} * call.rows;
  StreamFloats halves[2] = {{count, stream}, {count, stream}};
  for (int i = 0; i < 2; ++i) {
    if (halves[i].error != cudaSuccess) return halves[i].error;
    ExpertCall half = call;
    if (i == 1) half.weight = call.up, half.dtype = call.up_dtype, half.bias = call.up_bias, half.scale = call.up_scale;
    half.up = nullptr;
    half.effect = Effect::store;
    half.y = halves[i].data;
    half.y_q8 = {};
    if (const cudaError_t error = matmul_experts(half, stream); error != cudaSuccess) return error;
  }
  return finish_pair(halves[0], halves[1], call.entries, call.rows, call.activation, call.limit, call.y, call.rows,
                     call.y_q8, stream);
}

/// Products of one quantized dtype.
cudaError_t multiply(const MatmulCall& call, cudaStream_t stream) {
  if (call.count > kMostTileProducts) return cudaErrorInvalidValue;
  TileArgs args;
  args.effect = call.effect;
  args.gate = gate_of(call.activation, call.limit);
  args.cols = call.cols;
  args.x_rows = call.x_rows;
  args.x = call.x_q8;
  args.y_q8 = call.y_q8;
  const int weight_rows = fill_products(call, args.products);
  const DType dtype = call.products[0].weight.dtype;
  const bool pair = call.effect == Effect::gated;
  if (const auto thin = choose_thin_shape(dtype, call.x_rows, weight_rows, pair)) {
    const int tiles = div_up(call.x_rows, kThinWidth[static_cast<int>(*thin)]);
    return launch_for(dtype,
                      [&](auto of) { return launch_thin_shape<decltype(of)::value>(*thin, args, tiles, stream); });
  }
  const Shape shape = choose_shape(dtype, call.x_rows, weight_rows);
  const int tiles = div_up(call.x_rows, kShapeWidth[static_cast<int>(shape)]);
  return launch_dtype(dtype, shape, args, tiles, stream);
}

}  // namespace

cudaError_t matmul(const MatmulCall& call, cudaStream_t stream) {
  if (call.x_rows == 0) return cudaSuccess;
  if (call.effect == Effect::gated) {
    const DType gate = call.products[0].weight.dtype, up = call.products[1].weight.dtype;
    if (is_float(gate) && is_float(up)) return matmul_float(call, stream);
    if (gate != up) return mixed_pair(call, stream);
    return multiply(call, stream);
  }
  bool done[kMostProducts] = {};
  for (int first = 0; first < call.count; ++first) {
    if (done[first]) continue;
    // One launch for all products of this one's dtype, or of any float dtype.
    const DType dtype = call.products[first].weight.dtype;
    MatmulCall part = call;
    part.count = 0;
    for (int i = first; i < call.count; ++i) {
      const DType other = call.products[i].weight.dtype;
      if (other != dtype && !(is_float(dtype) && is_float(other))) continue;
      part.products[part.count++] = call.products[i];
      done[i] = true;
    }
    const cudaError_t error = is_float(dtype) ? matmul_float(part, stream) : multiply(part, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t matmul_experts(const ExpertCall& call, cudaStream_t stream) {
  if (call.entries == 0) return cudaSuccess;
  const bool pair = call.effect == Effect::gated;
  if (is_float(call.dtype) && (!pair || is_float(call.up_dtype))) return matmul_experts_float(call, stream);
  if (pair && call.dtype != call.up_dtype) return mixed_pair(call, stream);
  TileArgs args;
  args.effect = call.effect;
  args.gate = gate_of(call.activation, call.limit);
  args.cols = call.cols;
  args.x = call.x_q8;
  args.y_q8 = call.y_q8;
  args.sorted = call.sorted;
  args.expert_first = call.expert_first;
  args.experts = call.experts;
  args.address_stride = call.address_stride;
  args.entries_per_x = call.entries_per_x;
  TileProduct& product = args.products[0];
  product.weight = call.weight;
  product.up = pair ? call.up : nullptr;
  product.bias = call.bias;
  product.up_bias = pair ? call.up_bias : nullptr;
  product.bias_stride = call.bias_stride;
  product.scale = call.scale;
  product.up_scale = pair ? call.up_scale : nullptr;
  product.y = call.y;
  product.y_stride = call.rows;
  product.rows = call.rows;
  const Shape shape = choose_expert_shape(call.dtype, call.entries, call.experts, pair);
  // An expert's last tile may be part empty, and experts without entries have none.
  const int width = kShapeWidth[static_cast<int>(shape)];
  const int tiles = std::min(call.entries / width + std::min(call.experts, call.entries), call.entries);
  return launch_dtype(call.dtype, shape, args, tiles, stream);
}

}  // namespace millrace::kernels::cuda
