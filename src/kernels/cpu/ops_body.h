// The elementwise and row ops, written once over a vector type (vec_plain.h says what that is). Every function keeps
// the lanes of kernels.h's NUMERICS, so that all vector types give the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/cpu/fused.h"
#include "kernels/cpu/vec_plain.h"
#include "kernels/kernels.h"

namespace millrace::kernels {
namespace {

constexpr int kLanes = 32;

template <typename V>
typename V::Float load_n(const float* p, int n) {
  return n == V::kWidth ? V::load(p) : V::load_first(p, n);
}
template <typename V>
void store_n(float* p, typename V::Float v, int n) {
  if (n == V::kWidth) {
    V::store(p, v);
  } else {
    V::store_first(p, v, n);
  }
}

/// Calls body(i, n) for each vector of [0, count): n = kWidth but for the last.
template <typename V, typename Body>
void for_each_vector(std::int64_t count, Body body) {
  std::int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) body(i, V::kWidth);
  if (i < count) body(i, static_cast<int>(count - i));
}

/// The sum over [0, count) in 32 lanes and a tree. step(i, n, acc) adds the terms i .. i + n - 1 to lanes 0 .. n - 1
/// of acc and leaves its other lanes as they are.
template <typename V, typename Step>
float lane_sum(std::int64_t count, Step step) {
  constexpr int kCount = kLanes / V::kWidth;
  typename V::Float acc[kCount];
  for (auto& a : acc) a = V::set(0);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int r = 0; r < kCount; ++r) acc[r] = step(i + r * V::kWidth, V::kWidth, acc[r]);
  }
  for (int r = 0; r < kCount && i < count; ++r, i += V::kWidth) {
    const std::int64_t left = count - i;
    acc[r] = step(i, left < V::kWidth ? static_cast<int>(left) : V::kWidth, acc[r]);
  }
  for (int half = kCount / 2; half > 0; half /= 2) {
    for (int r = 0; r < half; ++r) acc[r] = V::add(acc[r], acc[r + half]);
  }
  return V::sum(acc[0]);
}

/// e^x: x = n ln 2 + r with |r| <= ln 2 / 2, the polynomial 1 + r + r^2 q(r) with q through the five Chebyshev nodes
/// of (e^r - 1 - r) / r^2 (relative error 1.1e-8), times 2^n so that subnormal results round once.
template <typename V>
typename V::Float exp_of(typename V::Float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = V::max(V::set(-104.0f), x);        // e^-104 rounds to 0, e^89 overflows; a NaN passes
  x = V::min(V::set(89.0f), x);
  const auto shifted = V::fma(x, V::set(0x1.715476p+0f), V::set(kRound));
  const auto n = V::sub(shifted, V::set(kRound));
  auto r = V::fma(n, V::set(-0x1.62e43p-1f), x);
  r = V::fma(n, V::set(0x1.05c61p-29f), r);
  auto q = V::fma(r, V::set(0x1.6d110ap-10f), V::set(0x1.120b6ep-7f));
  q = V::fma(r, q, V::set(0x1.55551ap-5f));
  q = V::fma(r, q, V::set(0x1.5554dcp-3f));
  q = V::fma(r, q, V::set(0.5f));
  return V::times_power_of_two(V::add(V::fma(V::mul(r, r), q, r), V::set(1.0f)), n);
}

template <typename V>
float mean_of(const float* x, std::int64_t cols) {
  const float sum =
      lane_sum<V>(cols, [&](std::int64_t i, int n, typename V::Float acc) { return V::add(acc, load_n<V>(x + i, n)); });
  return sum / static_cast<float>(cols);
}

template <typename V>
float mean_of_squares(const float* x, std::int64_t cols) {
  const float squares = lane_sum<V>(cols, [&](std::int64_t i, int n, typename V::Float acc) {
    const auto v = load_n<V>(x + i, n);
    return V::fma(v, v, acc);
  });
  return squares / static_cast<float>(cols);
}

