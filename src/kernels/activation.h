// What a gate goes through before it multiplies; a header of its own, because the CPU's and the GPU's contracts share
// it.
#pragma once

#include <cstdint>

namespace millrace::kernels {

/// gated(g, u), element by element. Sources: SiLU and GELU (arXiv:1606.08415, its tanh form), squared ReLU
/// (arXiv:2109.08668), the clamped gate of gpt-oss (arXiv:2508.10925).
enum class Activation : std::uint8_t {
  silu,          // g / (1 + e^-g) * u
  gelu,          // g / (1 + e^(-2 v)) * u, v = sqrt(2 / pi) (g + 0.044715 g^3): 0.5 g (1 + tanh v)
  relu_squared,  // max(g, 0)^2 * u
  clamped,       // g / (1 + e^(-1.702 g)) * (u + 1), with g at most 7 and u within [-7, 7]
  limited,       // min(g / (1 + e^-g), limit) * u, with u within [-limit, limit] (Step-3.5)
  gelu_erf,      // 0.5 g (1 + erf(g / sqrt(2))) * u: GELU itself
  bounded,       // g / (1 + e^-g) * u, with g at most limit and u within [-limit, limit] (DeepSeek-V4)
};

/// x > 0: alpha_p x^2 + beta x; else alpha_n (e^min(x, eps) - 1 - x) + beta x. Source: xIELU (arXiv:2411.13010).
struct Xielu {
  float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;
};

}  // namespace millrace::kernels
