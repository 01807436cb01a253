#include "base/os/address.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

#include "base/os/inet.h"

namespace millrace::os {

bool is_ipv6(std::string_view text) {
  in6_addr parsed{};
  return ::inet_pton(AF_INET6, std::string(text.substr(0, text.find('%'))).c_str(), &parsed) == 1;
}

namespace {

/// Bytes of an address and their number: 4, 16, or 0 if the text is not an address.
struct Ip {
  std::array<std::uint8_t, 16> bytes{};
  std::size_t size = 0;
};

Ip parse_ip(std::string_view text) {
  Ip ip;
  const std::string spelled(text);
  if (::inet_pton(AF_INET, spelled.c_str(), ip.bytes.data()) == 1)
    ip.size = 4;
  else if (::inet_pton(AF_INET6, spelled.c_str(), ip.bytes.data()) == 1)
    ip.size = 16;
  return ip;
}

bool begins(std::span<const std::uint8_t> ip, std::initializer_list<int> prefix, int bits) {
  int i = 0;
  for (const int part : prefix) {
    const int left = std::min(bits - 8 * i, 8);
    const auto mask = static_cast<std::uint8_t>(0xff00 >> left);
    if (((ip[static_cast<std::size_t>(i)] ^ part) & mask) != 0) return false;
    ++i;
  }
  return true;
}

/// Source: IANA's registries of special-purpose addresses.
bool is_public_v4(std::span<const std::uint8_t> ip) {
  return !(begins(ip, {0}, 8) || begins(ip, {10}, 8) || begins(ip, {100, 64}, 10) || begins(ip, {127}, 8) ||
           begins(ip, {169, 254}, 16) || begins(ip, {172, 16}, 12) || begins(ip, {192, 0, 0}, 24) ||
           begins(ip, {192, 0, 2}, 24) || begins(ip, {192, 88, 99}, 24) || begins(ip, {192, 168}, 16) ||
           begins(ip, {198, 18}, 15) || begins(ip, {198, 51, 100}, 24) || begins(ip, {203, 0, 113}, 24) ||
           begins(ip, {224}, 3));
}

bool is_public_v6(std::span<const std::uint8_t> ip) {
  if (begins(ip, {0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0}, 96)) return is_public_v4(ip.subspan(12));
  return begins(ip, {0x20}, 3) && !begins(ip, {0x20, 0x01, 0x00}, 23) && !begins(ip, {0x20, 0x01, 0x0d, 0xb8}, 32) &&
         !begins(ip, {0x20, 0x02}, 16) && !begins(ip, {0x3f, 0xff, 0x00}, 20);
}

}  // namespace

std::string plain_ip(std::string_view text) {
  const Ip ip = parse_ip(text);
  char out[INET6_ADDRSTRLEN] = {};
  if (ip.size > 0) ::inet_ntop(ip.size == 4 ? AF_INET : AF_INET6, ip.bytes.data(), out, sizeof(out));
  return out;
}

std::string ip_of(const void* socket_address, std::size_t bytes) {
  char out[INET6_ADDRSTRLEN] = {};
  sockaddr_in in{};
  sockaddr_in6 in6{};
  if (bytes < sizeof(in)) return out;
  std::memcpy(&in, socket_address, sizeof(in));
  if (in.sin_family == AF_INET) ::inet_ntop(AF_INET, &in.sin_addr, out, sizeof(out));
  if (in.sin_family != AF_INET6 || bytes < sizeof(in6)) return out;
  std::memcpy(&in6, socket_address, sizeof(in6));
  ::inet_ntop(AF_INET6, &in6.sin6_addr, out, sizeof(out));
  return out;
}

bool is_public_ip(std::string_view text) {
  const Ip ip = parse_ip(text);
  if (ip.size == 4) return is_public_v4(std::span(ip.bytes).first(4));
  return ip.size == 16 && is_public_v6(ip.bytes);
}

}  // namespace millrace::os
