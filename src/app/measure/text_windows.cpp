#include "app/measure/text_windows.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "modelfile/file_io.h"

namespace millrace::measure {

using text::TokenId;

Expected<std::string> read_text(const std::string& path) {
  std::error_code absent;
  if (std::filesystem::is_directory(path, absent))
    return error(Code::invalid_argument, "{}: is a directory; give a file of text", path);
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t bytes, file.size());
  if (bytes == 0) return error(Code::invalid_argument, "{}: is empty; give a text of some pages", path);
  if (bytes > kMostTextBytes)
    return error(Code::invalid_argument, "{}: has {} MB of text; {} are enough to measure with", path, bytes >> 20,
                 kMostTextBytes >> 20);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  MR_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Expected<TextWindows> TextWindows::cut(const text::Tokenizer& tokenizer, std::string_view text,
                                       const WindowOptions& options) {
  if (options.context < 4) return error(Code::invalid_argument, "windows have 4 tokens at least (--ctx)");
  if (options.stride < 0 || options.stride >= options.context)
    return error(Code::invalid_argument, "a stride of {} leaves a window of {} no context; make it shorter",
                 options.stride, options.context);
  const TokenId bos = tokenizer.adds_bos() ? tokenizer.bos().value_or(-1) : -1;
  std::vector<TokenId> tokens = tokenizer.encode(text, text::Specials::as_text);
  if (bos >= 0) tokens.insert(tokens.begin(), bos);
  TextWindows windows(std::move(tokens), bos, options);
  windows.vocabulary_ = tokenizer.vocab_size();
  const std::int64_t beyond = std::ssize(windows.tokens_) - options.context;
  if (beyond < 0)
    return error(Code::invalid_argument,
                 "the text has {} tokens, less than a window of {}; give a longer one, or a smaller --ctx",
                 windows.tokens_.size(), options.context);
  windows.size_ = beyond / (options.stride > 0 ? options.stride : options.context) + 1;
  if (options.most > 0) windows.size_ = std::min(windows.size_, options.most);
  windows.options_.most = windows.size_;
  return windows;
}

std::vector<TokenId> TextWindows::prompt(std::int64_t window) const {
  const auto first = tokens_.begin() + begin(window);
  std::vector<TokenId> ids(first, first + options_.context - 1);
  if (bos_ >= 0) ids[0] = bos_;
  return ids;
}

TokenId TextWindows::target(std::int64_t window, std::int64_t i) const {
  return tokens_[static_cast<std::size_t>(begin(window) + options_.context - counted() + i)];
}

std::uint64_t TextWindows::hash() const {
  const std::int64_t used = begin(size_ - 1) + options_.context;
  const std::uint64_t of_tokens = XXH3_64bits(tokens_.data(), static_cast<std::size_t>(used) * sizeof(TokenId));
  return XXH3_64bits_withSeed(&bos_, sizeof(bos_), of_tokens);
}

std::uint64_t vocabulary_hash(const text::Tokenizer& tokenizer) {
  std::uint64_t hash = 0;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string bytes = tokenizer.token_bytes(id, true);
    hash = XXH3_64bits_withSeed(bytes.data(), bytes.size(), hash + 1);
  }
  return hash;
}

}  // namespace millrace::measure
