#include "kv/prompt_file.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

namespace millrace::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "prompt files are little-endian");

constexpr char kMagic[8] = {'M', 'R', 'P', 'R', 'O', 'M', 'P', 'T'};
constexpr std::uint32_t kVersion = 3;

struct Head {
  char magic[8];
  std::uint32_t version, dtype;
  std::int64_t group, layers, kv_heads, k_dim, v_dim, index_dim, window, block_tokens, tokens;
  std::uint64_t root[2], key[2];
  std::uint64_t checksum;  // of all there is, this field zero
};
static_assert(std::is_trivially_copyable_v<Head> && sizeof(Head) == 128);

Head head_of(const PromptBlock& block) {
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.dtype = static_cast<std::uint32_t>(block.shape.dtype);
  head.group = static_cast<std::int64_t>(block.group);
  head.layers = block.shape.layers;
  head.kv_heads = block.shape.kv_heads;
  head.k_dim = block.shape.k_dim;
  head.v_dim = block.shape.v_dim;
  head.index_dim = block.shape.index_dim;
  head.window = block.shape.window;
  head.block_tokens = kBlockTokens;
  head.tokens = std::ssize(block.tokens);
  head.root[0] = block.root.high;
  head.root[1] = block.root.low;
  head.key[0] = block.key.high;
  head.key[1] = block.key.low;
  return head;
}

PromptKey key_of(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

}  // namespace

std::string PromptKey::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

PromptKey root_key(std::string_view identity, const Layout& layout) {
  const std::string all = fmt::format("prompt {} ({}) {} {}", kVersion, layout.describe(), kBlockTokens, identity);
  return key_of(XXH3_128bits(all.data(), all.size()));
}

PromptKey next_key(const PromptKey& before, std::span<const Token> block) {
  MR_ASSERT(std::ssize(block) == kBlockTokens);
  std::array<std::byte, sizeof(PromptKey) + kBlockTokens * sizeof(Token)> all;
  std::memcpy(all.data(), &before, sizeof(before));
  std::memcpy(all.data() + sizeof(before), block.data(), block.size_bytes());
  return key_of(XXH3_128bits(all.data(), all.size()));
}

PromptKey file_key(const PromptKey& block, std::size_t group) {
  const std::uint64_t all[] = {block.high, block.low, group};
  return group == 0 ? block : key_of(XXH3_128bits(all, sizeof(all)));
}

std::size_t PromptBlock::head_bytes() const { return sizeof(Head) + tokens.size_bytes(); }

std::vector<std::byte> make_head(const PromptBlock& block, const std::byte* payload) {
  Head head = head_of(block);
  std::vector<std::byte> bytes(block.head_bytes());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), block.tokens.data(), block.tokens.size_bytes());
  head.checksum = XXH3_64bits_withSeed(payload, static_cast<std::size_t>(block.shape.block_bytes()),
                                       XXH3_64bits(bytes.data(), bytes.size()));
  std::memcpy(bytes.data(), &head, sizeof(head));
  return bytes;
}

Status check_file(const PromptBlock& block, const std::byte* head, const std::byte* payload) {
  if (std::memcmp(head, kMagic, sizeof(kMagic)) != 0) return error(Code::corrupt, "this is no KV block");
  const std::vector<std::byte> expected = make_head(block, payload);
  if (std::memcmp(head, expected.data(), expected.size()) == 0) return {};
  constexpr std::size_t described = offsetof(Head, checksum);
  const bool same_words =
      std::memcmp(head, expected.data(), described) == 0 &&
      std::memcmp(head + sizeof(Head), expected.data() + sizeof(Head), block.tokens.size_bytes()) == 0;
  return same_words ? error(Code::corrupt, "its bytes were damaged (checksum mismatch)")
                    : error(Code::corrupt, "it holds another prompt's KV, or was damaged");
}

}  // namespace millrace::kv
