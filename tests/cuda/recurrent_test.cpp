// Convolution, delta rule and scan on the GPU: outputs and states bit for bit against plain host versions of the
// contract in kernels/cuda/recurrent.h (the convolution against the CPU's kernel), and near the plain reference. A
// window has sequences of different lengths, from zeros or from a state, cut into runs in several ways.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "cuda/on_device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"

namespace millrace::kernels::cuda {
namespace {

using test::Array;
using test::Entry;
using test::normal_floats;
using test::ok;
using test::same_bits;

struct RunOfRows {
  int first_row = 0, rows = 0;
  int after = -1;  // number of a block; -1: none
};
struct Sequence {
  int before = -1;  // number of a block; -1: zeros
  std::vector<RunOfRows> runs;
};
/// Rows of a run, and whether it leaves its state somewhere.
struct Cut {
  int rows = 0;
  bool leaves = false;
};

/// Sequences of a window, and blocks of states in device memory: of `floats` each, random. A layer's state begins
/// kOffset floats into a block.
class Window {
 public:
  static constexpr std::int64_t kOffset = 34;

  explicit Window(std::int64_t state_floats) : floats_(kOffset + state_floats + 6) {}

  void add(bool from_zeros, const std::vector<Cut>& cuts) {
    Sequence sequence;
    if (!from_zeros) sequence.before = blocks_++;
    for (const Cut& cut : cuts) {
      sequence.runs.push_back({rows_, cut.rows, cut.leaves ? blocks_++ : -1});
      rows_ += cut.rows;
    }
    sequences_.push_back(sequence);
  }
  /// One whose last run leaves its state where the first found it, as between windows of a pass.
  void add_in_place(const std::vector<Cut>& cuts) {
    add(false, cuts);
    sequences_.back().runs.back().after = sequences_.back().before;
  }
  void add_none() { sequences_.emplace_back(); }  // one that has no rows in this window
  /// blocks: what lies in them; random if empty.
  void put(std::mt19937& random, const std::vector<float>& blocks = {}) {
    memory_ = blocks.empty() ? normal_floats(static_cast<std::size_t>(blocks_ * floats_), random, 0.3f) : blocks;
    device_ = std::make_unique<Array<float>>(memory_);
    std::vector<StateRun> runs;
    std::vector<std::int32_t> first;
    for (const Sequence& sequence : sequences_) {
      first.push_back(static_cast<std::int32_t>(runs.size()));
      for (const RunOfRows& run : sequence.runs)
        runs.push_back({address(sequence.before), address(run.after), run.first_row, run.rows,
                        sequence.runs.front().first_row, sequence.runs.size() > 1 ? 1 : 0});
    }
    first.push_back(static_cast<std::int32_t>(runs.size()));
    runs.resize(runs.size() + 2);  // empty ones behind
    runs_ = std::make_unique<Array<StateRun>>(runs);
    first_ = std::make_unique<Array<std::int32_t>>(first);
    count_ = static_cast<std::int32_t>(runs.size());
  }
  StateRuns runs() const { return {runs_->get(), first_->get(), count_, static_cast<std::int32_t>(sequences_.size())}; }
  std::int64_t offset() const { return kOffset * static_cast<std::int64_t>(sizeof(float)); }
  std::int64_t rows() const { return rows_; }
  std::int32_t count() const { return count_; }
  bool has_borders() const {
    return std::any_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.runs.size() > 1; });
  }
  const std::vector<Sequence>& sequences() const { return sequences_; }
  /// What lies in all blocks before the launch: a copy to be changed into what is wanted.
  std::vector<float> memory() const { return memory_; }
  std::vector<float> device_memory() const { return device_->host(); }
  std::size_t state_at(int block) const { return static_cast<std::size_t>(block * floats_ + kOffset); }

 private:
  std::byte* address(int block) const {
    return block < 0 ? nullptr : reinterpret_cast<std::byte*>(device_->get() + block * floats_);
  }

  std::int64_t floats_;
  int blocks_ = 0, rows_ = 0;
  std::int32_t count_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<float> memory_;
  std::unique_ptr<Array<float>> device_;
  std::unique_ptr<Array<StateRun>> runs_;
  std::unique_ptr<Array<std::int32_t>> first_;
};

