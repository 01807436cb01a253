// The merges of a BPE vocabulary ("tokenizer.ggml.merges"), looked up by the two tokens that meet.
// Thread-safety: immutable once loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/merge.h"
#include "text/vocabulary.h"

namespace millrace::text {

/// The merges, by the ids of the two tokens that meet: 12 bytes and one slot of 4 each.
class MergeTable {
 public:
  /// Reads tokenizer.ggml.merges, spelled as the vocabulary is. A merge of tokens that the vocabulary lacks can never
  /// apply, and is skipped with a warning. Errors: not_found (no merges), corrupt (the key holds something else).
  static Expected<MergeTable> load(const modelfile::Model& model, const Vocabulary& vocabulary, Spelling spelling);

  /// The merge of `left` and `right`. Ids of -1 never merge.
  Merge find(TokenId left, TokenId right) const;

 private:
  struct Entry {
    TokenId left, right, result;
  };
  /// `bytes` is scratch memory.
  static Entry resolve(std::string_view left, std::string_view right, const Vocabulary& vocabulary, Spelling spelling,
                       std::string& bytes);
  void insert(const Entry& entry);
  std::size_t first_slot(TokenId left, TokenId right) const;

  std::vector<Entry> entries_;        // by rank
  std::vector<std::uint32_t> slots_;  // rank + 1, 0 is free; a power of two of slots, at most two thirds taken
};

}  // namespace millrace::text