template <typename V>
void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t cols, float eps, float* out) {
  for (std::int64_t row = 0; row < rows; ++row, x += cols, out += cols) {
    const auto scale = V::set(1.0f / std::sqrt(mean_of_squares<V>(x, cols) + eps));
    for_each_vector<V>(cols, [&](std::int64_t i, int n) {
      store_n<V>(out + i, V::mul(V::mul(load_n<V>(x + i, n), scale), load_n<V>(weight + i, n)), n);
    });
  }
}

template <typename V>
void layer_norm(const float* x, const float* weight, const float* bias, std::int64_t rows, std::int64_t cols, float eps,
                float* out) {
  for (std::int64_t row = 0; row < rows; ++row, x += cols, out += cols) {
    const auto mean = V::set(mean_of<V>(x, cols));
    for_each_vector<V>(cols, [&](std::int64_t i, int n) { store_n<V>(out + i, V::sub(load_n<V>(x + i, n), mean), n); });
    const auto scale = V::set(1.0f / std::sqrt(mean_of_squares<V>(out, cols) + eps));
    for_each_vector<V>(cols, [&](std::int64_t i, int n) {
      const auto normed = V::mul(V::mul(load_n<V>(out + i, n), scale), load_n<V>(weight + i, n));
      store_n<V>(out + i, bias == nullptr ? normed : V::add(normed, load_n<V>(bias + i, n)), n);
    });
  }
}

template <typename V>
void statistical_top_k(float* x, std::int64_t rows, std::int64_t cols, float deviations) {
  for (std::int64_t row = 0; row < rows; ++row, x += cols) {
    const auto mean = V::set(mean_of<V>(x, cols));
    for_each_vector<V>(cols, [&](std::int64_t i, int n) { store_n<V>(x + i, V::sub(load_n<V>(x + i, n), mean), n); });
    const auto least = V::set(deviations * std::sqrt(mean_of_squares<V>(x, cols)));
    for_each_vector<V>(cols, [&](std::int64_t i, int n) {
      store_n<V>(x + i, V::max(V::set(0), V::sub(load_n<V>(x + i, n), least)), n);  // a NaN stays one
    });
  }
}

template <typename V>
void match_rms(float* x, const float* like, std::int64_t rows, std::int64_t cols, float least) {
  for (std::int64_t row = 0; row < rows; ++row, x += cols, like += cols) {
    const float squares = mean_of_squares<V>(x, cols), wanted = mean_of_squares<V>(like, cols);
    const auto factor = V::set(std::sqrt(wanted) / std::sqrt(squares < least ? least : squares));
    for_each_vector<V>(cols, [&](std::int64_t i, int n) { store_n<V>(x + i, V::mul(load_n<V>(x + i, n), factor), n); });
  }
}

// Plain loops on purpose: the compiler turns the strided pairs into shuffles, and each element is two roundings
// whatever it does.
template <typename V>
void rope(float* x, const float* cos_sin, std::int64_t rotary, bool neox) {
  const std::int64_t half = rotary / 2, step = neox ? 1 : 2, distance = neox ? half : 1;
  for (std::int64_t i = 0; i < half; ++i) {
    const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
    const float a = x[step * i], b = x[step * i + distance];
    x[step * i] = fused(a, c, -(b * s));
    x[step * i + distance] = fused(a, s, b * c);
  }
}

/// x / (1 + e^-y)
template <typename V>
typename V::Float over_sigmoid(typename V::Float x, typename V::Float y) {
  return V::div(x, V::add(V::set(1.0f), exp_of<V>(V::sub(V::set(0), y))));
}

/// 2 sqrt(2 / pi) (x + 0.044715 x^3)
template <typename V>
typename V::Float twice_gelu_inner(typename V::Float x) {
  const auto cubed = V::mul(V::mul(x, x), x);
  return V::mul(V::set(0x1.988454p+0f), V::fma(V::set(0x1.6e4e26p-5f), cubed, x));
}

