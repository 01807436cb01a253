#include "base/os/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/os/posix/posix.h"

namespace millrace::os {
namespace {

using std::chrono::milliseconds;

/// Returns the events that arrived in time; 0 for none, POLLERR if polling failed.
int poll_for(SocketHandle socket, int events, milliseconds patience) {
  pollfd entry{socket, static_cast<short>(events), 0};
  const int time = static_cast<int>(std::max<std::int64_t>(0, patience.count()));
  const int ready = retry([&] { return ::poll(&entry, 1, time); });
  return ready < 0 ? POLLERR : ready == 0 ? 0 : entry.revents;
}

Expected<std::size_t> moved(ssize_t count) {
  if (count < 0) return last_error();
  return static_cast<std::size_t>(count);
}

void set_option(SocketHandle socket, int level, int option) {
  const int on = 1;
  ::setsockopt(socket, level, option, &on, sizeof(on));
}

}  // namespace

SocketHandle open_socket(int family, int kind, int protocol) { return ::socket(family, kind | SOCK_CLOEXEC, protocol); }

Socket::~Socket() {
  if (handle_ < 0) return;
  ::shutdown(handle_, SHUT_RDWR);
  ::close(handle_);
}

void Socket::never_wait() const {
  set_option(handle_, IPPROTO_TCP, TCP_NODELAY);
  ::fcntl(handle_, F_SETFL, ::fcntl(handle_, F_GETFL, 0) | O_NONBLOCK);
}

bool Socket::wait_to_receive(milliseconds patience) const { return poll_for(handle_, POLLIN, patience) != 0; }

bool Socket::wait_to_send(milliseconds patience) const { return (poll_for(handle_, POLLOUT, patience) & POLLOUT) != 0; }

bool Socket::peer_is_gone() const {
  return (poll_for(handle_, POLLRDHUP, milliseconds(0)) & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

Expected<std::size_t> Socket::receive(std::span<char> out) const {
  return moved(retry([&] { return ::recv(handle_, out.data(), out.size(), 0); }));
}

Expected<std::size_t> Socket::send(std::string_view bytes) const {
  return moved(retry([&] { return ::send(handle_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }));
}

void Socket::end_sending() const { ::shutdown(handle_, SHUT_WR); }

void reserve_port(SocketHandle listening) { set_option(listening, SOL_SOCKET, SO_REUSEADDR); }

SocketWatch::SocketWatch() : handle_(::epoll_create1(EPOLL_CLOEXEC)) {}

SocketWatch::~SocketWatch() { ::close(handle_); }

bool SocketWatch::add(SocketHandle socket) const {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;
  event.data.fd = socket;
  return ::epoll_ctl(handle_, EPOLL_CTL_ADD, socket, &event) == 0;
}

void SocketWatch::remove(SocketHandle socket) const { ::epoll_ctl(handle_, EPOLL_CTL_DEL, socket, nullptr); }

std::vector<SocketHandle> SocketWatch::wait(milliseconds patience) const {
  std::array<epoll_event, 64> events{};
  std::vector<SocketHandle> ready;
  ready.reserve(events.size());  // before: each event is told once
  const int count =
      ::epoll_wait(handle_, events.data(), static_cast<int>(events.size()), static_cast<int>(patience.count()));
  for (int i = 0; i < count; ++i) ready.push_back(events[static_cast<std::size_t>(i)].data.fd);
  return ready;
}

}  // namespace millrace::os
