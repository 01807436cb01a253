// Products: the processor's matmul_segments, which has the GPU's bits, but for those of rows as f16, which are by it,
// too, and whose bits are free. There are none in a class of their own for prompts.
#include <algorithm>
#include <atomic>

#include "kernels.h"
#include "kernels/gpu/latent.h"
#include "kernels/gpu/offer.h"
#include "kernels/gpu/plainer.h"
#include "kernels/gpu/prompt_int8.h"
#include "kernels/gpu/whole_rows.h"

namespace millrace::simulated {

static std::atomic<std::int64_t> spoiled_from{0};
void spoil_products_from(std::int64_t rows) { spoiled_from = rows; }

}  // namespace millrace::simulated

namespace millrace::kernels::gpu {

namespace {

using simulated::at;
using simulated::cpu;

/// The GPU's int8 activations as the processor's.
class Converted {
 public:
  /// Nothing where `from` is not set.
  Converted(const Q8& from, std::int64_t rows, std::int64_t cols) {
    if (from.q == nullptr) return;
    memory_.resize(static_cast<std::size_t>(kernels::q8_bytes(rows, cols)) + 64);
    const auto base = reinterpret_cast<std::uintptr_t>(memory_.data());
    rows_ = q8_rows_at(memory_.data() + (64 - base % 64) % 64, rows, cols);
    std::memcpy(rows_.q, from.q, static_cast<std::size_t>(rows * cols));
    for (std::int64_t b = 0; b < rows * cols / 32; ++b) {
      const Q8Scale& scale = from.scale[b];
      rows_.d[b] = scale.d;
      rows_.sum16[2 * b] = scale.s16[0];
      rows_.sum16[2 * b + 1] = scale.s16[1];
    }
  }
  Q8Rows rows() const { return rows_; }

 private:
  std::vector<std::byte> memory_;
  Q8Rows rows_;
};

/// Rows of activations, as products of one dtype or the other take them.
struct Input {
  const float* x = nullptr;
  std::int64_t stride = 0;
  Q8Rows q8;
};

/// y [x_rows, rows] = rows of the input, those of `index` where there is one, times a matrix.
void multiply_rows(DType dtype, const std::byte* weight, std::int64_t rows, std::int64_t cols, const Input& input,
                   std::int64_t x_rows, const std::int32_t* index, float* y) {
  MatmulArgs args;
  args.dtype = dtype;
  args.weight = weight;
  args.weight_rows = rows;
  args.cols = cols;
  args.x = input.x;
  args.x_stride = input.stride;
  args.x_q8 = input.q8;
  args.x_rows = x_rows;
  args.x_index = index;
  args.y = y;
  args.y_stride = rows;
  thread_local std::vector<std::byte> memory;
  const auto bytes = static_cast<std::size_t>(cpu().matmul_segments_workspace_bytes(cols));
  if (memory.size() < bytes + 64) memory.assign(bytes + 64, std::byte{0});
  args.workspace = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  cpu().matmul_segments(args);
}

void add_to_rows(float* y, std::int64_t rows, std::int64_t cols, const float* bias) {
  if (bias == nullptr) return;
  for (std::int64_t r = 0; r < rows; ++r) cpu().add(y + r * cols, bias, cols);
}

void put_rows(const std::vector<float>& from, std::int64_t rows, std::int64_t cols, float* to, std::int64_t stride,
              bool add) {
  if (to == nullptr) return;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      float& y = to[r * stride + c];
      y = add ? y + from[static_cast<std::size_t>(r * cols + c)] : from[static_cast<std::size_t>(r * cols + c)];
    }
  }
}

void products(const MatmulCall& call) {
  const Converted q8(call.x_q8, call.x_rows, call.cols);
  const Input input{call.x, call.x_stride, q8.rows()};
  std::vector<float> y[kMostProducts];
  for (int p = 0; p < call.count; ++p) {
    const Product& product = call.products[p];
    y[p].resize(static_cast<std::size_t>(call.x_rows) * static_cast<std::size_t>(product.weight.rows));
    multiply_rows(product.weight.dtype, *product.weight.address, product.weight.rows, call.cols, input, call.x_rows,
                  nullptr, y[p].data());
    simulated::read_weights(*product.weight.address, product.weight.rows * row_bytes(product.weight.dtype, call.cols));
    add_to_rows(y[p].data(), call.x_rows, product.weight.rows, at(product.bias));
    if (product.addend != nullptr) cpu().add(y[p].data(), product.addend, std::ssize(y[p]));
  }
  const bool gated = call.effect == Effect::gated;
  if (gated) {
    cpu().gate_mul(call.activation, call.limit, y[0].data(), y[1].data(), static_cast<std::int64_t>(y[0].size()));
    if (call.y_q8.q != nullptr)
      simulated::quantize(y[0].data(), call.products[0].weight.rows, call.x_rows, call.products[0].weight.rows,
                          call.y_q8);
  }
  for (int p = 0; p < (gated ? 1 : call.count); ++p) {
    const Product& product = call.products[p];
    const std::int64_t rows = product.weight.rows;
    put_rows(y[p], call.x_rows, rows, product.y, product.y_stride, call.effect == Effect::add);
    for (int d = 0; p == 0 && d < call.also.count; ++d)
      put_rows(y[p], call.x_rows, rows, call.also.copies[d].y, product.y_stride, false);
  }
}

