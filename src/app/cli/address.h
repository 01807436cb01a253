// Where the server is: what MILLRACE_HOST and OLLAMA_HOST say, and what flags say instead.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace::cli {

struct Address {
  std::string host;  // an IPv6 address without its brackets
  int port = 0;
  std::string text() const;  // "host:port", "[::1]:port"
};

/// The value of the environment variable `ours`, else of `theirs`; null where neither says anything.
const char* environment(const char* ours, const char* theirs);

/// Where to listen. `host`, which may name a port, empty, `port` negative: not given. Errors: invalid_argument (what
/// the flag or the variable says is no address; https, which nobody here speaks).
Expected<Address> listen_address(const std::string& host, int port);
/// Where to call: as above, but never "any address".
Expected<Address> call_address(const std::string& host = "", int port = -1);

}  // namespace millrace::cli
