#include "text/constraint/thought_budget.h"

#include <gtest/gtest.h>

#include "text/constraint/grammar_constraint.h"
#include "text/constraint/schema.h"
#include "text/fixtures.h"

namespace millrace::text {
namespace {

std::vector<TokenId> budget_ids(const std::string& text) {
  return test::demo_tokenizer()->encode(text, Specials::parse);
}
TokenId budget_id(const std::string& text) { return budget_ids(text).at(0); }

/// A thought between control tokens, as most models have it.
BoundThought bound(std::int64_t tokens, bool opened = true) {
  return {.tokens = tokens,
          .opened = opened,
          .begin = "<|im_start|>",
          .end = "<|im_end|>",
          .closing = budget_ids("<|im_end|>"),
          .not_again = budget_id("<|im_start|>")};
}

std::shared_ptr<Constraint> alone(BoundThought thought) {
  return make_thought_budget(std::move(thought), nullptr, test::demo_tokenizer());
}

/// What may come next: no more than needs to be told apart.
std::vector<TokenId> allowed_next(Constraint& constraint, std::size_t most = 2) {
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(test::demo_tokenizer()->vocab_size() + 31) / 32);
  EXPECT_TRUE(constraint.mask(bits).ok());
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < bits.size() * 32 && ids.size() < most; ++i)
    if ((bits[i / 32] >> (i % 32) & 1u) != 0) ids.push_back(static_cast<TokenId>(i));
  return ids;
}
bool allows_next(Constraint& constraint, TokenId id) {
  const auto all = allowed_next(constraint, static_cast<std::size_t>(-1));
  return std::find(all.begin(), all.end(), id) != all.end();
}
void take(Constraint& constraint, const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) {
    ASSERT_TRUE(allows_next(constraint, id)) << id;
    ASSERT_TRUE(constraint.accept(id).ok());
  }
}

TEST(ThoughtBudget, SpentItEndsTheThought) {
  for (const std::int64_t tokens : {0, 1, 7}) {
    const auto constraint = alone(bound(tokens));
    for (std::int64_t i = 0; i < tokens; ++i) {
      EXPECT_EQ(allowed_next(*constraint).size(), 2u) << i;
      take(*constraint, {budget_id("a")});
    }
    EXPECT_EQ(allowed_next(*constraint), budget_ids("<|im_end|>")) << tokens;
    take(*constraint, budget_ids("<|im_end|>"));
    EXPECT_FALSE(allows_next(*constraint, budget_id("<|im_start|>"))) << "it would think again";
    take(*constraint, budget_ids("an answer as long as it likes"));
    EXPECT_TRUE(allows_next(*constraint, *test::demo_tokenizer()->eos()));
    EXPECT_FALSE(constraint->done());
  }
}

TEST(ThoughtBudget, AModelThatEndsItsThoughtIsLeftAlone) {
  const auto constraint = alone(bound(5));
  take(*constraint, budget_ids("a<|im_end|>"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(allows_next(*constraint, *test::demo_tokenizer()->eos()));
    take(*constraint, {budget_id("b")});
  }
}

TEST(ThoughtBudget, HoldsForAllThoughtsTogether) {
  const auto constraint = alone(bound(3, false));
  take(*constraint, budget_ids("so"));
  take(*constraint, {budget_id("<|im_start|>"), budget_id("a"), budget_id("b"), budget_id("<|im_end|>"), budget_id("c"),
                     budget_id("d"), budget_id("e"), budget_id("<|im_start|>"), budget_id("f")});
  EXPECT_EQ(allowed_next(*constraint), budget_ids("<|im_end|>"));
  take(*constraint, budget_ids("<|im_end|>c<|im_start|>"));
  EXPECT_EQ(allowed_next(*constraint), budget_ids("<|im_end|>"));
}

TEST(ThoughtBudget, ClosesWithAllTokensInTheirOrder) {
  BoundThought thought = bound(1);
  thought.end = "</x>";
  thought.closing = budget_ids("</x>\n<|im_start|>");
  ASSERT_GT(thought.closing.size(), 3u);
  const auto constraint = alone(thought);
  take(*constraint, {budget_id("a")});
  for (const TokenId id : thought.closing) {
    EXPECT_EQ(allowed_next(*constraint), std::vector{id});
    take(*constraint, {id});
  }
  EXPECT_EQ(allowed_next(*constraint).size(), 2u);
}

TEST(ThoughtBudget, WritesACharacterToItsEnd) {
  // A character that no token of the demo's has: each of its bytes is one.
  const auto bytes = budget_ids("\xF0\x90\x8D\x88");
  ASSERT_EQ(bytes.size(), 4u);
  const auto constraint = alone(bound(2));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(allowed_next(*constraint).size(), 2u) << i;
    take(*constraint, {bytes[i]});
  }
  EXPECT_EQ(allowed_next(*constraint), budget_ids("<|im_end|>"));
}

TEST(ThoughtBudget, AFormFollowsTheThought) {
  const auto trie = TokenTrie::make(*test::demo_tokenizer());
  const auto grammar = schema_grammar(R"({"const":7})");
  ASSERT_TRUE(grammar.ok());
  // Until the form is whole, no token may end the answer: the mark is of text.
  BoundThought thought = bound(2);
  thought.end = "</x>";
  thought.closing = budget_ids(thought.end);
  auto form = make_constraint_after({.opened = true, .end = thought.end}, make_constraint(*grammar, trie), trie,
                                    test::demo_tokenizer());
  const auto constraint = make_thought_budget(thought, std::move(form), test::demo_tokenizer());
  take(*constraint, {budget_id("a"), budget_id("b")});
  EXPECT_EQ(allowed_next(*constraint), std::vector{thought.closing.front()});
  take(*constraint, thought.closing);
  take(*constraint, budget_ids("7"));
  EXPECT_TRUE(constraint->done());
  EXPECT_EQ(constraint->shared_bytes(), trie->bytes());
}

}  // namespace
}  // namespace millrace::text
