#include "app/batch/lines.h"

#include <cstring>
#include <span>
#include <utility>

namespace millrace::batch {

constexpr std::size_t kBufferBytes = 64 << 10;

Expected<LineReader> LineReader::open(const std::string& path, std::size_t most_line_bytes) {
  auto file = os::File::open(path, {.wait = false});  // a pipe would wait for its writer
  if (!file.ok()) return error(Code::not_found, "{}: cannot open this file: {}", path, file.status().message());
  const auto info = file->info();
  if (!info.ok() || !info->is_regular())
    return error(Code::invalid_argument, "{}: is not a regular file; write the requests into one", path);
  auto own = std::make_unique<const os::File>(std::move(*file));
  LineReader reader(*own, path, most_line_bytes);
  reader.own_ = std::move(own);
  return reader;
}

LineReader::LineReader(const os::File& file, std::string path, std::size_t most_line_bytes)
    : file_(&file), path_(std::move(path)), most_line_bytes_(most_line_bytes), buffer_(kBufferBytes) {}

Expected<bool> LineReader::fill() {
  begin_ = end_ = 0;
  const auto got = file_->read_at(offset_, std::as_writable_bytes(std::span(buffer_)));
  if (!got.ok()) return error(Code::io_error, "{}: cannot read on: {}", path_, got.status().message());
  end_ = *got;
  return end_ > 0;
}

Expected<std::optional<Line>> LineReader::next() {
  line_.clear();
  if (line_.capacity() > kBufferBytes) line_.shrink_to_fit();
  Line line;
  line.number = ++number_;
  line.offset = offset_;
  while (!line.ended) {
    if (begin_ == end_) {
      MR_ASSIGN_OR_RETURN(const bool more, fill());
      if (!more) break;
    }
    const char* const from = buffer_.data() + begin_;
    const void* const feed = std::memchr(from, '\n', end_ - begin_);
    const std::size_t bytes =
        feed != nullptr ? static_cast<std::size_t>(static_cast<const char*>(feed) - from) : end_ - begin_;
    line.too_long = line.too_long || line_.size() + bytes > most_line_bytes_;
    if (line.too_long)
      line_.clear();
    else
      line_.append(from, bytes);
    line.ended = feed != nullptr;
    begin_ += bytes + (line.ended ? 1 : 0);
    offset_ += bytes + (line.ended ? 1 : 0);
  }
  if (!line.ended && offset_ == line.offset) return std::optional<Line>();
  line.text = line_;
  return std::optional<Line>(line);
}

}  // namespace millrace::batch