/// A window of a kind: one row of each of many sequences; rows that are cut at borders and leave states there; one
/// that goes on in place, runs without rows, sequences that are not in it.
Window make_window(int kind, std::int64_t state_floats, std::mt19937& random) {
  Window window(state_floats);
  if (kind == 0) {
    for (int s = 0; s < 5; ++s) window.add(s % 2 == 0, {{1, true}});
  } else if (kind == 1) {
    window.add(false, {{2, false}, {64, true}, {64, false}, {5, true}});
    window.add_none();
    window.add(true, {{1, true}, {17, true}});
    window.add(true, {{33, true}, {0, true}});
  } else {
    window.add_none();
    window.add_in_place({{1, true}, {15, false}, {0, true}});
    window.add(true, {{16, false}, {16, true}});
    window.add_in_place({{9, true}});
  }
  window.put(random);
  return window;
}
constexpr int kKinds = 3;

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(double{got[i]} - double{want[i]}, 2);
    norm += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(error / std::max(norm, 1e-300));
}

/// A head's matrix on the host, as a state has it.
class Matrix {
 public:
  Matrix(std::int64_t keys, std::int64_t values, std::int64_t lanes)
      : keys_(keys), values_(values), lanes_(lanes), s_(static_cast<std::size_t>(keys * values), 0.0f) {}

  void load(const float* from) { std::copy_n(from, s_.size(), s_.begin()); }
  void store(float* to) const { std::copy(s_.begin(), s_.end(), to); }
  float& at(std::int64_t key, std::int64_t value) {
    return s_[static_cast<std::size_t>(value / lanes_ * keys_ * lanes_ + key * lanes_ + value % lanes_)];
  }
  /// The contract's sum over the keys.
  float sum(std::int64_t value, const float* v) {
    float lanes[8][2] = {};
    for (std::int64_t k = 0; k < keys_; ++k) {
      float& lane = lanes[k / 4 % 8][k % 2];
      lane = test::fused(at(k, value), v[k], lane);
    }
    float sums[8];
    for (int l = 0; l < 8; ++l) sums[l] = lanes[l][0] + lanes[l][1];
    for (int step = 4; step > 0; step /= 2)
      for (int l = 0; l < step; ++l) sums[l] += sums[l + step];
    return sums[0];
  }
  /// Key k by decay[k * step].
  void forget(std::int64_t value, const float* decay, std::int64_t step) {
    for (std::int64_t k = 0; k < keys_; ++k) at(k, value) *= decay[k * step];
  }
  void forget_and_add(std::int64_t value, float decay, float factor, const float* v) {
    forget(value, &decay, 0);
    add(value, factor, v);
  }
  void add(std::int64_t value, float factor, const float* v) {
    for (std::int64_t k = 0; k < keys_; ++k) at(k, value) = test::fused(factor, v[k], at(k, value));
  }
  std::int64_t values() const { return values_; }

 private:
  std::int64_t keys_, values_, lanes_;
  std::vector<float> s_;
};

/// Goes through every sequence of the window: row(matrix, number of a row) for each; states are written to `memory`
/// where runs leave them. place: floats from a layer's state to the matrix.
template <typename Row>
void go_through(const Window& window, std::int64_t place, Matrix fresh, std::vector<float>& memory, Row row) {
  const std::vector<float> before = window.memory();
  for (const Sequence& sequence : window.sequences()) {
    Matrix matrix = fresh;
    const auto in = [&](int block) { return window.state_at(block) + static_cast<std::size_t>(place); };
    if (sequence.before >= 0) matrix.load(before.data() + in(sequence.before));
    for (const RunOfRows& run : sequence.runs) {
      for (int r = run.first_row; r < run.first_row + run.rows; ++r) row(matrix, r);
      if (run.after >= 0) matrix.store(memory.data() + in(run.after));
    }
  }
}

class CudaRecurrent : public test::OnDevice {
 protected:
  std::mt19937 random_{20261123};
  const kernels::Table& cpu_ = kernels::table(device::Isa::plain);
};

