// A connection over TCP that was accepted, and what many connections wait for at once. Sending and receiving never
// wait: whoever wants to wait says for how long.
// Thread-safety: a Socket belongs to one thread at a time; SocketWatch may be used from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/os/handle.h"
#include "base/status.h"

namespace millrace::os {

/// An address of the network: of IPv6 without its zone.
struct Endpoint {
  std::string ip;  // "127.0.0.1", "::1"; empty: the system does not say
  int port = 0;
};

/// Move-only; the destructor closes both directions.
class Socket {
 public:
  Socket() = default;
  /// Takes over an open socket.
  explicit Socket(SocketHandle handle) : handle_(handle) {}
  ~Socket();
  Socket(Socket&& other) noexcept : handle_(std::exchange(other.handle_, kNoSocket)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  bool is_open() const { return handle_ != kNoSocket; }
  SocketHandle handle() const { return handle_; }
  /// Sends each piece at once, however small it is, and neither sends nor receives by waiting. REQUIRED before send()
  /// and receive().
  void never_wait() const;

  /// Whether there are bytes to receive, the end or a failure, after `patience` at most.
  bool wait_to_receive(std::chrono::milliseconds patience) const;
  /// Whether there is room to send, after `patience` at most.
  bool wait_to_send(std::chrono::milliseconds patience) const;
  /// Whether the other side has closed its direction, or the connection broke.
  bool peer_is_gone() const;

  /// Bytes received; 0: the other side sends no more. Errors: unavailable (nothing there now), io_error.
  Expected<std::size_t> receive(std::span<char> out) const;
  /// Bytes sent. Errors: unavailable (no room now), io_error.
  Expected<std::size_t> send(std::string_view bytes) const;
  /// Sends no more; what the other side sends can still be received.
  void end_sending() const;

  Endpoint peer() const;
  Endpoint own() const;

 private:
  SocketHandle handle_ = kNoSocket;
};

/// A socket that is not connected yet, of the system's numbers for an address family, a kind and a protocol; no other
/// program that is started inherits it. kNoSocket: the system gives none.
SocketHandle open_socket(int family, int kind, int protocol);

// Of a socket that listens. Failures leave it as it was.

/// The port can be listened to again as soon as the process that did so has ended, and never by two at once.
void reserve_port(SocketHandle listening);
/// So many connections wait to be accepted at most.
void set_backlog(SocketHandle listening, int connections);

/// Waits for the first bytes (or the end) of many sockets at once.
class SocketWatch {
 public:
  SocketWatch();
  ~SocketWatch();
  SocketWatch(const SocketWatch&) = delete;
  SocketWatch& operator=(const SocketWatch&) = delete;

  /// From now on wait() looks at the socket, until wait() returns it once or remove() is called. False: the system
  /// watches no more sockets.
  bool add(SocketHandle socket) const;
  void remove(SocketHandle socket) const;
  /// Sockets with something to receive: the first that there are, after `patience` at most.
  std::vector<SocketHandle> wait(std::chrono::milliseconds patience) const;

 private:
  Handle handle_;
};

}  // namespace millrace::os