/// Weights as the f16 that they are rounded to, in float32.
std::vector<float> half_weights(const Matrix& weight, std::int64_t cols) {
  std::vector<float> all(static_cast<std::size_t>(weight.rows) * static_cast<std::size_t>(cols));
  decode_row(weight.dtype, *weight.address, static_cast<std::int64_t>(all.size()), all.data());
  constexpr float kMost = 65504;
  for (float& w : all) w = f16_to_f32(f32_to_f16(w < -kMost ? -kMost : w > kMost ? kMost : w));
  return all;
}

void half_products(const MatmulCall& call, const HalfRows& half) {
  const auto inputs = static_cast<std::size_t>(call.x_rows) * static_cast<std::size_t>(call.cols);
  std::vector<float> x(inputs), y[kMostProducts];
  for (std::size_t i = 0; i < inputs; ++i) x[i] = f16_to_f32(half.x[i]);
  for (int p = 0; p < call.count; ++p) {
    const Product& product = call.products[p];
    const auto rows = static_cast<std::size_t>(product.weight.rows);
    const std::vector<float> weights = half_weights(product.weight, call.cols);
    y[p].resize(static_cast<std::size_t>(call.x_rows) * rows);
    multiply_rows(DType::f32, reinterpret_cast<const std::byte*>(weights.data()), product.weight.rows, call.cols,
                  {x.data(), call.cols, {}}, call.x_rows, nullptr, y[p].data());
    simulated::read_weights(*product.weight.address, product.weight.rows * row_bytes(product.weight.dtype, call.cols));
    for (std::size_t i = 0; i < y[p].size(); ++i) y[p][i] *= half.unit[i / rows];
    add_to_rows(y[p].data(), call.x_rows, product.weight.rows, at(product.bias));
  }
  const bool gated = call.effect == Effect::gated;
  if (gated)
    cpu().gate_mul(call.activation, call.limit, y[0].data(), y[1].data(), static_cast<std::int64_t>(y[0].size()));
  for (int p = 0; p < (gated ? 1 : call.count); ++p)
    put_rows(y[p], call.x_rows, call.products[p].weight.rows, call.products[p].y, call.products[p].y_stride,
             call.effect == Effect::add);
}

struct Half {
  const std::byte* const* weight;
  const std::byte* const* shared;
  const std::byte* const* bias;
  const std::byte* const* scale;
  DType dtype;
};

/// Entries of one expert; -1 is the matrix beside the experts'.
struct Group {
  std::int32_t expert = 0;
  std::vector<std::int32_t> entries;
};

/// What the entries' inputs give with their expert's matrix, [entries, rows].
std::vector<float> expert_product(const ExpertCall& call, const Half& half, const Input& input, const Group& group) {
  std::vector<std::int32_t> index;
  for (const std::int32_t entry : group.entries) index.push_back(entry / call.entries_per_x);
  const auto count = static_cast<std::int64_t>(index.size());
  std::vector<float> y(static_cast<std::size_t>(count * call.rows));
  const std::byte* const* weight =
      group.expert < 0 ? half.shared : half.weight + std::int64_t{group.expert} * call.address_stride;
  multiply_rows(half.dtype, *weight, call.rows, call.cols, input, count, index.data(), y.data());
  simulated::read_weights(*weight, call.rows * row_bytes(half.dtype, call.cols));
  if (group.expert < 0) return y;
  if (half.scale != nullptr)
    for (float& value : y) value *= at(half.scale)[group.expert];
  if (half.bias != nullptr)
    add_to_rows(y.data(), count, call.rows, at(half.bias) + std::int64_t{group.expert} * call.bias_stride);
  return y;
}

void multiply_group(const ExpertCall& call, const Input& input, const Group& group) {
  std::vector<float> y =
      expert_product(call, {call.weight, call.shared, call.bias, call.scale, call.dtype}, input, group);
  if (call.effect == Effect::gated) {
    const std::vector<float> up =
        expert_product(call, {call.up, call.shared_up, call.up_bias, call.up_scale, call.up_dtype}, input, group);
    cpu().gate_mul(call.activation, call.limit, y.data(), up.data(), static_cast<std::int64_t>(y.size()));
  }
  const float* from = y.data();
  for (const std::int64_t entry : group.entries) {
    if (call.y != nullptr) std::copy_n(from, call.rows, call.y + entry * call.rows);
    if (call.y_q8.q != nullptr)
      simulated::quantize(from, call.rows, 1, call.rows,
                          {call.y_q8.q + entry * call.rows, call.y_q8.scale + entry * call.rows / 32});
    from += call.rows;
  }
}

