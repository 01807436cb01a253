#include <cmath>

#include "kernels/ref/ref.h"

namespace millrace::kernels::ref {

void convolve(const float* x, const float* weight, const float* bias, std::int64_t rows, std::int64_t channels,
              std::int64_t taps, bool silu, float* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < channels; ++c) {
      double sum = bias != nullptr ? bias[c] : 0;
      for (std::int64_t t = 0; t < taps; ++t)
        if (const std::int64_t row = r - taps + 1 + t; row >= 0)
          sum += static_cast<double>(weight[c * taps + t]) * x[row * channels + c];
      out[r * channels + c] = static_cast<float>(silu ? sum / (1 + std::exp(-sum)) : sum);
    }
  }
}

void delta_rule(const float* query, const float* key, const float* value, const float* beta, const float* decay,
                std::int64_t rows, std::int64_t keys, std::int64_t values, float scale, float* out,
                bool channel_decays) {
  std::vector<double> state(static_cast<std::size_t>(keys * values));
  const auto at = [&](std::int64_t k, std::int64_t v) -> double& {
    return state[static_cast<std::size_t>(k * values + v)];
  };
  for (std::int64_t r = 0; r < rows; ++r, query += keys, key += keys, value += values, out += values) {
    for (std::int64_t k = 0; k < keys; ++k)
      for (std::int64_t v = 0; v < values; ++v) at(k, v) *= decay[channel_decays ? r * keys + k : r];
    for (std::int64_t v = 0; v < values; ++v) {
      double read = 0, sum = 0;
      for (std::int64_t k = 0; k < keys; ++k) read += at(k, v) * key[k];
      for (std::int64_t k = 0; k < keys; ++k) at(k, v) += beta[r] * (value[v] - read) * key[k];
      for (std::int64_t k = 0; k < keys; ++k) sum += at(k, v) * query[k];
      out[v] = static_cast<float>(sum * scale);
    }
  }
}

void selective_scan(const float* value, const float* step, const float* b, const float* c, const float* a,
                    const float* skip, std::int64_t rows, std::int64_t keys, std::int64_t values, float* out) {
  std::vector<double> state(static_cast<std::size_t>(keys * values));
  for (std::int64_t r = 0; r < rows; ++r, value += values, step += values, b += keys, c += keys, out += values) {
    for (std::int64_t v = 0; v < values; ++v) {
      const double time = step[v] > 30 ? double{step[v]} : std::log1p(std::exp(double{step[v]}));
      double sum = double{skip[v]} * value[v];
      for (std::int64_t k = 0; k < keys; ++k) {
        double& s = state[static_cast<std::size_t>(k * values + v)];
        s = std::exp(time * a[v * keys + k]) * s + time * value[v] * b[k];
        sum += s * c[k];
      }
      out[v] = static_cast<float>(sum);
    }
  }
}

void scan(const float* value, const float* b, const float* c, const float* step, const float* decay, float skip,
          std::int64_t rows, std::int64_t keys, std::int64_t values, float* out) {
  std::vector<double> state(static_cast<std::size_t>(keys * values));
  for (std::int64_t r = 0; r < rows; ++r, value += values, b += keys, c += keys, out += values) {
    for (std::int64_t v = 0; v < values; ++v) {
      double sum = double{skip} * value[v];
      for (std::int64_t k = 0; k < keys; ++k) {
        double& s = state[static_cast<std::size_t>(k * values + v)];
        s = decay[r] * s + double{step[r]} * value[v] * b[k];
        sum += s * c[k];
      }
      out[v] = static_cast<float>(sum);
    }
  }
}

}  // namespace millrace::kernels::ref
