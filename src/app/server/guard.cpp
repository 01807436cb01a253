#include "app/server/guard.h"

#include <algorithm>

#include "base/os/address.h"

namespace millrace::server {
namespace {

bool is_port(std::string_view text) {
  return text.empty() || (text.front() == ':' && text.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

/// "Name:123" to "name"; "[::1]:123" and "::1" to "::1". Empty for what is no host.
std::string bare_host(std::string_view host) {
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    if (end == std::string_view::npos || !is_port(host.substr(end + 1)) || !os::is_ipv6(host.substr(1, end - 1)))
      return "";
    host = host.substr(1, end - 1);
  } else if (const auto colon = host.find(':'); colon != std::string_view::npos && !os::is_ipv6(host)) {
    if (!is_port(host.substr(colon))) return "";
    host = host.substr(0, colon);
  }
  std::string name(host);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  while (name.ends_with('.')) name.pop_back();
  return name;
}

bool is_address(std::string_view name) {
  return os::is_ipv6(name) || (!name.empty() && name.find_first_not_of("0123456789.") == std::string_view::npos);
}

bool is_local_name(std::string_view name) { return name == "localhost" || name.ends_with(".localhost"); }

/// What others on the network call this machine, and what containers call the one they run on. Any other name below
/// .local or .internal could be made to lead here by whoever answers for such names on the network.
std::vector<std::string> names_of_this_machine() {
  std::vector<std::string> names = {"host.docker.internal", "host.containers.internal"};
  const std::string own = bare_host(os::host_name());
  if (own.empty()) return names;
  names.insert(names.end(), {own, own + ".local", own + ".internal"});
  return names;
}

}  // namespace

bool equal_in_constant_time(std::string_view one, std::string_view other) {
  unsigned difference = one.size() == other.size() ? 0 : 1;
  for (std::size_t i = 0; i < one.size(); ++i)
    difference |= static_cast<unsigned>(static_cast<unsigned char>(one[i]) ^
                                        static_cast<unsigned char>(other.empty() ? 0 : other[i % other.size()]));
  return difference == 0;
}

Guard::Guard(const ServerOptions& options) : keys_(options.access.api_keys) {
  for (const std::string& host : options.access.hosts) {
    any_host_ = any_host_ || host == "*";
    hosts_.push_back(bare_host(host));
  }
  hosts_.push_back(bare_host(options.host));
  for (std::string& name : names_of_this_machine()) hosts_.push_back(std::move(name));
  for (const std::string& origin : options.access.origins) {
    any_origin_ = any_origin_ || origin == "*";
    origins_.push_back(origin);
  }
}

bool Guard::host_allowed(std::string_view host) const {
  if (any_host_ || host.empty()) return true;
  const std::string name = bare_host(host);
  if (name.empty()) return false;
  // An address cannot be rebound: only names can.
  return is_address(name) || is_local_name(name) || std::find(hosts_.begin(), hosts_.end(), name) != hosts_.end();
}

bool Guard::origin_allowed(std::string_view origin) const {
  if (any_origin_ || std::find(origins_.begin(), origins_.end(), origin) != origins_.end()) return true;
  for (const std::string_view scheme : {"app://", "file://", "tauri://", "vscode-webview://", "vscode-file://"})
    if (origin.starts_with(scheme)) return true;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!origin.starts_with(scheme)) continue;
    const std::string name = bare_host(origin.substr(scheme.size()));
    return name == "localhost" || name == "127.0.0.1" || name == "::1" || name == "0.0.0.0" ||
           name.ends_with(".localhost");
  }
  return false;
}

int Guard::key_of(std::string_view authorization, std::string_view api_key) const {
  constexpr std::string_view bearer = "bearer ";  // a scheme's case does not matter (RFC 9110, 11.1)
  const bool has_bearer = authorization.size() > bearer.size() &&
                          std::equal(bearer.begin(), bearer.end(), authorization.begin(), [](char want, char given) {
                            return want == (given >= 'A' && given <= 'Z' ? given + 32 : given);
                          });
  const std::string_view given = has_bearer ? authorization.substr(bearer.size()) : api_key;
  int found = -1;  // every key is compared, so that the time does not tell which one is near
  for (std::size_t i = 0; i < keys_.size(); ++i)
    if (equal_in_constant_time(given, keys_[i])) found = static_cast<int>(i);
  return found;
}

}  // namespace millrace::server
