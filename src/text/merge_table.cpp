#include "text/merge_table.h"

#include <string>
#include <string_view>

#include "base/log.h"
#include "text/byte_alphabet.h"

namespace millrace::text {

MergeTable::Entry MergeTable::resolve(std::string_view left, std::string_view right, const Vocabulary& vocabulary,
                                      Spelling spelling, std::string& bytes) {
  bytes.clear();
  std::size_t middle = left.size();
  if (spelling == Spelling::plain) {
    bytes.append(left).append(right);
  } else {
    if (!append_alphabet_bytes(left, bytes)) return {-1, -1, -1};
    middle = bytes.size();
    if (!append_alphabet_bytes(right, bytes)) return {-1, -1, -1};
  }
  const std::string_view both = bytes;
  return {vocabulary.find(both.substr(0, middle)), vocabulary.find(both.substr(middle)), vocabulary.find(both)};
}

Expected<MergeTable> MergeTable::load(const modelfile::Model& model, const Vocabulary& vocabulary, Spelling spelling) {
  constexpr std::string_view kKey = "tokenizer.ggml.merges";
  MR_ASSIGN_OR_RETURN(const std::vector<std::string>* merges, metadata_array<std::string>(model, kKey));
  if (merges == nullptr) {
    return error(Code::not_found, "the file has no BPE merges ({}); use a GGUF that was made with its tokenizer", kKey);
  }
  MergeTable table;
  std::size_t capacity = 16;
  while (capacity * 2 < merges->size() * 3) capacity *= 2;
  table.slots_.assign(capacity, 0);
  table.entries_.reserve(merges->size());
  std::size_t impossible = 0;
  std::string bytes;
  for (const std::string& merge : *merges) {
    // A ' ' as the first character would belong to the token.
    const std::size_t space = merge.find(' ', 1);
    const Entry entry = space == std::string::npos
                            ? Entry{-1, -1, -1}
                            : resolve(std::string_view(merge).substr(0, space),
                                      std::string_view(merge).substr(space + 1), vocabulary, spelling, bytes);
    if (entry.left < 0 || entry.right < 0 || entry.result < 0) {
      ++impossible;
    } else {
      table.insert(entry);
    }
  }
  if (impossible > 0) {
    log::warn("{} of {} BPE merges name tokens that the vocabulary lacks; they are left out", impossible,
              merges->size());
  }
  return table;
}

std::size_t MergeTable::first_slot(TokenId left, TokenId right) const {
  const std::uint64_t key =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
  const std::uint64_t mixed = key * 0x9E3779B97F4A7C15u;
  return static_cast<std::size_t>((mixed ^ (mixed >> 32)) & (slots_.size() - 1));
}

void MergeTable::insert(const Entry& entry) {
  std::size_t slot = first_slot(entry.left, entry.right);
  for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
    const Entry& taken = entries_[slots_[slot] - 1];
    if (taken.left == entry.left && taken.right == entry.right) return;  // keep the first, whose rank is lower
  }
  entries_.push_back(entry);
  slots_[slot] = static_cast<std::uint32_t>(entries_.size());
}

Merge MergeTable::find(TokenId left, TokenId right) const {
  if (left < 0 || right < 0) return {kNoMerge, -1};
  for (std::size_t slot = first_slot(left, right); slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
    const Entry& entry = entries_[slots_[slot] - 1];
    if (entry.left == left && entry.right == right) return {slots_[slot] - 1, entry.result};
  }
  return {kNoMerge, -1};
}

}  // namespace millrace::text
