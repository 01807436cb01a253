// The ops of layers with a state (kernels/recurrent.h), written once over a vector type (vec_plain.h says what that
// is).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/ops_body.h"
#include "kernels/recurrent.h"

namespace millrace::kernels {
namespace {

template <typename V>
void l2_norm(float* x, std::int64_t rows, std::int64_t cols, float eps) {
  for (std::int64_t row = 0; row < rows; ++row, x += cols) {
    const float squares = lane_sum<V>(cols, [&](std::int64_t i, int n, typename V::Float acc) {
      const auto v = load_n<V>(x + i, n);
      return V::fma(v, v, acc);
    });
    const auto scale = V::set(1.0f / std::sqrt(squares + eps));
    for_each_vector<V>(cols, [&](std::int64_t i, int n) { store_n<V>(x + i, V::mul(load_n<V>(x + i, n), scale), n); });
  }
}

/// x *= 1 / (1 + e^-gate), element by element.
template <typename V>
void sigmoid_mul(float* x, const float* gate, std::int64_t count) {
  for_each_vector<V>(count, [&](std::int64_t i, int n) {
    store_n<V>(x + i, over_sigmoid<V>(load_n<V>(x + i, n), load_n<V>(gate + i, n)), n);
  });
}

/// Channels that are worked together: their taps lie side by side.
constexpr std::int64_t kConvolved = 64;

/// Results may go where inputs of later rows are looked for last: from the last row to the first.
template <typename V>
void convolve_channels(const ConvolutionArgs& args, std::int64_t first, std::int64_t count) {
  const std::int64_t columns = args.taps - 1;
  float taps[kMostTaps][kConvolved];
  for (std::int64_t c = 0; c < count; ++c)
    for (std::int64_t t = 0; t < args.taps; ++t) taps[t][c] = args.weight[(first + c) * args.taps + t];
  static constexpr float kZeros[kConvolved] = {};  // static: what `input` gives outlives its call
  const auto input = [&](std::int64_t row) -> const float* {
    if (row >= 0) return args.x + row * args.x_stride + first;
    return args.before == nullptr ? kZeros : args.before + (columns + row) * args.channels + first;
  };
  for (std::int64_t column = 0; column < columns; ++column)
    std::copy_n(input(args.rows - columns + column), count, args.after + column * args.channels + first);
  for (std::int64_t row = args.rows - 1; row >= 0; --row) {
    const float* inputs[kMostTaps];
    for (std::int64_t t = 0; t < args.taps; ++t) inputs[t] = input(row - columns + t);
    float* const out = (args.out != nullptr ? args.out + row * args.out_stride : args.x + row * args.x_stride) + first;
    for_each_vector<V>(count, [&](std::int64_t i, int n) {
      auto sum = V::set(0);
      for (std::int64_t t = 0; t < args.taps; ++t)
        sum = V::fma(load_n<V>(taps[t] + i, n), load_n<V>(inputs[t] + i, n), sum);
      if (args.bias != nullptr) sum = V::add(sum, load_n<V>(args.bias + first + i, n));
      store_n<V>(out + i, args.silu ? over_sigmoid<V>(sum, sum) : sum, n);
    });
  }
}

template <typename V>
void convolve(const ConvolutionArgs& args) {
  for (std::int64_t first = args.first; first < args.last; first += kConvolved)
    convolve_channels<V>(args, first, std::min(kConvolved, args.last - first));
}

/// So many values as vectors.
template <typename V, std::int64_t kLanes = kStateLanes>
struct StateRow {
  static constexpr int kCount = static_cast<int>(kLanes) / V::kWidth;
  typename V::Float lanes[kCount];

