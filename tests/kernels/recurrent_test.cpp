// Ops of layers with a state: every instruction set gives the bits of the plain one, the plain one agrees with ref/,
// and no bit depends on where rows are cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/ops.h"
#include "kernels/ref/ref.h"

namespace millrace::kernels {
namespace {

std::vector<Table> recurrent_tables() {
  std::vector<Table> all = {plain_ops()};
  if (device::best_isa() >= Isa::avx2) all.push_back(avx2_ops());
  if (device::best_isa() >= Isa::avx512) all.push_back(avx512_ops());
  return all;
}

std::vector<float> recurrent_floats(std::int64_t n, std::uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = normal(random);
  return x;
}

bool same_recurrent_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float one, float other) {
    return std::bit_cast<std::uint32_t>(one) == std::bit_cast<std::uint32_t>(other);
  });
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(double{got[i]} - double{want[i]}, 2);
    norm += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(error / std::max(norm, 1e-300));
}

/// Ways to cut 70 rows: each list is the ends of passes.
const std::vector<std::int64_t> kCuts[] = {{70}, {1, 2, 3, 4, 70}, {7, 14, 14, 30, 70}, {64, 70}, {69, 70}};

TEST(Convolution, GivesTheSameBitsHoweverRowsAreCut) {
  constexpr std::int64_t kRows = 70;
  for (const std::int64_t taps : {2, 3, 4, 8}) {
    for (const std::int64_t channels : {1, 31, 64, 100, 192}) {
      for (const bool plain : {false, true}) {
        const auto x = recurrent_floats(kRows * channels, 1), weight = recurrent_floats(channels * taps, 2),
                   bias = recurrent_floats(channels, 3);
        std::vector<float> want(x.size()), first;
        ref::convolve(x.data(), weight.data(), plain ? nullptr : bias.data(), kRows, channels, taps, !plain,
                      want.data());
        for (const Table& table : recurrent_tables()) {
          for (const auto& cuts : kCuts) {
            std::vector<float> out = x, before, after(static_cast<std::size_t>((taps - 1) * channels));
            std::int64_t row = 0;
            for (const std::int64_t end : cuts) {
              ConvolutionArgs args;
              args.x = out.data() + row * channels;
              args.x_stride = args.channels = channels;
              args.rows = end - row;
              args.weight = weight.data();
              args.bias = plain ? nullptr : bias.data();
              args.silu = !plain;
              args.taps = taps;
              args.before = row == 0 ? nullptr : before.data();
              args.after = after.data();
              args.last = channels / 2;
              table.convolve(args);
              args.first = channels / 2;
              args.last = channels;
              table.convolve(args);
              before = after;
              row = end;
            }
            if (first.empty()) first = out;
            EXPECT_TRUE(same_recurrent_bits(out, first))
                << device::isa_name(table.isa) << " " << taps << " " << channels;
            EXPECT_LT(relative_error(out, want), 1e-6);
            for (std::int64_t i = 0; i < (taps - 1) * channels; ++i)
              ASSERT_EQ(after[static_cast<std::size_t>(i)],
                        x[static_cast<std::size_t>((kRows - taps + 1) * channels + i)]);
          }
        }
      }
    }
  }
}

TEST(Convolution, PutsResultsWhereTheyAreWanted) {
  constexpr std::int64_t kRows = 7, kTaps = 4, kBeside = 5;
  for (const std::int64_t channels : {1, 31, 100}) {
    const std::int64_t stride = channels + 2 * kBeside;
    const auto x = recurrent_floats(kRows * channels, 1), weight = recurrent_floats(channels * kTaps, 2),
               before = recurrent_floats((kTaps - 1) * channels, 3);
    for (const Table& table : recurrent_tables()) {
      std::vector<float> in_place = x, read = x, after(before.size()), after_apart(before.size());
      std::vector<float> wide(static_cast<std::size_t>(kRows * stride), 7.0f), want = wide;
      ConvolutionArgs args;
      args.x = in_place.data();
      args.x_stride = args.channels = args.last = channels;
      args.rows = kRows;
      args.weight = weight.data();
      args.silu = true;
      args.taps = kTaps;
      args.before = before.data();
      args.after = after.data();
      table.convolve(args);
      args.x = read.data();
      args.out = wide.data() + kBeside;
      args.out_stride = stride;
      args.after = after_apart.data();
      table.convolve(args);
      for (std::int64_t row = 0; row < kRows; ++row)
        std::copy_n(in_place.data() + row * channels, channels, want.data() + row * stride + kBeside);
      EXPECT_TRUE(same_recurrent_bits(wide, want)) << device::isa_name(table.isa) << " " << channels;
      EXPECT_TRUE(same_recurrent_bits(after, after_apart)) << device::isa_name(table.isa) << " " << channels;
      EXPECT_TRUE(same_recurrent_bits(read, x)) << device::isa_name(table.isa) << " " << channels;
    }
  }
}

