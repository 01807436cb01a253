// A reference run's distributions in a file, to hold other runs of the same text against: 16 bits a logit.
//
// Form (little-endian): a header of 256 bytes, then a row for each token that counts, all of one length, in the order
// of the text.
//
//   header  "MRLOGIT1", u32 vocabulary, u32 0, i64 window, stride, windows, rows; u64 hashes of tokens and vocabulary;
//           the model's name (at most 127 bytes and zeros); ... u64 XXH3 of the 248 bytes before it
//   row     u64 XXH3 of what follows; f32 top, range, right; u32 0; u16 [vocabulary] codes
//
// Code c of a row stands for the log-probability top - range * (c / 65535)^2: steps are fine where a distribution has
// its mass (a millionth of a nat beside the likeliest token) and coarse where it has none. Tokens less likely than
// exp(-40) of the top are kept as that. `right` is the log-probability of the token that came, exactly.
// Rows are written and read one by one: memory is a row's. A file appears under its name when it is whole.
// Thread-safety: one thread an object.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/measure/distribution.h"
#include "app/measure/text_windows.h"
#include "base/status.h"
#include "modelfile/file_io.h"

namespace millrace::measure {

/// What a file is of; runs that agree in all but the model can be held against each other.
struct LogitsShape {
  std::int64_t vocabulary = 0;  // logits of a row
  std::int64_t context = 0, stride = 0, windows = 0, rows = 0;
  std::uint64_t tokens_hash = 0, vocabulary_hash = 0;
  std::string model;  // its name, for people

  std::uint64_t row_bytes() const;
  std::uint64_t file_bytes() const;
};
/// `vocabulary`: of the logits, which may be padded beyond the tokenizer's.
LogitsShape shape_of(const TextWindows& windows, const text::Tokenizer& tokenizer, std::int64_t vocabulary,
                     std::string model);

class LogitsWriter {
 public:
  /// Errors: io_error (a full disk, with how much is needed), invalid_argument (a shape of no rows).
  static Expected<LogitsWriter> create(const std::string& path, const LogitsShape& shape);
  LogitsWriter(LogitsWriter&&) noexcept = default;
  LogitsWriter& operator=(LogitsWriter&&) = delete;
  ~LogitsWriter();  // a file that is not finished goes

  /// Rows may come in any order. REQUIRES: 0 <= row < rows, finite logits [vocabulary].
  Status write(std::int64_t row, std::span<const float> logits, const LogSum& sum, text::TokenId right);
  /// Errors: io_error; invalid_argument (rows are missing).
  Status finish();

 private:
  LogitsWriter(std::string path, LogitsShape shape, modelfile::File file);

  std::string path_;
  LogitsShape shape_;
  modelfile::File file_;
  std::int64_t written_ = 0;
  std::vector<std::byte> row_;
};

class LogitsReader {
 public:
  /// Errors: not_found, io_error, corrupt (no such file, or one that was cut), unsupported (a later version's).
  static Expected<LogitsReader> open(const std::string& path);

  const LogitsShape& shape() const { return shape_; }
  /// Errors: invalid_argument (of another text, vocabulary or window: says which, and what to do).
  Status check_like(const LogitsShape& run) const;

  /// log_p: [vocabulary]; right: the log-probability of the token that came. Errors: io_error, corrupt.
  Status read(std::int64_t row, std::span<float> log_p, float& right);

 private:
  LogitsReader(std::string path, modelfile::File file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  LogitsShape shape_;
  modelfile::File file_;
  std::vector<std::byte> row_;
};

}  // namespace millrace::measure