TEST_F(CudaRecurrent, ConvolutionIsTheCpus) {
  for (const int kind : {0, 1, 2}) {
    for (const std::int64_t taps : {2, 3, 4, 8}) {
      for (const std::int64_t channels : {2, 34, 128, 200, 640}) {
        SCOPED_TRACE(testing::Message() << kind << ": " << taps << " taps, " << channels << " channels");
        const bool plain = channels % 4 == 0;
        const Window window = make_window(kind, (taps - 1) * channels, random_);
        std::vector<float> x = normal_floats(static_cast<std::size_t>(window.rows() * channels), random_);
        const auto weight = normal_floats(static_cast<std::size_t>(channels * taps), random_),
                   bias = normal_floats(static_cast<std::size_t>(channels), random_);
        const Array<float> x_at(x), weight_at(weight), bias_at(bias);
        const Array<std::byte> borders(convolve_workspace_bytes(window.count(), taps, channels));
        const Entry weight_entry(weight_at.at_bytes()), bias_entry(bias_at.at_bytes());
        ConvolveCall call;
        call.runs = window.runs();
        call.offset = window.offset();
        call.x = x_at.get();
        call.weight = weight_entry.get();
        if (!plain) call.bias = bias_entry.get();
        call.silu = !plain;
        call.taps = static_cast<std::int32_t>(taps);
        call.channels = static_cast<std::int32_t>(channels);
        if (window.has_borders()) call.borders = reinterpret_cast<float*>(borders.get());
        // Every second width to columns of a wider buffer.
        constexpr std::int64_t kBeside = 3;
        const std::int64_t stride = channels + 2 * kBeside;
        const bool apart = channels % 3 != 2;
        const std::vector<float> inputs = x, around(static_cast<std::size_t>(window.rows() * stride), 7.0f);
        const Array<float> out(around);
        if (apart) {
          call.out = out.get() + kBeside;
          call.out_stride = static_cast<std::int32_t>(stride);
        }
        ok(convolve(call, nullptr));

        std::vector<float> memory = window.memory();
        const std::vector<float> first = memory;
        const auto state_floats = static_cast<std::size_t>((taps - 1) * channels);
        for (const Sequence& sequence : window.sequences()) {
          std::vector<float> state(state_floats, 0.0f);
          if (sequence.before >= 0)
            std::copy_n(first.begin() + static_cast<std::ptrdiff_t>(window.state_at(sequence.before)), state_floats,
                        state.begin());
          for (const RunOfRows& run : sequence.runs) {
            std::vector<float> after(state_floats);
            ConvolutionArgs args;
            args.x = x.data() + run.first_row * channels;
            args.x_stride = args.channels = args.last = channels;
            args.rows = run.rows;
            args.weight = weight.data();
            args.bias = plain ? nullptr : bias.data();
            args.silu = !plain;
            args.taps = taps;
            args.before = state.data();
            args.after = after.data();
            cpu_.convolve(args);
            state = after;
            if (run.after >= 0)
              std::copy(state.begin(), state.end(),
                        memory.begin() + static_cast<std::ptrdiff_t>(window.state_at(run.after)));
          }
        }
        std::vector<float> wide = around;
        for (std::int64_t row = 0; apart && row < window.rows(); ++row)
          std::copy_n(x.begin() + row * channels, channels, wide.begin() + row * stride + kBeside);
        EXPECT_TRUE(same_bits(out.host(), wide));
        EXPECT_TRUE(same_bits(x_at.host(), apart ? inputs : x));
        EXPECT_TRUE(same_bits(window.device_memory(), memory));
      }
    }
  }
}

TEST_F(CudaRecurrent, AConvolutionNormalisesHeads) {
  for (int kind = 0; kind < kKinds; ++kind) {
    for (const std::int64_t heads : {1, 3}) {
      const std::int64_t taps = 4, channels = heads * kConvolvedHead + 200;
      SCOPED_TRACE(testing::Message() << kind << ": " << heads << " heads");
      std::mt19937 again = random_;
      const Window window = make_window(kind, (taps - 1) * channels, random_),
                   apart = make_window(kind, (taps - 1) * channels, again);
      const auto x = normal_floats(static_cast<std::size_t>(window.rows() * channels), random_);
      const Array<float> x_at(x), x_apart(x), weight(normal_floats(static_cast<std::size_t>(channels * taps), random_));
      const Array<std::byte> borders(convolve_workspace_bytes(window.count(), taps, channels));
      const Entry entry(weight.at_bytes());
      ConvolveCall call;
      call.runs = window.runs();
      call.offset = window.offset();
      call.x = x_at.get();
      call.weight = entry.get();
      call.silu = true;
      call.taps = static_cast<std::int32_t>(taps);
      call.channels = static_cast<std::int32_t>(channels);
      if (window.has_borders()) call.borders = reinterpret_cast<float*>(borders.get());
      call.heads = static_cast<std::int32_t>(heads);
      call.eps = 1e-6f;
      ok(convolve(call, nullptr));
      ConvolveCall alone = call;
      alone.runs = apart.runs();
      alone.x = x_apart.get();
      alone.heads = 0;
      ok(convolve(alone, nullptr));
      ok(l2_norm_heads(x_apart.get(), channels, static_cast<std::int32_t>(window.rows()), call.heads, kConvolvedHead,
                       call.eps, nullptr));
      EXPECT_TRUE(same_bits(x_at.host(), x_apart.host()));
      EXPECT_TRUE(same_bits(window.device_memory(), apart.device_memory()));
    }
  }
}

