// Perplexity and divergence of the bundled models, against plain references, and the same in every memory plan.
#include "app/measure/quality.h"

#include <cmath>

#include "measure/plain_llama.h"
#include "measure/support.h"

namespace millrace::measure {
namespace {

using namespace test;

TEST(TextWindows, SecondHalvesCount) {
  const auto tokenizer = tokenizer_of(draft_path());
  const std::vector<TokenId> tokens = tokenizer->encode(stories(), text::Specials::as_text);
  for (const std::int64_t context : {4, 33, 512}) {
    const TextWindows windows = windows_of(draft_path(), {.context = context});
    EXPECT_EQ(windows.size(), std::ssize(tokens) / context);
    EXPECT_EQ(windows.counted(), context - context / 2 - 1);
    for (const std::int64_t window : {std::int64_t{0}, windows.size() - 1}) {
      const std::vector<TokenId> prompt = windows.prompt(window);
      ASSERT_EQ(std::ssize(prompt), context - 1);
      for (std::int64_t i = 0; i < context - 1; ++i)
        EXPECT_EQ(prompt[static_cast<std::size_t>(i)], tokens[static_cast<std::size_t>(window * context + i)]);
      for (std::int64_t i = 0; i < windows.counted(); ++i)
        EXPECT_EQ(windows.target(window, i), tokens[static_cast<std::size_t>(window * context + context / 2 + 1 + i)]);
    }
  }
}

TEST(TextWindows, AStrideCountsEachTokenOnce) {
  const std::vector<TokenId> tokens = tokenizer_of(draft_path())->encode(stories(), text::Specials::as_text);
  const TextWindows windows = windows_of(draft_path(), {.context = 100, .stride = 30, .most = 5});
  EXPECT_EQ(windows.size(), 5);
  EXPECT_EQ(windows.rows(), 150);
  for (std::int64_t row = 0; row < windows.rows(); ++row)
    EXPECT_EQ(windows.target(row / 30, row % 30), tokens[static_cast<std::size_t>(70 + row)]);
}

TEST(TextWindows, AreTheTextsOwn) {
  const WindowOptions options{.context = 64, .most = 3};
  const TextWindows windows = windows_of(draft_path(), options);
  const auto tokenizer = tokenizer_of(draft_path());
  std::string other = stories();
  EXPECT_EQ(TextWindows::cut(*tokenizer, other + " And more.", options)->hash(), windows.hash());
  other[20] = other[20] == 'x' ? 'y' : 'x';
  EXPECT_NE(TextWindows::cut(*tokenizer, other, options)->hash(), windows.hash());
  EXPECT_FALSE(TextWindows::cut(*tokenizer, "Short.", options).ok());
  EXPECT_FALSE(TextWindows::cut(*tokenizer, other, {.context = 3}).ok());
  EXPECT_FALSE(TextWindows::cut(*tokenizer, other, {.context = 64, .stride = 64}).ok());
}

/// What the double-precision model says of the tokens that count.
std::vector<double> plain_losses(const TextWindows& windows, PlainLlama& plain) {
  std::vector<double> losses;
  for (std::int64_t window = 0; window < windows.size(); ++window) {
    const Rows logits = plain.logits(windows.prompt(window));
    for (std::int64_t i = 0; i < windows.counted(); ++i) {
      const auto& row = logits[static_cast<std::size_t>(std::ssize(logits) - windows.counted() + i)];
      double total = 0;
      for (const double logit : row) total += std::exp(logit);
      losses.push_back(std::log(total) - row[static_cast<std::size_t>(windows.target(window, i))]);
    }
  }
  return losses;
}

/// Whoever says nothing of --ram gets a run beside which other programs have room, too.
TEST(Quality, LogitsTakeAFractionOfWhatAModelTakes) {
  std::string text;
  while (text.size() < 2'000'000) text += stories();
  const auto tokenizer = tokenizer_of(draft_path());
  Expected<TextWindows> windows = TextWindows::cut(*tokenizer, text, {.context = 100'000, .most = 1});
  ASSERT_TRUE(windows.ok()) << windows.status().message();
  EngineOptions options;
  options.model.path = draft_path();
  ASSERT_TRUE(prepare_engine(*windows, options).ok());
  const std::int64_t row_bytes = windows->vocabulary() * static_cast<std::int64_t>(sizeof(float));
  ASSERT_GT(windows->counted() * row_bytes, 256 << 20) << "a window's rows were to be more";
  EXPECT_LE(options.demand.logit_rows * row_bytes, 128 << 20);
  EXPECT_GE(options.demand.logit_rows, 32);
}

TEST(Quality, PerplexityIsThatOfAPlainModel) {
  const TextWindows windows = windows_of(draft_path(), {.context = 65, .most = 3});
  PlainLlama plain(draft_path());
  const std::vector<double> losses = plain_losses(windows, plain);
  double mean = 0, squares = 0;
  for (const double loss : losses) mean += loss / static_cast<double>(losses.size());
  for (const double loss : losses) squares += (loss - mean) * (loss - mean);
  const auto count = static_cast<double>(losses.size());

  EngineOptions options = prepared(roomy(draft_path()), windows);
  options.kv.dtype = DType::f32;
  Quality quality(windows.rows(), 2, nullptr, nullptr);
  run(options, windows, quality);
  const Perplexity found = quality.perplexity();
  EXPECT_EQ(found.tokens, std::ssize(losses));
  EXPECT_NEAR(found.value, std::exp(mean), 1e-4 * std::exp(mean));
  EXPECT_NEAR(found.error, std::exp(mean) * std::sqrt(squares / count / (count - 1)), 1e-3 * found.error);
}

/// The demo's Q4_K_M held against itself with KV in eight bits, whose distributions differ a little.
struct Measured {
  Perplexity perplexity;
  Divergence divergence;
};

Measured measure_against(const EngineOptions& options, const TextWindows& windows, const std::string& reference) {
  auto reader = LogitsReader::open(reference);
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  if (!reader.ok()) return {};
  Quality quality(windows.rows(), 2, &*reader, nullptr);
  run(options, windows, quality);
  return {quality.perplexity(), quality.divergence()};
}

void save_reference(const EngineOptions& options, const TextWindows& windows, const std::string& path) {
  const auto tokenizer = tokenizer_of(options.model.path);
  auto writer = LogitsWriter::create(path, shape_of(windows, *tokenizer, tokenizer->vocab_size(), "demo"));
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  Quality quality(windows.rows(), 2, nullptr, &*writer);
  run(options, windows, quality);
  ASSERT_TRUE(writer->finish().ok());
}

TEST(Quality, IsTheSameInEveryPlanAndBatch) {
  const Folder folder;
  const TextWindows windows = windows_of(moe_path(), {.context = 96, .most = 7});
  EngineOptions options = prepared(roomy(moe_path()), windows);
  options.kv.dtype = DType::q8_0;
  save_reference(options, windows, folder / "reference");
  options.kv.dtype = DType::f16;
  const Measured expected = measure_against(options, windows, folder / "reference");
  EXPECT_GT(expected.divergence.mean, 1e-6);
  EXPECT_LT(expected.divergence.mean, 0.1);
  EXPECT_GE(expected.divergence.largest, expected.divergence.p999);
  EXPECT_GE(expected.divergence.p90, expected.divergence.median);
  EXPECT_GT(expected.divergence.same_top, 0.9);

  std::vector<EngineOptions> others(6, options);
  others[0].memory.ram_bytes = 6'500'000;  // experts from the disk
  others[0].demand.batch_tokens = 64;
  others[1].demand.max_sequences = 1;
  others[2].demand.batch_tokens = 41;
  others[2].demand.logit_rows = 3;
  others[3].device.threads = 1;
  others[4].memory.tile_bytes = 30'000;
  others[4].memory.ram_bytes = 9'000'000;
  others[5].device.best_isa = false;
  others[5].device.isa = kernels::Isa::avx2;
  for (std::size_t i = 0; i < others.size(); ++i) {
    SCOPED_TRACE(i);
    if (!others[i].device.best_isa && others[i].device.isa > device::best_isa()) continue;
    const Measured found = measure_against(others[i], windows, folder / "reference");
    EXPECT_EQ(found.perplexity.value, expected.perplexity.value);
    EXPECT_EQ(found.perplexity.error, expected.perplexity.error);
    EXPECT_EQ(found.divergence.mean, expected.divergence.mean);
    EXPECT_EQ(found.divergence.p99, expected.divergence.p99);
    EXPECT_EQ(found.divergence.rms_change, expected.divergence.rms_change);
  }
}

TEST(Quality, ARunAgainstItselfIsTheSame) {
  const Folder folder;
  const TextWindows windows = windows_of(moe_path(), {.context = 64, .most = 3});
  const EngineOptions options = prepared(roomy(moe_path()), windows);
  save_reference(options, windows, folder / "reference");
  const Measured found = measure_against(options, windows, folder / "reference");
  EXPECT_LT(found.divergence.largest, 1e-7);
  EXPECT_EQ(found.divergence.same_top, 1);
  EXPECT_LT(found.divergence.rms_change, 1e-6);
  EXPECT_NEAR(found.divergence.reference.value, found.perplexity.value, 1e-5);
}

/// The draft and the demo share a vocabulary: their divergence as the definition has it, from every logit.
TEST(Quality, DivergenceIsThatOfTheDefinition) {
  const Folder folder;
  const TextWindows windows = windows_of(moe_path(), {.context = 64, .most = 3});
  save_reference(prepared(roomy(moe_path()), windows), windows, folder / "reference");
  const auto collect = [&](const std::string& path) {
    std::vector<std::vector<float>> rows(static_cast<std::size_t>(windows.rows()));
    const auto engine = make(prepared(roomy(path), windows));
    const auto keep = [&](std::int64_t row, TokenId, std::span<const float> logits) -> Status {
      rows[static_cast<std::size_t>(row)].assign(logits.begin(), logits.end());
      return {};
    };
    EXPECT_TRUE(run_windows(*engine, windows, keep, {}).ok());
    return rows;
  };
  const auto p = collect(moe_path()), q = collect(draft_path());
  double mean = 0, same = 0;
  for (std::size_t r = 0; r < p.size(); ++r) {
    double of_p = 0, of_q = 0, divergence = 0;
    for (std::size_t i = 0; i < p[r].size(); ++i) of_p += std::exp(double{p[r][i]}), of_q += std::exp(double{q[r][i]});
    for (std::size_t i = 0; i < p[r].size(); ++i) {
      const double log_p = p[r][i] - std::log(of_p), log_q = q[r][i] - std::log(of_q);
      divergence += std::exp(log_p) * (log_p - log_q);
    }
    mean += divergence / static_cast<double>(p.size());
    const auto top = [](const std::vector<float>& row) {
      return std::max_element(row.begin(), row.end()) - row.begin();
    };
    same += top(p[r]) == top(q[r]) ? 1 : 0;
  }
  const Measured found = measure_against(prepared(roomy(draft_path()), windows), windows, folder / "reference");
  EXPECT_NEAR(found.divergence.mean, mean, 1e-4 * mean);
  EXPECT_NEAR(found.divergence.same_top, same / static_cast<double>(p.size()), 1e-12);
}

TEST(Quality, AnErrorOfTheCallerEndsTheRun) {
  const TextWindows windows = windows_of(draft_path(), {.context = 64, .most = 9});
  const auto engine = make(prepared(roomy(draft_path()), windows));
  const auto refuse = [](std::int64_t row, TokenId, std::span<const float>) {
    return row >= 70 ? error(Code::io_error, "the disk is full") : Status();
  };
  EXPECT_EQ(run_windows(*engine, windows, refuse, {}).code(), Code::io_error);
  const std::atomic<bool> stop = true;
  const auto take = [](std::int64_t, TokenId, std::span<const float>) { return Status(); };
  EXPECT_EQ(run_windows(*engine, windows, take, {.cancel = &stop}).code(), Code::cancelled);
  EXPECT_TRUE(run_windows(*engine, windows, take, {}).ok());
}

}  // namespace
}  // namespace millrace::measure
