#include "app/server/body_stream.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "app/server/framing.h"

namespace millrace::server {

Expected<BodyStream> BodyStream::of(const httplib::Request& request, Connection& connection) {
  MR_ASSIGN_OR_RETURN(const Framing framing, read_framing(request));
  return BodyStream(connection, framing.chunked ? std::nullopt : framing.content_length);
}

/// A line of the chunks' framing, without its end.
Expected<std::string> BodyStream::read_line() {
  constexpr std::size_t kLongest = 1024;
  std::string line;
  for (char c = 0; c != '\n';) {
    if (connection_->read_body(&c, 1) != 1) return error(Code::io_error, "the body ended early");
    if (c != '\n' && c != '\r') line += c;
    if (line.size() > kLongest) return error(Code::invalid_argument, "a chunk's head is too long");
  }
  return line;
}

Status BodyStream::next_chunk() {
  if (!std::exchange(first_, false)) MR_RETURN_IF_ERROR(read_line().status());  // behind the one before
  MR_ASSIGN_OR_RETURN(const std::string head, read_line());
  const auto [end, problem] = std::from_chars(head.data(), head.data() + head.size(), left_, 16);
  if (problem != std::errc() || (end != head.data() + head.size() && *end != ';' && *end != ' '))
    return error(Code::invalid_argument, "a chunk does not say its length");
  if (left_ > 0) return {};
  ended_ = true;
  for (bool more = true; more;) {  // what stands behind the last chunk is not used
    MR_ASSIGN_OR_RETURN(const std::string trailer, read_line());
    more = !trailer.empty();
  }
  return {};
}

Expected<std::size_t> BodyStream::read(std::span<char> out) {
  if (left_ == 0 && !length_ && !ended_) MR_RETURN_IF_ERROR(next_chunk());
  if (left_ == 0) return std::size_t{0};
  const ssize_t count = connection_->read_body(out.data(), std::min<std::uint64_t>(out.size(), left_));
  if (count <= 0) return error(Code::io_error, "the body ended early");
  left_ -= static_cast<std::uint64_t>(count);
  return static_cast<std::size_t>(count);
}

}  // namespace millrace::server
