// Where the server is: what MILLRACE_HOST and OLLAMA_HOST say, and what flags say instead.
#pragma once

#include <string>

namespace millrace::cli {

struct Address {
  std::string host;
  int port = 0;
  std::string text() const { return host + ":" + std::to_string(port); }
};

/// The value of the environment variable `ours`, else of `theirs`; null where neither says anything.
const char* environment(const char* ours, const char* theirs);

/// Where to listen. `host`, which may name a port, empty, `port` negative: not given.
Address listen_address(const std::string& host, int port);
/// Where to call: as above, but never "any address".
Address call_address(const std::string& host = "", int port = -1);

}  // namespace millrace::cli
