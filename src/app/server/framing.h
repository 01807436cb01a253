// Where a request's body ends, asked before it is read: what two programs could read in two ways is refused.
// Source: RFC 9112, section 6. Thread-safety: pure functions.
#pragma once

#include <httplib.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace millrace::server {

struct Framing {
  bool expects_body = false;                    // a method that httplib reads a body of
  bool chunked = false;                         // else content_length, where there is one
  std::optional<std::uint64_t> content_length;  // bytes
};

/// The headers as the client sent them, into `out`. httplib decodes "%63hunked" to "chunked" and ends a value at NUL: a
/// proxy before us would not. `head`: the request's line and its headers. Errors: invalid_argument (a line that is no
/// header, a control character).
Status read_headers(std::string_view head, httplib::Headers& out);

/// Whether the body goes to the disk, and not into memory.
bool is_upload(const httplib::Request& request);

/// Errors: invalid_argument (two lengths or two hosts, a length that is no plain number, a header's name with white
/// space, a coding other than chunked), unsupported (a body is due, and nothing says where it ends: HTTP's 411).
Expected<Framing> read_framing(const httplib::Request& request);

}  // namespace millrace::server
