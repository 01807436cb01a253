#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

namespace millrace::engine {
namespace {

using text::TokenId;

std::vector<float> random_logits(unsigned seed, std::size_t vocab) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

/// DRY: what each token costs that would lengthen a repetition of the history's end.
void repetitions_cost(std::vector<float>& logits, const std::vector<TokenId>& history, const SamplerOptions& options) {
  if (options.dry.multiplier <= 0) return;
  std::map<TokenId, float> cost;
  for (std::size_t next = 1; next < history.size(); ++next) {
    std::size_t n = 0;
    while (n < next && history[next - 1 - n] == history[history.size() - 1 - n]) ++n;
    if (n < static_cast<std::size_t>(options.dry.allowed_length)) continue;
    const float one =
        options.dry.multiplier *
        std::pow(options.dry.base, static_cast<float>(n) - static_cast<float>(options.dry.allowed_length));
    cost[history[next]] = std::max(cost[history[next]], one);
  }
  for (const auto& [id, one] : cost) logits[static_cast<std::size_t>(id)] -= one;
}

/// The distribution the header describes, worked out the slow way: every step on a full sorted copy, in double.
std::map<TokenId, double> expected_distribution(std::vector<float> logits, const std::vector<TokenId>& history,
                                                const SamplerOptions& options) {
  const std::size_t look_back = options.penalties.last_n < 0
                                    ? history.size()
                                    : std::min(history.size(), static_cast<std::size_t>(options.penalties.last_n));
  std::map<TokenId, int> counts;
  for (std::size_t i = history.size() - look_back; i < history.size(); ++i) ++counts[history[i]];
  for (const auto& [id, count] : counts) {
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / options.penalties.repeat : logit * options.penalties.repeat;
    logit -= options.penalties.presence + static_cast<float>(count) * options.penalties.frequency;
  }
  const std::vector<float> given = logits;
  repetitions_cost(logits, history, options);
  std::vector<std::pair<double, TokenId>> order;
  for (std::size_t i = 0; i < logits.size(); ++i) order.emplace_back(-logits[i], static_cast<TokenId>(i));
  std::sort(order.begin(), order.end());
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  const auto probability = [&](std::size_t i, double temperature) {
    double total = 0;
    for (const auto& [negative, id] : order) total += std::exp((order[0].first - negative) / temperature);
    return std::exp((order[0].first - order[i].first) / temperature) / total;
  };
  if (options.top_n_sigma > 0) {
    const double mean = std::accumulate(given.begin(), given.end(), 0.0) / static_cast<double>(given.size());
    double squares = 0;
    for (const float logit : given) squares += (logit - mean) * (logit - mean);
    const double least = -order[0].first - options.top_n_sigma * std::sqrt(squares / static_cast<double>(given.size()));
    std::erase_if(order, [&](const auto& one) { return -one.first < least; });
  }
  if (options.typical_p < 1) {
    double entropy = 0, held = 0;
    std::vector<std::pair<double, std::size_t>> surprise;
    for (std::size_t i = 0; i < order.size(); ++i) entropy -= probability(i, 1) * std::log(probability(i, 1));
    for (std::size_t i = 0; i < order.size(); ++i)
      surprise.emplace_back(std::abs(-std::log(probability(i, 1)) - entropy), i);
    std::sort(surprise.begin(), surprise.end());
    std::vector<std::pair<double, TokenId>> kept;
    for (const auto& [distance, i] : surprise) {
      if (held >= options.typical_p) break;
      held += probability(i, 1);
      kept.push_back(order[i]);
    }
    std::sort(kept.begin(), kept.end());
    order = kept;
  }
  if (options.top_p < 1) {
    double held = 0;
    std::size_t kept = 0;
    std::vector<double> p(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) p[i] = probability(i, 1);
    while (kept < order.size() && held < options.top_p) held += p[kept++];
    order.resize(std::max<std::size_t>(kept, 1));
  }
  if (options.min_p > 0) {
    const double best = probability(0, 1);
    std::size_t kept = 1;
    while (kept < order.size() && probability(kept, 1) >= options.min_p * best) ++kept;
    order.resize(kept);
  }
  if (options.xtc.probability == 1) {
    std::size_t likely = 0;
    while (likely < order.size() && probability(likely, 1) >= options.xtc.threshold) ++likely;
    if (likely > 1) order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(likely - 1));
  }
  std::map<TokenId, double> result;
  for (std::size_t i = 0; i < order.size(); ++i) result[order[i].second] = probability(i, options.temperature);
  return result;
}

struct Case {
  const char* name;
  SamplerOptions options;
};

class SamplerDistribution : public testing::TestWithParam<Case> {};

TEST_P(SamplerDistribution, AgreesWithTheSlowWay) {
  const SamplerOptions& options = GetParam().options;
  const std::vector<float> logits = random_logits(3, 50);
  const std::vector<TokenId> history = {4, 4, 4, 11, 30, 31, 4, 12, 49, 0};
  const auto expected = expected_distribution(logits, history, options);
  Sampler sampler(options);
  constexpr int kDraws = 40000;
  std::map<TokenId, int> drawn;
  for (int i = 0; i < kDraws; ++i) ++drawn[sampler.pick(logits, history)];
  for (const auto& [id, count] : drawn) EXPECT_TRUE(expected.contains(id)) << "token " << id << " was to be cut off";
  for (const auto& [id, p] : expected) {
    const double sigma = std::sqrt(p * (1 - p) / kDraws);
    EXPECT_NEAR(static_cast<double>(drawn[id]) / kDraws, p, 5 * sigma + 1e-9) << "token " << id;
  }
}

SamplerOptions plain() {
  SamplerOptions options;
  options.temperature = 1;
  options.top_k = 0;
  options.top_p = 1;
  options.min_p = 0;
  options.seed = 17;
  return options;
}
template <typename Change>
Case with(const char* name, Change change) {
  Case made{name, plain()};
  change(made.options);
  return made;
}

INSTANTIATE_TEST_SUITE_P(
    Options, SamplerDistribution,
    testing::Values(with("plain", [](SamplerOptions&) {}), with("hot", [](SamplerOptions& o) { o.temperature = 1.7f; }),
                    with("cold", [](SamplerOptions& o) { o.temperature = 0.4f; }),
                    with("top_k", [](SamplerOptions& o) { o.top_k = 5; }),
                    with("top_p", [](SamplerOptions& o) { o.top_p = 0.7f; }),
                    with("min_p", [](SamplerOptions& o) { o.min_p = 0.2f; }),
                    with("top_p_before_temperature", [](SamplerOptions& o) { o.top_p = 0.6f, o.temperature = 3; }),
                    with("min_p_before_temperature", [](SamplerOptions& o) { o.min_p = 0.3f, o.temperature = 3; }),
                    with("repeat", [](SamplerOptions& o) { o.penalties.repeat = 1.5f; }),
                    with("presence", [](SamplerOptions& o) { o.penalties.presence = 2; }),
                    with("frequency", [](SamplerOptions& o) { o.penalties.frequency = 0.8f; }),
                    with("look_back_4", [](SamplerOptions& o) { o.penalties.frequency = 1, o.penalties.last_n = 4; }),
                    with("look_back_all",
                         [](SamplerOptions& o) { o.penalties.frequency = 1, o.penalties.last_n = -1; }),
                    with("look_back_none", [](SamplerOptions& o) { o.penalties.repeat = 9, o.penalties.last_n = 0; }),
                    with("typical", [](SamplerOptions& o) { o.typical_p = 0.5f; }),
                    with("typical_among_k", [](SamplerOptions& o) { o.typical_p = 0.8f, o.top_k = 10; }),
                    with("sigma", [](SamplerOptions& o) { o.top_n_sigma = 1, o.temperature = 2; }),
                    with("xtc", [](SamplerOptions& o) { o.xtc.probability = 1, o.xtc.threshold = 0.05f; }),
                    with("xtc_of_one", [](SamplerOptions& o) { o.xtc.probability = 1, o.xtc.threshold = 0.45f; }),
                    with("dry", [](SamplerOptions& o) { o.dry.multiplier = 0.8f, o.dry.allowed_length = 1; }),
                    with("all",
                         [](SamplerOptions& o) {
                           o.top_k = 20, o.top_p = 0.9f, o.min_p = 0.05f, o.temperature = 0.8f;
                           o.penalties.repeat = 1.2f, o.penalties.presence = 0.3f, o.penalties.frequency = 0.1f;
                         })),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Sampler, GreedyTakesTheLargestAndOfEqualOnesTheFirst) {
  SamplerOptions options;
  options.temperature = 0;
  Sampler sampler(options);
  EXPECT_EQ(sampler.pick(std::vector<float>{1, 3, 2, 3}, {}), 1);
  EXPECT_EQ(sampler.pick(std::vector<float>{-5, -3, -9}, {}), 1);
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sampler.pick(std::vector<float>{nan, -inf, -7}, {}), 2);
}