/// By one decay a row, or one for each key of it.
void expect_delta_rule_however_cut(bool channel_decays) {
  constexpr std::int64_t kRows = 70, kValues = 64;
  for (const std::int64_t keys : {2, 32, 46, 128}) {
    const std::int64_t decays = channel_decays ? keys : 1;
    auto query = recurrent_floats(kRows * keys, 1), key = recurrent_floats(kRows * keys, 2);
    const auto value = recurrent_floats(kRows * kValues, 3);
    auto beta = recurrent_floats(kRows, 4), decay = recurrent_floats(kRows * decays, 5);
    for (float& b : beta) b = sigmoid_f32(b);
    for (float& d : decay) d = std::exp(-std::abs(d));
    for (const Table& table : recurrent_tables()) {  // keys of length 1
      table.l2_norm(query.data(), kRows, keys, 1e-6f);
      table.l2_norm(key.data(), kRows, keys, 1e-6f);
    }
    const std::int64_t stride = 2 * keys + kValues;
    std::vector<float> qkv;  // as they lie side by side in a row
    for (std::int64_t row = 0; row < kRows; ++row) {
      qkv.insert(qkv.end(), query.begin() + row * keys, query.begin() + (row + 1) * keys);
      qkv.insert(qkv.end(), key.begin() + row * keys, key.begin() + (row + 1) * keys);
      qkv.insert(qkv.end(), value.begin() + row * kValues, value.begin() + (row + 1) * kValues);
    }
    std::vector<float> want(value.size()), first, first_state;
    ref::delta_rule(query.data(), key.data(), value.data(), beta.data(), decay.data(), kRows, keys, kValues, 0.3f,
                    want.data(), channel_decays);
    for (const Table& table : recurrent_tables()) {
      for (const auto& cuts : kCuts) {
        std::vector<float> out(value.size()), before, after(static_cast<std::size_t>(keys * kValues), -1);
        std::int64_t row = 0;
        for (const std::int64_t end : cuts) {
          for (std::int64_t lane = 0; lane < kValues; lane += kStateLanes) {
            DeltaRuleArgs args;
            args.query = qkv.data() + row * stride;
            args.key = args.query + keys;
            args.value = args.key + keys + lane;
            args.qkv_stride = stride;
            args.beta = beta.data() + row;
            args.decay = decay.data() + row * decays;
            args.gate_stride = 1;
            args.decay_stride = decays;
            args.channel_decays = channel_decays;
            args.out = out.data() + row * kValues + lane;
            args.out_stride = kValues;
            args.rows = end - row;
            args.keys = keys;
            args.scale = 0.3f;
            args.before = row == 0 ? nullptr : before.data() + lane * keys;
            args.after = after.data() + lane * keys;
            table.delta_rule(args);
          }
          before = after;
          row = end;
        }
        if (first.empty()) first = out, first_state = after;
        EXPECT_TRUE(same_recurrent_bits(out, first)) << device::isa_name(table.isa) << " " << keys;
        EXPECT_TRUE(same_recurrent_bits(after, first_state)) << device::isa_name(table.isa) << " " << keys;
        EXPECT_LT(relative_error(out, want), 2e-6);
      }
    }
  }
}

TEST(DeltaRule, GivesTheSameBitsHoweverRowsAreCut) { expect_delta_rule_however_cut(false); }
TEST(DeltaRule, WithADecayForEachKeyGivesTheSameBitsHoweverRowsAreCut) { expect_delta_rule_however_cut(true); }

