#include "app/cli/address.h"

#include <charconv>
#include <cstdlib>

#include "app/server/options.h"

namespace millrace::cli {
namespace {

/// "host", "host:port", ":port", "[::1]:port" or "http://host:port".
void split_address(std::string text, std::string& host, int& port) {
  if (const auto scheme = text.find("://"); scheme != std::string::npos) text = text.substr(scheme + 3);
  if (const auto slash = text.find('/'); slash != std::string::npos) text.resize(slash);
  if (text.starts_with('[')) {  // "[::1]:port"
    const auto close = text.find(']');
    const std::string rest = close == std::string::npos ? "" : text.substr(close + 1);
    if (rest.starts_with(':')) std::from_chars(rest.data() + 1, rest.data() + rest.size(), port);
    host = text.substr(1, close - 1);
    return;
  }
  const auto colon = text.rfind(':');
  if (colon != std::string::npos && text.find(':') == colon) {
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    text.resize(colon);
  }
  if (!text.empty()) host = text;
}

}  // namespace

const char* environment(const char* ours, const char* theirs) {
  if (const char* value = std::getenv(ours); value != nullptr && *value != 0) return value;
  const char* value = std::getenv(theirs);
  return value != nullptr && *value != 0 ? value : nullptr;
}

Address listen_address(const std::string& host, int port) {
  Address address{"127.0.0.1", server::kDefaultPort};
  if (const char* wanted = environment("MILLRACE_HOST", "OLLAMA_HOST"))
    split_address(wanted, address.host, address.port);
  split_address(host, address.host, address.port);
  if (port >= 0) address.port = port;
  return address;
}

Address call_address(const std::string& host, int port) {
  Address address = listen_address(host, port);
  if (address.host == "0.0.0.0") address.host = "127.0.0.1";
  return address;
}

}  // namespace millrace::cli
