// Names and addresses of the network. Thread-safety: functions without shared state.
#pragma once

#include <string>
#include <string_view>

namespace millrace::os {

/// Whether the text is an address of IPv6, with or without a zone: "::1", "fe80::1%eth0".
bool is_ipv6(std::string_view text);

/// The name of this machine; empty: the system does not say.
std::string host_name();

}  // namespace millrace::os
