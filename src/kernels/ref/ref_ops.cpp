#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/ref/ref.h"

namespace millrace::kernels::ref {

void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t cols, float eps, float* out) {
  for (std::int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
    double squares = 0;
    for (std::int64_t i = 0; i < cols; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (std::int64_t i = 0; i < cols; ++i) out[i] = static_cast<float>(x[i] * scale * weight[i]);
  }
}

void statistical_top_k(float* x, std::int64_t rows, std::int64_t cols, float deviations) {
  const auto count = static_cast<double>(cols);
  for (std::int64_t r = 0; r < rows; ++r, x += cols) {
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < cols; ++i) mean += x[i] / count;
    for (std::int64_t i = 0; i < cols; ++i) variance += (x[i] - mean) * (x[i] - mean) / count;
    const double least = mean + deviations * std::sqrt(variance);
    for (std::int64_t i = 0; i < cols; ++i) x[i] = static_cast<float>(std::max(0.0, x[i] - least));
  }
}

void match_rms(float* x, const float* like, std::int64_t rows, std::int64_t cols, float least) {
  for (std::int64_t r = 0; r < rows; ++r, x += cols, like += cols) {
    double squares = 0, wanted = 0;
    for (std::int64_t i = 0; i < cols; ++i) {
      squares += static_cast<double>(x[i]) * x[i] / static_cast<double>(cols);
      wanted += static_cast<double>(like[i]) * like[i] / static_cast<double>(cols);
    }
    const double factor = std::sqrt(wanted / std::max(squares, double{least}));
    for (std::int64_t i = 0; i < cols; ++i) x[i] = static_cast<float>(x[i] * factor);
  }
}

void rope(float* x, const float* cos_sin, std::int64_t rotary, bool neox) {
  const std::int64_t half = rotary / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    float& first = x[neox ? i : 2 * i];
    float& second = x[neox ? i + half : 2 * i + 1];
    const double a = first, b = second, c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
    first = static_cast<float>(a * c - b * s);
    second = static_cast<float>(a * s + b * c);
  }
}

void gate_mul(Activation activation, float limit, float* gate, const float* up, std::int64_t n) {
  const double inner = std::sqrt(2 / std::acos(-1.0));
  for (std::int64_t i = 0; i < n; ++i) {
    const double g = gate[i];
    const double u = up[i];
    double result = 0;
    switch (activation) {
      case Activation::silu:
        result = g / (1 + std::exp(-g)) * u;
        break;
      case Activation::gelu:
        result = g / 2 * (1 + std::tanh(inner * (g + 0.044715 * g * g * g))) * u;
        break;
      case Activation::relu_squared:
        result = g > 0 ? g * g * u : 0;
        break;
      case Activation::clamped:
        result = std::min(g, 7.0) / (1 + std::exp(-1.702 * std::min(g, 7.0))) * (std::clamp(u, -7.0, 7.0) + 1);
        break;
      case Activation::limited:
        result = std::min(g / (1 + std::exp(-g)), double{limit}) * std::clamp(u, -double{limit}, double{limit});
        break;
      case Activation::bounded: {
        const double bounded = std::min(g, double{limit});
        result = bounded / (1 + std::exp(-bounded)) * std::clamp(u, -double{limit}, double{limit});
        break;
      }
      case Activation::gelu_erf:
        result = g / 2 * (1 + std::erf(g / std::sqrt(2.0))) * u;
        break;
    }
    gate[i] = static_cast<float>(result);
  }
}

void xielu(const Xielu& shape, float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = x[i];
    const double bent = std::expm1(std::min(value, double{shape.eps})) - value;
    x[i] = static_cast<float>((value > 0 ? shape.alpha_p * value * value : shape.alpha_n * bent) + shape.beta * value);
  }
}

void softmax(float* x, std::int64_t n) {
  const double most = *std::max_element(x, x + n);
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i) total += std::exp(x[i] - most);
  for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(std::exp(x[i] - most) / total);
}

void rotate(float* x, std::int64_t n, std::int64_t span) {
  std::vector<double> piece(static_cast<std::size_t>(span));
  for (std::int64_t first = 0; first < n; first += span) {
    for (std::int64_t i = 0; i < span; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < span; ++j)
        sum += std::popcount(static_cast<std::uint64_t>(i & j)) % 2 == 0 ? x[first + j] : -x[first + j];
      piece[static_cast<std::size_t>(i)] = sum / std::sqrt(static_cast<double>(span));
    }
    for (std::int64_t i = 0; i < span; ++i) x[first + i] = static_cast<float>(piece[static_cast<std::size_t>(i)]);
  }
}

void attention(const float* q, const float* k, const float* v, std::int64_t group, std::int64_t keys,
               std::int64_t head_dim, float scale, const float* sinks, float* out, double cap, const float* slopes) {
  std::vector<double> weights(static_cast<std::size_t>(keys));
  for (std::int64_t g = 0; g < group; ++g, q += head_dim, out += head_dim) {
    for (std::int64_t j = 0; j < keys; ++j) {
      double dot = 0;
      for (std::int64_t d = 0; d < head_dim; ++d) dot += static_cast<double>(q[d]) * k[j * head_dim + d];
      const double score = dot * scale;
      const double bias = slopes == nullptr ? 0 : static_cast<double>(slopes[g]) * static_cast<double>(j + 1 - keys);
      weights[static_cast<std::size_t>(j)] = (cap > 0 ? cap * std::tanh(score / cap) : score) + bias;
    }
    double most = *std::max_element(weights.begin(), weights.end());
    if (sinks != nullptr) most = std::max<double>(most, sinks[g]);
    double total = sinks != nullptr ? std::exp(sinks[g] - most) : 0;
    for (double& w : weights) total += w = std::exp(w - most);
    for (std::int64_t d = 0; d < head_dim; ++d) {
      double sum = 0;
      for (std::int64_t j = 0; j < keys; ++j) {
        sum += weights[static_cast<std::size_t>(j)] * static_cast<double>(v[j * head_dim + d]);
      }
      out[d] = static_cast<float>(sum / total);
    }
  }
}

}  // namespace millrace::kernels::ref
