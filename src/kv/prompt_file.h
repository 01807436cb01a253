// The name and format of the file of a KV block.
//
// A block's key hashes the key before it and its own tokens; the first one goes on from root_key(), which stands for
// the model, the KV's layout and the numerics of who computed. A file's key is that of its block and group. The key
// finds the file; it proves nothing: the file repeats everything it was computed from, all tokens from the first on,
// and is used only where all of that is equal.
//
// Little-endian: a head of fixed size, the tokens [0, end of the block) as int32, the block's bytes. The reader
// compares everything in a file with what it expects, and never takes a length from a file. Thread-safety: pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/prefix_cache.h"
#include "kv/sequence.h"

namespace millrace::kv {

struct PromptKey {
  std::uint64_t high = 0, low = 0;
  std::string hex() const;  // 32 digits
  friend bool operator==(const PromptKey&, const PromptKey&) = default;
};

/// `identity`: what must be the same so that KV is equal in every bit, beside its layout.
PromptKey root_key(std::string_view identity, const Layout& layout);
/// REQUIRES: kBlockTokens tokens.
PromptKey next_key(const PromptKey& before, std::span<const Token> block);
/// The key of a group's file of a block.
PromptKey file_key(const PromptKey& block, std::size_t group);

/// The expected contents of a file.
struct PromptBlock {
  Group shape;
  std::size_t group = 0;          // its number in the layout
  PromptKey root, key;            // the key of the file
  std::span<const Token> tokens;  // from the first of the prompt to the last of the block
  std::size_t head_bytes() const;
  std::uint64_t file_bytes() const { return head_bytes() + static_cast<std::uint64_t>(shape.block_bytes()); }
};

/// Head and tokens as they stand before `payload`, the block's bytes.
std::vector<std::byte> make_head(const PromptBlock& block, const std::byte* payload);

/// Errors: corrupt, unless `head` is make_head(block, payload).
/// REQUIRES: head_bytes() and shape.block_bytes() bytes.
Status check_file(const PromptBlock& block, const std::byte* head, const std::byte* payload);

}  // namespace millrace::kv
