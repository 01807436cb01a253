#include "app/server/lobby.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace millrace::server {
namespace {

constexpr std::chrono::milliseconds kLateCheck{100};  // how often late sockets are looked for

void hang_up(int socket) {
  ::shutdown(socket, SHUT_RDWR);
  ::close(socket);
}

}  // namespace

Lobby::Lobby(std::chrono::milliseconds idle_time, std::size_t most, const std::atomic<bool>& stopping,
             std::function<void(int socket)> serve)
    : idle_time_(idle_time),
      most_(most),
      stopping_(stopping),
      serve_(std::move(serve)),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      thread_([this] { watch(); }) {}

Lobby::~Lobby() { close(); }

void Lobby::enter(int socket) {
  if (closed_ || stopping_) return hang_up(socket);
  int oldest = -1;
  {
    const MutexLock lock(mutex_);
    if (since_.size() >= most_)
      oldest = std::min_element(since_.begin(), since_.end(), [](const auto& a, const auto& b) {
                 return a.second < b.second;
               })->first;
    since_[socket] = Clock::now();
  }
  if (oldest >= 0 && leave(oldest)) hang_up(oldest);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;
  event.data.fd = socket;
  if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, socket, &event) != 0 && leave(socket)) hang_up(socket);
}

/// Whether it was here: whoever takes it out has it.
bool Lobby::leave(int socket) {
  {
    const MutexLock lock(mutex_);
    if (since_.erase(socket) == 0) return false;
  }
  ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, socket, nullptr);
  return true;
}

void Lobby::close_late() {
  std::vector<int> late;
  {
    const MutexLock lock(mutex_);
    for (const auto& [socket, since] : since_)
      if (closed_ || stopping_ || Clock::now() - since > idle_time_) late.push_back(socket);
  }
  for (const int socket : late)
    if (leave(socket)) hang_up(socket);
}

void Lobby::watch() {
  std::array<epoll_event, 64> events{};
  while (!closed_) {
    const int count =
        ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), static_cast<int>(kLateCheck.count()));
    for (int i = 0; i < count; ++i)
      if (const int socket = events[static_cast<std::size_t>(i)].data.fd; leave(socket)) serve_(socket);
    close_late();
  }
}

void Lobby::close() {
  closed_ = true;
  if (thread_.joinable()) thread_.join();
  close_late();
}

}  // namespace millrace::server
