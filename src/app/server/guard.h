// Who may call: keys, the Host header (a web page elsewhere must not reach a local server by rebinding a name), and
// what browsers are told about other origins.
// Thread-safety: immutable once made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/server/options.h"

namespace millrace::server {

class Guard {
 public:
  explicit Guard(const ServerOptions& options);

  /// Whether the Host header names this machine (or is absent, as in HTTP/1.0). `host` with or without a port.
  bool host_allowed(std::string_view host) const;
  /// Whether a page of this origin may call.
  bool origin_allowed(std::string_view origin) const;
  /// Whether the request carries a key: "Authorization: Bearer KEY" or "X-Api-Key: KEY". True where none is asked for.
  bool key_accepted(std::string_view authorization, std::string_view api_key) const {
    return keys_.empty() || key_of(authorization, api_key) >= 0;
  }
  /// The place of the key that the request carries among those that are accepted; -1: none of them.
  int key_of(std::string_view authorization, std::string_view api_key) const;
  bool asks_for_key() const { return !keys_.empty(); }

 private:
  std::vector<std::string> keys_, hosts_, origins_;
  bool any_host_ = false, any_origin_ = false;
};

/// True if equal; the time depends on the lengths alone.
bool equal_in_constant_time(std::string_view one, std::string_view other);

}  // namespace millrace::server
