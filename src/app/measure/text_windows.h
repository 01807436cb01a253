// A text as models are measured on it: its tokens cut into windows of one length, each with BOS in its first place
// where the model wants that, and which of a window's tokens count. The cut is that of llama.cpp's llama-perplexity, so
// that figures can be compared: windows lie side by side, and of each the second half counts, whose tokens have at
// least half a window of context. With a stride windows begin so many tokens apart, and of each the last `stride`
// count. Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace millrace::measure {

struct WindowOptions {
  std::int64_t context = 512;  // tokens of a window, BOS among them
  std::int64_t stride = 0;     // 0: side by side
  std::int64_t most = 0;       // windows, from the text's beginning; 0: all whole ones
};

/// A longer text would tell no more, and take its room from the model's.
constexpr std::uint64_t kMostTextBytes = 16u << 20;
/// Errors: not_found, io_error, invalid_argument (empty, or too long).
Expected<std::string> read_text(const std::string& path);

class TextWindows {
 public:
  /// Errors: invalid_argument (the text has less than a window; a stride that no window has; a context below 4).
  static Expected<TextWindows> cut(const text::Tokenizer& tokenizer, std::string_view text,
                                   const WindowOptions& options);

  const WindowOptions& options() const { return options_; }
  std::int64_t size() const { return size_; }
  /// Tokens of a window that count, which are its last; and of all windows.
  std::int64_t counted() const { return options_.stride > 0 ? options_.stride : options_.context - first_target(); }
  std::int64_t rows() const { return size_ * counted(); }
  /// What a model is given of a window: all but the last token. Logits of its last counted() positions are what counts.
  std::vector<text::TokenId> prompt(std::int64_t window) const;
  /// The token that the logits of the i-th of these positions should tell. 0 <= i < counted().
  text::TokenId target(std::int64_t window, std::int64_t i) const;
  std::int64_t vocabulary() const { return vocabulary_; }  // of the tokenizer
  /// Of every token that a window has, as it has it.
  std::uint64_t hash() const;

 private:
  TextWindows(std::vector<text::TokenId> tokens, text::TokenId bos, const WindowOptions& options)
      : options_(options), bos_(bos), tokens_(std::move(tokens)) {}
  std::int64_t first_target() const { return options_.context / 2 + 1; }
  std::int64_t begin(std::int64_t window) const {
    return window * (options_.stride > 0 ? options_.stride : options_.context);
  }

  WindowOptions options_;
  text::TokenId bos_;  // -1: windows begin as the text goes
  std::vector<text::TokenId> tokens_;
  std::int64_t size_ = 0, vocabulary_ = 0;
};

/// Of the bytes that each token stands for: vocabularies of one hash give ids the same meaning.
std::uint64_t vocabulary_hash(const text::Tokenizer& tokenizer);

}  // namespace millrace::measure
