// The vocabulary as a trie of the tokens' bytes, in depth-first order, so that a common prefix is checked once for all
// tokens that share it. 150,000 tokens take about 5 MB. Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace millrace::text {

class TokenTrie {
 public:
  /// Node 0 is the root. The children of a node follow it; its next sibling is at `after`.
  struct Node {
    std::uint32_t after = 0;
    std::uint32_t first_token = 0;  // index into tokens() of those that end here
    std::uint16_t token_count = 0;
    std::uint16_t depth = 0;  // bytes from the root
    std::uint8_t byte = 0;    // the byte on the edge to this node
    // On some path below, including this node's byte.
    bool comma = false, comma_after_quote = false;
  };

  static std::shared_ptr<const TokenTrie> make(const Tokenizer& tokenizer);

  const std::vector<Node>& nodes() const { return nodes_; }
  std::span<const TokenId> tokens_at(const Node& node) const {
    return std::span(tokens_).subspan(node.first_token, node.token_count);
  }
  std::string_view bytes_of(TokenId id) const;
  bool ends_text(TokenId id) const;
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  std::int32_t vocab_size() const { return static_cast<std::int32_t>(begins_.size()) - 1; }
  std::uint32_t longest_token() const { return longest_; }  // bytes
  std::uint64_t bytes() const;                              // of memory

 private:
  void add(std::uint32_t parent_depth, std::span<const TokenId> sorted);
  void find_commas(Node& node, std::uint32_t index);

  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;
  std::string pool_;
  std::vector<std::uint32_t> begins_;  // token id is pool_[begins_[id], begins_[id + 1])
  std::vector<TokenId> end_tokens_;
  std::uint32_t longest_ = 0;
};

}  // namespace millrace::text
