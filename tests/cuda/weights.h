// Random quantized weights for tests of products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/block_fields.h"
#include "tensor/codec.h"

namespace millrace::test {

inline constexpr DType kQuantized[] = {DType::q4_0,   DType::q4_1,    DType::q5_0,  DType::q5_1,    DType::q8_0,
                                       DType::q2_k,   DType::q3_k,    DType::q4_k,  DType::q5_k,    DType::q6_k,
                                       DType::iq4_nl, DType::iq4_xs,  DType::mxfp4, DType::iq2_xxs, DType::iq2_xs,
                                       DType::iq2_s,  DType::iq3_xxs, DType::iq3_s, DType::iq1_s,   DType::iq1_m,
                                       DType::tq1_0,  DType::tq2_0,   DType::nvfp4, DType::q1_0,    DType::q2_0};

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
  for (std::int64_t at = 0; at < bytes; at += block) {
    put_scales(
        dtype, out.data() + at, [&] { return random.uniform(-0.02F, 0.02F); }, [&] { return 110 + random.below(16); });
  }
  return out;
}

}  // namespace millrace::test
