// The server: the APIs' routes on one port.
// Thread-safety: preloaded() may wait on any thread; the rest from one.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "app/server/options.h"
#include "base/status.h"

namespace millrace::server {

struct Context;

class Server {
 public:
  /// Binds the port and begins to answer; a model to preload is loaded beside that. Errors: invalid_argument (the host
  /// or port), io_error (the port is taken), not_found and corrupt (the model to preload).
  static Expected<std::unique_ptr<Server>> start(ServerOptions options);
  ~Server();

  int port() const { return port_; }
  /// Of the model to preload; ok where there is none. Waits for it.
  Status preloaded() const;
  /// /health says no from here on, so that a balancer sends nothing more. What is under way is answered, and what comes
  /// all the same. Returns when there has been nothing to do for options.patience.drain_quiet, however long that takes.
  void drain();
  /// Refuses new requests, gives open streams options.patience.grace to end, fails the rest cleanly, and is gone.
  void stop();

 private:
  Server();
  std::unique_ptr<Context> context_;
  std::thread listener_, loader_;
  std::shared_future<Status> preload_status_;
  int port_ = 0;
};

}  // namespace millrace::server
