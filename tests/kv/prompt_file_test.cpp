#include "kv/prompt_file.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kv/small_layout.h"

namespace millrace::kv {
namespace {

const Group& kGroup = kSmall.groups()[0];

std::vector<Token> text(std::int64_t count, Token from = 0) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

struct PromptFile : testing::Test {
  std::vector<Token> tokens = text(2 * kBlockTokens);
  PromptBlock block{kGroup, 0, root_key("a model", kSmall), {7, 8}, tokens};
  std::vector<std::byte> payload{static_cast<std::size_t>(kGroup.block_bytes()), std::byte{3}};
  std::vector<std::byte> head = make_head(block, payload.data());

  Code checked(const PromptBlock& as) const {
    return as.head_bytes() == head.size() ? check_file(as, head.data(), payload.data()).code() : Code::corrupt;
  }
};

TEST_F(PromptFile, IsBelievedAsItWasMade) {
  EXPECT_EQ(checked(block), Code::ok);
  EXPECT_EQ(block.file_bytes(), 128u + 2 * 64 * 4 + static_cast<std::uint64_t>(kGroup.block_bytes()));
}

TEST_F(PromptFile, EveryBitOfItCounts) {
  for (std::vector<std::byte>* part : {&head, &payload}) {
    for (std::byte& byte : *part) {
      byte ^= std::byte{0x10};
      ASSERT_EQ(checked(block), Code::corrupt) << &byte - part->data();
      byte ^= std::byte{0x10};
    }
  }
  EXPECT_EQ(checked(block), Code::ok);
}

TEST_F(PromptFile, IsNothingForAnotherPromptModelOrShape) {
  PromptBlock other = block;
  const std::vector<Token> elsewhere = text(2 * kBlockTokens, 1);
  other.tokens = elsewhere;
  EXPECT_EQ(checked(other), Code::corrupt);
  other = block;
  other.root = root_key("another model", kSmall);
  EXPECT_EQ(checked(other), Code::corrupt);
  other = block;
  other.shape.dtype = DType::f32;
  other.shape.k_dim = other.shape.v_dim = 4;  // the same bytes
  EXPECT_EQ(other.file_bytes(), block.file_bytes());
  EXPECT_EQ(checked(other), Code::corrupt);
  other = block;
  other.shape.window = 100;
  EXPECT_EQ(checked(other), Code::corrupt);
  other = block;
  other.group = 1;
  EXPECT_EQ(checked(other), Code::corrupt);
}

TEST(PromptKey, HangsOnEverythingBefore) {
  const std::vector<Token> tokens = text(2 * kBlockTokens);
  const std::span<const Token> one = std::span(tokens).first(kBlockTokens), two = std::span(tokens).last(kBlockTokens);
  const PromptKey root = root_key("a model", kSmall);
  EXPECT_EQ(next_key(root, one), next_key(root, one));
  EXPECT_NE(next_key(root, one), next_key(root, two));
  EXPECT_NE(next_key(next_key(root, one), two), next_key(next_key(root, two), two));
  EXPECT_NE(root_key("a model", equal_layers(2, 1, 8, DType::f32)), root);
  EXPECT_NE(root_key("a model", with_window(100)), root_key("a model", with_window(101)));
  EXPECT_EQ(file_key(root, 0), root);
  EXPECT_NE(file_key(root, 1), file_key(root, 0));
  EXPECT_NE(file_key(root, 1), file_key(root, 2));
  EXPECT_NE(root_key("a mode", kSmall), root);
  EXPECT_EQ(root.hex().size(), 32u);
}

}  // namespace
}  // namespace millrace::kv
