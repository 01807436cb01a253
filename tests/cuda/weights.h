// Random quantized weights for tests of products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/blocks.h"
#include "tensor/codec.h"

namespace millrace::test {

inline constexpr DType kQuantized[] = {DType::q4_0,   DType::q4_1,   DType::q5_0, DType::q5_1, DType::q8_0,
                                       DType::q2_k,   DType::q3_k,   DType::q4_k, DType::q5_k, DType::q6_k,
                                       DType::iq4_nl, DType::iq4_xs, DType::mxfp4};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine_); }
  float normal() { return std::normal_distribution<float>()(engine_); }
  std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }
  int below(int n) { return static_cast<int>(bits() % static_cast<unsigned>(n)); }

 private:
  std::mt19937 engine_;
};

/// Random blocks with scales of sane size.
inline std::vector<std::byte> random_weights(DType dtype, int rows, int cols, Random& random) {
  const std::int64_t bytes = row_bytes(dtype, cols) * rows, block = info(dtype).block_bytes;
  std::vector<std::byte> out(static_cast<std::size_t>(bytes));
  for (auto& b : out) b = static_cast<std::byte>(random.bits());
  const auto half = [&](std::int64_t at) {
    const std::uint16_t bits = f32_to_f16(random.uniform(-0.02F, 0.02F));
    std::memcpy(out.data() + at, &bits, 2);
  };
  for (std::int64_t at = 0; at < bytes; at += block) {
    switch (dtype) {
      case DType::mxfp4:
        out[static_cast<std::size_t>(at)] = static_cast<std::byte>(110 + random.below(16));
        break;
      case DType::q4_1:
      case DType::q5_1:
      case DType::q4_k:
      case DType::q5_k:
        half(at + 2);
        half(at);
        break;
      case DType::q2_k:
        half(at + offsetof(BlockQ2_K, d));
        half(at + offsetof(BlockQ2_K, dmin));
        break;
      case DType::q3_k:
        half(at + offsetof(BlockQ3_K, d));
        break;
      case DType::q6_k:
        half(at + offsetof(BlockQ6_K, d));
        break;
      default:
        half(at);
    }
  }
  return out;
}

}  // namespace millrace::test
