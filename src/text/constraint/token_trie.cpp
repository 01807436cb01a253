#include "text/constraint/token_trie.h"

#include <algorithm>

namespace millrace::text {

namespace {
constexpr std::size_t kLongestToken = 1024;  // longer ones are never picked
}

std::string_view TokenTrie::bytes_of(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  const auto i = static_cast<std::size_t>(id);
  return std::string_view(pool_).substr(begins_[i], begins_[i + 1] - begins_[i]);
}

bool TokenTrie::ends_text(TokenId id) const { return std::binary_search(end_tokens_.begin(), end_tokens_.end(), id); }

std::uint64_t TokenTrie::bytes() const {
  return nodes_.size() * sizeof(Node) + tokens_.size() * sizeof(TokenId) + pool_.size() +
         begins_.size() * sizeof(std::uint32_t);
}

/// REQUIRES: its children have theirs.
void TokenTrie::find_commas(Node& node, std::uint32_t index) {
  bool below = false;
  for (std::uint32_t child = index + 1; child < node.after; child = nodes_[child].after) {
    below = below || nodes_[child].comma;
    node.comma_after_quote = node.comma_after_quote || nodes_[child].comma_after_quote;
  }
  node.comma = below || node.byte == ',';
  node.comma_after_quote = node.comma_after_quote || (below && node.byte == '"');
}

/// `sorted`: tokens whose first `depth` bytes are those of the last node, which is still open.
void TokenTrie::add(std::uint32_t depth, std::span<const TokenId> sorted) {
  const std::size_t node = nodes_.size() - 1;
  std::size_t i = 0;
  nodes_[node].first_token = static_cast<std::uint32_t>(tokens_.size());
  for (; i < sorted.size() && bytes_of(sorted[i]).size() == depth; ++i) tokens_.push_back(sorted[i]);
  nodes_[node].token_count = static_cast<std::uint16_t>(std::min<std::size_t>(i, UINT16_MAX));
  while (i < sorted.size()) {
    const char byte = bytes_of(sorted[i])[depth];
    std::size_t end = i + 1;
    while (end < sorted.size() && bytes_of(sorted[end])[depth] == byte) ++end;
    Node child;
    child.depth = static_cast<std::uint16_t>(depth + 1);
    child.byte = static_cast<std::uint8_t>(byte);
    nodes_.push_back(child);
    add(depth + 1, sorted.subspan(i, end - i));
    i = end;
  }
  nodes_[node].after = static_cast<std::uint32_t>(nodes_.size());
  find_commas(nodes_[node], static_cast<std::uint32_t>(node));
}

std::shared_ptr<const TokenTrie> TokenTrie::make(const Tokenizer& tokenizer) {
  auto trie = std::make_shared<TokenTrie>();
  std::vector<TokenId> sorted;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    trie->begins_.push_back(static_cast<std::uint32_t>(trie->pool_.size()));
    if (tokenizer.ends_generation(id)) {
      trie->end_tokens_.push_back(id);
      continue;
    }
    const std::string bytes = tokenizer.token_bytes(id);
    if (bytes.empty() || bytes.size() > kLongestToken) continue;
    trie->pool_ += bytes;
    trie->longest_ = std::max(trie->longest_, static_cast<std::uint32_t>(bytes.size()));
    sorted.push_back(id);
  }
  trie->begins_.push_back(static_cast<std::uint32_t>(trie->pool_.size()));
  std::sort(sorted.begin(), sorted.end(), [&](TokenId a, TokenId b) {
    const std::string_view x = trie->bytes_of(a), y = trie->bytes_of(b);
    return x != y ? x < y : a < b;
  });
  trie->nodes_.emplace_back();
  trie->add(0, sorted);
  trie->nodes_.shrink_to_fit();
  return trie;
}

}  // namespace millrace::text