/// Whose keys all have the same decay.
TEST(DeltaRule, WithEqualDecaysIsTheOneWithADecayForTheHead) {
  constexpr std::int64_t kRows = 9, kKeys = 34;
  const auto query = recurrent_floats(kRows * kKeys, 1), key = recurrent_floats(kRows * kKeys, 2),
             value = recurrent_floats(kRows * kStateLanes, 3), beta = recurrent_floats(kRows, 4),
             before = recurrent_floats(kKeys * kStateLanes, 6);
  auto decay = recurrent_floats(kRows, 5);
  std::vector<float> decays;
  for (float& d : decay) {
    d = sigmoid_f32(d);
    decays.insert(decays.end(), kKeys, d);
  }
  for (const Table& table : recurrent_tables()) {
    const auto run = [&](bool channel_decays, std::vector<float>& after) {
      std::vector<float> out(kRows * kStateLanes);
      DeltaRuleArgs args;
      args.channel_decays = channel_decays;
      args.rows = 1;
      args.keys = kKeys;
      args.before = before.data();
      args.after = after.data();
      for (std::int64_t row = 0; row < kRows; ++row) {
        args.query = query.data() + row * kKeys;
        args.key = key.data() + row * kKeys;
        args.value = value.data() + row * kStateLanes;
        args.beta = beta.data() + row;
        args.decay = channel_decays ? decays.data() + row * kKeys : decay.data() + row;
        args.out = out.data() + row * kStateLanes;
        table.delta_rule(args);
        args.before = after.data();
      }
      return out;
    };
    std::vector<float> of_head(kKeys * kStateLanes), of_keys(kKeys * kStateLanes);
    EXPECT_TRUE(same_recurrent_bits(run(false, of_head), run(true, of_keys))) << device::isa_name(table.isa);
    EXPECT_TRUE(same_recurrent_bits(of_head, of_keys)) << device::isa_name(table.isa);
  }
}

TEST(Scan, GivesTheSameBitsHoweverRowsAreCut) {
  constexpr std::int64_t kRows = 70;
  constexpr float kSkip = 0.7f;
  for (const std::int64_t values : {16, 48, 64}) {
    for (const std::int64_t keys : {2, 16, 128}) {
      const std::int64_t lanes = scan_lanes(values), stride = values + 2 * keys;
      const auto value = recurrent_floats(kRows * values, 1), b = recurrent_floats(kRows * keys, 2),
                 c = recurrent_floats(kRows * keys, 3);
      auto step = recurrent_floats(kRows, 4), decay = step;
      for (std::size_t row = 0; row < step.size(); ++row) {
        step[row] = softplus_f32(step[row]);
        decay[row] = exp_f32(-0.3f * step[row]);
      }
      std::vector<float> x;  // as they lie side by side in a row
      for (std::int64_t row = 0; row < kRows; ++row) {
        x.insert(x.end(), value.begin() + row * values, value.begin() + (row + 1) * values);
        x.insert(x.end(), b.begin() + row * keys, b.begin() + (row + 1) * keys);
        x.insert(x.end(), c.begin() + row * keys, c.begin() + (row + 1) * keys);
      }
      std::vector<float> want(value.size()), first, first_state;
      ref::scan(value.data(), b.data(), c.data(), step.data(), decay.data(), kSkip, kRows, keys, values, want.data());
      for (const Table& table : recurrent_tables()) {
        for (const auto& cuts : kCuts) {
          std::vector<float> out(value.size()), before, after(static_cast<std::size_t>(keys * values), -1);
          std::int64_t row = 0;
          for (const std::int64_t end : cuts) {
            for (std::int64_t lane = 0; lane < values; lane += lanes) {
              ScanArgs args;
              args.value = x.data() + row * stride + lane;
              args.b = x.data() + row * stride + values;
              args.c = args.b + keys;
              args.x_stride = stride;
              args.step = step.data() + row;
              args.decay = decay.data() + row;
              args.head_stride = 1;
              args.skip = kSkip;
              args.out = out.data() + row * values + lane;
              args.out_stride = values;
              args.rows = end - row;
              args.keys = keys;
              args.lanes = lanes;
              args.before = row == 0 ? nullptr : before.data() + lane * keys;
              args.after = after.data() + lane * keys;
              table.scan(args);
            }
            before = after;
            row = end;
          }
          if (first.empty()) first = out, first_state = after;
          EXPECT_TRUE(same_recurrent_bits(out, first)) << device::isa_name(table.isa) << " " << values << " " << keys;
          EXPECT_TRUE(same_recurrent_bits(after, first_state))
              << device::isa_name(table.isa) << " " << values << " " << keys;
          EXPECT_LT(relative_error(out, want), 2e-6);
        }
      }
    }
  }
}

