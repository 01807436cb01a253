// Every op as the mathematics has it: float inputs, weights decoded by tensor/codec.h, double accumulation. Slow and
// plain; the judge of every fast kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace millrace::kernels::ref {

/// y[x_rows, weight_rows] from float activations x [x_rows, cols] (no quantization of x, whatever the dtype).
void matmul(DType dtype, const std::byte* weight, std::int64_t weight_rows, std::int64_t cols, const float* x,
            std::int64_t x_rows, float* y);
void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t cols, float eps, float* out);
void statistical_top_k(float* x, std::int64_t rows, std::int64_t cols, float deviations);
void match_rms(float* x, const float* like, std::int64_t rows, std::int64_t cols, float least);
void rope(float* x, const float* cos_sin, std::int64_t rotary, bool neox);
/// The rotation of kernels/rotation.h as a product with its matrix.
void rotate(float* x, std::int64_t n, std::int64_t span);
void gate_mul(Activation activation, float limit, float* gate, const float* up, std::int64_t n);
void xielu(const Xielu& shape, float* x, std::int64_t n);
void softmax(float* x, std::int64_t n);
/// q [heads_of_group, head_dim], k and v [keys, head_dim] (all visible) -> out [heads_of_group, head_dim]. sinks
/// [heads_of_group]: the scores of one more key whose value is zero; may be null. slopes [heads_of_group]: what scores
/// lose for each token between a key and the last one; may be null.
void attention(const float* q, const float* k, const float* v, std::int64_t group, std::int64_t keys,
               std::int64_t head_dim, float scale, const float* sinks, float* out, double cap = 0,
               const float* slopes = nullptr);
/// From no inputs before row 0 on. x, out: [rows, channels]; weight [channels, taps]; bias [channels] or null.
void convolve(const float* x, const float* weight, const float* bias, std::int64_t rows, std::int64_t channels,
              std::int64_t taps, bool silu, float* out);
/// One head from a state of zeros on. query, key: [rows, keys]; value, out: [rows, values]; beta: [rows]; decay:
/// [rows], or with channel_decays [rows, keys].
void delta_rule(const float* query, const float* key, const float* value, const float* beta, const float* decay,
                std::int64_t rows, std::int64_t keys, std::int64_t values, float scale, float* out,
                bool channel_decays = false);
/// One head from a state of zeros on. value, out: [rows, values]; b, c: [rows, keys]; step, decay: [rows].
/// a: [values, keys]; steps before their softplus; step and skip are a value's own.
void selective_scan(const float* value, const float* step, const float* b, const float* c, const float* a,
                    const float* skip, std::int64_t rows, std::int64_t keys, std::int64_t values, float* out);
void scan(const float* value, const float* b, const float* c, const float* step, const float* decay, float skip,
          std::int64_t rows, std::int64_t keys, std::int64_t values, float* out);

}  // namespace millrace::kernels::ref