TEST(Sampler, GreedyHeedsPenalties) {
  SamplerOptions options;
  options.temperature = 0;
  options.penalties.repeat = 2;
  Sampler sampler(options);
  const std::vector<TokenId> history = {1};
  EXPECT_EQ(sampler.pick(std::vector<float>{1, 3, 2}, history), 2);
  EXPECT_EQ(sampler.pick(std::vector<float>{-5, -3, -4}, history), 2) << "a negative logit is multiplied, not divided";
}

TEST(Sampler, TopKOfEqualLogitsKeepsTheSmallerIds) {
  SamplerOptions options = plain();
  options.top_k = 3;
  Sampler sampler(options);
  const std::vector<float> logits(10, 1.0f);
  for (int i = 0; i < 200; ++i) EXPECT_LT(sampler.pick(logits, {}), 3);
}

TEST(Sampler, SameSeedSameTokens) {
  const std::vector<float> logits = random_logits(5, 2000);
  SamplerOptions options;
  options.seed = 42;
  Sampler first(options), second(options);
  options.seed = 43;
  Sampler other(options);
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    const TokenId token = first.pick(logits, {});
    EXPECT_EQ(token, second.pick(logits, {}));
    different += token != other.pick(logits, {});
  }
  EXPECT_GT(different, 20);
}

