#include "app/server/framing.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/words.h"

namespace millrace::server {
namespace {

bool is_chunked(std::string coding) {
  std::transform(coding.begin(), coding.end(), coding.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return coding == "chunked";
}

std::optional<std::uint64_t> plain_number(const std::string& text) {
  std::uint64_t number = 0;
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc()) return std::nullopt;
  return number;
}

}  // namespace

Status read_headers(std::string_view head, httplib::Headers& out) {
  out.clear();
  bool first = true;  // the request's own line
  while (!head.empty()) {
    std::string_view line = head.substr(0, head.find('\n'));
    head.remove_prefix(std::min(head.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (std::exchange(first, false) || line.empty()) continue;
    const auto is_control = [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; };
    const auto colon = line.find(':');
    if (colon == std::string_view::npos || std::any_of(line.begin(), line.end(), is_control))
      return error(Code::invalid_argument, "a header is no line of the form NAME: VALUE, or holds a control character");
    out.emplace(line.substr(0, colon), trim(line.substr(colon + 1)));
  }
  return {};
}

bool is_upload(const httplib::Request& request) {
  return request.method == "POST" && request.path.starts_with("/api/blobs/");
}

Expected<Framing> read_framing(const httplib::Request& request) {
  for (const auto& [name, value] : request.headers)
    if (name.empty() || name.find_first_of(" \t") != std::string::npos)
      return error(Code::invalid_argument, "a header's name holds white space");
  const auto lengths = request.get_header_value_count("Content-Length");
  const auto codings = request.get_header_value_count("Transfer-Encoding");
  if (lengths + codings > 1)
    return error(Code::invalid_argument, "the request gives the length of its body more than once; send one length");
  if (request.get_header_value_count("Host") > 1)
    return error(Code::invalid_argument, "the request names more than one host");
  Framing framing;
  const std::string& method = request.method;
  framing.expects_body =
      method == "POST" || method == "PUT" || method == "PATCH" || method == "PRI" || method == "DELETE";
  framing.chunked = codings == 1;
  if (codings == 1 && !is_chunked(request.get_header_value("Transfer-Encoding")))
    return error(Code::invalid_argument, "Transfer-Encoding: only chunked is understood");
  if (lengths == 1) {
    framing.content_length = plain_number(request.get_header_value("Content-Length"));
    if (!framing.content_length) return error(Code::invalid_argument, "Content-Length: must be a number of bytes");
  }
  if (framing.expects_body && lengths + codings == 0)
    return error(Code::unsupported, "Content-Length is missing; send it, or send the body in chunks");
  return framing;
}

}  // namespace millrace::server
