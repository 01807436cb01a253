// Which codings an answer may come in. Source: RFC 9110, section 12.5.3. Thread-safety: pure functions.
#pragma once

#include <httplib.h>

#include <string_view>

namespace millrace::server {

/// Whether an Accept-Encoding of these words takes `coding`, in lower case: it stands there, or "*" does, with a weight
/// that is not 0. A weight that is no number refuses, for plain bytes are always right.
bool accepts_coding(std::string_view accepted, std::string_view coding);

/// httplib looks for the names of codings alone: what the client refuses goes out of the header before it does.
void keep_accepted_codings(httplib::Request& request);

}  // namespace millrace::server
