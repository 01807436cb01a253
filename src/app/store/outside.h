// Fetching what somebody else names: a GET of an address that a client of the server chose, which may try to reach what
// only this machine can. Only hosts of an allow-list are asked, over http and https, never through a proxy, with no
// token and no cookie. A name's address is checked when the connection to it is opened, so that no later answer of the
// DNS leads elsewhere; a redirect is held to the same rules. Thread-safety: functions without shared state.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/work_grant.h"

namespace millrace::store {

struct OutsideHost {
  std::string host;  // a name in lower case, or an address, of IPv6 without brackets
  int port = 0;      // 0: 80 for http, 443 for https
};

/// "example.org", "example.org:8080", "127.0.0.1:8000", "[::1]". Errors: invalid_argument.
Expected<OutsideHost> parse_outside_host(std::string_view text);

struct OutsideLimits {
  std::uint64_t most_bytes = 0;
  std::chrono::milliseconds most_time{0};  // with all redirects
  WorkGrant* memory = nullptr;  // charged for the bytes, twice, since they grow; its cancelled() ends the fetch
};

/// Errors, whose messages go to who named the address, and tell nothing of this machine's network: invalid_argument (no
/// address of http or https, a host that is not allowed, an address that is none of the internet, though its host is
/// allowed by name), not_found and io_error (the host does not answer, or not with 200), out_of_budget, cancelled.
Expected<std::string> get_outside(const std::string& url, std::span<const OutsideHost> allowed,
                                  const OutsideLimits& limits);

}  // namespace millrace::store
