#include "engine/choice.h"

#include <cmath>

#include "engine/support.h"

namespace millrace::engine {
namespace {

using test::TokenId;

/// Allows a fixed set of tokens, and is done after a number of them.
class OnlyThese final : public text::Constraint {
 public:
  OnlyThese(std::vector<TokenId> ids, int count) : ids_(std::move(ids)), left_(count) {}
  Status mask(std::span<std::uint32_t> bits) override {
    for (std::uint32_t& word : bits) word = 0;
    for (const TokenId id : ids_) bits[static_cast<std::size_t>(id / 32)] |= 1u << (id % 32);
    return {};
  }
  Status accept(TokenId) override {
    --left_;
    return {};
  }
  bool done() const override { return left_ <= 0; }

 private:
  std::vector<TokenId> ids_;
  int left_;
};

class ChoiceTest : public testing::Test {
 protected:
  void SetUp() override {
    engine_ = test::make(test::roomy(test::draft_path()));
    ASSERT_NE(engine_, nullptr);
    request_ = test::greedy(test::real_text(*engine_, 40), 8);
    request_.ignore_end_tokens = true;
  }
  std::unique_ptr<Engine> engine_;
  Request request_;
};

TEST_F(ChoiceTest, TellsLogProbabilitiesOfEveryToken) {
  std::vector<std::vector<float>> rows;
  std::vector<TokenChoice> choices;
  std::vector<std::vector<TokenChoice::Candidate>> likeliest;
  request_.on_logits = [&](std::int64_t, std::span<const float> row) { rows.emplace_back(row.begin(), row.end()); };
  request_.top_logprobs = 5;
  request_.on_token = [&](const TokenChoice& choice) {
    choices.push_back(choice);
    likeliest.emplace_back(choice.likeliest.begin(), choice.likeliest.end());
  };
  const Result result = engine_->run(request_);
  ASSERT_EQ(result.finish, Finish::length) << result.status.message();
  ASSERT_EQ(choices.size(), result.tokens.size());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(choices[i].id, result.tokens[i]);
    double total = 0;
    for (const float logit : rows[i]) total += std::exp(double{logit});
    const auto expected = [&](TokenId id) { return rows[i][static_cast<std::size_t>(id)] - std::log(total); };
    EXPECT_NEAR(choices[i].log_probability, expected(choices[i].id), 1e-4);
    ASSERT_EQ(likeliest[i].size(), 5u);
    EXPECT_EQ(likeliest[i][0].id, result.tokens[i]);  // greedy
    std::size_t likelier = 0;
    for (std::size_t id = 0; id < rows[i].size(); ++id) likelier += rows[i][id] > rows[i][likeliest[i][4].id] ? 1 : 0;
    EXPECT_EQ(likelier, 4u);
    for (const auto& candidate : likeliest[i]) EXPECT_NEAR(candidate.log_probability, expected(candidate.id), 1e-4);
  }
}

TEST_F(ChoiceTest, BiasMovesTheChoice) {
  const Result plain = engine_->run(request_);
  ASSERT_EQ(plain.finish, Finish::length);
  request_.logit_bias[plain.tokens[0]] = -100;
  const Result banned = engine_->run(request_);
  for (const TokenId id : banned.tokens) EXPECT_NE(id, plain.tokens[0]);
  request_.logit_bias = {{7, 100.0f}};
  EXPECT_EQ(engine_->run(request_).tokens, std::vector<TokenId>(8, 7));
}

TEST_F(ChoiceTest, ConstraintBindsGreedyAndDrawnTokens) {
  for (const float temperature : {0.0f, 1.5f}) {
    request_.sampler.temperature = temperature;
    request_.constraint = std::make_shared<OnlyThese>(std::vector<TokenId>{33, 90, 91}, 4);
    const Result result = engine_->run(request_);
    EXPECT_EQ(result.finish, Finish::stop) << result.status.message();
    ASSERT_EQ(result.tokens.size(), 4u);
    for (const TokenId id : result.tokens) EXPECT_TRUE(id == 33 || id == 90 || id == 91) << id;
  }
}

TEST_F(ChoiceTest, NothingAllowedIsAnErrorOfTheRequest) {
  request_.constraint = std::make_shared<OnlyThese>(std::vector<TokenId>{}, 4);
  const Result result = engine_->run(request_);
  EXPECT_EQ(result.finish, Finish::error);
  EXPECT_NE(result.status.message().find("schema"), std::string::npos);
  request_.constraint = nullptr;
  EXPECT_EQ(engine_->run(request_).finish, Finish::length);
}

}  // namespace
}  // namespace millrace::engine
