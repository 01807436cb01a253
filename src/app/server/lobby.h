// Connections that have no request now: one thread waits for a byte of any of them, so that idle clients hold neither
// threads nor others up.
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <thread>

#include "base/mutex.h"
#include "base/os/socket.h"

namespace millrace::server {

class Lobby {
 public:
  /// `serve` gets a socket whose client has sent something (or closed its side), on the lobby's thread: it must be
  /// quick. A socket that says nothing for `idle_time` is closed, as is the one that has waited longest when there are
  /// more than `most`, and all of them once `stopping` is set.
  Lobby(std::chrono::milliseconds idle_time, std::size_t most, const std::atomic<bool>& stopping,
        std::function<void(os::Socket socket)> serve);
  /// As close().
  ~Lobby();

  /// The socket is the lobby's from here on.
  void enter(os::Socket socket);
  /// Ends the thread and closes all sockets; those that enter from here on are closed at once.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  void close_late();
  os::Socket leave(os::SocketHandle socket);

  struct Waiting {
    os::Socket socket;
    Clock::time_point since;
  };

  const std::chrono::milliseconds idle_time_;
  const std::size_t most_;
  const std::atomic<bool>& stopping_;
  const std::function<void(os::Socket socket)> serve_;
  const os::SocketWatch watch_;
  std::atomic<bool> closed_{false};
  Mutex mutex_;
  std::map<os::SocketHandle, Waiting> waiting_ MR_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace millrace::server
