#include "app/server/lobby.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/carry_on.h"

namespace millrace::server {
namespace {

constexpr std::chrono::milliseconds kLateCheck{100};  // how often late sockets are looked for

}  // namespace

Lobby::Lobby(std::chrono::milliseconds idle_time, std::size_t most, const std::atomic<bool>& stopping,
             std::function<void(os::Socket socket)> serve)
    : idle_time_(idle_time), most_(most), stopping_(stopping), serve_(std::move(serve)), thread_([this] { watch(); }) {}

Lobby::~Lobby() { close(); }

void Lobby::enter(os::Socket socket) {
  if (closed_ || stopping_) return;
  const os::SocketHandle handle = socket.handle();
  os::SocketHandle oldest = os::kNoSocket;
  // Without memory for its place the connection ends: this is the listener's thread, which must go on.
  const bool entered = carry_on("a new connection", [&] {
    const MutexLock lock(mutex_);
    if (waiting_.size() >= most_)
      oldest = std::min_element(waiting_.begin(), waiting_.end(), [](const auto& a, const auto& b) {
                 return a.second.since < b.second.since;
               })->first;
    waiting_[handle] = {std::move(socket), Clock::now()};
  });
  if (!entered) return (void)leave(handle);
  if (oldest != os::kNoSocket) (void)leave(oldest);
  if (!watch_.add(handle)) (void)leave(handle);
}

/// The socket, which is the caller's now; one that is not open: another has taken it.
os::Socket Lobby::leave(os::SocketHandle socket) {
  os::Socket taken;
  {
    const MutexLock lock(mutex_);
    const auto found = waiting_.find(socket);
    if (found == waiting_.end()) return taken;
    taken = std::move(found->second.socket);
    waiting_.erase(found);
  }
  watch_.remove(socket);
  return taken;
}

void Lobby::close_late() {
  std::vector<os::SocketHandle> late;
  {
    const MutexLock lock(mutex_);
    for (const auto& [socket, waiting] : waiting_)
      if (closed_ || stopping_ || Clock::now() - waiting.since > idle_time_) late.push_back(socket);
  }
  for (const os::SocketHandle socket : late) (void)leave(socket);
}

void Lobby::watch() {
  while (!closed_) {
    carry_on("idle connections", [this] {
      for (const os::SocketHandle ready : watch_.wait(kLateCheck)) {
        os::Socket socket = leave(ready);
        if (socket.is_open()) carry_on("a connection", [&] { serve_(std::move(socket)); });
      }
      close_late();
    });
  }
}

void Lobby::close() {
  closed_ = true;
  if (thread_.joinable()) thread_.join();
  close_late();
}

}  // namespace millrace::server
