// An accepted TCP connection, and waiting on many connections at once. Sending and receiving never block; waiting is
// explicit, with a timeout. Thread-safety: a Socket belongs to one thread at a time; SocketWatch may be used from any.
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

/// A network address; IPv6 without its zone.
struct Endpoint {
  std::string ip;  // "127.0.0.1", "::1"; empty: unknown
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
  /// Disables Nagle's algorithm and makes the socket non-blocking. REQUIRED before send() and receive().
  void never_wait() const;

  /// Waits up to `patience`. True if there are bytes to receive, the end, or a failure.
  bool wait_to_receive(std::chrono::milliseconds patience) const;
  /// Waits up to `patience`. True if there is room to send.
  bool wait_to_send(std::chrono::milliseconds patience) const;
  /// True if the peer has closed its direction, or the connection broke.
  bool peer_is_gone() const;

  /// The bytes received; 0: the peer sends no more. Errors: unavailable (none now), io_error.
  Expected<std::size_t> receive(std::span<char> out) const;
  /// The bytes sent. Errors: unavailable (no room now), io_error.
  Expected<std::size_t> send(std::string_view bytes) const;
  /// Ends sending; data can still be received.
  void end_sending() const;

  Endpoint peer() const;
  Endpoint own() const;

 private:
  SocketHandle handle_ = kNoSocket;
};

/// Creates a socket with the system's constants for address family, type and protocol. Child processes do not inherit
/// it. kNoSocket: failure.
SocketHandle open_socket(int family, int kind, int protocol);

// For a listening socket. Failures leave it unchanged.

/// The port can be reused as soon as the process that listened has ended, and never by two processes at once.
void reserve_port(SocketHandle listening);
/// Sets the length of the queue of connections to accept.
void set_backlog(SocketHandle listening, int connections);

/// Waits for the first bytes (or the end) on many sockets at once.
class SocketWatch {
 public:
  SocketWatch();
  ~SocketWatch();
  SocketWatch(const SocketWatch&) = delete;
  SocketWatch& operator=(const SocketWatch&) = delete;

  /// Watches the socket until wait() has returned it once or remove() is called. False: the system's limit is reached.
  bool add(SocketHandle socket) const;
  void remove(SocketHandle socket) const;
  /// Waits up to `patience` for sockets with data, and returns the first ones.
  std::vector<SocketHandle> wait(std::chrono::milliseconds patience) const;

 private:
  Handle handle_;
};

}  // namespace millrace::os