struct DeltaShape {
  std::int64_t key_heads, value_heads, keys, values;
  bool tiled;
};

struct DeltaInput {
  std::int64_t stride, queries;
  std::vector<float> qkv, beta, decay;

  DeltaInput(const DeltaShape& shape, std::int64_t rows, const kernels::Table& cpu, std::mt19937& random,
             bool channel_decays = false)
      : stride(2 * shape.key_heads * shape.keys + shape.value_heads * shape.values),
        queries(shape.key_heads * shape.keys),
        qkv(normal_floats(static_cast<std::size_t>(rows * stride), random)),
        beta(normal_floats(static_cast<std::size_t>(rows * shape.value_heads), random)),
        decay(beta.size() * static_cast<std::size_t>(channel_decays ? shape.keys : 1)) {
    for (std::int64_t r = 0; r < rows; ++r)
      cpu.l2_norm(qkv.data() + r * stride, 2 * shape.key_heads, shape.keys, 1e-6f);
    for (float& d : decay) d = exp_f32(-std::abs(normal_floats(1, random, 0.2f)[0]));
  }
};

DeltaRuleCall call_of(const DeltaShape& shape, const Window& window) {
  DeltaRuleCall call;
  call.runs = window.runs();
  call.offset = window.offset();
  call.key_heads = static_cast<std::int32_t>(shape.key_heads);
  call.value_heads = static_cast<std::int32_t>(shape.value_heads);
  call.key_dim = static_cast<std::int32_t>(shape.keys);
  call.value_dim = static_cast<std::int32_t>(shape.values);
  call.tiled = shape.tiled;
  call.scale = 0.3f;
  return call;
}

/// The rule by its contract: outputs, and what is left in blocks.
void rule_row_by_row(const DeltaShape& shape, const Window& window, const DeltaInput& in, float scale,
                     std::vector<float>& want, std::vector<float>& memory, bool channel_decays = false) {
  const std::int64_t width = shape.value_heads * shape.values;
  for (std::int64_t h = 0; h < shape.value_heads; ++h) {
    const std::int64_t key_head = shape.tiled ? h % shape.key_heads : h / (shape.value_heads / shape.key_heads);
    go_through(window, h * shape.keys * shape.values, Matrix(shape.keys, shape.values, kStateLanes), memory,
               [&](Matrix& state, int row) {
                 const float* const query = in.qkv.data() + row * in.stride + key_head * shape.keys;
                 const float *const key = query + in.queries, *const value = in.qkv.data() + row * in.stride +
                                                                             2 * in.queries + h * shape.values;
                 const auto gate = static_cast<std::size_t>(row * shape.value_heads + h);
                 const float b = sigmoid_f32(in.beta[gate]);
                 const auto decays = static_cast<std::size_t>(channel_decays ? shape.keys : 1);
                 const float* const g = in.decay.data() + gate * decays;
                 for (std::int64_t v = 0; v < shape.values; ++v) {
                   if (channel_decays) state.forget(v, g, 1);
                   const float read = channel_decays ? state.sum(v, key) : *g * state.sum(v, key);
                   const float left = value[v] - read;
                   if (channel_decays)
                     state.add(v, b * left, key);
                   else
                     state.forget_and_add(v, *g, b * left, key);
                   want[static_cast<std::size_t>(row * width + h * shape.values + v)] = state.sum(v, query) * scale;
                 }
               });
  }
}