void multiply_groups(const ExpertCall& call, const std::vector<Group>& groups) {
  const Converted q8(call.x_q8, (call.entries - 1) / call.entries_per_x + 1, call.cols);
  for (const Group& group : groups)
    if (!group.entries.empty()) multiply_group(call, {call.x, call.cols, q8.rows()}, group);
}

void multiply_chosen(const ExpertCall& call) {
  std::vector<Group> groups(static_cast<std::size_t>(call.experts) + 1);
  for (std::int32_t e = -1; e < call.experts; ++e) groups[static_cast<std::size_t>(e + 1)].expert = e;
  for (std::int32_t e = 0; e < call.entries; ++e) {
    std::int32_t expert = -1;
    if (call.shared == nullptr)
      expert = call.chosen[e];
    else if (e % call.places < call.places - 1)
      expert = call.chosen[e / call.places * (call.places - 1) + e % call.places];
    groups[static_cast<std::size_t>(expert + 1)].entries.push_back(e);
  }
  multiply_groups(call, groups);
}

void multiply_sorted(const ExpertCall& call) {
  std::vector<Group> groups(static_cast<std::size_t>(call.experts));
  for (std::int32_t e = 0; e < call.experts; ++e)
    groups[static_cast<std::size_t>(e)] = {
        e, {call.sorted + call.expert_first[e], call.sorted + call.expert_first[e + 1]}};
  multiply_groups(call, groups);
}

void head_products(const HeadProductCall& call) {
  const std::int64_t from = call.transposed ? call.n : call.k, to = call.transposed ? call.k : call.n;
  const std::int64_t rest = call.x_head - from, out_head = to + rest;
  const std::int64_t bytes = row_bytes(call.weight.dtype, call.k);
  std::vector<float> matrix(static_cast<std::size_t>(call.n) * static_cast<std::size_t>(call.k));
  for (std::int64_t h = 0; h < call.heads; ++h) {
    const std::byte* const first = call.parts ? call.weight.address[h] : *call.weight.address + h * call.n * bytes;
    for (std::int64_t n = 0; n < call.n; ++n)
      decode_row(call.weight.dtype, first + n * bytes, call.k, matrix.data() + n * call.k);
    for (std::int64_t r = 0; r < call.rows; ++r) {
      const float* const x = call.x + (r * call.heads + h) * call.x_head;
      float* const out = call.out + (r * call.heads + h) * out_head;
      if (call.transposed) {
        std::fill_n(out, to, 0.0f);
        for (std::int64_t n = 0; n < call.n; ++n)
          for (std::int64_t k = 0; k < call.k; ++k) out[k] = std::fma(matrix[n * call.k + k], x[n], out[k]);
      } else {
        for (std::int64_t n = 0; n < call.n; ++n)
          out[n] = simulated::lane_sum(
              call.k, [&](std::int64_t k, float acc) { return std::fma(matrix[n * call.k + k], x[k], acc); });
      }
      std::copy_n(x + from, rest, out + to);
    }
  }
}

}  // namespace

const Offer& offer() {
  static constexpr Offer kOffer{.name = "the GPU part", .numerics = "cuda 5"};
  return kOffer;
}

Status matvec(const MatmulCall& call, device::StreamRef stream) {
  if (call.x_rows > kMatvecRows || call.count > kMostProducts) return simulated::refused();
  return simulated::launch(stream, call, products);
}
Status matmul(const MatmulCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, [](const MatmulCall& c) {
    products(c);
    const std::int64_t spoiled = simulated::spoiled_from;
    if (spoiled > 0 && c.x_rows >= spoiled && !does_without(Family::product_tiles) && c.products[0].y != nullptr)
      *c.products[0].y += 1;
  });
}
Status matmul_prompt(const MatmulCall&, device::StreamRef) { return simulated::refused(); }
PromptProducts prompt_products() { return PromptProducts::none; }
Status round_prompt(const Bf16*, std::int32_t, std::int32_t, PromptInt8, device::StreamRef) {
  return simulated::refused();
}
Status round_prompt(const float*, std::int32_t, std::int32_t, PromptInt8, device::StreamRef) {
  return simulated::refused();
}
Status matmul_half(const MatmulCall& call, HalfRows x, device::StreamRef stream) {
  if (call.y_q8.q != nullptr || call.y_bf16 != nullptr || call.also.count > 0) return simulated::refused();
  if (call.effect == Effect::gated && call.count != 2) return simulated::refused();
  for (int p = 0; p < call.count; ++p)
    if (!has_half_product(call.products[p].weight.dtype, call.cols)) return simulated::refused();
  return simulated::launch(stream, call, [x](const MatmulCall& c) { half_products(c, x); });
}

Status matvec_experts(const ExpertCall& call, device::StreamRef stream) {
  return call.entries == 0 ? Status() : simulated::launch(stream, call, multiply_chosen);
}
Status matmul_experts(const ExpertCall& call, device::StreamRef stream) {
  return call.entries == 0 ? Status() : simulated::launch(stream, call, multiply_sorted);
}

Status head_product(const HeadProductCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, head_products);
}

}  // namespace millrace::kernels::gpu
