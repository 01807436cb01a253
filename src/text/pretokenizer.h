// Splits text into the words that byte-level BPE works on, by the regular expressions of the model's family. Each
// pattern splits the pieces that the previous one produced; unmatched text becomes a separate piece. Thread-safety:
// immutable once made; split() may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::text {

/// A family of pre-tokenizers. Source: each model's published tokenizer.json, and llama.cpp for the names and for the
/// forms that its converted files expect.
struct PreTokenizerFamily {
  std::span<const std::string_view> names;     // of tokenizer.ggml.pre
  std::span<const std::string_view> patterns;  // PCRE2, applied in order
  struct Habits {
    bool whole_words_first = false;  // a word that is a token is used as such, without merges
    bool adds_bos = false;           // if the file does not specify it
    bool composes = false;           // text is converted to NFC first
  } habits = {};
};

/// The family of a name; nullptr if unknown. known_pretokenizers() lists them for an error message.
const PreTokenizerFamily* find_pretokenizer(std::string_view name);
std::string known_pretokenizers();
/// All families. No two behave alike.
std::span<const PreTokenizerFamily> pretokenizer_families();

class PreTokenizer {
 public:
  /// Errors: internal (PCRE2 refuses a built-in pattern).
  static Expected<PreTokenizer> make(const PreTokenizerFamily& family);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  /// Ends of the pieces of `text`, ascending; the last is text.size(). Bytes that are not UTF-8 count as symbols.
  void split(std::string_view text, std::vector<std::uint32_t>& ends) const;

 private:
  struct Patterns;
  explicit PreTokenizer(std::unique_ptr<Patterns> patterns);
  std::unique_ptr<Patterns> patterns_;
};

}  // namespace millrace::text