TEST_F(CudaRecurrent, DeltaRuleKeepsItsContract) {
  const DeltaShape shapes[] = {{1, 1, 2, 32, false},  {2, 4, 30, 64, true},   {1, 3, 32, 32, false},
                               {2, 2, 64, 96, false}, {3, 6, 100, 32, true},  {2, 6, 128, 128, false},
                               {2, 4, 128, 64, true}, {1, 2, 130, 32, false}, {1, 1, 256, 64, false}};
  for (const DeltaShape& shape : shapes) {
    for (int kind = 0; kind < kKinds; ++kind) {
      for (const bool channel_decays : {false, true}) {
        SCOPED_TRACE(testing::Message() << kind << ": " << shape.keys << " x " << shape.values << " "
                                        << channel_decays);
        const Window window = make_window(kind, shape.value_heads * shape.keys * shape.values, random_);
        const DeltaInput in(shape, window.rows(), cpu_, random_, channel_decays);
        const Array<float> qkv(in.qkv), beta(in.beta), decay(in.decay);
        const std::int64_t width = shape.value_heads * shape.values;
        const Array<float> out(static_cast<std::size_t>(window.rows() * width));
        DeltaRuleCall call = call_of(shape, window);
        call.qkv = qkv.get();
        call.beta = beta.get();
        call.decay = decay.get();
        call.channel_decays = channel_decays;
        call.out = out.get();
        ok(delta_rule(call, nullptr));

        std::vector<float> want(static_cast<std::size_t>(window.rows() * width)), memory = window.memory();
        rule_row_by_row(shape, window, in, call.scale, want, memory, channel_decays);
        EXPECT_TRUE(same_bits(out.host(), want));
        EXPECT_TRUE(same_bits(window.device_memory(), memory));
      }
    }
  }
}

/// A delta net of a row of each sequence: at once, and in five launches.
TEST_F(CudaRecurrent, AStepOfADeltaNetIsFiveLaunches) {
  const DeltaShape shapes[] = {{1, 1, 2, 32, false},     {2, 4, 30, 64, true},   {1, 3, 32, 32, false},
                               {2, 2, 64, 96, false},    {3, 6, 100, 32, true},  {2, 6, 128, 128, false},
                               {16, 32, 128, 128, true}, {4, 8, 128, 128, false}};
  for (const DeltaShape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.value_heads << " of " << shape.keys << " x " << shape.values);
    const std::int64_t queries = shape.key_heads * shape.keys, width = shape.value_heads * shape.values,
                       channels = 2 * queries + width, kept = (kDeltaTaps - 1) * channels;
    std::mt19937 again = random_;
    const std::int64_t state_floats = kept + width * shape.keys;
    const Window window = make_window(0, state_floats, random_), apart = make_window(0, state_floats, again);
    const std::int64_t rows = window.rows(), gates = rows * shape.value_heads;
    const auto n = [](std::int64_t count) { return static_cast<std::int32_t>(count); };
    const auto random_floats = [&](std::int64_t count) {
      return normal_floats(static_cast<std::size_t>(count), random_);
    };
    const Array<float> x(random_floats(rows * channels)), x_apart(x.host()), beta(random_floats(gates)),
        alpha(random_floats(gates)), decay(alpha.host()), weight(random_floats(channels * kDeltaTaps)),
        bias(random_floats(channels)), a(random_floats(shape.value_heads)), a_bias(random_floats(shape.value_heads)),
        by(random_floats(shape.values)), z(random_floats(rows * width)), read(static_cast<std::size_t>(rows * width)),
        out(read.host()), out_apart(read.host());
    const Array<std::byte> q8(q8_bytes(rows, width)), q8_apart(q8_bytes(rows, width));
    const Entry weight_entry(weight.at_bytes()), bias_entry(bias.at_bytes()), a_entry(a.at_bytes()),
        a_bias_entry(a_bias.at_bytes()), by_entry(by.at_bytes());
    DeltaStepCall call;
    call.convolution.runs = window.runs();
    call.convolution.offset = window.offset();
    call.convolution.x = x.get();
    call.convolution.weight = weight_entry.get();
    if (shape.key_heads == 2) call.convolution.bias = bias_entry.get();
    call.convolution.silu = shape.key_heads != 3;
    call.convolution.taps = kDeltaTaps;
    call.convolution.channels = n(channels);
    call.rule = call_of(shape, window);
    call.rule.offset = window.offset() + kept * static_cast<std::int64_t>(sizeof(float));
    call.rule.beta = beta.get();
    call.rule.decay = alpha.get();
    call.a = a_entry.get();
    call.a_bias = a_bias_entry.get();
    call.eps = 1e-6f;
    call.norm.gate = z.get();
    call.norm.weight = by_entry.get();
    call.norm.rows = n(rows);
    call.norm.heads = n(shape.value_heads);
    call.norm.head_dim = n(shape.values);
    call.norm.eps = 1e-5f;
    call.norm.out = out.get();
    call.norm.out_q8 = q8_at(q8.get(), rows, width);
    ok(delta_step(call, nullptr));

    ConvolveCall convolution = call.convolution;
    convolution.runs = apart.runs();
    convolution.x = x_apart.get();
    ok(time_step(decay.get(), decay.get(), call.a, call.a_bias, n(rows), n(shape.value_heads), 1, 0, nullptr));
    ok(convolve(convolution, nullptr));
    ok(l2_norm_heads(x_apart.get(), channels, n(rows), n(2 * shape.key_heads), n(shape.keys), call.eps, nullptr));
    DeltaRuleCall rule = call.rule;
    rule.runs = apart.runs();
    rule.qkv = x_apart.get();
    rule.decay = decay.get();
    rule.out = read.get();
    ok(delta_rule(rule, nullptr));
    GatedNormCall norm = call.norm;
    norm.x = read.get();
    norm.out = out_apart.get();
    norm.out_q8 = q8_at(q8_apart.get(), rows, width);
    ok(gated_norm(norm, nullptr));
    EXPECT_TRUE(same_bits(out.host(), out_apart.host()));
    EXPECT_TRUE(q8.host() == q8_apart.host());
    EXPECT_TRUE(same_bits(window.device_memory(), apart.device_memory()));
  }
}