TEST(SelectiveScan, GivesTheSameBitsHoweverRowsAreCut) {
  constexpr std::int64_t kRows = 70;
  for (const std::int64_t values : {16, 48, 64}) {
    for (const std::int64_t keys : {2, 16, 64}) {
      const std::int64_t lanes = scan_lanes(values);
      const auto value = recurrent_floats(kRows * values, 1), step = recurrent_floats(kRows * values, 4, 6),
                 skip = recurrent_floats(values, 5), both = recurrent_floats(kRows * 2 * keys, 2);
      auto a = recurrent_floats(values * keys, 6);
      for (float& each : a) each = -std::abs(each) - 0.01f;
      std::vector<float> b, c;  // what writes and what reads, which lie side by side
      for (std::int64_t row = 0; row < kRows; ++row) {
        b.insert(b.end(), both.begin() + row * 2 * keys, both.begin() + (row * 2 + 1) * keys);
        c.insert(c.end(), both.begin() + (row * 2 + 1) * keys, both.begin() + (row * 2 + 2) * keys);
      }
      std::vector<float> want(value.size()), first, first_state;
      ref::selective_scan(value.data(), step.data(), b.data(), c.data(), a.data(), skip.data(), kRows, keys, values,
                          want.data());
      for (const Table& table : recurrent_tables()) {
        for (const auto& cuts : kCuts) {
          std::vector<float> out(value.size()), before, after(static_cast<std::size_t>(keys * values), -1);
          std::int64_t row = 0;
          for (const std::int64_t end : cuts) {
            for (std::int64_t lane = 0; lane < values; lane += lanes) {
              SelectiveScanArgs args;
              args.value = value.data() + row * values + lane;
              args.step = step.data() + row * values + lane;
              args.stride = values;
              args.b = both.data() + row * 2 * keys;
              args.c = args.b + keys;
              args.key_stride = 2 * keys;
              args.a = a.data() + lane * keys;
              args.skip = skip.data() + lane;
              args.out = out.data() + row * values + lane;
              args.rows = end - row;
              args.keys = keys;
              args.lanes = lanes;
              args.before = row == 0 ? nullptr : before.data() + lane * keys;
              args.after = after.data() + lane * keys;
              table.selective_scan(args);
            }
            before = after;
            row = end;
          }
          if (first.empty()) first = out, first_state = after;
          EXPECT_TRUE(same_recurrent_bits(out, first)) << device::isa_name(table.isa) << " " << values << " " << keys;
          EXPECT_TRUE(same_recurrent_bits(after, first_state))
              << device::isa_name(table.isa) << " " << values << " " << keys;
          EXPECT_LT(relative_error(out, want), 2e-6);
        }
      }
    }
  }
}

TEST(Gates, OfStatesAndOutputs) {
  for (double x = -110; x < 110; x += 0.037) {
    const auto at = static_cast<float>(x);
    const double softplus = x > 30 ? double{at} : std::log1p(std::exp(double{at}));
    EXPECT_NEAR(softplus_f32(at), softplus, 3e-7 * softplus + 1e-38) << x;
    EXPECT_NEAR(sigmoid_f32(at), 1 / (1 + std::exp(-double{at})), 1e-6 / (1 + std::exp(-double{at})) + 1e-38) << x;
  }
  for (const std::int64_t n : {1, 7, 32, 100}) {
    const auto x = recurrent_floats(n, 1), gate = recurrent_floats(n, 2, 4);
    std::vector<float> first;
    for (const Table& table : recurrent_tables()) {
      std::vector<float> out = x;
      table.sigmoid_mul(out.data(), gate.data(), n);
      if (first.empty()) first = out;
      EXPECT_TRUE(same_recurrent_bits(out, first));
      for (std::size_t i = 0; i < out.size(); ++i)
        EXPECT_NEAR(out[i], x[i] / (1 + std::exp(-double{gate[i]})), 1e-6 * std::abs(x[i]));
    }
  }
}

TEST(L2Norm, OfEachRow) {
  for (const std::int64_t cols : {1, 31, 32, 100, 128}) {
    const auto x = recurrent_floats(3 * cols, 1);
    std::vector<float> first;
    for (const Table& table : recurrent_tables()) {
      std::vector<float> out = x;
      table.l2_norm(out.data(), 3, cols, 1e-6f);
      if (first.empty()) first = out;
      EXPECT_TRUE(same_recurrent_bits(out, first));
      for (std::int64_t row = 0; row < 3; ++row) {
        double squares = 0;
        for (std::int64_t i = 0; i < cols; ++i)
          squares += std::pow(double{x[static_cast<std::size_t>(row * cols + i)]}, 2);
        const auto at = static_cast<std::size_t>(row * cols);
        EXPECT_NEAR(out[at], x[at] / std::sqrt(squares + 1e-6), 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::kernels
