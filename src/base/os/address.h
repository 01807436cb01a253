// Names and addresses of the network. Thread-safety: functions without shared state.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::os {

/// Whether the text is an address of IPv6, with or without a zone: "::1", "fe80::1%eth0".
bool is_ipv6(std::string_view text);

/// An address of IPv4 or IPv6 as the system spells it: "::1" for "0:0::1". Empty: the text is none ("10.1", names).
std::string plain_ip(std::string_view text);

/// Of one of the system's socket addresses (a sockaddr of `bytes`); empty: of neither kind.
std::string ip_of(const void* socket_address, std::size_t bytes);

/// Whether the address can be one of the public internet. It cannot if it is this machine's, of a private, shared or
/// local network, of a group (multicast), reserved or for documentation, or an address of IPv6 that leads to one of
/// IPv4 (mapped, 6to4, Teredo; that of NAT64 is what it leads to).
bool is_public_ip(std::string_view text);

/// The name of this machine; empty: the system does not say.
std::string host_name();

}  // namespace millrace::os