TEST_F(CudaRecurrent, DeltaRuleIsNearTheReference) {
  const DeltaShape shape{1, 1, 128, 64, false};
  constexpr std::int64_t kRows = 300;
  Window window(shape.keys * shape.values);
  window.add(true, {{kRows, true}});
  window.put(random_);
  const DeltaInput in(shape, kRows, cpu_, random_);
  const Array<float> qkv(in.qkv), beta(in.beta), decay(in.decay);
  const Array<float> out(static_cast<std::size_t>(kRows * shape.values));
  DeltaRuleCall call = call_of(shape, window);
  call.qkv = qkv.get();
  call.beta = beta.get();
  call.decay = decay.get();
  call.out = out.get();
  ok(delta_rule(call, nullptr));
  std::vector<float> query, key, value, betas;
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto row = in.qkv.begin() + r * in.stride;
    query.insert(query.end(), row, row + shape.keys);
    key.insert(key.end(), row + shape.keys, row + 2 * shape.keys);
    value.insert(value.end(), row + 2 * shape.keys, row + in.stride);
    betas.push_back(sigmoid_f32(in.beta[static_cast<std::size_t>(r)]));
  }
  std::vector<float> want(value.size());
  ref::delta_rule(query.data(), key.data(), value.data(), betas.data(), in.decay.data(), kRows, shape.keys,
                  shape.values, call.scale, want.data());
  EXPECT_LT(relative_error(out.host(), want), 3e-6);
}

/// The rule by chunks over a window in device memory.
std::vector<float> by_chunks(const DeltaShape& shape, const Window& window, const DeltaInput& in) {
  const Array<float> qkv(in.qkv), beta(in.beta), decay(in.decay);
  const Array<float> out(static_cast<std::size_t>(window.rows() * shape.value_heads * shape.values));
  const Array<std::byte> workspace(
      delta_chunks_workspace_bytes(window.count(), shape.key_heads, shape.value_heads, shape.keys));
  DeltaChunksCall call{call_of(shape, window), workspace.get()};
  call.rule.qkv = qkv.get();
  call.rule.beta = beta.get();
  call.rule.decay = decay.get();
  call.rule.out = out.get();
  ok(delta_chunks(call, nullptr));
  return out.host();
}

class CudaDeltaChunks : public CudaRecurrent {
 protected:
  void SetUp() override {
    CudaRecurrent::SetUp();
    if (!IsSkipped() && !has_delta_chunks()) GTEST_SKIP() << "not a device with room for chunks";
  }
};

/// Products of float16: 11 bits.
constexpr double kChunksError = 1e-3;

TEST_F(CudaDeltaChunks, AreNearTheRule) {
  const DeltaShape shapes[] = {{1, 1, 4, 32, false},   {2, 4, 32, 64, true},  {1, 3, 36, 32, false},
                               {2, 2, 64, 96, false},  {3, 6, 100, 32, true}, {2, 6, 128, 128, false},
                               {2, 4, 128, 128, true}, {1, 5, 128, 64, false}};
  for (const DeltaShape& shape : shapes) {
    for (int kind = 0; kind < kKinds; ++kind) {
      SCOPED_TRACE(testing::Message() << kind << ": " << shape.keys << " x " << shape.values);
      ASSERT_TRUE(delta_chunks_fit(shape.keys, shape.values));
      const Window window = make_window(kind, shape.value_heads * shape.keys * shape.values, random_);
      const DeltaInput in(shape, window.rows(), cpu_, random_);
      std::vector<float> want(static_cast<std::size_t>(window.rows() * shape.value_heads * shape.values)),
          memory = window.memory();
      rule_row_by_row(shape, window, in, 0.3f, want, memory);
      EXPECT_LT(relative_error(by_chunks(shape, window, in), want), kChunksError);
      EXPECT_LT(relative_error(window.device_memory(), memory), kChunksError);
    }
  }
}