  static StateRow load(const float* p) {
    StateRow row;
    for (int i = 0; i < kCount; ++i) row.lanes[i] = V::load(p + i * V::kWidth);
    return row;
  }
  static StateRow zero() {
    StateRow row;
    for (int i = 0; i < kCount; ++i) row.lanes[i] = V::set(0);
    return row;
  }
  void store(float* p) const {
    for (int i = 0; i < kCount; ++i) V::store(p + i * V::kWidth, lanes[i]);
  }
  /// += s * factor
  void add(const StateRow& s, float factor) {
    const auto by = V::set(factor);
    for (int i = 0; i < kCount; ++i) lanes[i] = V::fma(s.lanes[i], by, lanes[i]);
  }
  void multiply(float factor) {
    const auto by = V::set(factor);
    for (int i = 0; i < kCount; ++i) lanes[i] = V::mul(lanes[i], by);
  }
  void multiply(const StateRow& factors) {
    for (int i = 0; i < kCount; ++i) lanes[i] = V::mul(lanes[i], factors.lanes[i]);
  }
  /// += s * factors, each value by its own
  void add(const StateRow& s, const StateRow& factors) {
    for (int i = 0; i < kCount; ++i) lanes[i] = V::fma(s.lanes[i], factors.lanes[i], lanes[i]);
  }
};

/// What a row leaves of a state: the same part of all keys, or a part of its own of each.
struct HeadDecay {
  float factor;
  float of(std::int64_t) const { return factor; }
};
struct ChannelDecays {
  const float* factors;
  float of(std::int64_t key) const { return factors[key]; }
};

/// Or a part of its own of each key of each value: e^(step a), the keys' a lying as the state does.
template <typename V, std::int64_t kLanes>
struct StepDecays {
  const float* a;
  StateRow<V, kLanes> step;
  StateRow<V, kLanes> of(std::int64_t key) const {
    auto decay = StateRow<V, kLanes>::load(a + key * kLanes);
    decay.multiply(step);
    for (auto& lane : decay.lanes) lane = exp_of<V>(lane);
    return decay;
  }
};

/// What the present state, forgotten by `decay`, has for this key: the sums of even keys and of odd ones.
template <typename V, typename Decay>
StateRow<V> read_state(const float* state, const float* key, std::int64_t keys, Decay decay) {
  StateRow<V> even = StateRow<V>::zero(), odd = even;
  for (std::int64_t k = 0; k < keys; k += 2) {
    StateRow<V> first = StateRow<V>::load(state + k * kStateLanes);
    StateRow<V> second = StateRow<V>::load(state + (k + 1) * kStateLanes);
    first.multiply(decay.of(k));
    second.multiply(decay.of(k + 1));
    even.add(first, key[k]);
    odd.add(second, key[k + 1]);
  }
  even.add(odd, 1);
  return even;
}

/// state = decay * state + difference * key, and what the new one has for the query.
template <typename V, std::int64_t kLanes, typename Decay>
StateRow<V, kLanes> write_state(const float* from, float* to, const StateRow<V, kLanes>& difference, const float* key,
                                const float* query, std::int64_t keys, Decay decay) {
  using Row = StateRow<V, kLanes>;
  Row sums[2] = {Row::zero(), Row::zero()};
  for (std::int64_t k = 0; k < keys; k += 2) {
    for (std::int64_t half = 0; half < 2; ++half) {
      Row row = Row::load(from + (k + half) * kLanes);
      row.multiply(decay.of(k + half));
      row.add(difference, key[k + half]);
      row.store(to + (k + half) * kLanes);
      sums[half].add(row, query[k + half]);
    }
  }
  sums[0].add(sums[1], 1);
  return sums[0];
}

/// Where the first row finds its state: zeros are written to `after` first, and without rows the state goes on there.
inline const float* first_state(const float* before, float* after, std::int64_t floats, std::int64_t rows) {
  if (before == nullptr) {
    std::fill_n(after, floats, 0.0f);
    return after;
  }
  if (rows == 0 && before != after) std::copy_n(before, floats, after);
  return before;
}

template <typename V, typename Decay>
void delta_row(const DeltaRuleArgs& args, std::int64_t row, const float* from, Decay decay) {
  const float *key = args.key + row * args.qkv_stride, *query = args.query + row * args.qkv_stride;
  StateRow<V> difference = StateRow<V>::load(args.value + row * args.qkv_stride);
  difference.add(read_state<V>(from, key, args.keys, decay), -1);
  difference.multiply(args.beta[row * args.gate_stride]);
  StateRow<V> out = write_state<V, kStateLanes>(from, args.after, difference, key, query, args.keys, decay);
  out.multiply(args.scale);
  out.store(args.out + row * args.out_stride);
}

template <typename V>
void delta_rule(const DeltaRuleArgs& args) {
  const float* from = first_state(args.before, args.after, args.keys * kStateLanes, args.rows);
  for (std::int64_t row = 0; row < args.rows; ++row, from = args.after) {
    const float* const decay = args.decay + row * args.decay_stride;
    if (args.channel_decays)
      delta_row<V>(args, row, from, ChannelDecays{decay});
    else
      delta_row<V>(args, row, from, HeadDecay{*decay});
  }
}

template <typename V, std::int64_t kLanes>
void scan_lanes_of(const ScanArgs& args) {
  using Row = StateRow<V, kLanes>;
  const float* from = first_state(args.before, args.after, args.keys * kLanes, args.rows);
  for (std::int64_t row = 0; row < args.rows; ++row, from = args.after) {
    const std::int64_t at = row * args.x_stride, gates = row * args.head_stride;
    const Row value = Row::load(args.value + at);
    Row written = value;
    written.multiply(args.step[gates]);
    Row out = write_state<V, kLanes>(from, args.after, written, args.b + at, args.c + at, args.keys,
                                     HeadDecay{args.decay[gates]});
    out.add(value, args.skip);
    out.store(args.out + row * args.out_stride);
  }
}

/// ln(1 + e^x) as the contract of Mamba's scan has it.
template <typename V>
typename V::Float softplus_of(typename V::Float x) {
  constexpr int kTerms = 8;
  const auto zero = V::set(0);
  const auto y = exp_of<V>(V::sub(V::min(x, zero), V::max(x, zero)));
  const auto z = V::div(y, V::add(V::set(2), y)), square = V::mul(z, z);
  auto sum = V::set(1.0f / (2 * kTerms + 1));
  for (int n = kTerms - 1; n >= 0; --n) sum = V::fma(sum, square, V::set(1.0f / static_cast<float>(2 * n + 1)));
  return V::fma(V::add(z, z), sum, V::max(x, zero));
}

template <typename V, std::int64_t kLanes>
void selective_lanes_of(const SelectiveScanArgs& args) {
  using Row = StateRow<V, kLanes>;
  alignas(64) float a[kMostSelectiveKeys * kLanes];  // as the state lies
  for (std::int64_t lane = 0; lane < kLanes; ++lane)
    for (std::int64_t k = 0; k < args.keys; ++k) a[k * kLanes + lane] = args.a[lane * args.keys + k];
  const Row skip = Row::load(args.skip);
  const float* from = first_state(args.before, args.after, args.keys * kLanes, args.rows);
  for (std::int64_t row = 0; row < args.rows; ++row, from = args.after) {
    const std::int64_t at = row * args.stride, keys = row * args.key_stride;
    const Row value = Row::load(args.value + at);
    StepDecays<V, kLanes> decays{a, Row::load(args.step + at)};
    for (auto& lane : decays.step.lanes) lane = softplus_of<V>(lane);
    Row written = value;
    written.multiply(decays.step);
    Row out = write_state<V, kLanes>(from, args.after, written, args.b + keys, args.c + keys, args.keys, decays);
    out.add(value, skip);
    out.store(args.out + at);
  }
}

template <typename V>
void selective_scan(const SelectiveScanArgs& args) {
  args.lanes == kStateLanes ? selective_lanes_of<V, kStateLanes>(args) : selective_lanes_of<V, kScanLanes>(args);
}

template <typename V>
void scan(const ScanArgs& args) {
  args.lanes == kStateLanes ? scan_lanes_of<V, kStateLanes>(args) : scan_lanes_of<V, kScanLanes>(args);
}

}  // namespace
}  // namespace millrace::kernels
