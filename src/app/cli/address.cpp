#include "app/cli/address.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "app/server/options.h"
#include "base/os/address.h"
#include "base/words.h"

namespace millrace::cli {
namespace {

constexpr const char* kForms = "give HOST, HOST:PORT, [IPV6]:PORT or http://HOST:PORT";

bool is_host_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  });
}

Status read_port(std::string_view text, int& port) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (problem != std::errc() || end != text.data() + text.size() || port < 0 || port > 65535)
    return error(Code::invalid_argument, "its port is no number from 0 to 65535; {}", kForms);
  return {};
}

/// What it says goes over `address`; the rest stays. What is wrong with it is told without it: it may hold a password.
Status read_address(std::string_view text, Address& address) {
  if (const auto scheme = text.find("://"); scheme != std::string_view::npos) {
    const std::string_view name = text.substr(0, scheme);
    if (same_word(name, "https"))
      return error(Code::invalid_argument,
                   "https is not spoken here, and over http the key would go out in clear: open a tunnel to that "
                   "server (ssh -L 11434:127.0.0.1:11434 HOST) and name its end here");
    if (!same_word(name, "http")) return error(Code::invalid_argument, "its scheme is not http; {}", kForms);
    text.remove_prefix(scheme + 3);
  }
  text = text.substr(0, text.find('/'));
  if (text.find('@') != std::string_view::npos)
    return error(Code::invalid_argument, "a user has no place in it; MILLRACE_API_KEY takes the server's key");
  std::string_view host = text, port;
  if (text.starts_with('[')) {  // "[::1]:port"
    const auto close = text.find(']');
    host = text.substr(1, close == std::string_view::npos ? 0 : close - 1);
    port = text.substr(std::min(close, text.size() - 1) + 1);
    if (!os::is_ipv6(host) || (!port.empty() && port[0] != ':'))
      return error(Code::invalid_argument, "this is no address; {}", kForms);
  } else if (const auto colon = text.find(':'); colon != std::string_view::npos && !os::is_ipv6(text)) {
    host = text.substr(0, colon);
    port = text.substr(colon);
  }
  const bool named = !host.empty() || port.empty();
  if (named && !os::is_ipv6(host) && !is_host_name(host))
    return error(Code::invalid_argument, "this is no address; {}", kForms);
  if (!port.empty()) MR_RETURN_IF_ERROR(read_port(port.substr(1), address.port));
  if (named) address.host = host;
  return {};
}

}  // namespace

std::string Address::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

const char* environment(const char* ours, const char* theirs) {
  if (const char* value = std::getenv(ours); value != nullptr && *value != 0) return value;
  const char* value = std::getenv(theirs);
  return value != nullptr && *value != 0 ? value : nullptr;
}

Expected<Address> listen_address(const std::string& host, int port) {
  Address address{"127.0.0.1", server::kDefaultPort};
  if (const char* wanted = environment("MILLRACE_HOST", "OLLAMA_HOST")) {
    const char* const ours = std::getenv("MILLRACE_HOST");
    Address read = address;
    const Status status = read_address(wanted, read);
    if (status.ok())
      address = std::move(read);
    else if (host.empty() || host.starts_with(':'))  // else the flag says what counts
      return status.with_context(ours != nullptr && *ours != 0 ? "MILLRACE_HOST" : "OLLAMA_HOST");
  }
  if (!host.empty()) MR_RETURN_IF_ERROR(read_address(host, address).with_context("--host"));
  if (port >= 0) address.port = port;
  return address;
}

Expected<Address> call_address(const std::string& host, int port) {
  MR_ASSIGN_OR_RETURN(Address address, listen_address(host, port));
  if (address.host == "0.0.0.0") address.host = "127.0.0.1";
  if (address.host == "::") address.host = "::1";
  return address;
}

}  // namespace millrace::cli
