#include "synth-model/pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/grid_blocks.h"

namespace millrace::synth {
namespace {

constexpr std::uint64_t kStretchBytes = 1u << 20, kSmallestPool = 2 * kStretchBytes, kLargestPool = 16u << 20;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() { return mix(state_++); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  int below(int limit) { return static_cast<int>(bits() % static_cast<std::uint64_t>(limit)); }
  /// A factor between 1/1.5 and 1.5.
  double spread() { return std::exp2((2 * uniform() - 1) * 0.585); }
  double sign() { return (bits() & 1) != 0 ? 1 : -1; }
  void fill(void* out, std::size_t bytes) {
    auto* to = static_cast<std::byte*>(out);
    for (; bytes > 0; bytes -= std::min<std::size_t>(bytes, 8), to += 8) {
      const std::uint64_t word = bits();
      std::memcpy(to, &word, std::min<std::size_t>(bytes, 8));
    }
  }

 private:
  std::uint64_t state_;
};

std::uint16_t half(double value) { return f32_to_f16(static_cast<float>(value)); }

// Each make() turns a block of random bits into a valid one whose weights have a mean of about 0 over many blocks and a
// deviation proportional to `scale`: codes that are not symmetric about 0 get scales of either sign, and those with a
// minimum get the one that centres them.

void make(BlockQ4_0& b, double scale, Random& random) { b.d = half(scale * random.spread() * random.sign()); }
void make(BlockQ5_0& b, double scale, Random& random) { b.d = half(scale * random.spread() * random.sign()); }
void make(BlockQ8_0& b, double scale, Random& random) { b.d = half(scale * random.spread() * random.sign()); }
void make(BlockIQ4_NL& b, double scale, Random& random) { b.d = half(scale * random.spread() * random.sign()); }

void make(BlockQ1_0& b, double scale, Random& random) { b.d = half(scale * random.spread()); }
void make(BlockQ2_0& b, double scale, Random& random) { b.d = half(scale * random.spread() * random.sign()); }

void make(BlockQ4_1& b, double scale, Random& random) {
  const double d = scale * random.spread();
  b.d = half(d);
  b.m = half(-7.5 * d);
}
void make(BlockQ5_1& b, double scale, Random& random) {
  const double d = scale * random.spread();
  b.d = half(d);
  b.m = half(-15.5 * d);
}

void make(BlockMXFP4& b, double scale, Random& random) {
  // Only powers of two: the two around the scale, mixed so that the mean square is the scale's.
  const double exponent = std::floor(std::log2(scale)), low = std::exp2(exponent);
  const double share_of_high = ((scale / low) * (scale / low) - 1) / 3;
  b.e = static_cast<std::uint8_t>(std::clamp(exponent + 127 + (random.uniform() < share_of_high ? 1 : 0), 2.0, 253.0));
}

void make(BlockNVFP4& b, double scale, Random& random) {
  // Numbers of eight steps between powers of two, and of 2^-9 below 2^-6: the two around what is wanted, by chance.
  for (std::uint8_t& d : b.d) {
    const double wanted = std::clamp(scale * random.spread(), 0x1p-9, 448.0);
    const int exponent = std::max(static_cast<int>(std::floor(std::log2(wanted))), -6);
    const double steps = wanted / std::exp2(exponent - 3);  // 8 to 16, fewer in the subnormals
    const int whole = static_cast<int>(steps + random.uniform());
    d = static_cast<std::uint8_t>(std::clamp((exponent + 6) * 8 + whole, 1, 0x7e));
  }
}

void make(BlockQ2_K& b, double scale, Random& random) {
  for (std::uint8_t& s : b.scales) {
    const int factor = 8 + random.below(8);
    s = static_cast<std::uint8_t>(factor | factor << 4);
  }
  b.d = half(scale / 11);
  b.dmin = half(1.5 * scale / 11);
}

void make(BlockQ3_K& b, double scale, Random& random) {
  // Scales stay random bits: -32..31 about evenly, so the signs are mixed.
  b.d = half(scale / 18 * random.spread());
}

/// Eight random scales, each its sub-block's minimum too.
void make_scales(std::uint8_t packed[12], Random& random) {
  std::uint8_t scales[8];
  for (std::uint8_t& s : scales) s = static_cast<std::uint8_t>(28 + random.below(36));
  pack_scales_k4(scales, scales, packed);
}

void make(BlockQ4_K& b, double scale, Random& random) {
  make_scales(b.scales, random);
  b.d = half(scale / 46);
  b.dmin = half(7.5 * scale / 46);
}
void make(BlockQ5_K& b, double scale, Random& random) {
  make_scales(b.scales, random);
  b.d = half(scale / 46);
  b.dmin = half(15.5 * scale / 46);
}

void make(BlockQ6_K& b, double scale, Random& random) {
  for (std::int8_t& s : b.scales) s = static_cast<std::int8_t>(random.sign() * (28 + random.below(36)));
  b.d = half(scale / 46);
}
// Scales of weights on a grid stay random bits; d, of which a small tensor has few, is the same in all blocks.
void make(BlockIQ2_XXS& b, double scale, Random&) { b.d = half(scale / 45); }
void make(BlockIQ2_XS& b, double scale, Random&) { b.d = half(scale / 45); }
void make(BlockIQ2_S& b, double scale, Random&) { b.d = half(scale / 45); }
void make(BlockIQ3_XXS& b, double scale, Random&) { b.d = half(scale / 130); }
void make(BlockIQ3_S& b, double scale, Random&) { b.d = half(scale / 130); }
void make(BlockIQ1_S& b, double scale, Random&) { b.d = half(scale / 6); }
void make(BlockIQ1_M& b, double scale, Random&) {
  const std::uint16_t d = half(scale / 6);
  for (int i = 0; i < 4; ++i) {
    b.scales[i] = static_cast<std::uint16_t>((b.scales[i] & 0x0fff) | (d >> (4 * i) & 15) << 12);
  }
}
void make(BlockTQ1_0& b, double scale, Random&) { b.d = half(scale); }
void make(BlockTQ2_0& b, double scale, Random&) {
  for (std::uint8_t& q : b.qs) {  // of four levels the highest is no ternary one: it becomes the middle
    const int three = q & q >> 1 & 0x55;
    q = static_cast<std::uint8_t>(q & ~(three << 1));
  }
  b.d = half(scale);
}
void make(BlockIQ4_XS& b, double scale, Random& random) { b.d = half(scale / 18 * random.spread()); }

/// `out` as a row of blocks: random bits, then scales.
template <typename Block>
void make_blocks(std::span<std::byte> out, double scale, Random& random) {
  random.fill(out.data(), out.size());
  for (std::size_t i = 0; i + sizeof(Block) <= out.size(); i += sizeof(Block)) {
    make(*reinterpret_cast<Block*>(out.data() + i), scale, random);
  }
}

/// Floats: uniform about `mean` with the deviation asked for.
void make_floats(DType dtype, std::span<std::byte> out, double mean, double deviation, Random& random) {
  const double reach = deviation * std::sqrt(12.0);
  const auto size = static_cast<std::size_t>(info(dtype).block_bytes);
  for (std::size_t i = 0; i + size <= out.size(); i += size) {
    const auto value = static_cast<float>(mean + reach * (random.uniform() - 0.5));
    const std::uint16_t narrow = dtype == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
    if (dtype == DType::f32)
      std::memcpy(out.data() + i, &value, sizeof value);
    else
      std::memcpy(out.data() + i, &narrow, sizeof narrow);
  }
}

/// Whole numbers below `below`, none twice among neighbours: the experts of a token are different ones.
void make_experts(std::span<std::byte> out, std::int64_t below, Random& random) {
  constexpr std::size_t kNeighbours = 32;
  const std::size_t apart = std::min<std::size_t>(kNeighbours, static_cast<std::size_t>(below) / 2);
  std::vector<std::int32_t> last;
  for (std::size_t i = 0; i + sizeof(std::int32_t) <= out.size(); i += sizeof(std::int32_t)) {
    std::int32_t expert = random.below(static_cast<int>(below));
    while (std::find(last.begin(), last.end(), expert) != last.end()) expert = random.below(static_cast<int>(below));
    last.push_back(expert);
    if (last.size() > apart) last.erase(last.begin());
    std::memcpy(out.data() + i, &expert, sizeof expert);
  }
}

void make_quantized(DType dtype, std::span<std::byte> out, double scale, Random& random) {
  switch (dtype) {
    case DType::q4_0:
      return make_blocks<BlockQ4_0>(out, scale, random);
    case DType::q4_1:
      return make_blocks<BlockQ4_1>(out, scale, random);
    case DType::q5_0:
      return make_blocks<BlockQ5_0>(out, scale, random);
    case DType::q5_1:
      return make_blocks<BlockQ5_1>(out, scale, random);
    case DType::q8_0:
      return make_blocks<BlockQ8_0>(out, scale, random);
    case DType::q2_k:
      return make_blocks<BlockQ2_K>(out, scale, random);
    case DType::q3_k:
      return make_blocks<BlockQ3_K>(out, scale, random);
    case DType::q4_k:
      return make_blocks<BlockQ4_K>(out, scale, random);
    case DType::q5_k:
      return make_blocks<BlockQ5_K>(out, scale, random);
    case DType::q6_k:
      return make_blocks<BlockQ6_K>(out, scale, random);
    case DType::iq4_nl:
      return make_blocks<BlockIQ4_NL>(out, scale, random);
    case DType::iq4_xs:
      return make_blocks<BlockIQ4_XS>(out, scale, random);
    case DType::mxfp4:
      return make_blocks<BlockMXFP4>(out, scale, random);
    case DType::nvfp4:
      return make_blocks<BlockNVFP4>(out, scale, random);
    case DType::q1_0:
      return make_blocks<BlockQ1_0>(out, scale, random);
    case DType::q2_0:
      return make_blocks<BlockQ2_0>(out, scale, random);
    default:  // floats are made above, integers are refused by types_from_name()
      with_grid_block(dtype, [&]<typename Block>() { make_blocks<Block>(out, scale, random); });
  }
}

/// The deviation of what 1,024 blocks of scale 1 decode to; measured, so that no constant can disagree with the
/// decoder.
double unit_deviation(DType dtype, Random random) {
  constexpr std::int64_t blocks = 1024;
  const DTypeInfo& layout = info(dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(blocks * layout.block_bytes));
  std::vector<float> weights(static_cast<std::size_t>(blocks * layout.block_elements));
  make_quantized(dtype, bytes, 1.0, random);
  decode_row(dtype, bytes.data(), blocks * layout.block_elements, weights.data());
  double squares = 0;
  for (const float weight : weights) squares += static_cast<double>(weight) * weight;
  return std::sqrt(squares / static_cast<double>(weights.size()));
}

double mean_of(Fill fill) { return fill == Fill::norm ? 1 : fill == Fill::decay ? -0.1 : 0; }

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

}  // namespace

std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

Pool::Pool(DType dtype, Fill fill, double deviation, std::uint64_t bytes, std::uint64_t seed) {
  block_bytes_ = static_cast<std::uint64_t>(info(dtype).block_bytes);
  stretch_bytes_ = kStretchBytes / block_bytes_ * block_bytes_;
  blocks_.resize(std::clamp(bytes, kSmallestPool, kLargestPool) / block_bytes_ * block_bytes_);
  Random random(mix(seed));
  if (fill == Fill::experts)
    make_experts(blocks_, static_cast<std::int64_t>(deviation), random);
  else if (is_float(dtype))
    make_floats(dtype, blocks_, mean_of(fill), deviation, random);
  else
    make_quantized(dtype, blocks_, deviation / unit_deviation(dtype, random), random);
}

void Pool::fill(std::uint64_t tensor_seed, std::uint64_t offset, std::span<std::byte> out) const {
  const std::uint64_t starts = (blocks_.size() - stretch_bytes_) / block_bytes_ + 1;
  while (!out.empty()) {
    const std::uint64_t stretch = offset / stretch_bytes_, inside = offset % stretch_bytes_;
    const std::uint64_t start = mix(tensor_seed + stretch) % starts * block_bytes_;
    const auto take = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), stretch_bytes_ - inside));
    std::memcpy(out.data(), blocks_.data() + start + inside, take);
    out = out.subspan(take);
    offset += take;
  }
}

Pools::Key Pools::key(const Tensor& tensor) {
  return {tensor.dtype, tensor.fill, tensor.fill == Fill::weights ? tensor.shape[0] : tensor.below};
}

Pools::Pools(std::span<const Tensor> tensors, std::uint64_t seed) {
  std::map<Key, std::uint64_t> needs;  // bytes of all tensors of a kind
  for (const Tensor& tensor : tensors) {
    std::int64_t rows = 1;
    for (std::size_t i = 1; i < tensor.shape.size(); ++i) rows *= tensor.shape[i];
    needs[key(tensor)] += static_cast<std::uint64_t>(rows * row_bytes(tensor.dtype, tensor.shape[0]));
  }
  for (const auto& [kind, bytes] : needs) {
    const auto& [dtype, fill, cols] = kind;
    const double deviation = fill == Fill::weights   ? 1 / std::sqrt(static_cast<double>(cols))
                             : fill == Fill::experts ? static_cast<double>(cols)
                                                     : 0.02;
    pools_.emplace(kind, Pool(dtype, fill, deviation, bytes, seed + pools_.size()));
  }
}

}  // namespace millrace::synth
