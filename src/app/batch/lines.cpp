#include "app/batch/lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace millrace::batch {

constexpr std::size_t kBufferBytes = 64 << 10;

Expected<LineReader> LineReader::open(const std::string& path, std::size_t most_line_bytes) {
  storage::ScopedFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe would wait for its writer
  if (!file.open()) return error(Code::not_found, "{}: cannot open this file: {}", path, std::strerror(errno));
  struct stat known {};
  if (::fstat(file.get(), &known) != 0 || !S_ISREG(known.st_mode))
    return error(Code::invalid_argument, "{}: is not a regular file; write the requests into one", path);
  LineReader reader(file.get(), path, most_line_bytes);
  reader.own_ = std::move(file);
  return reader;
}

LineReader::LineReader(int fd, std::string path, std::size_t most_line_bytes)
    : fd_(fd), path_(std::move(path)), most_line_bytes_(most_line_bytes), buffer_(kBufferBytes) {}

Expected<bool> LineReader::fill() {
  begin_ = end_ = 0;
  for (;;) {
    const ssize_t got = ::pread(fd_, buffer_.data(), buffer_.size(), static_cast<off_t>(offset_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(Code::io_error, "{}: cannot read on: {}", path_, std::strerror(errno));
    end_ = static_cast<std::size_t>(got);
    return got > 0;
  }
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
