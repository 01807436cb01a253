// The parts of Socket that POSIX and Windows share.
#include "base/os/socket.h"

#include "base/os/inet.h"

namespace millrace::os {
namespace {

Endpoint to_endpoint(const sockaddr_storage& address) {
  Endpoint endpoint;
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    endpoint.port = ntohs(in.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof(text));
    endpoint.port = ntohs(in.sin6_port);
  }
  endpoint.ip = text;
  return endpoint;
}

}  // namespace

Endpoint Socket::peer() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return ::getpeername(handle_, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? to_endpoint(address)
                                                                                     : Endpoint();
}

Endpoint Socket::own() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return ::getsockname(handle_, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? to_endpoint(address)
                                                                                     : Endpoint();
}

void set_backlog(SocketHandle listening, int connections) { ::listen(listening, connections); }

}  // namespace millrace::os