/// Values of any size, and decays that leave nothing.
TEST_F(CudaDeltaChunks, TakeWhatComes) {
  const DeltaShape shape{2, 4, 128, 64, true};
  for (const float size : {1e-12f, 1e-4f, 3e5f, 1e12f}) {
    for (const float decay : {0.0f, 1e-30f, 0.4f, 1.0f}) {
      SCOPED_TRACE(testing::Message() << "values of " << size << ", decays of " << decay);
      Window window(shape.value_heads * shape.keys * shape.values);
      window.add(true, {{64, true}, {64, false}, {30, true}});
      window.put(random_);
      DeltaInput in(shape, window.rows(), cpu_, random_);
      for (std::int64_t row = 0; row < window.rows(); ++row) {
        for (std::int64_t v = 2 * in.queries; v < in.stride; ++v)
          in.qkv[static_cast<std::size_t>(row * in.stride + v)] *= size;
        if (row % 3 == 0) in.decay[static_cast<std::size_t>(row * shape.value_heads)] = decay;
      }
      std::vector<float> want(static_cast<std::size_t>(window.rows() * shape.value_heads * shape.values)),
          memory = window.memory();
      rule_row_by_row(shape, window, in, 0.3f, want, memory);
      EXPECT_LT(relative_error(by_chunks(shape, window, in), want), kChunksError);
    }
  }
}

/// Windows of a pass, or passes: states go by memory between them.
TEST_F(CudaDeltaChunks, CutWhereRunsEndGiveTheSameBits) {
  const DeltaShape shape{2, 4, 128, 128, false};
  const std::int64_t floats = shape.value_heads * shape.keys * shape.values;
  Window whole(floats);
  whole.add(true, {{64, false}, {64, false}, {64, true}, {20, true}});
  whole.put(random_);
  const DeltaInput in(shape, whole.rows(), cpu_, random_);
  const std::vector<float> expected = by_chunks(shape, whole, in);
  std::vector<float> got, left;
  for (const auto& [first, cuts] : {std::pair<std::int64_t, std::vector<Cut>>{0, {{64, true}}},
                                    {64, {{64, false}, {64, true}}},
                                    {192, {{20, true}}}}) {
    Window window(floats);
    if (first == 0)
      window.add(true, cuts);
    else
      window.add_in_place(cuts);
    window.put(random_, left);
    DeltaInput part = in;
    part.qkv.assign(in.qkv.begin() + first * in.stride, in.qkv.begin() + (first + window.rows()) * in.stride);
    const auto gates = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + first * shape.value_heads,
                                all.begin() + (first + window.rows()) * shape.value_heads);
    };
    part.beta = gates(in.beta);
    part.decay = gates(in.decay);
    const std::vector<float> rows = by_chunks(shape, window, part);
    got.insert(got.end(), rows.begin(), rows.end());
    left = window.device_memory();
  }
  EXPECT_TRUE(same_bits(got, expected));
  const auto state = [&](const std::vector<float>& memory, std::size_t at) {
    return std::vector<float>(memory.begin() + static_cast<std::ptrdiff_t>(at),
                              memory.begin() + static_cast<std::ptrdiff_t>(at) + floats);
  };
  EXPECT_TRUE(same_bits(state(left, whole.state_at(0)), state(whole.device_memory(), whole.state_at(1))));
}

struct ScanShape {
  std::int64_t heads, head_dim, groups, keys;

  std::int64_t inner() const { return heads * head_dim; }
  std::int64_t stride() const { return inner() + 2 * groups * keys; }
};

struct ScanInput {
  std::vector<float> x, step, decay, skip;

  ScanInput(const ScanShape& shape, std::int64_t rows, std::mt19937& random)
      : x(normal_floats(static_cast<std::size_t>(rows * shape.stride()), random)),
        step(normal_floats(static_cast<std::size_t>(rows * shape.heads), random)),
        decay(step.size()),
        skip(normal_floats(static_cast<std::size_t>(shape.heads), random)) {
    for (std::size_t i = 0; i < step.size(); ++i) {
      step[i] = softplus_f32(step[i]);
      decay[i] = exp_f32(-0.3f * step[i]);
    }
  }
};