/// 1 - erf(x) where x >= 0, within 1.5e-7. Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
template <typename V>
typename V::Float erfc_of_positive(typename V::Float x) {
  const auto t = V::div(V::set(1), V::fma(V::set(0.3275911f), x, V::set(1)));
  auto sum = V::set(1.061405429f);
  for (const float coefficient : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
    sum = V::fma(sum, t, V::set(coefficient));
  return V::mul(V::mul(sum, t), exp_of<V>(V::sub(V::set(0), V::mul(x, x))));
}

template <typename V>
void gate_mul(Activation activation, float limit, float* gate, const float* up, std::int64_t count) {
  using Float = typename V::Float;
  const auto each = [&](auto gated) {
    for_each_vector<V>(count, [&](std::int64_t i, int n) {
      store_n<V>(gate + i, gated(load_n<V>(gate + i, n), load_n<V>(up + i, n)), n);
    });
  };
  switch (activation) {
    case Activation::silu:
      return each([](Float g, Float u) { return V::mul(over_sigmoid<V>(g, g), u); });
    case Activation::gelu:
      return each([](Float g, Float u) { return V::mul(over_sigmoid<V>(g, twice_gelu_inner<V>(g)), u); });
    case Activation::relu_squared:
      return each([](Float g, Float u) {
        const Float positive = V::max(V::set(0), g);  // a NaN stays one
        return V::mul(V::mul(positive, positive), u);
      });
    case Activation::clamped:
      return each([](Float g, Float u) {
        const Float bounded = V::min(V::set(7), g), shift = V::max(V::set(-7), V::min(V::set(7), u));
        return V::mul(over_sigmoid<V>(bounded, V::mul(V::set(1.702f), bounded)), V::add(shift, V::set(1)));
      });
    case Activation::limited:
      return each([most = V::set(limit), least = V::set(-limit)](Float g, Float u) {
        return V::mul(V::min(most, over_sigmoid<V>(g, g)), V::max(least, V::min(most, u)));
      });
    case Activation::bounded:
      return each([most = V::set(limit), least = V::set(-limit)](Float g, Float u) {
        const Float bounded = V::min(most, g);
        return V::mul(over_sigmoid<V>(bounded, bounded), V::max(least, V::min(most, u)));
      });
    case Activation::gelu_erf:  // max(g, 0) - |g| / 2 * erfc(|g| / sqrt(2)): nothing cancels out where g is negative
      return each([](Float g, Float u) {
        const Float size = V::max(g, V::sub(V::set(0), g)),
                    rest = erfc_of_positive<V>(V::mul(V::set(0x1.6a09e6p-1f), size));
        return V::mul(V::sub(V::max(V::set(0), g), V::mul(V::mul(V::set(0.5f), size), rest)), u);
      });
  }
}

template <typename V>
void xielu(const Xielu& shape, float* x, std::int64_t count) {
  const auto alpha_p = V::set(shape.alpha_p), alpha_n = V::set(shape.alpha_n), beta = V::set(shape.beta);
  for_each_vector<V>(count, [&](std::int64_t i, int n) {
    const auto value = load_n<V>(x + i, n), positive = V::max(V::set(0), value), negative = V::min(V::set(0), value);
    const auto bent = V::sub(V::sub(exp_of<V>(V::min(V::set(shape.eps), value)), V::set(1)), negative);
    const auto squared = V::mul(V::mul(alpha_p, positive), positive);
    // Where x is positive, what stands for the other side is e^eps - 1: of the size of a rounding.
    store_n<V>(x + i, V::fma(beta, value, V::fma(alpha_n, bent, squared)), n);
  });
}

template <typename V>
void softcap(float* x, float cap, std::int64_t count) {
  for_each_vector<V>(count, [&](std::int64_t i, int n) {
    const auto y = V::div(load_n<V>(x + i, n), V::set(cap));
    const auto e = exp_of<V>(V::add(y, y));
    const auto tanh = V::sub(V::set(1), V::div(V::set(2), V::add(V::set(1), e)));
    store_n<V>(x + i, V::mul(V::set(cap), tanh), n);
  });
}

/// The rotation's steps 1 and 2: whichever the instruction set, four floats are a vector of their own.
inline void join_neighbours(float* x, std::int64_t count) {
  using Four = float __attribute__((vector_size(16)));
  constexpr Four kPairs = {1, -1, 1, -1}, kHalves = {1, 1, -1, -1};  // factors that are exact
  for (std::int64_t i = 0; i < count; i += 4) {
    Four v;
    std::memcpy(&v, x + i, sizeof v);
    v = __builtin_shufflevector(v, v, 0, 0, 2, 2) + kPairs * __builtin_shufflevector(v, v, 1, 1, 3, 3);
    v = __builtin_shufflevector(v, v, 0, 1, 0, 1) + kHalves * __builtin_shufflevector(v, v, 2, 3, 2, 3);
    std::memcpy(x + i, &v, sizeof v);
  }
}

/// The step h, a vector at a time.
template <typename V>
void join_distant(float* x, std::int64_t count, std::int64_t h) {
  for (std::int64_t first = 0; first < count; first += 2 * h) {
    for (std::int64_t i = first; i < first + h; i += V::kWidth) {
      const auto a = V::load(x + i), b = V::load(x + i + h);
      V::store(x + i, V::add(a, b));
      V::store(x + i + h, V::sub(a, b));
    }
  }
}

template <typename V>
void rotate(float* x, std::int64_t count, std::int64_t span) {
  join_neighbours(x, count);
  for (std::int64_t h = 4; h < span; h *= 2)
    h < V::kWidth ? join_distant<Lane>(x, count, h) : join_distant<V>(x, count, h);
  const auto factor = V::set(rotation_factor(span));
  for_each_vector<V>(count, [&](std::int64_t i, int n) { store_n<V>(x + i, V::mul(load_n<V>(x + i, n), factor), n); });
}

template <typename V>
void add(float* x, const float* y, std::int64_t count) {
  for_each_vector<V>(
      count, [&](std::int64_t i, int n) { store_n<V>(x + i, V::add(load_n<V>(x + i, n), load_n<V>(y + i, n)), n); });
}

template <typename V>
void add_scaled(float* x, const float* y, float w, std::int64_t count) {
  for_each_vector<V>(count, [&](std::int64_t i, int n) {
    store_n<V>(x + i, V::fma(V::set(w), load_n<V>(y + i, n), load_n<V>(x + i, n)), n);
  });
}

template <typename V>
float max_of(const float* x, std::int64_t count) {
  auto most = V::set(-std::numeric_limits<float>::infinity());
  for (; count >= V::kWidth; x += V::kWidth, count -= V::kWidth) most = V::max(most, V::load(x));
  float result = V::max_lane(most);
  for (; count > 0; ++x, --count) result = result > *x ? result : *x;
  return result;
}

/// x[i] = e^(x[i] - most); returns their sum in 32 lanes.
template <typename V>
float exp_and_sum(float* x, std::int64_t count, float most) {
  return lane_sum<V>(count, [&](std::int64_t i, int n, typename V::Float acc) {
    auto e = exp_of<V>(V::sub(load_n<V>(x + i, n), V::set(most)));
    if (n < V::kWidth) e = V::keep_first(e, n);
    store_n<V>(x + i, e, n);
    return V::add(acc, e);
  });
}

template <typename V>
void softmax(float* x, std::int64_t count) {
  const float total = exp_and_sum<V>(x, count, max_of<V>(x, count));
  for_each_vector<V>(count,
                     [&](std::int64_t i, int n) { store_n<V>(x + i, V::div(load_n<V>(x + i, n), V::set(total)), n); });
}

template <typename V>
void f32_to_f16_row(const float* x, std::int64_t count, std::uint16_t* out) {
  for_each_vector<V>(count, [&](std::int64_t i, int n) {
    if (n == V::kWidth) {
      V::store_half(out + i, V::load(x + i));
    } else {
      V::store_half_first(out + i, V::load_first(x + i, n), n);
    }
  });
}

}  // namespace
}  // namespace millrace::kernels
