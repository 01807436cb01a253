// exp_f32 and the gates on the device: kernels.h's, operation for operation, so that GPU and CPU give the same bits.
// Compiled with --fmad=false: an expression a * b + c rounds twice.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/activation.h"
#include "kernels/cuda/capability.h"

namespace millrace::kernels::cuda {

/// max and min that a NaN passes.
__device__ __forceinline__ float max_or_nan(float a, float b) {
#if MILLRACE_SMALL_BLOCKS
  return a != a || b != b ? a + b : fmaxf(a, b);
#else
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#endif
}
__device__ __forceinline__ float min_or_nan(float a, float b) {
#if MILLRACE_SMALL_BLOCKS
  return a != a || b != b ? a + b : fminf(a, b);
#else
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#endif
}

/// 2^n for n in [-126, 127], given n's low bits.
__device__ __forceinline__ float power_of_two(unsigned n) { return __uint_as_float((n << 23) + (127u << 23)); }

/// exp_f32 for x that is not positive: the same bits in fewer steps. See exp_of in kernels/cpu/ops_body.h for the
/// mathematics.
__device__ __forceinline__ float exp_to_one(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = max_or_nan(x, -104.0f);
  const float shifted = __fmaf_rn(x, 0x1.715476p+0f, kRound);
  const float n = shifted - kRound;
  const unsigned power = __float_as_uint(shifted) - __float_as_uint(kRound);
  float r = __fmaf_rn(n, -0x1.62e43p-1f, x);
  r = __fmaf_rn(n, 0x1.05c61p-29f, r);
  float q = __fmaf_rn(r, 0x1.6d110ap-10f, 0x1.120b6ep-7f);
  q = __fmaf_rn(r, q, 0x1.55551ap-5f);
  q = __fmaf_rn(r, q, 0x1.5554dcp-3f);
  q = __fmaf_rn(r, q, 0.5f);
  const float p = __fmaf_rn(r * r, q, r) + 1.0f;
  const unsigned first = static_cast<unsigned>(static_cast<int>(power) >> 1);
  return p * power_of_two(first) * power_of_two(power - first);
}

__device__ __forceinline__ float exp_f32(float x) { return exp_to_one(min_or_nan(x, 89.0f)); }

/// x / (1 + e^-y)
__device__ __forceinline__ float over_sigmoid(float x, float y) { return x / (1.0f + exp_f32(0.0f - y)); }

/// 1 - erf(x) where x >= 0. See erfc_of_positive in kernels/cpu/ops_body.h for the source.
__device__ __forceinline__ float erfc_of_positive(float x) {
  const float t = 1.0f / __fmaf_rn(0.3275911f, x, 1.0f);
  float sum = __fmaf_rn(1.061405429f, t, -1.453152027f);
  sum = __fmaf_rn(sum, t, 1.421413741f);
  sum = __fmaf_rn(sum, t, -0.284496736f);
  sum = __fmaf_rn(sum, t, 0.254829592f);
  return sum * t * exp_to_one(0.0f - x * x);
}

/// What stands between gates and ups, as kernels take it. Activation::limited and bounded are SiLU with limits, and
/// SiLU itself has infinite ones, which change no bit: so all three are one code.
struct Gate {
  Activation activation = Activation::silu;                     // but limited and bounded
  float before = INFINITY, after = INFINITY, of_up = INFINITY;  // SiLU
};
inline Gate gate_of(Activation activation, float limit) {
  Gate gate;
  if (activation == Activation::limited)
    gate.after = gate.of_up = limit;
  else if (activation == Activation::bounded)
    gate.before = gate.of_up = limit;
  else
    gate.activation = activation;
  return gate;
}

/// What a gate g and an up u become. limits: of SiLU.
template <Activation kActivation>
__device__ __forceinline__ float gated(float g, float u, const Gate& limits = {}) {
  if constexpr (kActivation == Activation::silu) {
    const float bounded = min_or_nan(limits.before, g);
    return min_or_nan(limits.after, over_sigmoid(bounded, bounded)) *
           max_or_nan(-limits.of_up, min_or_nan(limits.of_up, u));
  }
  if constexpr (kActivation == Activation::gelu) {
    const float cubed = g * g * g;
    return over_sigmoid(g, 0x1.988454p+0f * __fmaf_rn(0x1.6e4e26p-5f, cubed, g)) * u;
  }
  if constexpr (kActivation == Activation::relu_squared) {
    const float positive = max_or_nan(0.0f, g);
    return positive * positive * u;
  }
  if constexpr (kActivation == Activation::gelu_erf) {
    const float size = fabsf(g), rest = erfc_of_positive(0x1.6a09e6p-1f * size);
    return ((0.0f > g ? 0.0f : g) - 0.5f * size * rest) * u;
  }
  const float bounded = min_or_nan(7.0f, g), shift = max_or_nan(-7.0f, min_or_nan(7.0f, u));
  return over_sigmoid(bounded, 1.702f * bounded) * (shift + 1.0f);
}

/// work(std::integral_constant<Activation, activation>()), which is the same in all threads of a launch; activation is
/// a Gate's. Around loops and not in them: a branch between two gates keeps them from overlapping.
template <typename Work>
__device__ __forceinline__ void for_activation(Activation activation, const Work& work) {
  if (activation == Activation::silu) return work(std::integral_constant<Activation, Activation::silu>());
  if (activation == Activation::gelu) return work(std::integral_constant<Activation, Activation::gelu>());
  if (activation == Activation::clamped) return work(std::integral_constant<Activation, Activation::clamped>());
  work(std::integral_constant<Activation, Activation::relu_squared>());
}

/// As for_activation, of GELU by erf, too: it stays out of the products of decoders, whose models do not have it.
template <typename Work>
__device__ __forceinline__ void for_activation_or_erf(Activation activation, const Work& work) {
  if (activation == Activation::gelu_erf) return work(std::integral_constant<Activation, Activation::gelu_erf>());
  for_activation(activation, work);
}

/// On the host: launch(std::integral_constant<Activation, activation>()), where each gate has a kernel of its own.
/// cudaErrorInvalidValue: another, which the executor refuses.
template <typename Launch>
cudaError_t launch_for_activation(Activation activation, const Launch& launch) {
  switch (activation) {
    case Activation::silu:
      return launch(std::integral_constant<Activation, Activation::silu>());
    case Activation::gelu:
      return launch(std::integral_constant<Activation, Activation::gelu>());
    case Activation::relu_squared:
      return launch(std::integral_constant<Activation, Activation::relu_squared>());
    case Activation::clamped:
      return launch(std::integral_constant<Activation, Activation::clamped>());
    case Activation::gelu_erf:
      return launch(std::integral_constant<Activation, Activation::gelu_erf>());
    default:
      return cudaErrorInvalidValue;
  }
}

/// For the odd value: gates other than SiLU stay out of the way.
__device__ __noinline__ inline float gated_otherwise(Activation activation, float g, float u) {
  float result = 0;
  for_activation(activation, [&](auto which) { result = gated<decltype(which)::value>(g, u); });
  return result;
}
__device__ __forceinline__ float gated(const Gate& gate, float g, float u) {
  return gate.activation == Activation::silu ? gated<Activation::silu>(g, u, gate)
                                             : gated_otherwise(gate.activation, g, u);
}

}  // namespace millrace::kernels::cuda