TEST(Sampler, DrawsAreTheSameOnEveryMachine) {
  std::vector<float> logits(32);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7) % 32) * 0.25f;
  SamplerOptions options = plain();
  options.seed = 1;
  Sampler sampler(options);
  std::vector<TokenId> tokens;
  for (int i = 0; i < 12; ++i) tokens.push_back(sampler.pick(logits, {}));
  // Worked out by hand with another program.
  EXPECT_EQ(tokens, (std::vector<TokenId>{18, 22, 31, 13, 13, 22, 27, 17, 9, 26, 12, 18}));
}

TEST(Sampler, DryCostsTheLongestRepetitionAndStopsAtBreakers) {
  SamplerOptions options;
  options.temperature = 0;
  options.dry.multiplier = 1;
  options.dry.base = 2;
  const std::vector<TokenId> history = {1, 2, 3, 7, 1, 2};  // 3 would lengthen a repetition of two
  const std::vector<float> logits = {0, 0, 0, 5, 4.5f, 0, 0, 0};
  EXPECT_EQ(Sampler(options).pick(logits, history), 4);
  options.dry.breakers = {2};
  EXPECT_EQ(Sampler(options).pick(logits, history), 3);
  options.dry.breakers = {};
  options.dry.allowed_length = 3;
  EXPECT_EQ(Sampler(options).pick(logits, history), 3);
}

TEST(Sampler, MirostatKeepsTheSurpriseItAimsAt) {
  const std::vector<float> logits = random_logits(9, 3000);
  for (const float tau : {2.0f, 5.0f}) {
    SamplerOptions options = plain();
    options.mirostat.on = true;
    options.mirostat.tau = tau;
    Sampler sampler(options);
    EXPECT_EQ(sampler.logits_needed(), -1);
    double surprise = 0;
    constexpr int kDraws = 3000;
    std::map<TokenId, int> drawn;
    for (int i = 0; i < kDraws; ++i) ++drawn[sampler.pick(logits, {})];
    for (const auto& [id, count] : drawn) {
      const double share = static_cast<double>(count) / kDraws;
      surprise -= share * std::log2(share);
    }
    EXPECT_NEAR(surprise, tau, 1.0);
  }
}

TEST(Sampler, RulesBeyondAGpusDrawsAskForAllLogits) {
  const auto needed = [](auto change) {
    SamplerOptions options = plain();
    change(options);
    return Sampler(options).logits_needed();
  };
  EXPECT_EQ(needed([](SamplerOptions&) {}), 0);
  EXPECT_EQ(needed([](SamplerOptions& o) { o.typical_p = 0.9f; }), -1);
  EXPECT_EQ(needed([](SamplerOptions& o) { o.top_n_sigma = 1; }), -1);
  EXPECT_EQ(needed([](SamplerOptions& o) { o.xtc.probability = 0.1f; }), -1);
  EXPECT_EQ(needed([](SamplerOptions& o) { o.dry.multiplier = 0.1f; }), -1);
}

TEST(Sampler, HistoryOutsideTheVocabularyDoesNoHarm) {
  SamplerOptions options = plain();
  options.penalties.repeat = 2;
  Sampler sampler(options);
  const std::vector<TokenId> history = {-5, 3, 1 << 30};
  EXPECT_LT(sampler.pick(std::vector<float>{1, 2, 3, 4}, history), 4);
}

}  // namespace
}  // namespace millrace::engine
