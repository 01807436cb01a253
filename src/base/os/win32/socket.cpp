#include "base/os/socket.h"

#include <algorithm>

#include "base/mutex.h"
#include "base/os/inet.h"
#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

using std::chrono::milliseconds;

/// Winsock must be initialised once per process.
[[maybe_unused]] const bool started = [] {
  WSADATA data;
  return WSAStartup(MAKEWORD(2, 2), &data) == 0;
}();

Status last_socket_error() { return error_of(static_cast<DWORD>(WSAGetLastError())); }

/// Returns the events that arrived in time; 0 for none, POLLERR if polling failed.
int poll_for(SocketHandle socket, short events, milliseconds patience) {
  WSAPOLLFD entry{socket, events, 0};
  const int ready = WSAPoll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, patience.count())));
  return ready < 0 ? POLLERR : ready == 0 ? 0 : entry.revents;
}

Expected<std::size_t> moved(int count) {
  if (count == SOCKET_ERROR) return last_socket_error();
  return static_cast<std::size_t>(count);
}

void set_option(SocketHandle socket, int level, int option) {
  const int on = 1;
  ::setsockopt(socket, level, option, reinterpret_cast<const char*>(&on), sizeof(on));
}

int one_call(std::size_t bytes) { return static_cast<int>(std::min<std::size_t>(bytes, 1u << 30)); }

/// The state of a SocketWatch. A datagram to its own socket wakes a wait that began before a socket was added.
struct Watched {
  Mutex mutex;
  std::vector<SocketHandle> sockets;
  SocketHandle bell = kNoSocket;
  sockaddr_in bell_address{};
};

Watched& watched(Handle handle) { return *reinterpret_cast<Watched*>(handle); }

void ring(const Watched& watch) {
  ::sendto(watch.bell, "", 1, 0, reinterpret_cast<const sockaddr*>(&watch.bell_address), sizeof(watch.bell_address));
}

}  // namespace

SocketHandle open_socket(int family, int kind, int protocol) {
  return WSASocketW(family, kind, protocol, nullptr, 0, WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT);
}

Socket::~Socket() {
  if (handle_ == kNoSocket) return;
  ::shutdown(handle_, SD_BOTH);
  ::closesocket(handle_);
}

void Socket::never_wait() const {
  set_option(handle_, IPPROTO_TCP, TCP_NODELAY);
  u_long on = 1;
  ::ioctlsocket(handle_, static_cast<long>(FIONBIO), &on);
}

bool Socket::wait_to_receive(milliseconds patience) const { return poll_for(handle_, POLLIN, patience) != 0; }

bool Socket::wait_to_send(milliseconds patience) const { return (poll_for(handle_, POLLOUT, patience) & POLLOUT) != 0; }

bool Socket::peer_is_gone() const {
  const int events = poll_for(handle_, POLLIN, milliseconds(0));
  if ((events & (POLLHUP | POLLERR | POLLNVAL)) != 0) return true;
  char byte = 0;  // a closed connection is also an event; behind unread bytes it shows once they are received
  return (events & POLLIN) != 0 && ::recv(handle_, &byte, 1, MSG_PEEK) == 0;
}

Expected<std::size_t> Socket::receive(std::span<char> out) const {
  return moved(::recv(handle_, out.data(), one_call(out.size()), 0));
}

Expected<std::size_t> Socket::send(std::string_view bytes) const {
  return moved(::send(handle_, bytes.data(), one_call(bytes.size()), 0));
}

void Socket::end_sending() const { ::shutdown(handle_, SD_SEND); }

// On Windows SO_REUSEADDR would let two sockets listen on one port, and ports are free again at once without it.
void reserve_port(SocketHandle listening) { set_option(listening, SOL_SOCKET, SO_EXCLUSIVEADDRUSE); }

SocketWatch::SocketWatch() {
  auto watch = std::make_unique<Watched>();
  watch->bell = open_socket(AF_INET, SOCK_DGRAM, 0);
  watch->bell_address.sin_family = AF_INET;
  watch->bell_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&watch->bell_address);
  socklen_t length = sizeof(watch->bell_address);
  u_long on = 1;
  if (::bind(watch->bell, address, length) != 0 || ::getsockname(watch->bell, address, &length) != 0 ||
      ::ioctlsocket(watch->bell, static_cast<long>(FIONBIO), &on) != 0) {
    ::closesocket(watch->bell);
    watch->bell = kNoSocket;  // wait() then looks again after a while
  }
  handle_ = reinterpret_cast<Handle>(watch.release());
}

SocketWatch::~SocketWatch() {
  const std::unique_ptr<Watched> watch(&watched(handle_));
  if (watch->bell != kNoSocket) ::closesocket(watch->bell);
}

bool SocketWatch::add(SocketHandle socket) const {
  Watched& watch = watched(handle_);
  int kind = 0;
  int length = sizeof(kind);
  if (::getsockopt(socket, SOL_SOCKET, SO_TYPE, reinterpret_cast<char*>(&kind), &length) != 0) return false;
  {
    const MutexLock lock(watch.mutex);
    watch.sockets.push_back(socket);
  }
  ring(watch);
  return true;
}

void SocketWatch::remove(SocketHandle socket) const {
  Watched& watch = watched(handle_);
  const MutexLock lock(watch.mutex);
  std::erase(watch.sockets, socket);
}

std::vector<SocketHandle> SocketWatch::wait(milliseconds patience) const {
  Watched& watch = watched(handle_);
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    std::vector<WSAPOLLFD> entries{{watch.bell, POLLIN, 0}};
    {
      const MutexLock lock(watch.mutex);
      for (const SocketHandle socket : watch.sockets) entries.push_back({socket, POLLIN, 0});
    }
    const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now()).count() + 1;
    constexpr std::int64_t without_bell = 100;
    const std::int64_t time = std::clamp<std::int64_t>(left, 0, watch.bell != kNoSocket ? 1 << 30 : without_bell);
    WSAPoll(entries.data(), static_cast<ULONG>(entries.size()), static_cast<int>(time));
    char byte = 0;
    while (entries[0].revents != 0 && ::recv(watch.bell, &byte, 1, 0) > 0) {
    }
    std::vector<SocketHandle> ready;
    ready.reserve(entries.size());  // before: each event is told once
    {
      const MutexLock lock(watch.mutex);
      for (std::size_t i = 1; i < entries.size(); ++i) {
        const bool still = std::erase(watch.sockets, entries[i].fd) > 0;
        if (!still) continue;
        if (entries[i].revents != 0)
          ready.push_back(entries[i].fd);
        else
          watch.sockets.push_back(entries[i].fd);
      }
    }
    if (!ready.empty() || std::chrono::steady_clock::now() >= end) return ready;
  }
}

}  // namespace millrace::os
