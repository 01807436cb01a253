// What importance matrices are made of, against a plain model and against what must add up.
#include "app/measure/input_sums.h"

#include <cmath>
#include <numeric>

#include "measure/plain_llama.h"
#include "measure/support.h"

namespace millrace::measure {
namespace {

using namespace test;

/// The sums of a run of these windows.
InputSums sums_of(EngineOptions options, const TextWindows& windows) {
  InputSums sums(opened(options.model.path));
  options.watch.inputs = &sums;
  const auto engine = make(options);
  if (engine == nullptr) return sums;
  sums.bind(engine->model().units());
  const auto ignore = [](std::int64_t, TokenId, std::span<const float>) { return Status(); };
  const Status status = run_windows(*engine, windows, ignore, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return sums;
}

const InputSum& named(const InputSums& sums, const std::string& name) {
  for (const InputSum* sum : sums.seen())
    if (sum->name == name) return *sum;
  ADD_FAILURE() << name << " saw nothing";
  static const InputSum none;
  return none;
}

double total(const InputSum& sum) { return std::accumulate(sum.squares.begin(), sum.squares.end(), 0.0); }
std::int64_t rows(const InputSum& sum) {
  return std::accumulate(sum.counts.begin(), sum.counts.end(), std::int64_t{0});
}

TEST(InputSums, AreThoseOfAPlainModel) {
  const TextWindows windows = windows_of(draft_path(), {.context = 33, .most = 2});
  EngineOptions options = prepared(roomy(draft_path()), windows);
  options.kv.dtype = DType::f32;
  const InputSums sums = sums_of(options, windows);
  PlainLlama plain(draft_path());
  for (std::int64_t window = 0; window < windows.size(); ++window) plain.logits(windows.prompt(window));
  std::size_t compared = 0;
  for (const InputSum* sum : sums.seen()) {
    SCOPED_TRACE(sum->name);
    if (sum->name == "token_embd.weight") continue;  // the head sees the rows that count alone
    const std::vector<double>& expected = plain.squares.at(sum->name);
    ASSERT_EQ(sum->squares.size(), expected.size());
    EXPECT_EQ(sum->counts, std::vector<std::int64_t>{2 * 32});
    for (std::size_t c = 0; c < expected.size(); ++c)
      EXPECT_NEAR(sum->squares[c], expected[c], 1e-3 * expected[c] + 1e-9) << c;
    ++compared;
  }
  EXPECT_EQ(compared, plain.squares.size() - 1);
  EXPECT_EQ(rows(named(sums, "token_embd.weight")), windows.rows());
}

/// Each row goes to two experts, and each of them is multiplied by what the router was.
TEST(InputSums, OfExpertsAddUpToTheRouters) {
  const TextWindows windows = windows_of(moe_path(), {.context = 64, .most = 3});
  const InputSums sums = sums_of(prepared(roomy(moe_path()), windows), windows);
  for (int layer = 0; layer < 6; ++layer) {
    const std::string name = "blk." + std::to_string(layer) + ".ffn_";
    const InputSum& router = named(sums, name + "gate_inp.weight");
    const InputSum& gate = named(sums, name + "gate_exps.weight");
    EXPECT_EQ(rows(router), 3 * 63);
    EXPECT_EQ(gate.matrices, 16);
    EXPECT_EQ(rows(gate), 2 * rows(router));
    for (std::int64_t c = 0; c < gate.cols; ++c) {
      double of_experts = 0;
      for (std::int64_t e = 0; e < gate.matrices; ++e)
        of_experts += gate.squares[static_cast<std::size_t>(e * gate.cols + c)];
      EXPECT_NEAR(of_experts, 2 * router.squares[static_cast<std::size_t>(c)], 1e-9 * of_experts);
    }
    EXPECT_EQ(named(sums, name + "up_exps.weight").squares, gate.squares);
    EXPECT_EQ(named(sums, name + "down_exps.weight").counts, gate.counts);
    EXPECT_GT(total(named(sums, name + "down_exps.weight")), 0);
  }
}

TEST(InputSums, AreTheSameHoweverThePassesAreCut) {
  const TextWindows windows = windows_of(moe_path(), {.context = 64, .most = 3});
  const EngineOptions options = prepared(roomy(moe_path()), windows);
  const InputSums expected = sums_of(options, windows);
  std::vector<EngineOptions> others(4, options);
  others[0].demand.batch_tokens = 17;
  others[1].demand.max_sequences = 1;
  others[2].device.threads = 1;
  others[3].memory.ram_bytes = 6'500'000;
  others[3].memory.tile_bytes = 30'000;  // experts of several tiles
  for (std::size_t i = 0; i < others.size(); ++i) {
    SCOPED_TRACE(i);
    const InputSums found = sums_of(others[i], windows);
    ASSERT_EQ(found.seen().size(), expected.seen().size());
    for (std::size_t s = 0; s < expected.seen().size(); ++s) {
      const InputSum &a = *found.seen()[s], &b = *expected.seen()[s];
      EXPECT_EQ(a.counts, b.counts) << b.name;
      for (std::size_t c = 0; c < b.squares.size(); ++c)
        EXPECT_NEAR(a.squares[c], b.squares[c], 1e-12 * b.squares[c]) << b.name;
    }
  }
}

}  // namespace
}  // namespace millrace::measure