ScanCall call_of(const ScanShape& shape, const Window& window) {
  ScanCall call;
  call.runs = window.runs();
  call.offset = window.offset();
  call.heads = static_cast<std::int32_t>(shape.heads);
  call.head_dim = static_cast<std::int32_t>(shape.head_dim);
  call.groups = static_cast<std::int32_t>(shape.groups);
  call.keys = static_cast<std::int32_t>(shape.keys);
  return call;
}

TEST_F(CudaRecurrent, ScanKeepsItsContract) {
  const ScanShape shapes[] = {{1, 16, 1, 2},   {4, 48, 2, 16},   {3, 64, 1, 64},  {2, 80, 2, 100},
                              {6, 64, 3, 128}, {2, 128, 1, 128}, {1, 32, 1, 200}, {2, 16, 1, 256}};
  for (const ScanShape& shape : shapes) {
    for (int kind = 0; kind < kKinds; ++kind) {
      SCOPED_TRACE(testing::Message() << kind << ": " << shape.keys << " x " << shape.head_dim);
      const Window window = make_window(kind, shape.inner() * shape.keys, random_);
      const ScanInput in(shape, window.rows(), random_);
      const Array<float> x(in.x), step(in.step), decay(in.decay), skip(in.skip);
      const Entry skip_entry(skip.at_bytes());
      const Array<float> out(static_cast<std::size_t>(window.rows() * shape.inner()));
      ScanCall call = call_of(shape, window);
      call.x = x.get();
      call.step = step.get();
      call.decay = decay.get();
      call.skip = skip_entry.get();
      call.out = out.get();
      ok(scan(call, nullptr));

      std::vector<float> want(static_cast<std::size_t>(window.rows() * shape.inner())), memory = window.memory();
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const std::int64_t group = h / (shape.heads / shape.groups);
        go_through(window, h * shape.keys * shape.head_dim,
                   Matrix(shape.keys, shape.head_dim, scan_lanes(shape.head_dim)), memory, [&](Matrix& state, int row) {
                     const float* const from = in.x.data() + row * shape.stride();
                     const float *const value = from + h * shape.head_dim,
                                        *const b = from + shape.inner() + group * shape.keys,
                                        *const c = b + shape.groups * shape.keys;
                     const auto gate = static_cast<std::size_t>(row * shape.heads + h);
                     for (std::int64_t v = 0; v < shape.head_dim; ++v) {
                       state.forget_and_add(v, in.decay[gate], in.step[gate] * value[v], b);
                       want[static_cast<std::size_t>(row * shape.inner() + h * shape.head_dim + v)] =
                           test::fused(in.skip[static_cast<std::size_t>(h)], value[v], state.sum(v, c));
                     }
                   });
      }
      EXPECT_TRUE(same_bits(out.host(), want));
      EXPECT_TRUE(same_bits(window.device_memory(), memory));
    }
  }
}

TEST_F(CudaRecurrent, ScanIsNearTheReference) {
  const ScanShape shape{1, 64, 1, 128};
  constexpr std::int64_t kRows = 300;
  Window window(shape.inner() * shape.keys);
  window.add(true, {{kRows, true}});
  window.put(random_);
  const ScanInput in(shape, kRows, random_);
  const Array<float> x(in.x), step(in.step), decay(in.decay), skip(in.skip);
  const Entry skip_entry(skip.at_bytes());
  const Array<float> out(static_cast<std::size_t>(kRows * shape.inner()));
  ScanCall call = call_of(shape, window);
  call.x = x.get();
  call.step = step.get();
  call.decay = decay.get();
  call.skip = skip_entry.get();
  call.out = out.get();
  ok(scan(call, nullptr));
  std::vector<float> value, b, c;
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto row = in.x.begin() + r * shape.stride();
    value.insert(value.end(), row, row + shape.inner());
    b.insert(b.end(), row + shape.inner(), row + shape.inner() + shape.keys);
    c.insert(c.end(), row + shape.inner() + shape.keys, row + shape.stride());
  }
  std::vector<float> want(value.size());
  ref::scan(value.data(), b.data(), c.data(), in.step.data(), in.decay.data(), in.skip[0], kRows, shape.keys,
            shape.inner(), want.data());
  EXPECT_LT(relative_error(out.host(), want), 3e-6);
}

}  // namespace
}  // namespace millrace::kernels::cuda
