// A file of lines, read front to back with one line in memory at a time.
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/file.h"
#include "base/status.h"

namespace millrace::batch {

/// A longer line is not kept: what holds it is no request.
constexpr std::size_t kMostLineBytes = 64u << 20;

struct Line {
  std::string_view text;     // without its end; valid until the next call. Empty where `too_long`
  std::int64_t number = 0;   // from 1
  std::uint64_t offset = 0;  // of its first byte
  bool ended = false;        // by a line feed; false for a last line without one
  bool too_long = false;
  bool blank() const { return !too_long && text.find_first_not_of(" \t\r") == std::string_view::npos; }
};

class LineReader {
 public:
  /// Errors: not_found, invalid_argument (a folder, a pipe: what cannot be read twice).
  static Expected<LineReader> open(const std::string& path, std::size_t most_line_bytes = kMostLineBytes);
  /// Reads the file from its first byte on. It outlives the reader.
  LineReader(const os::File& file, std::string path, std::size_t most_line_bytes = kMostLineBytes);

  /// The next line; nothing at the end. Errors: io_error.
  Expected<std::optional<Line>> next();
  const std::string& path() const { return path_; }

 private:
  Expected<bool> fill();  // false at the end of the file

  std::unique_ptr<const os::File> own_;
  const os::File* file_;
  std::string path_;
  std::size_t most_line_bytes_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what of the buffer is not taken yet
  std::uint64_t offset_ = 0;         // in the file, of begin_
  std::int64_t number_ = 0;
  std::string line_;
};

}  // namespace millrace::batch
