// Names and addresses of the network. Thread-safety: functions without shared state.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::os {

/// True if the text is an IPv6 address, with or without a zone: "::1", "fe80::1%eth0".
bool is_ipv6(std::string_view text);

/// An IPv4 or IPv6 address in the system's spelling: "::1" for "0:0::1". Empty: the text is not an address ("10.1",
/// names).
std::string plain_ip(std::string_view text);

/// The address in a sockaddr of `bytes`; empty: neither IPv4 nor IPv6.
std::string ip_of(const void* socket_address, std::size_t bytes);

/// True if the address can be on the public internet. False for loopback, private, shared, link-local, multicast,
/// reserved and documentation addresses, and for IPv6 addresses that embed an IPv4 address (mapped, 6to4, Teredo);
/// NAT64 addresses are judged by the embedded address.
bool is_public_ip(std::string_view text);

/// The host name; empty: unknown.
std::string host_name();

}  // namespace millrace::os
